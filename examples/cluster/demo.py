"""Publishes versions of a model, and asks for it all the time.

    python examples/cluster/demo.py publish models   # the next version of models/doubler
    python examples/cluster/demo.py ask              # a line a second: which version answered, how often, how long

The model doubles its input in every version; the answers say which version gave them.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

import tfs_lite
from tfs_lite.core.status import ServingError

MODEL = "doubler"
CONFIG = Path(__file__).resolve().parent / "repository" / MODEL / "config.pbtxt"
CALLERS = 4


class Doubler(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """``x`` (batch, 1) float32."""
        return {"doubled": x * 2}


class Answers:
    """What came since the last line. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: Counter[str] = Counter()
        self._longest = 0.0

    def note(self, outcome: str, seconds: float) -> None:
        with self._lock:
            self._versions[outcome] += 1
            self._longest = max(self._longest, seconds)

    def line(self) -> str:
        with self._lock:
            counts, longest = self._versions, self._longest
            self._versions, self._longest = Counter(), 0.0
        words = ", ".join(f"{outcome}: {count}" for outcome, count in sorted(counts.items()))
        return f"{words or 'nothing'}; longest {longest * 1e3:.0f} ms"


def ask(address: str, answers: Answers) -> None:
    with tfs_lite.Client(address, timeout=10) as client:
        while True:
            began = time.perf_counter()
            try:
                answer = client.predict(MODEL, {"x": [[21.0]]})
                outcome = f"version {answer.version}" if answer.outputs["doubled"] == 42 else "WRONG"
            except ServingError as error:
                outcome = f"FAILED ({error})"
                time.sleep(0.1)
            answers.note(outcome, time.perf_counter() - began)


def publish_next(base: Path) -> None:
    base.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(CONFIG, base / CONFIG.name)
    print(tfs_lite.save(Doubler(), base, example_inputs={"x": torch.ones(2, 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    publish = commands.add_parser("publish")
    publish.add_argument("repository", type=Path)
    asking = commands.add_parser("ask")
    asking.add_argument("--server", default="127.0.0.1:8500")
    arguments = parser.parse_args()
    if arguments.command == "publish":
        publish_next(arguments.repository / MODEL)
        return
    answers = Answers()
    for _ in range(CALLERS):
        threading.Thread(target=ask, args=(arguments.server, answers), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(1)
            print(answers.line(), flush=True)


if __name__ == "__main__":
    main()
