"""The CPU time that trials of versions cost a request, in the part of its way that knows them.

    python benchmarks/guard_cost.py

A Predictor takes requests to a servable that answers at once, on one thread: without trials, with a trial of another
model, and on a version under trial. Turns of each follow one another; the figures are medians, in microseconds of CPU
time for each request. The last column is the difference to a server without trials.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall, Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.trial import NO_TRIALS, Ending, Trial, TrialEnding, Trials
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.runs import Run
from tfs_lite.server.inference.predictor import Predictor

BATCH = SymbolicDim("batch")
SIGNATURE = Signature((TensorSpec("x", DataType.FLOAT, (BATCH,)),), (TensorSpec("y", DataType.FLOAT, (BATCH,)),))
SIZES = (1, 1_000, 16_000)
MODEL = ModelRef("m")


class Echo:
    """A servable that answers on the thread that asks."""

    traits = Traits("benchmark")

    def __init__(self) -> None:
        self.signatures = {DEFAULT_SIGNATURE: SIGNATURE}

    def submit(self, call: PredictCall) -> None:
        call.on_done({"y": call.inputs["x"]})


class Counter:
    """Counts endings, as evidence does for a request that was answered well."""

    def __init__(self) -> None:
        self.well, self.seconds = 0, 0.0

    def __call__(self, ending: TrialEnding) -> None:
        if ending.ending is Ending.WELL and not ending.cached:
            self.well += 1
            self.seconds += ending.run_seconds


def asker(trials: Trials, values: int) -> Callable[[int], None]:
    servable, metrics = Echo(), RequestMetrics(CollectorRegistry(), lambda name: True)
    id, release = ServableId("m", 8), lambda: None
    predictor = Predictor(lambda ref: ServableHandle(id, servable, release), metrics, trials=trials)
    run = Run(DEFAULT_SIGNATURE, {"x": np.ones(values, np.float32)}, fits=SIGNATURE)

    def plan(servable: Any) -> tuple[Run, ...]:
        return (run,)

    def ask(count: int) -> None:
        for _ in range(count):
            with metrics.record("Predict", "m") as record:
                predictor.begin(MODEL, plan, record, None).result()

    return ask


async def measure(values: int, turns: int, count: int) -> list[float]:
    heard = Counter()
    kinds = [
        asker(NO_TRIALS, values),
        asker({"another": {8: Trial(7, heard)}}, values),
        asker({"m": {8: Trial(7, heard)}}, values),
    ]
    times: list[list[float]] = [[] for _ in kinds]
    for turn in range(turns + 1):
        for place in range(len(kinds)):
            kind = (place + turn) % len(kinds)
            started = time.thread_time()
            kinds[kind](count)
            if turn:  # the first one warms up
                times[kind].append((time.thread_time() - started) / count * 1e6)
        await asyncio.sleep(0)
    assert heard.well == (turns + 1) * count
    return [median(each) for each in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--count", type=int, default=2_000, help="requests of a turn")
    asked = parser.parse_args()
    print(f"{'values':>8}{'':22}{'us a request':>14}{'difference':>12}")
    for values in SIZES:
        off, other, on = asyncio.run(measure(values, asked.turns, asked.count))
        for name, found in (("no trial", off), ("another model's trial", other), ("under trial", on)):
            print(f"{values:>8}  {name:<20}{found:>14.2f}{found - off:>12.2f}")


if __name__ == "__main__":
    main()
