"""A call that is too large for one run comes back whole, once."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.model import PredictCall
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.batching.splitting import SplitCall, split

LOST = Status(StatusCode.UNAVAILABLE, "lost")
CANCELLED = Status(StatusCode.CANCELLED, "cancelled")


class Caller:
    """A call of so many rows, and what it is answered."""

    def __init__(self, rows: int) -> None:
        self.answers: list[Any] = []
        x, text = np.arange(rows * 2).reshape(rows, 2), np.array([b"%d\x00" % row for row in range(rows)], object)
        inputs = {"x": x, "text": text}
        self.call = PredictCall("s", inputs, ("y", "text"), 12.5, self.answers.append, priority=2, timeout=0.5)

    @property
    def answer(self) -> Any:
        (answer,) = self.answers
        return answer


def ignore(calls: Sequence[PredictCall]) -> None:
    """Lets the other splits run."""


def split_call(caller: Caller, room: int, largest: int) -> SplitCall:
    return SplitCall(caller.call, split(caller.call, len(caller.call.inputs["x"]), room, largest), ignore)


def answer(part: PredictCall, queue_seconds: float = 0.0, run_seconds: float = 0.0) -> None:
    part.queue_seconds, part.run_seconds = queue_seconds, run_seconds
    inputs: Mapping[str, Any] = part.inputs
    part.on_done({"y": inputs["x"] + 1, "text": inputs["text"]})


@given(
    st.integers(0, 40).flatmap(
        lambda rows: st.tuples(st.just(rows), st.integers(0, 45), st.integers(1, 15), st.randoms(use_true_random=False))
    )
)
def test_splits_answered_in_any_order_are_the_whole_call(found: tuple[int, int, int, Any]) -> None:
    rows, room, largest, random = found
    caller = Caller(rows)
    splits = split(caller.call, rows, room, largest)
    assert sum(part.rows for part in splits) == rows
    assert all(part.rows <= largest for part in splits)
    assert all(part.rows == largest for part in splits[1:-1])
    assert splits[0].rows == min(room or largest, largest, rows)
    calls = list(SplitCall(caller.call, splits, ignore).unanswered())
    assert [len(call.inputs["x"]) for call in calls] == [part.rows for part in splits]
    random.shuffle(calls)
    for call in calls:
        assert not caller.answers
        answer(call)
    assert list(caller.answer) == ["y", "text"]
    assert caller.answer["y"].tolist() == (np.arange(rows * 2).reshape(rows, 2) + 1).tolist()
    assert caller.answer["text"].tolist() == [b"%d\x00" % row for row in range(rows)]


@pytest.mark.parametrize(
    ("rows", "room", "sizes"),
    [
        pytest.param(20, 3, [3, 8, 8, 1], id="the first one fills the room that is left"),
        pytest.param(20, 0, [8, 8, 4], id="without room each is as large as a run"),
        pytest.param(5, 6, [5], id="a call that fits is not split"),
    ],
)
def test_call_is_split_into_runs(rows: int, room: int, sizes: list[int]) -> None:
    caller = Caller(rows)
    splits = split(caller.call, rows, room, 8)
    assert [each.rows for each in splits] == sizes
    assert (splits[0].inputs is caller.call.inputs) is (len(sizes) == 1)


def test_splits_are_views_and_wait_on_the_terms_of_the_call() -> None:
    caller = Caller(5)
    whole = split_call(caller, 2, 4)
    for part in whole.unanswered():
        assert np.shares_memory(part.inputs["x"], caller.call.inputs["x"])
        assert (part.signature, part.outputs, part.deadline) == ("s", ("y", "text"), 12.5)
        assert (part.priority, part.timeout) == (2, 0.5)


def test_the_wait_is_that_of_the_first_split_and_run_times_add_up() -> None:
    caller = Caller(6)
    first, second, third = split_call(caller, 2, 2).unanswered()
    answer(third, 9.0, 0.5)
    answer(first, 1.0, 0.25)
    answer(second, 5.0, 0.125)
    assert (caller.call.queue_seconds, caller.call.run_seconds) == (1.0, 0.875)


def test_the_first_failure_answers_the_call_and_the_rest_is_abandoned() -> None:
    caller, abandoned = Caller(8), list[PredictCall]()

    def abandon(calls: Sequence[PredictCall]) -> None:
        assert not caller.answers
        abandoned.extend(calls)

    whole = SplitCall(caller.call, split(caller.call, 8, 2, 2), abandon)
    first, second, third, fourth = whole.unanswered()
    answer(second)
    third.on_done(LOST)
    assert caller.answer is LOST
    assert abandoned == [first, fourth]
    assert whole.unanswered() == (first, fourth)
    first.on_done(CANCELLED)
    answer(fourth)
    assert caller.answer is LOST
    assert whole.unanswered() == ()


def test_a_failure_of_the_last_split_abandons_nothing() -> None:
    caller, abandoned = Caller(4), list[Sequence[PredictCall]]()
    first, second = SplitCall(caller.call, split(caller.call, 4, 2, 2), abandoned.append).unanswered()
    answer(first)
    second.on_done(LOST)
    assert caller.answer is LOST
    assert abandoned == []


def test_abandoned_splits_may_be_answered_while_they_are_abandoned() -> None:
    caller = Caller(8)

    def cancel(calls: Sequence[PredictCall]) -> None:
        for call in calls:
            call.on_done(CANCELLED)

    whole = SplitCall(caller.call, split(caller.call, 8, 2, 2), cancel)
    whole.unanswered()[0].on_done(LOST)
    assert caller.answer is LOST
    assert whole.unanswered() == ()


def test_a_split_that_is_answered_twice_counts_once() -> None:
    caller = Caller(4)
    first, second = split_call(caller, 2, 2).unanswered()
    answer(first)
    answer(first)
    assert not caller.answers
    answer(second)
    answer(second)
    assert caller.answer["y"].shape == (4, 2)


@pytest.mark.parametrize(
    ("results", "marker"),
    [
        ([np.ones((2, 3)), np.ones((2, 4))], "differ in name, shape or type: y [2, 3]; y [2, 4]"),
        ([np.ones((2, 3)), np.ones((1, 3))], "0th dimension does not equal the sum of the 0th dimension sizes"),
        ([np.ones((2, 3)), np.float32(1)], "Batched output tensor has 0 dimensions"),
        ([np.ones((2, 3)), np.ones(2)], "differ in name, shape or type"),
        ([{"y": np.ones(2), "z": np.ones(2)}, np.ones(2)], "differ in name, shape or type"),
    ],
    ids=["widths", "rows", "a scalar", "ranks", "an output that one lacks"],
)
def test_answers_that_do_not_fit_together_fail_the_call(results: list[Any], marker: str) -> None:
    caller = Caller(4)
    for part, result in zip(split_call(caller, 2, 2).unanswered(), results, strict=True):
        part.on_done(result if isinstance(result, dict) else {"y": result})
    assert caller.answer.code is StatusCode.FAILED_PRECONDITION
    assert marker in caller.answer.message


@pytest.mark.parametrize("failing", [0, 1, 3], ids=["none fails", "one fails", "three fail"])
def test_splits_answered_at_the_same_time_answer_the_call_once(failing: int) -> None:
    with ThreadPoolExecutor(8) as threads:
        for _ in range(50):
            caller, barrier = Caller(8), threading.Barrier(8)
            splits = split_call(caller, 1, 1).unanswered()

            def finish(index: int, barrier: Any = barrier, splits: Any = splits) -> None:
                barrier.wait(10)
                if index < failing:
                    splits[index].on_done(LOST)
                else:
                    answer(splits[index], run_seconds=1.0)

            list(threads.map(finish, range(8)))
            if failing:
                assert caller.answer is LOST
            else:
                assert caller.answer["y"].tolist() == (np.arange(16).reshape(8, 2) + 1).tolist()
                assert caller.call.run_seconds == 8.0


def test_nothing_is_kept_of_a_call_whose_splits_are_all_answered() -> None:
    caller = Caller(4)
    whole = split_call(caller, 2, 2)
    caller.call.ticket = whole
    first, second = whole.unanswered()
    kept = weakref.ref(caller.call.inputs["x"])
    gc.disable()
    try:
        answer(first)
        second.on_done(LOST)
        del whole, first, second, caller
        assert kept() is None
    finally:
        gc.enable()
