"""What a manager would do, of managers that are made up."""

from __future__ import annotations

from collections.abc import Mapping

from tfs_lite.core.resources import MAIN, Resource, ResourceAllocation, ResourceUtil
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.harness import HarnessState, ServableStateSnapshot
from tfs_lite.managers.policies import POLICIES
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.operations.what_if.forecast import Fate
from tfs_lite.operations.what_if.plan import Expected, ExpectedEnd, Lists, Managed, plan

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
    stays = plan(managed, Lists({"a": {1: "1"}, "b": {1: "1"}}, expected))
    assert (stays[A].fate, stays[B].fate) == (Fate.STAY, Fate.FAILED)
    goes = plan(managed, Lists({"a": {}, "b": {1: "1"}}, expected))
    assert (goes[A].fate, goes[B].fate) == (Fate.UNLOAD, Fate.LOAD)
    assert (goes[B].fits_now, goes[B].after) == (False, (A,))


def test_model_that_is_removed_after_its_load_has_failed_or_ended_says_so() -> None:
    """One that has ended has nothing to say."""
    failed = ServableStateSnapshot(A, HarnessState.ERROR, True, "1", Status(StatusCode.UNKNOWN, "it is corrupt"))
    loads = ServableStateSnapshot(B, HarnessState.LOADING, True, "1")
    ended = ServableStateSnapshot(ServableId("c", 1), HarnessState.DISABLED, False, "1")
    found = plan(Managed([failed, loads, ended], {}, POLICIES["availability"]), Lists({"a": {}, "b": {}, "c": {}}))
    assert {id.name: (course.fate, course.why) for id, course in found.items()} == {
        "a": (Fate.CALL_OFF, "it has failed, and is not tried any more"),
        "b": (Fate.CALL_OFF, "it is not available yet"),
    }


def test_an_older_version_is_loaded_for_the_one_that_would_fail() -> None:
    ids = {version: ServableId("a", version) for version in (1, 2, 3)}
    asked = []

    def list_again(outcomes: Mapping[ServableId, bool]) -> Lists:
        asked.append(outcomes)
        failed = {id.version for id, works in outcomes.items() if not works}
        return Lists({"a": dict.fromkeys([*failed, max({1, 2, 3} - failed)], "1")}, given_up=frozenset({ids[3]}))

    fails = {ids[3]: Expected(ExpectedEnd.FAILS, why="it is corrupt")}
    found = plan(Managed([], {}, POLICIES["availability"]), Lists({"a": {3: "1"}}, fails), list_again)
    assert {id.version: course.fate for id, course in found.items()} == {3: Fate.FAIL, 2: Fate.LOAD}
    assert asked == [{ids[3]: False}]


def test_a_version_that_makes_room_for_one_that_would_fail_is_loaded_again() -> None:
    """With the policy that unloads before it loads."""
    ids = {version: ServableId("a", version) for version in (1, 2, 3)}
    serve = [ServableStateSnapshot(ids[version], HarnessState.READY, True, "1") for version in (1, 2)]
    lists = Lists({"a": {3: "1", 2: "1"}}, {ids[3]: Expected(ExpectedEnd.FAILS)})
    again = Lists({"a": {3: "1", 2: "1", 1: "1"}}, given_up=frozenset({ids[3]}))
    found = plan(Managed(serve, {}, POLICIES["resource"]), lists, lambda outcomes: again)
    assert {id.version: course.fate for id, course in found.items()} == {3: Fate.FAIL, 2: Fate.STAY, 1: Fate.LOAD}
    assert found[ids[1]].before == (Fate.UNLOAD,)
