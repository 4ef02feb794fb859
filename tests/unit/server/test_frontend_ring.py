from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from mmap import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.server.frontend_ring import RingError, make_memory, map_memory, open_rings

RING = 4 * 4096


@pytest.fixture
def memory() -> Iterator[mmap]:
    descriptor = make_memory(RING)
    memory = map_memory(descriptor)
    os.close(descriptor)
    yield memory
    memory.close()


def test_what_one_side_writes_the_other_reads_in_both_directions(memory: mmap) -> None:
    to_frontend, from_frontend = open_rings(memory, server_side=True)
    to_server, from_server = open_rings(memory, server_side=False)
    for writer, reader, data in ((to_frontend, from_server, b"down"), (to_server, from_frontend, b"upwards")):
        position = writer.put(memoryview(data))
        assert position == 0
        assert reader.take(position, len(data)) == data
        assert reader.position == len(data)


def test_a_full_ring_takes_nothing_until_the_reader_has_read(memory: mmap) -> None:
    writer, _ = open_rings(memory, server_side=True)
    _, reader = open_rings(memory, server_side=False)
    piece = memoryview(bytes(writer.max_piece))
    positions = [writer.put(piece) for _ in range(4)]
    assert None not in positions
    assert writer.put(piece) is None
    assert reader.take(0, len(piece)) == piece
    assert writer.put(piece) is None, "the writer was not told yet"
    writer.free(reader.position)
    assert writer.put(piece) == RING


@given(st.lists(st.integers(1, RING // 4), max_size=200), st.randoms(use_true_random=False))
def test_pieces_of_any_size_arrive_as_they_were_written(sizes: list[int], chance) -> None:
    descriptor = make_memory(RING)
    with map_memory(descriptor) as memory:
        os.close(descriptor)
        writer, _ = open_rings(memory, server_side=True)
        _, reader = open_rings(memory, server_side=False)
        under_way: deque[tuple[int, bytes]] = deque()

        def read_one() -> None:
            position, data = under_way.popleft()
            assert reader.take(position, len(data)) == data
            writer.free(reader.position)

        for size in sizes:
            data = chance.randbytes(size)
            while (position := writer.put(memoryview(data))) is None:
                assert under_way, "an empty ring has room for any piece"
                read_one()
            under_way.append((position, data))
        while under_way:
            read_one()


@pytest.mark.parametrize(
    ("position", "length"),
    [(0, 0), (-1, 10), (0, RING // 4 + 1), (RING - 5, 10), (RING + 95, 10), (2**62, 1), (99, 10)],
)
def test_a_place_where_nothing_can_be_is_refused(memory: mmap, position: int, length: int) -> None:
    _, reader = open_rings(memory, server_side=True)
    reader.take(0, 100)
    with pytest.raises(RingError):
        reader.take(position, length)
    assert reader.position == 100


@pytest.mark.parametrize("position", [-1, 101, 2**62])
def test_nothing_is_freed_that_was_not_written(memory: mmap, position: int) -> None:
    writer, _ = open_rings(memory, server_side=True)
    writer.put(memoryview(bytes(100)))
    with pytest.raises(RingError):
        writer.free(position)
    writer.free(100)
    with pytest.raises(RingError):
        writer.free(99)


def test_neither_side_can_take_the_memory_away() -> None:
    descriptor = make_memory(RING)
    try:
        for size in (0, 4 * RING):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(descriptor)
