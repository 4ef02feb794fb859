"""What ``cpu_layout`` and AOTInductor make of the time of a program on a CPU, next to the plain program, in one run.

    python benchmarks/cpu_layouts.py [--rounds 5] [--models mlp,convnet,resnet,bert] [--aoti] [--json FILE]

An MLP, a small convnet, a ResNet-18 and a BERT of 4 layers, 512 wide, each with one row and with several, as a server
runs them: one thread of torch, inputs as arrays. The sides take turns within each round; figures are medians over
rounds of CPU time, ratios are taken within a round (below 1 is faster than plain). ``diff`` is the largest difference
from the plain program's answers relative to the largest answer. ``--aoti`` adds the compiled program: a C++ compiler
and minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from batching import cell, say, table
from exported import Bert, ResNet
from networks import NETWORKS
from torch import nn

import tfs_lite
from tfs_lite.adapters.aoti.model import open_compiled
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenedModel, OpenRequest
from tfs_lite.adapters.pytorch.cpu_layout import PARAMETER
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Tensor

LAYOUTS = ("plain", "channels_last", "packed", "auto")
AOTI = "aoti"
LEAST_SECONDS = 0.05
"""Each measurement of a call repeats it for at least so long."""
TOKENS = 128
HEAD = ("model", "rows", "plain ms", "channels last", "packed", "auto", "aoti", "diff")
Inputs = dict[str, Tensor]


def module(name: str) -> nn.Module:
    torch.manual_seed(0)
    made = {"resnet": ResNet, "bert": Bert}.get(name) or NETWORKS[name]
    network: nn.Module = made().eval()
    return network


def inputs(name: str, rows: int) -> tuple[torch.Tensor, ...]:
    shapes = {"mlp": (rows, 32), "convnet": (rows, 3, 64, 64), "resnet": (rows, 3, 224, 224)}
    if name == "bert":
        return torch.randint(0, 100, (rows, TOKENS)), torch.ones(rows, TOKENS, dtype=torch.long)
    return (torch.rand(*shapes[name]),)


ROWS = {"mlp": (1, 32), "convnet": (1, 16), "resnet": (1, 8), "bert": (1, 4)}


def sides(name: str, folder: Path, compiled: bool) -> Mapping[str, OpenedModel]:
    version = tfs_lite.save(module(name), folder / name, example_inputs=inputs(name, 2))
    opened: dict[str, OpenedModel] = {layout: open_exported(request(version, layout)) for layout in LAYOUTS}
    if compiled:
        code = tfs_lite.save(module(name), folder / AOTI / name, example_inputs=inputs(name, 2), compile="aoti")
        opened[AOTI] = open_compiled(request(code, "plain"))
    return opened


def request(version: Path, layout: str) -> OpenRequest:
    settings = ModelSettings(parameters={PARAMETER: layout})
    return OpenRequest(ServableId(version.parent.name, 1), read_version(str(version)), "cpu", True, settings)


def cpu_seconds(model: OpenedModel, given: Inputs) -> float:
    model.run(DEFAULT_SIGNATURE, given, ())
    calls, began = 0, time.process_time()
    while (spent := time.process_time() - began) < LEAST_SECONDS:
        model.run(DEFAULT_SIGNATURE, given, ())
        calls += 1
    return spent / calls


def difference(models: Mapping[str, OpenedModel], given: Inputs) -> float:
    answers = {side: model.run(DEFAULT_SIGNATURE, given, ()) for side, model in models.items()}
    worst = 0.0
    for output, plain in answers["plain"].items():
        right = np.asarray(plain, np.float64)
        for answer in answers.values():
            worst = max(
                worst, float(np.abs(np.asarray(answer[output], np.float64) - right).max() / np.abs(right).max())
            )
    return worst


def measure(models: Mapping[str, OpenedModel], given: Inputs, rounds: int) -> dict[str, float]:
    ratios: dict[str, list[float]] = {side: [] for side in models}
    plain = []
    for _ in range(rounds):
        seconds = {side: cpu_seconds(model, given) for side, model in models.items()}
        plain.append(seconds["plain"])
        for side, spent in seconds.items():
            ratios[side].append(spent / seconds["plain"])
    found = {side: statistics.median(values) for side, values in ratios.items()}
    return {**found, "plain": statistics.median(plain) * 1000, "diff": difference(models, given)}


def line(name: str, rows: int, figures: Mapping[str, float]) -> Sequence[str]:
    shown = [cell(figures[side], 2) if side in figures else "-" for side in (*LAYOUTS[1:], AOTI)]
    return (name, str(rows), cell(figures["plain"], 3), *shown, f"{figures['diff']:.0e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default=",".join(ROWS))
    parser.add_argument("--aoti", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models.split(","):
            say(f"{name} ...")
            models = sides(name, Path(folder), args.aoti)
            names = models["plain"].signatures[DEFAULT_SIGNATURE].input_names
            for rows in ROWS[name]:
                given: Inputs = dict(zip(names, (tensor.numpy() for tensor in inputs(name, rows)), strict=True))
                found[f"{name}_{rows}"] = measure(models, given, args.rounds)
                lines.append(line(name, rows, found[f"{name}_{rows}"]))
            for model in models.values():
                model.close()
    print(table(HEAD, lines))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
