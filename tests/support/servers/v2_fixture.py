"""A few models behind a real Predictor and the V2 services, for tests of the V2 protocol: no files, no lifecycle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from prometheus_client import CollectorRegistry

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import JudgesCalls, Model, PredictCall, Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import ServingError, Status, StatusCode, not_found
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.dtypes import Array
from tfs_lite.server.inference.pending import AnswerRoom
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.v2.fast_path import V2FastPath
from tfs_lite.server.v2.inference import SharedMemory, V2Inference
from tfs_lite.testing.lifecycle.servables import OwnClockServable

BATCH = SymbolicDim("batch")
SIMPLE = Signature(
    (TensorSpec("INPUT0", DataType.INT32, (BATCH, 4)), TensorSpec("INPUT1", DataType.INT32, (BATCH, 4))),
    (TensorSpec("OUTPUT0", DataType.INT32, (BATCH, 4)), TensorSpec("OUTPUT1", DataType.INT32, (BATCH, 4))),
)
REPEAT = Signature((TensorSpec("IN", DataType.INT32, (SymbolicDim("n"),)),), (TensorSpec("OUT", DataType.INT32, (1,)),))


def echo_signature(dtype: DataType, *shape: int | SymbolicDim) -> Signature:
    return Signature((TensorSpec("IN", dtype, shape),), (TensorSpec("OUT", dtype, shape),))


class FunctionModel(Model):
    """Runs a function over arrays; holds still while its gate is shut."""

    def __init__(self, signature: Signature, function: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> None:
        self._signatures = {DEFAULT_SIGNATURE: signature}
        self._function = function
        self.gate = threading.Event()
        self.gate.set()
        self.runs: list[Mapping[str, Array]] = []

    @property
    def platform(self) -> str:
        return "function"

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        arrays = cast("Mapping[str, Array]", inputs)
        self.runs.append(arrays)
        self.gate.wait(20)
        made = self._function(arrays)
        return {name: made[name] for name in outputs or self._signatures[DEFAULT_SIGNATURE].output_names}

    def close(self) -> None:
        self.gate.set()


class FunctionServable(OwnClockServable):
    """Every request runs alone, on one thread."""

    def __init__(self, model: FunctionModel, servable_id: ServableId, max_batch_size: int = 0) -> None:
        self.labels: dict[str, Sequence[str]] = {}
        super().__init__([model], servable_id, traits=Traits("test", max_batch_size, self.labels))
        self.model = model


class Repeater(JudgesCalls):
    """A decoupled servable: one answer for each number of the request, and none for none. A negative number is a
    failure."""

    traits = Traits("test", decoupled=True)
    signatures: Mapping[str, Signature] = {DEFAULT_SIGNATURE: REPEAT}

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.cancelled = threading.Event()
        self._threads: list[threading.Thread] = []

    def submit(self, call: PredictCall) -> None:
        thread = threading.Thread(target=self._answer, args=(call,))
        self._threads.append(thread)
        thread.start()

    def cancel(self, call: PredictCall) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.gate.set()
        for thread in self._threads:
            thread.join()

    def _answer(self, call: PredictCall) -> None:
        self.gate.wait(20)
        assert call.on_part is not None
        for number in cast(Array, call.inputs["IN"]):
            if number < 0:
                call.on_done(Status(StatusCode.INTERNAL, f"cannot repeat {number}"))
                return
            call.on_part({"OUT": np.array([number], np.int32)})
        call.on_done({})


class V2Fixture:
    """``add`` models, then ask ``infer`` on an event loop; ``close`` afterwards."""

    def __init__(self, memory: SharedMemory | None = None, room: AnswerRoom | None = None) -> None:
        self.servables: dict[tuple[str, int], Any] = {}
        self._all: list[Any] = []
        self.handles = 0
        self._lock = threading.Lock()  # guards handles
        self.registry = CollectorRegistry()
        self.metrics = RequestMetrics(self.registry, self.is_known)
        self.predictor = Predictor(self.lookup, self.metrics)
        self.infer = V2Inference(self.predictor, self.metrics, memory, self.versions_of, room)
        self.fast = V2FastPath(self.predictor, self.infer)

    def add(self, name: str, servable: Any, version: int = 1) -> Any:
        """In place of another one, which is closed with the fixture all the same."""
        self._all.append(servable)
        self.servables[name, version] = servable
        return servable

    def add_function(
        self,
        name: str,
        signature: Signature,
        function: Callable[[Mapping[str, Array]], Mapping[str, Array]],
        max_batch_size: int = 0,
        version: int = 1,
    ) -> FunctionServable:
        model = FunctionModel(signature, function)
        servable = FunctionServable(model, ServableId(name, version), max_batch_size)
        self.add(name, servable, version)
        return servable

    def add_simple(self, name: str = "simple", version: int = 1) -> FunctionServable:
        """Sum and difference of two inputs of four numbers, up to eight rows."""
        return self.add_function(name, SIMPLE, _sum_and_difference, 8, version)

    def add_echo(self, name: str, dtype: DataType, *shape: int | SymbolicDim) -> FunctionServable:
        return self.add_function(name, echo_signature(dtype, *shape), lambda inputs: {"OUT": inputs["IN"].copy()})

    def is_known(self, name: str) -> bool:
        return bool(self.versions_of(name))

    def versions_of(self, name: str) -> list[int]:
        return [version for known, version in self.servables if known == name]

    def lookup(self, ref: ModelRef) -> ServableHandle:
        versions = [version for name, version in self.servables if name == ref.name]
        version = max(versions, default=-1) if ref.version is None else ref.version
        if version not in versions:
            raise not_found(f"Servable not found for request: {ref.name}")
        with self._lock:
            self.handles += 1
        return ServableHandle(ServableId(ref.name, version), self.servables[ref.name, version], self._release)

    def _release(self) -> None:
        with self._lock:
            self.handles -= 1

    def count(self, code: str, model: str = "simple", version: str = "1") -> float:
        labels = {"model": model, "version": version, "method": "ModelInfer", "code": code}
        return self.registry.get_sample_value("tfs_lite_requests_total", labels) or 0

    def close(self) -> None:
        for servable in self._all:
            servable.close()


def _sum_and_difference(inputs: Mapping[str, Array]) -> dict[str, Array]:
    if (inputs["INPUT0"] == 13).any():
        raise ServingError(StatusCode.INTERNAL, "thirteen brings bad luck")
    return {"OUTPUT0": inputs["INPUT0"] + inputs["INPUT1"], "OUTPUT1": inputs["INPUT0"] - inputs["INPUT1"]}
