"""Writes the models of the conformance tests; run in the server's environment, which has torch.

    python make_models.py DIR

Every model's output depends on its version, so that a test sees that the right one answered.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import tfs_lite
from tfs_lite.core.publish import commit, staging_directory


class HalfPlus(nn.Module):
    """x / 2 + offset."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.register_buffer("offset", torch.tensor(offset))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": x / 2 + self.offset}


class TwoInputs(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"sum": a + b, "difference": a - b, "product": a * b}


class EveryNumber(nn.Module):
    """Doubles each input, and negates the flags. The inputs are those of :data:`NUMBER_TYPES`, in this order."""

    def forward(self, half, bfloat, single, double, int8, uint8, int16, int32, int64, complex64, flag):
        numbers = (half, bfloat, single, double, int8, uint8, int16, int32, int64, complex64)
        doubled = {name: value * 2 for name, value in zip(NUMBER_TYPES, numbers, strict=False)}
        return {**doubled, "flag": torch.logical_not(flag)}


NUMBER_TYPES = {
    "half": torch.float16,
    "bfloat": torch.bfloat16,
    "single": torch.float32,
    "double": torch.float64,
    **{name: getattr(torch, name) for name in ("int8", "uint8", "int16", "int32", "int64", "complex64")},
    "flag": torch.bool,
}

SHOUT = """
import numpy as np


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        text = inputs["text"]
        loud = [item.upper() for item in text.ravel()]
        return {"shout": np.array(loud, dtype=object).reshape(text.shape)}
"""

SHOUT_CONFIG = """
input { name: "text" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "shout" data_type: TYPE_STRING dims: [ -1 ] }
"""


class HalfPlusTwo(nn.Module):
    """x / 2 + 2 and x / 2 + 3, as TensorFlow Serving's own test models compute them."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": x / 2 + 2, "y2": x / 2 + 3}


class Digits(nn.Module):
    """Scores of three classes out of two features, and their sum as a regression."""

    def forward(self, length: Tensor, width: Tensor) -> dict[str, Tensor]:
        pair = torch.stack([length, width, length - width], dim=1)
        return {"scores": torch.softmax(pair, dim=1), "total": length + width}


HALF_PLUS_TWO_CONFIG = """
signatures {
  key: "tensorflow/serving/regress"
  value { method_name: "tensorflow/serving/regress" outputs { key: "outputs" value: "y" } }
}
signatures { key: "regress_x_to_y2" value { method_name: "regress" outputs { key: "outputs" value: "y2" } } }
"""

DIGITS_CONFIG = """
signatures:
  serving_default:
    method_name: classify
    outputs: {scores: scores}
    label_filename: labels.txt
    defaults: {width: 0.5}
  total:
    method_name: regress
    outputs: {outputs: total}
  scores_only:
    outputs: {scores: scores}
warmup:
  - body: {instances: [{length: 1.0, width: 2.0}], signature_name: scores_only}
"""


def main(root: Path) -> None:
    write_with_config(root / "half_plus_two", HalfPlusTwo(), (torch.zeros(2),), "config.pbtxt", HALF_PLUS_TWO_CONFIG)
    floats = (torch.zeros(2), torch.zeros(2))
    write_with_config(root / "digits", Digits(), floats, "config.yaml", DIGITS_CONFIG)
    (root / "digits" / "labels.txt").write_text("long\nwide\nneither\n")
    example = (torch.zeros(2, 3),)
    for version in (1, 2, 3):
        tfs_lite.save(HalfPlus(float(version)), root / "half_plus", example_inputs=example, version=version)
    tfs_lite.save(HalfPlus(7.0), root / "other", example_inputs=example, version=7)
    tfs_lite.save(TwoInputs(), root / "two_inputs", example_inputs=(torch.zeros(2), torch.zeros(2)), version=1)
    numbers = tuple(torch.ones(2, 2).to(dtype) for dtype in NUMBER_TYPES.values())
    tfs_lite.save(EveryNumber(), root / "numbers", example_inputs=numbers, version=1)
    write_shout(root / "shout")
    publish_corrupt(root / "corrupt")


def write_shout(base: Path) -> None:
    (base / "1").mkdir(parents=True)
    (base / "1" / "model.py").write_text(SHOUT)
    (base / "config.pbtxt").write_text(SHOUT_CONFIG)


def write_with_config(base: Path, module: nn.Module, example: tuple[Tensor, ...], name: str, config: str) -> None:
    base.mkdir(parents=True)
    (base / name).write_text(config)
    tfs_lite.save(module, base, example_inputs=example, version=123)


def publish_corrupt(base: Path) -> None:
    """A whole directory whose archive is no archive: it was damaged before it was published."""
    with staging_directory(str(base), 1) as staging:
        (Path(staging) / "model.pt2").write_bytes(b"this was never a zip file" * 100)
        commit(staging, str(base), 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
