"""Steps for single items, before and after an inner servable."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.schedulers.requests import PATIENCE, Request
from tests.support.schedulers.sequence_models import Gate
from tfs_lite.core.model import FixedInstances, JudgesCalls, Model, PredictCall, Traits, WorkerLost
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode, invalid_argument
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.schedulers.items import ItemRule, ItemServable
from tfs_lite.testing.lifecycle.clock import VirtualClock

BATCH = SymbolicDim("batch", 4)
SIGNATURE = Signature((TensorSpec("x", DataType.FLOAT, (BATCH,)),), (TensorSpec("y", DataType.FLOAT, (BATCH,)),))


class StepModel(Model):
    """x -> [v: 10 x] -> w: v -> [y: w + 1, z: -w]; its steps have gates, and record what has passed them."""

    platform = "test"
    signatures: ClassVar = {DEFAULT_SIGNATURE: SIGNATURE}
    has_item_steps = True

    def __init__(self) -> None:
        self.before, self.after = Gate(), Gate()
        self.prepared: list[float] = []
        self.finished: list[float] = []
        self.error: BaseException | None = None

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        self.before.pass_through()
        x = np.asarray(inputs["x"])
        self.prepared.append(float(x[0]))
        if self.error is not None:
            raise self.error
        if (x < 0).any():
            raise invalid_argument("item 0 is negative")
        return {"v": x * 10}

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        self.after.pass_through()
        w = np.asarray(outputs["w"])
        self.finished.append(float(w[0]))
        return {"y": w + 1, "z": -w}


class HeldServable(FixedInstances, JudgesCalls):
    """Holds calls until ``run``, which answers the oldest; ``now`` answers at once."""

    traits = Traits("test")
    signatures: ClassVar = {DEFAULT_SIGNATURE: SIGNATURE}

    def __init__(self, now: bool = False) -> None:
        self.calls: list[PredictCall] = []
        self.arrived = threading.Semaphore(0)
        self.closed = False
        self._now = now
        self.models: tuple[Model, ...] = ()

    @property
    def pending(self) -> int:
        return len(self.calls)

    @property
    def pending_rows(self) -> int:
        return sum(np.asarray(call.inputs["v"]).shape[0] for call in self.calls)

    def submit(self, call: PredictCall) -> None:
        self.calls.append(call)
        if self._now:
            self.run()
        self.arrived.release()

    def cancel(self, call: PredictCall) -> None:
        if call in self.calls:
            self.calls.remove(call)
            call.on_done(Status(StatusCode.CANCELLED, "the inner servable let it go"))

    def run(self, status: Status | None = None) -> None:
        call = self.calls.pop(0)
        call.queue_seconds, call.run_seconds = 0.25, 0.5
        call.on_done(status or {"w": np.asarray(call.inputs["v"])})

    def close(self) -> None:
        self.closed = True
        while self.calls:
            self.run(Status(StatusCode.UNAVAILABLE, "the inner servable is closed"))

    def wait_arrived(self) -> None:
        assert self.arrived.acquire(timeout=PATIENCE)


def request_of(x: float, *arguments: Any, **more: Any) -> Request:
    return Request({"x": np.array([x], np.float32)}, *arguments, **more)


@pytest.fixture
def model() -> StepModel:
    return StepModel()


@pytest.fixture
def inner() -> HeldServable:
    return HeldServable()


@pytest.fixture
def serve(model):
    """Makes servables in front of an inner one, and closes them; no thread of theirs may be left."""
    made: list[ItemServable] = []

    def make(inner: HeldServable, **rest: object) -> ItemServable:
        made.append(ItemServable(inner, [model], "m-1", **rest))
        return made[-1]

    yield make
    model.before.open()
    model.after.open()
    for servable in made:
        servable.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("tfs-items")]


def submitted(servable: ItemServable, *args: Any, **rest: Any) -> Request:
    request = request_of(*args, **rest)
    servable.submit(request.call)
    return request


def test_steps_come_before_and_after_the_inner_servable(serve, inner):
    servable = serve(inner)
    answer = submitted(servable, 2.0, priority=3, timeout=7.0, deadline=1e12)
    inner.wait_arrived()
    (call,) = inner.calls
    assert (call.signature, call.outputs, call.deadline) == (DEFAULT_SIGNATURE, (), 1e12)
    assert (call.priority, call.timeout) == (3, 7.0)
    assert np.asarray(call.inputs["v"]).tolist() == [20.0]
    assert not answer.answers
    inner.run()
    assert answer.values == {"y": [21.0], "z": [-20.0]}
    assert (answer.call.queue_seconds, answer.call.run_seconds) == (0.25, 0.5)


def test_only_the_outputs_asked_for_come_back(serve):
    servable = serve(HeldServable(now=True))
    assert submitted(servable, 2.0, ("z",)).values == {"z": [-20.0]}
    assert list(submitted(servable, 2.0, ("z", "y")).values) == ["z", "y"]
    unknown = submitted(servable, 2.0, ("q",)).answer
    assert unknown == Status(StatusCode.INTERNAL, "model m version 1 did not return output q; it returned: y, z")


def test_it_shows_what_the_inner_servable_shows_and_counts_what_waits_anywhere(serve, inner, model):
    servable = serve(inner, threads=1)
    assert servable.traits == Traits("test", has_item_steps=True)
    assert servable.signatures is inner.signatures
    inside = submitted(servable, 1.0)
    inner.wait_arrived()
    assert (servable.pending, servable.pending_rows) == (1, 1)
    assert servable.models is inner.models
    model.before.shut()
    submitted(servable, 2.0)
    model.before.wait_for()
    submitted(servable, 3.0)
    assert (servable.pending, servable.pending_rows) == (2, 2)
    inner.run()  # now waits for postprocess
    assert (servable.pending, servable.pending_rows) == (2, 2)
    model.before.open()
    assert inside.values["y"] == [11.0]


def test_failures_of_items_and_of_the_inner_servable_are_passed_on_with_their_reasons(serve, model, inner):
    servable = serve(inner)
    refused = Status(StatusCode.INVALID_ARGUMENT, "item 0 is negative", Reason.INVALID_ITEM)
    negative = submitted(servable, -1.0)
    assert negative.answer == refused
    assert negative.call.run_seconds > 0, "its model has run: it has not ended in a queue"
    late = submitted(servable, 1.0, deadline=0.0).answer
    assert (late.code, late.reason) == (StatusCode.DEADLINE_EXCEEDED, Reason.JOB_EXPIRED)
    assert model.prepared == [-1.0], "what comes too late is not begun"
    answers = []
    for code in (StatusCode.INVALID_ARGUMENT, StatusCode.DEADLINE_EXCEEDED):
        answers.append(submitted(servable, 1.0))
        inner.wait_arrived()
        inner.run(Status(code, "said the inner servable"))
    text = "said the inner servable"
    assert [answer.answer for answer in answers] == [
        Status(StatusCode.INVALID_ARGUMENT, text),
        Status(StatusCode.DEADLINE_EXCEEDED, text, Reason.JOB_EXPIRED),
    ]
    assert answers[0].call.queue_seconds == 0.25
    assert model.finished == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ServingError(StatusCode.DEADLINE_EXCEEDED, "late"), StatusCode.DEADLINE_EXCEEDED),
        (WorkerLost("gone"), StatusCode.UNAVAILABLE),
        (KeyError("x"), StatusCode.INTERNAL),
        (SystemExit(1), StatusCode.INTERNAL),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_step_raises_fails_the_call_and_the_next_one_is_answered(serve, model, error, code):
    servable = serve(HeldServable(now=True), threads=1)
    model.error = error
    assert submitted(servable, 1.0).code is code
    model.error = None
    assert submitted(servable, 1.0).values["y"] == [11.0]


def test_several_threads_prepare_at_once(serve, model):
    model.before.shut()
    servable = serve(HeldServable(now=True), threads=3)
    answers = [submitted(servable, float(x)) for x in range(4)]
    model.before.wait_for(3)
    assert servable.pending == 1
    model.before.open()
    assert [answer.values["y"] for answer in answers] == [[1.0], [11.0], [21.0], [31.0]]


def test_calls_go_to_the_models_in_turn(model):
    models = [StepModel(), StepModel()]
    servable = ItemServable(HeldServable(now=True), models, "m-1")
    assert [submitted(servable, float(x)).values["z"] for x in range(4)] == [[0.0], [-10.0], [-20.0], [-30.0]]
    servable.close()
    assert [each.prepared for each in models] == [[0.0, 2.0], [1.0, 3.0]]


def test_more_calls_than_may_wait_are_refused_at_once(serve, model):
    model.before.shut()
    servable = serve(HeldServable(now=True), threads=1, max_waiting=2)
    running = submitted(servable, 0.0)
    model.before.wait_for()
    waiting = [submitted(servable, x) for x in (1.0, 2.0)]
    refused = submitted(servable, 3.0)
    assert len(refused.answers) == 1
    assert (refused.code, refused.status.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
    model.before.open()
    assert [answer.values["y"] for answer in (running, *waiting)] == [[1.0], [11.0], [21.0]]


def test_what_has_run_goes_before_what_has_not(serve, model, inner):
    servable = serve(inner, threads=1)
    first = submitted(servable, 1.0)
    inner.wait_arrived()
    model.before.shut()
    second = submitted(servable, 2.0)
    third = submitted(servable, 3.0)
    model.before.wait_for()
    model.after.shut()
    inner.run()
    model.before.open()
    model.after.wait_for()
    assert model.prepared == [1.0, 2.0]
    assert servable.pending == 2  # the third before its preprocess, the second inside
    model.after.open()
    assert first.values["y"] == [11.0]
    for answer, value in ((second, 21.0), (third, 31.0)):
        inner.wait_arrived()
        inner.run()
        assert answer.values["y"] == [value]


# Deadlines


def test_deadline_that_passes_while_the_call_waits_for_a_step_ends_it(serve, model, inner):
    clock = VirtualClock()
    servable = serve(inner, threads=1, monotonic=clock.monotonic)
    inside = submitted(servable, 1.0, deadline=clock.monotonic() + 1)
    inner.wait_arrived()
    model.before.shut()
    first, late = submitted(servable, 2.0), submitted(servable, 3.0, deadline=clock.monotonic() + 1)
    model.before.wait_for()
    clock.advance(1.0)
    inner.run()
    model.before.open()
    assert [inside.code, late.code] == [StatusCode.DEADLINE_EXCEEDED] * 2
    inner.wait_arrived()
    inner.run()
    assert first.values["y"] == [21.0]
    assert (model.prepared, model.finished) == ([1.0, 2.0], [20.0])


# Cancelling


def test_call_cancelled_before_preprocess_is_answered_at_once(serve, model):
    model.before.shut()
    servable = serve(HeldServable(now=True), threads=1)
    first, second = submitted(servable, 1.0), submitted(servable, 2.0)
    model.before.wait_for()
    servable.cancel(second.call)
    assert len(second.answers) == 1
    assert second.code is StatusCode.CANCELLED
    assert servable.pending == 0
    model.before.open()
    assert first.values["y"] == [11.0]
    assert model.prepared == [1.0]


def test_call_cancelled_in_preprocess_does_not_reach_the_inner_servable(serve, model, inner):
    model.before.shut()
    servable = serve(inner)
    answer = submitted(servable, 1.0)
    model.before.wait_for()
    servable.cancel(answer.call)
    assert not answer.answers
    model.before.open()
    assert answer.code is StatusCode.CANCELLED
    assert inner.calls == []


@pytest.mark.parametrize("runs", [False, True])
def test_call_cancelled_in_the_inner_servable_is_cancelled_there_and_not_finished_if_it_runs(serve, inner, model, runs):
    servable = serve(inner)
    answer = submitted(servable, 1.0)
    inner.wait_arrived()
    if runs:
        inner.cancel = lambda call: None
    servable.cancel(answer.call)
    assert answer.done is not runs
    if runs:
        inner.run()
    assert answer.code is StatusCode.CANCELLED
    assert runs or answer.message == "the inner servable let it go"
    assert (inner.calls, model.finished) == ([], [])


def test_call_cancelled_before_postprocess_is_answered_at_once(serve, model, inner):
    servable = serve(inner, threads=1)
    first, second = submitted(servable, 1.0), submitted(servable, 2.0)
    inner.wait_arrived()
    inner.wait_arrived()
    model.after.shut()
    inner.run()
    model.after.wait_for()
    inner.run()
    servable.cancel(second.call)
    assert second.code is StatusCode.CANCELLED
    model.after.open()
    assert first.values["y"] == [11.0]


def test_call_cancelled_in_postprocess_is_answered_as_ever(serve, model):
    model.after.shut()
    servable = serve(HeldServable(now=True))
    answer = submitted(servable, 1.0)
    model.after.wait_for()
    servable.cancel(answer.call)
    model.after.open()
    assert answer.values["y"] == [11.0]
    servable.cancel(answer.call)
    assert len(answer.answers) == 1


def test_every_call_is_answered_once_however_cancelling_and_answering_meet(serve):
    servable = serve(HeldServable(now=True), threads=4)
    answers = [request_of(float(x)) for x in range(300)]
    cancelling = threading.Thread(target=lambda: [servable.cancel(answer.call) for answer in answers * 3])
    cancelling.start()
    for answer in answers:
        servable.submit(answer.call)
    cancelling.join()
    for x, answer in enumerate(answers):
        result = answer.answer
        if isinstance(result, Status):
            assert result.code is StatusCode.CANCELLED
        else:
            assert answer.values["y"] == [x * 10 + 1]
    assert servable.pending == 0


# The end


def test_closing_answers_what_waits_and_lets_what_runs_finish(model, inner):
    servable = ItemServable(inner, [model], "m-1", threads=1)
    ran = submitted(servable, 0.0)
    inner.wait_arrived()
    model.after.shut()
    inner.run()
    model.after.wait_for()
    waiting = submitted(servable, 1.0)
    closing = threading.Thread(target=servable.close)
    closing.start()
    assert waiting.code is StatusCode.UNAVAILABLE
    assert not inner.closed
    assert submitted(servable, 2.0).code is StatusCode.UNAVAILABLE
    model.after.open()
    closing.join(PATIENCE)
    assert ran.values["y"] == [1.0]
    assert inner.closed


def test_closing_answers_what_is_inside_and_what_is_prepared(model, inner):
    servable = ItemServable(inner, [model], "m-1", threads=1)
    inside = submitted(servable, 0.0)
    inner.wait_arrived()
    model.before.shut()
    prepared, waiting = submitted(servable, 1.0), submitted(servable, 2.0)
    model.before.wait_for()
    closing = threading.Thread(target=servable.close)
    closing.start()
    assert waiting.code is StatusCode.UNAVAILABLE
    model.before.open()
    closing.join(PATIENCE)
    assert prepared.code is StatusCode.UNAVAILABLE
    assert inside.answer == Status(StatusCode.UNAVAILABLE, "the inner servable is closed")


def test_nothing_of_an_answered_call_is_held(serve):
    servable = serve(HeldServable(now=True), threads=1)
    answered = threading.Event()
    inputs = {"x": np.ones(1, np.float32)}
    held = weakref.ref(inputs["x"])
    call = PredictCall(DEFAULT_SIGNATURE, inputs, (), None, lambda result: answered.set())
    servable.submit(call)
    assert answered.wait(PATIENCE)
    assert submitted(servable, 2.0).values["y"] == [21.0]  # its thread has begun something else
    gc.disable()
    try:
        del call, inputs
        assert held() is None
    finally:
        gc.enable()


def test_caller_that_raises_does_not_disturb_others(serve, caplog):
    servable = serve(HeldServable(now=True), threads=1)

    def broken(result: object) -> None:
        raise RuntimeError("a caller's own fault")

    answer = request_of(1.0)
    servable.submit(replace(answer.call, on_done=broken))
    assert submitted(servable, 1.0).values["y"] == [11.0]
    assert "on_done must not raise" in caplog.text


# The rule

MERGES = BatchSettings(max_batch_size=16, preferred=(8,), allowed_sizes=(2, 4, 16))


def test_rule_knows_rows_and_bounds_of_what_clients_see_and_the_settings():
    rule = ItemRule.of(SIGNATURE, MERGES)
    assert isinstance(rule, ItemRule)
    assert rule.rows({"tokens": np.zeros((3, 7)), "mask": np.zeros((3, 7))}) == 3
    assert (rule.max_rows, rule.max_call_rows, rule.settings.max_batch_size) == (4, 4, 4)
    assert rule.settings.allowed_sizes == (2, 4)
    assert rule.refusal(4) is None
    assert "Task size 5 is larger than maximum" in str(rule.refusal(5, "m-1"))
    unbounded = ItemRule.of(Signature((TensorSpec("x", DataType.FLOAT, (SymbolicDim("x_0"), 3)),), ()), MERGES)
    assert unbounded is not None
    assert (unbounded.max_rows, unbounded.settings) == (None, MERGES)
    assert ItemRule.of(SIGNATURE, BatchSettings()) is None


def test_equal_rows_share_a_run_and_others_do_not():
    rule = ItemRule.of(SIGNATURE, MERGES)
    a, b = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    key = rule.key({"a": a, "b": b})
    assert key == rule.key({"b": np.zeros(5, np.int64), "a": np.zeros((5, 3), np.float32)})
    assert len({key}) == 1
    wide, double = np.zeros((2, 4), np.float32), np.zeros((2, 3), np.float64)
    for others in ({"a": wide, "b": b}, {"a": double, "b": b}, {"a": a, "c": b}, {"a": a}):
        assert key != rule.key(others)
