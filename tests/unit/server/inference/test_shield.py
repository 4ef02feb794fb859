"""A request on a version under trial: whether the old version is asked, what the client gets, what the trial hears."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.support.schedulers.ensembles import EnsembleFixture, adder, settings_of, step, tensor
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall, SequenceFlags, Servable, Traits, WorkerBusy
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import OK, Reason, ServingError, Status, StatusCode, invalid_argument, not_found, queue_full
from tfs_lite.core.trial import Ending, Trial, TrialEnding
from tfs_lite.metrics.request_records import RecordedRequest
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.runs import Run
from tfs_lite.schedulers.cached import CachedServable
from tfs_lite.schedulers.response_cache import ResponseCache
from tfs_lite.server.inference.pending import Inference, RequestCancelled
from tfs_lite.server.inference.predictor import PLAIN, CallOptions, Predictor
from tfs_lite.server.inference.shield import LOOKED_AT, all_finite, ending_of

NEW, OLD = 8, 7
LATEST = ModelRef("m")
BATCH = SymbolicDim("batch")
SIGNATURE = Signature((TensorSpec("x", DataType.FLOAT, (BATCH,)),), (TensorSpec("y", DataType.FLOAT, (BATCH,)),))
WIDE = Signature((TensorSpec("x", DataType.DOUBLE, (BATCH,)),), SIGNATURE.outputs)
BROKEN = Status(StatusCode.INTERNAL, "the model raised")
Answer = Callable[[PredictCall], Mapping[str, Any] | Status]


def plus(number: float) -> Answer:
    return lambda call: {"y": call.inputs["x"] + np.float32(number)}


class Scripted:
    """A servable that answers at once with what it is told; None: it keeps its calls."""

    def __init__(self, answer: Answer | None, signature: Signature = SIGNATURE, **traits: Any) -> None:
        self.answer = answer
        self.signatures = {DEFAULT_SIGNATURE: signature}
        self.traits = Traits("test", **traits)
        self.status: Status | None = None
        self.calls: list[PredictCall] = []
        self.cancelled: list[PredictCall] = []

    def refusal(self, deadline: float | None) -> Status | None:
        """With ``status``: a version that refuses every call."""
        return self.status

    def submit(self, call: PredictCall) -> None:
        self.calls.append(call)
        if self.answer is not None:
            self.end(call, self.answer(call))

    def end(self, call: PredictCall, result: Mapping[str, Any] | Status) -> None:
        call.run_seconds = 0.25
        call.on_done(result)

    def cancel(self, call: PredictCall) -> None:
        self.cancelled.append(call)


class OnTrial:
    """The model ``m`` in two versions of which the higher is on trial, and other models. ``heard`` are the endings."""

    def __init__(self, new: Any, old: Any = None, may_shield: bool = True) -> None:
        self.new, self.old = new, old
        self.heard: list[TrialEnding] = []
        self.trials: dict[str, dict[int, Trial]] = {"m": {NEW: Trial(OLD, self.heard.append, may_shield)}}
        self.handles = 0
        self.counted: list[tuple[int, bool]] = []
        self.registry = CollectorRegistry()
        self.metrics = RequestMetrics(self.registry, lambda name: True)
        self.predictor = Predictor(self.lookup, self.metrics, on_call=self._count, trials=self.trials)
        self.record: RecordedRequest

    def lookup(self, ref: ModelRef) -> ServableHandle:
        version = OLD if ref.version == OLD or ref.label == "stable" else NEW
        servable = self.old if version == OLD else self.new
        if servable is None:
            raise not_found(f"{ref} is not there")
        self.handles += 1
        return ServableHandle(ServableId("m", version), servable, self._release)

    def _release(self) -> None:
        self.handles -= 1

    def _count(self, id: ServableId, call: Any, result: Any) -> None:
        self.counted.append((id.version, not isinstance(result, Status)))

    async def ask(
        self,
        *runs: Run,
        plan: Callable[[Servable], Sequence[Run]] | None = None,
        ref: ModelRef = LATEST,
        deadline: float | None = None,
        options: CallOptions = PLAIN,
        in_steps: bool = False,
    ) -> Inference:
        """``in_steps``: by a plan that is awaited."""
        given = plan or (lambda servable: list(runs or (run(),)))
        with self.metrics.record("Predict", "m") as self.record:
            self.record.sent_id = "r1"
            if not in_steps:
                return await self.predictor.begin(ref, given, self.record, deadline, options).answer()

            async def planned(signatures: Mapping[str, Signature]) -> Sequence[Run]:
                await asyncio.sleep(0)
                return given(self.new if signatures is self.new.signatures else self.old)

            return await self.predictor.infer(ref, planned, self.record, deadline, options)

    @property
    def ending(self) -> TrialEnding:
        (ending,) = self.heard
        return ending

    def requests(self, version: int, code: str = "OK") -> float:
        labels = {"model": "m", "version": str(version), "method": "Predict", "code": code}
        return self.registry.get_sample_value("tfs_lite_requests_total", labels) or 0.0


def run(*values: float, outputs: tuple[str, ...] = ()) -> Run:
    return Run(DEFAULT_SIGNATURE, {"x": np.array(values or (1.0,), np.float32)}, outputs)


def fails(status: Status = BROKEN) -> Scripted:
    return Scripted(lambda call: status)


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (OK, Ending.WELL),
        (Status(StatusCode.INTERNAL, "x"), Ending.FAULT),
        (Status(StatusCode.UNKNOWN, "x"), Ending.FAULT),
        (Status(StatusCode.DATA_LOSS, "x"), Ending.FAULT),
        (Status(StatusCode.UNIMPLEMENTED, "x"), Ending.FAULT),
        (Status(StatusCode.ABORTED, "x"), Ending.FAULT),
        (Status(StatusCode.UNAVAILABLE, "x"), Ending.FAULT),
        (Status(StatusCode.RESOURCE_EXHAUSTED, "x"), Ending.FAULT),
        (Status(StatusCode.INVALID_ARGUMENT, "x"), Ending.REFUSAL),
        (Status(StatusCode.INVALID_ARGUMENT, "x", Reason.INVALID_ITEM), Ending.REFUSAL),
        (Status(StatusCode.FAILED_PRECONDITION, "x"), Ending.REFUSAL),
        (Status(StatusCode.OUT_OF_RANGE, "x"), Ending.REFUSAL),
        (Status(StatusCode.DEADLINE_EXCEEDED, "x"), Ending.LATE),
        (Status(StatusCode.DEADLINE_EXCEEDED, "x", Reason.JOB_EXPIRED), Ending.LOAD),
        (Status(StatusCode.UNAVAILABLE, "x", Reason.QUEUE_TIMEOUT), Ending.LOAD),
        (queue_full("x"), Ending.LOAD),
        (WorkerBusy("x").status, Ending.LOAD),
        (Status(StatusCode.CANCELLED, "x"), Ending.NOTHING),
        (Status(StatusCode.PERMISSION_DENIED, "x"), Ending.NOTHING),
        (Status(StatusCode.UNAUTHENTICATED, "x"), Ending.NOTHING),
    ],
    ids=str,
)
def test_the_status_says_what_the_end_says_about_the_version(status: Status, ending: Ending) -> None:
    assert ending_of(status) is ending


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_are_found_in_floats_of_every_kind(dtype: Any, value: float) -> None:
    assert all_finite([{"y": np.zeros((2, 3), dtype)}])
    assert not all_finite([{"a": np.zeros(1, dtype)}, {"y": np.array([[0, 1], [2, value]]).astype(dtype)}])


def test_only_the_first_part_of_a_large_output_is_looked_at() -> None:
    count = LOOKED_AT // 4
    array = np.zeros(count + 1, np.float32)
    array[count] = np.nan
    assert all_finite([{"y": array}])
    array[count - 1] = np.nan
    assert not all_finite([{"y": array}])


def test_large_numbers_texts_integers_and_empty_outputs_are_finite() -> None:
    outputs = {
        "large": np.full(4, 3e38, np.float32),
        "text": np.array([b"nan"], object),
        "int": np.array([1]),
        "empty": np.zeros((0, 3), np.float32),
        "one": np.array(1.0, np.float32),
    }
    assert all_finite([outputs])


@pytest.mark.parametrize("in_steps", [False, True])
async def test_a_request_that_fails_is_answered_by_the_old_version(in_steps: bool) -> None:
    house = OnTrial(fails(), Scripted(plus(OLD)))
    answer = await house.ask(in_steps=in_steps)
    assert answer.id == ServableId("m", OLD)
    np.testing.assert_array_equal(answer.output["y"], [8])
    assert house.record.version == OLD
    assert house.record.shielded_from == "m@8"
    assert (house.requests(OLD), house.requests(NEW, "INTERNAL")) == (1, 0), "one request"
    assert house.counted == [(NEW, False), (OLD, True)], "the statistics have both calls"
    assert house.handles == 0
    ending = house.ending
    assert (ending.ending, ending.status, ending.shielded, ending.old_failed) == (Ending.FAULT, BROKEN, True, False)
    assert (ending.request_id, ending.run_seconds, ending.old_run_seconds) == ("r1", 0.25, 0.25)
    np.testing.assert_array_equal(ending.runs[0].inputs["x"], [1])


@pytest.mark.parametrize(("reason", "is_refused"), [(None, False), (Reason.QUEUE_FULL, True)])
def test_a_version_on_trial_refuses_no_request_before_its_body_is_read_but_for_load(
    reason: Reason | None, is_refused: bool
) -> None:
    """It has lost its process: the old version answers what it refuses."""
    house = OnTrial(fails(), Scripted(plus(OLD)))
    house.new.refusal = lambda deadline: Status(StatusCode.UNAVAILABLE, "has lost its worker process", reason)
    with (
        house.metrics.record("Predict", "m") as record,
        pytest.raises(ServingError) if is_refused else contextlib.nullcontext(),
    ):
        house.predictor.admit(LATEST, record, None)
    assert house.handles == 0


async def test_a_good_answer_is_told_too_and_nobody_else_is_asked() -> None:
    house = OnTrial(Scripted(plus(NEW)), old := Scripted(plus(OLD)))
    answer = await house.ask()
    assert answer.id.version == NEW
    assert old.calls == []
    assert house.ending == TrialEnding(Ending.WELL, run_seconds=0.25)
    assert house.record.shielded_from == ""


DOWN = Status(StatusCode.UNAVAILABLE, "model m version 8 has lost its worker process")
NUMBERED = ModelRef("m", NEW)


@pytest.mark.parametrize(
    ("new", "old", "may_shield", "ref", "refused"),
    [
        (DOWN, None, True, LATEST, False),
        (DOWN, None, True, ModelRef("m", label="canary"), False),
        (DOWN, DOWN, True, LATEST, True),
        (DOWN, None, False, LATEST, True),
        (DOWN, None, True, NUMBERED, True),
        (queue_full("m"), None, True, LATEST, True),
    ],
)
def test_a_request_is_not_refused_before_its_body_is_read_where_the_old_version_would_answer(
    new: Status, old: Status | None, may_shield: bool, ref: ModelRef, refused: bool
) -> None:
    house = OnTrial(fails(), Scripted(plus(OLD)), may_shield)
    house.new.status, house.old.status = new, old
    with house.metrics.record("Predict", "m") as record:
        if refused:
            with pytest.raises(ServingError) as error:
                house.predictor.admit(ref, record, None)
            assert (error.value.status, record.version) == (new, NEW)
        else:
            house.predictor.admit(ref, record, None)
    assert house.handles == 0


async def test_a_version_that_is_on_no_trial_is_left_alone() -> None:
    house = OnTrial(fails(), Scripted(plus(OLD)))
    house.trials.clear()
    with pytest.raises(ServingError, match="the model raised"):
        await house.ask()
    house.trials["other"] = {NEW: Trial(OLD, house.heard.append)}
    with pytest.raises(ServingError, match="the model raised"):
        await house.ask()
    assert house.heard == []


@pytest.mark.parametrize("in_steps", [False, True])
@pytest.mark.parametrize("old", [fails(Status(StatusCode.INTERNAL, "old")), None], ids=["it fails, too", "it is gone"])
async def test_the_client_gets_the_first_error_if_the_old_version_cannot_help(old: Any, in_steps: bool) -> None:
    house = OnTrial(fails(), old)
    with pytest.raises(ServingError, match="the model raised"):
        await house.ask(in_steps=in_steps)
    assert (house.record.version, house.record.shielded_from) == (NEW, "")
    assert house.requests(NEW, "INTERNAL") == 1
    assert house.handles == 0
    assert (house.ending.shielded, house.ending.old_failed, len(house.ending.runs)) == (False, True, 1)


async def test_an_answer_with_nan_is_a_good_one_once_the_trial_knows_that_it_is_meant() -> None:
    house = OnTrial(Scripted(plus(np.nan)), Scripted(plus(OLD)))
    house.trials["m"][NEW] = replace(house.trials["m"][NEW], nonfinite_fails=lambda: False)
    answer = await house.ask()
    assert (answer.id.version, house.ending.ending) == (NEW, Ending.WELL)
    assert not house.old.calls


async def test_an_answer_with_nan_is_replaced() -> None:
    house = OnTrial(Scripted(plus(np.nan)), Scripted(plus(OLD)))
    answer = await house.ask(run(1), run(2))
    assert [each["y"].tolist() for each in answer.outputs] == [[8], [9]]
    assert house.ending.ending is Ending.NONFINITE
    assert house.ending.shielded
    assert house.record.run_seconds == 0.5, "that of the version that answers"


@pytest.mark.parametrize("old", [Scripted(plus(np.inf)), fails(), None], ids=["has them too", "fails", "gone"])
async def test_an_answer_with_nan_stands_if_the_old_version_has_no_better(old: Any) -> None:
    house = OnTrial(Scripted(plus(np.nan)), old)
    answer = await house.ask()
    assert answer.id.version == NEW
    assert np.isnan(answer.output["y"]).all()
    assert (house.record.version, house.record.run_seconds, house.record.answered) == (NEW, 0.25, True)
    assert (house.ending.ending, house.ending.shielded, house.ending.old_failed) == (Ending.NONFINITE, False, True)


@pytest.mark.parametrize("in_steps", [False, True])
async def test_a_request_that_only_the_new_signature_refuses_is_answered_by_the_old_version(in_steps: bool) -> None:
    house = OnTrial(Scripted(plus(NEW), WIDE), Scripted(plus(OLD)))
    answer = await house.ask(in_steps=in_steps)
    assert answer.id.version == OLD
    assert house.ending.ending is Ending.REFUSAL
    assert house.ending.shielded
    assert len(house.ending.runs) == 1
    assert house.handles == 0


@pytest.mark.parametrize("renamed", ["input", "signature"])
async def test_runs_that_do_not_fit_the_old_version_have_the_first_error(
    renamed: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = Scripted(plus(OLD), Signature((TensorSpec("z", DataType.FLOAT, (BATCH,)),), SIGNATURE.outputs))
    if renamed == "signature":
        old.signatures = {"another": SIGNATURE}
    house = OnTrial(fails(), old)
    with pytest.raises(ServingError, match="the model raised"):
        await house.ask()
    assert house.ending.old_failed
    assert not caplog.records


@pytest.mark.parametrize("in_steps", [False, True])
async def test_a_plan_that_fails_is_asked_again_with_the_old_version(in_steps: bool) -> None:
    asked: list[Any] = []

    def plan(servable: Servable) -> list[Run]:
        asked.append(servable)
        if servable is house.new:
            raise invalid_argument("there is no input x")
        return [run(3)]

    house = OnTrial(Scripted(plus(NEW)), Scripted(plus(OLD)))
    answer = await house.ask(plan=plan, in_steps=in_steps)
    assert answer.id.version == OLD
    assert answer.output["y"].tolist() == [10]
    assert asked == [house.new, house.old]
    assert (house.ending.ending, house.ending.shielded, len(house.ending.runs)) == (Ending.REFUSAL, True, 1)
    assert house.handles == 0
    assert house.requests(OLD) == 1


@pytest.mark.parametrize("in_steps", [False, True])
async def test_a_request_that_both_plans_refuse_has_the_first_refusal(in_steps: bool) -> None:
    def plan(servable: Servable) -> list[Run]:
        raise invalid_argument("new" if servable is house.new else "old")

    house = OnTrial(Scripted(plus(NEW)), Scripted(plus(OLD)))
    with pytest.raises(ServingError, match="new"):
        await house.ask(plan=plan, in_steps=in_steps)
    assert house.ending == TrialEnding(
        Ending.REFUSAL, Status(StatusCode.INVALID_ARGUMENT, "new"), old_failed=True, request_id="r1", runs=[]
    )
    assert house.handles == 0


async def test_a_plan_that_breaks_is_no_failure_of_the_version() -> None:
    def plan(servable: Servable) -> list[Run]:
        raise ZeroDivisionError

    house = OnTrial(Scripted(plus(NEW)), Scripted(plus(OLD)))
    with pytest.raises(ZeroDivisionError):
        await house.ask(plan=plan)
    assert house.heard == []
    assert house.handles == 0


@pytest.mark.parametrize("status", [queue_full("full"), Status(StatusCode.DEADLINE_EXCEEDED, "late")], ids=str)
async def test_load_and_lateness_are_told_and_not_shielded(status: Status) -> None:
    house = OnTrial(fails(status), old := Scripted(plus(OLD)))
    with pytest.raises(ServingError):
        await house.ask()
    assert old.calls == []
    assert (house.ending.ending, house.ending.old_failed) == (ending_of(status), False)


async def test_a_request_by_the_number_of_the_version_is_not_shielded_but_may_run_again_later() -> None:
    house = OnTrial(fails(), old := Scripted(plus(OLD)))
    with pytest.raises(ServingError):
        await house.ask(ref=ModelRef("m", NEW))
    assert old.calls == []
    assert (house.ending.shielded, house.ending.old_failed, len(house.ending.runs)) == (False, False, 1)


async def test_a_request_by_a_label_that_means_the_new_version_is_shielded() -> None:
    house = OnTrial(fails(), Scripted(plus(OLD)))
    assert (await house.ask(ref=ModelRef("m", label="canary"))).id.version == OLD
    assert (await house.ask(ref=ModelRef("m", label="stable"))).id.version == OLD
    assert len(house.heard) == 1, "the second was never on the new version"


@pytest.mark.parametrize(
    "traits", [{"decoupled": True}, {"keeps_sequences": True}, {"runs_once": True}], ids=lambda traits: str(*traits)
)
async def test_what_must_not_run_twice_does_not(traits: dict[str, bool]) -> None:
    new = fails()
    new.traits = Traits("test", **traits)  # type: ignore[arg-type]
    house = OnTrial(new, old := Scripted(plus(OLD)))
    with pytest.raises(ServingError):
        await house.ask()
    assert old.calls == []
    assert (house.ending.ending, house.ending.runs, house.ending.old_failed) == (Ending.FAULT, (), False)


async def test_a_trial_may_forbid_it_and_so_do_sequences_and_the_old_version() -> None:
    house = OnTrial(fails(), old := Scripted(plus(OLD)), may_shield=False)
    with pytest.raises(ServingError):
        await house.ask()
    assert house.ending.runs == ()
    house = OnTrial(fails(), old)
    with pytest.raises(ServingError):
        await house.ask(options=CallOptions(SequenceFlags(1, True)))
    assert house.ending.runs == ()
    house = OnTrial(fails(), Scripted(plus(OLD), keeps_sequences=True))
    with pytest.raises(ServingError):
        await house.ask()
    assert house.ending.old_failed
    assert old.calls == []
    assert house.handles == 0


async def test_the_second_try_has_the_deadline_and_the_priority_of_the_request() -> None:
    house = OnTrial(fails(), old := Scripted(plus(OLD)))
    deadline = asyncio.get_running_loop().time() + 60
    await house.ask(deadline=deadline, options=CallOptions(priority=2, timeout=1.5, in_parts=True))
    (call,) = old.calls
    assert (call.deadline, call.priority, call.timeout, call.on_part) == (deadline, 2, 1.5, None)


async def test_the_first_failure_cancels_the_other_runs_and_their_ends_change_nothing() -> None:
    house = OnTrial(Scripted(None), Scripted(None))
    asking = asyncio.create_task(house.ask(run(1), run(2)))
    await asyncio.sleep(0)
    first, second = house.new.calls
    house.new.end(second, BROKEN)
    await settled()
    assert house.new.cancelled == [first, second]
    for call in house.old.calls:
        house.old.end(call, plus(OLD)(call))
    house.new.end(first, plus(NEW)(first))
    answer = await asking
    assert answer.id.version == OLD
    assert [each["y"].tolist() for each in answer.outputs] == [[8], [9]]
    assert house.handles == 0
    assert len(house.heard) == 1


async def settled() -> None:
    """Calls that were answered elsewhere have come to the loop."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_caller_that_goes_cancels_the_second_try() -> None:
    house = OnTrial(fails(), Scripted(None))
    asking = asyncio.create_task(house.ask())
    await asyncio.sleep(0)
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    assert len(house.old.cancelled) == 1
    house.old.end(house.old.calls[0], Status(StatusCode.CANCELLED, "cancelled"))
    await settled()
    assert house.handles == 0
    assert (house.ending.ending, house.ending.shielded, house.ending.old_failed) == (Ending.FAULT, False, False)


@pytest.mark.parametrize(("seconds", "ending"), [(0.0, Ending.LATE), (60.0, Ending.NOTHING)])
async def test_a_request_that_is_cancelled_was_late_only_if_its_time_was_up(seconds: float, ending: Ending) -> None:
    house = OnTrial(Scripted(None), Scripted(plus(OLD)))
    with house.metrics.record("Predict", "m") as record:
        deadline = asyncio.get_running_loop().time() + seconds
        pending = house.predictor.begin(ModelRef("m"), lambda servable: [run()], record, deadline)
        pending.cancel()
        with pytest.raises(RequestCancelled):
            pending.result()
    assert house.ending.ending is ending
    assert (house.ending.status.code is StatusCode.DEADLINE_EXCEEDED) == (ending is Ending.LATE)


async def test_an_answer_of_the_response_cache_is_shielded_and_says_so() -> None:
    cache = ResponseCache(1 << 20)
    answer = CachedServable(Scripted(plus(np.nan)), cache, ServableId("m", NEW))  # type: ignore[arg-type]
    house = OnTrial(answer, Scripted(plus(OLD)))
    for _ in range(2):
        assert (await house.ask()).id.version == OLD
    assert [(ending.cached, ending.shielded) for ending in house.heard] == [(False, True), (True, True)]


async def test_a_listener_that_raises_does_not_hold_up_the_request(caplog: pytest.LogCaptureFixture) -> None:
    house = OnTrial(fails(), Scripted(plus(OLD)))

    def broken(ending: TrialEnding) -> None:
        raise ZeroDivisionError

    house.trials["m"] = {NEW: Trial(OLD, broken)}
    assert (await house.ask()).id.version == OLD
    assert "could not be counted" in caplog.text


def through(*models: str) -> dict[str, Any]:
    """The ensemble of these models, each with what the one before has given."""
    names = ["x", *(f"behind {model}" for model in models[:-1]), "y"]
    steps = [step(model, {"x": names[i]}, {"y": names[i + 1]}) for i, model in enumerate(models)]
    return settings_of([tensor("x")], [tensor("y")], steps)


@pytest.mark.parametrize("new", [plus(NEW), plus(np.nan), lambda call: BROKEN], ids=["well", "nan", "failed"])
async def test_nothing_of_a_request_waits_for_the_garbage_collection(new: Answer) -> None:
    house = OnTrial(Scripted(new), Scripted(plus(OLD)))
    inputs = np.ones(1, np.float32)
    gone = weakref.ref(inputs)
    gc.disable()
    try:
        await house.ask(Run(DEFAULT_SIGNATURE, {"x": inputs}))
        del inputs
        for servable in (house.new, house.old):
            servable.calls.clear()
        house.heard.clear()
        await settled()
        assert gone() is None
    finally:
        gc.enable()


class Kitchen:
    """Ensembles over the model ``step`` in the versions 7 and 8, which add their numbers; 8 is on trial."""

    def __init__(self, fixture: EnsembleFixture) -> None:
        self.fixture = fixture
        self.heard: list[TrialEnding] = []
        fixture.serve("step", adder(OLD), OLD)
        fixture.serve("step", adder(np.nan), NEW)
        self.trials = {"step": {NEW: Trial(OLD, self.heard.append)}}
        metrics = RequestMetrics(CollectorRegistry(), lambda name: True)
        self.metrics = metrics
        self.predictor = Predictor(self._lookup, metrics, trials=self.trials)

    def _lookup(self, ref: ModelRef) -> ServableHandle:
        return self.fixture.resolve(ref.name, ref.version)

    async def ask(self, name: str, version: int | None = None) -> tuple[ServableId, list[float]]:
        with self.metrics.record("Predict", name) as self.record:
            pending = self.predictor.begin(ModelRef(name, version), lambda servable: [run(1, 2)], self.record, None)
            inference = await pending.answer()
        return inference.id, np.asarray(inference.output["y"]).tolist()


@pytest.fixture
def kitchen() -> Any:
    fixture = EnsembleFixture()
    yield Kitchen(fixture)
    fixture.wait_for_no_handles()
    fixture.close()


@pytest.mark.parametrize("nested", [False, True])
async def test_an_ensemble_runs_again_with_the_old_version_of_its_steps_model(kitchen: Kitchen, nested: bool) -> None:
    kitchen.fixture.ensemble("inner", through("step"))
    kitchen.fixture.ensemble("outer", through("inner"))
    name = "outer" if nested else "inner"
    assert await kitchen.ask(name) == (ServableId(name, 1), [8, 9])
    assert kitchen.record.shielded_from == "step@8"
    assert kitchen.record.version == 1
    (ending,) = kitchen.heard
    assert (ending.asked, ending.shielded, len(ending.runs)) == (ServableId(name, 1), True, 1)


async def test_a_request_to_a_version_of_an_ensemble_keeps_its_steps(kitchen: Kitchen) -> None:
    kitchen.fixture.ensemble("inner", through("step"))
    _, values = await kitchen.ask("inner", 1)
    assert np.isnan(values).all()
    assert len(kitchen.heard) == 1


async def test_of_two_models_under_trial_both_are_replaced_and_the_later_has_the_votes(kitchen: Kitchen) -> None:
    later: list[TrialEnding] = []
    kitchen.fixture.serve("last", adder(100), 1)
    kitchen.fixture.serve("last", adder(200), 2)
    kitchen.trials["last"] = {2: Trial(1, later.append)}
    kitchen.fixture.ensemble("both", through("step", "last"))
    assert await kitchen.ask("both") == (ServableId("both", 1), [108, 109])
    assert kitchen.heard == []
    assert (later[0].asked, later[0].shielded) == (ServableId("both", 1), True)


async def test_a_push_of_the_ensemble_is_as_any_other(kitchen: Kitchen) -> None:
    heard: list[TrialEnding] = []
    kitchen.trials.clear()
    kitchen.fixture.serve("good", adder(1), 1)
    kitchen.fixture.ensemble("e", through("good"), 1)
    kitchen.fixture.ensemble("e", through("step"), 2)
    kitchen.trials["e"] = {2: Trial(1, heard.append)}
    assert await kitchen.ask("e") == (ServableId("e", 1), [2, 3])
    assert (heard[0].asked, heard[0].shielded) == (None, True)


async def test_an_ensemble_with_a_model_that_must_not_run_twice_runs_once(kitchen: Kitchen) -> None:
    with kitchen.fixture.resolve("step", NEW) as handle:
        handle.servable.traits = Traits("numpy", runs_once=True)
    kitchen.fixture.ensemble("inner", through("step"))
    _, values = await kitchen.ask("inner")
    assert np.isnan(values).all()
    assert kitchen.heard[0].runs == ()


async def test_calls_with_other_versions_of_steps_pass_the_response_cache(kitchen: Kitchen) -> None:
    cache = ResponseCache(1 << 20)
    inner = kitchen.fixture.ensemble("kept", through("step"))
    kitchen.fixture.add(ServableId("kept", 2), CachedServable(inner, cache, ServableId("kept", 2)))
    for _ in range(3):
        assert await kitchen.ask("kept") == (ServableId("kept", 2), [8, 9])
    assert [(ending.cached, ending.shielded) for ending in kitchen.heard] == [(False, True), (True, True), (True, True)]
