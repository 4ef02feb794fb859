"""Changes to what language models are asked and made of: see ``mutators``."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from targets_generation import files_of, packed
from words import FLOATS, NUMBERS

from tfs_lite.adapters.language.budget import HEAD_SIZES, HEADS, KV_HEADS, LAYERS, WIDTH
from tfs_lite.adapters.language.lengths import LENGTH
from tfs_lite.protocols.generation_tensors import generation_signature
from tfs_lite.protocols.openai.fields import NEUTRAL, REFUSED, Chat, Completion

VALUES: Sequence[Any] = (
    *(
        None,
        True,
        False,
        "",
        "a",
        "lm",
        "ids",
        "bare",
        [],
        {},
        [[]],
        ["a"],
        [1],
        [[1, 2]],
        {"65": 1.0},
        "\0é",
        "x" * 80,
    ),
    *({"content": "<s>"}, {"rope_type": "dynamic"}, ["full_attention"], [""], "{{ messages }}", "{% for %}", {"1": {}}),
    *(*NUMBERS, *FLOATS, 1e-9, 20, 21, 16, 17, 128, 129, 256, 257, 258, "NaN", "{{ 1/0 }}", "{% for i in messages %}"),
)
REQUEST_FIELDS = sorted({*Completion.model_fields, *Chat.model_fields, *NEUTRAL, *REFUSED})
INPUTS = sorted(generation_signature(True).input_names)
CONFIG_FIELDS = (
    *(*LAYERS, *HEADS, *KV_HEADS, *WIDTH, *LENGTH, *HEAD_SIZES, "vocab_size", "model_type", "architectures"),
    *("auto_map", "rope_scaling", "rope_parameters", "eos_token_id", "text_config", "is_decoder", "layer_types"),
    *("intermediate_size", "attn_implementation", "dtype", "torch_dtype", "hidden_act", "use_cache", "sliding_window"),
    *("bos_token", "eos_token", "pad_token", "unk_token", "tokenizer_class", "chat_template", "add_bos_token"),
    *("additional_special_tokens", "num_labels", "id2label", "pruned_heads", "num_experts", "attention_types"),
)
KINDS = ("llama", "gpt2", "qwen3", "mistral", "gemma3", "opt", "bloom", "gpt_neo", "mixtral", "mamba", "falcon", "mpt")


def change_fields(names: Sequence[str], head: int, inside: Any) -> Any:
    """For a JSON object after ``head`` bytes: fields that are known get values that mean something somewhere."""

    def mutate(data: bytes, chance: random.Random) -> bytes:
        try:
            tree = json.loads(data[head:])
        except (ValueError, RecursionError):
            tree = None
        if not isinstance(tree, dict) or chance.random() < 0.3:
            changed: bytes = inside(data, chance)
            return changed
        change(tree, names, chance)
        return data[:head] + json.dumps(tree).encode()

    return mutate


def change(tree: dict[str, Any], names: Sequence[str], chance: random.Random) -> None:
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(names)
        if name == "model_type":
            tree[name] = chance.choice(KINDS)
        elif name in tree and chance.random() < 0.2:
            del tree[name]
        else:
            tree[name] = chance.choice(VALUES)


def change_files(inside: Any) -> Any:
    """For the files of a version: a field of a config, the header of the weights, or the bytes of any of them."""

    def mutate(data: bytes, chance: random.Random) -> bytes:
        files = files_of(data)
        if not files:
            changed: bytes = inside(data, chance)
            return changed
        at = chance.choice((0, 0, 1, 1, 2)) % len(files)
        if chance.random() < 0.15:
            files[at] = inside(files[at], chance)
        elif at == 2:
            files[at] = _change_weights(files[at], chance)
        else:
            files[at] = change_fields(CONFIG_FIELDS, 0, inside)(files[at], chance)
        return packed(files)

    return mutate


def _change_weights(data: bytes, chance: random.Random) -> bytes:
    try:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        tensor = chance.choice([value for value in header.values() if isinstance(value, dict)])
    except (struct.error, ValueError, IndexError, AttributeError, OverflowError):
        return data
    _change_tensor(tensor, chance)
    told = json.dumps(header).encode()
    said = len(told) if chance.random() < 0.9 else chance.choice(NUMBERS) % 2**64
    return struct.pack("<Q", said) + told + data[8 + length :]


def _change_tensor(tensor: Mapping[str, Any], chance: random.Random) -> None:
    match chance.randrange(3):
        case 0:
            tensor["shape"] = [chance.choice(NUMBERS) for _ in range(chance.randrange(4))]  # type: ignore[index]
        case 1:
            tensor["data_offsets"] = [chance.choice(NUMBERS), chance.choice(NUMBERS)]  # type: ignore[index]
        case _:
            tensor["dtype"] = chance.choice(("F32", "F99", "BF16", "I64", "", 5, None))  # type: ignore[index]
