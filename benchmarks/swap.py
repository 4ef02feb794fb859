"""What a swap costs: how long a pushed version takes to answer, and what swapping does to requests being served.

    python benchmarks/swap.py [--rounds 5] [--seconds 4] [--rate 200] [--json]

One server process, one load generator (this process), models A (a small network) and B (200 MB of weights).

- push-to-available: the time from the rename of a complete version of A to its first answer, and how much of that
  was the load itself (the server's own figure). 60 s poll interval: only the file-system events can be that quick.
- p99 of A at a fixed request rate (open loop, so that a stall is not hidden by waiting callers): steady, while A
  is swapped in a loop, and while B is unloaded and loaded in a loop. The three take turns within each round; the
  ratios are medians over rounds of p99 to the steady p99 of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import torch

import tfs_lite
from tfs_lite.protocols.messages import PredictRequest, PredictResponse
from tfs_lite.protocols.tensor_proto import encode
from tfs_lite.testing.process import ServerProcess, wait_until

PREDICT = "/tensorflow.serving.PredictionService/Predict"
WARM_UP_SECONDS = 1.0


class Staging:
    """Complete versions of one model, kept beside the served base path so that a push is a single rename."""

    def __init__(self, root: Path, name: str, module: torch.nn.Module, width: int) -> None:
        self.base = root / "served" / name
        self._staged = root / "staged" / name
        self.base.mkdir(parents=True)
        self._original = tfs_lite.save(module, self._staged, example_inputs=(torch.zeros(2, width),))
        self.version = 0

    def push(self) -> float:
        """Renames the next version into place, drops the one before the last; returns the time of the rename."""
        self.version += 1
        copy = self._staged / f"next-{self.version}"
        copy.mkdir()
        for file in Path(self._original).iterdir():
            os.link(file, copy / file.name)
        pushed = time.perf_counter()
        copy.rename(self.base / str(self.version))
        return pushed


class Probe:
    """Asks model A, and says which version answered."""

    def __init__(self, target: str, width: int) -> None:
        self.request = PredictRequest()
        self.request.model_spec.name = "a"
        self.request.inputs["input"].CopyFrom(encode(np.zeros((1, width), np.float32), as_content=True))
        self.payload = self.request.SerializeToString()
        self.target = target

    def wait_version(self, call: Callable[[bytes], bytes], version: int) -> float:
        """The time at which ``version`` first answered. Asks every millisecond."""
        pause = threading.Event()
        while PredictResponse.FromString(call(self.payload)).model_spec.version.value != version:
            pause.wait(0.001)
        return time.perf_counter()

    async def open_loop(self, rate: float, seconds: float) -> list[float]:
        """Latencies in seconds of requests sent at a fixed rate, measured from when each was due."""
        async with grpc.aio.insecure_channel(self.target) as channel:
            call = channel.unary_unary(PREDICT)
            await call(self.payload)
            loop, latencies = asyncio.get_running_loop(), list[float]()

            async def one(due: float) -> None:
                await call(self.payload)
                latencies.append(loop.time() - due)

            start, tasks = loop.time() + 0.05, list[asyncio.Task[None]]()
            for number in range(int(rate * seconds)):
                due = start + number / rate
                await asyncio.sleep(max(due - loop.time(), 0))
                tasks.append(asyncio.create_task(one(due)))
            await asyncio.gather(*tasks)
            return latencies


def versions(server: ServerProcess, model: str) -> dict[int, str]:
    status, body = server.get(f"/v1/models/{model}")
    found = json.loads(body)["model_version_status"] if status == 200 else []
    return {int(row["version"]): row["state"] for row in found}


def push_times(server: ServerProcess, a: Staging, probe: Probe, pushes: int) -> tuple[list[float], float]:
    """Seconds from rename to first answer, per push, and the mean seconds of the loads among them."""
    before = load_seconds(server)
    with grpc.insecure_channel(probe.target) as channel:
        call, found = channel.unary_unary(PREDICT), list[float]()
        for _ in range(pushes):
            pushed = a.push()
            found.append(probe.wait_version(call, a.version) - pushed)
    after = load_seconds(server)
    return found, (after[0] - before[0]) / max(after[1] - before[1], 1)


def load_seconds(server: ServerProcess) -> tuple[float, float]:
    """(sum, count) of the server's histogram of load times of model A."""
    text, found = server.get("/metrics")[1].decode(), {"sum": 0.0, "count": 0.0}
    for line in text.splitlines():
        for kind in found:
            if line.startswith(f"tfs_lite_model_load_seconds_{kind}{{") and 'model="a"' in line:
                found[kind] += float(line.rsplit(" ", 1)[1])
    return found["sum"], found["count"]


class Swapper:
    """Pushes versions of one model in a loop, each as soon as the one before is available."""

    def __init__(self, server: ServerProcess, name: str, staging: Staging) -> None:
        self._server, self._name, self._staging = server, name, staging
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.swaps = 0

    def __enter__(self) -> Swapper:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._staging.push()
            wait_until(self._settled, f"version {self._staging.version} of {self._name} is available", interval=0.05)
            self.swaps += 1

    def _settled(self) -> bool:
        return versions(self._server, self._name).get(self._staging.version) == "AVAILABLE"


def p99(latencies: list[float]) -> float:
    return float(np.percentile(latencies, 99))


def rounds(server: ServerProcess, probe: Probe, a: Staging, b: Staging, args: argparse.Namespace) -> Iterator[dict]:
    def measure() -> float:
        asyncio.run(probe.open_loop(args.rate, WARM_UP_SECONDS))
        return p99(asyncio.run(probe.open_loop(args.rate, args.seconds)))

    for _ in range(args.rounds):
        row = {"steady": measure()}
        with Swapper(server, "a", a) as swapper:
            row["swapping_a"] = measure()
        row["swaps_a"] = swapper.swaps
        with Swapper(server, "b", b) as swapper:
            row["reloading_b"] = measure()
        row["swaps_b"] = swapper.swaps
        yield row


def run(args: argparse.Namespace) -> dict[str, float | str]:
    small = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    big = torch.nn.Linear(7071, 7071)
    with tempfile.TemporaryDirectory() as folder:
        a, b = Staging(Path(folder), "a", small, 32), Staging(Path(folder), "b", big, 7071)
        a.push()
        b.push()
        flags = (f"--model_repository={folder}/served", "--file_system_poll_wait_seconds=60")
        with ServerProcess(*flags) as server:
            probe = Probe(server.target, 32)
            pushes, load = push_times(server, a, probe, args.pushes)
            rows = list(rounds(server, probe, a, b, args))
    return {
        "torch": torch.__version__,
        "cores": os.cpu_count() or 0,
        "push_to_answer_ms": 1000 * statistics.median(pushes),
        "push_to_answer_max_ms": 1000 * max(pushes),
        "load_ms": 1000 * load,
        "push_beyond_load_ms": 1000 * (statistics.median(pushes) - load),
        "p99_steady_ms": 1000 * statistics.median(row["steady"] for row in rows),
        "p99_ratio_swapping_a": statistics.median(row["swapping_a"] / row["steady"] for row in rows),
        "p99_ratio_reloading_b": statistics.median(row["reloading_b"] / row["steady"] for row in rows),
        "swaps_a_per_second": statistics.median(row["swaps_a"] for row in rows) / (args.seconds + WARM_UP_SECONDS),
        "swaps_b_per_second": statistics.median(row["swaps_b"] for row in rows) / (args.seconds + WARM_UP_SECONDS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--pushes", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = run(args)
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value:.2f}" if isinstance(value, float) else f"{name:24} {value}")


if __name__ == "__main__":
    main()
