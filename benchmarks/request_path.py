"""What a request costs our server, by protocol: CPU time and the time of a single caller, in ratio to a bare echo.

    python benchmarks/request_path.py [--quick] [--rounds 5] [--seconds 2] [--only TEXT,...] [--json FILE]

One server with the small network and batching, and a ``grpc.aio`` echo, which answers a message with itself. Every side
is asked in turn within a round; figures are medians over rounds, ratios medians of the ratios within a round, always to
the echo asked over 8 connections. The server is pinned to one core, the callers to another.

- CPU us: user and system time of the server's process by request, in a closed loop of 64 callers.
- 8x8: 8 connections with 8 callers each; 64x1: a connection for each caller, as HTTP/1.1 needs. varying: every gRPC
  call has another timeout, which makes every header block another one.
- one p50: the median time of a single caller.
- client: the share of its core that the load generator used. Near 1 the rates are the client's; CPU us is the server's
  own also then, but smaller bursts cost it more for each request.

The statuses of all answers are looked at, and the values of one in 64; ``failed`` is the number that were not right.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from batching import cell, say, table
from forms import GRPC, REST, V2, V2_BINARY, V2_JSON
from models import Model, model
from replay import NONE, VARYING
from servers import Place, batched
from sides import GRPC_LIMIT, WORKER, Side, Stable, ours
from transport import Asked, Found, Way, measure, size_of_answer

FIGURES = ("requests/s", "CPU us", "CPU to echo", "one p50 ms", "to echo", "batch")
HEAD = ("path", "layout", "timeouts", *FIGURES, "failed", "client")
SERVER = "ours"
FEW, MANY = Way((8, 8), NONE), Way((64, 1), NONE)


def paths() -> list[tuple[Side, Way]]:
    """Who is asked in which way; the echo first."""
    flags = (*batched(), WORKER.format("thread"))
    asked = (
        ("Predict, gRPC", GRPC, FEW),
        ("Predict, gRPC", GRPC, Way((64, 1), VARYING)),
        ("V2, gRPC", V2, FEW),
        ("Predict, REST", REST, MANY),
        ("V2, JSON", V2_JSON, MANY),
        ("V2, binary over HTTP", V2_BINARY, MANY),
    )
    return [(GRPC_LIMIT, FEW), *((ours(name, *flags, codec=codec, server=SERVER), way) for name, codec, way in asked)]


def measure_all(built: Model, arguments: argparse.Namespace) -> list[Found]:
    """All rounds. Absent when a server cannot run, ConnectionError when its first answer is wrong."""
    chosen = [path for path in paths() if path[0].echoes or any(text in path[0].name for text in arguments.only)]
    stable, found = Stable(built, arguments.place), list[Found]()
    try:
        for number in range(arguments.rounds):
            for side, way in chosen:
                say(f"round {number + 1} of {arguments.rounds}: {side.name}, {way.name}, {way.timeouts}")
                with stable.running(side) as running:
                    size = size_of_answer(side, side.port(running), built)
                    asked = Asked(side, running, built, size, "replay")
                    found.append(measure(asked, way, number, arguments.seconds))
    finally:
        stable.close()
    return found


def rows_of(found: Sequence[Found]) -> list[list[str]]:
    """One for each path, in the order of the first round."""
    echoes = {one.round: one for one in found if one.side == GRPC_LIMIT.name}
    rows = []
    for side, way in dict.fromkeys((one.side, one.way) for one in found):
        own = [one for one in found if (one.side, one.way) == (side, way)]

        def middle(value: Callable[[Found], float], own: Sequence[Found] = own) -> float:
            return statistics.median(map(value, own))

        def ratio(value: Callable[[Found], float], own: Sequence[Found] = own) -> float:
            return statistics.median(value(one) / value(echoes[one.round]) for one in own)

        cpu, single = (lambda one: one.figures.cpu_us), (lambda one: one.one_p50)
        rows.append([side, way.name, way.timeouts, cell(middle(lambda one: one.figures.rate)), cell(middle(cpu), 1)])
        rows[-1] += [cell(ratio(cpu), 2), cell(middle(single), 3), cell(ratio(single), 2)]
        rows[-1] += [cell(middle(lambda one: one.figures.batch_rows), 1), str(sum(one.figures.failures for one in own))]
        rows[-1].append(cell(middle(lambda one: one.figures.client_share), 2))
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of one second each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    parser.add_argument("--only", default="", help="paths whose names contain one of these, besides the echo")
    parser.add_argument("--server_cpus", default="0")
    parser.add_argument("--client_cpus", default="1")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 1.0
    arguments.only = arguments.only.split(",")
    arguments.place = Place(arguments.server_cpus, arguments.client_cpus)
    return arguments


def main() -> int:
    arguments = parse()
    built = model("mlp")
    arguments.place.pin_this_process()
    found = measure_all(built, arguments)
    print(table(HEAD, rows_of(found)))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=1))
    return 1 if any(one.figures.failures for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
