"""Answers come in the order of the calls, whenever they are given."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.model import PredictCall
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.batching.ordering import Order
from tfs_lite.schedulers.calls import Answer

PATIENCE = 30


class Kept:
    """An order, its calls, and what their callers got, in the order in which they got it."""

    def __init__(self) -> None:
        self.order = Order()
        self.got: list[tuple[int, Answer]] = []
        self.calls: dict[int, PredictCall] = {}

    def keep(self, number: int, then: Callable[[], None] = lambda: None) -> PredictCall:
        def on_done(answer: Answer) -> None:
            self.got.append((number, answer))
            then()

        call = self.calls[number] = PredictCall("", {}, (), None, on_done)
        self.order.keep(call)
        return call

    def answer(self, number: int) -> None:
        self.calls[number].on_done({"y": np.array(number)})

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.got]


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_answer_goes_through_at_once_when_no_call_is_before_it(kept: Kept) -> None:
    for number in range(3):
        kept.keep(number)
        kept.answer(number)
        assert kept.numbers == list(range(number + 1))


def test_answer_waits_for_those_before_it(kept: Kept) -> None:
    for number in range(4):
        kept.keep(number)
    refused = Status(StatusCode.CANCELLED, "the caller cancelled the request")
    kept.answer(2)
    kept.calls[1].on_done(refused)
    assert kept.got == []
    kept.answer(0)
    assert kept.got == [(0, {"y": np.array(0)}), (1, refused), (2, {"y": np.array(2)})]
    kept.answer(3)
    assert kept.numbers == [0, 1, 2, 3]


@given(st.permutations(range(8)), st.integers(0, 8))
def test_any_order_of_answers_becomes_that_of_the_calls(answers: list[int], late: int) -> None:
    kept = Kept()
    for number in range(late):
        kept.keep(number)
    waiting = list(answers)
    for number in [number for number in waiting if number < late]:
        kept.answer(number)
    for number in range(late, 8):
        kept.keep(number)
    for number in [number for number in waiting if number >= late]:
        kept.answer(number)
        assert kept.numbers == list(range(len(kept.numbers)))
    assert kept.numbers == list(range(8))


def test_caller_may_keep_and_answer_another_call_when_it_is_answered(kept: Kept) -> None:
    def again() -> None:
        kept.keep(2)
        kept.answer(2)
        assert kept.numbers == [0], "it is not answered within the answer of another"

    kept.keep(0, again)
    kept.keep(1)
    kept.answer(1)
    kept.answer(0)
    assert kept.numbers == [0, 1, 2]


def test_answers_of_many_threads_come_in_order_and_one_at_a_time() -> None:
    threads, each = 4, 500
    busy, overlapped = threading.Lock(), []
    kept = Kept()

    def alone() -> None:
        if not busy.acquire(blocking=False):
            overlapped.append(True)
        else:
            busy.release()

    for number in range(threads * each):
        kept.keep(number, alone)
    answering = [
        threading.Thread(target=lambda first=first: [kept.answer(n) for n in range(first, threads * each, threads)])
        for first in range(threads)
    ]
    for thread in answering:
        thread.start()
    for thread in answering:
        thread.join(PATIENCE)
    assert kept.numbers == list(range(threads * each))
    assert not overlapped


def test_caller_that_raises_does_not_hold_up_those_behind_it(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    def careless() -> None:
        raise RuntimeError("on_done must not raise")

    kept.keep(0, careless)
    for number in (1, 2):
        kept.keep(number)
    kept.answer(1)
    kept.answer(0)
    kept.answer(2)
    assert kept.numbers == [0, 1, 2]
    assert "a caller broke its contract" in caplog.text


def test_what_was_passed_on_is_not_held(kept: Kept) -> None:
    for number in range(100):
        kept.keep(number)
    for number in reversed(range(100)):
        kept.answer(number)
    assert len(kept.order._answers) == 0
