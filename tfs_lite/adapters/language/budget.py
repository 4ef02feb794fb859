"""The memory that a language model will take, computed before it is loaded: weights and the whole cache.

    2 (keys and values) * layers * slots * heads * length * head size * bytes of a number

The numbers come from ``config.json`` and the headers of the weights, without transformers. Families name these numbers
differently; where one is not found the larger guess is taken, because the result is an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tfs_lite.adapters.language.hf_files import CONFIG, Json, read_config
from tfs_lite.adapters.language.lengths import LENGTH, sizes, steady_length
from tfs_lite.adapters.language.weights import read_headers
from tfs_lite.adapters.memory import FIXED_BYTES
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.adapters.pytorch.weight_file import WeightHeader
from tfs_lite.config.generation import GenerationSettings, generation_settings
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.status import failed_precondition

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
KV_HEADS = ("num_key_value_heads", "multi_query_group_num", "n_head_kv")
WIDTH = ("hidden_size", "n_embd", "d_model")
INNER = ("intermediate_size", "n_inner", "ffn_dim")
HEAD_SIZES = ("head_dim", "v_head_dim", "global_head_dim", "kv_channels")
FEW_LAYERS = 128
"""The layers that any model may have, because layers may share weights."""
FEW_NUMBERS, SLACK = 1024, 4
"""A size of the network may be as large as the first, or as the second times the largest dimension of a tensor."""
ROWS_IN_FLOAT = 4
"""Copies of one step's logits that sampling has at once."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Sizes in bytes. ``working``: logits of a step, and other small buffers."""

    weights: int
    cache: int
    working: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.working


def reserve(files: VersionFiles, settings: ModelSettings, on_gpu: bool) -> int:
    """An upper bound, in bytes. Errors of :func:`budget`."""
    return budget(files, settings, on_gpu).total


def budget(files: VersionFiles, settings: ModelSettings, on_gpu: bool) -> Budget:
    """The memory that a version needs. ServingError if the files cannot be read or the settings are invalid. An output
    layer that shares the weights of the input layer gets a copy when weights are packed."""
    wanted = generation_settings(settings)
    root = read_config(files.directory)
    config = text_part(root)
    size = BYTES[dtype_name(wanted, on_gpu)]
    headers = read_headers(files)
    check_network(root, headers)
    weights = size * sum(header.elements for header in headers.values())
    if wanted.packed_weights and not on_gpu and not any("head" in name for name in headers):
        weights += size * (_largest(config, ("vocab_size",)) or 0) * (_largest(config, WIDTH) or 0)
    slots = wanted.slots(on_gpu)
    length = length_of(wanted, on_gpu, config)
    spare = int(on_gpu and wanted.cuda_graphs)  # a position for rows that are idle
    logits = ROWS_IN_FLOAT * slots * (_largest(config, ("vocab_size",)) or 0) * 4
    cache = slots * (length + spare) * size * cache_numbers(config)
    return Budget(weights, cache, logits + weights // 20 + FIXED_BYTES)


def length_of(wanted: GenerationSettings, on_gpu: bool, config: Json) -> int:
    """The tokens of one text, at most as many as the network was made for. Unless the settings ask for more, not beyond
    the length from which rotary positions depend on the longest text of a step. ``config``: the text part."""
    length = wanted.length(on_gpu, _largest(config, LENGTH))
    return length if wanted.max_model_len else min(length, steady_length(config) or length)


def dtype_name(wanted: GenerationSettings, on_gpu: bool) -> str:
    if wanted.dtype != "auto":
        return wanted.dtype
    return "bfloat16" if on_gpu else "float32"


def text_part(config: Json) -> Json:
    """The text part of the config of a multimodal model; else the config itself."""
    found = config.get("text_config")
    return found if isinstance(found, dict) else config


def cache_numbers(config: Json) -> int:
    """The most numbers that the cache holds for one position of one text; 0 for networks without attention.
    FAILED_PRECONDITION for values that are no sizes."""
    layers, heads, width = (_largest(config, names) for names in (LAYERS, HEADS, WIDTH))
    if not layers or not (heads or width):
        return 0
    size = _head_size(config, heads or 1, width or 0)
    return 2 * layers * (_largest(config, KV_HEADS) or heads or 1) * size


def check_network(root: Json, headers: Mapping[str, WeightHeader]) -> None:
    """Raises FAILED_PRECONDITION if ``config.json`` calls for a far larger network than the weights are."""
    _check_layers(root, headers)
    _check_sizes(text_part(root), headers)


def _check_layers(root: Json, headers: Mapping[str, WeightHeader]) -> None:
    """Raises FAILED_PRECONDITION if the config has far more layers than the weights: finding that out later would cost
    the memory and the time of building such a network."""
    for part in (root, *(value for value in root.values() if isinstance(value, dict))):
        layers = _largest(part, LAYERS) or 0
        if layers > max(FEW_LAYERS, len(headers)):
            raise failed_precondition(
                f"{CONFIG} calls for {layers} layers, and the weights have {len(headers)} tensors"
            )


def _check_sizes(config: Json, headers: Mapping[str, WeightHeader]) -> None:
    """Checks widths and the vocabulary as :func:`_check_layers` checks layers."""
    most = max((SLACK * size for header in headers.values() for size in header.shape), default=0)
    for name in ("vocab_size", *WIDTH, *INNER):
        if (found := _largest(config, (name,)) or 0) > max(FEW_NUMBERS, most):
            raise failed_precondition(f"{CONFIG}: {name} is {found}, and no tensor of the weights is that large")


def _head_size(config: Json, heads: int, width: int) -> int:
    compressed = sum(_largest(config, (name,)) or 0 for name in ("qk_nope_head_dim", "qk_rope_head_dim"))
    declared = max(_largest(config, HEAD_SIZES) or 0, compressed)
    return declared or -(-width // heads)


def _largest(config: Json, names: Iterable[str]) -> int | None:
    """The largest of these fields, which may be lists with a value for each layer; None if there are none."""
    found = [number for name in names for number in sizes(name, config.get(name))]
    return max(found, default=None)
