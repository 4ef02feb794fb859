"""Real architectures of the zoo, with tiny configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from tests.support.exported.zoo_program import floats, in_zoo, numbers, rows, tokens

VOCABULARY = 32
_BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
}
_LENGTH = Dim("length", min=2, max=16)


class Answers(nn.Module):
    """A transformers model that returns chosen results."""

    def __init__(self, model: nn.Module, pick: Callable[[Any], Any], **options: Any) -> None:
        super().__init__()
        self.model, self.pick, self.options = model, pick, options

    def forward(self, x: Tensor) -> Any:
        return self.pick(self.model(x, **self.options))


class Bert(nn.Module):
    """Takes its inputs by name."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.model = transformers.BertModel(transformers.BertConfig(**{**_BERT, "attn_implementation": attention}))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        result = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return {"last": result.last_hidden_state, "pooled": result.pooler_output}


def _last(result: Any) -> Any:
    return result.last_hidden_state


def _logits(result: Any) -> Any:
    return result.logits


@in_zoo(rows(6))
def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 4), nn.Softmax(-1))


@in_zoo(rows(3, 16, 16))
def make_resnet() -> nn.Module:
    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "num_labels": 3}
    config = transformers.ResNetConfig(layer_type="basic", **sizes)
    return Answers(transformers.ResNetForImageClassification(config), _logits)


def _bert_inputs(size: int) -> dict[str, Tensor]:
    mask = (torch.arange(7) < 7 - torch.arange(size)[:, None] % 4).long()
    return {"input_ids": numbers(VOCABULARY, size, 7), "attention_mask": mask}


@in_zoo(lambda size: (), named=_bert_inputs)
def make_bert() -> nn.Module:
    return Bert("eager")


@in_zoo(lambda size: (), named=_bert_inputs)
def make_bert_sdpa() -> nn.Module:
    return Bert("sdpa")


@in_zoo(lambda size: (numbers(VOCABULARY, size, size + 2),), sizes=(1, 4, 9), dynamic=({0: Dim.DYNAMIC, 1: _LENGTH},))
def make_bert_lengths() -> nn.Module:
    return Answers(transformers.BertModel(transformers.BertConfig(**{**_BERT, "attn_implementation": "eager"})), _last)


@in_zoo(tokens(6))
def make_gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    return Answers(transformers.GPT2LMHeadModel(config), _logits, use_cache=False)


_LLAMA: dict[str, Any] = {**_BERT, "num_key_value_heads": 1}


@in_zoo(tokens(6))
def make_llama() -> nn.Module:
    return Answers(transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LLAMA)), _logits, use_cache=False)


@in_zoo(tokens(6), sizes=(1, 4, 9))
def make_mixtral() -> nn.Module:
    config = transformers.MixtralConfig(**_LLAMA, num_local_experts=3, num_experts_per_tok=2)
    model = transformers.MixtralForCausalLM(config)
    model.set_experts_implementation("batched_mm")
    return Answers(model, _logits, use_cache=False)


@in_zoo(tokens(6))
def make_t5_encoder() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, num_decoder_layers=1
    )
    return Answers(transformers.T5EncoderModel(config), _last)


@in_zoo(rows(3, 16, 16))
def make_vit() -> nn.Module:
    sizes: dict[str, Any] = {**_BERT, "image_size": 16, "patch_size": 8, "attn_implementation": "sdpa"}
    return Answers(transformers.ViTModel(transformers.ViTConfig(**sizes), add_pooling_layer=False), _last)


@in_zoo(rows(3, 16, 16), sizes=(1, 4, 9))
def make_swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 1], num_heads=[1, 2], window_size=4
    )
    return Answers(transformers.SwinModel(config), _last)


@in_zoo(rows(8, 24))
def make_whisper_encoder() -> nn.Module:
    config = transformers.WhisperConfig(
        d_model=16,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=16,
        num_mel_bins=8,
        max_source_positions=12,
        vocab_size=VOCABULARY,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=16,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=1,
    )
    return Answers(transformers.WhisperModel(config).encoder, _last)


@in_zoo(rows(2, 10, 10))
class UNet(nn.Module):
    """Down twice, up twice with interpolation and transposed convolution, and the connections across."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.third = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.last = nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Any:
        first = functional.silu(self.norm(self.first(x)))
        second = functional.gelu(self.second(first))
        third = functional.relu(self.third(second))
        nearest = functional.interpolate(third, size=x.shape[2:], mode="nearest")
        raised = functional.interpolate(self.up(third), size=first.shape[2:], mode="bilinear", align_corners=False)
        return self.last(torch.cat([first, nearest, raised], 1))


@in_zoo(rows(5, 4), sizes=(1, 4, 9))
def make_lstm() -> nn.Module:
    return nn.LSTM(4, 5, num_layers=2, batch_first=True, bidirectional=True)


@in_zoo(
    lambda size: (floats(3, size, 4), (floats(1, size, 5), floats(1, size, 5, seed=2))),
    sizes=(1, 4, 9),
    dynamic=({1: Dim.DYNAMIC}, ({1: Dim.DYNAMIC}, {1: Dim.DYNAMIC})),
)
def make_lstm_with_state() -> nn.Module:
    return nn.LSTM(4, 5)


@in_zoo(rows(5, 4), sizes=(1, 4, 9))
def make_gru() -> nn.Module:
    return nn.GRU(4, 5, batch_first=True)


@in_zoo(rows(5, 16))
def make_transformer_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@in_zoo(lambda size: (floats(size, 5, 8), floats(size, 3, 8, seed=2)))
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor) -> Any:
        return self.attention(x, memory, memory, need_weights=True)


@in_zoo(rows(3, 8, 8), decompose=True)
def make_decomposed_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU6(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 5),
        nn.LayerNorm(5),
    )


@in_zoo(tokens(5))
class TiedWeights(nn.Module):
    """One matrix under two names, and a view of another one."""

    wide: Tensor
    narrow: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("wide", floats(4, 8))
        self.register_buffer("narrow", self.wide[1:3].t())

    def forward(self, x: Tensor) -> Any:
        return self.head(self.embedding(x) @ self.narrow @ self.narrow.t()) + self.wide.sum()


@in_zoo(rows(6))
def make_deep_mlp() -> nn.Module:
    """Some 300 operators, more than fit in one part of a function, on few weights."""
    layers = nn.Linear(6, 6), nn.Tanh(), nn.LayerNorm(6)
    return nn.Sequential(*(layer for _ in range(100) for layer in layers))
