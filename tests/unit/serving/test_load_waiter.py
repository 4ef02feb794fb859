"""How long a reload waits for its models, and what it says of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.servers.process import wait_until
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.core.status import OK, Reason, Status, StatusCode
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.load_journal import LoadAttempt, LoadJournal
from tfs_lite.serving.load_waiter import (
    GRACE,
    SETTLING,
    ModelOutcome,
    ModelWaiter,
    OutcomeKind,
    WaitRules,
    WaitSnapshot,
    combined,
    outcome_of,
)
from tfs_lite.serving.model_states import ModelStates
from tfs_lite.sources.source_config import SourceReport

M1, M2 = ServableId("m", 1), ServableId("m", 2)
BROKEN = Status(StatusCode.INVALID_ARGUMENT, "broken")
NOW = 1000.0
RULES = WaitRules(since=NOW, first_attempt_counts=False)
FIRST = WaitRules(since=NOW, first_attempt_counts=True)


def timed(servable_id: ServableId, state: ManagerState, health: Status = OK, time: float = NOW) -> TimedState:
    return TimedState(ServableState(servable_id, state, health), time)


def failed(servable_id: ServableId, time: float = NOW) -> TimedState:
    return timed(servable_id, ManagerState.END, BROKEN, time)


def attempt(servable_id: ServableId) -> LoadAttempt:
    return LoadAttempt(servable_id, 1, 0.1, BROKEN)


AVAILABLE = timed(M1, ManagerState.AVAILABLE)
SNAPSHOTS = {
    "one version available": (WaitSnapshot(True, (M1, M2), {1: AVAILABLE, 2: failed(M2)}), OutcomeKind.AVAILABLE),
    "available but not wanted any more": (WaitSnapshot(True, (M2,), {1: AVAILABLE}), OutcomeKind.PENDING),
    "one failed, one loading": (
        WaitSnapshot(True, (M1, M2), {1: failed(M1), 2: timed(M2, ManagerState.LOADING)}),
        OutcomeKind.PENDING,
    ),
    "removed meanwhile": (WaitSnapshot(False), OutcomeKind.GONE),
    "nothing known yet": (WaitSnapshot(True), OutcomeKind.PENDING),
}


@pytest.mark.parametrize(("snapshot", "expected"), SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_outcome_follows_from_the_wanted_versions(snapshot: WaitSnapshot, expected: OutcomeKind) -> None:
    assert outcome_of("m", snapshot, RULES).outcome is expected


def test_model_fails_when_every_version_has() -> None:
    snapshot = WaitSnapshot(True, (M1, M2), {1: failed(M1), 2: failed(M2)}, given_up=frozenset({1, 2}))
    both = outcome_of("m", snapshot, RULES)
    assert (both.outcome, both.holds_after) == (OutcomeKind.FAILED, 0)
    assert both.reasons == ((str(M1), BROKEN), (str(M2), BROKEN))


@pytest.mark.parametrize("rules", [RULES, FIRST])
def test_failure_that_the_source_does_not_know_yet_must_stand_for_a_moment(rules: WaitRules) -> None:
    """Another version may be there to stand in for the one that failed."""
    found = outcome_of("m", WaitSnapshot(True, (M2,), {2: failed(M2)}), rules)
    assert (found.outcome, found.holds_after) == (OutcomeKind.FAILED, GRACE)
    stood_in_for = WaitSnapshot(True, (M2, M1), {2: failed(M2)}, given_up=frozenset({2}))
    assert outcome_of("m", stood_in_for, rules).outcome is OutcomeKind.PENDING


def test_failure_of_an_earlier_time_must_stand_for_a_moment() -> None:
    found = outcome_of("m", WaitSnapshot(True, (M1,), {1: failed(M1, NOW - 5)}), RULES)
    assert (found.outcome, found.holds_after) == (OutcomeKind.FAILED, GRACE)


@pytest.mark.parametrize("reason", [Reason.WAITS_FOR_MODELS, Reason.WAITS_FOR_PLACE])
def test_version_that_waits_is_pending_as_long_as_any_model_is(reason: Reason) -> None:
    waits = Status(StatusCode.UNAVAILABLE, "something has to come first", reason)
    attempts = {1: LoadAttempt(M1, 1, 0.1, waits)}
    found = outcome_of("m", WaitSnapshot(True, (M1,), {1: timed(M1, ManagerState.LOADING)}, attempts), RULES)
    assert (found.outcome, found.holds_after, found.waits) == (OutcomeKind.FAILED, GRACE, True)
    assert found.reasons == ((str(M1), waits),)
    pending = outcome_of("n", WaitSnapshot(True), RULES)
    assert combined({"m": found, "n": pending})["m"].outcome is OutcomeKind.PENDING
    assert combined({"m": found})["m"].outcome is OutcomeKind.FAILED


def test_failed_attempt_decides_only_where_it_may() -> None:
    snapshot = WaitSnapshot(True, (M1,), {1: timed(M1, ManagerState.LOADING)}, {1: attempt(M1)})
    assert outcome_of("m", snapshot, RULES).outcome is OutcomeKind.PENDING
    assert outcome_of("m", snapshot, RULES).reasons == ((str(M1), BROKEN),)
    assert outcome_of("m", snapshot, FIRST).outcome is OutcomeKind.FAILED


def test_missing_base_path_fails_after_a_moment_with_its_reason() -> None:
    missing = Status(StatusCode.NOT_FOUND, "base path does not exist")
    found = outcome_of("m", WaitSnapshot(True, problem=missing), RULES)
    assert (found.outcome, found.holds_after) == (OutcomeKind.FAILED, GRACE)
    assert found.reasons == (("{name: m}", missing),)


def test_version_whose_files_settle_gets_the_time_to() -> None:
    stuck = outcome_of("m", WaitSnapshot(True, waiting={3: "model.pt2 is truncated"}), RULES)
    assert (stuck.outcome, stuck.holds_after) == (OutcomeKind.FAILED, GRACE)
    settling = WaitSnapshot(True, waiting={3: "files changed"}, settling=frozenset({3}))
    found = outcome_of("m", settling, RULES)
    assert (found.outcome, found.holds_after) == (OutcomeKind.FAILED, SETTLING)
    assert found.reasons == (("{name: m version: 3}", Status(StatusCode.UNAVAILABLE, "files changed")),)


class Fixture:
    """A waiter over states that the test publishes."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.changes = ChangeNotifier()
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        journal = LoadJournal(lambda attempt: None)
        self.states = ModelStates(ServableStateMonitor(self.bus), journal, self.changes, self.clock)
        self.states.configure(["m"])
        self.waiter = ModelWaiter(self.states, self.changes, self.clock)
        self.aspire = self.states.observe(lambda name, versions: None)
        self.aspire("m", [ServableData.ok(M1, "")])

    def publish(self, state: ManagerState, health: Status = OK) -> None:
        self.bus.publish(ServableState(M1, state, health))
        self.changes.notify()


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models at which waiters have looked, one entry for each look."""
    found: list[str] = []

    def judge(name: str, snapshot: WaitSnapshot, rules: WaitRules) -> ModelOutcome:
        found.append(name)
        return outcome_of(name, snapshot, rules)

    monkeypatch.setattr("tfs_lite.serving.load_waiter.outcome_of", judge)
    return found


def test_waiter_returns_when_the_model_is_available(fixture: Fixture, looked: list[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fixture.waiter.wait, ["m"], timeout=20, since=NOW)
        wait_until(lambda: looked, "it was looked at before")
        fixture.publish(ManagerState.AVAILABLE)
        result = waiting.result(60)
    assert result.failed == {}
    assert result.error is None


def test_waiter_gives_up_with_what_it_knows(fixture: Fixture) -> None:
    error = fixture.waiter.wait(["m"], timeout=0.05, since=NOW).error
    assert error is not None
    assert error.code is StatusCode.UNKNOWN
    assert str(error).startswith("1 model(s) did not become available: {{{name: m} due to error: DEADLINE_EXCEEDED")


def test_failure_is_told_in_the_known_words(fixture: Fixture) -> None:
    fixture.publish(ManagerState.END, BROKEN)
    assert str(fixture.waiter.wait(["m"], timeout=20, since=NOW).error) == (
        "1 model(s) did not become available: {{{name: m version: 1} due to error: INVALID_ARGUMENT: broken}, }"
    )


def test_problem_of_the_source_ends_the_wait_after_the_grace(fixture: Fixture) -> None:
    fixture.aspire("m", [])
    fixture.states.on_source_report(SourceReport("m", Status(StatusCode.NOT_FOUND, "base path does not exist")))
    result = fixture.waiter.wait(["m"], timeout=20, since=NOW)
    assert list(result.failed) == ["m"]


def test_closing_ends_every_wait(fixture: Fixture, looked: list[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fixture.waiter.wait, ["m"], timeout=None, since=NOW)
        wait_until(lambda: looked, "it waits")
        fixture.waiter.close()
        assert list(waiting.result(60).failed) == ["m"]
    assert fixture.waiter.closed


def test_nothing_to_wait_for_returns_at_once(fixture: Fixture) -> None:
    assert fixture.waiter.wait([], timeout=None, since=NOW).outcomes == {}


def test_a_change_is_a_look_at_the_model_that_has_changed(fixture: Fixture, looked: list[str]) -> None:
    names = [f"m{number}" for number in range(20)]
    fixture.states.configure(["m", *names])
    for name in names:
        fixture.aspire(name, [ServableData.ok(ServableId(name, 1), "")])
    waiting = threading.Thread(target=lambda: fixture.waiter.wait(["m", *names], 60, since=NOW))
    waiting.start()
    wait_until(lambda: len(looked) == 21, "every model was looked at")
    for name in names:
        before = len(looked)
        fixture.bus.publish(ServableState(ServableId(name, 1), ManagerState.AVAILABLE))
        fixture.changes.notify(name)
        wait_until(lambda before=before: len(looked) > before, "the change was seen")
    fixture.bus.publish(ServableState(M1, ManagerState.AVAILABLE))
    fixture.changes.notify("m")
    waiting.join(60)
    assert not waiting.is_alive()
    assert sorted(looked) == sorted(2 * ["m", *names])


def test_which_models_have_changed_is_told_since_any_moment() -> None:
    changes = ChangeNotifier()
    changes.notify("a")
    count = changes.count
    changes.notify("b")
    changes.notify("a")
    assert changes.changed_since(count) == {"a", "b"}
    assert changes.changed_since(count + 1) == {"a"}
    assert changes.changed_since(changes.count) == set()
    changes.notify()
    assert changes.changed_since(count) is None


def test_the_changes_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfs_lite.serving.change_notifier.KEPT_CHANGES", 2)
    changes = ChangeNotifier()
    for name in "abc":
        changes.notify(name)
    assert changes.changed_since(0) is None
    assert changes.changed_since(1) == {"b", "c"}
