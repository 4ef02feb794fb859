import gc
import mmap
import threading

import pytest
import torch

from tests.support.servers.process import wait_until
from tfs_lite.adapters import memory
from tfs_lite.adapters.spare import MOST_BYTES, SPARE, SparePages
from tfs_lite.testing.lifecycle.clock import VirtualClock

MIB = 1 << 20
pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_FREE"), reason="needs MADV_FREE")


@pytest.fixture
def pages():
    found = SparePages()
    found.keep(4 * MIB)
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
    pages.keep(MIB)
    del del_me
    assert pages.nbytes == 0


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
    assert pages.nbytes <= 4 << 16


@pytest.fixture
def returning():
    """The clock of a server that is up, and what returns its memory."""
    clock = VirtualClock()
    found = memory.MemoryReturn(clock, lambda: None, lambda: None)
    found.start()
    yield clock, found
    found.close()
    assert SPARE.nbytes == 0


def test_kept_memory_goes_back_a_moment_after_its_last_use(returning):
    clock, found = returning
    found.return_spare()
    assert clock.pending == 0  # there is none
    for _ in range(3):
        SPARE.map(MIB)
        assert SPARE.nbytes == MIB
        found.return_spare()
        clock.advance(0.9 * memory.SPARE_SECONDS)
    assert SPARE.nbytes == MIB
    clock.advance(3 * memory.SPARE_SECONDS)
    wait_until(lambda: SPARE.nbytes == 0, "the memory is given back")
    assert clock.pending == 0


def test_a_server_that_ends_keeps_nothing():
    found = memory.MemoryReturn(VirtualClock(), lambda: None, lambda: None)
    found.start()
    array = SPARE.map(MOST_BYTES // 1024)
    SPARE.map(MIB)
    assert SPARE.nbytes == MIB
    found.close()
    assert SPARE.nbytes == 0
    del array
    assert SPARE.nbytes == 0
