"""Models with sequences for tests: what they were given is on record, and their runs can be held up one by one.

A request has one INT32 ``INPUT`` of one element; ``OUTPUT`` is the sum of what its sequence has sent so far. Where the
sum is kept is what the models differ in: by row (as a model for Direct does), by id (for Oldest), or as implicit state.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from tests.support.schedulers.requests import PATIENCE, Request
from tfs_lite.config.model import ModelSettings, signature_of
from tfs_lite.core.model import Model, SequenceFlags, WorkerLost, WorkerStatus
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, Tensor

Inputs = dict[str, Any]


def sum_settings(
    batch: int = 4,
    *,
    corrid: str = "TYPE_UINT64",
    dims: int = 1,
    states: tuple[Mapping[str, object], ...] = (),
    **how: object,
) -> ModelSettings:
    """``how``: fields of ``sequence_batching``, such as ``oldest``, or ``parameters`` of the model. ``dims``: of INPUT
    and OUTPUT. With ``states`` the model has no control tensors but START and READY."""
    parameters = how.pop("parameters", {})
    flags = {"START": "START", "READY": "READY"} if states else {"START": "START", "READY": "READY", "END": "END"}
    controls: list[dict[str, object]] = [
        {"name": name, "control": [{"kind": f"CONTROL_SEQUENCE_{kind}", "int32_false_true": [0, 1]}]}
        for name, kind in flags.items()
    ]
    if corrid and not states:
        controls.append({"name": "CORRID", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": corrid}]})
    return ModelSettings.model_validate(
        {
            "name": "sums",
            "max_batch_size": batch,
            "input": [{"name": "INPUT", "data_type": "TYPE_INT32", "dims": [dims]}],
            "output": [{"name": "OUTPUT", "data_type": "TYPE_INT32", "dims": [dims]}],
            "parameters": parameters,
            "sequence_batching": {"control_input": controls, "state": states, **how},
        }
    )


class Gate:
    """Threads pass while it is open; while it is shut, as many as are let."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._open, self._permits, self._waiting = True, 0, 0

    def shut(self) -> None:
        with self._changed:
            self._open, self._permits = False, 0

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def let(self, count: int = 1) -> None:
        """So many may pass, those that wait already among them."""
        with self._changed:
            self._permits += count
            self._changed.notify_all()

    def wait_for(self, waiting: int = 1) -> None:
        """Until so many threads stand before it."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting >= waiting, PATIENCE)

    def pass_through(self) -> None:
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._open or self._permits > 0, PATIENCE)
            self._waiting -= 1
            self._permits -= not self._open


class SumModel(Model):
    """Sums by row: the state of a row is the model's own, and begins anew at START.

    ``runs``: the inputs of every run. ``failures``: what the next runs raise, one each; ``breaks``: numbers that no run
    survives. ``lends``: whether it has memory for the next run, which it spoils afterwards.
    """

    platform = "test"

    def __init__(self, settings: ModelSettings, lends: bool = False) -> None:
        signature = signature_of(settings)
        assert signature is not None
        self._signatures = {DEFAULT_SIGNATURE: signature}
        self.runs: list[Inputs] = []
        self.failures: list[BaseException] = []
        self.breaks: set[int] = set()
        self.gate, self.recovery = Gate(), Gate()
        self.closed = self.restarts = 0
        self._lends = lends
        self._lent: dict[str, Any] = {}
        self._sums: dict[object, Any] = {}

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    def stage(self, signature: str, shapes: Mapping[str, tuple[tuple[int, ...], Any]]) -> dict[str, Tensor] | None:
        if not self._lends:
            return None
        self._lent = {name: np.full(shape, 77, dtype) for name, (shape, dtype) in shapes.items()}
        return dict(self._lent)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        arrays = cast(Inputs, dict(inputs))
        assert not self.closed
        assert all(array is arrays[name] for name, array in self._lent.items())
        self.runs.append({name: array.copy() for name, array in arrays.items()})
        self.gate.pass_through()
        if self.failures:
            raise self.failures.pop(0)
        if self.breaks.intersection(arrays["INPUT"].ravel().tolist()):
            raise ValueError("a number that breaks the model")
        results = self.results(arrays)
        for array in self._lent.values():
            array.fill(66)
        self._lent = {}
        return {name: results[name] for name in outputs or results}

    def results(self, inputs: Inputs) -> dict[str, Any]:
        output = np.zeros_like(inputs["INPUT"])
        batched = inputs["INPUT"].ndim > 1
        for row in range(len(output)) if batched else [0]:
            if inputs["READY"].ravel()[row]:
                key, place = self.key(inputs, row), row if batched else slice(None)
                before = 0 if inputs["START"].ravel()[row] else self._sums[key]
                self._sums[key] = output[place] = before + inputs["INPUT"][place]
        return {"OUTPUT": output}

    def key(self, inputs: Inputs, row: int) -> object:
        """By what a sum is found again."""
        return row

    def recover(self, give_up: threading.Event) -> bool:
        self.recovery.pass_through()
        self._sums.clear()
        return not give_up.is_set()

    def close(self) -> None:
        self.closed += 1

    def lose_worker(self) -> None:
        """In the next run; it recovers when ``recovery`` lets it."""
        self.recovery.shut()
        self.failures.append(WorkerLost("the worker died"))

    def start_worker_again(self) -> None:
        """It has died while nothing ran, and forgotten everything."""
        self._sums.clear()
        self.restarts += 1

    @property
    def worker(self) -> WorkerStatus:
        return WorkerStatus("process", restarts=self.restarts)

    def column(self, name: str) -> list[list[Any]]:
        """Of every run, what each row had of this input."""
        return [run[name].ravel().tolist() for run in self.runs]


class SumByIdModel(SumModel):
    """Sums by id, wherever in a batch the sequence is."""

    def key(self, inputs: Inputs, row: int) -> object:
        return inputs["CORRID"].ravel()[row]


class SumByStateModel(SumModel):
    """Keeps nothing: ``SUM_IN`` becomes ``SUM_OUT``."""

    def results(self, inputs: Inputs) -> dict[str, Any]:
        total = inputs["INPUT"] + inputs["SUM_IN"]
        return {"OUTPUT": total, "SUM_OUT": total.copy()}


class SequenceRequest(Request):
    """A call of a sequence."""

    def __init__(self, number: object, id: int | str | None, start: bool, end: bool, **more: Any) -> None:
        flags = None if id is None else SequenceFlags(id, start, end)
        super().__init__({"INPUT": np.asarray(number, np.int32)}, sequence=flags, **more)

    @property
    def sum(self) -> Any:
        """Waits. The only element of the output, or all of them."""
        numbers = self.outputs["OUTPUT"].ravel().tolist()
        return numbers[0] if len(numbers) == 1 else numbers
