"""Small random networks of many families of transformers, and what the library itself answers with them.

A config of any family is made small by the names of its fields. Weights are widely distributed, so that a wrong
position, mask or class shows at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel

from tests.support.language.tiny_encoders import SPECIAL, WORDS, tokenizer

MAPPINGS: Mapping[str, str] = {
    "embeds": "MODEL_MAPPING",
    "classifies": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "tags": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    "sees": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "generates": "MODEL_FOR_CAUSAL_LM_MAPPING",
}
"""What a network does, and where transformers has the classes for that."""
FAMILIES: Mapping[str, Sequence[str]] = {
    "embeds": (
        *("bert", "roberta", "distilbert", "albert", "electra", "mpnet", "xlm-roberta", "deberta-v2", "modernbert"),
        *("longformer", "fnet", "convbert", "squeezebert", "mobilebert", "ernie", "t5", "mt5", "umt5", "reformer"),
        *("bert-generation", "qwen3", "gemma3_text", "phi3", "llama"),
    ),
    "classifies": ("bert", "bart", "deberta", "gpt2", "xlnet", "llama"),
    "tags": ("bert", "roberta", "electra"),
    "sees": ("vit", "resnet", "convnext", "swin", "deit", "beit", "mobilenet_v2", "segformer", "pvt"),
    "generates": (
        *("gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi", "phi3", "gemma2", "gemma3_text"),
        *("falcon", "bloom", "mpt", "gpt_neox", "opt", "olmo2", "stablelm", "starcoder2", "granite", "deepseek_v3"),
        *("gpt_oss", "granitemoehybrid", "roberta", "bert-generation"),
    ),
}
"""Those that answer as the library does."""
REFUSED: Mapping[tuple[str, str], str] = {
    ("generates", "prophetnet"): "a text gets other answers than as a whole",
    ("generates", "xlm"): "a text gets other answers than as a whole",
    ("generates", "big_bird"): "attention_type of config.json to original_full",
    ("generates", "openai-gpt"): "takes no cache of keys and values",
    ("generates", "mamba"): "keeps a running state",
    ("embeds", "big_bird"): "attention_type of config.json to original_full",
    ("embeds", "canine"): "has no table of tokens",
    ("embeds", "marian"): "a network with a decoder may need inputs for that",
    ("sees", "pp_lcnet"): "does not run on 1 images",
}
"""And those that are not served, with words of the reason."""

LENGTH, VOCABULARY, WINDOW = 40, 32, 11
END = 3
_TWO = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"),
    *("num_encoder_layers", "num_decoder_layers", "num_key_value_heads", "num_experts_per_tok", "bos_token_id"),
    *("decoder_start_token_id",),
)
_FOUR = (
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"),
    *("num_experts", "num_local_experts", "n_routed_experts", "rotary_dim", "qk_rope_head_dim", "qk_nope_head_dim"),
    *("block_size", "num_buckets"),
)
_EIGHT = (
    *("head_dim", "d_kv", "v_head_dim", "q_lora_rank", "kv_lora_rank", "attention_head_size", "attention_window"),
    *("local_attn_chunk_length", "lsh_attn_chunk_length", "local_attention"),
)
_WIDTH = ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "word_embed_proj_dim")
_INNER = (
    *("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "d_inner", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("moe_intermediate_size", "shared_expert_intermediate_size", "feed_forward_size"),
)
_LONG = ("max_position_embeddings", "n_positions", "n_ctx", "max_target_positions")
SMALL: Mapping[str, Any] = {
    **dict.fromkeys(_TWO, 2),
    **dict.fromkeys(_FOUR, 4),
    **dict.fromkeys(_EIGHT, 8),
    **dict.fromkeys(_WIDTH, 32),
    **dict.fromkeys(_INNER, 48),
    **dict.fromkeys(_LONG, 64),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace", "num_random_blocks"), 1),
    "embedding_size": 16,
    "sliding_window": WINDOW,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "eos_token_id": END,
    "hash_seed": 0,
    "axial_pos_embds": False,
    "attn_layers": ["local", "lsh"],
    "image_size": 64,
}
OF_FAMILY: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 4},
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32, "embedding_size": 32},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "layer_scale_init_value": 1.0},
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    "segformer": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]},
    "granitemoehybrid": {"layer_types": ["attention", "attention"], "mamba_n_heads": 4, "mamba_d_head": 16},
    "pvt": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]},
    "squeezebert": {"embedding_size": 32},
    "mobilenet_v2": {"depth_multiplier": 0.25},
}
DECODERS = ("roberta", "bert-generation", "big_bird", "xlm", "prophetnet")
"""Families that generate if their config says so."""
ENCODERS: Mapping[str, str] = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
"""The half of a network with a decoder."""


def small_config(kind: str, **fields: Any) -> Any:
    """The config of a family with few and narrow layers."""
    made = transformers.CONFIG_MAPPING[kind]
    renamed: Mapping[str, str] = getattr(made, "attribute_map", {})
    names = {*vars(made()), *inspect.signature(made.__init__).parameters, *renamed}
    chosen = {name: value for name, value in SMALL.items() if name in names and renamed.get(name) not in SMALL}
    return made(**{**chosen, **OF_FAMILY.get(kind, {}), **fields})


def save_family(directory: Path, way: str, kind: str, **fields: Any) -> PreTrainedModel:
    """Writes a network as ``save_pretrained`` does, with its tokenizer, and returns it as the library reads it."""
    decodes = {"is_decoder": True} if way == "generates" and kind in DECODERS else {}
    classes = {"num_labels": 5} if way not in ("embeds", "generates") else {}
    config = small_config(kind, **decodes, **classes, **fields)
    found = getattr(transformers, MAPPINGS[way])[type(config)]
    made = found[0] if isinstance(found, tuple) else found
    if way == "embeds" and kind in ENCODERS:
        made = getattr(transformers, ENCODERS[kind])
    torch.manual_seed(0)
    made(config).save_pretrained(directory)
    if way != "sees":
        tokenizer().save_pretrained(directory)
    module: PreTrainedModel = made.from_pretrained(directory).eval()
    return module


TEXTS = (
    "the cat sat",
    "a dog ran home fast and the sun sat on the red mat",
    "no",
    "",
    " ".join(WORDS) + " and so very good",
)
PIXELS = np.random.default_rng(0).standard_normal((3, 3, 64, 64), np.float32)


@torch.inference_mode()
def answers(module: PreTrainedModel, way: str) -> list[np.ndarray[Any, Any]]:
    """What the library answers to each of :data:`TEXTS` alone, without padding, or to each image of :data:`PIXELS`: the
    mean of the vectors, or logits; those of a text's own tokens, for tags."""
    if way == "sees":
        return [module(pixel_values=torch.from_numpy(image[None])).logits[0].numpy() for image in PIXELS]
    taken = inspect.signature(module.forward).parameters
    found = []
    for text in TEXTS:
        sent = tokenizer()(text, truncation=True, max_length=LENGTH, return_tensors="pt")
        output = module(**{name: value for name, value in sent.items() if name in taken})
        vectors = output.last_hidden_state[0].mean(0) if way == "embeds" else output.logits[0]
        found.append((vectors[1:-1] if way == "tags" else vectors).numpy())
    return found


PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [12], [*range(4, 28)])
COUNT = 12


def texts_of(module: PreTrainedModel) -> list[str]:
    """What the library generates after each of :data:`PROMPTS`, the likeliest tokens."""
    own: Any = transformers.AutoTokenizer.from_pretrained(module.name_or_path)
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": COUNT, "do_sample": False}
        generate: Any = module.generate
        tokens = generate(ids, **options, pad_token_id=0, eos_token_id=END)[0, len(prompt) :].tolist()
        found.append(own.decode(tokens, skip_special_tokens=True))
    return found


assert len(SPECIAL) + len(WORDS) <= VOCABULARY
