"""A call on its way: who may answer it, and what becomes of its texts, whatever comes in between."""

from __future__ import annotations

import pytest

from tfs_lite.core.generation import Finish, Generation, GenerationCall, Piece, Usage
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.generation.generation_task import GenerationTask
from tfs_lite.schedulers.generation.text import Text

BROKEN = Status(StatusCode.INTERNAL, "broken")
DROPPED = Status(StatusCode.CANCELLED, "dropped")


def text(index: int) -> Text:
    return Text(Generation([1], 2), [1], 2, 0, None, index, lambda *_: None)


def last(index: int) -> Piece:
    return Piece(index, (1,), finish=Finish.LENGTH, usage=Usage(1, 1))


@pytest.fixture
def task() -> GenerationTask:
    return GenerationTask(GenerationCall(DEFAULT_SIGNATURE, {}, (), None, lambda _: None), 0.0)


def test_call_dropped_before_its_tokens_are_there_never_enters(task):
    assert task.is_wanted
    assert task.cancel() == (True, ())
    assert not task.is_wanted
    assert not task.begin_submit([text(0)])
    assert not task.end()


def test_call_dropped_while_it_enters_is_cancelled_once_it_is_inside(task):
    texts = [text(0), text(1)]
    assert task.begin_submit(texts)
    assert task.cancel() == (False, ())
    assert task.end_submit() == texts
    assert task.end()


def test_call_dropped_inside_has_its_texts_cancelled(task):
    texts = [text(0)]
    task.begin_submit(texts)
    assert task.end_submit() == ()
    assert task.cancel() == (False, texts)


def test_call_that_ends_while_it_enters_stays_over(task):
    texts = [text(0)]
    task.begin_submit(texts)
    assert task.on_event(texts[0], last(0), 1.0).finished
    assert task.end()
    task.release()
    assert task.end_submit() == ()
    assert task.cancel() == (False, ())
    assert not task.end()


def test_first_failure_counts_and_drops_the_texts_that_go_on(task):
    texts = [text(index) for index in range(3)]
    task.begin_submit(texts)
    assert task.on_event(texts[0], last(0), None) == (True, [], False)
    assert task.on_event(texts[1], BROKEN, None) == (False, [texts[2]], False)
    assert task.on_event(texts[2], Piece(2, (1,)), None) == (False, [], False)
    assert task.on_event(texts[2], DROPPED, None) == (False, [], True)
    assert task.failure == BROKEN


@pytest.mark.parametrize("order", [(0.0, 3.0), (3.0, 0.0), (None, 0.0), (0.0, None)], ids=str)
def test_call_begins_with_the_first_of_its_texts(task, order):
    texts = [text(index) for index in range(len(order))]
    task.begin_submit(texts)
    for each, started in zip(texts, order, strict=True):
        task.on_event(each, last(each.index), started)
    assert task.started == 0.0


def test_pieces_are_given_up_once(task):
    task.begin_submit([text(0), text(1)])
    task.add_piece(1, last(1))
    assert task.release() == [[], [last(1)]]
    assert task.release() == ()
