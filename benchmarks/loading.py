"""What loading a large model does to the requests of another one, with models in the server's process and in their own.

    python benchmarks/loading.py [--rounds 5] [--seconds 6] [--rate 200] [--workers thread,process] [--json FILE]

Model A (``mlp``) is asked at a fixed rate, open loop, one row a request. Model B, one matrix of 500 MB, is loaded and
unloaded in a loop: versions are pushed as fast as the server makes them available, each ends the one before. Steady and
loading take turns within each round, the kinds of workers too; the ratio is that of p99 to the steady p99 of the same
round, the median over rounds. Aim: under 2.

With the default ``--server_cpus`` loads and requests share one core, which is the hardest case. The process that pushes
shares the client's core.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from batching import cell, say, table
from load import Tally, open_loop, steady
from models import Model, model
from networks import Wide
from servers import Absent, Place, Running, batched, launch_serve
from sides import WORKER, close, ours, picks
from swap import Staging, Swapper

WARM_UP_SECONDS = 0.5
HEAD = ("worker", "steady p50", "p99 ms", "loading p50", "p99 ms", "max ms", "p99 ratio", "loads/s", "failed", "RSS MB")


def prepare(folder: Path, built: Model) -> Staging:
    """Model A is there from the start; B's copies wait beside it."""
    shutil.copytree(built.directory, folder / "served" / built.name)
    staging = Staging(folder, "b", 2)
    staging.prepare(Wide.WIDTH, Wide())
    staging.push()
    return staging


@contextmanager
def server(folder: Path, worker: str, place: Place) -> Iterator[Running]:
    flags = (f"--model_repository={folder}/served", "--file_system_poll_wait_seconds=60", "--num_load_threads=1")
    with launch_serve(place, *flags, *batched(), WORKER.format(worker), "--ready_requires_all_models") as running:
        yield running


def asked(running: Running, built: Model, rate: float, seconds: float) -> Tally:
    side = ours("ours")
    connections, _ = side.connect(running, built)
    try:
        open_loop(connections, steady(rate, WARM_UP_SECONDS), picks(built, False))
        return open_loop(connections, steady(rate, seconds), picks(built, False), side.check(built))
    finally:
        close(connections)


def one_round(running: Running, built: Model, staging: Staging, arguments: argparse.Namespace) -> dict[str, float]:
    quiet = asked(running, built, arguments.rate, arguments.seconds)
    if running.ours is None:
        raise Absent("no server")
    with Swapper(running.ours, staging) as swapper:
        busy = asked(running, built, arguments.rate, arguments.seconds)
        resident = running.resident_bytes()
    return {
        "steady_p50_ms": quiet.percentile(50) * 1e3,
        "steady_p99_ms": quiet.percentile(99) * 1e3,
        "p50_ms": busy.percentile(50) * 1e3,
        "p99_ms": busy.percentile(99) * 1e3,
        "max_ms": busy.percentile(100) * 1e3,
        "ratio": busy.percentile(99) / quiet.percentile(99),
        "loads_a_second": swapper.swaps / (arguments.seconds + WARM_UP_SECONDS),
        "failed": quiet.failures + busy.failures,
        "rss_mb": resident / 2**20,
    }


def run(arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    built, found = model("mlp"), dict[str, list[dict[str, float]]]()
    with ExitStack() as stack:
        running: dict[str, tuple[Running, Staging]] = {}
        for worker in arguments.workers.split(","):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-loading-")))
            staging = prepare(folder, built)
            try:
                running[worker] = stack.enter_context(server(folder, worker, arguments.place)), staging
            except Absent as error:
                print(f"not measured: {worker}: {error}")
        for number in range(arguments.rounds):
            for worker, (one, staging) in running.items():
                say(f"round {number + 1} of {arguments.rounds}: {worker}")
                found.setdefault(worker, []).append(one_round(one, built, staging, arguments))
    return found


def row(worker: str, rounds: Sequence[dict[str, float]]) -> list[str]:
    names = ("steady_p50_ms", 2), ("steady_p99_ms", 2), ("p50_ms", 2), ("p99_ms", 2), ("max_ms", 1), ("ratio", 2)
    last = ("loads_a_second", 2), ("failed", 0), ("rss_mb", 0)
    cells = [cell(statistics.median(one[name] for one in rounds), digits) for name, digits in (*names, *last)]
    return [worker, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--workers", default="thread,process")
    parser.add_argument("--server_cpus", default="0")
    parser.add_argument("--client_cpus", default="1")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    arguments: Any = parser.parse_args()
    arguments.place = Place(arguments.server_cpus, arguments.client_cpus)
    arguments.place.pin_this_process()
    found = run(arguments)
    print(table(HEAD, [row(worker, rounds) for worker, rounds in found.items()]))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
