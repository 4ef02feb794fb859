"""What a manager would do, of managers that are made up."""

from __future__ import annotations

from tfs_lite.core.resources import MAIN, Resource, ResourceAllocation, ResourceUtil
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.harness import HarnessState, ServableStateSnapshot
from tfs_lite.managers.policies import POLICIES
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.serving.what_if.forecast import Fate
from tfs_lite.serving.what_if.plan import Expected, Managed, plan

MEMORY = Resource(MAIN, "ram_in_bytes", 0)
A, B = ServableId("a", 1), ServableId("b", 1)


def test_a_version_that_had_no_room_is_loaded_after_the_unload_that_makes_some() -> None:
    serves = ServableStateSnapshot(A, HarnessState.READY, True, "1")
    exhausted = Status(StatusCode.RESOURCE_EXHAUSTED, "no room")
    lacks = ServableStateSnapshot(B, HarnessState.ERROR, True, "1", exhausted)
    needs = ResourceAllocation({MEMORY: 60})
    tracker = ResourceTracker(ResourceUtil({MAIN: 1}), ResourceAllocation({MEMORY: 100}))
    managed = Managed([serves, lacks], {A: needs}, POLICIES["availability"], tracker)
    expected = {A: Expected(needs=needs), B: Expected(needs=needs)}
    stays = plan(managed, {"a": {1: "1"}, "b": {1: "1"}}, expected)
    assert (stays[A].fate, stays[B].fate) == (Fate.STAY, Fate.FAILED)
    goes = plan(managed, {"a": {}, "b": {1: "1"}}, expected)
    assert (goes[A].fate, goes[B].fate) == (Fate.UNLOAD, Fate.LOAD)
    assert (goes[B].fits_now, goes[B].after) == (False, (A,))
