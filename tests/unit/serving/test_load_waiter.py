from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.serving.load_waiter import GRACE, SETTLING, Answer, ModelWaiter, Snapshot, WaitRules, judge
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


def test_model_with_an_available_version_has_answered() -> None:
    states = {1: timed(M1, ManagerState.AVAILABLE), 2: failed(M2)}
    assert judge("m", Snapshot(True, (M1, M2), states), RULES).answer is Answer.AVAILABLE


def test_version_that_is_not_wanted_any_more_answers_nothing() -> None:
    states = {1: timed(M1, ManagerState.AVAILABLE)}
    assert judge("m", Snapshot(True, (M2,), states), RULES).answer is Answer.PENDING


def test_model_that_was_removed_meanwhile_is_not_waited_for() -> None:
    assert judge("m", Snapshot(False), RULES).answer is Answer.GONE


def test_model_fails_when_every_version_has() -> None:
    both = judge("m", Snapshot(True, (M1, M2), {1: failed(M1), 2: failed(M2)}), RULES)
    assert both.answer is Answer.FAILED
    assert both.holds_after == 0
    assert both.reasons == ((str(M1), BROKEN), (str(M2), BROKEN))
    one = judge("m", Snapshot(True, (M1, M2), {1: failed(M1), 2: timed(M2, ManagerState.LOADING)}), RULES)
    assert one.answer is Answer.PENDING


def test_failure_of_an_earlier_time_must_stand_for_a_moment() -> None:
    verdict = judge("m", Snapshot(True, (M1,), {1: failed(M1, NOW - 5)}), RULES)
    assert (verdict.answer, verdict.holds_after) == (Answer.FAILED, GRACE)


def test_failed_attempt_answers_only_where_it_may() -> None:
    snapshot = Snapshot(True, (M1,), {1: timed(M1, ManagerState.LOADING)}, {1: attempt(M1)})
    assert judge("m", snapshot, RULES).answer is Answer.PENDING
    assert judge("m", snapshot, RULES).reasons == ((str(M1), BROKEN),)
    assert judge("m", snapshot, FIRST).answer is Answer.FAILED


def test_missing_base_path_fails_after_a_moment_with_its_reason() -> None:
    missing = Status(StatusCode.NOT_FOUND, "base path does not exist")
    verdict = judge("m", Snapshot(True, problem=missing), RULES)
    assert (verdict.answer, verdict.holds_after) == (Answer.FAILED, GRACE)
    assert verdict.reasons == (("{name: m}", missing),)


def test_version_whose_files_settle_gets_the_time_to() -> None:
    stuck = judge("m", Snapshot(True, waiting={3: "model.pt2 is truncated"}), RULES)
    assert (stuck.answer, stuck.holds_after) == (Answer.FAILED, GRACE)
    settling = Snapshot(True, waiting={3: "files changed"}, settling=frozenset({3}))
    verdict = judge("m", settling, RULES)
    assert (verdict.answer, verdict.holds_after) == (Answer.FAILED, SETTLING)
    ((what, status),) = verdict.reasons
    assert what == "{name: m version: 3}"
    assert status == Status(StatusCode.UNAVAILABLE, "files changed")


def test_model_of_which_nothing_is_known_yet_is_pending() -> None:
    assert judge("m", Snapshot(True), RULES).answer is Answer.PENDING


class World:
    """A view over states that the test sets."""

    def __init__(self) -> None:
        self.states: dict[str, Mapping[int, TimedState]] = {}
        self.changes = ChangeNotifier()
        self.clock = SystemClock()
        self.view = ModelStates(lambda name: self.states.get(name, {}), lambda _: None, self.changes.ring)
        self.waiter = ModelWaiter(self.view, self.changes, self.clock)

    def set(self, servable_id: ServableId, state: TimedState) -> None:
        self.states[servable_id.name] = {servable_id.version: state}
        self.changes.ring()


@pytest.fixture
def world() -> World:
    world = World()
    world.view.configure(["m"])
    return world


def want(world: World, *ids: ServableId) -> None:
    from tfs_lite.core.servable import ServableData

    callback = world.view.observe(lambda name, versions: None)
    callback("m", [ServableData.ok(servable_id, "") for servable_id in ids])


def test_waiter_returns_when_the_model_is_available(world: World) -> None:
    want(world, M1)
    later = threading.Timer(0.05, lambda: world.set(M1, timed(M1, ManagerState.AVAILABLE)))
    later.start()
    result = world.waiter.wait(["m"], timeout=20, since=NOW)
    later.join()
    assert result.failed == {}
    assert result.error is None


def test_waiter_gives_up_with_what_it_knows(world: World) -> None:
    want(world, M1)
    error = world.waiter.wait(["m"], timeout=0.05, since=NOW).error
    assert error is not None
    assert error.code is StatusCode.UNKNOWN
    assert str(error).startswith("1 model(s) did not become available: {{{name: m} due to error: DEADLINE_EXCEEDED")


def test_failure_is_told_in_the_known_words(world: World) -> None:
    want(world, M1)
    world.set(M1, failed(M1))
    assert str(world.waiter.wait(["m"], timeout=20, since=NOW).error) == (
        "1 model(s) did not become available: {{{name: m version: 1} due to error: INVALID_ARGUMENT: broken}, }"
    )


def test_problem_of_the_source_ends_the_wait_after_the_grace(world: World) -> None:
    world.view.on_source_report(SourceReport("m", Status(StatusCode.NOT_FOUND, "base path does not exist")))
    result = world.waiter.wait(["m"], timeout=20, since=NOW)
    assert list(result.failed) == ["m"]


def test_closing_ends_every_wait(world: World) -> None:
    want(world, M1)
    later = threading.Timer(0.05, world.waiter.close)
    later.start()
    assert list(world.waiter.wait(["m"], timeout=None, since=NOW).failed) == ["m"]
    later.join()
    assert world.waiter.closed


def test_nothing_to_wait_for_returns_at_once(world: World) -> None:
    assert world.waiter.wait([], timeout=None, since=NOW).verdicts == {}
