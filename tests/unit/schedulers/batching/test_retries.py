"""Which calls of a lost batch are queued again, how often, and when none are."""

from __future__ import annotations

from math import inf

import pytest

from tests.support.schedulers.batcher_checker import CheckedCall
from tests.support.schedulers.batcher_fixture import MakeBatcher
from tests.support.schedulers.batcher_models import Verdict
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.model import PredictCall, SequenceFlags, WorkerBusy, WorkerLost
from tfs_lite.core.status import StatusCode
from tfs_lite.schedulers.batching.batcher import PATIENCE
from tfs_lite.schedulers.batching.queue import BatchJob
from tfs_lite.schedulers.batching.retries import POISON_SECONDS, Loss, Retries
from tfs_lite.schedulers.batching.settings import BatchSettings, QueuePolicy

LOST = WorkerLost("it has died")
UNREAD = WorkerLost("it has died", unread=True)
BUSY = WorkerBusy("busy")
GREEDY = BatchSettings(max_batch_size=8)
ALONE = BatchSettings()


def job(expires: float = inf, sequence: SequenceFlags | None = None, lost: bool = False) -> BatchJob:
    call = PredictCall("", {}, (), None, ignore, sequence=sequence)
    return BatchJob(call, 1, None, 0.0, expires=expires, lost=lost)


def code(request: CheckedCall) -> StatusCode | None:
    """None: it was answered with rows."""
    (answer,) = request.answers
    return getattr(answer, "code", None)


def test_calls_of_a_lost_batch_run_again_once_in_their_order() -> None:
    retries, jobs = Retries(), [job(), job()]
    assert retries.choose(Loss(LOST, jobs), 0.0) == jobs
    assert retries.choose(Loss(LOST, jobs), 1.0) == []


def test_call_whose_deadline_has_passed_or_that_belongs_to_a_sequence_does_not_run_again() -> None:
    late, sequence, safe = job(expires=5.0), job(sequence=SequenceFlags(1)), job(expires=5.1)
    assert Retries().choose(Loss(LOST, [late, sequence, safe]), 5.0) == [safe]


def test_model_whose_runs_have_effects_is_not_run_again_for_what_may_have_run() -> None:
    inside, behind = [job()], [job()]
    assert Retries(allowed=False).choose(Loss(LOST, inside, behind), 0.0) == behind


@pytest.mark.parametrize("error", [UNREAD, BUSY])
def test_batch_that_nobody_has_read_is_always_queued_again(error: WorkerLost | WorkerBusy) -> None:
    retries, jobs = Retries(allowed=False), [job(lost=True), job(sequence=SequenceFlags(1))]
    for _ in range(5):
        assert retries.choose(Loss(error, jobs), 0.0) == jobs


def test_two_batches_that_are_lost_twice_within_a_minute_switch_retries_off_for_a_minute() -> None:
    retries = Retries()
    retries.choose(Loss(LOST, [job(lost=True)]), 0.0)
    fresh = job()
    assert retries.choose(Loss(LOST, [job(lost=True), fresh]), POISON_SECONDS) == []
    for now in (POISON_SECONDS, 2 * POISON_SECONDS - 1):
        assert retries.choose(Loss(LOST, [job()]), now) == []
        assert retries.choose(Loss(UNREAD, [fresh]), now) == [fresh]
    assert retries.choose(Loss(LOST, [fresh]), 2 * POISON_SECONDS) == [fresh]


def test_batches_that_are_lost_twice_now_and_then_do_not_switch_retries_off() -> None:
    retries = Retries()
    for now in (0.0, POISON_SECONDS + 1, 2 * POISON_SECONDS + 2):
        fresh = job()
        assert retries.choose(Loss(LOST, [job(lost=True), fresh]), now) == [fresh]


# In a servable.


def test_lost_batch_runs_on_another_worker_before_what_came_later(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(ALONE, models=2, retries=True)
    lost, other = fixture.ask(), fixture.ask()
    waiting = fixture.ask()
    fixture.finish(Verdict.LOST)
    fixture.finish()
    assert code(other) is None
    assert fixture.runs[-1].ids == tuple(lost.ids)
    fixture.finish()
    fixture.finish()
    assert (code(lost), code(waiting)) == (None, None)
    fixture.recover()


def test_call_that_ends_every_worker_costs_two_and_no_call_behind_it(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(ALONE, models=3, retries=True)
    deadly = fixture.ask(deadly=True)
    fixture.finish()
    fixture.finish()
    assert code(deadly) is StatusCode.UNAVAILABLE
    for _ in range(3):
        fine = fixture.ask()
        fixture.finish()
        assert code(fine) is None
    fixture.recover()
    fixture.recover()


def test_calls_wait_for_the_only_worker_as_long_as_patience_lasts(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(ALONE, retries=True)
    running, waiting = fixture.ask(), fixture.ask()
    fixture.finish(Verdict.LOST)
    fixture.advance(PATIENCE / 2)
    later = fixture.ask()
    fixture.recover()
    for _ in range(3):
        fixture.finish()
    assert [code(request) for request in (running, waiting, later)] == [None] * 3


def test_nobody_waits_longer_than_patience_for_a_lost_worker(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(ALONE, retries=True)
    running, waiting = fixture.ask(), fixture.ask()
    fixture.finish(Verdict.LOST)
    fixture.advance(PATIENCE)
    at_once = fixture.ask()
    assert [code(request) for request in (running, waiting, at_once)] == [StatusCode.UNAVAILABLE] * 3
    fixture.recover()
    later = fixture.ask()
    fixture.finish()
    assert code(later) is None


def test_busy_worker_leaves_its_batch_to_another_one(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(ALONE, models=2, retries=True)
    request = fixture.ask()
    for _ in range(3):
        fixture.finish(Verdict.BUSY)
    fixture.finish()
    assert code(request) is None


def test_call_that_was_queued_again_can_be_cancelled_and_can_be_late(make_batcher: MakeBatcher) -> None:
    fixture = make_batcher(ALONE, models=2, retries=True)
    cancelled, _ = fixture.ask(), fixture.ask()
    fixture.finish(Verdict.LOST)
    fixture.cancel(cancelled)
    assert code(cancelled) is StatusCode.CANCELLED
    fixture.recover()
    late = fixture.ask(deadline=2.0)
    fixture.finish(Verdict.LOST)
    fixture.advance(2.0)
    assert code(late) is StatusCode.DEADLINE_EXCEEDED
    fixture.finish()
    fixture.recover()


def test_timeout_of_the_queue_counts_until_the_first_run_only(make_batcher: MakeBatcher) -> None:
    settings = BatchSettings(default_policy=QueuePolicy(default_timeout=1.0))
    fixture = make_batcher(settings, models=2, retries=True)
    request, other = fixture.ask(), fixture.ask()
    fixture.advance(0.5)
    fixture.finish(Verdict.LOST)
    fixture.advance(3.0)
    fixture.finish()
    fixture.finish()
    assert (code(request), code(other)) == (None, None)
    fixture.recover()
