"""What a load call decides, from snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.serving.repository.plan import (
    FoundVersion,
    LoadPlan,
    OfferedVersion,
    Past,
    category,
    failures_of,
    load_failure,
    plan_load,
)

BAD = Status(StatusCode.INTERNAL, "broken")


def found(**states: str) -> list[FoundVersion]:
    return [FoundVersion(int(name[1:]), f"/m/{name[1:]}", state) for name, state in states.items()]


def offered(**states: str) -> dict[int, OfferedVersion]:
    numbers = {int(name[1:]): state for name, state in states.items()}
    return {
        number: OfferedVersion(ServableData.ok(ServableId("m", number), f"/m/{number}"), state)
        for number, state in numbers.items()
    }


def timed(state: ManagerState, health: Status = OK, at: float = 1.0) -> TimedState:
    return TimedState(ServableState(ServableId("m", 1), state, health), at)


def attempt(status: Status, number: int = 1) -> LoadAttempt:
    return LoadAttempt(ServableId("m", 1), number, 0.1, status)


@pytest.mark.parametrize(
    ("now", "before", "available", "expected"),
    [
        (found(v1="a"), offered(), set(), LoadPlan(added=frozenset({1}))),
        (found(v1="a"), offered(v1="a"), {1}, LoadPlan(kept=frozenset({1}))),
        (found(v1="b"), offered(v1="a"), {1}, LoadPlan(swapped=frozenset({1}))),
        (found(v1="a"), offered(v1="a"), set(), LoadPlan(added=frozenset({1}))),
        (found(v2="b"), offered(v1="a"), {1}, LoadPlan(added=frozenset({2}), dropped=frozenset({1}))),
        (found(v1="a"), offered(), {1}, LoadPlan(added=frozenset({1}))),
    ],
    ids=["first", "unchanged", "changed", "failed before", "another version", "on its way out"],
)
def test_each_version_is_kept_added_swapped_or_dropped(
    now: list[FoundVersion], before: dict[int, OfferedVersion], available: set[int], expected: LoadPlan
) -> None:
    assert plan_load(now, before, available) == expected


def test_plan_that_keeps_everything_changes_nothing() -> None:
    assert LoadPlan(kept=frozenset({1, 2})).changes_nothing
    assert not LoadPlan(dropped=frozenset({1})).changes_nothing


AVAILABLE, LOADING = timed(ManagerState.AVAILABLE), timed(ManagerState.LOADING)
CANCELLED = Status(StatusCode.CANCELLED, "not wanted")
LOADS = {
    "one available": ([1, 2], {1: AVAILABLE}, {}, None),
    "all available": ([1, 2], {1: AVAILABLE, 2: AVAILABLE}, {}, {}),
    "one attempt failed": ([1, 2], {1: LOADING, 2: LOADING}, {2: attempt(BAD)}, {2: BAD}),
    "ended with an error": ([1], {1: timed(ManagerState.END, BAD)}, {}, {1: BAD}),
    "ended in an earlier life": ([1], {1: timed(ManagerState.END)}, {}, None),
    "cancelled in an earlier life": ([1], {1: timed(ManagerState.END, CANCELLED)}, {}, None),
}


@pytest.mark.parametrize(("wanted", "states", "attempts", "expected"), LOADS.values(), ids=LOADS)
def test_load_is_over_when_every_version_is_available_or_one_has_failed(
    wanted: list[int],
    states: dict[int, TimedState],
    attempts: dict[int, LoadAttempt],
    expected: dict[int, Status] | None,
) -> None:
    assert failures_of(wanted, states, attempts, Past()) == expected


def test_version_whose_instances_alone_differ_is_resized() -> None:
    now = [FoundVersion(number, f"/m/{number}", state, "two") for number, state in enumerate("aab", 1)]
    before = {
        number: replace(offer, instances=text)
        for (number, offer), text in zip(offered(v1="a", v2="a", v3="a").items(), ("one", "two", "one"), strict=True)
    }
    plan = plan_load(now, before, {1, 2, 3})
    assert plan == LoadPlan(kept=frozenset({2}), swapped=frozenset({3}), resized=frozenset({1}))
    assert not plan.changes_nothing
    assert plan_load(now[:1], before, set()) == LoadPlan(added=frozenset({1}), dropped=frozenset({2, 3}))


def test_what_was_known_before_says_nothing_about_the_load() -> None:
    end, failed = timed(ManagerState.END, BAD), attempt(BAD)
    past = Past({1: end}, {1: failed})
    assert failures_of([1], {1: end}, {1: failed}, past) is None
    assert failures_of([1], {1: timed(ManagerState.END, BAD, at=2.0)}, {}, past) == {1: BAD}
    assert failures_of([1], {}, {1: attempt(BAD, number=2)}, past) == {1: BAD}


def test_failure_names_every_version_with_category_and_reason() -> None:
    error = load_failure("m", {2: Status(StatusCode.INVALID_ARGUMENT, "no"), 1: BAD})
    assert error.code is StatusCode.INVALID_ARGUMENT
    assert str(error) == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: broken; "
        "version 2 is at UNAVAILABLE state: Invalid argument: no;"
    )


def test_category_is_a_code_in_words() -> None:
    assert category(StatusCode.RESOURCE_EXHAUSTED) == "Resource exhausted"
