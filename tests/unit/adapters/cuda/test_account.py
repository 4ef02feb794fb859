"""The byte account from snapshots as torch's allocator gives them."""

from __future__ import annotations

import pytest
import torch

from tfs_lite.adapters.cuda.account import reserved_bytes, workspace_bytes

MIB = 1 << 20


def segment(total, allocated, stream=0, pool=(0, 0)):
    return {"total_size": total * MIB, "allocated_size": allocated * MIB, "stream": stream, "segment_pool_id": pool}


def test_a_pool_takes_its_segments_as_a_whole():
    segments = [segment(20, 3, pool=(0, 1)), segment(2, 2, pool=(0, 1))]
    assert reserved_bytes(segments) == 22 * MIB
    assert reserved_bytes([]) == 0


def test_workspace_is_what_the_cache_holds_for_streams_of_the_model_outside_of_pools():
    segments = [
        segment(32, 32, stream=7),
        segment(2, 0, stream=9),
        segment(20, 20, stream=7, pool=(0, 3)),
        segment(64, 64, stream=0),
        {"total_size": MIB, "allocated_size": 0, "stream": 9},
    ]
    assert workspace_bytes(segments, {7, 9}) == 35 * MIB
    assert workspace_bytes(segments, set()) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_snapshots_of_this_torch_have_these_fields():
    kept = torch.zeros(MIB, device="cuda")
    found = torch.cuda.memory_snapshot(include_traces=False)
    assert reserved_bytes(found) >= kept.nbytes
    assert all({"stream", "segment_pool_id", "total_size"} <= set(each) for each in found)
