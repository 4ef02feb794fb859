"""What ``cpu_layout``, AOTInductor and ONNX make of a program's time on a CPU, next to the plain program, in one run.

    python benchmarks/platforms.py [--rounds 5] [--models mlp,convnet,resnet,bert] [--sides auto,aoti,onnx] [--quick]
                                   [--json FILE]

An MLP, a small convnet, a ResNet-18 and a BERT of 4 layers, 512 wide, each with one row and with several, as a server
runs them: one thread, inputs as arrays. The sides take turns within each round; figures are medians over rounds of CPU
time, ratios are taken within a round (below 1 is faster than plain). ``diff`` is the largest difference of a side's
answers from the plain program's, relative to the largest answer: that of ``bfloat16``, and of all others. ``aoti``
needs a C++ compiler and minutes; ``onnx`` the extra onnx, and onnxscript to export. A side that cannot be made here is
left out by name. ``--quick``: an MLP and a convnet, one round, to see that it works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
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
from tfs_lite.adapters.onnx.model import open_onnx
from tfs_lite.adapters.opening import OpenedModel, OpenRequest
from tfs_lite.adapters.pytorch.cpu_layout import BFLOAT16, DTYPE, LAYOUT
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Tensor

PLAIN, AOTI, ONNX = "plain", "aoti", "onnx"
LAYOUTS = ("channels_last", "packed", "auto", BFLOAT16)
SIDES = (*LAYOUTS, AOTI, ONNX)
NEEDS: dict[str, tuple[str, Callable[[str], object]]] = {AOTI: ("g++", shutil.which), ONNX: ("onnxscript", find_spec)}
LEAST_SECONDS = 0.05
"""Each measurement of a call repeats it for at least so long."""
TOKENS = 128
QUICK = {"rounds": 1, "models": "mlp,convnet"}
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


def sides(name: str, folder: Path, wanted: Sequence[str]) -> Mapping[str, OpenedModel]:
    version = tfs_lite.save(module(name), folder / name, example_inputs=inputs(name, 2))
    opened: dict[str, OpenedModel] = {
        layout: open_exported(request(version, layout)) for layout in (PLAIN, *LAYOUTS) if layout in (PLAIN, *wanted)
    }
    if AOTI in wanted:
        code = tfs_lite.save(module(name), folder / AOTI / name, example_inputs=inputs(name, 2), compile="aoti")
        opened[AOTI] = open_compiled(request(code, PLAIN))
    if ONNX in wanted:
        names = opened[PLAIN].signatures[DEFAULT_SIGNATURE]
        written = write_onnx(name, folder / ONNX / name / "1", names.input_names, names.output_names)
        opened[ONNX] = open_onnx(replace(request(written, PLAIN), threads=1))
    return opened


def write_onnx(name: str, directory: Path, takes: Sequence[str], gives: Sequence[str]) -> Path:
    """The model as torch exports it, with a batch of any size."""
    directory.mkdir(parents=True)
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        module(name),
        inputs(name, 2),
        input_names=list(takes),
        output_names=list(gives),
        dynamic_shapes=tuple({0: batch} for _ in takes),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(str(directory / "model.onnx"), external_data=True)
    return directory


def request(version: Path, layout: str) -> OpenRequest:
    settings = ModelSettings(parameters={DTYPE if layout == BFLOAT16 else LAYOUT: layout})
    return OpenRequest(ServableId(version.parent.name, 1), read_version(str(version)), "cpu", True, settings)


def cpu_seconds(model: OpenedModel, given: Inputs) -> float:
    model.run(DEFAULT_SIGNATURE, given, ())
    calls, began = 0, time.process_time()
    while (spent := time.process_time() - began) < LEAST_SECONDS:
        model.run(DEFAULT_SIGNATURE, given, ())
        calls += 1
    return spent / calls


def difference(plain: OpenedModel, others: Sequence[OpenedModel], given: Inputs) -> float:
    """The largest of all outputs; 0 without others."""
    worst = 0.0
    answers = [model.run(DEFAULT_SIGNATURE, given, ()) for model in others]
    for output, value in plain.run(DEFAULT_SIGNATURE, given, ()).items():
        right = np.asarray(value, np.float64)
        for answer in answers:
            worst = max(worst, np.abs(np.asarray(answer[output], np.float64) - right).max() / np.abs(right).max())
    return float(worst)


def differences(models: Mapping[str, OpenedModel], given: Inputs) -> dict[str, float]:
    rounded = [model for side, model in models.items() if side == BFLOAT16]
    others = [model for side, model in models.items() if side not in (PLAIN, BFLOAT16)]
    plain = models[PLAIN]
    return {"diff": difference(plain, others, given), "bfloat16 diff": difference(plain, rounded, given)}


def measure(models: Mapping[str, OpenedModel], given: Inputs, rounds: int) -> dict[str, float]:
    ratios: dict[str, list[float]] = {side: [] for side in models}
    plain = []
    for _ in range(rounds):
        seconds = {side: cpu_seconds(model, given) for side, model in models.items()}
        plain.append(seconds[PLAIN])
        for side, spent in seconds.items():
            ratios[side].append(spent / seconds[PLAIN])
    found = {side: statistics.median(values) for side, values in ratios.items()}
    return {**found, "plain": statistics.median(plain) * 1000, **differences(models, given)}


def line(name: str, rows: int, figures: Mapping[str, float], shown: Sequence[str]) -> Sequence[str]:
    return (
        name,
        str(rows),
        cell(figures[PLAIN], 3),
        *(cell(figures[side], 2) for side in shown),
        f"{figures['diff']:.0e}",
        f"{figures['bfloat16 diff']:.0e}",
    )


def available(wanted: str) -> list[str]:
    """The sides that can be made here."""
    found = []
    for side in wanted.split(","):
        what, find = NEEDS.get(side, ("", bool))
        if side not in NEEDS or find(what):
            found.append(side)
        else:
            say(f"{side} is left out: it needs {what}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default=",".join(ROWS))
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.quick:
        vars(args).update(QUICK)
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)
    shown = available(args.sides)
    found: dict[str, dict[str, float]] = {}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models.split(","):
            say(f"{name} ...")
            models = sides(name, Path(folder), shown)
            names = models[PLAIN].signatures[DEFAULT_SIGNATURE].input_names
            for rows in ROWS[name]:
                given: Inputs = dict(zip(names, (tensor.numpy() for tensor in inputs(name, rows)), strict=True))
                found[f"{name}_{rows}"] = measure(models, given, args.rounds)
                lines.append(line(name, rows, found[f"{name}_{rows}"], shown))
            for model in models.values():
                model.close()
    print(table(("model", "rows", "plain ms", *shown, "diff", "bfloat16 diff"), lines))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
