"""What three times too many requests do to a server: it should go on serving, refuse the rest at once, and not grow.

    python benchmarks/overload.py [--models convnet,mlp] [--workers thread,process] [--seconds 60] [--times 3]

``convnet`` overloads the model, which is what queues are for; ``mlp`` overloads the front end, where a refusal has to
be much cheaper than an answer. For each model and kind of worker, one server on its own core with batching: its
capacity (64 callers, closed loop), then its p99 at half of that (open loop, arrivals independent of answers), then
``--times`` that capacity for ``--seconds``, then again half of it at once. Every request has a deadline, as clients
should have.

- goodput: answers within the deadline by the caller's clock during the overload, in ratio to the capacity; aim: 0.9 or
  more.
- refusal p99: how long a caller waited for UNAVAILABLE or RESOURCE_EXHAUSTED. late/s: calls that were answered after
  their deadline, or ended with whatever other status.
- RSS: of the server's processes, the highest during the overload in ratio to that after its first tenth; aim: flat.
- recovery: p99 at half the capacity after the overload in ratio to before; failures after it.
- offered: what the generator sent, in ratio to the capacity; ``client`` is its share of its core. Where that nears 1
  the generator was the limit, and the overload smaller than asked for.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from batching import cell, say, table
from connections import Connection, GrpcConnection
from forms import GRPC, PREDICT
from load import Tally, open_loop, poisson
from models import Model, model
from servers import Absent, Place, Running, batched, launch_ours
from sides import FEW, WORKER, close, figures_of, ours, picks

QUIET_SECONDS = 5.0
REFUSALS = (8, 14)
"""RESOURCE_EXHAUSTED, UNAVAILABLE."""
HEAD: tuple[str, ...] = (
    "worker",
    "capacity/s",
    "offered",
    "goodput",
    "p99 ms",
    "refused/s",
    "refusal p99 ms",
    "late/s",
)
HEAD += ("RSS MB", "RSS ratio", "recovery", "failed after", "unanswered", "client")


@dataclass(slots=True)
class Memory:
    """Bytes of the server, once a second."""

    running: Running
    samples: list[tuple[float, int]] = field(default_factory=list)
    _next: float = 0.0

    def look(self, now: float, tally: Tally) -> None:
        if now >= self._next:
            self._next = now + 1
            self.samples.append((now, self.running.resident_bytes()))

    def growth(self) -> tuple[float, float]:
        """(the most, that in ratio to after the first tenth)"""
        sizes = [size for _, size in self.samples]
        first = sizes[min(len(sizes) // 10, len(sizes) - 1)]
        return max(sizes), max(sizes) / first


def connect(running: Running, built: Model, timeout_ms: int) -> list[Connection]:
    messages = GRPC.messages(built)
    return [GrpcConnection(running.port, PREDICT, messages, f"{timeout_ms}m") for _ in range(FEW[0])]


def at_rate(
    running: Running, built: Model, rate: float, seconds: float, timeout_ms: int, memory: Memory | None = None
) -> Tally:
    connections = connect(running, built, timeout_ms)
    side = ours("ours")
    try:
        return open_loop(
            connections,
            poisson(rate, seconds, random.Random(1)),
            picks(built, False),
            side.check(built),
            each=memory.look if memory else None,
        )
    finally:
        close(connections)


def overload(worker: str, built: Model, arguments: argparse.Namespace) -> dict[str, Any]:
    flags = (*batched(), WORKER.format(worker))
    quiet = min(QUIET_SECONDS, arguments.seconds)
    with launch_ours(built, arguments.place, *flags) as running:
        say(f"{worker}: capacity")
        capacity = figures_of(ours("ours"), running, built, quiet).rate
        before = at_rate(running, built, capacity / 2, quiet, arguments.timeout_ms)
        memory = Memory(running)
        say(f"{worker}: {arguments.times:g} times {capacity:,.0f} requests a second for {arguments.seconds:g} s")
        during = at_rate(running, built, capacity * arguments.times, arguments.seconds, arguments.timeout_ms, memory)
        after = at_rate(running, built, capacity / 2, quiet, arguments.timeout_ms)
    return report(f"{built.name} {worker}", capacity, arguments.timeout_ms / 1e3, before, during, after, memory)


def report(
    name: str, capacity: float, timeout: float, before: Tally, during: Tally, after: Tally, memory: Memory
) -> dict[str, Any]:
    most, ratio = memory.growth()
    served, ended = len(during.served), during.codes.total()
    in_time = sum(seconds <= timeout for seconds in during.served)
    refusals = [time for code in REFUSALS for time in during.refused.get(code, ())]
    return {
        "worker": name,
        "capacity": capacity,
        "offered": (served + ended + during.unanswered) / during.seconds / capacity,
        "unsent": during.unsent,
        "goodput": in_time / during.seconds / capacity,
        "p99_ms": during.percentile(99) * 1e3,
        "refused_a_second": len(refusals) / during.seconds,
        "refusal_p99_ms": float(np.percentile(refusals, 99)) * 1e3 if refusals else float("nan"),
        "late_a_second": (ended - len(refusals) + served - in_time) / during.seconds,
        "codes": dict(during.codes),
        "wrong": during.wrong,
        "unanswered": during.unanswered,
        "rss_mb": most / 2**20,
        "rss_ratio": ratio,
        "rss": memory.samples,
        "p99_before_ms": before.percentile(99) * 1e3,
        "recovery": after.percentile(99) / before.percentile(99),
        "failed_before": before.failures,
        "failed_after": after.failures,
        "client_share": during.client_share,
    }


def row(found: dict[str, Any]) -> Sequence[str]:
    plain: tuple[tuple[str, int], ...] = ("offered", 2), ("goodput", 2), ("p99_ms", 1)
    plain += ("refused_a_second", 0), ("refusal_p99_ms", 1), ("late_a_second", 0)
    last = ("rss_mb", 0), ("rss_ratio", 2), ("recovery", 2), ("failed_after", 0), ("unanswered", 0)
    cells = [cell(found[name], digits) for name, digits in (*plain, *last, ("client_share", 2))]
    return [found["worker"], cell(found["capacity"]), *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--times", type=float, default=3.0)
    parser.add_argument("--models", default="convnet,mlp")
    parser.add_argument("--workers", default="thread,process")
    parser.add_argument("--timeout_ms", type=int, default=1000)
    parser.add_argument("--server_cpus", default="0")
    parser.add_argument("--client_cpus", default="1")
    parser.add_argument("--json", type=Path, help="file for all figures")
    arguments = parser.parse_args()
    arguments.place = Place(arguments.server_cpus, arguments.client_cpus)
    arguments.place.pin_this_process()
    found = list[dict[str, Any]]()
    for name, worker in product(arguments.models.split(","), arguments.workers.split(",")):
        try:
            found.append(overload(worker, model(name), arguments))
        except (Absent, ConnectionError) as error:
            print(f"not measured: {name} {worker}: {error}")
    print(table(HEAD, [row(one) for one in found]))
    for one in found:
        print(f"{one['worker']}: by status {one['codes']}, wrong answers {one['wrong']}, unsent {one['unsent']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
