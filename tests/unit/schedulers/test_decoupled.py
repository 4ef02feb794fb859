"""Models with several answers to a request: order, ends, refusals, and callers that read slowly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.schedulers.requests import PATIENCE, Request
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.model import Model
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import Reason, StatusCode, invalid_argument
from tfs_lite.schedulers.decoupled import DecoupledServable

SIGNATURE = Signature(
    (TensorSpec("n", DataType.INT64, (SymbolicDim("b"),)),), (TensorSpec("y", DataType.INT64, (SymbolicDim("b"),)),)
)


class Counting(Model):
    """Counts up to ``n``; below 0 it fails after so many answers. ``go`` holds it up before each."""

    platform = "counting"
    signatures = {DEFAULT_SIGNATURE: SIGNATURE}  # noqa: RUF012

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.given = 0
        self.closed = False

    def run(self, signature, inputs, outputs):
        raise AssertionError("it has parts")

    def parts(self, signature, inputs, outputs):
        wanted = int(inputs["n"][0])
        for number in range(abs(wanted)):
            self.go.wait(PATIENCE)
            self.given += 1
            yield {"y": np.array([number])}
        if wanted < 0:
            raise invalid_argument("no more of these")

    def close(self) -> None:
        self.closed = True


def request_of(n: int, deadline: float | None = None, takes_parts: bool = True) -> Request:
    return Request({"n": np.array([n])}, (), deadline, takes_parts=takes_parts)


def submitted(servable: DecoupledServable, *arguments: Any, **rest: Any) -> Request:
    request = request_of(*arguments, **rest)
    servable.submit(request.call)
    return request


def numbers(request: Request) -> list[int]:
    """Those of its parts."""
    return [int(part["y"][0]) for part in request.parts]


@pytest.fixture
def clock() -> Iterator[SystemClock]:
    found = SystemClock()
    yield found
    found.close()


@pytest.fixture
def model() -> Counting:
    return Counting()


@pytest.fixture
def servable(model: Counting, clock: SystemClock) -> Iterator[DecoupledServable]:
    found = DecoupledServable([model], ServableId("m", 1), clock=clock, max_queued_calls=2)
    yield found
    model.go.set()
    found.close()
    assert model.closed


@pytest.mark.parametrize("n", [0, 1, 5])
def test_every_answer_comes_in_order_and_then_the_end(servable, n):
    request = submitted(servable, n)
    assert request.code is StatusCode.OK
    assert (numbers(request), request.answer, request.call.admitted) == (list(range(n)), {}, True)


class Preparing(Counting):
    has_item_steps = True


def test_model_with_steps_for_items_is_refused_and_not_served_without_them(clock):
    model = Preparing()
    message = refusal(DecoupledServable, [model], ServableId("m", 1), clock=clock, code=StatusCode.INVALID_ARGUMENT)
    assert "preprocess" in message
    assert not model.closed


def test_failure_after_some_answers_is_the_end(servable):
    request = submitted(servable, -3)
    assert request.code is StatusCode.INVALID_ARGUMENT
    assert numbers(request) == [0, 1, 2]
    after = submitted(servable, 1)
    assert after.code is StatusCode.OK


def test_caller_that_takes_one_answer_is_refused(servable):
    request = submitted(servable, 1, takes_parts=False)
    assert request.code is StatusCode.UNIMPLEMENTED
    assert not request.call.admitted


def test_cancelled_call_that_runs_gets_no_more_answers(servable, model):
    request, proceed = request_of(1000), threading.Event()
    take = request.call.on_part

    def hold(outputs) -> None:
        take(outputs)
        assert proceed.wait(PATIENCE)

    request.call.on_part = hold
    servable.submit(request.call)
    assert request.part_came.wait(PATIENCE)
    servable.cancel(request.call)
    proceed.set()
    assert request.code is StatusCode.CANCELLED
    assert numbers(request) == [0]
    assert model.given == 2


def test_waiting_call_is_cancelled_at_once_and_a_full_queue_refuses(servable, model):
    model.go.clear()
    running = submitted(servable, 1)
    waiting = []
    while len(waiting) < 2:
        request = submitted(servable, 1)
        if request.call.admitted:
            waiting.append(request)
    while servable.pending < 2:
        waiting.append(request_of(1))
        servable.submit(waiting[-1].call)
    over = submitted(servable, 1)
    assert over.status.reason is Reason.QUEUE_FULL
    assert "most allowed" in over.message
    servable.cancel(waiting[-1].call)
    assert waiting[-1].code is StatusCode.CANCELLED
    model.go.set()
    assert [request.code for request in (running, *waiting[:-1])] == [StatusCode.OK] * len(waiting)


def test_deadline_ends_a_call_between_two_answers(servable, clock):
    request = submitted(servable, 10**9, deadline=clock.monotonic() + 0.05)
    assert request.code is StatusCode.DEADLINE_EXCEEDED
    expired = submitted(servable, 1, deadline=clock.monotonic() - 1)
    assert expired.code is StatusCode.DEADLINE_EXCEEDED
    assert not expired.call.admitted


def test_closing_answers_what_waits(model, clock):
    servable = DecoupledServable([model], ServableId("m", 1), clock=clock)
    model.go.clear()
    running, waiting = request_of(1), request_of(1)
    running.call.on_part = lambda outputs: None
    servable.submit(running.call)
    servable.submit(waiting.call)
    closing = threading.Thread(target=servable.close)
    closing.start()
    assert waiting.code is StatusCode.UNAVAILABLE
    model.go.set()
    assert running.code in (StatusCode.OK, StatusCode.UNAVAILABLE)
    closing.join(PATIENCE)
    late = submitted(servable, 1)
    assert late.code is StatusCode.UNAVAILABLE
