"""What serving costs: ours in its ways, bare echo servers and other servers with the same models, as tables of ratios.

    python benchmarks/batching.py [--quick] [--rounds 3] [--seconds 4] [--only TEXT,...] [--no_peers] [--json FILE]

Sides take turns within each round; figures are medians over rounds, ratios medians of the ratios within a round. The
server is pinned to one core, the callers to another. 64 callers ask for one row each (``--mixed``: 1 to 7 rows),
batches are of at most 32 rows, torch has one thread. Peers that ``make bench-peers`` did not install are named and left
out.

- mlp: a model that costs nearly nothing, so that serving is what is measured. Requests a second in ratio to a bare
  ``grpc.aio`` echo of the same bytes, and for HTTP also to a bare ASGI echo with orjson.
- convnet: a model that costs a lot; rows a second in ratio to torch alone in a loop of 32 rows. Ours also under half of
  its load, arrivals independent: p99 in ratio to 2 x (one batch + the configured wait); 1 or less is the aim.

``client``: the share of its core that the load generator used; near 1 it is the client that was measured. ``failed``
counts refusals, wrong answers and missing ones.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load import open_loop, poisson
from models import Model, model
from servers import HERE, MAX_ROWS, WAIT_MS, Absent, Place, batched
from sides import (
    GRPC_LIMIT,
    HTTP_LIMIT,
    PEERS,
    PROCESS,
    THREAD,
    WORKER,
    Figures,
    Side,
    Stable,
    close,
    figures_of,
    main_sides,
    median_of,
    ours,
    peer_sides,
    picks,
    policy_sides,
)

TORCH = "torch alone"
WAITING = "ours, wait"


@dataclass(slots=True)
class Section:
    """Rounds of one model. ``half_load``: per side and round, (p99, the bound) in ms. ``torch``: seconds of a batch."""

    model: str
    rounds: list[dict[str, Figures]] = field(default_factory=list)
    torch: list[float] = field(default_factory=list)
    half_load: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> list[Figures]:
        return [figures[name] for figures in self.rounds if name in figures]

    def ratio(self, name: str, base: str, value: Callable[[Figures], float]) -> float:
        found = [value(row[name]) / value(row[base]) for row in self.rounds if name in row and base in row]
        return statistics.median(found) if found else math.nan


def run_section(built: Model, sides: Sequence[Side], arguments: argparse.Namespace) -> Section:
    section, stable = Section(built.name), Stable(built, arguments.place)
    try:
        for number in range(arguments.rounds):
            section.rounds.append({})
            if built.name == "convnet":
                section.torch.append(torch_batch_seconds(built, arguments))
            for side in sides:
                say(f"{built.name}, round {number + 1} of {arguments.rounds}: {side.name}")
                try:
                    measure(side, stable, section, arguments)
                except (Absent, ConnectionError) as error:
                    section.absent[side.name] = str(error)
    finally:
        stable.close()
    return section


def measure(side: Side, stable: Stable, section: Section, arguments: argparse.Namespace) -> None:
    built = stable.model
    with stable.running(side) as running:
        figures = figures_of(side, running, built, arguments.seconds, mixed_sizes=arguments.mixed)
        section.rounds[-1][side.name] = figures
        if not section.torch or running.ours is None or not figures.rate:
            return
        connections, _ = side.connect(running, built)
        arrivals = poisson(figures.rate / 2, arguments.seconds, random.Random(len(section.rounds)))
        try:
            tally = open_loop(connections, arrivals, picks(built, arguments.mixed), side.check(built))
        finally:
            close(connections)
        wait = WAIT_MS if side.name == WAITING else 0.0
        bound = 2 * (section.torch[-1] * 1e3 + wait)
        section.half_load.setdefault(side.name, []).append((tally.percentile(99) * 1e3, bound))
        figures.failures += tally.failures


def torch_batch_seconds(built: Model, arguments: argparse.Namespace) -> float:
    """Of one run of 32 rows, by torch alone on the server's core."""
    say(f"{built.name}: {TORCH}")
    shape = ",".join(map(str, built.shape))
    command = [sys.executable, str(HERE / "limits.py"), "torch", str(built.version), str(MAX_ROWS)]
    output = subprocess.run(
        arguments.place.pinned([*command, str(arguments.seconds), shape]), check=True, capture_output=True, text=True
    )
    return float(output.stdout)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def cell(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as needed, in the syntax of Markdown; the first is a name, the others are numbers."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        return f"| {' | '.join(cells)} |"

    rule = "|" + "|".join("-" * (width + 1) + (":" if at else "-") for at, width in enumerate(widths)) + "|"
    return "\n".join([line(head), rule, *map(line, rows)])


MLP_HEAD = ("mlp", "form", "requests/s", "to gRPC echo", "to ASGI echo", "p50 ms", "p99 ms", "CPU us", "batch")
CONVNET_HEAD = ("convnet", "form", "rows/s", "to torch alone", "p50 ms", "p99 ms", "CPU us", "batch", "p99/bound")
LAST = ("failed", "client")


def common_cells(found: Sequence[Figures]) -> tuple[list[str], list[str]]:
    """(times, CPU and batch; failures and the client's share)"""
    first = [cell(median_of(found, "p50"), 1), cell(median_of(found, "p99"), 1)]
    first += [cell(median_of(found, "cpu_us")), cell(median_of(found, "batch_rows"), 1)]
    return first, [str(sum(figures.failures for figures in found)), cell(median_of(found, "client_share"), 2)]


def mlp_table(section: Section, sides: Sequence[Side]) -> str:
    rows = []
    for side in sides:
        if not (found := section.of(side.name)):
            continue
        to_grpc = section.ratio(side.name, GRPC_LIMIT.name, lambda figures: figures.rate)
        to_http = section.ratio(side.name, HTTP_LIMIT.name, lambda figures: figures.rate)
        first, last = common_cells(found)
        http = cell(to_http, 2) if side.codec.content_type else "-"
        rate = cell(median_of(found, "rate"))
        rows.append([side.name, side.codec.label, rate, cell(to_grpc, 2), http, *first, *last])
    return table(MLP_HEAD + LAST, rows)


def convnet_table(section: Section, sides: Sequence[Side]) -> str:
    alone = [MAX_ROWS / seconds for seconds in section.torch]
    blanks = ["-"] * 5
    rows = [[TORCH, "-", cell(statistics.median(alone)), "1.00", *blanks, "0", "-"]] if alone else []
    for side in sides:
        if not (found := section.of(side.name)):
            continue
        pairs = zip(section.rounds, alone, strict=True)
        ratio = statistics.median(row[side.name].rows_rate / most for row, most in pairs if side.name in row)
        half = section.half_load.get(side.name, [])
        within = statistics.median(p99 / bound for p99, bound in half) if half else math.nan
        first, last = common_cells(found)
        rate = cell(median_of(found, "rows_rate"))
        rows.append([side.name, side.codec.label, rate, cell(ratio, 2), *first, cell(within, 2), *last])
    return table(CONVNET_HEAD + LAST, rows)


def as_json(section: Section) -> dict[str, Any]:
    return {
        "model": section.model,
        "rounds": [{name: figures.as_dict() for name, figures in row.items()} for row in section.rounds],
        "torch_batch_seconds": section.torch,
        "half_load_p99_and_bound_ms": section.half_load,
        "absent": section.absent,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of one second each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    parser.add_argument("--only", default="", help="sides whose names contain one of these, besides the echoes")
    parser.add_argument("--models", default="mlp,convnet")
    parser.add_argument("--no_peers", action="store_true")
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="1 to 7 rows a request instead of one; no peers, which differ in what they take",
    )
    parser.add_argument("--server_cpus", default="0")
    parser.add_argument("--client_cpus", default="1")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 1.0
    arguments.place = Place(arguments.server_cpus, arguments.client_cpus)
    return arguments


def convnet_sides() -> list[Side]:
    sides = [ours(name, *batched(), WORKER.format(name.rpartition(" ")[2])) for name in (THREAD, PROCESS)]
    return [*sides, ours(WAITING, *batched(wait_ms=WAIT_MS))]


def chosen(sides: Sequence[Side], only: str) -> list[Side]:
    if not only:
        return list(sides)
    wanted = [text.strip() for text in only.split(",")]
    return [side for side in sides if side.echoes or any(text in side.name for text in wanted)]


def main() -> None:
    arguments = parse()
    peers = [] if arguments.no_peers or arguments.mixed else peer_sides(tuple(PEERS))
    all_sides = {"mlp": [*main_sides(), *policy_sides(), *peers], "convnet": [*convnet_sides(), *peers]}
    arguments.place.pin_this_process()
    found = []
    for name in arguments.models.split(","):
        sides = chosen(all_sides[name], arguments.only)
        section = run_section(model(name), sides, arguments)
        found.append(section)
        print((mlp_table if name == "mlp" else convnet_table)(section, sides), end="\n\n", flush=True)
        for side_name, why in section.absent.items():
            print(f"not measured: {side_name}: {why}")
        print(flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([as_json(section) for section in found], indent=1))


if __name__ == "__main__":
    main()
