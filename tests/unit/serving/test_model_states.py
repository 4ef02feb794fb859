from __future__ import annotations

from collections.abc import Mapping

from tfs_lite.core.servable import ServableData, ServableId, VersionState, VersionStatus
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.serving.model_states import ModelStates, visible_versions
from tfs_lite.sources.source_config import SourceReport

BROKEN = Status(StatusCode.INVALID_ARGUMENT, "broken")
MISSING = Status(StatusCode.NOT_FOUND, "base path does not exist")


def states(**versions: ManagerState) -> dict[int, TimedState]:
    return {
        int(key[1:]): TimedState(ServableState(ServableId("m", int(key[1:])), state), 0.0)
        for key, state in versions.items()
    }


def no_attempt(version: int) -> None:
    return None


def test_versions_come_highest_first() -> None:
    found = visible_versions(states(v1=ManagerState.AVAILABLE, v10=ManagerState.LOADING), {}, no_attempt)
    assert found == (VersionStatus(10, VersionState.LOADING, OK), VersionStatus(1, VersionState.AVAILABLE, OK))


def test_waiting_version_shows_as_start_with_the_reason() -> None:
    (found,) = visible_versions({}, {4: "files changed"}, no_attempt)
    assert found == VersionStatus(4, VersionState.START, Status(StatusCode.UNAVAILABLE, "files changed"))


def test_waiting_version_does_not_hide_one_that_the_manager_still_has() -> None:
    (found,) = visible_versions(states(v4=ManagerState.UNLOADING), {4: "files changed"}, no_attempt)
    assert found.state is VersionState.UNLOADING


def test_waiting_version_replaces_its_own_past() -> None:
    (found,) = visible_versions(states(v4=ManagerState.END), {4: "files changed"}, no_attempt)
    assert found.state is VersionState.START


def test_version_between_two_attempts_shows_the_last_error() -> None:
    def last(version: int) -> LoadAttempt:
        return LoadAttempt(ServableId("m", version), 2, 0.1, BROKEN)

    for state in (ManagerState.START, ManagerState.LOADING):
        (found,) = visible_versions(states(v4=state), {}, last)
        assert found.status == BROKEN
    (found,) = visible_versions(states(v4=ManagerState.AVAILABLE), {}, last)
    assert found.status == OK


def make(known: Mapping[int, TimedState], rings: list[None]) -> ModelStates:
    return ModelStates(lambda name: known, lambda _: None, lambda: rings.append(None))


def test_report_puts_the_parts_together_and_each_part_rings() -> None:
    rings: list[None] = []
    view = make(states(v1=ManagerState.AVAILABLE), rings)
    view.configure(["m"])
    view.on_source_report(SourceReport("m", MISSING, {2: "no files yet"}))
    report = view.report("m")
    assert [version.version for version in report.versions] == [2, 1]
    assert report.available
    assert report.problem == MISSING
    assert len(rings) == 2


def test_observer_notes_the_wanted_versions_and_passes_the_list_on() -> None:
    passed: list[object] = []
    view = make({}, [])
    view.configure(["m"])
    items = [ServableData.ok(ServableId("m", 3), "path"), ServableData.error(ServableId("m", 2), BROKEN)]
    view.observe(lambda name, versions: passed.append((name, versions)))("m", items)
    assert view.aspired("m") == (ServableId("m", 3), ServableId("m", 2))
    assert passed == [("m", items)]


def test_what_is_no_longer_configured_is_forgotten() -> None:
    view = make({}, [])
    view.configure(["m", "n"])
    view.on_source_report(SourceReport("m", MISSING))
    view.observe(lambda name, versions: None)("m", [ServableData.ok(ServableId("m", 3), "path")])
    view.configure(["n"])
    assert view.source_report("m") is None
    assert view.aspired("m") == ()
    assert [report.name for report in view.reports()] == ["n"]
