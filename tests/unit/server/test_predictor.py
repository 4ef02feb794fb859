from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, Status, StatusCode, not_found
from tfs_lite.protocols.serving import ModelRef
from tfs_lite.server.predictor import Prediction, PredictionRequest, Predictor
from tfs_lite.server.request_metrics import RequestMetrics

BATCH = SymbolicDim("batch")
ADD = Signature(
    (TensorSpec("a", DataType.FLOAT, (BATCH,)), TensorSpec("b", DataType.FLOAT, (BATCH,))),
    (TensorSpec("sum", DataType.FLOAT, (BATCH,)), TensorSpec("difference", DataType.FLOAT, (BATCH,))),
)
ONE = np.ones(1, np.float32)


class Adder:
    """A servable that answers on a thread of its own, when its gate is open."""

    platform = "test"
    signatures: ClassVar[dict[str, Signature]] = {"serving_default": ADD}

    def __init__(self) -> None:
        self.calls: list[PredictCall] = []
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

    def _answer(self, call: PredictCall) -> None:
        self.gate.wait(20)
        a, b = call.inputs["a"], call.inputs["b"]
        call.on_done({"sum": a + b, "difference": a - b})  # type: ignore[operator]

    def close(self) -> None:
        for thread in self.threads:
            thread.join()


class Refusing(Adder):
    """Its queue is always full."""

    def submit(self, call: PredictCall) -> None:
        call.on_done(Status(StatusCode.UNAVAILABLE, "the queue is full"))


class House:
    """One version of one model, and a count of the handles that are out."""

    def __init__(self, servable: Adder) -> None:
        self.servable = servable
        self.handles = 0
        self.released = threading.Semaphore(0)
        self.registry = CollectorRegistry()
        metrics = RequestMetrics(self.registry, lambda name: name == "adder")
        self.predictor = Predictor(self.lookup, metrics)

    def lookup(self, ref: ModelRef) -> ServableHandle:
        if ref.name != "adder":
            raise not_found(f"Servable not found for request: Latest({ref.name})")
        self.handles += 1
        return ServableHandle(ServableId("adder", 7), self.servable, self._release)

    def _release(self) -> None:
        self.handles -= 1
        self.released.release()

    def predict(self, inputs: Mapping[str, Any] | None = None, **rest: Any) -> Prediction:
        return asyncio.run(self.predictor.predict(self.request(inputs, **rest)))

    @staticmethod
    def request(inputs: Mapping[str, Any] | None = None, **rest: Any) -> PredictionRequest:
        return PredictionRequest(
            model=rest.pop("model", ModelRef("adder")),
            inputs={"a": ONE, "b": ONE} if inputs is None else inputs,
            decode=rest.pop("decode", lambda raw, name: raw),
            **rest,
        )

    def count(self, code: str, model: str = "adder", version: str = "7") -> float:
        labels = {"model": model, "version": version, "method": "Predict", "code": code}
        return self.registry.get_sample_value("tfs_lite_requests_total", labels) or 0


@pytest.fixture
def house() -> House:
    return House(Adder())


def refusal(house: House, *args: Any, **kwargs: Any) -> ServingError:
    with pytest.raises(ServingError) as caught:
        house.predict(*args, **kwargs)
    assert house.handles == 0
    return caught.value


def test_answer_names_version_and_signature(house: House) -> None:
    prediction = house.predict()
    assert prediction.id == ServableId("adder", 7)
    assert prediction.signature == "serving_default"
    assert float(prediction.outputs["sum"][0]) == 2.0  # type: ignore[index]
    assert house.handles == 0
    assert house.count("OK") == 1


def test_call_carries_signature_filter_and_deadline(house: House) -> None:
    deadline = time.monotonic() + 20
    house.predict(wanted=("sum",), deadline=deadline, model=ModelRef("adder", signature="serving_default"))
    (call,) = house.servable.calls
    assert (call.signature, call.outputs, call.deadline) == ("serving_default", ("sum",), deadline)


def test_unknown_model_is_not_found_and_counts_as_unknown(house: House) -> None:
    error = refusal(house, model=ModelRef("nobody"))
    assert (error.code, str(error)) == (StatusCode.NOT_FOUND, "Servable not found for request: Latest(nobody)")
    assert house.count("NOT_FOUND", "unknown", "") == 1


def test_unknown_signature_is_a_failed_precondition(house: House) -> None:
    error = refusal(house, model=ModelRef("adder", signature="nope"))
    assert error.code is StatusCode.FAILED_PRECONDITION
    assert 'Serving signature key "nope" not found' in str(error)


def test_nothing_is_decoded_when_the_names_are_wrong(house: House) -> None:
    def decode(raw: Any, name: str) -> Any:
        raise AssertionError("decoded")

    assert "Missing but required: {b}" in str(refusal(house, {"a": ONE}, decode=decode))
    assert "Sent extra: {c}" in str(refusal(house, {"a": ONE, "b": ONE, "c": ONE}, decode=decode))
    assert "Signature input alias: b not found in request" in str(refusal(house, {"a": ONE, "c": ONE}, decode=decode))


def test_decoding_comes_before_the_output_filter(house: House) -> None:
    def decode(raw: Any, name: str) -> Any:
        raise ServingError(StatusCode.INVALID_ARGUMENT, f"tensor parsing error: {name}")

    assert str(refusal(house, decode=decode, wanted=("nope",))) == "tensor parsing error: a"


@pytest.mark.parametrize(
    ("wanted", "words"), [(("nope",), "alias not found in signature: nope"), (("sum", "sum"), "duplicate output")]
)
def test_output_filter_is_checked(house: House, wanted: tuple[str, ...], words: str) -> None:
    assert words in str(refusal(house, wanted=wanted))


def test_wrong_dtype_and_shape_never_reach_the_model(house: House) -> None:
    assert "to be float but int64 is provided" in str(refusal(house, {"a": ONE, "b": np.ones(1, np.int64)}))
    assert "rank 2, expected 1" in str(refusal(house, {"a": ONE, "b": np.ones((1, 1), np.float32)}))
    assert "(batch)" in str(refusal(house, {"a": ONE, "b": np.ones(2, np.float32)}))
    assert house.servable.calls == []
    assert house.count("INVALID_ARGUMENT") == 3


def test_status_of_the_servable_becomes_the_error() -> None:
    house = House(Refusing())
    error = refusal(house)
    assert (error.code, str(error)) == (StatusCode.UNAVAILABLE, "the queue is full")
    rejected = house.registry.get_sample_value("tfs_lite_requests_rejected_total", {"model": "adder"})
    assert rejected == 1


def test_deadline_answers_the_client_while_the_model_keeps_its_handle(house: House) -> None:
    house.servable.gate.clear()
    with pytest.raises(ServingError) as caught:
        house.predict(deadline=time.monotonic() + 0.05)
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
    assert house.handles == 1
    assert house.servable.calls[0].cancelled
    house.servable.gate.set()
    assert house.released.acquire(timeout=20)
    assert house.handles == 0
    house.servable.close()


def test_client_that_goes_cancels_the_call_and_the_handle_stays_until_the_model_is_done(house: House) -> None:
    house.servable.gate.clear()

    async def main() -> None:
        task = asyncio.ensure_future(house.predictor.predict(house.request()))
        await asyncio.to_thread(house.servable.submitted.acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert house.servable.calls[0].cancelled
        assert house.handles == 1
        house.servable.gate.set()
        assert await asyncio.to_thread(house.released.acquire, timeout=20)

    asyncio.run(main())
    assert house.handles == 0
    assert house.count("CANCELLED") == 1


def test_requests_inside_are_counted_per_version(house: House) -> None:
    house.servable.gate.clear()
    labels = {"model": "adder", "version": "7"}

    async def main() -> None:
        tasks = [asyncio.ensure_future(house.predictor.predict(house.request())) for _ in range(3)]
        for _ in tasks:
            await asyncio.to_thread(house.servable.submitted.acquire)
        assert house.registry.get_sample_value("tfs_lite_requests_in_flight", labels) == 3
        house.servable.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert house.registry.get_sample_value("tfs_lite_requests_in_flight", labels) == 0


def test_concurrent_requests_each_get_their_own_answer(house: House) -> None:
    async def main() -> None:
        requests = [house.request({"a": np.full(1, n, np.float32), "b": ONE}) for n in range(50)]
        answers = await asyncio.gather(*(house.predictor.predict(request) for request in requests))
        assert [float(answer.outputs["difference"][0]) for answer in answers] == [n - 1 for n in range(50)]  # type: ignore[index]

    asyncio.run(main())
    assert house.handles == 0
