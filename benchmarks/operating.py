"""What an operator who looks on costs requests: an open page, and traces. Ratios and differences in one run.

    python benchmarks/operating.py [--quick] [--rounds 5] [--seconds 5] [--before DIRECTORY] [--rate 5000]

All servers have the small network and batching, and are asked in turn within a round; figures are medians over rounds
of what a side needs more than the one it is held against in the same round. A server is pinned to one core, the
callers to another.

- traces off: CPU of a request, against that of the source tree in ``--before`` (``git worktree add DIRECTORY COMMIT``).
- sampled: one request of 100 goes to a collector, which this process is; against traces off. Needs the extra ``otel``.
- page open: CPU of the server while two viewers read the page's feed and ``--rate`` requests a second come, against the
  same without viewers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from batching import cell, say, table
from load import cycle, open_loop, steady
from models import SINGLE, Model, model
from servers import Place, Running, batched, launch_serve
from sides import WORKER, close, figures_of, ours

from tests.support.servers.collector import TraceCollector

SIDE = ours("ours")
VIEWERS = 2
EVERY = 100
"""One request of so many is traced."""


@contextmanager
def viewers(running: Running) -> Iterator[None]:
    """Two pages are open: their feeds are read as fast as they come."""
    url = f"http://127.0.0.1:{running.http_port}/dashboard/feed"
    feeds = [urllib.request.urlopen(url, timeout=60) for _ in range(VIEWERS)]
    over = threading.Event()

    def read(number: int) -> None:
        while not over.is_set() and feeds[number].readline():
            pass

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(VIEWERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(5.0)  # a feed says something each second
        for feed in feeds:
            feed.close()


def cpu_share(running: Running, built: Model, rate: float, seconds: float) -> float:
    """Of a core, while requests come at this rate. RuntimeError when one is not answered rightly."""
    connections, _ = SIDE.connect(running, built)
    try:
        begun = running.cpu_seconds()
        tally = open_loop(connections, steady(rate, seconds), cycle(SINGLE), SIDE.check(built))
        if tally.failures:
            raise RuntimeError(f"{tally.failures} requests failed")
        return (running.cpu_seconds() - begun) / tally.seconds
    finally:
        close(connections)


def measure(built: Model, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """What each side needs, by round: microseconds of a request, and shares of a core with and without viewers."""
    served = (f"--model_name={built.name}", f"--model_base_path={built.directory}")
    flags = (*served, *batched(), WORKER.format("thread"))
    place, found = arguments.place, dict[str, list[float]]()
    with ExitStack() as stack:
        collector = stack.enter_context(TraceCollector())
        words = ("mode=opentelemetry", "level=TIMESTAMPS", f"rate={EVERY}", f"opentelemetry,url={collector.url}")
        servers = {"off": stack.enter_context(launch_serve(place, *flags))}
        if arguments.before:
            before = replace(place, source=str(arguments.before.resolve()))
            servers["before"] = stack.enter_context(launch_serve(before, *flags))
        traced = (*flags, *(f"--trace_config={word}" for word in words))
        servers["sampled"] = stack.enter_context(launch_serve(place, *traced))
        for number in range(arguments.rounds):
            order = list(servers) if number % 2 == 0 else list(reversed(servers))
            for name in order:
                say(f"round {number + 1} of {arguments.rounds}: {name}")
                figures = figures_of(SIDE, servers[name], built, arguments.seconds)
                if figures.failures:
                    raise RuntimeError(f"{name}: {figures.failures} requests failed")
                found.setdefault(name, []).append(figures.cpu_us)
            for watched in (False, True) if number % 2 == 0 else (True, False):
                say(f"round {number + 1} of {arguments.rounds}: page {'open' if watched else 'closed'}")
                with viewers(servers["off"]) if watched else ExitStack():
                    share = cpu_share(servers["off"], built, arguments.rate, arguments.seconds)
                found.setdefault("open" if watched else "closed", []).append(share)
        if not collector.spans:
            raise RuntimeError("the collector has no spans")
    return found


def rows_of(found: dict[str, list[float]]) -> list[list[str]]:
    rows = []
    asked = (("traces off", "off", "before", 1.0, " us", "1 us"), ("sampled 1 %", "sampled", "off", 1.0, " us", "2 us"))
    for title, name, other, scale, unit, aim in (*asked, ("page open", "open", "closed", 100.0, " % of a core", "1 %")):
        if name in found and other in found:
            pairs = list(zip(found[name], found[other], strict=True))
            more = statistics.median((one - two) * scale for one, two in pairs)
            ratio = statistics.median(one / two for one, two in pairs)
            base = statistics.median(found[other]) * scale
            rows.append([title, other, cell(base, 1) + unit, cell(more, 2) + unit, cell(ratio, 3), aim])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of one second each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--rate", type=float, default=5000.0, help="requests a second while the page is open")
    parser.add_argument("--before", type=Path, help="a source tree to hold this one against")
    parser.add_argument("--server_cpus", default="0")
    parser.add_argument("--client_cpus", default="1")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 1.0
    arguments.place = Place(arguments.server_cpus, arguments.client_cpus)
    arguments.place.pin_this_process()
    found = measure(model("mlp"), arguments)
    print(table(("what", "against", "which needs", "more", "ratio", "at most"), rows_of(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
