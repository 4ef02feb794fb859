"""What language models are asked in benchmarks, and the networks they are: random weights of known shapes.

Nothing in a network of random weights says when to stop, so every text is as long as was asked for, and all sides draw
the same tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, in tokens, and how many more are wanted."""

    prompt: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a GPT-2."""

    layers: int
    heads: int
    width: int
    vocabulary: int = 50257
    length: int = 1024


SHAPES = {"gpt2-small": Shape(12, 12, 768), "30m": Shape(6, 8, 384), "tiny": Shape(4, 4, 256, vocabulary=1000)}
PLACES = 8


def classic(vocabulary: int, seed: int = 1) -> list[Asked]:
    """32 requests; every 8th asks for 100 tokens, the others for 10."""
    rng = random.Random(seed)
    return [Asked(_prompt(rng, 7, vocabulary), 100 if number % 8 == 0 else 10) for number in range(32)]


def scattered(vocabulary: int, seed: int = 2) -> list[Asked]:
    """48 requests of random lengths."""
    rng = random.Random(seed)
    return [Asked(_prompt(rng, rng.randint(4, 60), vocabulary), rng.randint(4, 80)) for _ in range(48)]


def long_prompts(vocabulary: int, seed: int = 3) -> list[Asked]:
    """8 prompts of 300 to 950 tokens, 32 more tokens each."""
    rng = random.Random(seed)
    return [Asked(_prompt(rng, rng.randint(300, 950), vocabulary), 32) for _ in range(8)]


def abreast(vocabulary: int, seed: int = 4) -> list[Asked]:
    """8 prompts of 64 tokens, 100 more tokens each: every step but the first has 8 rows."""
    rng = random.Random(seed)
    return [Asked(_prompt(rng, 64, vocabulary), 100) for _ in range(PLACES)]


WORKLOADS = {"classic": classic, "scattered": scattered, "long": long_prompts, "abreast": abreast}


def save_network(shape: Shape, directory: Path) -> None:
    """A version directory with random weights: wide ones, for narrow ones repeat one token."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=shape.layers,
        n_head=shape.heads,
        n_embd=shape.width,
        vocab_size=shape.vocabulary,
        n_positions=shape.length,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
    )
    network: Any = GPT2LMHeadModel(config)
    network.eval().save_pretrained(directory)


def load_network(directory: Path) -> Any:
    """As people load it who serve it themselves."""
    import torch
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return network.eval()


def _prompt(rng: random.Random, length: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(rng.randrange(vocabulary) for _ in range(length))


def tokens_of(workload: Sequence[Asked]) -> int:
    return sum(asked.tokens for asked in workload)
