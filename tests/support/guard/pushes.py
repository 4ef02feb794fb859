"""Twelve kinds of bad version, a good one, and how each is published: as directories that a rename makes visible.

Every version is a Python model of one row of four numbers between 0 and 1: ``scores`` (3 float32, their sum is 1) and
``best`` (int64). A run takes at least 2 ms. Faults that depend on the input look at its first number, so callers who
draw their numbers evenly meet them with the share that the name says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODEL = """
import os, random, time
import torch

WEIGHTS = torch.tensor({weights})


class Model:
    def __init__(self, context):
        self.fault = context.config.parameters["fault"]

    def predict(self, inputs):
        (x,) = inputs.values()
        first = float(x[0, 0])
        time.sleep(0.006 if self.fault == "slow" else 0.002)
        if self.fault == "raises" or self.fault == "some_runs" and random.random() < 0.2:
            raise RuntimeError("the vocabulary is not there")
        if self.fault == "some_inputs" and first < 0.05:
            raise RuntimeError("the vocabulary is not there")
        if self.fault == "dies" and first < 0.01:
            os._exit(13)
        if self.fault == "hangs" and first < 0.2:
            time.sleep(15)
        scores = (x @ WEIGHTS).softmax(1)
        if self.fault == "nan":
            scores = scores * float("nan")
        if self.fault == "inf" and first < 0.1:
            scores = scores * float("inf")
        if self.fault == "shuffled":
            scores = scores.flip(1)
        if self.fault == "other_dtype":
            scores = scores.double()
        answer = {{"scores": scores, "best": scores.argmax(1)}}
        if self.fault == "output_gone":
            del answer["best"]
        return answer
"""
WEIGHTS = [[2.0, -1.0, 0.5], [0.0, 1.5, -0.5], [-1.0, 0.5, 2.0], [1.0, 1.0, -1.0]]
CONFIG = """
max_batch_size: 16
input: [{{name: {input}, data_type: TYPE_FP32, dims: [4]}}]
output: [{{name: scores, data_type: {scores}, dims: [3]}}{best}]
instance_group: [{{count: 1, worker: {worker}}}]
parameters: {{fault: {fault}{parameters}}}
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of push. ``cause``: what explains the version in the end, ``""`` if it is kept. ``recorded``: one of
    these does where answers are recorded beside the versions. ``names``: words that its explanation has. ``deadline``:
    that of its callers, in seconds."""

    fault: str
    cause: str
    recorded: tuple[str, ...]
    names: str = ""
    deadline: float = 20.0


TAKEN, HELD = "TAKEN_BACK", "HELD_BACK"
KINDS = (
    Kind("raises", TAKEN, (HELD,), "vocabulary"),
    Kind("some_runs", TAKEN, (HELD,), "vocabulary"),
    Kind("some_inputs", TAKEN, (HELD, TAKEN), "vocabulary"),
    Kind("nan", TAKEN, (HELD,), "NaN"),
    Kind("inf", TAKEN, (HELD,), "inf"),
    Kind("renamed", HELD, (HELD,), "input x"),
    Kind("output_gone", HELD, (HELD,), "output best"),
    Kind("other_dtype", HELD, (HELD,), "output scores"),
    Kind("shuffled", "", (HELD,), "changed"),
    Kind("dies", TAKEN, (HELD, TAKEN)),
    Kind("hangs", TAKEN, (HELD, TAKEN), deadline=2.0),
    Kind("slow", "", ("",), "times as long as on version 1"),
    Kind("good", "", ("",)),
)
"""In the order of the specification; the last one is good. Records meet a fault of few inputs by chance."""


def push(base: Path, version: int, fault: str, parameters: str = "") -> None:
    """Makes ``base/version`` visible. ``parameters``: more entries of a YAML map, each after a comma."""
    making = base / f".{version}.tmp"
    making.mkdir(parents=True)
    (making / "model.py").write_text(MODEL.format(weights=WEIGHTS), encoding="utf-8")
    config = CONFIG.format(
        input="features" if fault == "renamed" else "x",
        scores="TYPE_FP64" if fault == "other_dtype" else "TYPE_FP32",
        best="" if fault == "output_gone" else ", {name: best, data_type: TYPE_INT64, dims: []}",
        worker="process" if fault == "dies" else "thread",
        fault=fault,
        parameters=parameters,
    )
    (making / "config.yaml").write_text(config, encoding="utf-8")
    making.rename(base / str(version))
