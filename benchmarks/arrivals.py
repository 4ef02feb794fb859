"""When should a batch leave? The ways to decide it, under arrivals of several kinds: one table per model.

    python benchmarks/arrivals.py [--rounds 3] [--seconds 4] [--models mlp,convnet] [--json FILE]

Policies: ``greedy`` (whatever is there, as soon as the model is free), ``wait`` (a batch that is not full waits 2 ms)
and ``expect`` (judged by the batches before). Arrivals, requests of 1 to 7 rows unless said otherwise:

- closed 1, closed 16, closed 64: so many callers, each asking again once answered; one row each.
- closed mixed: 64 callers.
- Poisson: independent arrivals, at half and at nine tenths of the least rate that any policy reached in ``closed
  mixed`` in this round, the same for all.
- bursts: the same mean rate as the first, all of it in a quarter of each fifth of a second.

The policies take turns within each round; figures are medians over rounds. ``to greedy``: p99 (open loops) or rate
(closed loops) in ratio to greedy in the same round. ``batch``: mean rows of a run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from batching import cell, say, table
from load import bursty, open_loop, poisson
from models import model
from servers import Absent, Place, Running
from sides import Figures, Side, Stable, close, figures_of, picks, policy_sides, rows_a_run, runs, summary

CLOSED = {"closed 1": (1, False), "closed 16": (16, False), "closed 64": (64, False), "closed mixed": (64, True)}
OPEN = ("Poisson 0.5", "Poisson 0.9", "bursts 0.5")
HEAD = ("arrivals", "policy", "requests/s", "rows/s", "p50 ms", "p99 ms", "to greedy", "batch", "CPU us", "failed")
Row = dict[str, dict[str, Figures]]
"""Kind of arrivals -> policy -> figures, of one round."""


def arrivals_of(kind: str, rate: float, seconds: float, seed: int) -> Iterator[float]:
    name, _, share = kind.partition(" ")
    make: Callable[[float, float, random.Random], Iterator[float]] = bursty if name == "bursts" else poisson
    return make(rate * float(share), seconds, random.Random(seed))


def open_figures(side: Side, running: Running, stable: Stable, arrivals: Iterator[float]) -> Figures:
    built, cpu, before = stable.model, running.cpu_seconds(), runs(running)
    connections, _ = side.connect(running, built)
    try:
        tally = open_loop(connections, arrivals, picks(built, True), side.check(built), built.rows)
    finally:
        close(connections)
    found = summary(tally, running.cpu_seconds() - cpu)
    return replace(found, batch_rows=rows_a_run(before, runs(running)))


def one_round(stable: Stable, sides: list[Side], seconds: float, seed: int) -> Row:
    found: Row = {kind: {} for kind in (*CLOSED, *OPEN)}
    for kind, (callers, mixed) in CLOSED.items():
        for side in sides:
            with stable.running(side) as running:
                found[kind][side.name] = figures_of(side, running, stable.model, seconds, callers, mixed)
    rate = min(figures.rate for figures in found["closed mixed"].values())
    for kind in OPEN:
        for side in sides:
            with stable.running(side) as running:
                arrivals = arrivals_of(kind, rate, seconds, seed)
                found[kind][side.name] = open_figures(side, running, stable, arrivals)
    return found


def present(stable: Stable, sides: list[Side]) -> list[Side]:
    """Those whose server runs here; says which do not."""
    found = []
    for side in sides:
        try:
            with stable.running(side):
                found.append(side)
        except Absent as error:
            print(f"not measured: {side.name}: {error}")
    return found


def rows_of(rounds: list[Row], sides: list[Side]) -> list[list[str]]:
    rows, greedy = [], sides[0].name
    for kind in (*CLOSED, *OPEN):
        for side in sides:
            found, base = [row[kind][side.name] for row in rounds], [row[kind][greedy] for row in rounds]
            ratios = [
                one.rate / other.rate if kind in CLOSED else one.p99 / other.p99
                for one, other in zip(found, base, strict=True)
            ]

            def middle(name: str, digits: int = 0, found: list[Figures] = found) -> str:
                return cell(statistics.median(getattr(figures, name) for figures in found), digits)

            times = [middle("p50", 2), middle("p99", 2), cell(statistics.median(ratios), 2)]
            failed = str(sum(figures.failures for figures in found))
            rates = [middle("rate"), middle("rows_rate")]
            rows.append([kind, side.name, *rates, *times, middle("batch_rows", 1), middle("cpu_us"), failed])
    return rows


def run(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    stable = Stable(model(name), arguments.place)
    try:
        sides = present(stable, policy_sides())
        rounds = []
        for number in range(arguments.rounds):
            say(f"{name}, round {number + 1} of {arguments.rounds}")
            rounds.append(one_round(stable, sides, arguments.seconds, number))
        print(table((f"{name}: {HEAD[0]}", *HEAD[1:]), rows_of(rounds, sides)), end="\n\n")
    finally:
        stable.close()
    return [
        {kind: {side: figures.as_dict() for side, figures in by_side.items()} for kind, by_side in row.items()}
        for row in rounds
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    parser.add_argument("--models", default="mlp,convnet")
    parser.add_argument("--server_cpus", default="0")
    parser.add_argument("--client_cpus", default="1")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    arguments = parser.parse_args()
    arguments.place = Place(arguments.server_cpus, arguments.client_cpus)
    arguments.place.pin_this_process()
    found = {name: run(name, arguments) for name in arguments.models.split(",")}
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
