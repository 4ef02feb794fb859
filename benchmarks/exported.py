"""Loading and running exported programs: the direct builder against torch's own loader.

    python benchmarks/exported.py [--rounds 5] [--programs bert_512,resnet_18,...] [--json FILE]

Every program of the zoo (``tests/support/exported``), a BERT of 4 layers, 512 wide, and a ResNet-18. Both sides take
turns within each round; figures are medians over rounds, ratios are taken within a round. All on one thread of torch.

- load: from the file, in the page cache, to a program with its weights; wait: the longest time in which another thread,
  which wants to run every 0.2 ms, did not get the interpreter's lock meanwhile; memory: what the process has more
  afterwards, after a garbage collection and with freed memory given back.
- run: one call at the largest size of the zoo (two texts of 32 tokens for the BERT, two pictures for the ResNet),
  flat inputs to flat results.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from batching import cell, say, table
from torch import Tensor, nn

import tfs_lite
from tests.support.exported.zoo import ZOO
from tfs_lite.adapters.collection import freeze_gc
from tfs_lite.adapters.exported.document import read_document
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.adapters.exported.program import Program, build_program
from tfs_lite.adapters.exported.torch_loader import load_program
from tfs_lite.adapters.inspect.archive import open_archive
from tfs_lite.adapters.memory import release_memory
from tfs_lite.core.status import ServingError

CPU = torch.device("cpu")
TICK_SECONDS = 0.0002
LEAST_SECONDS = 0.01
"""Each measurement of a call repeats it for at least so long."""
TURNS = 5
HEAD = ("program", "load torch ms", "direct", "ratio", "wait torch ms", "direct", "run torch us", "direct", "ratio")
MEMORY_HEAD = ("memory torch KB", "direct")
Figures = dict[str, float]


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024}
        settings: dict[str, Any] = {"num_attention_heads": 8, "vocab_size": 8000, "attn_implementation": "eager"}
        self.model = transformers.BertModel(transformers.BertConfig(**sizes, **settings))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        result = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return {"last": result.last_hidden_state, "pooled": result.pooler_output}


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}
        self.model = transformers.ResNetForImageClassification(transformers.ResNetConfig(layer_type="basic", **sizes))

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.model(pixels).logits
        return logits


@dataclass(frozen=True)
class Case:
    """A file, and what makes the flat inputs of a call."""

    name: str
    path: Path
    inputs: Callable[[], Sequence[Any]]


def large_cases(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Case]:
    examples = {
        "bert_512": (Bert, (torch.randint(0, 100, (2, 32)), torch.ones(2, 32, dtype=torch.long))),
        "resnet_18": (ResNet, (torch.rand(2, 3, 64, 64),)),
    }
    for name, (network, inputs) in examples.items():
        if wanted(name):
            version = tfs_lite.save(network(), folder / name, example_inputs=inputs)
            yield Case(name, version / "model.pt2", partial(tuple, inputs))


def zoo_cases(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Case]:
    for program in ZOO.values():
        if wanted(program.name):
            path = program.save(folder / f"{program.name}.pt2")
            yield Case(program.name, path, partial(program.flat_inputs, program.sizes[-1]))


def torch_side(path: Path) -> Program:
    with open_archive(str(path), path.name) as archive:
        return load_program(archive, read_document(archive, trusted=True), CPU)


def direct_side(path: Path) -> Program:
    with open_archive(str(path), path.name) as archive:
        return build_program(archive, read_document(archive, trusted=False), CPU)


SIDES = {"torch": torch_side, "direct": direct_side}


class Ticker(threading.Thread):
    """Wants to run every 0.2 ms, and keeps the longest time in which it did not."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self._ended = threading.Event()

    def __enter__(self) -> Ticker:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        last = time.perf_counter()
        while not self._ended.is_set():
            time.sleep(TICK_SECONDS)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now


def seconds_of(work: Callable[[], object]) -> float:
    """Of one call."""
    calls, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < LEAST_SECONDS:
        work()
        calls += 1
    return passed / calls


def resident_bytes() -> int:
    release_memory()
    return int(psutil.Process().memory_info().rss)


def load_figures(side: str, case: Case, kept: list[Program]) -> Figures:
    """Of two loads, one of them beside a ticking thread. Keeps the first one."""
    before = resident_bytes()
    started = time.perf_counter()
    kept.append(SIDES[side](case.path))
    seconds = time.perf_counter() - started
    memory = resident_bytes() - before
    with Ticker() as ticker:
        SIDES[side](case.path)
    return {f"load_{side}": seconds, f"wait_{side}": ticker.longest, f"memory_{side}": memory}


def run_figures(programs: dict[str, Program], case: Case) -> Figures:
    """Of a call: the median of some turns, which the sides take one after the other."""
    inputs, turns = {side: case.inputs() for side in programs}, {side: list[float]() for side in programs}
    with torch.inference_mode():
        for side in [*programs] * (TURNS + 1):
            turns[side].append(seconds_of(partial(programs[side].forward, *inputs[side])))
    return {f"run_{side}": statistics.median(found[1:]) for side, found in turns.items()}


def measure(case: Case, rounds: int) -> Figures:
    """Medians over rounds; of the ratios as well. The sides take turns in being the first."""
    for opens in SIDES.values():
        opens(case.path)
    found, kept = list[Figures](), {side: list[Program]() for side in SIDES}
    for number in range(rounds):
        one = Figures()
        for side in sorted(SIDES, reverse=number % 2 == 1):
            one |= load_figures(side, case, kept[side])
        one |= run_figures({side: kept[side][-1] for side in sorted(SIDES, reverse=number % 2 == 1)}, case)
        for what in ("load", "run"):
            one[f"{what}_ratio"] = one[f"{what}_direct"] / one[f"{what}_torch"]
        found.append(one)
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def row(name: str, figures: Figures) -> list[str]:
    columns = (
        ("load_torch", 1e3, 1), ("load_direct", 1e3, 1), ("load_ratio", 1, 3),
        ("wait_torch", 1e3, 1), ("wait_direct", 1e3, 1),
        ("run_torch", 1e6, 0), ("run_direct", 1e6, 0), ("run_ratio", 1, 3),
        ("memory_torch", 1 / 1024, 0), ("memory_direct", 1 / 1024, 0),
    )  # fmt: skip
    return [name, *(cell(figures[column] * factor, digits) for column, factor, digits in columns)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--programs", help="their names, with commas between them; all without this")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    names = set(arguments.programs.split(",")) if arguments.programs else None
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    freeze_gc()
    found = dict[str, Figures]()
    with tempfile.TemporaryDirectory(prefix="bench-exported-") as folder:
        for make in (large_cases, zoo_cases):
            for case in make(Path(folder), lambda name: names is None or name in names):
                try:
                    found[case.name] = measure(case, arguments.rounds)
                    say(case.name)
                except (UnsupportedProgram, ServingError) as error:
                    say(f"not measured: {case.name}: {error}")
    medians = {name: statistics.median(one[name] for one in found.values()) for name in next(iter(found.values()))}
    rows = [row(name, figures) for name, figures in [*found.items(), (f"median of {len(found)}", medians)]]
    print(table((*HEAD, *MEMORY_HEAD), rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
