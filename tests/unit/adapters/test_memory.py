import gc
import logging

import torch

from tfs_lite.adapters import memory
from tfs_lite.core.resources import GPU, MAIN, RAM, Resource, ResourceAllocation, main_ram
from tfs_lite.core.servable import ServableId

ID = ServableId("m", 1)


def test_reservation_is_a_fifth_more_than_the_files():
    assert memory.bytes_to_reserve(1000) == 1200 + memory.FIXED_BYTES
    assert memory.bytes_to_reserve(0) == memory.FIXED_BYTES


def test_version_for_a_gpu_passes_through_main_memory():
    assert memory.estimate(5, on_gpu=False, instance=None, while_loading=5) == main_ram(5)
    assert memory.estimate(5, on_gpu=True, instance=None, while_loading=6).entries == {
        Resource(MAIN, RAM, 0): 6,
        Resource(GPU, RAM, None): 5,
    }
    assert Resource(GPU, RAM, 1) in memory.estimate(5, on_gpu=True, instance=1, while_loading=5).entries


def test_loaded_version_counts_what_it_holds_where_it_is():
    assert memory.measured(ID, 2, 3, 5, torch.device("cpu")) == main_ram(3)
    assert memory.measured(ID, 2, 3, 5, torch.device("cuda", 1)) == ResourceAllocation({Resource(GPU, RAM, 1): 3})


def test_what_nobody_can_tell_stays_as_reserved():
    assert memory.measured(ID, None, None, 5, torch.device("cpu")) == main_ram(5)


def test_estimate_never_grows(caplog):
    with caplog.at_level(logging.WARNING):
        assert memory.measured(ID, 7, 7, 5, torch.device("cpu")) == main_ram(5)
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
    watcher = __import__("weakref").ref(node)
    del node
    memory.release_memory()
    assert watcher() is None
    assert kept == [0]


def test_settling_exempts_what_exists_from_collection():
    before = gc.get_freeze_count()
    memory.freeze_gc()
    assert gc.get_freeze_count() > before
