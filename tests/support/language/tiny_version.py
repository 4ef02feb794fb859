"""The files of a language model so small that it loads at once, written without torch and transformers.

    write_version(directory, seed=1)                    # config.json, model.safetensors
    write_version(directory, {"tokenizer_class": ...})  # and a tokenizer_config.json

A Llama of one layer with random weights. Its tokens are those of the byte tokenizer: bytes, and three more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

VOCABULARY = 259
CONTEXT = 2048
WIDTH, INNER, HEADS, HEAD = 32, 48, 2, 16
BYTES_OF_TEXT: Mapping[str, Any] = {"tokenizer_class": "ByteTokenizer"}
"""A ``tokenizer_config.json``."""
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": HEAD,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
SHAPES: Mapping[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (VOCABULARY, WIDTH),
    "model.layers.0.input_layernorm.weight": (WIDTH,),
    "model.layers.0.self_attn.q_proj.weight": (HEADS * HEAD, WIDTH),
    "model.layers.0.self_attn.k_proj.weight": (HEAD, WIDTH),
    "model.layers.0.self_attn.v_proj.weight": (HEAD, WIDTH),
    "model.layers.0.self_attn.o_proj.weight": (WIDTH, HEADS * HEAD),
    "model.layers.0.post_attention_layernorm.weight": (WIDTH,),
    "model.layers.0.mlp.gate_proj.weight": (INNER, WIDTH),
    "model.layers.0.mlp.up_proj.weight": (INNER, WIDTH),
    "model.layers.0.mlp.down_proj.weight": (WIDTH, INNER),
    "model.norm.weight": (WIDTH,),
    "lm_head.weight": (VOCABULARY, WIDTH),
}


def weights(seed: int = 5) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """By name, float32. Norms are ones, everything else is random and large enough for texts that wander."""
    chance = np.random.default_rng(seed)
    return {
        name: np.ones(shape, np.float32) if len(shape) == 1 else chance.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def write_version(directory: Path, tokenizer: Mapping[str, Any] | None = None, seed: int = 5) -> Path:
    """``tokenizer`` None: the model speaks tokens only. Makes the directory and returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(dict(CONFIG)))
    save_file(weights(seed), directory / "model.safetensors", metadata={"format": "pt"})
    if tokenizer is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer)))
    return directory
