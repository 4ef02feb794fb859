"""What a gRPC request costs the server: ours on its native transport and on grpcio, bare echoes of both, and others.

    python benchmarks/transport.py [--quick] [--rounds 5] [--seconds 3] [--layouts 64x1,8x8]
        [--timeouts none,fixed,varying] [--servers grpcio,native] [--only TEXT,...] [--client replay|grpcio]
        [--no_peers] [--json FILE]

Everything in one run, sides in turn within a round; figures are medians over rounds, ratios medians of the ratios
within a round, always to the ``grpc.aio`` echo of the same layout and timeouts. The server is pinned to one core, the
callers to another. ``ours`` is the whole product on the small network with batching on; an echo is the transport alone.

- CPU us: user and system time of the server's processes by request, in a closed loop of 64 callers.
- layout: connections x callers on each. timeout: ``none``; ``fixed``, a minute; ``varying``, 5 to 60 s, which makes
  every header block another one. Peers are asked without timeouts, those over HTTP with a connection for each caller.
- one p50: the same with a single caller.
- client: the share of its core that the load generator used. Near 1 the rates are the client's, and the server has
  spare time; CPU us is the server's own also then, but smaller bursts cost it more for each request.

``--client=replay`` writes what grpcio writes, from prepared frames; ``grpcio`` asks with real ``grpc.aio`` channels.
Every answer's status and size are looked at, the values of one in 64; ``failed`` is the number that were not right.
``--servers=default`` leaves out the flag ``--grpc_server``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from batching import cell, chosen, say, table
from connections import Connection
from forms import GRPC_ECHO
from load import Tally, closed_loop
from models import Model, model
from replay import NONE, TIMEOUTS, ReplayConnection, timeouts_of
from servers import HERE, Absent, Launch, Place, batched, launch_command
from sides import GRPC_LIMIT, WORKER, Figures, Side, Stable, close, ours, peer_sides, picks, runs, summary
from sides import rows_a_run as rows_of_a_run
from stock_client import stock_loop

from tests.support.servers.process import free_ports

WARM_UP_SECONDS = 0.5
PEERS = ("mosec", "pytriton")
FIGURES = ("requests/s", "CPU us", "CPU to echo", "rate to echo", "p50 ms", "p99 ms", "one p50 ms", "to echo", "batch")
HEAD = ("side", "layout", "timeout", *FIGURES, "failed", "client")


@dataclass(frozen=True, slots=True)
class Way:
    """How a side is asked."""

    layout: tuple[int, int]
    timeouts: str

    @property
    def name(self) -> str:
        return f"{self.layout[0]}x{self.layout[1]}"


@dataclass(frozen=True, slots=True)
class Found:
    """Of one side, asked in one way, in one round. ``one_p50``: of a single caller, in ms."""

    side: str
    way: Way
    round: int
    figures: Figures
    one_p50: float


def launch_echo(kind: str, loop: str) -> Launch:
    """One of ``transport_echo.py``'s servers."""

    @contextmanager
    def launch(built: Model, place: Place) -> Any:
        (port,) = free_ports(1)
        command = [sys.executable, str(HERE / "transport_echo.py"), kind, str(port), loop]
        with launch_command(command, port, GRPC_ECHO, built, place, {}) as running:
            yield running

    return launch


def echo(kind: str, loop: str) -> Side:
    name = f"{kind} echo, {loop}"
    return Side(name, name, GRPC_ECHO, launch_echo(kind, loop), echoes=True)


def all_sides(arguments: argparse.Namespace) -> list[Side]:
    flags = (*batched(), WORKER.format("thread"))
    found = [GRPC_LIMIT, echo("grpcio", "uvloop"), echo("native", "asyncio"), echo("native", "uvloop")]
    for server in arguments.servers.split(","):
        flag = () if server == "default" else (f"--grpc_server={server}",)
        found.append(ours(f"ours, {server}", *flags, *flag))
    return found if arguments.no_peers else [*found, *peer_sides(PEERS)]


def ways_of(side: Side, arguments: argparse.Namespace) -> list[Way]:
    layouts = [tuple(map(int, text.split("x"))) for text in arguments.layouts.split(",")]
    ways = [Way((count, each), kind) for kind in arguments.timeouts.split(",") for count, each in layouts]
    if side.stays:
        return ways
    if side.codec.content_type:
        return [Way((64, 1), NONE)]
    return [way for way in ways if way.timeouts == NONE]


def size_of_answer(side: Side, port: int, built: Model) -> int:
    """Of the answer to a question of one row, which is checked. ConnectionError when it is not right."""
    (connection,) = (side.codec.connect(port, built, side.codec.messages(built)),)
    with connection.sock as sock:
        sock.settimeout(10)
        connection.start(0, 0.0)
        connection.flush()
        while not (answers := connection.receive()):
            connection.flush()
    body = answers[0].body
    if answers[0].code != connection.good or body is None or not side.check(built)(0, body):
        raise ConnectionError(f"its first answer is wrong: {answers[0].code} {body!r:.80}")
    return len(body)


@dataclass(frozen=True, slots=True)
class Asked:
    """One side, up and running, to be asked in any way. ``size``: of the answers to questions of one row."""

    side: Side
    running: Any
    model: Model
    size: int
    client: str

    def loop(self, way: Way, seconds: float, marks: Callable[[], object] = lambda: None) -> Tally:
        """A closed loop, warmed up by another."""
        pick, check = picks(self.model, False), self.side.check(self.model)
        warm_up = min(WARM_UP_SECONDS, seconds)
        if self.client == "grpcio" and not self.side.codec.content_type:
            path, messages = self.side.codec.path, self.side.codec.messages(self.model)
            sizes, port, timeouts = [self.size] * len(messages), self.side.port(self.running), timeouts_of(way.timeouts)

            def stock(seconds: float, marks: Callable[[], object]) -> Tally:
                arguments = (port, path, messages, sizes, way.layout, seconds, pick, check, timeouts, marks)
                return stock_loop(*arguments)

            warm = stock(warm_up, lambda: None)
            return with_faults_of(warm, stock(seconds, marks))
        connections = self.connect(way)
        try:
            warm = closed_loop(connections, way.layout[1], warm_up, pick, check)
            return with_faults_of(warm, closed_loop(connections, way.layout[1], seconds, pick, check, None, marks))
        finally:
            close(connections)

    def connect(self, way: Way) -> list[Connection]:
        codec, port = self.side.codec, self.side.port(self.running)
        messages, count = codec.messages(self.model), way.layout[0]
        if codec.content_type:
            return [codec.connect(port, self.model, messages) for _ in range(count)]
        sizes = [self.size] * len(messages)
        seeds = range(count)
        return [ReplayConnection(port, codec.path, messages, sizes, timeouts_of(way.timeouts, seed)) for seed in seeds]


def with_faults_of(warm: Tally, tally: Tally) -> Tally:
    """What was wrong while warming up counts, too."""
    tally.wrong += warm.wrong + warm.codes.total()
    tally.checked += warm.checked
    return tally


def measure(asked: Asked, way: Way, number: int, seconds: float) -> Found:
    before, cpu = runs(asked.running), list[float]()
    tally = asked.loop(way, seconds, lambda: cpu.append(asked.running.cpu_seconds()))
    rows = rows_of_a_run(before, runs(asked.running))
    one = asked.loop(replace(way, layout=(1, 1)), seconds / 3)
    figures = replace(summary(tally, cpu[1] - cpu[0]), batch_rows=rows)
    figures.failures += one.failures
    return Found(asked.side.name, way, number, figures, one.percentile(50) * 1e3)


class Run:
    """All rounds. ``found`` and ``absent`` are its results."""

    def __init__(self, built: Model, sides: Sequence[Side], arguments: argparse.Namespace) -> None:
        self.found: list[Found] = []
        self.absent: dict[str, str] = {}
        self._sides, self._arguments = sides, arguments
        self._model = built
        self._sizes: dict[str, int] = {}

    def run(self) -> None:
        stable = Stable(self._model, self._arguments.place)
        try:
            for number in range(self._arguments.rounds):
                kept = [side for side in self._sides if side.stays]
                for way in ways_of(GRPC_LIMIT, self._arguments):
                    for side in kept:
                        self._measure(stable, side, [way], number)
                for side in self._sides:
                    if not side.stays:
                        self._measure(stable, side, ways_of(side, self._arguments), number)
        finally:
            stable.close()

    def _measure(self, stable: Stable, side: Side, ways: Sequence[Way], number: int) -> None:
        try:
            with stable.running(side) as running:
                if side.name not in self._sizes:
                    self._sizes[side.name] = size_of_answer(side, side.port(running), self._model)
                asked = Asked(side, running, self._model, self._sizes[side.name], self._arguments.client)
                for way in ways:
                    say(f"round {number + 1} of {self._arguments.rounds}: {side.name}, {way.name}, {way.timeouts}")
                    self.found.append(measure(asked, way, number, self._arguments.seconds))
        except (Absent, ConnectionError) as error:
            self.absent[side.name] = str(error)

    def of(self, side: str, way: Way) -> list[Found]:
        return [found for found in self.found if found.side == side and found.way == way]

    def ratio(self, side: str, way: Way, value: Callable[[Found], float]) -> float:
        """To the echo asked in the same way, in the same round."""
        base = {found.round: value(found) for found in self.of(GRPC_LIMIT.name, way)}
        ratios = [value(found) / base[found.round] for found in self.of(side, way) if found.round in base]
        return statistics.median(ratios) if ratios else math.nan


def rows_of(run: Run, sides: Sequence[Side]) -> list[list[str]]:
    rows = []
    for way in dict.fromkeys(found.way for found in run.found):
        for side in sides:
            if not (found := run.of(side.name, way)):
                continue

            def middle(name: str, found: Sequence[Found] = found) -> float:
                figures: list[float] = [getattr(one.figures, name) for one in found]
                return statistics.median(figures)

            rows.append([side.name, way.name, way.timeouts, cell(middle("rate")), cell(middle("cpu_us"), 1)])
            rows[-1].append(cell(run.ratio(side.name, way, lambda one: one.figures.cpu_us), 2))
            rows[-1].append(cell(run.ratio(side.name, way, lambda one: one.figures.rate), 2))
            rows[-1] += [cell(middle("p50"), 2), cell(middle("p99"), 2)]
            rows[-1].append(cell(statistics.median(one.one_p50 for one in found), 3))
            rows[-1].append(cell(run.ratio(side.name, way, lambda one: one.one_p50), 2))
            rows[-1] += [cell(middle("batch_rows"), 1), str(sum(one.figures.failures for one in found))]
            rows[-1].append(cell(middle("client_share"), 2))
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of one second each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--layouts", default="64x1,8x8")
    parser.add_argument("--timeouts", default=",".join(TIMEOUTS))
    parser.add_argument("--servers", default="grpcio,native", help="what --grpc_server says of ours")
    parser.add_argument("--only", default="", help="sides whose names contain one of these, besides the echoes")
    parser.add_argument("--client", choices=("replay", "grpcio"), default="replay")
    parser.add_argument("--no_peers", action="store_true")
    parser.add_argument("--server_cpus", default="0")
    parser.add_argument("--client_cpus", default="1")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 1.0
    arguments.place = Place(arguments.server_cpus, arguments.client_cpus)
    return arguments


def main() -> int:
    arguments = parse()
    sides = chosen(all_sides(arguments), arguments.only)
    built = model("mlp")
    arguments.place.pin_this_process()
    run = Run(built, sides, arguments)
    run.run()
    print(table(HEAD, rows_of(run, sides)))
    for name, why in run.absent.items():
        print(f"not measured: {name}: {why}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(found) for found in run.found], indent=1))
    return 1 if any(found.figures.failures for found in run.found) else 0


if __name__ == "__main__":
    sys.exit(main())
