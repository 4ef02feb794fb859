"""Two pictures: requests a second against the number of callers, and waiting against load.

    python benchmarks/plots.py measure FILE [--rounds 3] [--seconds 3] [--peers mosec] [--model mlp]
    python benchmarks/plots.py draw FILE [--out docs/img]

``measure`` runs the servers (one core for the server, one for the callers; sides take turns within each round) and
writes the medians as JSON. ``draw`` needs matplotlib (``pip install tfs-lite[bench]``) and nothing else from here, and
writes ``throughput.svg`` and ``latency.svg``; the same figures give the same bytes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sides import Figures, Side, Stable

CALLERS = (1, 2, 4, 8, 16, 32, 64, 128)
SHARES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Of what each side reached with 64 callers."""
COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#787774", "#c14c8a")
INK, GRID = "#37352f", "#e3e2e0"


def colours(figures: dict[str, Any]) -> dict[str, str]:
    """One for each side, the same in both pictures."""
    return dict(zip(figures["throughput"], itertools.cycle(COLOURS), strict=False))


def throughput_round(sides: Sequence[Side], stable: Stable, seconds: float) -> dict[str, list[Figures]]:
    from batching import say
    from sides import figures_of

    found: dict[str, list[Figures]] = {}
    for side in sides:
        say(f"throughput: {side.name}")
        with stable.running(side) as running:
            found[side.name] = [figures_of(side, running, stable.model, seconds, callers) for callers in CALLERS]
    return found


def latency_round(sides: Sequence[Side], stable: Stable, seconds: float, seed: int) -> dict[str, list[Any]]:
    """Per side, for each share: [requests a second, p50 ms, p99 ms]."""
    import random

    from batching import say
    from load import open_loop, poisson
    from sides import close, figures_of, picks

    found: dict[str, list[Any]] = {}
    for side in sides:
        say(f"latency: {side.name}")
        points = found.setdefault(side.name, [])
        with stable.running(side) as running:
            most = figures_of(side, running, stable.model, seconds).rate
            for share in SHARES:
                connections, _ = side.connect(running, stable.model)
                arrivals = poisson(most * share, seconds, random.Random(seed))
                try:
                    tally = open_loop(connections, arrivals, picks(stable.model, False))
                finally:
                    close(connections)
                points.append([tally.rate, tally.percentile(50) * 1e3, tally.percentile(99) * 1e3])
    return found


def measure(arguments: argparse.Namespace) -> None:
    from arrivals import present
    from models import model
    from servers import Place
    from sides import GRPC_LIMIT, Stable, main_sides, peer_sides

    place = Place(arguments.server_cpus, arguments.client_cpus)
    place.pin_this_process()
    stable = Stable(model(arguments.model), place)
    wanted = (GRPC_LIMIT.name, "ours, thread", "ours, process", "ours, no batching", "ours, REST")
    peers = peer_sides([name for name in arguments.peers.split(",") if name])
    try:
        sides = present(stable, [side for side in main_sides() if side.name in wanted] + peers)
        own = [side for side in sides if side.name.startswith("ours")]
        rounds, waits = [], []
        for number in range(arguments.rounds):
            rounds.append(throughput_round(sides, stable, arguments.seconds))
            waits.append(latency_round(own, stable, arguments.seconds, number))
    finally:
        stable.close()
    rates = {
        side.name: [statistics.median(row[side.name][at].rate for row in rounds) for at in range(len(CALLERS))]
        for side in sides
    }
    latency = {
        side.name: [
            [statistics.median(row[side.name][at][column] for row in waits) for column in range(3)]
            for at in range(len(SHARES))
        ]
        for side in own
    }
    figures = {"model": arguments.model, "callers": CALLERS, "throughput": rates, "latency": latency}
    arguments.file.write_text(json.dumps(figures, indent=1))


def draw(arguments: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "tfs-lite", "svg.fonttype": "none", "font.size": 10, "text.color": INK})
    figures = json.loads(arguments.file.read_text())
    arguments.out.mkdir(parents=True, exist_ok=True)
    draw_throughput(figures, arguments.out / "throughput.svg")
    draw_latency(figures, arguments.out / "latency.svg")


def axes(title: str, across: str, up: str) -> tuple[Any, Any]:
    from matplotlib import pyplot

    figure, plot = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    plot.set_title(title, loc="left", color=INK)
    plot.set_xlabel(across, color=INK)
    plot.set_ylabel(up, color=INK)
    plot.grid(color=GRID, linewidth=0.8)
    plot.set_axisbelow(True)
    plot.spines[["top", "right"]].set_visible(False)
    return figure, plot


def save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, metadata={"Date": None, "Creator": None}, facecolor="white")
    pyplot.close(figure)
    print(path)


def draw_throughput(figures: dict[str, Any], path: Path) -> None:
    figure, plot = axes(f"{figures['model']}: requests a second, one core", "callers", "requests a second")
    for name, rates in figures["throughput"].items():
        plot.plot(figures["callers"], rates, marker="o", markersize=4, color=colours(figures)[name], label=name)
    plot.set_xscale("log", base=2)
    plot.set_xticks(figures["callers"], [str(callers) for callers in figures["callers"]])
    plot.set_ylim(bottom=0)
    plot.legend(frameon=False)
    save(figure, path)


def draw_latency(figures: dict[str, Any], path: Path) -> None:
    figure, plot = axes(f"{figures['model']}: waiting for an answer", "requests a second", "ms (p50 dashed, p99 solid)")
    for name, points in figures["latency"].items():
        colour = colours(figures)[name]
        shown = [point for point in points if not any(map(math.isnan, point))]
        rates = [point[0] for point in shown]
        plot.plot(rates, [point[2] for point in shown], marker="o", markersize=4, color=colour, label=name)
        plot.plot(rates, [point[1] for point in shown], linestyle="--", color=colour)
    plot.set_yscale("log")
    plot.set_xlim(left=0)
    plot.legend(frameon=False)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("file", type=Path)
    measuring.add_argument("--rounds", type=int, default=3)
    measuring.add_argument("--seconds", type=float, default=3.0)
    measuring.add_argument("--model", default="mlp")
    measuring.add_argument("--peers", default="mosec")
    measuring.add_argument("--server_cpus", default="0")
    measuring.add_argument("--client_cpus", default="1")
    measuring.set_defaults(work=measure)
    drawing = commands.add_parser("draw")
    drawing.add_argument("file", type=Path)
    drawing.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "img")
    drawing.set_defaults(work=draw)
    arguments = parser.parse_args()
    arguments.work(arguments)


if __name__ == "__main__":
    main()
