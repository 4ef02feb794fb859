"""Many texts through one language model: ours against the ways that people have without it, in ratios of one run.

    python benchmarks/continuous_batching.py [--workloads classic,scattered,long] [--shape gpt2-small] [--rounds 5]
                                             [--sides static,...] [--json FILE]

Greedy, fp32, random weights, at most 8 texts at once. Every side has a process of its own, which is idle while another
one's turn is measured; sides take turns within each round, and a ratio is of two figures of one round. The table has
medians over the rounds. All sides have to draw the same tokens; how many texts differ is in the table.

``classic``: 32 requests, every 8th asks for 100 tokens, the others for 10. Batches that wait for their longest text
need 400 forwards for it, first come first served 130, and 100 is the least possible. ``scattered``: 48 requests of
random lengths. ``long``: 8 prompts of 300 to 950 tokens; its network is the shape ``30m``, unless one is named.
``abreast``: 8 texts that start and end together; with ``--sides bare,ours`` it tells what a step costs beside the
forward itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batching import cell, say, table
from generation_workloads import SHAPES, WORKLOADS, save_network, tokens_of


@dataclass(slots=True)
class Measured:
    seconds: list[float] = field(default_factory=list)
    forwards: int = 0
    tokens: list[list[int]] = field(default_factory=list)


class Process:
    """A side. ``run`` one at a time: the others wait at their pipes."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self._child = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, "--directory", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        )
        self._answer()

    def run(self, workload: str) -> dict[str, Any]:
        assert self._child.stdin is not None
        self._child.stdin.write(workload + "\n")
        self._child.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"{self.name}: its process has ended")


def serve(name: str, directory: Path) -> None:
    """In the process of a side: a workload's name in, its figures out."""
    from generation_sides import SIDES

    vocabulary = json.loads((directory / "config.json").read_text())["vocab_size"]
    side = SIDES[name](directory)
    print("{}", flush=True)
    for line in sys.stdin:
        workload = WORKLOADS[line.strip()](vocabulary)
        started = time.perf_counter()
        tokens = side.run(workload)
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "forwards": side.forwards, "tokens": tokens}), flush=True)
    side.close()


def measure(workload: str, shape: str, names: list[str], rounds: int) -> dict[str, Measured]:
    found = {name: Measured() for name in names}
    with tempfile.TemporaryDirectory(prefix="bench-lm-") as folder:
        directory = Path(folder) / "1"
        save_network(SHAPES[shape], directory)
        processes = [Process(name, directory) for name in names]
        try:
            for turn in range(rounds + 1):
                for process in processes:
                    answer = process.run(workload)
                    one = found[process.name]
                    if turn:  # the first is to get warm
                        one.seconds.append(answer["seconds"])
                    one.forwards, one.tokens = answer["forwards"], answer["tokens"]
                say(f"{workload}: round {turn} of {rounds}")
        finally:
            for process in processes:
                process.close()
    return found


def report(workload: str, shape: str, found: dict[str, Measured]) -> dict[str, Any]:
    vocabulary = SHAPES[shape].vocabulary
    asked = WORKLOADS[workload](vocabulary)
    base, rows, figures = next(iter(found.values())), [], {}
    for name, one in found.items():
        ratio = statistics.median(a / b for a, b in zip(base.seconds, one.seconds, strict=True))
        seconds = statistics.median(one.seconds)
        differ = sum(a != b for a, b in zip(one.tokens, base.tokens, strict=True))
        rows.append(
            [
                name,
                str(one.forwards),
                cell(seconds, 2),
                cell(tokens_of(asked) / seconds, 1),
                cell(ratio, 2),
                str(differ),
            ]
        )
        figures[name] = {"forwards": one.forwards, "seconds": one.seconds, "ratio": ratio, "differ": differ}
    print(f"\n{workload}, {shape}: {len(asked)} texts, {tokens_of(asked)} tokens\n")
    print(table(["side", "forwards", "seconds", "tokens/s", f"x {next(iter(found))}", "texts that differ"], rows))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Continuous batching, in ratios to static batching.")
    parser.add_argument("--workloads", default="classic,scattered,long")
    parser.add_argument("--shape", choices=SHAPES, help="of the network; default gpt2-small, for long prompts 30m")
    parser.add_argument("--sides", default="static,merge and copy,transformers,ours (plain weights),ours")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.directory)
        return
    figures = {}
    for workload in arguments.workloads.split(","):
        shape = arguments.shape or ("30m" if workload == "long" else "gpt2-small")
        found = measure(workload, shape, arguments.sides.split(","), arguments.rounds)
        figures[workload] = report(workload, shape, found)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
