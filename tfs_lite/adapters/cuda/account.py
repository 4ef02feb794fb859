"""The bytes of a version on a GPU, from snapshots of torch's allocator.

A snapshot is a list of segments, each a mapping with its ``total_size`` in bytes, the ``stream`` that it belongs to and
its ``segment_pool_id``, as ``torch.cuda.MemPool.snapshot`` and ``torch.cuda.memory_snapshot`` return them. Weights and
graphs are in pools of the version's own, so their segments are nobody else's. What its runs need besides is in torch's
cache for its streams, which no other version uses at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

Segment = Mapping[str, Any]
NO_POOL = (0, 0)


def reserved_bytes(segments: Iterable[Segment]) -> int:
    """Bytes that the segments take on the device; segments are returned as a whole."""
    return sum(int(segment["total_size"]) for segment in segments)


def workspace_bytes(segments: Iterable[Segment], streams: Collection[int]) -> int:
    """Bytes that torch's cache holds for these CUDA streams, outside of all pools: libraries' workspaces, and the
    memory of intermediate results from one run to the next."""
    return reserved_bytes(
        segment
        for segment in segments
        if segment["stream"] in streams and tuple(segment.get("segment_pool_id", NO_POOL)) == NO_POOL
    )
