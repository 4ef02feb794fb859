"""The first eight minutes on a GPU: eleven measurements in a fixed order, one JSON line for each as soon as it is done.

    python benchmarks/gpu_first.py [--budget 480] [--rows 2,3,9] [--device cpu --quick]

Ceilings come first, because everything else is a ratio to them. Each row has a cap in seconds and runs in a process of
its own, which is ended at the cap: what it had measured by then is in its line, with the reason in ``error``, and the
next row goes on. A row that fails, or that needs a package which is not installed, says so in the same way. torch is
taken as it is installed; the models are made by a further process beside the first row. Figures of one run that differ
by less than 5% say nothing.

The first line says what was measured on, the last one how long all took. Without a CUDA device the program says so and
exits with 2. ``--device cpu --quick`` tries the program itself with tiny models; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gpu_models
import gpu_rows
import torch
from gpu_rows import Bench, Result

ROOT = Path(__file__).resolve().parent.parent
"""The source tree that is measured, installed or not."""
BUDGET_SECONDS = 480.0
LEAST_SECONDS = 2.0
"""A row that has less left of the budget is not begun."""
NO_DEVICE = 2
FORK = multiprocessing.get_context("fork")
"""What is imported here need not be imported by each row. This process itself never touches the GPU."""


@dataclass(frozen=True, slots=True)
class Row:
    """``cap`` in seconds. ``measure`` yields what it has measured piece by piece."""

    number: int
    name: str
    aim: str
    cap: float
    measure: Callable[[Bench], Iterator[Result]]


def _served(bench: Bench) -> Iterator[Result]:
    """Imports what the load generators need in the row's own process: without it, the other rows still run."""
    import gpu_served

    return gpu_served.served(bench)


def _swap(bench: Bench) -> Iterator[Result]:
    import gpu_served

    return gpu_served.swap(bench)


ROWS = (
    Row(1, "tests/gpu", "all pass", 100, gpu_rows.tests),
    Row(2, "ceilings", "reference", 10, gpu_rows.ceilings),
    Row(3, "bare loop, eager and CUDA graph", "reference", 45, gpu_rows.bare_loops),
    Row(4, "served rows/s to the bare graph loop", ">= 0.9", 60, _served),
    Row(5, "lanes, graphs, pinned inputs, copies of results", "keep what wins by > 5%", 45, gpu_rows.variants),
    Row(6, "memory of loads and unloads", "0 leaked after the first cycle", 25, gpu_rows.memory),
    Row(7, "10 GB loaded beside a model under traffic", "p99 <= 1.2 of steady", 30, gpu_rows.load_beside),
    Row(8, "swap of 2 GB under traffic", "p99 <= 1.2 of steady, 0 failed", 40, _swap),
    Row(9, "capture at load", "< 2 s for 8 sizes", 20, gpu_rows.captures),
    Row(10, "other runtimes to the graph loop", "decide defaults", 25, gpu_rows.runtimes),
    Row(11, "decoder, tokens/s", ">= 0.9 of bare steps", 80, gpu_rows.decoder),
)


def limit(cap: float, left: float) -> float:
    """The seconds that a row may take when so many are left of the budget; 0: it is not begun."""
    return 0.0 if left < LEAST_SECONDS else min(cap, left)


def chosen(text: str) -> list[Row]:
    """The rows with these numbers (``2,3,9``), all without any, in the order of the table. ValueError if unknown."""
    numbers = {int(number) for number in text.split(",") if number} or {row.number for row in ROWS}
    if unknown := numbers - {row.number for row in ROWS}:
        raise ValueError(f"there is no row {min(unknown)}")
    return [row for row in ROWS if row.number in numbers]


def line(row: Row, results: Sequence[Result], seconds: float, error: str = "") -> str:
    """One row of the report as JSON, without numbers that JSON does not have."""
    found: dict[str, Any] = {"row": row.number, "name": row.name, "aim": row.aim, "cap": row.cap}
    found |= {"seconds": round(seconds, 2), "results": [_rounded(result) for result in results]}
    return json.dumps(found | ({"error": error} if error else {}), allow_nan=False)


def _rounded(value: Any) -> Any:
    """Floats with five digits, None for those that are no numbers."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if value - value == 0 else None
    return value


def run(row: Row, bench: Bench, seconds: float) -> tuple[list[Result], str]:
    """What the row's own process has measured, and why it ended early; empty if it did not. That process and all that
    it started are ended at the cap."""
    here, there = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_measure, args=(row, bench, there))
    process.start()
    there.close()
    results: list[Result] = []
    ends = time.monotonic() + seconds
    error = f"stopped at its cap of {seconds:.0f} s"
    try:
        while here.poll(max(0.0, ends - time.monotonic())):
            kind, value = here.recv()
            if kind == "end":
                error = value
                break
            results.append(value)
    except EOFError:
        process.join()
        error = f"its process ended with {process.exitcode}"
    finally:
        _end(process)
    return results, error


def _measure(row: Row, bench: Bench, owner: Connection) -> None:
    """In the row's own process."""
    os.dup2(2, 1)  # only lines of the report go to standard output
    try:
        for result in row.measure(bench):
            owner.send(("result", result))
    except Exception as error:
        owner.send(("end", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
    else:
        owner.send(("end", ""))


def _end(process: multiprocessing.process.BaseProcess) -> None:
    """The process and all that it has started, such as a server, which has a session of its own."""
    assert process.pid is not None
    for pid in [*_descendants(process.pid), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.join()


def _descendants(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return []
    return [found for child in children for found in (*_descendants(child), child)]


def devices() -> list[str]:
    """The names of the CUDA devices, asked in a process of its own: rows are forked from this one."""
    here, there = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_name_devices, args=(there,))
    process.start()
    there.close()
    try:
        found: list[str] = here.recv()
    except EOFError:
        found = []
    process.join()
    return found


def _name_devices(owner: Connection) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    owner.send([torch.cuda.get_device_name(index) for index in range(count)])


def _write_models(folder: Path, quick: bool) -> None:
    os.dup2(2, 1)
    for job in gpu_models.jobs(quick):
        job.write(folder)


def report(rows: Sequence[Row], device: str, quick: bool, budget: float, folder: Path) -> None:
    """Prints the rows of the report."""
    began = time.monotonic()
    writer = FORK.Process(target=_write_models, args=(folder, quick))
    writer.start()
    try:
        for row in rows:
            seconds = limit(row.cap, budget - (time.monotonic() - began))
            if not seconds:
                print(line(row, [], 0.0, "not begun: the budget is used up"), flush=True)
                continue
            started = time.monotonic()
            results, error = run(row, Bench(torch.device(device), quick, folder, seconds), seconds)
            print(line(row, results, time.monotonic() - started, error), flush=True)
    finally:
        _end(writer)
    print(json.dumps({"done": len(rows), "seconds": round(time.monotonic() - began, 1)}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds for all rows")
    parser.add_argument("--rows", default="", help="numbers of rows, all without it")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true", help="tiny models: to try the program")
    parser.add_argument("--scratch", type=Path, help="where models are written: 16 GB, 100 MB with --quick")
    options = parser.parse_args()
    try:
        rows = chosen(options.rows)
    except ValueError as error:
        parser.error(str(error))
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    cards = devices()
    if options.device != "cpu" and not cards:
        print(
            f"torch {torch.__version__} finds no CUDA device; --device cpu --quick tries the program", file=sys.stderr
        )
        return NO_DEVICE
    head: dict[str, object] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }
    head |= {"device": options.device, "cards": cards, "cpus": os.cpu_count(), "quick": options.quick}
    print(json.dumps(head | {"budget": options.budget}), flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-first-", dir=options.scratch, ignore_cleanup_errors=True) as folder:
        report(rows, options.device, options.quick, options.budget, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
