"""The rows of ``gpu_first.py`` that start a server and ask it over gRPC from this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gpu_models
import numpy as np
import torch
from gpu_rows import BareLoop, Bench, Result
from load import Tally, open_loop, steady
from models import SINGLE, Model, Rows
from servers import Place, Running, batched, launch_serve
from sides import FEW, Side, close, figures_of, ours, picks

CALLERS = (64, 256)
SERVED = ("mlp-fp32-graphs", "bert-bf16-graphs", "resnet18-bf16-graphs")
RATE = 200
"""Requests a second beside a swap."""


@dataclass(frozen=True, slots=True)
class HalfPrecise(Model):
    """A model whose answers depend on the batch in the second digit."""

    def is_answer(self, index: int, found: Rows) -> bool:
        right = self.answers[index]
        return found.size == right.size and np.allclose(found.reshape(right.shape), right, rtol=0.05, atol=0.05)


def asked(name: str, base: Path, case: gpu_models.Case, dtype: str) -> Model:
    """The model with questions of one row and answers of its module on the CPU."""
    questions = tuple(case.rows(SINGLE)[index : index + 1] for index in range(SINGLE))
    with torch.inference_mode():
        answers = case.module(dtype)(torch.from_numpy(case.rows(SINGLE)))["y"].numpy()
    right = tuple(answers[index : index + 1] for index in range(SINGLE))
    return HalfPrecise(name, base, case.item, answers.shape[1], questions, right)  # type: ignore[arg-type]


def place() -> Place:
    """The last core is the client's, all others are the server's."""
    cores = sorted(os.sched_getaffinity(0))
    found = Place(",".join(map(str, cores[:-1] or cores)), str(cores[-1]))
    found.pin_this_process()
    return found


def served(bench: Bench) -> Iterator[Result]:
    """One row a request, from so many callers, in ratio to the bare loop of the largest batch they can make."""
    seconds = 0.3 if bench.quick else 3.0
    loops = {}
    for name in SERVED:
        model, dtype = name.split("-")[:2]
        case = gpu_models.case(model, bench.quick)
        loop = BareLoop(bench, case, dtype)
        for callers in CALLERS:
            rates = loop.rates(min(callers, 8 if bench.quick else 256))
            bare = rates.get("graph_and_copies", rates["eager"])
            assert bare is not None
            loops[name, callers] = bare
        del loop
    where = place()
    for name in SERVED:
        model, dtype = name.split("-")[:2]
        built = asked(name, bench.model(name), gpu_models.case(model, bench.quick), dtype)
        side = ours(name, *batched(256), f"--device={bench.device}")
        with side.launch(built, where) as running:
            for callers in CALLERS:
                figures = figures_of(side, running, built, seconds, callers)
                ratio = figures.rows_rate / loops[name, callers]
                yield {"model": name, "callers": callers, "bare": loops[name, callers]} | {
                    "rows_per_second": figures.rows_rate,
                    "to_bare": ratio,
                    "met": ratio >= 0.9,
                    "p50_ms": figures.p50,
                    "p99_ms": figures.p99,
                    "batch_rows": figures.batch_rows,
                    "failures": figures.failures,
                    "client_share": figures.client_share,
                }


def swap(bench: Bench) -> Iterator[Result]:
    """Version 2, then 3, take the place of the one before, while requests come at a fixed rate."""
    base, seconds = bench.model("swapped"), 1.5 if bench.quick else 5.0
    case = gpu_models.Case("swapped", gpu_models.small_tensors, (16,))
    question = np.zeros((1, *case.item), np.float32)
    size = (base / "1" / "model.pt2").stat().st_size
    built = Model("swapped", base, case.item, 1, (question,) * SINGLE, (question,) * SINGLE)
    side, where = ours("swapped"), place()
    flags = (f"--model_base_path={base}", "--model_name=swapped", f"--device={bench.device}")
    with launch_serve(where, *flags, "--file_system_poll_wait_seconds=1") as running:
        calm, _ = _traffic(bench, side, running, built, seconds)
        yield {"traffic": "steady", "p99_ms": calm.percentile(99) * 1e3, "failures": calm.failures}
        for version in (2, 3):
            (base.parent / "swapped.aside" / str(version)).rename(base / str(version))
            before = held(bench, running)
            tally, peak = _traffic(bench, side, running, built, 2 * seconds)
            ratio = tally.percentile(99) / calm.percentile(99)
            yield {
                "traffic": f"while version {version} takes over",
                "available": running.ours is not None and _serves(running, version),
                "p99_ms": tally.percentile(99) * 1e3,
                "to_steady": ratio,
                "failures": tally.failures,
                "files": size,
                "peak_above_before": peak - before,
                "met": ratio <= 1.2 and not tally.failures and peak - before <= 1.02 * size,
            }


def held(bench: Bench, running: Running) -> int:
    """Bytes in use on the GPU by all processes, or in the server's own memory."""
    if not bench.cuda:
        return running.resident_bytes()
    free, total = torch.cuda.mem_get_info(bench.device)
    return total - free


def _traffic(bench: Bench, side: Side, running: Running, built: Model, seconds: float) -> tuple[Tally, int]:
    """What became of the requests, and the most that was held at any tenth of a second."""
    connections, _ = side.connect(running, built, FEW[0])
    peak = held(bench, running)

    def look(_at: float, _tally: Tally) -> None:
        nonlocal peak
        peak = max(peak, held(bench, running))

    try:
        return open_loop(connections, steady(RATE, seconds), picks(built, False), each=look), peak
    finally:
        close(connections)


def _serves(running: Running, version: int) -> bool:
    assert running.ours is not None
    text = running.ours.get("/v1/models/swapped")[1].decode()
    return f'"version": "{version}"' in text and '"AVAILABLE"' in text
