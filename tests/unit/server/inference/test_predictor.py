"""The one path to a model: one version for all runs of a request, held until the model is done with every one."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall, Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, Status, StatusCode, invalid_argument, not_found
from tfs_lite.metrics.request_records import RequestRecord
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.runs import Run
from tfs_lite.server.inference.pending import Inference
from tfs_lite.server.inference.predictor import Predictor

BATCH = SymbolicDim("batch")
ADD = Signature(
    (TensorSpec("a", DataType.FLOAT, (BATCH,)), TensorSpec("b", DataType.FLOAT, (BATCH,))),
    (TensorSpec("sum", DataType.FLOAT, (BATCH,)), TensorSpec("difference", DataType.FLOAT, (BATCH,))),
)
ADD_FIVE = Signature(ADD.inputs, ADD.outputs, defaults={"b": np.array(5, np.float32)})
ONE = np.ones(1, np.float32)


class Adder:
    """A servable that answers each call on a thread of its own, when its gate is open."""

    traits = Traits("test")
    signatures: ClassVar[dict[str, Signature]] = {DEFAULT_SIGNATURE: ADD, "add_five": ADD_FIVE}

    def __init__(self) -> None:
        self.calls: list[PredictCall] = []
        self.cancelled: list[PredictCall] = []
        self.submitted = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.threads: list[threading.Thread] = []

    def submit(self, call: PredictCall) -> None:
        self.calls.append(call)
        self.submitted.release()
        thread = threading.Thread(target=self._answer, args=(call,))
        self.threads.append(thread)
        thread.start()

    def cancel(self, call: PredictCall) -> None:
        self.cancelled.append(call)

    def _answer(self, call: PredictCall) -> None:
        self.gate.wait(20)
        a, b = call.inputs["a"], call.inputs["b"]
        call.run_seconds = 0.25
        call.on_done({"sum": a + b, "difference": a - b})  # type: ignore[operator]

    def close(self) -> None:
        for thread in self.threads:
            thread.join()


class Refusing(Adder):
    """Its queue is always full."""

    def submit(self, call: PredictCall) -> None:
        call.on_done(Status(StatusCode.UNAVAILABLE, "the queue is full"))


class Waiting(Adder):
    """Answers nothing by itself."""

    def submit(self, call: PredictCall) -> None:
        self.calls.append(call)
        self.submitted.release()


class House:
    """One version of one model, and a count of the handles that are out."""

    def __init__(self, servable: Adder) -> None:
        self.servable = servable
        self.handles = 0
        self.lookups = 0
        self.released = threading.Semaphore(0)
        self.registry = CollectorRegistry()
        self.metrics = RequestMetrics(self.registry, lambda name: name == "adder")
        self.predictor = Predictor(self.lookup, self.metrics)
        self.record: RequestRecord

    def lookup(self, ref: ModelRef) -> ServableHandle:
        if ref.name != "adder":
            raise not_found(f"Servable not found for request: Latest({ref.name})")
        self.handles += 1
        self.lookups += 1
        return ServableHandle(ServableId("adder", 7), self.servable, self._release)

    def _release(self) -> None:
        self.handles -= 1
        self.released.release()

    async def infer(
        self, *runs: Run, model: str = "adder", deadline: float | None = None, plan: Any = None
    ) -> Inference:
        """Cancelled at the deadline, as the client's call does it; then TimeoutError."""
        async with asyncio.timeout_at(deadline):
            with self.metrics.record("Predict", model) as self.record:
                plan = plan or planned(*(runs or (add(),)))
                return await self.predictor.infer(ModelRef(model), plan, self.record, deadline)

    async def submitted(self, count: int) -> None:
        """Until so many more calls have reached the servable."""
        for _ in range(count):
            await asyncio.to_thread(self.servable.submitted.acquire)

    def count(self, code: str, model: str = "adder", version: str = "7") -> float:
        labels = {"model": model, "version": version, "method": "Predict", "code": code}
        return self.registry.get_sample_value("tfs_lite_requests_total", labels) or 0

    @property
    def inside(self) -> float | None:
        labels = {"model": "adder", "version": "7"}
        return self.registry.get_sample_value("tfs_lite_requests_in_flight", labels)


def add(a: Any = ONE, b: Any = ONE, *outputs: str, signature: str = DEFAULT_SIGNATURE) -> Run:
    inputs = {name: value for name, value in (("a", a), ("b", b)) if value is not None}
    return Run(signature, inputs, outputs)


def planned(*runs: Run) -> Callable[[Mapping[str, Signature]], Awaitable[Sequence[Run]]]:
    async def plan(signatures: Mapping[str, Signature]) -> Sequence[Run]:
        return runs

    return plan


async def delivered() -> None:
    """Until the answers given on this thread have reached the predictor: it comes by on the loop's next turn."""
    await asyncio.sleep(0)


@pytest.fixture
def house() -> House:
    return House(Adder())


def refusal(house: House, *runs: Run, **rest: Any) -> ServingError:
    with pytest.raises(ServingError) as caught:
        asyncio.run(house.infer(*runs, **rest))
    assert house.handles == 0
    return caught.value


def test_answer_names_the_version_and_holds_the_outputs_of_the_run(house: House) -> None:
    run = add()
    inference = asyncio.run(house.infer(run))
    assert inference.id == ServableId("adder", 7)
    assert inference.run is run
    assert float(inference.output["sum"][0]) == 2.0
    assert house.handles == 0
    assert house.count("OK") == 1
    assert (house.record.version, house.record.run_seconds) == (7, 0.25)


def test_call_carries_signature_filter_and_deadline(house: House) -> None:
    deadline = time.monotonic() + 20
    asyncio.run(house.infer(add(ONE, ONE, "sum", signature="add_five"), deadline=deadline))
    (call,) = house.servable.calls
    assert (call.signature, call.outputs, call.deadline) == ("add_five", ("sum",), deadline)


def test_unknown_model_is_not_found_and_counts_as_unknown(house: House) -> None:
    error = refusal(house, model="nobody")
    assert (error.code, str(error)) == (StatusCode.NOT_FOUND, "Servable not found for request: Latest(nobody)")
    assert house.count("NOT_FOUND", "unknown", "") == 1


def test_plan_sees_the_signatures_of_the_version_that_answers(house: House) -> None:
    async def plan(signatures: Mapping[str, Signature]) -> Sequence[Run]:
        assert signatures is house.servable.signatures
        assert house.handles == 1
        return [add()]

    asyncio.run(house.infer(plan=plan))


def test_plan_that_refuses_gives_the_version_back(house: House) -> None:
    async def plan(signatures: Mapping[str, Signature]) -> Sequence[Run]:
        raise invalid_argument("tensor parsing error: a")

    assert str(refusal(house, plan=plan)) == "tensor parsing error: a"
    assert house.record.version == 7
    assert house.servable.calls == []
    assert house.count("INVALID_ARGUMENT") == 1


def test_plan_that_is_cancelled_gives_the_version_back(house: House) -> None:
    async def main() -> None:
        entered = asyncio.Event()

        async def plan(signatures: Mapping[str, Signature]) -> Sequence[Run]:
            entered.set()
            await asyncio.Event().wait()
            raise AssertionError("went on")

        task = asyncio.ensure_future(house.infer(plan=plan))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert house.handles == 0
    assert house.servable.calls == []


def test_defaults_are_filled_in_before_the_model_runs(house: House) -> None:
    inference = asyncio.run(house.infer(add(np.zeros(3, np.float32), None, signature="add_five")))
    assert inference.output["sum"].tolist() == [5, 5, 5]
    assert set(inference.run.inputs) == {"a"}


@pytest.mark.parametrize(
    ("wanted", "words"), [(("nope",), "alias not found in signature: nope"), (("sum", "sum"), "duplicate output")]
)
def test_output_filter_is_checked(house: House, wanted: tuple[str, ...], words: str) -> None:
    assert words in str(refusal(house, add(ONE, ONE, *wanted)))


def test_wrong_dtype_and_shape_never_reach_the_model(house: House) -> None:
    assert "to be float but int64 is provided" in str(refusal(house, add(ONE, np.ones(1, np.int64))))
    assert "rank 2, expected 1" in str(refusal(house, add(ONE, np.ones((1, 1), np.float32))))
    assert "'batch'" in str(refusal(house, add(ONE, np.ones(2, np.float32))))
    assert house.servable.calls == []
    assert house.count("INVALID_ARGUMENT") == 3


def test_status_of_the_servable_becomes_the_error() -> None:
    house = House(Refusing())
    error = refusal(house)
    assert (error.code, str(error)) == (StatusCode.UNAVAILABLE, "the queue is full")
    rejected = house.registry.get_sample_value("tfs_lite_requests_rejected_total", {"model": "adder"})
    assert rejected == 1


def test_refusal_needs_no_turn_of_the_loop() -> None:
    house = House(Refusing())

    async def begin() -> bool:
        with house.metrics.record("Predict", "adder") as record:
            request = house.predictor.begin(ModelRef("adder"), lambda servable: [add()], record, None)
            return request.over

    assert asyncio.run(begin())
    assert (house.handles, house.inside) == (0, 0)


def test_refusal_cancels_the_other_runs_of_its_request() -> None:
    class Second(Waiting):
        """Refuses every call after the first."""

        def submit(self, call: PredictCall) -> None:
            if self.calls:
                call.on_done(Status(StatusCode.UNAVAILABLE, "the queue is full"))
            else:
                super().submit(call)

    house = House(Second())
    with pytest.raises(ServingError, match="the queue is full"):
        asyncio.run(house.infer(add(), add()))
    assert house.servable.cancelled[:1] == house.servable.calls


def test_failed_request_leaves_nothing_to_garbage_collection() -> None:
    """A server that is asked too much would hold the inputs of all that it has refused lately."""
    house, inputs = House(Refusing()), np.ones(1, np.float32)
    held = weakref.ref(inputs)

    async def ask() -> None:
        nonlocal inputs
        run = add(inputs)
        del inputs
        with pytest.raises(ServingError):
            await house.infer(run)

    gc.disable()
    try:
        asyncio.run(ask())
        assert held() is None
    finally:
        gc.enable()


def test_deadline_answers_the_client_while_the_model_keeps_its_handle(house: House) -> None:
    house.servable.gate.clear()
    with pytest.raises(TimeoutError):
        asyncio.run(house.infer(deadline=time.monotonic() + 0.05))
    assert house.count("DEADLINE_EXCEEDED") == 1
    assert house.handles == 1
    assert house.servable.cancelled == house.servable.calls
    house.servable.gate.set()
    assert house.released.acquire(timeout=20)
    assert house.handles == 0
    house.servable.close()


@pytest.mark.parametrize("runs", [1, 2])
def test_client_that_goes_cancels_every_call_and_the_handle_stays_until_the_model_is_done(runs: int) -> None:
    house = House(Adder())
    house.servable.gate.clear()

    async def main() -> None:
        task = asyncio.ensure_future(house.infer(*[add()] * runs))
        await house.submitted(runs)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert house.servable.cancelled == house.servable.calls
        assert len(house.servable.calls) == runs
        assert house.handles == 1
        house.servable.gate.set()
        assert await asyncio.to_thread(house.released.acquire, timeout=20)

    asyncio.run(main())
    assert house.handles == 0
    assert house.count("CANCELLED") == 1


def test_requests_inside_are_counted_per_version(house: House) -> None:
    house.servable.gate.clear()

    async def main() -> None:
        tasks = [asyncio.ensure_future(house.infer(add(), add())) for _ in range(3)]
        await house.submitted(6)
        assert house.inside == 3
        house.servable.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert house.inside == 0


def test_concurrent_requests_each_get_their_own_answer(house: House) -> None:
    async def main() -> None:
        runs = [add(np.full(1, n, np.float32)) for n in range(50)]
        answers = await asyncio.gather(*(house.infer(run) for run in runs))
        assert [float(answer.output["difference"][0]) for answer in answers] == [n - 1 for n in range(50)]

    asyncio.run(main())
    assert house.handles == 0


def test_several_runs_are_answered_in_order_by_one_version(house: House) -> None:
    runs = [add(np.full(1, n, np.float32), ONE, "sum") for n in range(5)]
    inference = asyncio.run(house.infer(*runs))
    assert inference.runs == tuple(runs)
    assert [output["sum"].tolist() for output in inference.outputs] == [[n + 1] for n in range(5)]
    assert house.lookups == 1
    assert house.record.run_seconds == 5 * 0.25


def test_nothing_runs_when_one_of_several_runs_does_not_fit(house: House) -> None:
    assert "duplicate output" in str(refusal(house, add(), add(ONE, ONE, "sum", "sum")))
    assert house.servable.calls == []


def test_first_failure_answers_at_once_and_the_other_runs_are_called_off() -> None:
    house = House(Waiting())

    async def main() -> None:
        task = asyncio.ensure_future(house.infer(add(), add(), add()))
        await house.submitted(3)
        first, second, third = house.servable.calls
        second.on_done(Status(StatusCode.INTERNAL, "the model fell over"))
        with pytest.raises(ServingError, match="the model fell over"):
            await task
        assert {first, third} <= set(house.servable.cancelled)
        assert house.handles == 1
        first.on_done(Status(StatusCode.CANCELLED, "the caller cancelled the request"))
        await delivered()
        assert house.handles == 1
        third.on_done({"sum": ONE, "difference": ONE})
        await delivered()
        assert house.handles == 0

    asyncio.run(main())
    assert house.inside == 0
    assert house.count("INTERNAL") == 1


def test_version_is_released_only_when_every_run_is_done() -> None:
    house = House(Waiting())

    async def main() -> None:
        task = asyncio.ensure_future(house.infer(add(), add()))
        await house.submitted(2)
        for call in reversed(house.servable.calls):
            assert (house.handles, house.inside) == (1, 1)
            call.on_done({"sum": ONE, "difference": ONE})
            await delivered()
        assert (house.handles, house.inside) == (0, 0)
        assert len((await task).outputs) == 2

    asyncio.run(main())


def test_deadline_of_several_runs_ends_them_all() -> None:
    house = House(Waiting())

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await house.infer(add(), add(), deadline=time.monotonic() + 0.05)
        assert house.servable.cancelled == house.servable.calls
        for call in house.servable.calls:
            assert house.handles == 1
            call.on_done(Status(StatusCode.CANCELLED, "the caller cancelled the request"))
            await delivered()
        assert house.handles == 0

    asyncio.run(main())
    assert len(house.servable.calls) == 2


def test_version_is_released_by_the_last_answer_also_when_the_event_loop_has_closed() -> None:
    house = House(Waiting())
    with pytest.raises(TimeoutError):
        asyncio.run(house.infer(add(), add(), deadline=time.monotonic() + 0.05))
    for call in house.servable.calls:
        assert house.handles == 1
        call.on_done(Status(StatusCode.CANCELLED, "the caller cancelled the request"))
    assert house.handles == 0
