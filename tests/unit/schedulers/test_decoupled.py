"""Models with several answers to a request: order, ends, refusals, and callers that read slowly."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.model import Model, PredictCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import Status, StatusCode, invalid_argument
from tfs_lite.schedulers.decoupled import DecoupledServable

PATIENCE = 60
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


class Asked:
    """A call, and what came of it."""

    def __init__(self, n: int, deadline: float | None = None, takes_parts: bool = True) -> None:
        self.parts: list[int] = []
        self.ended = threading.Event()
        self.result: object = None
        self.first = threading.Event()
        self.call = PredictCall(DEFAULT_SIGNATURE, {"n": np.array([n])}, (), deadline, self._done)
        if takes_parts:
            self.call.on_part = self.take

    def take(self, outputs) -> None:
        self.parts.append(int(outputs["y"][0]))
        self.first.set()

    def _done(self, result) -> None:
        assert not self.ended.is_set()
        self.result = result
        self.ended.set()

    def code(self) -> StatusCode:
        assert self.ended.wait(PATIENCE)
        return self.result.code if isinstance(self.result, Status) else StatusCode.OK


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
    asked = Asked(n)
    servable.submit(asked.call)
    assert asked.code() is StatusCode.OK
    assert (asked.parts, asked.result, asked.call.admitted) == (list(range(n)), {}, True)


def test_failure_after_some_answers_is_the_end(servable):
    asked = Asked(-3)
    servable.submit(asked.call)
    assert asked.code() is StatusCode.INVALID_ARGUMENT
    assert asked.parts == [0, 1, 2]
    after = Asked(1)
    servable.submit(after.call)
    assert after.code() is StatusCode.OK


def test_caller_that_takes_one_answer_is_refused(servable):
    asked = Asked(1, takes_parts=False)
    servable.submit(asked.call)
    assert asked.code() is StatusCode.UNIMPLEMENTED
    assert not asked.call.admitted


def test_cancelled_call_that_runs_gets_no_more_answers(servable, model):
    asked, proceed = Asked(1000), threading.Event()
    take = asked.call.on_part

    def hold(outputs) -> None:
        take(outputs)
        assert proceed.wait(PATIENCE)

    asked.call.on_part = hold
    servable.submit(asked.call)
    assert asked.first.wait(PATIENCE)
    servable.cancel(asked.call)
    proceed.set()
    assert asked.code() is StatusCode.CANCELLED
    assert asked.parts == [0]
    assert model.given == 2


def test_waiting_call_is_cancelled_at_once_and_a_full_queue_refuses(servable, model):
    model.go.clear()
    running = Asked(1)
    servable.submit(running.call)
    waiting = []
    while len(waiting) < 2:
        asked = Asked(1)
        servable.submit(asked.call)
        if asked.call.admitted:
            waiting.append(asked)
    while servable.pending < 2:
        waiting.append(Asked(1))
        servable.submit(waiting[-1].call)
    over = Asked(1)
    servable.submit(over.call)
    assert over.code() is StatusCode.UNAVAILABLE
    assert "most allowed" in over.result.message
    servable.cancel(waiting[-1].call)
    assert waiting[-1].code() is StatusCode.CANCELLED
    model.go.set()
    assert [asked.code() for asked in (running, *waiting[:-1])] == [StatusCode.OK] * len(waiting)


def test_deadline_ends_a_call_between_two_answers(servable, clock):
    asked = Asked(10**9, deadline=clock.monotonic() + 0.05)
    servable.submit(asked.call)
    assert asked.code() is StatusCode.DEADLINE_EXCEEDED
    expired = Asked(1, deadline=clock.monotonic() - 1)
    servable.submit(expired.call)
    assert expired.code() is StatusCode.DEADLINE_EXCEEDED
    assert not expired.call.admitted


def test_closing_answers_what_waits(model, clock):
    servable = DecoupledServable([model], ServableId("m", 1), clock=clock)
    model.go.clear()
    running, waiting = Asked(1), Asked(1)
    running.call.on_part = lambda outputs: None
    servable.submit(running.call)
    servable.submit(waiting.call)
    closing = threading.Thread(target=servable.close)
    closing.start()
    assert waiting.code() is StatusCode.UNAVAILABLE
    model.go.set()
    assert running.code() in (StatusCode.OK, StatusCode.UNAVAILABLE)
    closing.join(PATIENCE)
    late = Asked(1)
    servable.submit(late.call)
    assert late.code() is StatusCode.UNAVAILABLE
