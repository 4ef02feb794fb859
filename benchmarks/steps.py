"""The models of ``ensemble.py``: three steps of 10 ms each, whatever is in a batch, and the ensemble of them.

    x -> first -> left  -> y
               -> right -> z

A step waits for a timer without Python's lock, as one does for a device, or multiplies matrices with one torch thread.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import SEED, SINGLE, Model

WIDTH = 32
MAX_ROWS = 8
STEP_SECONDS = 0.010
STEPS = ("first", "left", "right")
ENSEMBLE = "pipeline"
WORK = """
import time

import torch

MATRIX = torch.ones(192, 192) / 192


def wait():
    time.sleep({seconds})


def multiply(times):
    for _ in range(times):
        torch.mm(MATRIX, MATRIX)


def chosen(work):
    return wait if work == "wait" else lambda: multiply(int(work))
"""
MODEL = """
from .work import chosen


class Model:
    def __init__(self, context):
        self._work = chosen(context.config.parameters["work"])
        self._factor = float(context.config.parameters["factor"])

    def predict(self, inputs):
        self._work()
        return {"y": inputs["x"] * self._factor}
"""
STEP = """
platform: "python"
max_batch_size: {rows}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {width} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {width} ] }} ]
dynamic_batching {{ }}
parameters {{ key: "work" value {{ string_value: "{work}" }} }}
parameters {{ key: "factor" value {{ string_value: "{factor}" }} }}
"""
PIPELINE = """
platform: "ensemble"
max_batch_size: {rows}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {width} ] }} ]
output [
  {{ name: "y" data_type: TYPE_FP32 dims: [ {width} ] }},
  {{ name: "z" data_type: TYPE_FP32 dims: [ {width} ] }}
]
ensemble_scheduling {{
  step [
    {{ model_name: "first" input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "between" }} }},
    {{ model_name: "left" input_map {{ key: "x" value: "between" }} output_map {{ key: "y" value: "y" }} }},
    {{ model_name: "right" input_map {{ key: "x" value: "between" }} output_map {{ key: "y" value: "z" }} }}
  ]
}}
"""
FACTORS = {"first": 2.0, "left": 3.0, "right": 5.0}


def write_repository(root: Path, work: str) -> None:
    """Anew, each time. ``work``: ``wait``, or how many products of matrices a step is."""
    shutil.rmtree(root, ignore_errors=True)
    for name, factor in FACTORS.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(MODEL)
        (root / name / "1" / "work.py").write_text(WORK.format(seconds=STEP_SECONDS))
        config = STEP.format(rows=MAX_ROWS, width=WIDTH, work=work, factor=factor)
        (root / name / "config.pbtxt").write_text(config)
    (root / ENSEMBLE / "1").mkdir(parents=True)
    (root / ENSEMBLE / "config.pbtxt").write_text(PIPELINE.format(rows=MAX_ROWS, width=WIDTH))


def asked(name: str, root: Path) -> Model:
    """Questions of one row for a step or the ensemble, whose first output is ``y``."""
    factor = FACTORS["first"] * FACTORS["left"] if name == ENSEMBLE else FACTORS[name]
    draw = np.random.default_rng(SEED)
    questions = tuple(draw.standard_normal((1, WIDTH)).astype(np.float32) for _ in range(SINGLE))
    answers = tuple(question * np.float32(factor) for question in questions)
    return Model(name, root / name, (WIDTH,), WIDTH, questions, answers)


def calibrated() -> str:
    """How many products of matrices take as long as a step: by the quickest of some tries, the first of which warm
    up."""
    torch.set_num_threads(1)
    multiply = _namespace()["multiply"]
    return str(round(STEP_SECONDS * 50 / min(_seconds(lambda: multiply(50)) for _ in range(20))))


def work_seconds(work: str, seconds: float) -> float:
    """Of one step without a server, the median."""
    run, taken, ends = _namespace()["chosen"](work), list[float](), time.perf_counter() + seconds
    while not taken or time.perf_counter() < ends:
        taken.append(_seconds(run))
    return statistics.median(taken)


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _namespace() -> dict[str, Any]:
    """What the models have in ``work.py``."""
    found: dict[str, Any] = {}
    exec(compile(WORK.format(seconds=STEP_SECONDS), "work.py", "exec"), found)
    return found
