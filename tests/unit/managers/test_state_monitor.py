"""What the monitor knows, and waits that never hang."""

from __future__ import annotations

import threading

import pytest

from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.servable import ServableId, ServableRequest
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.testing.lifecycle.clock import VirtualClock

M = ManagerState
FAILED = Status(StatusCode.UNAVAILABLE, "broken")
WAITING = Status(StatusCode.UNAVAILABLE, "waiting for 2 files")
LATEST = ServableRequest.latest("m")


class Wire:
    """A bus with a monitor."""

    def __init__(self, **options: int) -> None:
        self.clock = VirtualClock(0)
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        self.monitor = ServableStateMonitor(self.bus, **options)

    def say(self, version: int, state: ManagerState, health: Status = OK, name: str = "m") -> ServableState:
        event = ServableState(ServableId(name, version), state, health)
        self.bus.publish(event)
        self.clock.advance(1)
        return event

    def states(self, name: str = "m") -> dict[int, ManagerState]:
        return {version: timed.state.state for version, timed in self.monitor.get_version_states(name).items()}

    def ask(self, *requests: ServableRequest, goal: ManagerState = M.AVAILABLE) -> list:
        """Registers a wait; the answer appears in the list."""
        answers: list = []
        self.monitor.notify_when_servables_reach_state(
            requests, goal, lambda reached, states: answers.append((reached, states))
        )
        return answers


@pytest.fixture
def wire() -> Wire:
    return Wire()


def specific(version: int) -> ServableRequest:
    return ServableRequest.specific("m", version)


# What is known.


def test_nothing_is_known_before_anything_was_said(wire: Wire) -> None:
    assert wire.monitor.get_state(ServableId("m", 1)) is None
    assert wire.monitor.get_state_and_time(ServableId("m", 1)) is None
    assert wire.monitor.get_version_states("m") == {}
    assert wire.monitor.get_all_servable_states() == {}
    assert wire.monitor.get_live_servable_states() == {}
    assert wire.monitor.get_available_servable_states() == set()


def test_last_event_of_a_version_counts_and_has_its_time(wire: Wire) -> None:
    wire.say(1, M.START)
    last = wire.say(1, M.LOADING)
    assert wire.monitor.get_state(ServableId("m", 1)) == last
    assert wire.monitor.get_state_and_time(ServableId("m", 1)).time == 1.0


def test_versions_come_highest_first(wire: Wire) -> None:
    for version in (9, 11, 10):
        wire.say(version, M.START)
    assert list(wire.states()) == [11, 10, 9]
    assert list(wire.monitor.get_all_servable_states()["m"]) == [11, 10, 9]


def test_live_states_leave_out_what_ended_until_it_comes_back(wire: Wire) -> None:
    wire.say(1, M.AVAILABLE)
    wire.say(2, M.END)
    wire.say(1, M.END, name="gone")
    assert {name: list(found) for name, found in wire.monitor.get_live_servable_states().items()} == {"m": [1]}
    wire.say(1, M.START, name="gone")
    assert set(wire.monitor.get_live_servable_states()) == {"m", "gone"}


def test_model_is_available_while_one_of_its_versions_is(wire: Wire) -> None:
    wire.say(1, M.AVAILABLE)
    wire.say(1, M.LOADING, name="b")
    assert wire.monitor.get_available_servable_states() == {"m"}
    wire.say(1, M.UNLOADING)
    assert wire.monitor.get_available_servable_states() == set()


def test_log_is_off_by_default(wire: Wire) -> None:
    wire.say(1, M.START)
    assert wire.monitor.get_bounded_log() == []


def test_log_keeps_the_last_events() -> None:
    wire = Wire(max_count_log_events=2)
    for version in (1, 2, 3):
        wire.say(version, M.START)
    assert [timed.state.id.version for timed in wire.monitor.get_bounded_log()] == [2, 3]


def test_ended_versions_are_bounded_per_name_and_the_oldest_end_goes_first() -> None:
    wire = Wire(max_ended_versions=2)
    wire.say(9, M.AVAILABLE)
    for version in (3, 1, 2):
        wire.say(version, M.END)
    wire.say(1, M.END, name="b")
    assert wire.states() == {9: M.AVAILABLE, 2: M.END, 1: M.END}
    assert wire.states("b") == {1: M.END}


def test_version_that_ends_again_counts_as_ended_last() -> None:
    wire = Wire(max_ended_versions=2)
    for version in (1, 2, 1, 3):
        wire.say(version, M.END)
    assert wire.states() == {3: M.END, 1: M.END}


def test_forgetting_drops_what_ended_and_keeps_the_names(wire: Wire) -> None:
    wire.say(1, M.END)
    wire.say(2, M.AVAILABLE)
    wire.say(1, M.END, name="b")
    wire.monitor.forget_unloaded_servable_states()
    assert {name: list(found) for name, found in wire.monitor.get_all_servable_states().items()} == {"m": [2], "b": []}


def test_names_without_a_live_version_are_bounded_and_the_first_to_end_goes_first() -> None:
    wire = Wire(max_ended_names=2)
    wire.say(1, M.AVAILABLE, name="alive")
    for name in ("a", "b", "a", "c"):
        wire.say(1, M.END, name=name)
    assert list(wire.monitor.get_all_servable_states()) == ["alive", "a", "c"]


def test_name_that_came_back_to_life_is_kept_until_it_ends_again() -> None:
    wire = Wire(max_ended_names=1)
    wire.say(1, M.END, name="a")
    wire.say(2, M.START, WAITING, name="a")
    for name in ("b", "c"):
        wire.say(1, M.END, name=name)
    assert set(wire.monitor.get_all_servable_states()) == {"a", "c"}
    wire.say(2, M.END, name="a")
    assert set(wire.monitor.get_all_servable_states()) == {"a"}


def test_dropped_names_do_not_stop_forgetting_or_coming_back() -> None:
    wire = Wire(max_ended_names=1)
    for name in ("a", "b"):
        wire.say(1, M.END, name=name)
    wire.monitor.forget_unloaded_servable_states()
    wire.say(1, M.AVAILABLE, name="a")
    wire.say(1, M.END, name="c")
    assert set(wire.monitor.get_all_servable_states()) == {"a", "c"}


# Not accepted yet.


def test_version_whose_files_are_arriving_shows_why_it_waits(wire: Wire) -> None:
    wire.say(1, M.START, WAITING)
    assert wire.monitor.get_state(ServableId("m", 1)).health == WAITING
    assert list(wire.monitor.get_live_servable_states()["m"]) == [1]


@pytest.mark.parametrize("goal", [M.AVAILABLE, M.END, M.START])
@pytest.mark.parametrize("request_", [specific(1), LATEST])
def test_version_whose_files_are_arriving_answers_no_wait(
    wire: Wire, goal: ManagerState, request_: ServableRequest
) -> None:
    wire.say(1, M.START, WAITING)
    answers = wire.ask(request_, goal=goal)
    wire.say(1, M.START, WAITING)
    assert answers == []


def test_latest_looks_past_a_version_whose_files_are_arriving(wire: Wire) -> None:
    wire.say(2, M.START, WAITING)
    wire.say(1, M.AVAILABLE)
    assert wire.ask(LATEST)[0][0] is True


@pytest.mark.parametrize("state", [M.START, M.LOADING, M.AVAILABLE, M.UNLOADING])
def test_arriving_files_never_hide_what_the_manager_works_on(wire: Wire, state: ManagerState) -> None:
    wire.say(1, state)
    wire.say(1, M.START, WAITING)
    assert wire.states() == {1: state}
    assert wire.monitor.get_state(ServableId("m", 1)).health.ok


def test_arriving_files_replace_an_end_and_an_older_reason(wire: Wire) -> None:
    wire.say(1, M.END, FAILED)
    wire.say(1, M.START, WAITING)
    newer = wire.say(1, M.START, Status(StatusCode.UNAVAILABLE, "waiting for 1 file"))
    assert wire.monitor.get_state(ServableId("m", 1)) == newer
    wire.say(1, M.START)
    assert wire.monitor.get_state(ServableId("m", 1)).health.ok


# Waits.


def test_no_requests_are_answered_at_once(wire: Wire) -> None:
    assert wire.ask() == [(True, {})]


def test_present_state_answers_at_once(wire: Wire) -> None:
    event = wire.say(1, M.AVAILABLE)
    assert wire.ask(specific(1)) == [(True, {event.id: event})]


def test_answer_comes_once_when_every_request_has_its_own(wire: Wire) -> None:
    answers = wire.ask(specific(1), specific(2))
    first = wire.say(1, M.AVAILABLE)
    assert answers == []
    second = wire.say(2, M.AVAILABLE)
    wire.say(2, M.UNLOADING)
    assert answers == [(True, {first.id: first, second.id: second})]


def test_end_answers_and_means_not_reached(wire: Wire) -> None:
    answers = wire.ask(specific(1), specific(2))
    good = wire.say(1, M.AVAILABLE)
    bad = wire.say(2, M.END, FAILED)
    assert answers == [(False, {good.id: good, bad.id: bad})]


def test_goal_end_is_reached_by_end(wire: Wire) -> None:
    answers = wire.ask(specific(1), goal=M.END)
    wire.say(1, M.AVAILABLE)
    assert answers == []
    wire.say(1, M.END, FAILED)
    assert answers[0][0] is True


def test_state_past_the_goal_does_not_answer(wire: Wire) -> None:
    wire.say(1, M.UNLOADING)
    answers = wire.ask(specific(1))
    assert answers == []
    wire.say(1, M.END)
    assert answers[0][0] is False


@pytest.mark.parametrize("request_", [LATEST, ServableRequest.earliest("m")])
def test_request_without_a_version_is_answered_by_the_highest_that_can(wire: Wire, request_: ServableRequest) -> None:
    wire.say(3, M.LOADING)
    wire.say(2, M.AVAILABLE)
    wire.say(1, M.AVAILABLE)
    assert list(wire.ask(request_)[0][1]) == [ServableId("m", 2)]


def test_wait_for_any_version_depends_on_the_order_of_events(wire: Wire) -> None:
    early = wire.ask(LATEST)
    wire.say(2, M.END, FAILED)
    assert early[0][0] is False
    wire.monitor.forget_unloaded_servable_states()
    late = wire.ask(LATEST)
    wire.say(1, M.AVAILABLE)
    wire.say(2, M.END, FAILED)
    assert late[0][0] is True


def test_events_of_other_names_do_not_answer(wire: Wire) -> None:
    answers = wire.ask(specific(1))
    wire.say(1, M.AVAILABLE, name="other")
    assert answers == []


def test_callback_may_ask_the_monitor(wire: Wire) -> None:
    seen = []
    wire.monitor.notify_when_servables_reach_state([LATEST], M.AVAILABLE, lambda *_: seen.append(wire.states()))
    wire.say(1, M.AVAILABLE)
    assert seen == [{1: M.AVAILABLE}]


def test_callback_that_raises_disturbs_nobody(wire: Wire, caplog) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("mine")

    wire.monitor.notify_when_servables_reach_state([LATEST], M.AVAILABLE, broken)
    answers = wire.ask(LATEST)
    wire.say(1, M.AVAILABLE)
    assert answers[0][0] is True
    assert "callback failed" in caplog.text


def test_wait_that_was_given_up_is_not_answered(wire: Wire) -> None:
    answers = []
    wait = wire.monitor.notify_when_servables_reach_state([LATEST], M.AVAILABLE, lambda *_: answers.append(1))
    wait.close()
    wire.say(1, M.AVAILABLE)
    assert answers == []


def test_blocking_wait_is_woken_by_another_thread(wire: Wire) -> None:
    result = []
    waiting = threading.Thread(
        target=lambda: result.append(wire.monitor.wait_until_servables_reach_state([LATEST], M.AVAILABLE, 60))
    )
    waiting.start()
    event = wire.say(1, M.AVAILABLE)
    waiting.join(60)
    assert result == [(True, {event.id: event})]


def test_blocking_wait_examines_the_present_state(wire: Wire) -> None:
    event = wire.say(1, M.AVAILABLE)
    assert wire.monitor.wait_until_servables_reach_state([LATEST], M.AVAILABLE) == (True, {event.id: event})


def test_wait_that_times_out_says_what_there_is_and_leaves_nothing_behind(wire: Wire) -> None:
    event = wire.say(1, M.AVAILABLE)
    reached, answers = wire.monitor.wait_until_servables_reach_state([specific(1), specific(2)], M.AVAILABLE, 0)
    assert (reached, answers) == (False, {event.id: event})
    assert wire.monitor._waits == set()
    wire.say(2, M.AVAILABLE)


# Subscribers.


def test_subscriber_sees_each_event_when_queries_show_it(wire: Wire) -> None:
    seen = []
    subscription = wire.monitor.subscribe(lambda timed: seen.append((timed.state.state, wire.states())))
    wire.say(1, M.START)
    wire.say(1, M.LOADING)
    subscription.close()
    wire.say(1, M.AVAILABLE)
    assert seen == [(M.START, {1: M.START}), (M.LOADING, {1: M.LOADING})]


def test_subscriber_that_raises_disturbs_nobody(wire: Wire, caplog) -> None:
    def broken(timed: object) -> None:
        raise RuntimeError("mine")

    seen = []
    wire.monitor.subscribe(broken)
    wire.monitor.subscribe(seen.append)
    wire.say(1, M.START)
    assert len(seen) == 1
    assert "subscriber of the state monitor failed" in caplog.text


def test_closed_monitor_keeps_what_it_knows_and_hears_nothing(wire: Wire) -> None:
    wire.say(1, M.START)
    wire.monitor.close()
    wire.say(1, M.LOADING)
    assert wire.states() == {1: M.START}
