"""Who runs when, step by step, on the stage of the batcher's simulation: virtual time, one thread at a time."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.model import BatchReport
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.batching.forming import form_batch
from tfs_lite.schedulers.batching.job import Job
from tfs_lite.schedulers.batching.settings import ALONE, BatchSettings, SendWhen
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.schedulers.batcher_checker import Asked, BatcherChecker
from tfs_lite.testing.schedulers.batcher_models import GatedModel, Run, Verdict
from tfs_lite.testing.schedulers.interleaving import InterleavingScheduler, SteppedThread, Where, no_threads_left

GREEDY = BatchSettings(max_batch_size=4)
WAITING = BatchSettings(max_batch_size=8, send=SendWhen.WAIT, max_delay=1.0)


class Theatre:
    """A servable on a stage. ``ask`` submits a call at once; ``finish`` ends a run; all else settles by itself."""

    def __init__(
        self, settings: BatchSettings, models: int = 1, threads: int = 1, stepwise: bool = False, **rest: Any
    ) -> None:
        self.stage = InterleavingScheduler(VirtualClock(), stepwise)
        self.runs: list[Run] = []
        self.models = [GatedModel(self.stage, self.runs, threads) for _ in range(models)]
        self.servable = self.stage.perform(self.models, settings, threads=threads, **rest)
        self.referee = BatcherChecker(self.stage, settings, self.servable)
        self.clock = self.stage.clock
        self.stage.settle()

    def ask(
        self, rows: int = 1, signature: str = "a", width: int = 2, outputs: tuple[str, ...] = (), **rest: Any
    ) -> Asked:
        poisoned = rest.pop("poisoned", False)
        asked = self.referee.ask(signature, rows, width, outputs, poisoned, **{"deadline": None, **rest})
        self.referee.submit(asked)
        self.stage.settle()
        return asked

    def cancel(self, asked: Asked) -> None:
        self.referee.cancel(asked)
        self.stage.settle()

    def finish(self, verdict: Verdict = Verdict.FINE, index: int = 0) -> None:
        lane = self.stage.at(Where.IN_RUN)[index]
        next(model.under_way[lane] for model in self.models if lane in model.under_way).verdict = verdict
        self.referee.losses += verdict is Verdict.LOST
        self.stage.step(lane)
        self.stage.settle()

    def recover(self) -> None:
        self.stage.step(self.stage.at(Where.RECOVERING)[0])
        self.stage.settle()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.stage.settle()

    def sizes(self) -> list[int]:
        """Rows of every run so far."""
        return [len(run.ids) for run in self.runs]

    def close(self) -> None:
        self.stage.enter("closer", self.referee.close)
        self.stage.settle()
        while self.stage.at(Where.IN_RUN):
            self.finish()
        while self.stage.at(Where.RECOVERING):
            self.recover()
        self.referee.finish()
        self.stage.check()


Make = Callable[..., Theatre]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Theatre] = []

    def theatre(*arguments: Any, **rest: Any) -> Theatre:
        made.append(Theatre(*arguments, **rest))
        return made[-1]

    with no_threads_left():
        yield theatre
        for each in made:
            if not each.referee.closing:
                each.close()


def code(asked: Asked) -> StatusCode | None:
    """The status of the answer; None: it was rows."""
    (answer,) = asked.answers
    return answer.code if isinstance(answer, Status) else None


# Who runs with whom.


def test_calls_that_come_during_a_run_share_the_next_one(make: Make) -> None:
    theatre = make(GREEDY)
    calls = [theatre.ask(rows) for rows in (1, 2, 1, 1)]
    theatre.finish()
    assert theatre.sizes() == [1, 4]
    theatre.finish()
    assert [code(asked) for asked in calls] == [None] * 4


def test_calls_of_different_widths_and_signatures_run_apart(make: Make) -> None:
    theatre = make(GREEDY)
    theatre.ask()
    for width, signature in ((2, "a"), (3, "a"), (2, "b"), (2, "a")):
        theatre.ask(width=width, signature=signature)
    for _ in range(5):
        theatre.finish()
    assert sorted((run.signature, run.width) for run in theatre.runs) == [("a", 2)] * 3 + [("a", 3), ("b", 2)]


def test_batch_that_waits_leaves_when_its_oldest_call_has_waited_long_enough(make: Make) -> None:
    theatre = make(WAITING)
    theatre.ask()
    theatre.advance(0.75)
    theatre.ask(2)
    assert theatre.runs == []
    theatre.advance(0.25)
    assert theatre.sizes() == [3]


def test_without_batching_every_call_runs_alone_and_as_it_came(make: Make) -> None:
    theatre = make(ALONE)
    calls = [theatre.ask(rows) for rows in (5, 0, 3)]
    for _ in calls:
        theatre.finish()
    assert theatre.sizes() == [5, 0, 3]
    assert [code(asked) for asked in calls] == [None] * 3


def test_two_models_serve_side_by_side(make: Make) -> None:
    theatre = make(GREEDY, models=2)
    first, second = theatre.ask(), theatre.ask()
    assert len(theatre.stage.at(Where.IN_RUN)) == 2
    theatre.finish(index=1)
    assert (first.answers, code(second)) == ([], None)


# What is due is never left lying about while a lane is idle.


def test_wait_of_one_signature_is_watched_while_a_lane_runs_another(make: Make) -> None:
    theatre = make(WAITING, models=2)
    theatre.ask(signature="a")
    theatre.ask(8, signature="b")
    theatre.advance(1.0)
    assert [run.signature for run in theatre.runs] == ["b", "a"]


def test_call_runs_after_a_lost_worker_took_a_batch_that_waited(make: Make) -> None:
    theatre = make(WAITING)
    waiting = theatre.ask(signature="a")
    theatre.ask(8, signature="b")
    theatre.finish(Verdict.LOST)
    assert code(waiting) is StatusCode.UNAVAILABLE
    theatre.recover()
    theatre.ask(signature="a")
    theatre.advance(1.0)
    assert [run.signature for run in theatre.runs] == ["b", "a"]


def test_cancelling_a_call_may_leave_a_batch_of_a_preferred_size(make: Make) -> None:
    theatre = make(BatchSettings(max_batch_size=8, preferred=(4, 8), send=SendWhen.WAIT, max_delay=1.0))
    theatre.ask(3)
    between = theatre.ask(2)
    theatre.ask(1)
    assert theatre.runs == []
    theatre.cancel(between)
    assert theatre.sizes() == [4]


def test_call_with_another_key_closes_a_batch_also_after_one_like_it_was_cancelled(make: Make) -> None:
    theatre = make(WAITING)
    theatre.ask(8)
    theatre.ask(width=2)
    theatre.cancel(theatre.ask(width=3))
    theatre.finish()
    assert theatre.sizes() == [8]
    theatre.ask(width=3)
    assert theatre.sizes() == [8, 1]


@pytest.mark.parametrize("moves", range(4))
def test_lane_that_wakes_by_itself_is_rung_at_most_once(make: Make, moves: int) -> None:
    """Its moment comes; ``moves`` steps later a caller takes it for idle, the lane finds nothing due, and the next
    caller takes it for idle as well before the first has rung."""
    theatre = make(BatchSettings(max_batch_size=8, send=SendWhen.WAIT, max_delay=1.0, priority_levels=2), stepwise=True)
    stage, referee = theatre.stage, theatre.referee
    (lane,) = stage.lanes
    theatre.ask()
    lane._wake()  # a little too early, as timers may
    _step(stage, lane, moves)
    callers = [
        stage.enter("caller", partial(referee.submit, referee.ask("a", 1, 2, (), False, deadline=None)))
        for _ in range(2)
    ]
    _step(stage, callers[0], 2)  # it has the lane, and is about to ring
    _step(stage, lane, 4)
    _step(stage, callers[1], 3)
    _step(stage, callers[0], 1)
    stage.settle()
    theatre.advance(1.0)
    assert theatre.sizes() == [3]


def _step(stage: InterleavingScheduler, actor: SteppedThread, moves: int) -> None:
    for _ in range(moves):
        if actor in stage.ready:
            stage.step(actor)


# Answers.


def test_callback_that_raises_holds_nobody_up_although_answers_are_in_order(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    theatre = make(BatchSettings(max_batch_size=4, preserve_ordering=True))
    theatre.ask()
    bad = theatre.referee.ask("a", 1, 2, (), False, deadline=None)
    answered = bad.call.on_done

    def break_contract(answer: Any) -> None:
        answered(answer)
        raise RuntimeError("a caller's mistake")

    bad.call.on_done = break_contract
    theatre.referee.submit(bad)
    after = theatre.ask()
    with caplog.at_level(logging.ERROR):
        theatre.finish()
        theatre.finish()
    assert "on_done must not raise" in caplog.text
    assert (code(bad), code(after)) == (None, None)


def test_calls_that_fail_alone_are_the_only_ones_that_fail(make: Make) -> None:
    theatre = make(BatchSettings(max_batch_size=8))
    theatre.ask()
    calls = [theatre.ask(poisoned=index == 2) for index in range(5)]
    while theatre.stage.at(Where.IN_RUN):
        theatre.finish()
    assert [code(asked) for asked in calls] == [None, None, StatusCode.INTERNAL, None, None]


def test_lost_worker_takes_its_batch_and_what_waits_with_it(make: Make) -> None:
    theatre = make(GREEDY)
    running, waiting = theatre.ask(), theatre.ask()
    theatre.finish(Verdict.LOST)
    refused = theatre.ask()
    assert [code(asked) for asked in (running, waiting, refused)] == [StatusCode.UNAVAILABLE] * 3
    theatre.recover()
    later = theatre.ask()
    theatre.finish()
    assert code(later) is None


def test_one_lost_worker_of_two_leaves_the_queue_to_the_other(make: Make) -> None:
    theatre = make(GREEDY, models=2)
    theatre.ask(), theatre.ask()
    waiting = theatre.ask()
    theatre.finish(Verdict.LOST)
    theatre.finish()
    theatre.finish()
    assert code(waiting) is None


def test_deadline_ends_the_wait_and_not_the_run(make: Make) -> None:
    theatre = make(GREEDY)
    running, waiting = theatre.ask(deadline=0.5), theatre.ask(deadline=0.5)
    theatre.advance(0.5)
    assert (running.answers, code(waiting)) == ([], StatusCode.DEADLINE_EXCEEDED)
    theatre.finish()
    assert code(running) is None


def test_call_that_comes_with_a_deadline_that_has_passed_is_refused(make: Make) -> None:
    theatre = make(GREEDY)
    assert code(theatre.ask(deadline=0.0)) is StatusCode.DEADLINE_EXCEEDED
    assert theatre.runs == []


def test_cancelled_call_leaves_the_queue_and_its_neighbours_run(make: Make) -> None:
    theatre = make(GREEDY)
    theatre.ask()
    gone, stays = theatre.ask(), theatre.ask()
    theatre.cancel(gone)
    theatre.finish()
    theatre.finish()
    assert (code(gone), code(stays), theatre.sizes()) == (StatusCode.CANCELLED, None, [1, 1])


def test_closing_answers_what_waits_and_lets_runs_finish(make: Make) -> None:
    theatre = make(GREEDY)
    running, waiting = theatre.ask(), theatre.ask()
    theatre.stage.enter("closer", theatre.referee.close)
    theatre.stage.settle()
    assert (running.answers, code(waiting)) == ([], StatusCode.UNAVAILABLE)
    assert theatre.models[0].closed == 0
    late = theatre.ask()
    theatre.finish()
    theatre.referee.finish()
    assert (code(running), code(late)) == (None, StatusCode.UNAVAILABLE)


def test_every_run_is_reported_with_its_rows_and_waits(make: Make) -> None:
    reports: list[BatchReport] = []
    theatre = make(BatchSettings(max_batch_size=4, allowed_sizes=(2, 4)), on_batch=reports.append)
    theatre.ask()
    theatre.ask(2)
    theatre.advance(0.5)
    theatre.ask()
    theatre.finish()
    theatre.advance(0.25)
    theatre.finish()
    first, second = reports
    assert (first.rows, first.padding, first.run_seconds, first.queue_seconds) == (1, 1, 0.5, (0.0,))
    assert (second.rows, second.padding, second.run_seconds, second.queue_seconds) == (3, 1, 0.25, (0.5, 0.0))


def test_idle_servable_holds_nothing_of_its_last_calls(make: Make) -> None:
    theatre = make(BatchSettings(max_batch_size=4, allowed_sizes=(4,), preserve_ordering=True))
    arrays = []
    for rows in (1, 2, 1):
        asked = theatre.ask(rows)
        arrays.append(weakref.ref(asked.call.inputs["x"]))
    while theatre.stage.at(Where.IN_RUN):
        theatre.finish()
    del asked
    theatre.referee.asked.clear()
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


@given(settings=FORMS, events=EVENTS, lanes=st.integers(1, 2))
def test_batches_are_those_of_form_batch(
    settings: BatchSettings, events: list[tuple[str, Any, int]], lanes: int
) -> None:
    """A list, a clock and ``form_batch`` alone say who is in which batch, and when it leaves."""
    with no_threads_left():
        theatre = Theatre(settings, models=lanes)
        expected = Expected(settings, lanes)
        for kind, value, width in events:
            if kind == "ask":
                asked = theatre.ask(value, width=width)
                expected.add(Job(asked.call, value or 1, width, theatre.clock.monotonic()))
            elif kind == "pass":
                theatre.advance(value)
                expected.advance(value)
            elif theatre.stage.at(Where.IN_RUN):
                theatre.finish(index=value % len(theatre.stage.at(Where.IN_RUN)))
                expected.end_run()
            assert [sorted(run.ids) for run in theatre.runs] == [ids for ids, _ in expected.batches]
            assert len(theatre.stage.at(Where.IN_RUN)) == expected.running
        theatre.close()


class Expected:
    """One queue in front of so many lanes, with nothing that wakes or sleeps."""

    def __init__(self, settings: BatchSettings, lanes: int) -> None:
        self.batches: list[tuple[list[int], float]] = []
        self.running = 0
        self._settings = settings
        self._lanes = lanes
        self._queue: list[Job] = []
        self._now = 0.0

    def add(self, job: Job) -> None:
        self._queue.append(job)
        self._send()

    def end_run(self) -> None:
        self.running -= 1
        self._send()

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self.running < self._lanes and (due := self._decide().wait_until) <= end:
            self._now = due
            self._send()
        self._now = end

    def _decide(self) -> Any:
        return form_batch(self._queue, self._now, self._settings)

    def _send(self) -> None:
        while self.running < self._lanes and (count := self._decide().take):
            batch, self._queue = self._queue[:count], self._queue[count:]
            ids = sorted(int(number) for job in batch for number in job.call.inputs["id"])
            self.batches.append((ids, self._now))
            self.running += 1
