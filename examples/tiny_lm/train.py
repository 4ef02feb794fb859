"""Trains a small language model on Python's own documentation, or trains one further.

    python examples/tiny_lm/train.py trained [--steps 150]

The directory becomes a version as ``tfs-lite publish`` takes it: what ``save_pretrained`` of transformers writes. If
there is a model in it already, that one learns more. The model reads and writes bytes, so there is no vocabulary to
make; the texts are ``pydoc_data.topics``, which Python's ``help`` shows and every installation has.
"""

from __future__ import annotations

import argparse
import json
import math
import pydoc_data.topics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import MistralConfig, MistralForCausalLM
from transformers.utils.logging import disable_progress_bar

END = 256
"""The token between two texts; those below are bytes."""
TOKENIZER = {"tokenizer_class": "ByteTokenizer", "bos_token": "<|end|>", "eos_token": "<|end|>", "add_bos_token": True}
"""The server's own tokenizer of bytes: special tokens are 256 and up."""
BATCH, LENGTH = 8, 128
"""Windows of text that are learned from at once, and bytes of each."""


def texts() -> tuple[Tensor, Tensor]:
    """Tokens to learn from, and those of every tenth topic, which are kept for the examination."""
    topics = [pydoc_data.topics.topics[name].encode() for name in sorted(pydoc_data.topics.topics)]
    learned = [topic for number, topic in enumerate(topics) if number % 10]
    return _tokens(learned), _tokens(topics[::10])


def _tokens(topics: list[bytes]) -> Tensor:
    return torch.tensor([token for topic in topics for token in (END, *topic)])


def new_model() -> MistralForCausalLM:
    """Each byte sees the 64 before it in each layer, and nothing depends on how far into the text they are: so a text
    may become far longer than what the model learned from."""
    config: Any = MistralConfig(
        vocab_size=END + 1,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=64,
        max_position_embeddings=1 << 16,
        tie_word_embeddings=True,
        bos_token_id=END,
        eos_token_id=END,
    )
    config.steps = 0
    return MistralForCausalLM(config)


def learn(model: nn.Module, tokens: Tensor, steps: int) -> None:
    """Matrices by Muon, the rest by Adam; both rates rise for a tenth of the steps, and fall to nothing."""
    embedding = [weight for name, weight in model.named_parameters() if "embed" in name or weight.ndim < 2]
    matrices = [weight for name, weight in model.named_parameters() if "embed" not in name and weight.ndim == 2]
    optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(embedding, lr=0.008)]
    rates = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(10 * (step + 1), steps - step) / steps)
        for optimizer in optimizers
    ]
    model.train()
    for _ in range(steps):
        begins = torch.randint(len(tokens) - LENGTH, (BATCH, 1))
        loss: Any = _loss(model, tokens[begins + torch.arange(LENGTH + 1)])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            rate.step()


@torch.inference_mode()
def bits_per_byte(model: nn.Module, tokens: Tensor) -> float:
    """How many yes-or-no questions the next byte still takes on average; 8 for a model that knows nothing."""
    model.eval()
    windows = tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    return float(_loss(model, windows)) / math.log(2)


def _loss(model: nn.Module, windows: Tensor) -> Tensor:
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def train(directory: Path, steps: int) -> float:
    """So many steps more, from where the model in ``directory`` is; the ``bits_per_byte`` on unseen topics. Always the
    same on one machine."""
    torch.set_num_threads(1)  # so little work goes faster without handing it around
    quiet: Any = disable_progress_bar
    quiet()
    torch.manual_seed(0)
    known = (directory / "config.json").exists()
    model = MistralForCausalLM.from_pretrained(directory) if known else new_model()
    torch.manual_seed(model.config.steps)
    learned, unseen = texts()
    learn(model, learned, steps)
    model.config.steps += steps
    model.save_pretrained(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps(TOKENIZER, indent=2))
    return bits_per_byte(model, unseen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    started = time.monotonic()
    bits = train(arguments.directory, arguments.steps)
    print(f"{arguments.directory}: trained for {time.monotonic() - started:.0f} s; {bits:.2f} bits per unseen byte")


if __name__ == "__main__":
    main()
