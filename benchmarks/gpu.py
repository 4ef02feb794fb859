"""What the GPU path gains: two lanes against one, CUDA graphs against none, pinned inputs against pageable ones.

    python benchmarks/gpu.py [--rounds 7] [--seconds 1.0] [--json]

Models with random weights, exported and opened as a server opens them: a small network of linear layers and a
convolutional one. Each pair takes turns within every round; the figures are rows per second, medians over rounds, and
the ratio is the median of the rounds' own ratios. Without a GPU it says so, and that is all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

WARM_RUNS = 20
Side = Callable[[float], float]
"""Runs for so many seconds, and returns rows per second."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model to measure. ``item`` is the shape of one row."""

    name: str
    module: torch.nn.Module
    item: tuple[int, ...]
    rows: tuple[int, ...]


def cases() -> list[Case]:
    torch.manual_seed(0)
    linear = [layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    mlp = torch.nn.Sequential(*linear, torch.nn.Linear(256, 10))
    convolutions: list[torch.nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128), (128, 128)):
        convolutions += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
        convolutions += [torch.nn.MaxPool2d(2)]
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 10)]
    convnet = torch.nn.Sequential(*convolutions, *head)
    return [Case("mlp", mlp, (256,), (1, 32, 256)), Case("convnet", convnet, (3, 224, 224), (1, 8, 32))]


def opened(case: Case, directory: Path, graphs: bool) -> Any:
    """The model on the GPU, as a server has it."""
    from tfs_lite.adapters.detect import read_version
    from tfs_lite.adapters.opening import OpenRequest
    from tfs_lite.adapters.pytorch.export import open_exported
    from tfs_lite.config.model import ModelSettings
    from tfs_lite.core.servable import ServableId

    path = directory / "model.pt2"
    if not path.exists():
        dynamic = ({0: torch.export.Dim("rows", max=1024)},)
        example = (torch.zeros(2, *case.item),)
        torch.export.save(torch.export.export(case.module.eval(), example, dynamic_shapes=dynamic), path)
    settings = ModelSettings(parameters={"cuda_graphs": str(graphs).lower()})
    request = OpenRequest(ServableId(case.name, 1), read_version(str(directory)), "cuda:0", False, settings)
    return open_exported(request)


def side(model: Any, case: Case, rows: int, threads: int, pinned: bool) -> Side:
    """So many threads run batches of so many rows, each after the other; they fill their inputs as a server does."""
    source = np.random.default_rng(0).standard_normal((rows, *case.item)).astype(np.float32)
    shapes = {"input": (source.shape, source.dtype)}
    pageable = threading.local()

    def once() -> None:
        if pinned:
            inputs = model.stage("", shapes)
        else:
            inputs = pageable.__dict__.setdefault("inputs", {"input": np.empty_like(source)})
        np.copyto(inputs["input"], source)
        model.run("", inputs, ())

    def measure(seconds: float) -> float:
        counts = [0] * threads
        start, stop = threading.Barrier(threads + 1), threading.Event()

        def work(index: int) -> None:
            for _ in range(WARM_RUNS):
                once()
            start.wait()
            while not stop.is_set():
                once()
                counts[index] += 1

        workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
        for worker in workers:
            worker.start()
        start.wait()
        began = time.perf_counter()
        stop.wait(seconds)
        stop.set()
        for worker in workers:
            worker.join()
        return sum(counts) * rows / (time.perf_counter() - began)

    return measure


def compare(one: Side, other: Side, rounds: int, seconds: float) -> dict[str, float]:
    """Both sides in turn, the order changing from round to round."""
    figures: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:
            second, first = other(seconds), one(seconds)
        else:
            first, second = one(seconds), other(seconds)
        figures.append((first, second))
    firsts, seconds_ = zip(*figures, strict=True)
    return {
        "first": statistics.median(firsts),
        "second": statistics.median(seconds_),
        "ratio": statistics.median(b / a for a, b in figures),
    }


def measure(rounds: int, seconds: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for case in cases():
        with tempfile.TemporaryDirectory() as directory:
            plain, graphed = opened(case, Path(directory), False), opened(case, Path(directory), True)
            for rows in case.rows:
                base = side(plain, case, rows, 1, True)
                pairs = {
                    "pageable -> pinned": (side(plain, case, rows, 1, False), base),
                    "one lane -> two": (base, side(plain, case, rows, 2, True)),
                    "no graphs -> graphs": (base, side(graphed, case, rows, 1, True)),
                    "two lanes: no graphs -> graphs": (
                        side(plain, case, rows, 2, True),
                        side(graphed, case, rows, 2, True),
                    ),
                }
                for name, (one, other) in pairs.items():
                    found.append(
                        {"model": case.name, "rows": rows, "pair": name} | compare(one, other, rounds, seconds)
                    )
            plain.close()
            graphed.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device")
        return
    found = measure(options.rounds, options.seconds)
    card = torch.cuda.get_device_name(0)
    if options.json:
        print(json.dumps({"torch": torch.__version__, "card": card, "results": found}, indent=2))
        return
    print(f"torch {torch.__version__}, {card}; rows/s, medians of {options.rounds} rounds of {options.seconds} s")
    for row in found:
        print(
            f"{row['model']:8} {row['rows']:4} rows  {row['pair']:32} {row['first']:12.0f} {row['second']:12.0f}"
            f"  x{row['ratio']:.2f}"
        )


if __name__ == "__main__":
    main()
