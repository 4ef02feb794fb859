"""What pushing versions of one model does to the requests of another, for every kind of model.

    python benchmarks/hot_reload.py [--kinds pt2,onnx,...] [--sizes 50,500] [--places pinned,free] [--rounds 3]
        [--seconds 6] [--rate 200] [--workers auto] [--json FILE] [--stages] [--swaps] [--floor] [--guard]

A tiny network (``mlp``) is asked at a fixed rate, open loop, one row a request, so that a stall is not hidden by
callers that wait for it. Meanwhile a version of the model that is measured is pushed once a second, or as soon as the
last one is available if that takes longer. A push renames a complete version into the base path; polls are a minute
apart, so file-system events have to find it; weights are in the page cache. Steady and pushed take turns within each
round; a ratio compares the two parts of one round. Medians over rounds, but for the longest answer, which is the
longest of all, and for failures, which are added up.

``pinned``: the server has one core and the client the other, so that loads and requests share a core. ``free``: both
have all of them. The process that pushes has the client's cores and gives way to the client.

``quiet push``: the time from the rename to AVAILABLE without requests, seen to two milliseconds; ``load``: the part of
it that the server says it was loading. ``PSS``: memory of the server's processes after the pushes. ``stalls``: how
often the machine itself stood still for 3 ms and more (``stalls.py``); ``p99 alone`` leaves out the requests beside
one.

``--stages`` runs each server once more under ``watched_server.py`` and prints what held the interpreter lock for more
than a millisecond. ``--swaps`` measures the moment of a swap: the model that is pushed is the one that is asked, as
fast as one caller can. ``--floor`` pushes nothing: a process that shares no lock with the server, and runs only while
the server's core is idle, copies memory or multiplies matrices there; no load on that core can be felt less.
``--guard`` measures one small shape and fails above bounds that noise does not reach.

SavedModels need TensorFlow: run it with the interpreter of an environment that has it. Kinds that cannot be built or
served here are named.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import connections as wire
import numpy as np
from batching import cell, say, table
from load import Tally, closed_loop, open_loop, steady
from models import Model, model
from pushed import KINDS, artefact, lacks
from servers import Absent, Place, Running, end_in_order, launch_serve
from sides import WORKER, close, ours, picks
from stalls import Stalls, touch

from tests.support.servers.process import wait_until
from tfs_lite.core.publish import publish

ASKED = "mlp"
PERIOD_SECONDS = 1.0
"""The least time from push to push."""
QUIET_PUSHES = 5
SWAPS = 20
WARM_UP_SECONDS = 0.5
IN_MEMORY = "/dev/shm"
"""Weights that are always in the page cache: to read them again would disturb the load generator."""
QUIET_INTERVAL, BUSY_INTERVAL = 0.002, 0.25
"""Seconds between two looks at the status of a pushed version; the looks are requests as well."""
LOAD_SECONDS = 120.0
START_SECONDS = 3.0
"""The seconds in which a process that imports torch begins to work."""
GUARD_P99, GUARD_MS = 8.0, 60.0
"""The most that the best of three rounds may have: of p99 in ratio to steady, and of the longest answer."""
PLACES = {"pinned": Place("0", "1"), "free": Place("0,1", "0,1")}
WATCHED = Path(__file__).with_name("watched_server.py")


@dataclass(frozen=True, slots=True)
class Variant:
    """One row of the table."""

    kind: str
    megabytes: int
    place: str
    worker: str

    @property
    def name(self) -> str:
        return f"{self.kind} {self.megabytes}"


class Versions:
    """Two published copies of one model that take turns in its base path: a push is a single rename."""

    def __init__(self, folder: Path, name: str, directory: Path, period: float = PERIOD_SECONDS) -> None:
        self.name, self.number, self.period = name, 1, period
        self._base, self._aside = folder / "served" / name, folder / "aside" / name
        publish(str(directory), str(self._base), 1)
        publish(str(directory), str(self._aside), 1)

    def push(self) -> float:
        """Makes the copy at hand the next version; returns when."""
        self.number += 1
        (self._aside / "1").rename(self._base / str(self.number))
        return time.perf_counter()

    def take_back(self) -> None:
        """Keeps the version before the last for the next push; the server needs it no more."""
        (self._base / str(self.number - 1)).rename(self._aside / "1")


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
        wait_until(lambda: is_available(status, versions), available, LOAD_SECONDS, interval=interval)
        seconds.append(time.perf_counter() - pushed)
        versions.take_back()
        owner.poll(max(pushed + versions.period - time.perf_counter(), 0))
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
def server(folder: Path, variant: Variant, command: Sequence[str] | None = None) -> Iterator[Running]:
    flags = [f"--model_repository={folder}/served", "--file_system_poll_wait_seconds=60", "--ready_requires_all_models"]
    if variant.worker != "auto":
        flags.append(WORKER.format(variant.worker))
    if KINDS[variant.kind].needs_trust:
        flags.append(f"--trusted_model_base_paths={folder}/served/*")
    with launch_serve(PLACES[variant.place], *flags, command=command) as running:
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


def alone(tally: Tally, stalls: Stalls) -> float:
    """The 99th percentile of the requests that met no stall of the machine, in milliseconds."""
    spans = zip(tally.dues, tally.served, strict=True)
    spared = [seconds for due, seconds in spans if not stalls.meet(due, due + seconds)]
    return float(np.percentile(spared, 99)) * 1e3 if spared else float("nan")


def one_round(
    running: Running, versions: Versions, folder: Path, built: Model, arguments: argparse.Namespace, cpus: str
) -> tuple[Versions, dict[str, float]]:
    """Times in milliseconds."""
    before = load_seconds(running, versions.name)
    with Pusher(running, versions, QUIET_INTERVAL, QUIET_PUSHES) as quiet:
        pass
    after = load_seconds(running, versions.name)
    with Stalls(cpus, folder) as stalls:
        calm = asked(running, built, arguments)
        with Pusher(running, quiet.versions, BUSY_INTERVAL) as pusher:
            beside = asked(running, built, arguments)
    found = {
        "steady_p50": calm.percentile(50) * 1e3,
        "steady_p99": calm.percentile(99) * 1e3,
        "steady_max": calm.percentile(100) * 1e3,
        "p50": beside.percentile(50) * 1e3,
        "p99": beside.percentile(99) * 1e3,
        "p99_alone": alone(beside, stalls),
        "max": beside.percentile(100) * 1e3,
        "push": statistics.median(pusher.seconds) * 1e3,
        "quiet_push": statistics.median(quiet.seconds) * 1e3,
        "load": (after[0] - before[0]) / max(after[1] - before[1], 1) * 1e3,
        "pushes": len(pusher.seconds),
        "failed": calm.failures + beside.failures,
        "pss_mb": running.proportional_bytes() / 2**20,
        "stalls": len(stalls.found),
    }
    found["p50_ratio"] = found["p50"] / found["steady_p50"]
    found["p99_ratio"] = found["p99"] / found["steady_p99"]
    return pusher.versions, found


@contextmanager
def one_group() -> Iterator[None]:
    """The system shares cores among processes and not among sessions (sched(7), autogroup). Else a session whose only
    process is in the idle class gets half of a core beside the server, and an answer waits up to 4 ms for the client,
    which is woken on the core of a load that is in the idle class too, but of the other session."""
    file = Path("/proc/sys/kernel/sched_autogroup_enabled")
    before = file.read_text() if file.exists() else "0\n"
    try:
        if before != "0\n":
            file.write_text("0")
    except OSError as error:
        say(f"cores are shared among sessions, which costs the client on both cores: {error}")
        before = "0\n"
    try:
        yield
    finally:
        if before != "0\n":
            file.write_text(before)


@contextmanager
def served(
    variant: Variant, built: Model, command: Sequence[str] | None = None
) -> Iterator[tuple[Running, Versions, Path]]:
    """One server with the asked and the pushed model. The host has given its memory before it starts."""
    touch(6 * variant.megabytes + 1000)
    with tempfile.TemporaryDirectory(prefix="bench-reload-", dir=IN_MEMORY) as name:
        folder = Path(name)
        publish(str(built.version), f"{folder}/served/{built.name}", 1)
        versions = Versions(folder, variant.kind, artefact(variant.kind, variant.megabytes))
        with one_group(), server(folder, variant, command) as running:
            yield running, versions, folder


def measure(variant: Variant, built: Model, arguments: argparse.Namespace) -> list[dict[str, float]]:
    place = PLACES[variant.place]
    os.sched_setaffinity(0, {int(cpu) for cpu in place.client.split(",")})
    found = []
    with served(variant, built) as (running, versions, folder):
        for number in range(arguments.rounds):
            say(f"{variant.name}, {variant.place}, {variant.worker}: round {number + 1} of {arguments.rounds}")
            versions, figures = one_round(running, versions, folder, built, arguments, place.server)
            found.append(figures)
    return found


def stages(variant: Variant, built: Model, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What held the interpreter lock beside pushes, the longest in all first."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "places.json"
        with served(variant, built, [sys.executable, str(WATCHED), str(file)]) as (running, versions, _):
            with Pusher(running, versions, QUIET_INTERVAL, 1) as first:  # imports are a matter of the first load
                pass
            file.touch()
            with Pusher(running, first.versions, BUSY_INTERVAL):
                asked(running, built, arguments)
        found: list[dict[str, Any]] = json.loads(file.read_text())
        return found


def swaps(variant: Variant, built: Model, arguments: argparse.Namespace) -> dict[str, float]:
    """The moment of a swap, as one caller sees it: milliseconds from the last answer of the old version to the first of
    the new one, and how many requests took three times as long as usual within a tenth of a second of it."""
    from tfs_lite.protocols.messages import PredictResponse
    from tfs_lite.protocols.tensorflow.serving import parse

    wire.SAMPLE, answers = 1, list[tuple[float, int]]()

    def note(index: int, body: bytes) -> bool:
        answers.append((time.perf_counter(), parse(PredictResponse, body).model_spec.version.value))
        return True

    with tempfile.TemporaryDirectory(prefix="bench-reload-", dir=IN_MEMORY) as name:
        folder = Path(name)
        versions = Versions(folder, ASKED, built.version, 0.2)
        with server(folder, variant) as running:
            connections, _ = ours("ours").connect(running, built, 1)
            with Pusher(running, versions, BUSY_INTERVAL) as pusher:
                tally = closed_loop(connections, 1, arguments.seconds, picks(built, False), note)
            close(connections)
    seen = [number for _, number in answers]
    at = [index for index in range(1, len(answers)) if seen[index] != seen[index - 1]]
    gaps = [(answers[index][0] - answers[index - 1][0]) * 1e3 for index in at]
    usual = tally.percentile(50)
    moments = [answers[index][0] for index in at]
    slow = [due for due, took in zip(tally.dues, tally.served, strict=True) if took > 3 * usual]
    return {
        "swaps": len(at),
        "pushes": len(pusher.seconds),
        "backwards": sum(later < before for before, later in pairwise(seen)),
        "failed": tally.failures,
        "usual_ms": usual * 1e3,
        "gap_p50_ms": float(np.median(gaps)) if gaps else float("nan"),
        "gap_max_ms": max(gaps, default=float("nan")),
        "waited": sum(any(abs(due - moment) < 0.1 for moment in moments) for due in slow),
    }


SMALL_PAGES = "import ctypes\nctypes.CDLL(None).prctl(41, 1, 0, 0, 0)\n"
"""numpy asks for huge pages, which weights do not lie in: PR_SET_THP_DISABLE."""
COPIES = "import numpy\na = numpy.ones(25_000_000, numpy.float32)\nwhile True: a.copy()"
PRODUCTS = (
    "import torch\ntorch.set_num_threads(1)\n"
    "x, w = torch.randn(24, 768), torch.randn(200, 768, 768)\nwhile True: [x @ one for one in w]"
)
BESIDE = {
    "copies of 100 MB": SMALL_PAGES + COPIES,
    "copies of 100 MB, in huge pages": COPIES,
    "products of 768 x 768": PRODUCTS,
    "Python alone": "while True: sum(range(1000))",
}
"""The work of a process on the server's core, by its name."""


def floor(built: Model, arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The name of each work, and what it costs the requests of a server that does nothing else."""
    place = PLACES["pinned"]
    os.sched_setaffinity(0, {int(cpu) for cpu in place.client.split(",")})
    with tempfile.TemporaryDirectory(prefix="bench-reload-", dir=IN_MEMORY) as name:
        publish(str(built.version), f"{name}/served/{ASKED}", 1)
        with one_group(), server(Path(name), Variant("pt2", 0, "pinned", "auto")) as running:
            for work, code in BESIDE.items():
                ratios = []
                for _ in range(arguments.rounds):
                    calm = asked(running, built, arguments)
                    idle = ["taskset", "-c", place.server, "chrt", "--idle", "0", sys.executable, "-c", code]
                    with subprocess.Popen(idle) as worker:
                        time.sleep(START_SECONDS)
                        busy = asked(running, built, arguments)
                        worker.kill()
                    ratios.append([busy.percentile(n) / calm.percentile(n) for n in (50, 99)])
                p50, p99 = np.median(ratios, axis=0)
                yield work, f"p50 {p50:.2f} and p99 {p99:.2f} times steady"


COLUMNS: Sequence[tuple[str, str, int, Callable[[list[float]], float]]] = (
    ("steady p50", "steady_p50", 2, statistics.median),
    ("p99", "steady_p99", 2, statistics.median),
    ("max", "steady_max", 1, max),
    ("pushed p50", "p50", 2, statistics.median),
    ("p99", "p99", 2, statistics.median),
    ("p99 alone", "p99_alone", 2, statistics.median),
    ("max", "max", 1, max),
    ("p50 ratio", "p50_ratio", 2, statistics.median),
    ("p99 ratio", "p99_ratio", 2, statistics.median),
    ("failed", "failed", 0, sum),
    ("stalls", "stalls", 0, sum),
    ("pushes", "pushes", 0, sum),
    ("push", "push", 0, statistics.median),
    ("quiet push", "quiet_push", 0, statistics.median),
    ("load", "load", 0, statistics.median),
    ("PSS MB", "pss_mb", 0, statistics.median),
)
"""Head, figure, digits, and how the rounds are summed up."""


def row(variant: Variant, rounds: Sequence[dict[str, float]]) -> list[str]:
    cells = [cell(sum_up([one[figure] for one in rounds]), digits) for _, figure, digits, sum_up in COLUMNS]
    return [variant.name, variant.place, variant.worker, *cells]


def variants(arguments: argparse.Namespace) -> Iterator[Variant]:
    for kind in arguments.kinds.split(","):
        if missing := lacks(kind):
            print(f"not measured: {kind}: {missing} is not installed")
            continue
        for size in arguments.sizes.split(","):
            for place in arguments.places.split(","):
                for worker in arguments.workers.split(","):
                    yield Variant(kind, int(size), place, worker)


def guard(arguments: argparse.Namespace) -> int:
    """Fails if even the best round of one small shape is felt."""
    arguments.rounds, arguments.seconds = 3, 4.0
    rounds = measure(Variant("pt2", 50, "pinned", "auto"), model(ASKED), arguments)
    p99 = min(one["p99_ratio"] for one in rounds)
    longest = min(one["max"] for one in rounds)
    failed = sum(one["failed"] for one in rounds)
    bounds = f"(at most {GUARD_P99:g} and {GUARD_MS:g})"
    print(f"p99 {p99:.2f} times steady, longest answer {longest:.1f} ms {bounds}, {failed:g} failed")
    return int(p99 > GUARD_P99 or longest > GUARD_MS or failed > 0)


def main() -> int:
    end_in_order()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sizes", default="50,500", help="megabytes")
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--workers", default="auto", help="auto: as by default; thread, process")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    parser.add_argument("--stages", action="store_true", help="print what held the interpreter lock")
    parser.add_argument("--swaps", action="store_true", help="measure the moment of a swap alone")
    parser.add_argument("--floor", action="store_true", help="measure what any work on the server's core costs")
    parser.add_argument("--guard", action="store_true", help="one small shape; fails above a bound")
    arguments: Any = parser.parse_args()
    if arguments.guard:
        return guard(arguments)
    built, rows, figures = model(ASKED), list[list[str]](), list[dict[str, Any]]()
    if arguments.floor:
        for work, text in floor(built, arguments):
            print(f"{work}: {text}")
        return 0
    if arguments.swaps:
        for place in arguments.places.split(","):
            os.sched_setaffinity(0, {int(cpu) for cpu in PLACES[place].client.split(",")})
            found = swaps(Variant("pt2", 0, place, "auto"), built, arguments)
            print(place, ", ".join(f"{name} {value:.3g}" for name, value in found.items()))
        return 0
    for variant in variants(arguments):
        try:
            rounds = measure(variant, built, arguments)
            held = stages(variant, built, arguments) if arguments.stages else []
        except Absent as error:
            print(f"not measured: {variant}: {error}")
            continue
        rows.append(row(variant, rounds))
        say(table(("pushed", "place", "worker", *(head for head, *_ in COLUMNS)), rows[-1:]))
        figures.append({"variant": f"{variant.name} {variant.place} {variant.worker}", "rounds": rounds, "held": held})
        for item in held[:10]:
            times = f"{item['ms']:8.1f} ms in {item['times']:4} times, longest {item['longest']:6.1f}"
            print(f"{variant.name}: {times}  {item['place']}")
        if arguments.json:
            arguments.json.write_text(json.dumps(figures, indent=1))
    print(table(("pushed", "place", "worker", *(head for head, *_ in COLUMNS)), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
