"""What exists when serving begins, and what loads import, is no work for later garbage collections."""

import gc
import sys
import weakref

import torch

from tfs_lite.adapters import collection, memory


def test_load_that_imports_much_exempts_what_exists_and_a_thorough_collection_frees_it_all_the_same(monkeypatch):
    collection.freeze_gc()
    node = [torch.zeros(3)]
    node.append(node)
    watcher = weakref.ref(node[0])
    exempted = collection.exemptions()
    collection.exempt_imports()
    assert collection.exemptions() == exempted
    for number in range(collection.MANY_MODULES):
        monkeypatch.setitem(sys.modules, f"imported_by_a_load_{number}", memory)
    collection.exempt_imports()
    assert collection.exemptions() == exempted + 1
    del node
    memory.release_memory()
    assert watcher() is not None
    memory.release_exempt_memory()
    assert watcher() is None


def test_settling_exempts_what_exists_from_collection():
    before = gc.get_freeze_count()
    collection.freeze_gc()
    assert gc.get_freeze_count() > before
