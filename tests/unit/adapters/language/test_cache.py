"""Places of keys and values: written where they lie, copied in order, cleared where they would be read past."""

from __future__ import annotations

import gc

import psutil
import pytest
import torch

from tfs_lite.adapters.language.cache import Cache, LayerShape
from tfs_lite.core.generation import Copy

SLOTS, LENGTH = 3, 8
SHAPES = {0: LayerShape(2, 4, 4), 1: LayerShape(1, 4, 6)}


@pytest.fixture
def cache() -> Cache:
    return Cache(SHAPES, SLOTS, LENGTH, torch.float32, torch.device("cpu"))


def _write(cache: Cache, slot: int, start: int, values: list[float]) -> None:
    cache.begin([(slot, start + len(values))], [])
    for layer, shape in SHAPES.items():
        rows = torch.tensor(values)[:, None, None]
        slots = torch.full((len(values),), slot)
        positions = torch.arange(start, start + len(values))
        keys = rows.expand(-1, shape.heads, shape.key)
        cache.write(layer, slots, positions, keys, -rows.expand(-1, shape.heads, shape.value))


def _held(cache: Cache, slot: int) -> list[float]:
    """What a slot holds, which must be the same in all layers, heads and sizes."""
    first = cache.keys[0][slot, 0, :, 0]
    for layer in SHAPES:
        torch.testing.assert_close(cache.keys[layer][slot], first[None, :, None].expand_as(cache.keys[layer][slot]))
        values = cache.values[layer][slot]
        torch.testing.assert_close(values, -first[None, :, None].expand_as(values))
    return first.tolist()


def test_rows_lie_at_their_slots_and_positions(cache: Cache) -> None:
    _write(cache, 1, 2, [5.0, 6.0])
    assert _held(cache, 1) == [0, 0, 5, 6, 0, 0, 0, 0]
    assert _held(cache, 0) == _held(cache, 2) == [0.0] * LENGTH


def test_rows_of_many_slots_are_written_at_once(cache: Cache) -> None:
    rows = torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    for layer, shape in SHAPES.items():
        keys, values = rows.expand(-1, shape.heads, shape.key), -rows.expand(-1, shape.heads, shape.value)
        cache.write(layer, torch.tensor([2, 0, 2]), torch.tensor([7, 1, 0]), keys, values)
    assert _held(cache, 0) == [0, 2, 0, 0, 0, 0, 0, 0]
    assert _held(cache, 2) == [3, 0, 0, 0, 0, 0, 0, 1]


def test_copies_come_one_after_the_other(cache: Cache) -> None:
    _write(cache, 0, 0, [1.0, 2.0, 3.0])
    _write(cache, 1, 0, [7.0, 8.0, 9.0])
    cache.copy([Copy(0, 2, 2), Copy(1, 0, 1), Copy(2, 1, 2), Copy(1, 1, 3), Copy(0, 1, 0)])
    assert _held(cache, 2)[:3] == [1, 2, 0]
    assert _held(cache, 0)[:3] == [7, 2, 3]
    assert _held(cache, 1)[:3] == [1, 2, 9]


def test_what_a_text_left_is_cleared_where_the_next_is_read_past_its_end(cache: Cache) -> None:
    _write(cache, 0, 0, [torch.nan] * 6)
    cache.begin([(0, 2)], [(0, 2, 4)])
    assert cache.keys[0][0, 0, :, 0].isnan().tolist() == [True] * 2 + [False] * 6
    _write(cache, 0, 0, [1.0, 2.0])
    assert _held(cache, 0) == [1, 2, 0, 0, 0, 0, 0, 0]


def test_what_is_not_read_is_not_cleared(cache: Cache) -> None:
    _write(cache, 0, 0, [9.0] * 6)
    _write(cache, 0, 0, [1.0, 2.0])
    assert _held(cache, 0) == [1, 2, 9, 9, 9, 9, 0, 0]


def test_a_text_that_grows_is_cleared_once_and_never_loses_its_own(cache: Cache) -> None:
    _write(cache, 0, 0, [9.0] * 8)
    for end in range(1, 6):
        cache.begin([(0, end)], [(0, end, 8)])
        _write(cache, 0, end - 1, [float(end)])
    assert _held(cache, 0) == [1, 2, 3, 4, 5, 0, 0, 0]


def test_what_a_copy_brings_is_cleared_like_what_was_written(cache: Cache) -> None:
    _write(cache, 0, 0, [9.0] * 5)
    cache.copy([Copy(0, 1, 5)])
    cache.begin([(1, 2)], [(1, 2, 5)])
    assert _held(cache, 1)[:6] == [9, 9, 0, 0, 0, 0]


def test_clear_leaves_nothing_and_moves_nothing(cache: Cache) -> None:
    before = {layer: keys.data_ptr() for layer, keys in cache.keys.items()}
    _write(cache, 2, 0, [4.0] * 8)
    cache.clear()
    assert _held(cache, 2) == [0.0] * LENGTH
    assert {layer: keys.data_ptr() for layer, keys in cache.keys.items()} == before


def test_bytes_are_those_of_all_tensors(cache: Cache) -> None:
    per_position = (2 * (4 + 4) + 1 * (4 + 6)) * 4
    assert cache.resident_bytes() == SLOTS * LENGTH * per_position
    assert cache.position_bytes == 2 * 2 * 4 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cache_takes_memory_where_it_is_written_and_gives_all_of_it_back(dtype: torch.dtype) -> None:
    process, mib = psutil.Process(), 1 << 20
    before = process.memory_info().rss
    cache = Cache({0: LayerShape(8, 64, 64)}, 16, 16 * mib // 512, dtype, torch.device("cpu"))
    assert cache.resident_bytes() >= 500 * mib
    assert process.memory_info().rss - before < 50 * mib
    cache.begin([(3, cache.length)], [])
    cache.keys[0][3].fill_(1)
    assert process.memory_info().rss - before > 10 * mib
    del cache
    gc.collect()
    assert process.memory_info().rss - before < 10 * mib
