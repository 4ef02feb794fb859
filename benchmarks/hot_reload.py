"""What pushing versions of one model does to the requests of another, and how long a pushed version takes.

    python benchmarks/hot_reload.py [--rounds 5] [--seconds 6] [--rate 200] [--workers thread,process]
        [--models bert,resnet,wide] [--json FILE]

A tiny network (``mlp``) is asked at a fixed rate, open loop, one row a request, so that a stall is not hidden by
callers that wait for it. Meanwhile a BERT or a ResNet-18 is pushed once a second, or 500 MB (``wide``) again as soon as
they are available. A push renames a complete version into the base path; polls are a minute apart, so file-system
events have to find it; weights are in the page cache. Steady and pushed take turns within each round, and the servers,
one for each model and kind of worker, do too; a ratio compares the two parts of one round. Medians over rounds, but for
the longest answer, which is the longest of all, and for failures, which are added up.

``quiet push``: the time from the rename to AVAILABLE without requests, seen to two milliseconds; ``load``: the part of
it that the server says it was loading. ``PSS``: memory of the server's processes after the pushes.

With the default ``--server_cpus`` loads and requests share one core, which is the hardest case. The process that pushes
shares the client's core, and gives way to the client. One variant takes less than a minute with ``--rounds 2 --seconds
6``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from batching import cell, say, table
from load import Tally, open_loop, steady
from models import BENCH, Model, model
from servers import Absent, Place, Running, launch_serve
from sides import WORKER, close, ours, picks

from tests.support.servers.process import wait_until
from tfs_lite.core.publish import publish

ASKED = "mlp"
PERIODS = {"bert": 1.0, "resnet": 1.0, "wide": 0.0}
"""Seconds from push to push, more if the version before is not available by then."""
QUIET_PUSHES = 5
WARM_UP_SECONDS = 0.5
IN_MEMORY = "/dev/shm"
"""Weights that are always in the page cache: to read them again would disturb the load generator."""
QUIET_INTERVAL, BUSY_INTERVAL = 0.002, 0.05
"""Seconds between two looks at the status of a pushed version; the looks are requests as well."""


class Versions:
    """Two published copies of one model that take turns in its base path: a push is a single rename."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.number = name, 1
        self._base, self._aside = folder / "served" / name, folder / "aside" / name
        artefact = str(artefact_of(name))
        publish(artefact, str(self._base), 1)
        publish(artefact, str(self._aside), 1)

    def push(self) -> float:
        """Makes the copy at hand the next version; returns when."""
        self.number += 1
        (self._aside / "1").rename(self._base / str(self.number))
        return time.perf_counter()

    def take_back(self) -> None:
        """Keeps the version before the last for the next push; the server needs it no more."""
        (self._base / str(self.number - 1)).rename(self._aside / "1")


def artefact_of(name: str) -> Path:
    """The version directory of a model to push; built on first use."""
    base = BENCH / "models" / name
    if not (base / "1").exists():
        import networks

        import tfs_lite

        network = networks.PUSHED[name]
        tfs_lite.save(network(), base, example_inputs=network.examples(), version=1)
    return base / "1"


class Pusher:
    """Pushes from a process of its own until the block ends; then ``versions`` is where that process left it, and
    ``seconds`` holds the time from each push to AVAILABLE. With ``pushes``, the block is left after so many."""

    def __init__(self, running: Running, versions: Versions, interval: float, pushes: int | None = None) -> None:
        self.versions, self.seconds = versions, list[float]()
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        arguments = (versions, running.http_port, interval, pushes, there)
        self._process = context.Process(target=push_until, args=arguments, daemon=True)
        self._ends = pushes is None

    def __enter__(self) -> Pusher:
        self._process.start()
        self._here.recv()  # it has begun
        return self

    def __exit__(self, *exc: object) -> None:
        if self._ends:
            self._here.send("end")
        self.versions, self.seconds = self._here.recv()
        self._process.join()


def push_until(versions: Versions, port: int, interval: float, pushes: int | None, owner: Connection) -> None:
    """The process that pushes. Without a number of pushes it runs beside a load generator, which goes first."""
    if pushes is None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    status = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    owner.send("begun")
    seconds, wanted = list[float](), pushes or 1 << 30
    while len(seconds) < wanted and not owner.poll(0):
        pushed = versions.push()
        available = f"{versions.name} {versions.number} is available"
        wait_until(lambda: is_available(status, versions), available, interval=interval)
        seconds.append(time.perf_counter() - pushed)
        versions.take_back()
        owner.poll(max(pushed + PERIODS[versions.name] - time.perf_counter(), 0))
    owner.send((versions, seconds))


def is_available(status: http.client.HTTPConnection, versions: Versions) -> bool:
    status.request("GET", f"/v1/models/{versions.name}")
    rows = json.load(status.getresponse())["model_version_status"]
    return any(int(row["version"]) == versions.number and row["state"] == "AVAILABLE" for row in rows)


def load_seconds(running: Running, name: str) -> tuple[float, float]:
    """(sum, count) of the server's histogram of load times of one model."""
    assert running.ours is not None
    found = {"sum": 0.0, "count": 0.0}
    for line in running.ours.get("/metrics")[1].decode().splitlines():
        for kind in found:
            if line.startswith(f"tfs_lite_model_load_seconds_{kind}{{") and f'model="{name}"' in line:
                found[kind] += float(line.rsplit(" ", 1)[1])
    return found["sum"], found["count"]


@contextmanager
def server(folder: Path, worker: str, place: Place) -> Iterator[Running]:
    flags = (f"--model_repository={folder}/served", "--file_system_poll_wait_seconds=60", "--ready_requires_all_models")
    with launch_serve(place, *flags, WORKER.format(worker)) as running:
        yield running


def asked(running: Running, built: Model, arguments: argparse.Namespace) -> Tally:
    side = ours("ours")
    connections, _ = side.connect(running, built)
    try:
        open_loop(connections, steady(arguments.rate, WARM_UP_SECONDS), picks(built, False))
        arrivals = steady(arguments.rate, arguments.seconds)
        return open_loop(connections, arrivals, picks(built, False), side.check(built))
    finally:
        close(connections)


class Served:
    """One server with the asked and the pushed model; ``rounds`` are its figures, times in milliseconds."""

    def __init__(self, running: Running, versions: Versions) -> None:
        self._running, self._versions = running, versions
        self.rounds: list[dict[str, float]] = []

    def measure(self, built: Model, arguments: argparse.Namespace) -> None:
        before = load_seconds(self._running, self._versions.name)
        with Pusher(self._running, self._versions, QUIET_INTERVAL, QUIET_PUSHES) as quiet:
            pass
        after = load_seconds(self._running, self._versions.name)
        alone = asked(self._running, built, arguments)
        with Pusher(self._running, quiet.versions, BUSY_INTERVAL) as pusher:
            beside = asked(self._running, built, arguments)
        self._versions = pusher.versions
        figures = {
            "steady_p50": alone.percentile(50) * 1e3,
            "steady_p99": alone.percentile(99) * 1e3,
            "steady_max": alone.percentile(100) * 1e3,
            "p50": beside.percentile(50) * 1e3,
            "p99": beside.percentile(99) * 1e3,
            "max": beside.percentile(100) * 1e3,
            "push": statistics.median(pusher.seconds) * 1e3,
            "quiet_push": statistics.median(quiet.seconds) * 1e3,
            "load": (after[0] - before[0]) / max(after[1] - before[1], 1) * 1e3,
            "pushes": len(pusher.seconds),
            "failed": alone.failures + beside.failures,
            "pss_mb": self._running.proportional_bytes() / 2**20,
        }
        figures["p50_ratio"] = figures["p50"] / figures["steady_p50"]
        figures["p99_ratio"] = figures["p99"] / figures["steady_p99"]
        self.rounds.append(figures)


COLUMNS: Sequence[tuple[str, str, int, Callable[[list[float]], float]]] = (
    ("steady p50", "steady_p50", 2, statistics.median),
    ("p99", "steady_p99", 2, statistics.median),
    ("max", "steady_max", 1, max),
    ("pushed p50", "p50", 2, statistics.median),
    ("p99", "p99", 2, statistics.median),
    ("max", "max", 1, max),
    ("p50 ratio", "p50_ratio", 2, statistics.median),
    ("p99 ratio", "p99_ratio", 2, statistics.median),
    ("failed", "failed", 0, sum),
    ("pushes", "pushes", 0, sum),
    ("push", "push", 0, statistics.median),
    ("quiet push", "quiet_push", 0, statistics.median),
    ("load", "load", 0, statistics.median),
    ("PSS MB", "pss_mb", 0, statistics.median),
)
"""Head, figure, digits, and how the rounds are summed up."""


def row(name: str, worker: str, rounds: Sequence[dict[str, float]]) -> list[str]:
    cells = [cell(sum_up([one[figure] for one in rounds]), digits) for _, figure, digits, sum_up in COLUMNS]
    return [name, worker, *cells]


def run(arguments: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, float]]]:
    built, servers = model(ASKED), dict[tuple[str, str], Served]()
    with ExitStack() as stack:
        for name in arguments.models.split(","):
            for worker in arguments.workers.split(","):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-reload-", dir=IN_MEMORY)))
                publish(str(built.version), f"{folder}/served/{ASKED}", 1)
                versions = Versions(folder, name)
                try:
                    running = stack.enter_context(server(folder, worker, arguments.place))
                except Absent as error:
                    print(f"not measured: {name}, {worker}: {error}")
                    continue
                servers[name, worker] = Served(running, versions)
        for number in range(arguments.rounds):
            for (name, worker), served in servers.items():
                say(f"round {number + 1} of {arguments.rounds}: {name}, {worker}")
                served.measure(built, arguments)
    return {key: served.rounds for key, served in servers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--workers", default="thread,process")
    parser.add_argument("--models", default=",".join(PERIODS))
    parser.add_argument("--server_cpus", default="0")
    parser.add_argument("--client_cpus", default="1")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    arguments: Any = parser.parse_args()
    arguments.place = Place(arguments.server_cpus, arguments.client_cpus)
    arguments.place.pin_this_process()
    found = run(arguments)
    head = ("pushed", "worker", *(head for head, *_ in COLUMNS))
    print(table(head, [row(name, worker, rounds) for (name, worker), rounds in found.items()]))
    if arguments.json:
        listed = [{"pushed": name, "worker": worker, "rounds": rounds} for (name, worker), rounds in found.items()]
        arguments.json.write_text(json.dumps(listed, indent=1))


if __name__ == "__main__":
    main()
