"""What a long prompt does to texts that are being written: their time per token while it is read, in ratio to before.

    python benchmarks/long_prompt.py [--shape gpt2-small] [--prompt 2000] [--rounds 5] [--slowdown 1.8] [--json FILE]

8 texts decode; then a prompt of 2,000 tokens arrives. Compared are the times between two tokens of the 8 texts from its
arrival to its first token with those of the steps before, in one process, round by round. The aim is a ratio of at
most 2. Beside it, the newcomer's time to its first token, and both for prompts that are read as fast as possible
(``--slowdown 1000``, in an engine of its own).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from batching import cell, say, table
from generation_sides import Ours
from generation_workloads import PLACES, SHAPES, Asked, save_network

BEFORE = 30
"""Tokens of each text before the prompt arrives."""


class Watch:
    """When every text got its tokens."""

    def __init__(self, texts: int) -> None:
        self.times: list[list[float]] = [[] for _ in range(texts)]
        self.changed = threading.Condition()

    def on_piece(self, piece: Any) -> None:
        with self.changed:
            self.times[piece.index] += [time.perf_counter()] * len(piece.tokens)
            self.changed.notify_all()

    def wait(self, tokens: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: all(len(times) >= tokens for times in self.times))


def one_round(side: Ours, prompt: int, vocabulary: int, turn: int) -> tuple[float, float, float, float]:
    """Seconds between tokens before; median and largest while the prompt is read; until its first token."""
    running, newcomer = Watch(PLACES), Watch(1)
    over = threading.Semaphore(0)
    texts = [Asked(tuple((7 * turn + 31 * index + i) % vocabulary for i in range(20)), 400) for index in range(PLACES)]
    call = side.begin(texts, running.on_piece, over.release)
    running.wait(BEFORE)
    arrived = time.perf_counter()
    ids = tuple((turn + 13 * i * i) % vocabulary for i in range(prompt))
    side.begin([Asked(ids, 1)], newcomer.on_piece, over.release)
    newcomer.wait(1)
    first = newcomer.times[0][0]
    side.cancel(call)
    over.acquire()
    over.acquire()
    before, during = [], []
    for times in running.times:
        for earlier, later in pairwise(times):
            if later <= arrived:
                before.append(later - earlier)
            elif earlier >= arrived and later <= first:
                during.append(later - earlier)
    return statistics.median(before[PLACES * 5 :]), statistics.median(during), max(during), first - arrived


def main() -> None:
    parser = argparse.ArgumentParser(description="What a long prompt does to texts that are being written.")
    parser.add_argument("--shape", choices=SHAPES, default="gpt2-small")
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slowdown", type=float, default=1.8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    shape = replace(SHAPES[arguments.shape], length=max(arguments.prompt, 400) + 200)
    rows, figures = [], {}
    with tempfile.TemporaryDirectory(prefix="bench-lm-") as folder:
        directory = Path(folder) / "1"
        save_network(shape, directory)
        for slowdown in (arguments.slowdown, 1000.0):
            side = Ours(
                directory, max_num_seqs=str(PLACES + 1), max_model_len=str(shape.length), prefill_slowdown=str(slowdown)
            )
            found = []
            for turn in range(arguments.rounds + 1):
                found.append(one_round(side, arguments.prompt, shape.vocabulary, turn))
                say(f"slowdown {slowdown:g}: round {turn} of {arguments.rounds}")
            side.close()
            warm = found[1:]
            ratio = statistics.median(during / before for before, during, _, _ in warm)
            worst = statistics.median(most / before for before, _, most, _ in warm)
            first = statistics.median(seconds for _, _, _, seconds in warm)
            rows.append([f"{slowdown:g}", cell(ratio, 2), cell(worst, 2), cell(first, 2)])
            figures[slowdown] = {"ratio": ratio, "worst": worst, "first": first}
    print(f"\n{arguments.shape}, {PLACES} texts, a prompt of {arguments.prompt} tokens\n")
    print(table(["prefill_slowdown", "time per token, ratio", "longest, ratio", "s to its first token"], rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
