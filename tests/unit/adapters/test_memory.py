import gc
import logging
import platform
import subprocess
import sys
import weakref

import pytest
import torch

from tests.support.heap import mapped_bytes
from tests.support.servers.process import wait_until
from tfs_lite.adapters import memory
from tfs_lite.core.resources import GPU, MAIN, RAM, Resource, ResourceAllocation, main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.testing.lifecycle.clock import VirtualClock

ID = ServableId("m", 1)


def test_reservation_is_a_fifth_more_than_the_files():
    assert memory.bytes_to_reserve(1000) == 1200 + memory.FIXED_BYTES
    assert memory.bytes_to_reserve(0) == memory.FIXED_BYTES


def gpu(number):
    return Resource(GPU, RAM, number)


HERE = Resource(MAIN, RAM, 0)


def test_version_for_a_gpu_passes_through_main_memory():
    assert memory.estimate(5, {HERE: 1}, while_loading=6) == main_ram(5)
    assert memory.estimate(5, {gpu(None): 1}, while_loading=6).entries == {HERE: 6, gpu(None): 5}
    assert memory.estimate(5, {gpu(1): 2, HERE: 3}, while_loading=6).entries == {HERE: 21, gpu(1): 10}
    assert memory.estimate(5, {HERE: 2}, 6, for_a_moment=7) == main_ram(17)
    assert memory.estimate(5, {gpu(1): 2}, 6, for_a_moment=7).entries == {HERE: 13, gpu(1): 10}


def test_loaded_version_counts_what_it_holds_where_it_is():
    assert memory.measured(ID, 2, {HERE: 3}, main_ram(5), {HERE: 1}) == main_ram(3)
    reserved = ResourceAllocation({HERE: 9, gpu(0): 5, gpu(1): 5})
    found = memory.measured(ID, 2, {gpu(0): 3, gpu(1): 7}, reserved, {gpu(0): 1, gpu(1): 1})
    assert found == ResourceAllocation({gpu(0): 3, gpu(1): 5})


def test_what_nobody_can_tell_stays_as_reserved():
    assert memory.measured(ID, None, {}, main_ram(5), {HERE: 1}) == main_ram(5)


def test_estimate_never_grows(caplog):
    with caplog.at_level(logging.WARNING):
        assert memory.measured(ID, 7, {HERE: 7}, main_ram(5), {HERE: 1}) == main_ram(5)
    assert "holds 7 bytes, more than the 5 reserved" in caplog.text


def test_shared_storage_counts_once():
    base = torch.zeros(100)
    assert memory.tensor_bytes([base, base[10:], base.view(10, 10), torch.zeros(1), "text"]) == 404


def test_giving_back_collects_cycles():
    class Node:
        pass

    node = Node()
    node.itself = node
    kept = [0]
    node.tensor = torch.zeros(3)
    watcher = weakref.ref(node)
    del node
    memory.release_memory()
    assert watcher() is None
    assert kept == [0]


def test_module_whose_parts_refer_to_one_another_is_freed_without_a_collection():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    module[0].owner = [module]
    watcher = weakref.ref(module[1].weight)
    gc.collect()
    gc.disable()
    try:
        memory.take_apart(module)
        del module
        assert watcher() is None
    finally:
        gc.enable()


class Collections:
    """Counts the collections of a :class:`MemoryReturn`, each of which takes ``seconds``."""

    def __init__(self, seconds=0.0):
        self.clock, self.count, self.seconds = VirtualClock(), 0, seconds
        self.memory = memory.MemoryReturn(self.clock, self.release, lambda: None)
        self.memory.start()

    def release(self):
        self.count += 1
        self.clock.advance(self.seconds)

    def after(self, seconds, count):
        self.clock.advance(seconds)
        wait_until(lambda: self.count == count, f"{count} collections")


def test_little_that_is_left_behind_is_collected_once_it_is_much():
    found = Collections()
    for _ in range(15):
        found.memory.owe(memory.OWED_BYTES // 16)
    found.clock.advance(100 * memory.COLLECT_PAUSE)
    assert found.count == 0
    for _ in range(1000):
        found.memory.owe(memory.OWED_BYTES // 16)
    assert found.count == 0
    found.after(memory.COLLECT_PAUSE, count=1)
    found.clock.advance(100 * memory.COLLECT_PAUSE)
    assert found.count == 1
    found.memory.owe(memory.OWED_BYTES)
    found.after(memory.COLLECT_PAUSE, count=2)
    found.memory.close()


def test_a_collection_that_somebody_waits_for_is_for_the_others_too():
    found = Collections()
    found.memory.owe(memory.OWED_BYTES)
    found.memory.collect()
    found.clock.advance(10 * memory.COLLECT_PAUSE)
    found.memory.close()
    assert found.count == 1


def test_collections_take_a_bounded_share_of_the_time():
    found = Collections(seconds=1.0)
    found.memory.collect()
    found.memory.owe(memory.OWED_BYTES)
    found.clock.advance(0.9 / memory.COLLECT_SHARE)
    assert found.count == 1
    found.after(0.2 / memory.COLLECT_SHARE, count=2)
    found.memory.close()


def test_nothing_is_collected_at_the_end():
    found = Collections()
    found.memory.owe(memory.OWED_BYTES)
    found.memory.close()
    found.memory.owe(memory.OWED_BYTES)
    found.memory.collect()
    found.clock.advance(10 * memory.COLLECT_PAUSE)
    assert found.count == 0


def mapped_by_a_block():
    memory.trim_heap()  # a large block that is free in a heap would be used again
    before = mapped_bytes()
    block = torch.empty(24 << 20, dtype=torch.uint8)
    return mapped_bytes() - before >= block.nbytes


def test_large_blocks_have_mappings_of_their_own_until_the_last_thread_is_done():
    """Afterwards they lie in a heap, where requests find them without a fault of a page."""
    with memory.large_blocks_apart():
        with memory.large_blocks_apart():
            pass
        assert mapped_by_a_block()
    assert not mapped_by_a_block()


HEAPS = """
import ctypes, threading
from pathlib import Path
from tfs_lite.adapters.memory import HeapEnd, trim_heap

c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) >> 8  # MiB of pages of 4 KiB

def fill():
    found = [0] * 200  # a list that grows would lie behind the blocks
    for index in range(200):
        found[index] = c.malloc(200 << 10)
        ctypes.memset(found[index], 1, 200 << 10)
    return found

def free(blocks):
    for block in blocks:
        c.free(block)

def work():
    c.mallopt(-3, 32 << 20)
    c.mallopt(-1, 128 << 10)
    before = resident()
    blocks = fill()
    free(blocks)
    at_once = resident() - before
    blocks, end = fill(), HeapEnd()
    with end.kept():
        free(blocks)
        kept = resident() - before
    trim_heap()
    print(at_once, kept, resident() - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps are glibc's")
def test_free_end_of_a_heap_goes_back_after_the_lock_and_not_while_its_blocks_are_freed():
    found = subprocess.run([sys.executable, "-c", HEAPS], capture_output=True, text=True, timeout=60, check=True)
    at_once, kept, afterwards = map(int, found.stdout.split())
    assert at_once <= 10 < 30 <= kept
    assert afterwards <= 10
