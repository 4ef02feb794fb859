from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.managers.serving_map import ServingMap
from tfs_lite.serving.sequences.tables import HandleShare

ID = ServableId("m", 1)


@pytest.fixture
def drained() -> list[bool]:
    return []


@pytest.fixture
def share(drained) -> HandleShare:
    """Of a version that is withdrawn already."""
    serving = ServingMap()
    serving.add(ID, "the servable")
    share = HandleShare(serving.lookup(ModelRef("m")))
    serving.withdraw(ID, lambda: drained.append(True))
    return share


def test_a_withdrawn_version_can_be_shared_and_drains_with_the_last_share_each_counted_once(share, drained):
    one, other = share.take(), share.take()
    assert (one.id, one.servable) == (ID, "the servable")
    one.release()
    one.release()
    share.release()
    assert drained == []
    other.release()
    assert drained == [True]


def test_nothing_can_be_taken_once_all_are_gone(share):
    share.release()
    with pytest.raises(RuntimeError, match="released"):
        share.take()


def test_threads_that_take_and_release_drain_it_once(share, drained):
    def work(_: int) -> None:
        for _ in range(500):
            handle: ServableHandle = share.take()
            assert handle.servable == "the servable"
            handle.release()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert drained == []
    share.release()
    assert drained == [True]
