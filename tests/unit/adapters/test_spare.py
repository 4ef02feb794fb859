import ctypes
import gc
import mmap
import threading

import numpy as np
import pytest
import torch

from tests.support.servers.process import wait_until
from tfs_lite.adapters import memory, spare
from tfs_lite.adapters.spare import LEAST_BYTES, SparePages
from tfs_lite.core.clock import SystemClock
from tfs_lite.testing.lifecycle.clock import VirtualClock

MIB = 1 << 20
pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_FREE"), reason="needs MADV_FREE")


@pytest.fixture
def pages():
    found = SparePages(4 * MIB)
    found.begin()
    return found


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_of_dropped_weights_is_used_for_the_next_ones_of_the_same_size(pages):
    array = pages.map(MIB)
    array[:] = 7
    tensor, place = torch.frombuffer(memoryview(array)[64:], dtype=torch.float32), address(array)
    part = tensor[:10].view(2, 5)
    del array, tensor
    assert pages.nbytes == 0  # a part of it is in use
    del part
    assert pages.nbytes == MIB
    other = pages.map(MIB + 1)
    assert address(other) != place
    again = pages.map(MIB)
    assert (address(again), pages.nbytes) == (place, 0)
    again[:] = 9
    assert (again == 9).all()


def test_two_users_never_have_the_same_memory(pages):
    first = [pages.map(MIB) for _ in range(3)]
    places = set(map(address, first))
    first.clear()
    second = [pages.map(MIB) for _ in range(4)]
    assert len(set(map(address, second))) == 4
    assert places < set(map(address, second))


def test_memory_beyond_the_bound_is_given_back(pages):
    held = [pages.map(MIB) for _ in range(10)]
    held.clear()
    assert pages.nbytes == 4 * MIB
    pages.clear()
    assert pages.nbytes == 0


def test_nothing_is_kept_until_a_server_asks_for_it():
    pages = SparePages()
    del_me = pages.map(MIB)
    pages.begin()
    del del_me
    assert pages.nbytes == 0


def test_a_mapping_of_a_few_bytes_is_not_kept(pages):
    pages.map(LEAST_BYTES - 1)
    assert pages.nbytes == 0
    pages.map(LEAST_BYTES)
    assert pages.nbytes == LEAST_BYTES


def test_memory_that_is_dropped_in_the_middle_of_another_call_is_given_back(pages):
    array = pages.map(MIB)
    with pages._lock:
        del array
    assert pages.nbytes == 0


def test_what_is_dropped_by_a_collection_is_kept_too(pages):
    circle = [pages.map(MIB)]
    circle.append(circle)
    del circle
    gc.collect()
    assert pages.nbytes == MIB


def test_many_threads_get_memory_of_their_own(pages):
    faults = []

    def use(number):
        for _ in range(200):
            array = pages.map(1 << 16)
            array[:] = number
            if not (array == number).all():
                faults.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert pages.nbytes <= 2 * 4 << 16  # a thread has its next before it drops the last


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[8:16][2:],
        lambda array: array.data[8:16][2:],
        lambda array: np.asarray(array.data[8:16]),
        lambda array: torch.frombuffer(array.data[64:], dtype=torch.float32).view(-1)[:4].numpy(),
        lambda array: torch.nn.Parameter(torch.frombuffer(array, dtype=torch.float32)[4:], requires_grad=False),
        lambda array: torch.empty(0).set_(torch.frombuffer(array, dtype=torch.float32).untyped_storage(), 4, (2,)),
        lambda array: np.from_dlpack(torch.frombuffer(array, dtype=torch.float32)),
    ],
)
def test_memory_is_in_use_as_long_as_anything_is_made_of_it(pages, view):
    array = pages.map(MIB)
    array[:] = 7
    held = view(array)
    del array
    other = pages.map(MIB)
    other[:] = 9
    assert pages.nbytes == 0
    assert set(bytes(np.asarray(held))) == {7}
    del held
    assert pages.nbytes == MIB


def test_weights_of_a_circle_that_a_finalizer_saves_from_a_collection_stay_whole(pages):
    saved = []

    class Saves:
        def __del__(self):
            saved.append(self.weights)

    circle = Saves()
    circle.weights, circle.itself = pages.map(MIB), circle
    circle.weights[:] = 7
    del circle
    gc.collect()
    pages.map(MIB)[:] = 9
    assert (saved[0] == 7).all()


def returns(clock, spare):
    """What a server has that gives memory back, with other memory than the servers of the process."""
    return memory.MemoryReturn(clock, lambda: None, lambda: None, spare=spare)


@pytest.fixture
def returning():
    """The clock of a server that is up, its memory, and what looks once whether that is to go back."""
    clock, spare = VirtualClock(), SparePages()
    found = returns(clock, spare)
    found.start()
    yield clock, spare, found._return_unused_spare
    found.close()
    assert spare.nbytes == 0


def test_kept_memory_goes_back_a_moment_after_its_last_use(returning):
    clock, spare, look = returning
    for _ in range(3):
        spare.map(MIB)
        look()
        clock.advance(0.9 * memory.SPARE_SECONDS)
        assert spare.nbytes == MIB
    look()
    assert spare.nbytes == MIB
    clock.advance(memory.SPARE_SECONDS)
    look()
    assert spare.nbytes == 0


def test_memory_that_is_dropped_without_a_load_or_unload_goes_back_too(monkeypatch):
    """A collection drops it, or a request that has ended late."""
    monkeypatch.setattr(memory, "SPARE_SECONDS", 0.01)
    spare = SparePages()
    found = returns(SystemClock(), spare)
    found.start()
    try:
        spare.map(MIB)
        wait_until(lambda: spare.nbytes == 0, "the memory is given back")
    finally:
        found.close()


def test_a_server_that_ends_takes_nothing_from_another_one_of_the_process():
    spare = SparePages()
    first, second = (returns(VirtualClock(), spare) for _ in range(2))
    first.start()
    second.start()
    first.close()
    first.close()
    spare.map(MIB)
    assert spare.nbytes == MIB
    second.close()
    assert spare.nbytes == 0


def test_a_server_that_ends_keeps_nothing():
    spare = SparePages()
    found = returns(VirtualClock(), spare)
    found.start()
    array = spare.map(MIB)
    spare.map(2 * MIB)
    assert spare.nbytes == 2 * MIB
    found.close()
    assert spare.nbytes == 0
    del array
    assert spare.nbytes == 0


def test_memory_is_marked_as_free_in_pieces_between_which_other_threads_run(pages, monkeypatch):
    """A call of ctypes gives the interpreter lock away; one of ``mmap`` would keep it for 30 ms."""
    sizes, madvise = [], spare._madvise

    def told(at, size, advice):
        sizes.append(size)
        return madvise(at, size, advice)

    assert isinstance(madvise, ctypes._CFuncPtr)
    monkeypatch.setattr(spare, "_madvise", told)
    monkeypatch.setattr(spare, "_PIECE", MIB)
    held = pages.map(3 * MIB + 5)
    del held
    assert sizes == [MIB, MIB, MIB, 5]
    assert pages.nbytes == 3 * MIB + 5


def test_memory_that_the_system_will_not_take_is_given_back(pages, monkeypatch):
    monkeypatch.setattr(spare, "_madvise", lambda at, size, advice: -1)
    held = pages.map(MIB)
    del held
    assert pages.nbytes == 0


def test_a_system_without_memory_is_told_as_that(pages):
    with pytest.raises(MemoryError, match="bytes cannot be mapped"):
        pages.map(1 << 60)
