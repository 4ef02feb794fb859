"""What the GPU path gains by two lanes and three, by CUDA graphs, and by pinned inputs.

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
from pathlib import Path
from typing import Any

import gpu_models
import numpy as np
import torch
from gpu_models import Case

WARM_RUNS = 20
Side = Callable[[float], float]
"""Runs for so many seconds, and returns rows per second."""


ROWS = {"mlp": (1, 32, 256), "convnet": (1, 8, 32)}


def opened(version: Path, graphs: bool, device: str) -> Any:
    """The model of a version's directory, as a server has it."""
    from tfs_lite.adapters.detect import read_version
    from tfs_lite.adapters.opening import OpenRequest
    from tfs_lite.adapters.pytorch.export import open_exported
    from tfs_lite.config.model import ModelSettings
    from tfs_lite.core.servable import ServableId

    settings = ModelSettings(parameters={"cuda_graphs": str(graphs).lower()})
    servable_id = ServableId(version.parent.name, 1)
    rows = tuple(sorted({count for counts in ROWS.values() for count in counts}))
    return open_exported(OpenRequest(servable_id, read_version(str(version)), device, False, settings, batch_rows=rows))


def side(model: Any, case: Case, rows: int, threads: int, pinned: bool) -> Side:
    """So many threads run batches of so many rows, each after the other; they fill their inputs as a server does."""
    source = case.rows(rows)
    shapes = {"x": (source.shape, source.dtype)}
    pageable = threading.local()

    def once() -> None:
        inputs = model.stage("", shapes) if pinned else None
        if inputs is None:
            inputs = pageable.__dict__.setdefault("inputs", {"x": np.empty_like(source)})
        np.copyto(inputs["x"], source)
        model.run("", inputs, ())

    def measure(seconds: float) -> float:
        counts = [0] * threads
        start, stop = threading.Barrier(threads + 1), threading.Event()

        def work(index: int) -> None:
            try:
                for _ in range(WARM_RUNS):
                    once()
            except BaseException:
                start.abort()
                raise
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


def pairs(plain: Any, graphed: Any, case: Case, rows: int) -> dict[str, tuple[Side, Side]]:
    """What is compared, by name: without, with."""
    one, two, three = (side(plain, case, rows, threads, True) for threads in (1, 2, 3))
    return {
        "pageable -> pinned": (side(plain, case, rows, 1, False), one),
        "one lane -> two": (one, two),
        "two lanes -> three": (two, three),
        "no graphs -> graphs": (one, side(graphed, case, rows, 1, True)),
        "two lanes: no graphs -> graphs": (two, side(graphed, case, rows, 2, True)),
    }


def measure(rounds: int, seconds: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, counts in ROWS.items():
        with tempfile.TemporaryDirectory() as directory:
            case = gpu_models.case(name)
            gpu_models.Job(name, case).write(Path(directory))
            version = Path(directory, name, "1")
            plain, graphed = opened(version, False, "cuda:0"), opened(version, True, "cuda:0")
            for rows in counts:
                for pair, (one, other) in pairs(plain, graphed, case, rows).items():
                    found.append({"model": name, "rows": rows, "pair": pair} | compare(one, other, rounds, seconds))
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
