"""The lengths at which a network may change its ways, by its ``config.json``.

A check at the load that runs a few short texts proves nothing about longer ones where the network changes in between:
rotary positions that turn with the longest text of a forward, windows, chunks and blocks of attention, buckets of
distances. So checks run texts on both sides of each such length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tfs_lite.adapters.language.hf_files import CONFIG, Json
from tfs_lite.core.status import failed_precondition

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTH = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"),
    "max_target_positions",
)
"""The names that configs have for the length that a network was made for."""
_GROWING_ROPES = frozenset({"dynamic", "longrope"})
_ORIGINAL = "original_max_position_embeddings"
_NAMES = re.compile(
    r"(?!.*layer).*(window|chunk|block_size|bucket|position|distance|context_len|segment|local_attention)"
)
_MOST = 16


def steady_length(config: Json) -> int | None:
    """The length up to which the positions of a text do not depend on the longest text of a forward; None: whatever its
    length. FAILED_PRECONDITION for a length that is none."""
    found = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(found, dict):
        return None
    bounds: list[int] = []
    for rope in (found, *found.values()):
        if isinstance(rope, Mapping) and (rope.get("rope_type") or rope.get("type")) in _GROWING_ROPES:
            first = (rope.get(_ORIGINAL), *(config.get(name) for name in (_ORIGINAL, *LENGTH)))
            bounds.extend(sizes(_ORIGINAL, next((value for value in first if value), None)))
    return min(bounds, default=None)


def full_attention_length(module: PreTrainedModel) -> int | None:
    """The length up to which a network of block-sparse attention (BigBird), as it comes, attends to everything; None
    for other networks. After the first text of such a length it does so with all texts, so answers depend on
    history."""
    if not any("BlockSparse" in type(part).__name__ for part in module.modules()):
        return None
    config = module.config
    return int((5 + 2 * config.num_random_blocks) * config.block_size)


def thresholds(config: Json, length: int) -> list[int]:
    """Numbers of the config that may be such lengths, ascending, each less than ``length``; at most 16 of them."""
    parts = (config, *(part for name in ("rope_parameters", "rope_scaling") for part in _dicts(config.get(name))))
    found = {
        value
        for part in parts
        for name, field in part.items()
        if _NAMES.match(name)
        for value in (field if isinstance(field, list) else [field])
        if type(value) is int and 1 < value < length
    }
    return sorted(found)[:_MOST]


def sizes(name: str, value: Any) -> Iterator[int]:
    """The number of a field, or those of its list. FAILED_PRECONDITION for what is no size."""
    for number in value if isinstance(value, list) else [value]:
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**31:
            raise failed_precondition(f"{CONFIG}: {name} is {number!r:.50}, expected a size")
        yield number


def _dicts(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
        yield from (part for part in value.values() if isinstance(part, dict))
