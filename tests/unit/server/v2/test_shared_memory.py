"""Tensors in shared memory that clients make: real POSIX objects, hostile ones too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.v2.request import SharedMemorySlice
from tfs_lite.server.v2.shared_memory import MAX_REGIONS, CudaRegionStatus, RegionStatus, SharedRegions


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    found = SharedMemory(create=True, size=4096)
    yield found
    found.close()
    found.unlink()


@pytest.fixture
def regions() -> Iterator[SharedRegions]:
    found = SharedRegions()
    yield found
    found.close()


def register(regions: SharedRegions, memory: SharedMemory, name: str = "r", offset: int = 0, size: int = 1024) -> None:
    regions.system_register(RegionStatus(name, f"/{memory.name}", offset, size))


def test_tensor_is_read_from_and_written_to_a_region(regions, memory):
    register(regions, memory, offset=64)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    memory.buf[64 + 8 : 64 + 8 + 24] = values.tobytes()
    np.testing.assert_array_equal(regions.read(SharedMemorySlice("r", 24, 8), "FP32", (2, 3)), values)
    assert regions.write(SharedMemorySlice("r", 100, 200), values * 2) == 24
    found = np.frombuffer(bytes(memory.buf[264:288]), np.float32).reshape(2, 3)
    np.testing.assert_array_equal(found, values * 2)


def test_texts_are_written_with_their_lengths(regions, memory):
    register(regions, memory)
    texts = np.array([b"ab", b""], dtype=object)
    assert regions.write(SharedMemorySlice("r", 64), texts) == 10
    assert regions.read(SharedMemorySlice("r", 10), "BYTES", (2,)).tolist() == [b"ab", b""]


@pytest.mark.parametrize(
    ("place", "code", "text"),
    [
        (SharedMemorySlice("other", 4), StatusCode.NOT_FOUND, "Unable to find shared memory region: 'other'"),
        (SharedMemorySlice("r", 2048), StatusCode.INVALID_ARGUMENT, r"Invalid offset \+ byte size for shared memory"),
        (
            SharedMemorySlice("r", 4, 1021),
            StatusCode.INVALID_ARGUMENT,
            r"Invalid offset \+ byte size for shared memory",
        ),
        (SharedMemorySlice("r", 4, 1024), StatusCode.INVALID_ARGUMENT, "Invalid offset for shared memory region"),
        (SharedMemorySlice("r", 4, 2**64 - 4), StatusCode.INVALID_ARGUMENT, "Invalid offset for shared memory region"),
        (SharedMemorySlice("r", 4, -4), StatusCode.INVALID_ARGUMENT, "Invalid offset for shared memory region"),
    ],
    ids=["unknown", "too long", "beyond the end", "at the end", "that overflows", "negative"],
)
def test_place_outside_a_region_is_refused(regions, memory, place, code, text):
    register(regions, memory)
    with pytest.raises(ServingError, match=text) as caught:
        regions.read(place, "FP32", (1,))
    assert caught.value.code is code


def test_output_larger_than_its_place_is_refused(regions, memory):
    register(regions, memory)
    with pytest.raises(ServingError, match="should be at least 16 bytes") as caught:
        regions.write(SharedMemorySlice("r", 8), np.zeros(4, np.float32))
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_object_that_its_owner_cuts_short_is_an_error_and_not_the_end(regions, memory):
    register(regions, memory)
    os.truncate(f"/dev/shm/{memory.name}", 16)
    for act in (
        lambda: regions.read(SharedMemorySlice("r", 64), "FP32", (16,)),
        lambda: regions.write(SharedMemorySlice("r", 64), np.zeros(16, np.float32)),
    ):
        with pytest.raises(ServingError, match="shorter than it was"):
            act()
    assert os.stat(f"/dev/shm/{memory.name}").st_size == 16


@pytest.mark.parametrize(
    "key", ["", "/", "../etc/passwd", "a/b", "/no-such-object-here", "\0", "a\0b", "\ud800"], ids=ascii
)
def test_key_that_names_no_object_is_refused(regions, key):
    with pytest.raises(ServingError, match=r"is no name of an object|Unable to open") as caught:
        regions.system_register(RegionStatus("r", key, 0, 4))
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert regions.system_status(None) == []


def test_region_larger_than_its_object_is_refused(regions, memory):
    with pytest.raises(ServingError, match="do not fit"):
        register(regions, memory, size=1 << 30)


def test_name_is_taken_until_it_is_unregistered(regions, memory):
    register(regions, memory)
    with pytest.raises(ServingError) as caught:
        register(regions, memory)
    assert caught.value.code is StatusCode.ALREADY_EXISTS
    regions.system_unregister("r")
    regions.system_unregister("r")
    register(regions, memory)
    assert [region.name for region in regions.system_status("r")] == ["r"]


def test_regions_and_their_files_are_bounded(regions, memory):
    for number in range(MAX_REGIONS):
        register(regions, memory, f"r{number}")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ServingError) as caught:
        register(regions, memory, "one more")
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert len(os.listdir("/proc/self/fd")) == before
    regions.system_unregister(None)
    assert regions.system_status(None) == []
    assert len(os.listdir("/proc/self/fd")) == before - MAX_REGIONS


def test_server_that_others_can_reach_has_no_shared_memory(memory):
    closed = SharedRegions(enabled=False)
    assert closed.extensions == ()
    with pytest.raises(ServingError) as caught:
        register(closed, memory)
    assert caught.value.code is StatusCode.UNIMPLEMENTED


def test_memory_of_gpus_is_refused(regions):
    with pytest.raises(ServingError) as caught:
        regions.cuda_register(CudaRegionStatus("c", 0, 4), b"")
    assert caught.value.code is StatusCode.UNIMPLEMENTED
    assert regions.cuda_status(None) == []


def test_a_name_of_any_length_is_not_kept(regions, memory):
    with pytest.raises(ServingError, match="at most 1024") as caught:
        register(regions, memory, "r" * 100_000)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert regions.system_status(None) == []


def test_errors_do_not_repeat_names_of_any_length(regions, memory):
    long = "r" * 100_000
    place = SharedMemorySlice(long, 4, 0)
    refused = [
        lambda: regions.system_status(long),
        lambda: regions.system_register(RegionStatus(long, "none", 0, 1)),
        lambda: regions.system_register(RegionStatus("r", long, 0, 1)),
        lambda: regions.system_register(RegionStatus("r", f"/{long}/", 0, 1)),
        lambda: regions.read(place, "INT32", (1,)),
        lambda: regions.write(place, np.zeros(1, np.int32)),
    ]
    for act in refused:
        with pytest.raises(ServingError) as caught:
            act()
        assert len(str(caught.value)) < 2000
