"""A small server of models that compute with numpy, each behind a real batcher, for ensembles to be made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.support.schedulers.requests import PATIENCE, Request
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import Model, PredictCall
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import Status
from tfs_lite.managers.serving_map import ServingMap
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.schedulers.ensemble.servable import EnsembleServable
from tfs_lite.testing.lifecycle.servables import OwnClockServable

Compute = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def spec(name: str, dims: Sequence[int], batch: int = 0, dtype: DataType = DataType.FLOAT) -> TensorSpec:
    first = (SymbolicDim("batch", batch),) if batch else ()
    rest = tuple(size if size > 0 else SymbolicDim(f"{name}_{axis}") for axis, size in enumerate(dims))
    return TensorSpec(name, dtype, first + rest)


def signature(inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]], batch: int = 0) -> Signature:
    return Signature(
        tuple(spec(name, dims, batch) for name, dims in inputs.items()),
        tuple(spec(name, dims, batch) for name, dims in outputs.items()),
    )


class Calculator(Model):
    """Runs ``compute``. With ``gate`` it stands still in every run until that is set; ``entered`` counts the runs that
    have begun. ``seen`` has the inputs of each run, ``asked`` the outputs."""

    platform = "numpy"

    def __init__(self, signature: Signature, compute: Compute, gate: threading.Event | None = None) -> None:
        self._signatures = {DEFAULT_SIGNATURE: signature}
        self.compute = compute
        self.gate = gate
        self.entered = threading.Semaphore(0)
        self.seen: list[Mapping[str, Tensor]] = []
        self.asked: list[tuple[str, ...]] = []
        self.closed = False

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        self.seen.append(dict(inputs))
        self.asked.append(outputs)
        self.entered.release()
        if self.gate is not None:
            assert self.gate.wait(PATIENCE)
        results = self.compute(inputs)
        return {name: results[name] for name in outputs or results if name in results}

    def close(self) -> None:
        self.closed = True

    def wait_entered(self) -> None:
        assert self.entered.acquire(timeout=PATIENCE)


def adder(amount: float, batch: int = 0, dims: Sequence[int] = (2,), gate: threading.Event | None = None) -> Calculator:
    """``y = x + amount``."""
    return Calculator(signature({"x": dims}, {"y": dims}, batch), lambda inputs: {"y": inputs["x"] + amount}, gate)


class EnsembleFixture:
    """Models behind batchers in a serving map, and ensembles among them. ``calls`` are those of steps that ended."""

    def __init__(self) -> None:
        self.map = ServingMap()
        self.servables: list[Any] = []
        self.calls: list[tuple[ServableId, PredictCall, Mapping[str, Tensor] | Status]] = []
        self._changed = threading.Condition()
        self._live = 0

    def resolve(self, name: str, version: int | None) -> ServableHandle:
        handle = self.map.lookup(ModelRef(name, version))
        with self._changed:
            self._live += 1
        return ServableHandle(handle.id, handle.servable, lambda: self._released(handle))

    def _released(self, handle: ServableHandle) -> None:
        handle.release()
        with self._changed:
            self._live -= 1
            self._changed.notify_all()

    def wait_for_no_handles(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: not self._live, PATIENCE)

    def serve(self, name: str, model: Calculator, version: int = 1, **settings: Any) -> OwnClockServable:
        servable_id = ServableId(name, version)
        servable = OwnClockServable([model], servable_id, BatchSettings(**settings))
        self.add(servable_id, servable)
        return servable

    def add(self, servable_id: ServableId, servable: Any) -> None:
        self.servables.append(servable)
        self.map.add(servable_id, servable)

    def ensemble(self, name: str, settings: Mapping[str, Any], version: int = 1, **rest: Any) -> EnsembleServable:
        servable_id = ServableId(name, version)
        rest = {"on_call": lambda *call: self.calls.append(call)} | rest
        made = EnsembleServable(servable_id, ModelSettings.model_validate(settings), self.resolve, **rest)
        self.add(servable_id, made)
        return made

    def serve_single(self, name: str, model: str, **settings: Any) -> EnsembleServable:
        """An ensemble of one step, with its model, which adds 1."""
        self.serve(model, adder(1), **settings)
        return self.ensemble(name, single(model))

    @contextmanager
    def blocked(self, name: str) -> Iterator[OwnClockServable]:
        """The model, which stands still in a run inside the block; it may do no other run there."""
        with self.resolve(name, None) as handle:
            servable: OwnClockServable = handle.servable
        (model,) = servable.models
        assert isinstance(model, Calculator)
        model.gate = threading.Event()
        running, runs = ask(servable, {"x": [0, 0]}), len(model.seen)
        model.wait_entered()
        yield servable
        assert len(model.seen) == runs + 1
        model.gate.set()
        assert running.outputs

    def counted(self) -> list[str]:
        """The models of the calls that ended."""
        return [servable_id.name for servable_id, _, _ in self.calls]

    def close(self) -> None:
        self.wait_for_no_handles()
        for servable in self.servables:
            servable.close()


def tensor(name: str, dims: Sequence[int] = (2,), data_type: str = "TYPE_FP32") -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": list(dims)}


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str], version: int = -1) -> dict[str, Any]:
    return {"model_name": model, "model_version": version, "input_map": dict(inputs), "output_map": dict(outputs)}


def settings_of(
    inputs: Sequence[dict[str, Any]], outputs: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]], **rest: Any
) -> dict[str, Any]:
    scheduling = {"step": list(steps)} | {key: rest.pop(key) for key in ("max_inflight_requests",) if key in rest}
    return {
        "platform": "ensemble",
        "input": list(inputs),
        "output": list(outputs),
        "ensemble_scheduling": scheduling,
        **rest,
    }


DIAMOND = settings_of(
    [tensor("IN")],
    [tensor("LEFT"), tensor("RIGHT")],
    [
        step("first", {"x": "IN"}, {"y": "middle"}),
        step("left", {"x": "middle"}, {"y": "LEFT"}),
        step("right", {"x": "middle"}, {"y": "RIGHT"}),
    ],
)
"""One step, then two side by side."""


def pipeline(*steps: dict[str, Any], **rest: Any) -> dict[str, Any]:
    """An ensemble from ``IN`` to ``OUT``."""
    return settings_of([tensor("IN")], [tensor("OUT")], steps, **rest)


CHAIN = pipeline(step("a", {"x": "IN"}, {"y": "between"}), step("b", {"x": "between"}, {"y": "OUT"}))


def single(model: str, version: int = -1, **rest: object) -> dict[str, Any]:
    """An ensemble of one step."""
    return pipeline(step(model, {"x": "IN"}, {"y": "OUT"}, version), **rest)


def diamond(
    fixture: EnsembleFixture, left: Calculator | None = None, right: Calculator | None = None
) -> EnsembleServable:
    """``DIAMOND`` over three models: ``first`` adds 1, ``left`` 10 and ``right`` 100 unless others are given."""
    fixture.serve("first", adder(1))
    fixture.serve("left", left or adder(10))
    fixture.serve("right", right or adder(100))
    return fixture.ensemble("e", DIAMOND)


def failing(error: Exception, gate: threading.Event | None = None) -> Calculator:
    """A model whose every run raises ``error``."""

    def compute(inputs: object) -> dict[str, Any]:
        raise error

    return Calculator(signature({"x": (2,)}, {"y": (2,)}), compute, gate)


def through(model: str) -> dict[str, Any]:
    """An ensemble that passes ``x`` to a model and gives its ``y``, so that it can be such a model itself."""
    return settings_of([tensor("x")], [tensor("y")], [step(model, {"x": "x"}, {"y": "y"})])


def ask(servable: Any, inputs: Mapping[str, Any], outputs: tuple[str, ...] = (), **rest: Any) -> Request:
    """Submits a request and returns at once."""
    request = Request({name: np.asarray(value, np.float32) for name, value in inputs.items()}, outputs, **rest)
    servable.submit(request.call)
    return request
