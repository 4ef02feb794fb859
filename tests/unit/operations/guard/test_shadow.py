"""The shadow of a version: which requests it runs copies of, what is counted, and that nothing queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall, SequenceFlags, Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import Status, StatusCode, not_found, queue_full
from tfs_lite.core.trial import Shadow, Trial, TrialEnding
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.operations.guard.shadow import MOST_BYTES, ShadowReport, ShadowRuns
from tfs_lite.protocols.runs import Run
from tfs_lite.server.inference.predictor import PLAIN, CallOptions, Predictor

NEW, OLD = 8, 7
BATCH = SymbolicDim("batch")
SIGNATURE = Signature((TensorSpec("x", DataType.FLOAT, (BATCH,)),), (TensorSpec("y", DataType.FLOAT, (BATCH,)),))
RENAMED = Signature((TensorSpec("z", DataType.FLOAT, (BATCH,)),), SIGNATURE.outputs)
BROKEN = Status(StatusCode.INTERNAL, "the model raised")
LATEST = ModelRef("m")
Answer = Callable[[PredictCall], Mapping[str, Any] | Status]


class Scripted:
    """A servable that answers at once with what it is told; None: it keeps its calls."""

    def __init__(self, answer: Answer | None, signature: Signature = SIGNATURE, **traits: Any) -> None:
        self.answer = answer
        self.signatures = {DEFAULT_SIGNATURE: signature}
        self.traits = Traits("test", **traits)
        self.pending = 0
        self.calls: list[PredictCall] = []
        self.cancelled: list[PredictCall] = []

    def submit(self, call: PredictCall) -> None:
        self.calls.append(call)
        if self.answer is not None:
            call.run_seconds = 0.25
            call.on_done(self.answer(call))

    def cancel(self, call: PredictCall) -> None:
        self.cancelled.append(call)


def times(number: float) -> Answer:
    return lambda call: {"y": call.inputs["x"] * np.float32(number)}


class Shadowed:
    """The model ``m``, whose version 7 answers while version 8 is in a shadow."""

    def __init__(self, new: Any, old: Any = None, share: float = 1.0) -> None:
        self.new, self.old = new, old or Scripted(times(1))
        self.handles = 0
        self.heard: list[TrialEnding] = []
        self.runs = ShadowRuns(ServableId("m", NEW), self.lookup)
        trials = {"m": {NEW: Trial(OLD, self.heard.append, shadow=Shadow(share, self.runs.take))}}
        self.metrics = RequestMetrics(CollectorRegistry(), lambda name: True)
        self.predictor = Predictor(self.lookup, self.metrics, trials=trials)

    def lookup(self, ref: ModelRef) -> ServableHandle:
        version = OLD if ref.version is None else ref.version
        servable = {OLD: self.old, NEW: self.new}[version]
        if servable is None:
            raise not_found(f"{ref} is not there")
        self.handles += 1
        return ServableHandle(ServableId("m", version), servable, self._release)

    def _release(self) -> None:
        self.handles -= 1

    async def ask(
        self, *values: float, ref: ModelRef = LATEST, options: CallOptions = PLAIN, request_id: str = "r1"
    ) -> list[float]:
        """The answer; the copy has begun when it is returned."""
        run = Run(DEFAULT_SIGNATURE, {"x": np.array(values or (1.0,), np.float32)})
        with self.metrics.record("Predict", "m") as record:
            record.sent_id = request_id
            pending = self.predictor.begin(ref, lambda servable: [run], record, None, options)
            began = len(getattr(self.new, "calls", ()))
            inference = await pending.answer()
            assert len(getattr(self.new, "calls", ())) == began, "the copy waits for the answer"
        await asyncio.sleep(0)
        return np.asarray(inference.output["y"]).tolist()

    @property
    def report(self) -> ShadowReport:
        return self.runs.report


async def test_equal_answers_are_compared_and_the_client_sees_the_old_version_only() -> None:
    house = Shadowed(Scripted(times(1)))
    for _ in range(3):
        assert await house.ask(2) == [2]
    assert house.report == ShadowReport(compared=3, failed={}, run_ms=250.0, old_run_ms=250.0)
    assert house.heard == []
    assert house.handles == 0


async def test_another_answer_is_counted_with_its_largest_difference_and_the_request() -> None:
    house = Shadowed(Scripted(times(2)))
    await house.ask(1, request_id="small")
    await house.ask(5, request_id="large")
    await house.ask(3, request_id="later")
    report = house.report
    assert (report.compared, report.changed, report.nonfinite) == (3, 3, 0)
    assert (report.difference, report.output, report.request_id) == (5.0, "y", "large")
    assert "1 of 1 values differ" in report.what
    assert str(report) == "of 3 copies 3 differ, 0 have NaN or inf, and 0 failed"


async def test_nan_where_the_old_version_has_none_is_counted_by_itself() -> None:
    house = Shadowed(Scripted(times(np.nan)))
    await house.ask()
    assert (house.report.compared, house.report.changed, house.report.nonfinite) == (1, 0, 1)
    house = Shadowed(Scripted(times(np.nan)), Scripted(times(np.nan)))
    await house.ask()
    assert (house.report.compared, house.report.changed, house.report.nonfinite) == (1, 0, 0)


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (Scripted(lambda call: BROKEN), "INTERNAL"),
        (Scripted(times(1), RENAMED), "INVALID_ARGUMENT"),
        (None, "NOT_FOUND"),
    ],
    ids=["it raises", "it refuses", "it is gone"],
)
async def test_a_copy_that_fails_is_counted_by_its_code(new: Any, code: str) -> None:
    house = Shadowed(new)
    await house.ask()
    assert house.report == ShadowReport(failed={code: 1})
    assert f"1 failed ({code}: 1)" in str(house.report)
    assert house.handles == 0


async def test_one_copy_is_in_flight_and_the_others_are_dropped() -> None:
    house = Shadowed(new := Scripted(None))
    for _ in range(4):
        await house.ask()
    assert len(new.calls) == 1
    assert house.report.dropped == 3
    new.calls[0].on_done({"y": np.ones(1, np.float32)})
    assert house.report.compared == 1
    await house.ask()
    assert len(new.calls) == 2


async def test_a_version_with_something_to_do_gets_no_copy() -> None:
    house = Shadowed(new := Scripted(times(1)))
    new.pending = 1
    await house.ask()
    assert (new.calls, house.report.dropped, house.handles) == ([], 1, 0)
    new.pending = 0
    new.answer = lambda call: queue_full("as many as it takes")
    await house.ask()
    assert (house.report.dropped, house.report.failed) == (2, {})


async def test_a_request_that_is_too_large_is_dropped() -> None:
    house = Shadowed(new := Scripted(times(1)))
    await house.ask(*[1.0] * (MOST_BYTES // 8 + 1))
    assert (new.calls, house.report.dropped) == ([], 1)


async def test_a_share_of_the_requests_is_copied() -> None:
    house = Shadowed(new := Scripted(times(1)), share=0.5)
    for _ in range(400):
        await house.ask()
    assert 100 < len(new.calls) < 300
    house = Shadowed(new := Scripted(times(1)), share=0.0)
    await house.ask()
    assert new.calls == []


@pytest.mark.parametrize("which", ["old", "new"])
@pytest.mark.parametrize("trait", ["decoupled", "keeps_sequences", "runs_once"])
async def test_what_must_not_run_twice_is_not_copied(which: str, trait: str) -> None:
    traits = {trait: True}
    new, old = Scripted(times(1)), Scripted(times(1))
    (new if which == "new" else old).traits = Traits("test", **traits)  # type: ignore[arg-type]
    house = Shadowed(new, old)
    await house.ask()
    assert new.calls == []
    assert house.handles == 0


async def test_requests_by_number_of_sequences_and_that_fail_are_not_copied() -> None:
    house = Shadowed(new := Scripted(times(1)))
    await house.ask(ref=ModelRef("m", OLD))
    await house.ask(options=CallOptions(SequenceFlags(1, True)))
    assert new.calls == []
    house = Shadowed(new, Scripted(lambda call: BROKEN))
    with pytest.raises(Exception, match="the model raised"):
        await house.ask()
    assert new.calls == []


async def test_a_request_by_the_number_of_the_held_version_is_answered_and_told() -> None:
    house = Shadowed(new := Scripted(times(3)))
    run = Run(DEFAULT_SIGNATURE, {"x": np.ones(1, np.float32)})
    with house.metrics.record("Predict", "m") as record:
        await house.predictor.begin(ModelRef("m", NEW), lambda servable: [run], record, None).answer()
    assert len(new.calls) == 1
    assert len(house.heard) == 1
    assert house.report == ShadowReport(failed={})


async def test_the_end_of_the_shadow_gives_up_the_copy_that_runs() -> None:
    house = Shadowed(new := Scripted(None))
    await house.ask()
    house.runs.close()
    assert new.cancelled == new.calls
    new.calls[0].on_done(Status(StatusCode.CANCELLED, "cancelled"))
    await house.ask()
    assert house.report == ShadowReport(failed={})
    assert house.handles == 0
