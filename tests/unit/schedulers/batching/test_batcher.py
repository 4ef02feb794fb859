"""When calls run, step by step: virtual time, one thread at a time."""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.schedulers.batcher_checker import CheckedCall
from tests.support.schedulers.batcher_fixture import BatcherFixture, MakeBatcher
from tests.support.schedulers.batcher_models import SIGNATURES, GatedModel, Verdict
from tests.support.schedulers.interleaving import InterleavingScheduler, SteppedThread, no_threads_left
from tfs_lite.core.model import BatchReport, SharedRuns
from tfs_lite.core.signature import DataType, Signature, TensorSpec
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.batching.forming import form_batch
from tfs_lite.schedulers.batching.queue import BatchJob
from tfs_lite.schedulers.batching.settings import ALONE, BatchSettings, SendWhen

GREEDY = BatchSettings(max_batch_size=4)
WAITING = BatchSettings(max_batch_size=8, send=SendWhen.WAIT, max_delay=1.0)


def code(request: CheckedCall) -> StatusCode | None:
    """The status of the answer; None: it was rows."""
    (answer,) = request.answers
    return answer.code if isinstance(answer, Status) else None


# Who runs with whom.


def test_calls_that_come_during_a_run_share_the_next_one(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(GREEDY)
    calls = [fixture.ask(rows) for rows in (1, 2, 1, 1)]
    fixture.finish()
    assert fixture.sizes() == [1, 4]
    fixture.finish()
    assert [code(request) for request in calls] == [None] * 4


def test_calls_of_different_widths_and_signatures_run_apart(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(GREEDY)
    fixture.ask()
    for width, signature in ((2, "a"), (3, "a"), (2, "b"), (2, "a")):
        fixture.ask(width=width, signature=signature)
    for _ in range(5):
        fixture.finish()
    assert sorted((run.signature, run.width) for run in fixture.runs) == [("a", 2)] * 3 + [("a", 3), ("b", 2)]


def test_without_batching_every_call_runs_alone_and_as_it_came(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(ALONE)
    calls = [fixture.ask(rows) for rows in (5, 0, 3)]
    for _ in calls:
        fixture.finish()
    assert fixture.sizes() == [5, 0, 3]
    assert [code(request) for request in calls] == [None] * 3


def test_batcher_says_whether_calls_share_runs_and_whether_a_setting_changes_that(
    make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_batcher(GREEDY).servable.traits.shared_runs is SharedRuns.BY_CONFIG
    assert make_batcher(ALONE).servable.traits.shared_runs is SharedRuns.OFF
    fixed = (TensorSpec("x", DataType.DOUBLE, (1, 4)),)
    monkeypatch.setattr(GatedModel, "signatures", {"a": Signature(fixed, fixed)})
    for settings in (GREEDY, ALONE):
        assert make_batcher(settings).servable.traits.shared_runs is SharedRuns.NEVER


# What is due is never left lying about while a worker is idle.


def test_wait_of_one_signature_is_watched_while_a_worker_runs_another(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(WAITING, models=2)
    fixture.ask(signature="a")
    fixture.ask(8, signature="b")
    fixture.advance(1.0)
    assert [run.signature for run in fixture.runs] == ["b", "a"]


def test_call_runs_after_a_lost_worker_took_a_batch_that_waited(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(WAITING)
    waiting = fixture.ask(signature="a")
    fixture.ask(8, signature="b")
    fixture.finish(Verdict.LOST)
    assert code(waiting) is StatusCode.UNAVAILABLE
    fixture.recover()
    fixture.ask(signature="a")
    fixture.advance(1.0)
    assert [run.signature for run in fixture.runs] == ["b", "a"]


def test_cancelling_a_call_may_leave_a_batch_of_a_preferred_size(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(BatchSettings(max_batch_size=8, preferred=(4, 8), send=SendWhen.WAIT, max_delay=1.0))
    fixture.ask(3)
    between = fixture.ask(2)
    fixture.ask(1)
    assert fixture.runs == []
    fixture.cancel(between)
    assert fixture.sizes() == [4]


def test_call_with_another_key_closes_a_batch_also_after_one_like_it_was_cancelled(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(WAITING)
    fixture.ask(8)
    fixture.ask(width=2)
    fixture.cancel(fixture.ask(width=3))
    fixture.finish()
    assert fixture.sizes() == [8]
    fixture.ask(width=3)
    assert fixture.sizes() == [8, 1]


@pytest.mark.parametrize("moves", range(4))
def test_worker_that_wakes_by_itself_is_woken_at_most_once(make_batcher: MakeBatcher, moves: int) -> None:
    """Its moment comes; ``moves`` steps later a caller takes it for idle, the worker finds nothing due, and the next
    caller takes it for idle as well before the first has woken it."""
    fixture = make_batcher(
        BatchSettings(max_batch_size=8, send=SendWhen.WAIT, max_delay=1.0, priority_levels=2), stepwise=True
    )
    scheduler, checker = fixture.scheduler, fixture.checker
    scheduler.settle()
    (worker,) = scheduler.workers
    fixture.ask()
    worker._time_out()  # a little too early, as timers may
    _step(scheduler, worker, moves)
    callers = [scheduler.start("caller", partial(checker.submit, fixture.make_call())) for _ in range(2)]
    _step(scheduler, callers[0], 2)  # it has the worker, and is about to wake it
    _step(scheduler, worker, 4)
    _step(scheduler, callers[1], 3)
    _step(scheduler, callers[0], 1)
    scheduler.settle()
    fixture.advance(1.0)
    assert fixture.sizes() == [3]


def _step(scheduler: InterleavingScheduler, stepped: SteppedThread, moves: int) -> None:
    for _ in range(moves):
        if stepped in scheduler.ready:
            scheduler.step(stepped)


# Answers.


def test_callback_that_raises_does_not_hold_up_others_although_answers_are_in_order(
    make_batcher: MakeBatcher, caplog: pytest.LogCaptureFixture
) -> None:
    fixture = make_batcher(BatchSettings(max_batch_size=4, preserve_ordering=True))
    fixture.ask()
    bad = fixture.make_call()
    answered = bad.call.on_done

    def break_contract(answer: Any) -> None:
        answered(answer)
        raise RuntimeError("a caller's mistake")

    bad.call.on_done = break_contract
    fixture.checker.submit(bad)
    after = fixture.ask()
    with caplog.at_level(logging.ERROR):
        fixture.finish()
        fixture.finish()
    assert "on_done must not raise" in caplog.text
    assert (code(bad), code(after)) == (None, None)


def test_lost_worker_takes_its_batch_and_what_waits_with_it(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(GREEDY)
    running, waiting = fixture.ask(), fixture.ask()
    fixture.finish(Verdict.LOST)
    refused = fixture.ask()
    assert [code(request) for request in (running, waiting, refused)] == [StatusCode.UNAVAILABLE] * 3
    fixture.recover()
    later = fixture.ask()
    fixture.finish()
    assert code(later) is None


def test_one_lost_worker_of_two_leaves_the_queue_to_the_other(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(GREEDY, models=2)
    fixture.ask(), fixture.ask()
    waiting = fixture.ask()
    fixture.finish(Verdict.LOST)
    fixture.finish()
    fixture.finish()
    assert code(waiting) is None


def test_call_whose_turn_comes_too_late_is_refused_and_the_run_goes_to_those_behind_it(
    make_batcher: MakeBatcher,
) -> None:
    """A run takes a second, and the one before took three."""
    fixture = make_batcher(GREEDY)
    fixture.ask(4)
    fixture.advance(1.0)
    fixture.finish()
    fixture.ask(4)
    late = fixture.ask(deadline=4.5)
    behind = [fixture.ask() for _ in range(4)]
    fixture.advance(3.0)
    fixture.finish()
    assert code(late) is StatusCode.UNAVAILABLE
    assert fixture.sizes() == [4, 4, 4]
    fixture.finish()
    assert [code(request) for request in behind] == [None] * 4


def fill(fixture: BatcherFixture, *signatures: str) -> CheckedCall:
    """One call runs, as many as are allowed wait for each of the signatures. Returns the one that is refused."""
    fixture.ask()
    for signature in signatures:
        fixture.ask(signature=signature)
    refused = fixture.ask(signature=signatures[-1])
    assert code(refused) is StatusCode.UNAVAILABLE
    return refused


ONE_WAITS = BatchSettings(max_batch_size=4, max_queued_calls=1)


def test_what_every_call_would_be_answered_is_known_before_there_is_one(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(ONE_WAITS)
    assert fixture.servable.refusal(None) is None
    refused = fill(fixture, *SIGNATURES)
    assert fixture.servable.refusal(None) == refused.answers[0]
    fixture.finish()
    assert fixture.servable.refusal(None) is None


def test_what_depends_on_the_call_is_not_known_before_it(make_batcher: MakeBatcher) -> None:
    """The queue of another signature may have room, or that of another priority."""
    fixture, leveled = make_batcher(ONE_WAITS), make_batcher(replace(ONE_WAITS, priority_levels=2, default_priority=1))
    fill(fixture, "a")
    fill(leveled, *SIGNATURES)
    assert (fixture.servable.refusal(None), leveled.servable.refusal(None)) == (None, None)


def test_deadline_that_cannot_be_met_is_known_before_there_is_a_call(make_batcher: MakeBatcher) -> None:
    """Every run takes a second."""
    fixture = make_batcher(GREEDY)
    for signature in SIGNATURES:
        fixture.ask(4, signature)
        fixture.advance(1.0)
        fixture.finish()
    fixture.ask(4)
    for signature in SIGNATURES:
        fixture.ask(4, signature)
    now = fixture.clock.monotonic()
    assert fixture.servable.refusal(now + 3600) is None
    refusal = fixture.servable.refusal(now + 0.5)
    assert refusal is not None
    assert "would not be answered before its deadline" in refusal.message


def test_call_that_comes_with_a_deadline_that_has_passed_is_refused(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(GREEDY)
    assert code(fixture.ask(deadline=0.0)) is StatusCode.DEADLINE_EXCEEDED
    assert fixture.runs == []


def test_closing_answers_what_waits_and_lets_runs_finish(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(GREEDY)
    running, waiting = fixture.ask(), fixture.ask()
    fixture.scheduler.start("closer", fixture.checker.close)
    fixture.scheduler.settle()
    assert (running.answers, code(waiting)) == ([], StatusCode.UNAVAILABLE)
    assert fixture.models[0].closed == 0
    late = fixture.ask()
    fixture.finish()
    fixture.checker.finish()
    assert (code(running), code(late)) == (None, StatusCode.UNAVAILABLE)
    assert "m-1 is being unloaded" in waiting.answers[0].message


def test_every_run_is_reported_with_its_rows_and_waits(make_batcher: MakeBatcher) -> None:
    reports: list[BatchReport] = []
    fixture = make_batcher(BatchSettings(max_batch_size=4, allowed_sizes=(2, 4)), on_batch=reports.append)
    fixture.ask()
    fixture.ask(2)
    fixture.advance(0.5)
    fixture.ask()
    fixture.finish()
    fixture.advance(0.25)
    fixture.finish()
    first, second = reports
    assert (first.rows, first.padding, first.run_seconds, first.queue_seconds) == (1, 1, 0.5, (0.0,))
    assert (second.rows, second.padding, second.run_seconds, second.queue_seconds) == (3, 1, 0.25, (0.5, 0.0))


def test_idle_servable_holds_nothing_of_its_last_calls(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(BatchSettings(max_batch_size=4, allowed_sizes=(4,), preserve_ordering=True))
    arrays = []
    for rows in (1, 2, 1):
        request = fixture.ask(rows)
        arrays.append(weakref.ref(request.call.inputs["x"]))
    while fixture.running():
        fixture.finish()
    del request
    fixture.checker.requests.clear()
    gc.collect()
    assert [array() for array in arrays] == [None] * 3


# Against the rules of forming a batch.

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 5), st.sampled_from([2, 2, 2, 3])),
        st.tuples(st.just("pass"), st.sampled_from([0.25, 0.5, 1.0]), st.just(0)),
        st.tuples(st.just("finish"), st.integers(0, 2), st.just(0)),
    ),
    max_size=40,
)
FORMS = st.builds(
    BatchSettings,
    max_batch_size=st.just(6),
    preferred=st.sampled_from([(), (2,), (3, 6), (4,)]),
    send=st.just(SendWhen.WAIT),
    max_delay=st.sampled_from([0.0, 0.5, 1.0]),
)


@given(settings=FORMS, events=EVENTS, workers=st.integers(1, 2))
def test_batches_are_those_of_form_batch(
    settings: BatchSettings, events: list[tuple[str, Any, int]], workers: int
) -> None:
    """A list, a clock and ``form_batch`` alone say who is in which batch, and when it leaves."""
    with no_threads_left():
        fixture = BatcherFixture(settings, models=workers)
        expected = Expected(settings, workers)
        for kind, value, width in events:
            if kind == "ask":
                request = fixture.ask(value, width=width)
                expected.add(BatchJob(request.call, value or 1, width, fixture.clock.monotonic()))
            elif kind == "pass":
                fixture.advance(value)
                expected.advance(value)
            elif fixture.running():
                fixture.finish(index=value % len(fixture.running()))
                expected.end_run()
            assert [sorted(run.ids) for run in fixture.runs] == [ids for ids, _ in expected.batches]
            assert len(fixture.running()) == expected.running
        fixture.close()


class Expected:
    """One queue in front of some workers, with nothing that wakes or sleeps."""

    def __init__(self, settings: BatchSettings, workers: int) -> None:
        self.batches: list[tuple[list[int], float]] = []
        self.running = 0
        self._settings = settings
        self._workers = workers
        self._queue: list[BatchJob] = []
        self._now = 0.0

    def add(self, job: BatchJob) -> None:
        self._queue.append(job)
        self._send()

    def end_run(self) -> None:
        self.running -= 1
        self._send()

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self.running < self._workers and (due := self._decide().wait_until) <= end:
            self._now = due
            self._send()
        self._now = end

    def _decide(self) -> Any:
        return form_batch(self._queue, self._now, self._settings)

    def _send(self) -> None:
        while self.running < self._workers and (count := self._decide().take):
            batch, self._queue = self._queue[:count], self._queue[count:]
            ids = sorted(int(number) for job in batch for number in job.call.inputs["id"])
            self.batches.append((ids, self._now))
            self.running += 1
