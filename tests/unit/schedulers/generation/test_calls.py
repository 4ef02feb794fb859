"""A call on its way: who may answer it, and what becomes of its texts, whatever comes in between."""

from __future__ import annotations

import pytest

from tfs_lite.core.generation import Finish, Generation, Piece, Usage
from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.generation.calls import GenerationTask
from tfs_lite.schedulers.generation.entries import Job

BROKEN = Status(StatusCode.INTERNAL, "broken")
DROPPED = Status(StatusCode.CANCELLED, "dropped")


def job(index: int) -> Job:
    return Job(Generation([1], 2), [1], 2, 0, None, index, lambda *_: None)


def last(index: int) -> Piece:
    return Piece(index, (1,), finish=Finish.LENGTH, usage=Usage(1, 1))


@pytest.fixture
def asked() -> GenerationTask:
    return GenerationTask(PredictCall(DEFAULT_SIGNATURE, {}, (), None, lambda _: None), 0.0)


def test_call_dropped_before_its_tokens_are_there_never_enters(asked):
    assert asked.is_wanted
    assert asked.drop() == (True, ())
    assert not asked.is_wanted
    assert not asked.enter([job(0)])
    assert not asked.end()


def test_call_dropped_while_it_enters_is_cancelled_once_it_is_inside(asked):
    jobs = [job(0), job(1)]
    assert asked.enter(jobs)
    assert asked.drop() == (False, ())
    assert asked.entered() == jobs
    assert asked.end()


def test_call_dropped_inside_has_its_texts_cancelled(asked):
    jobs = [job(0)]
    asked.enter(jobs)
    assert asked.entered() == ()
    assert asked.drop() == (False, jobs)


def test_call_that_ends_while_it_enters_stays_over(asked):
    jobs = [job(0)]
    asked.enter(jobs)
    assert asked.take(jobs[0], last(0), 1.0).over
    assert asked.end()
    asked.release()
    assert asked.entered() == ()
    assert asked.drop() == (False, ())
    assert not asked.end()


def test_first_failure_counts_and_drops_the_texts_that_go_on(asked):
    jobs = [job(index) for index in range(3)]
    asked.enter(jobs)
    assert asked.take(jobs[0], last(0), None) == (True, [], False)
    assert asked.take(jobs[1], BROKEN, None) == (False, [jobs[2]], False)
    assert asked.take(jobs[2], Piece(2, (1,)), None) == (False, [], False)
    assert asked.take(jobs[2], DROPPED, None) == (False, [], True)
    assert asked.failure == BROKEN


@pytest.mark.parametrize("order", [(0.0, 3.0), (3.0, 0.0), (None, 0.0), (0.0, None)], ids=str)
def test_call_begins_with_the_first_of_its_texts(asked, order):
    jobs = [job(index) for index in range(len(order))]
    asked.enter(jobs)
    for each, started in zip(jobs, order, strict=True):
        asked.take(each, last(each.index), started)
    assert asked.started == 0.0


def test_pieces_are_given_up_once(asked):
    asked.enter([job(0), job(1)])
    asked.keep(1, last(1))
    assert asked.release() == [[], [last(1)]]
    assert asked.release() == ()
