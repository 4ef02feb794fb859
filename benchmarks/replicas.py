"""What a batch costs on its way to a replica and back, against a process of the same host.

    python benchmarks/replicas.py [--rounds 15] [--json]

Batches of 4 KB, 150 KB and 4.8 MB, put together in the memory that the model offers, as the batching scheduler does it;
the model looks at the first column and answers with it. Sides: a worker process (shared memory), a replica of this host
through shared memory, through frames over a UNIX socket, and through frames over TCP on loopback. They take turns
within each round; figures are medians over rounds, ratios those of one round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from tests.support.servers.replicas import SECRET, PlaceOfReplicas, ReplicaHost
from tfs_lite.cluster.replicas.near import ReplicaModel
from tfs_lite.core.model import Model
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.workers.connection import RemoteModel
from tfs_lite.workers.process import ProcessModel
from tfs_lite.workers.supervisor import Supervisor

SIZES = {"4 KB": (32, 32), "150 KB": (32, 1_200), "4.8 MB": (32, 37_632)}
"""Rows, and floats of each."""
AIMS = {"same host": (1.15, 1.15, 1.15), "TCP": (1.3, 1.3, 3.5)}
LEAST_SECONDS = 0.05
"""Each measurement repeats its work for at least so long."""
PROCESS = "process"


class FirstColumn(Model):
    platform = "benchmark"
    signatures: Mapping[str, Signature] = MappingProxyType(
        {
            DEFAULT_SIGNATURE: Signature(
                (TensorSpec("x", DataType.FLOAT, (SymbolicDim("batch"), SymbolicDim("width"))),),
                (TensorSpec("y", DataType.FLOAT, (SymbolicDim("batch"), 1)),),
            )
        }
    )

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        return {"y": np.asarray(inputs["x"])[:, :1].copy()}

    def resident_bytes(self) -> int:
        return 0

    def close(self) -> None: ...


def make(arguments: str) -> FirstColumn:
    return FirstColumn()


@contextmanager
def sides() -> Iterator[Mapping[str, Model]]:
    remote = RemoteModel("model m version 1", "replicas:make", "")
    with ExitStack() as stack:
        supervisor = Supervisor(["replicas"])
        stack.callback(supervisor.close)
        host = stack.enter_context(ReplicaHost(["replicas"]))
        models: dict[str, Model] = {PROCESS: ProcessModel(supervisor, remote)}
        for side in ("same host", "UNIX socket", "TCP"):
            address = host.start(f"m/1/{side}").address
            if side == "TCP":
                address = replace(address, unix=None)
            place = PlaceOfReplicas(address)
            models[side] = ReplicaModel(place, remote, SECRET, shared_memory=side == "same host")
        for model in models.values():
            stack.callback(model.close)
        yield models


def batch(model: Model, rows: np.ndarray) -> Callable[[], object]:
    shapes = {"x": (rows.shape, rows.dtype)}

    def run() -> object:
        staged = model.stage("", shapes)
        assert staged is not None
        np.copyto(np.asarray(staged["x"]), rows)
        return model.run("", staged, ("y",))

    return run


def seconds(work: Callable[[], object]) -> float:
    """The median of one call."""
    calls: list[float] = []
    begin = now = time.perf_counter()
    while now - begin < LEAST_SECONDS or len(calls) < 5:
        work()
        before, now = now, time.perf_counter()
        calls.append(now - before)
    return statistics.median(calls)


def figures(rounds: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    with sides() as models:
        for index, (size, shape) in enumerate(SIZES.items()):
            rows = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            work = {side: batch(model, rows) for side, model in models.items()}
            times: dict[str, list[float]] = {side: [] for side in models}
            for side in models:
                seconds(work[side])
            for turn in range(rounds):
                order = list(models)
                for side in order[turn % len(order) :] + order[: turn % len(order)]:
                    times[side].append(seconds(work[side]))
            for side in models:
                ratio = statistics.median(a / b for a, b in zip(times[side], times[PROCESS], strict=True))
                aim = AIMS[side][index] if side in AIMS else None
                us = statistics.median(times[side]) * 1e6
                found.append({"size": size, "side": side, "us": round(us, 1), "ratio": round(ratio, 2), "aim": aim})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = figures(options.rounds)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for row in found:
        aim = f"  (aim {row['aim']})" if row["aim"] else ""
        print(f"{row['size']:>7}  {row['side']:<12} {row['us']:>9} us  x {row['ratio']}{aim}")


if __name__ == "__main__":
    main()
