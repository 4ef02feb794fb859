"""What an ensemble adds to its steps: its latency in ratio to its critical path, its throughput to its slowest step's.

    python benchmarks/ensemble.py [--work wait|torch] [--rounds 5] [--seconds 3] [--json FILE]

    x -> first -> left  -> y        each step takes 10 ms for a batch of up to 8 rows, whatever is in it
               -> right -> z

Sides take turns within each round; ratios are of figures of one round, and their medians are printed.

- latency: one caller, one row. The critical path is twice 10 ms, as measured without a server in the same round; the
  aim is a ratio below 1.3. Beside it: a caller that asks ``first``, and then ``left`` and ``right`` at once.
- throughput: 64 callers with one row each, every step batched. The slowest step is ``first``, ``left`` or ``right``
  asked alone by as many callers, whichever gives the least; the aim is a ratio of 0.9 or more.

``--work wait``: steps wait for a timer without Python's lock, as one does for a device. Then what is measured is the
server. ``--work torch``: they multiply matrices with one torch thread, as often as takes 10 ms on an idle core, so
three steps at once need three idle cores beside the server's and the client's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from batching import cell, say, table
from connections import Connection
from forms import V2
from load import Tally, Watch, closed_loop, cycle
from models import BENCH, SINGLE, Model
from servers import Place, Running, launch_serve
from steps import ENSEMBLE, STEPS, asked, calibrated, work_seconds, write_repository

CALLERS = 64
LATENCY_AIM, THROUGHPUT_AIM = 1.3, 0.9


@dataclass(frozen=True, slots=True)
class Round:
    """Latencies in seconds, medians; requests a second by model; and what failed."""

    work: float
    ensemble: float
    by_client: float
    rates: dict[str, float]
    failures: int

    @property
    def latency_ratio(self) -> float:
        return self.ensemble / (2 * self.work)

    @property
    def throughput_ratio(self) -> float:
        return self.rates[ENSEMBLE] / min(self.rates[step] for step in STEPS)


@contextmanager
def connected(running: Running, model: Model) -> Iterator[Connection]:
    connection = V2.connect(running.port, model, V2.messages(model))
    try:
        yield connection
    finally:
        connection.sock.close()


def loaded(running: Running, model: Model, callers: int, seconds: float) -> Tally:
    with connected(running, model) as connection:
        return closed_loop(
            [connection], callers, seconds, cycle(SINGLE), lambda index, body: model.is_answer(index, V2.decode(body))
        )


def client_seconds(running: Running, models: dict[str, Model], seconds: float) -> float:
    """Of a caller that does the ensemble's work itself: ``first``, then the other two at once; the median."""
    with (
        connected(running, models["first"]) as first,
        connected(running, models["left"]) as left,
        connected(running, models["right"]) as right,
    ):
        watch, taken, ends = Watch([first, left, right]), list[float](), time.perf_counter() + seconds
        while not taken or time.perf_counter() < ends:
            started = time.perf_counter()
            call(watch, [first], started)
            call(watch, [left, right], started)
            taken.append(time.perf_counter() - started)
        watch.close()
    return statistics.median(taken)


def call(watch: Watch, connections: list[Connection], now: float) -> None:
    """One request on each, answered."""
    for connection in connections:
        connection.start(0, now)
        watch.flush(connection)
    while any(connection.busy for connection in connections):
        for connection, answers in watch.ready(10.0):
            if any(answer.code != connection.good for answer in answers):
                raise RuntimeError(f"a step was refused with code {answers[0].code}")


def measure(running: Running, models: dict[str, Model], number: int, kind: str, arguments: argparse.Namespace) -> Round:
    seconds, rates, failures = arguments.seconds, dict[str, float](), 0
    say(f"round {number + 1} of {arguments.rounds}")
    work = work_seconds(kind, seconds / 3)
    alone = loaded(running, models[ENSEMBLE], 1, seconds)
    by_client = client_seconds(running, models, seconds)
    failures += alone.failures
    order = (ENSEMBLE, *STEPS) if number % 2 == 0 else (*STEPS, ENSEMBLE)
    for name in order:
        tally = loaded(running, models[name], CALLERS, seconds)
        rates[name], failures = tally.rate, failures + tally.failures
    return Round(work, alone.percentile(50), by_client, rates, failures)


def report(rounds: list[Round]) -> str:
    def middle(values: Iterator[float]) -> float:
        return statistics.median(values)

    latency = table(
        ("one caller", "ms", "to the critical path"),
        [
            ["critical path", cell(middle(2e3 * row.work for row in rounds), 1), "1.00"],
            *(
                [
                    name,
                    cell(middle(1e3 * getattr(row, field) for row in rounds), 1),
                    cell(middle(getattr(row, field) / (2 * row.work) for row in rounds), 2),
                ]
                for name, field in (("ensemble", "ensemble"), ("its steps, by the client", "by_client"))
            ),
        ],
    )
    throughput = table(
        (f"{CALLERS} callers", "requests/s", "to the slowest step"),
        [
            [
                name,
                cell(middle(row.rates[name] for row in rounds)),
                cell(middle(row.rates[name] / min(row.rates[step] for step in STEPS) for row in rounds), 2),
            ]
            for name in (ENSEMBLE, *STEPS)
        ],
    )
    return f"{latency}\n\n{throughput}\n\n{verdict(rounds)}"


def verdict(rounds: list[Round]) -> str:
    latency = statistics.median(row.latency_ratio for row in rounds)
    throughput = statistics.median(row.throughput_ratio for row in rounds)
    return "\n".join(
        [
            f"latency: {latency:.2f} of the critical path; aim: below {LATENCY_AIM}",
            f"throughput: {throughput:.2f} of the slowest step's; aim: {THROUGHPUT_AIM} or more",
            f"failed: {sum(row.failures for row in rounds)}",
        ]
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=("wait", "torch"), default="wait")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--server_cpus", default="0", help="more than one for --work torch")
    parser.add_argument("--client_cpus", default="1")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    arguments = parser.parse_args()
    arguments.place = Place(arguments.server_cpus, arguments.client_cpus)
    return arguments


def main() -> None:
    arguments = parse()
    root = BENCH / "ensemble"
    arguments.place.pin_this_process()
    work = "wait" if arguments.work == "wait" else calibrated()
    write_repository(root, work)
    models = {name: asked(name, root) for name in (ENSEMBLE, *STEPS)}
    with launch_serve(arguments.place, f"--model_repository={root}", f"--trusted_model_base_paths={root}") as running:
        for built in models.values():  # warm
            loaded(running, built, CALLERS, min(1.0, arguments.seconds))
        rounds = [measure(running, models, number, work, arguments) for number in range(arguments.rounds)]
    print(report(rounds))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rounds], indent=1))


if __name__ == "__main__":
    main()
