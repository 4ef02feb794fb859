"""Arrivals and ends of texts, bounds of the queue, and times."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.language.generation_checker import scheduled_text
from tfs_lite.core.status import Reason, StatusCode
from tfs_lite.schedulers.generation.scheduler_state import SchedulerState
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.text import Phase, Text


def scheduler(**changes: Any) -> SchedulerState:
    values: dict[str, Any] = {"slots": 2, "length": 100, "rows": 64, "chunk": 32}
    values |= {"max_queue": 3, "max_queued_tokens": 40, "queue_timeout": 30.0}
    return SchedulerState(EngineSettings(**values | changes))


def add(
    to: SchedulerState,
    number: int,
    length: int = 4,
    arrived: float = 0.0,
    deadline: float | None = None,
    token: int = 0,
) -> Text:
    text = scheduled_text(number, [token or number] * length, 10, arrived, deadline=deadline)
    to.add(text)
    return text


def step(of: SchedulerState, now: float = 0.0) -> None:
    plan = of.plan(now)
    of.complete(plan)
    for scheduled in plan.schedule:
        if scheduled.draws:
            of.append(scheduled.text, 1)


def test_nothing_to_do_is_an_empty_plan() -> None:
    plan = scheduler().plan(0.0)
    assert (plan.schedule, plan.copies, plan.admitted, plan.preempted) == ((), (), (), ())


def test_start_is_told() -> None:
    busy = scheduler()
    text = add(busy, 1)
    plan = busy.plan(7.5)
    assert plan.admitted == (text,)
    assert (text.started, text.slot, text.phase, text.cached_asked) == (7.5, 0, Phase.PREFILL, 4)
    assert list(busy.running) == [text]
    assert list(busy.waiting) == []


def test_texts_with_a_slot_do_not_count_as_waiting() -> None:
    empty = scheduler()
    assert empty.refusal([4] * 5) is None
    refused = empty.refusal([4] * 6)
    assert refused is not None
    assert (refused.code, refused.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
    assert "4 texts would wait, at most 3" in refused.message


def test_tokens_of_waiting_texts_are_bounded() -> None:
    busy = scheduler()
    for number in range(2):
        add(busy, number)
    step(busy)
    assert busy.refusal([40]) is None
    refused = busy.refusal([41])
    assert refused is not None
    assert "41 tokens" in refused.message
    add(busy, 2, length=30)
    assert busy.refusal([11]) is not None
    assert busy.refusal([10]) is None


def test_slot_of_a_removed_text_is_free_for_the_next_plan_and_waiting_texts_can_be_removed() -> None:
    busy = scheduler(slots=1)
    first, second, third = (add(busy, number) for number in (1, 2, 3))
    step(busy)
    assert busy.plan(0.0).admitted == ()
    busy.remove(second)
    assert list(busy.waiting) == [third]
    assert busy.state().waiting == 1
    busy.remove(first)
    busy.remove(first)
    assert (first.phase, first.slot) == (Phase.ENDED, None)
    assert busy.plan(0.0).admitted == (third,)


def test_rows_of_a_text_removed_during_the_step_do_not_count() -> None:
    busy = scheduler()
    gone, stays = add(busy, 1), add(busy, 2)
    plan = busy.plan(0.0)
    busy.remove(gone)
    busy.complete(plan)
    assert (gone.done, stays.done) == (0, 4)


def test_deadline_passes_for_waiting_and_running_texts() -> None:
    busy = scheduler(slots=1)
    runs, waits = add(busy, 1, deadline=5.0), add(busy, 2, deadline=5.0)
    add(busy, 3)
    step(busy)
    assert busy.late(4.9) == []
    late = dict(busy.late(5.0))
    assert set(late) == {runs, waits}
    assert {status.code for status in late.values()} == {StatusCode.DEADLINE_EXCEEDED}
    assert "after 1 of at most 10 tokens" in late[runs].message
    assert dict(busy.late(5.0)) == late
    for text in late:
        busy.remove(text)
    assert busy.late(6.0) == []


def test_text_that_waits_too_long_for_its_start_is_late() -> None:
    busy = scheduler(slots=1)
    runs, waits = add(busy, 1), add(busy, 2)
    step(busy)
    (found,) = busy.late(30.0)
    assert found[0] is waits
    assert (found[1].code, found[1].reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_TIMEOUT)
    assert runs.phase is Phase.DECODE


def test_preempted_text_is_not_late_for_its_start() -> None:
    busy = scheduler(slots=1)
    low = scheduled_text(1, [1, 2], 10, 0.0, priority=5)
    busy.add(low)
    step(busy)
    add(busy, 2)
    assert busy.plan(1.0).preempted == (low,)
    assert busy.late(100.0) == []


def test_ended_texts_are_not_kept_for_their_times() -> None:
    busy = scheduler()
    for number in range(1000):
        busy.remove(add(busy, number, deadline=1e9))
    assert len(busy._timeouts._entries) < 100


def test_state_counts_tokens() -> None:
    busy = scheduler(slots=2)
    for number in range(3):
        add(busy, number)
    step(busy)
    state = busy.state()
    assert (state.running, state.waiting, state.reserved, state.written, state.capacity) == (2, 1, 28, 8, 200)


def test_token_that_was_not_wanted_is_an_error() -> None:
    busy = scheduler()
    text = add(busy, 1)
    with pytest.raises(RuntimeError, match="wants no token"):
        busy.append(text, 1)
    step(busy)
    with pytest.raises(RuntimeError, match="wants no token"):
        busy.append(text, 1)


@pytest.mark.parametrize(("valid", "cached"), [(True, 30), (False, 0)], ids=["ended", "failed"])
def test_rows_are_reused_unless_they_failed_and_that_is_told(valid: bool, cached: int) -> None:
    busy = scheduler(slots=1)
    first = add(busy, 1, length=30)
    step(busy)
    busy.remove(first, valid=valid)
    again = add(busy, 2, length=31, token=1)
    assert busy.plan(0.0).schedule[0].start == cached
    assert (again.cached, again.cached_asked) == (cached, 31)
    assert again.done == cached
