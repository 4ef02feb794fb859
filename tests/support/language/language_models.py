"""Small random language models in a repository, version by version: directories as ``save_pretrained`` writes them.

    publish_language(repository / "m", 1, Size(slots=4, length=512))

Versions differ in their weights, so that a text tells which one wrote it. Tokens are bytes, and nothing but the bound
on tokens ends a text.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tfs_lite.core.publish import publish

VOCABULARY = 259
MADE_FOR = 8192
"""Tokens of one text, at most."""
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Size:
    """``slots`` and ``length`` are those of the cache; ``heads`` and ``head_size`` of what it holds for each position
    and layer. ``parameters``: more of the config's."""

    slots: int = 4
    length: int = 512
    layers: int = 1
    width: int = 32
    heads: int = 2
    head_size: int = 8
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def cache_bytes(self) -> int:
        return 2 * FLOAT_BYTES * self.layers * self.slots * self.length * self.heads * self.head_size

    @property
    def config(self) -> str:
        """As ``config.pbtxt``."""
        values = {"max_num_seqs": self.slots, "max_model_len": self.length, **self.parameters}
        return "".join(
            f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n' for name, value in values.items()
        )


def publish_language(base: Path, version: int, size: Size | None = None, seed: int | None = None) -> Path:
    """The version's directory. ``seed`` of its weights; None: the version's number."""
    size = size or Size()
    with tempfile.TemporaryDirectory() as directory:
        write_language(Path(directory), version if seed is None else seed, size)
        return Path(publish(directory, str(base), version).path)


def write_language(directory: Path, seed: int, size: Size) -> None:
    config = LlamaConfig(
        hidden_size=size.width,
        intermediate_size=2 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=2 * size.heads,
        num_key_value_heads=size.heads,
        head_dim=size.head_size,
        vocab_size=VOCABULARY,
        max_position_embeddings=MADE_FOR,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByteTokenizer"}))
    (directory / "config.pbtxt").write_text(size.config)


def calm_environment() -> dict[str, str]:
    """For server processes with such models: teams of threads for layers as small as these wait for one another most
    of the time."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}
