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
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

import grpc
import numpy as np

from tfs_lite.protocols.messages import PredictRequest, PredictResponse
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.testing.servers.process import ServerProcess, wait_until

PREDICT = "/tensorflow.serving.PredictionService/Predict"
WARM_UP_SECONDS = 1.0


class Staging:
    """Published copies of one model, beside the served base path, that take turns: a push is a single rename."""

    def __init__(self, root: Path, name: str, copies: int) -> None:
        self.name = name
        self.base = root / "served" / name
        self.staged = root / "staged" / name
        self.version = 0
        self._copies = copies
        self._oldest = 1

    def prepare(self, width: int, module: object) -> None:
        import torch

        import tfs_lite

        self.base.mkdir(parents=True)
        for copy in range(self._copies):
            tfs_lite.save(module, self.staged, example_inputs=(torch.zeros(2, width),), version=copy)

    def push(self) -> float:
        """Renames an idle copy into place as the next version; returns the time of the rename."""
        self.version += 1
        pushed = time.perf_counter()
        self._idle_place(self.version).rename(self.base / str(self.version))
        return pushed

    def take_back(self) -> None:
        """Moves every version but the last back, once nobody needs them to be there."""
        for old in range(self._oldest, self.version):
            (self.base / str(old)).rename(self._idle_place(old))
        self._oldest = self.version

    def resume(self, version: int) -> None:
        """Another process went on to ``version`` and took back what was before."""
        self.version = self._oldest = version

    def _idle_place(self, version: int) -> Path:
        return self.staged / str(version % self._copies)


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


def push_times(server: ServerProcess, a: Staging, probe: Probe, pushes: int) -> tuple[list[float], float]:
    """Seconds from rename to first answer, per push, and the mean seconds of the loads among them."""
    before = load_seconds(server)
    with grpc.insecure_channel(probe.target) as channel:
        call, found = channel.unary_unary(PREDICT), list[float]()
        for _ in range(pushes):
            pushed = a.push()
            found.append(probe.wait_version(call, a.version) - pushed)
    a.take_back()
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
    """Pushes versions of one model in a loop, each once the one before is available, from a process of its own."""

    def __init__(self, server: ServerProcess, staging: Staging) -> None:
        context = multiprocessing.get_context("spawn")
        self._staging = staging
        self._stop = context.Event()
        self._version = context.Value("q", staging.version)
        self._process = context.Process(
            target=swap_until, args=(staging, server.http_port, self._version, self._stop), daemon=True
        )
        self.swaps = 0

    def __enter__(self) -> Swapper:
        self._process.start()
        wait_until(lambda: self._version.value > self._staging.version, "the first swap")
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._process.join()
        self.swaps = self._version.value - self._staging.version
        self._staging.resume(self._version.value)


def swap_until(staging: Staging, http_port: int, version: Synchronized[int], stop: Event) -> None:
    while not stop.is_set():
        staging.push()
        wait_until(lambda: is_available(http_port, staging), f"{staging.name} {staging.version}", interval=0.05)
        staging.take_back()
        version.value = staging.version


def is_available(http_port: int, staging: Staging) -> bool:
    url = f"http://127.0.0.1:{http_port}/v1/models/{staging.name}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        rows = json.load(answer)["model_version_status"]
    return any(int(row["version"]) == staging.version and row["state"] == "AVAILABLE" for row in rows)


def p99(latencies: list[float]) -> float:
    return float(np.percentile(latencies, 99))


def rounds(server: ServerProcess, probe: Probe, a: Staging, b: Staging, args: argparse.Namespace) -> Iterator[dict]:
    def measure() -> float:
        asyncio.run(probe.open_loop(args.rate, WARM_UP_SECONDS))
        return p99(asyncio.run(probe.open_loop(args.rate, args.seconds)))

    for _ in range(args.rounds):
        row = {"steady": measure()}
        with Swapper(server, a) as swapper:
            row["swapping_a"] = measure()
        row["swaps_a"] = swapper.swaps
        with Swapper(server, b) as swapper:
            row["reloading_b"] = measure()
        row["swaps_b"] = swapper.swaps
        yield row


def run(args: argparse.Namespace) -> dict[str, float | str]:
    import torch

    small = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    big = torch.nn.Linear(7071, 7071)
    with tempfile.TemporaryDirectory() as folder:
        a, b = Staging(Path(folder), "a", args.pushes + 2), Staging(Path(folder), "b", 2)
        a.prepare(32, small)
        b.prepare(7071, big)
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
