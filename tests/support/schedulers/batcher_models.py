"""A model for :mod:`tests.support.schedulers.interleaving`: it runs and ends when it is told to.

Every row has a number of its own, ``id``, so that each run and each answer can be held against what was request.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import numpy as np

from tests.support.schedulers.interleaving import InterleavingScheduler, SteppedWorker, ThreadState, current
from tfs_lite.core.model import Model, Shapes, WorkerBusy, WorkerLost
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode

ROWS, WIDTH = SymbolicDim("rows"), SymbolicDim("width")
SHIFTS = {"a": 0.25, "b": 0.5}
"""What each signature adds to every number."""
SIGNATURES = {
    key: Signature(
        (TensorSpec("id", DataType.INT64, (ROWS,)), TensorSpec("x", DataType.DOUBLE, (ROWS, WIDTH))),
        (TensorSpec("y", DataType.DOUBLE, (ROWS, WIDTH)), TensorSpec("id", DataType.INT64, (ROWS,))),
    )
    for key in SHIFTS
}
SPAN = 16
"""Row ``id`` has the numbers ``SPAN * id``, ``SPAN * id + 1``, ..."""


class Verdict(Enum):
    """How a run ends, unless rows in it are poisoned or deadly."""

    FINE = "fine"
    FAILS = "ServingError"
    LOST = "WorkerLost"
    UNREAD = "WorkerLost, and nobody has read it"
    BUSY = "WorkerBusy"


NOT_RUN = (Verdict.LOST, Verdict.UNREAD, Verdict.BUSY)
"""Such runs gave no answer to any call."""


@dataclass(eq=False)
class Run:
    """One call of ``Model.run``. ``ids`` with those of padding rows; ``ended`` is a time of the scheduler's clock."""

    signature: str
    ids: tuple[int, ...]
    width: int
    verdict: Verdict | None = None
    ended: float = 0.0


class GatedModel(Model):
    """``poisoned``: rows that no run survives; it raises what models must not raise. ``deadly``: rows that no worker
    survives. ``runs``: of all equal models, in order; ``losses``: those that were lost, in the order of their ends."""

    platform = "numpy"
    signatures = SIGNATURES

    def __init__(self, scheduler: InterleavingScheduler, runs: list[Run], concurrency: int = 1) -> None:
        self.poisoned: set[int] = set()
        self.deadly: set[int] = set()
        self.runs = runs
        self.losses: list[Run] = []
        self.under_way: dict[SteppedWorker, Run] = {}
        self.closed = 0
        self._scheduler = scheduler
        self._concurrency = concurrency
        self._lent: dict[SteppedWorker, dict[str, Any]] = {}

    @property
    def concurrency(self) -> int:
        return self._concurrency

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor]:
        worker = cast(SteppedWorker, current())
        self._lent[worker] = {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
        return self._lent[worker].copy()

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        worker = cast(SteppedWorker, current())
        arrays = cast("Mapping[str, Any]", inputs)
        if self.closed or len(self.under_way) >= self._concurrency:
            raise self._scheduler.violation("a model was run after close, or by too many threads")
        run = Run(signature, tuple(arrays["id"].tolist()), arrays["x"].shape[1])
        self.runs.append(run)
        self.under_way[worker] = run
        self._scheduler.pause(ThreadState.IN_RUN)
        del self.under_way[worker]
        results = {"y": arrays["x"] + SHIFTS[signature], "id": arrays["id"].copy()}
        for array in self._lent.pop(worker, {}).values():
            array.fill(-1)
        run.ended = self._scheduler.clock.monotonic()
        if self.deadly.intersection(run.ids) and run.verdict in (Verdict.FINE, Verdict.FAILS):
            run.verdict = Verdict.LOST
        if run.verdict is Verdict.LOST:
            self.losses.append(run)
            raise WorkerLost("the worker died")
        if run.verdict is Verdict.UNREAD:
            raise WorkerLost("the worker died", unread=True)
        if run.verdict is Verdict.BUSY:
            raise WorkerBusy("the worker is busy")
        if run.verdict is Verdict.FAILS:
            raise ServingError(StatusCode.RESOURCE_EXHAUSTED, "no memory for this run")
        if self.poisoned.intersection(run.ids):
            raise ValueError("poisoned rows")
        return {name: results[name] for name in outputs or ("y", "id")}

    def recover(self, give_up: threading.Event) -> bool:
        self._scheduler.pause(ThreadState.RECOVERING)
        return not give_up.is_set()

    def close(self) -> None:
        self.closed += 1
