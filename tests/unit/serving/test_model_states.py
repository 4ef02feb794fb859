"""What clients see of each model, put together from its parts."""

from __future__ import annotations

import pytest

from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.servable import ServableData, ServableId, VersionState, VersionStatus
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.load_journal import LoadAttempt, LoadJournal
from tfs_lite.serving.model_states import ModelStates, places_of, visible_versions
from tfs_lite.sources.source_config import SourceReport
from tfs_lite.testing.lifecycle.clock import VirtualClock

AVAILABLE, LOADING, END = ManagerState.AVAILABLE, ManagerState.LOADING, ManagerState.END
BROKEN = Status(StatusCode.INVALID_ARGUMENT, "broken")
MISSING = Status(StatusCode.NOT_FOUND, "base path does not exist")


def states(**versions: ManagerState) -> dict[int, TimedState]:
    return {
        int(key[1:]): TimedState(ServableState(ServableId("m", int(key[1:])), state), 0.0)
        for key, state in versions.items()
    }


def no_attempt(version: int) -> None:
    return None


WAITING = VersionStatus(4, VersionState.START, Status(StatusCode.UNAVAILABLE, "files changed"))
SEEN = {
    "waiting": ({}, WAITING),
    "waiting, and the manager still has it": (
        {"v4": ManagerState.UNLOADING},
        VersionStatus(4, VersionState.UNLOADING, OK),
    ),
    "waiting, and it had ended before": ({"v4": ManagerState.END}, WAITING),
}


@pytest.mark.parametrize(("known", "expected"), SEEN.values(), ids=SEEN)
def test_waiting_version_shows_the_reason_unless_the_manager_has_it(
    known: dict[str, ManagerState], expected: VersionStatus
) -> None:
    assert visible_versions(states(**known), {4: "files changed"}, no_attempt) == (expected,)


def test_versions_come_highest_first() -> None:
    found = visible_versions(states(v1=ManagerState.AVAILABLE, v10=ManagerState.LOADING), {}, no_attempt)
    assert found == (VersionStatus(10, VersionState.LOADING, OK), VersionStatus(1, VersionState.AVAILABLE, OK))


def test_version_between_two_attempts_shows_the_last_error() -> None:
    def last(version: int) -> LoadAttempt:
        return LoadAttempt(ServableId("m", version), 2, 0.1, BROKEN)

    for state in (ManagerState.START, ManagerState.LOADING):
        (found,) = visible_versions(states(v4=state), {}, last)
        assert found.status == BROKEN
    (found,) = visible_versions(states(v4=ManagerState.AVAILABLE), {}, last)
    assert found.status == OK


KEEPS = "nothing that is wanted now is there yet"
STAYING = {
    "it is wanted": ({1: AVAILABLE}, [1], SourceReport("m"), {}),
    "another one that is wanted answers": ({1: AVAILABLE, 2: AVAILABLE}, [2], SourceReport("m"), {}),
    "nothing is wanted": ({1: AVAILABLE}, [], SourceReport("m"), {}),
    "what is wanted loads": (
        {1: AVAILABLE, 2: LOADING},
        [2],
        SourceReport("m"),
        {1: "stays until version 2 is available"},
    ),
    "what is wanted is not there yet": (
        {1: AVAILABLE},
        [1],
        SourceReport("m", waiting={2: "files changed"}, keeps=KEEPS),
        {1: "stays until version 2 is available, which waits: files changed"},
    ),
    "two that are wanted are not there yet": (
        {1: AVAILABLE},
        [1],
        SourceReport("m", waiting={3: "files changed", 2: "no files yet"}, keeps=KEEPS),
        {1: "stays until version 2 or 3 is available"},
    ),
    "its directory was removed": (
        {2: AVAILABLE},
        [2],
        SourceReport("m", waiting={2: "no such directory"}, on_disk=frozenset({1}), keeps=KEEPS),
        {2: "stays, though there is no such version directory any more"},
    ),
    "it stands in": (
        {1: AVAILABLE, 2: AVAILABLE, 3: END},
        [3, 2, 1],
        SourceReport("m", failed=frozenset({3}), stand_ins=frozenset({1})),
        {1: "stands in for version 3, whose load failed"},
    ),
}


@pytest.mark.parametrize(("known", "aspired", "report", "expected"), STAYING.values(), ids=STAYING)
def test_version_that_is_there_for_another_one_says_so(
    known: dict[int, ManagerState], aspired: list[int], report: SourceReport, expected: dict[int, str]
) -> None:
    found = places_of(states(**{f"v{version}": state for version, state in known.items()}), aspired, report)
    assert found == expected


@pytest.fixture
def changes() -> ChangeNotifier:
    return ChangeNotifier()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def bus(clock: VirtualClock) -> EventBus[ServableState]:
    return EventBus(clock)


@pytest.fixture
def model_states(bus: EventBus[ServableState], changes: ChangeNotifier, clock: VirtualClock) -> ModelStates:
    return ModelStates(ServableStateMonitor(bus), LoadJournal(lambda attempt: None), changes, clock)


def test_report_puts_the_parts_together_and_each_part_notifies(
    bus: EventBus[ServableState], changes: ChangeNotifier, model_states: ModelStates
) -> None:
    bus.publish(ServableState(ServableId("m", 1), ManagerState.AVAILABLE))
    model_states.configure(["m"])
    model_states.on_source_report(SourceReport("m", MISSING, {2: "no files yet"}))
    report = model_states.report("m")
    assert [version.version for version in report.versions] == [2, 1]
    assert report.available
    assert report.problem == MISSING
    assert changes.count == 2


def test_seconds_count_from_the_last_event_or_from_the_first_report_that_a_version_waits(
    bus: EventBus[ServableState], clock: VirtualClock, model_states: ModelStates
) -> None:
    model_states.configure(["m"])
    bus.publish(ServableState(ServableId("m", 1), ManagerState.AVAILABLE))
    bus.publish(ServableState(ServableId("m", 3), ManagerState.END, BROKEN))
    clock.advance(10)
    model_states.on_source_report(SourceReport("m", OK, {2: "no files yet", 3: "files changed"}))
    clock.advance(5)
    model_states.on_source_report(SourceReport("m", OK, {1: "files changed", 2: "no manifest", 3: "files changed"}))
    assert model_states.state_seconds("m") == {1: 15, 2: 5, 3: 5}
    model_states.on_source_report(SourceReport("m"))
    assert model_states.state_seconds("m") == {1: 15, 3: 15}
    model_states.configure([])
    model_states.on_source_report(SourceReport("m", OK, {2: "again"}))
    assert model_states.state_seconds("m")[2] == 0


def test_a_version_that_serves_says_that_its_files_are_others_and_not_complete(
    bus: EventBus[ServableState], model_states: ModelStates
) -> None:
    model_states.configure(["m"])
    bus.publish(ServableState(ServableId("m", 1), ManagerState.AVAILABLE))
    bus.publish(ServableState(ServableId("m", 2), ManagerState.END, BROKEN))
    model_states.on_source_report(SourceReport("m", changing={1: "m is truncated", 2: "m is truncated"}))
    said = Status(StatusCode.UNAVAILABLE, "it goes on with the files of before: m is truncated")
    assert [version.status for version in model_states.report("m").versions] == [BROKEN, said]
    model_states.remark(ServableId("m", 1), MISSING)
    assert model_states.remarks("m")[1] == MISSING
    model_states.remark(ServableId("m", 1), None)
    model_states.on_source_report(SourceReport("m"))
    assert model_states.report("m").versions[-1].status == OK


def test_observer_notes_the_wanted_versions_and_passes_the_list_on(model_states: ModelStates) -> None:
    passed: list[object] = []
    model_states.configure(["m"])
    items = [ServableData.ok(ServableId("m", 3), "path"), ServableData.error(ServableId("m", 2), BROKEN)]
    model_states.observe(lambda name, versions: passed.append((name, versions)))("m", items)
    assert model_states.aspired("m") == (ServableId("m", 3), ServableId("m", 2))
    assert passed == [("m", items)]


def test_what_is_no_longer_configured_is_forgotten(model_states: ModelStates) -> None:
    model_states.configure(["m", "n"])
    model_states.on_source_report(SourceReport("m", MISSING))
    model_states.observe(lambda name, versions: None)("m", [ServableData.ok(ServableId("m", 3), "path")])
    model_states.configure(["n"])
    assert model_states.source_report("m") is None
    assert model_states.aspired("m") == ()
    assert [report.name for report in model_states.reports()] == ["n"]


def test_a_version_has_arrived_when_its_directory_was_seen_first(
    clock: VirtualClock, model_states: ModelStates
) -> None:
    model_states.configure(["m"])
    began = clock.time()
    model_states.on_source_report(SourceReport("m", on_disk=frozenset({1, 2})))
    clock.advance(5)
    model_states.on_source_report(SourceReport("m", on_disk=frozenset({2, 3})))
    assert model_states.arrived("m") == {2: began, 3: began + 5}
    model_states.configure([])
    assert not model_states.arrived("m")


def test_version_that_must_not_answer_shows_why_also_where_the_manager_does_not_know_it() -> None:
    why = Status(StatusCode.ABORTED, "taken back after 11 s")
    known = states(v1=ManagerState.AVAILABLE, v2=ManagerState.END, v3=ManagerState.UNLOADING)
    found = visible_versions(known, {5: "files changed"}, no_attempt, rejected=dict.fromkeys((2, 3, 4, 5), why))
    assert [(item.version, item.state, item.status) for item in found] == [
        (5, VersionState.END, why),
        (4, VersionState.END, why),
        (3, VersionState.UNLOADING, why),
        (2, VersionState.END, why),
        (1, VersionState.AVAILABLE, OK),
    ]
