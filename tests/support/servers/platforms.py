"""The same small model on every platform, for suites that run over all of them, and archives that were tampered with.

The model takes ``x``, rows of four floats, and answers ``y = 2 x + offset`` and ``total``, the sum of each row.
"""

from __future__ import annotations

import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tfs_lite.config.model import ModelSettings, ModelTensor
from tfs_lite.core.signature import DataType

WIDTH = 4
MAX_ROWS = 8

SETTINGS = ModelSettings(
    max_batch_size=MAX_ROWS,
    input=(ModelTensor(name="x", data_type=DataType.FLOAT, dims=(WIDTH,)),),
    output=(
        ModelTensor(name="y", data_type=DataType.FLOAT, dims=(WIDTH,)),
        ModelTensor(name="total", data_type=DataType.FLOAT, dims=(1,)),
    ),
)
"""The config of the model, which says what an exported program knows by itself."""

MODULE_SOURCE = f"""
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.zeros({WIDTH}))

    def forward(self, x):
        y = 2 * x + self.offset
        return {{"y": y, "total": y.sum(1, keepdim=True)}}
"""

PLAIN_SOURCE = """
import pathlib

import torch
from safetensors.torch import load_file


class Model:
    def __init__(self, context):
        weights = load_file(pathlib.Path(context.directory, "model.safetensors"))
        self.offset = weights["offset"].to(context.device)

    def predict(self, inputs):
        y = 2 * inputs["x"] + self.offset
        return {"y": y, "total": y.sum(1, keepdim=True).cpu().numpy()}
"""


class Doubler(nn.Module):
    """The model as a module."""

    def __init__(self, offset: float = 0.0) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.full((WIDTH,), float(offset)))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = 2 * x + self.offset
        return {"y": y, "total": y.sum(1, keepdim=True)}


def write_exported(directory: Path, offset: float = 0.0) -> Path:
    """``model.pt2`` as ``torch.export.save`` writes it, with sample inputs. Takes about a second the first time."""
    directory.mkdir(parents=True, exist_ok=True)
    batch = torch.export.Dim("batch", max=MAX_ROWS)
    program = torch.export.export(Doubler(offset).eval(), (torch.zeros(3, WIDTH),), dynamic_shapes={"x": {0: batch}})
    torch.export.save(program, directory / "model.pt2")
    return directory


def write_script(directory: Path, module: nn.Module) -> Path:
    """``model.pt``: the module as TorchScript."""
    directory.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(module.eval()), directory / "model.pt")
    return directory


def write_python(directory: Path, source: str, weights: Mapping[str, Tensor] | None = None) -> Path:
    """``model.py``, and ``model.safetensors`` if there are weights."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.py").write_text(source)
    if weights is not None:
        save_file(dict(weights), directory / "model.safetensors")
    return directory


def write_module(directory: Path, offset: float = 0.0) -> Path:
    """A ``model.py`` whose ``Model`` is a module."""
    return write_python(directory, MODULE_SOURCE, {"offset": torch.full((WIDTH,), float(offset))})


def write_plain(directory: Path, offset: float = 0.0) -> Path:
    """A ``model.py`` whose ``Model`` is a plain class."""
    return write_python(directory, PLAIN_SOURCE, {"offset": torch.full((WIDTH,), float(offset))})


def write_onnx(directory: Path, offset: float = 0.0, width: int = WIDTH) -> Path:
    """``model.onnx``, made with the package onnx. ``width``: how many floats the weights have."""
    from onnx import TensorProto, checker, helper, save

    def value(name: str, size: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])

    directory.mkdir(parents=True, exist_ok=True)
    weights = struct.pack("<f", offset) * width
    nodes = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Constant", [], ["axis"], value_ints=[1]),
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "offset"], ["y"]),
        helper.make_node("ReduceSum", ["y", "axis"], ["total"], keepdims=1),
    ]
    if width != WIDTH:
        nodes[3:4] = [
            helper.make_node("Constant", [], ["start"], value_ints=[0]),
            helper.make_node("Constant", [], ["end"], value_ints=[WIDTH]),
            helper.make_node("Slice", ["offset", "start", "end"], ["part"]),
            helper.make_node("Add", ["doubled", "part"], ["y"]),
        ]
    initializer = helper.make_tensor("offset", TensorProto.FLOAT, [width], weights, raw=True)
    graph = helper.make_graph(
        nodes, "doubler", [value("x", WIDTH)], [value("y", WIDTH), value("total", 1)], [initializer]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    save(model, directory / "model.onnx")
    return directory


def has_onnx() -> bool:
    """Whether the extra ``onnx`` and the package that makes its files are there."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


WRITERS: Mapping[str, Callable[[Path, float], Path]] = {
    "pytorch_export": write_exported,
    "pytorch_libtorch": lambda directory, offset: write_script(directory, Doubler(offset)),
    "python module": write_module,
    "python class": write_plain,
    **({"onnxruntime_onnx": write_onnx} if has_onnx() else {}),
}
"""Writes the model into a directory, which it returns. Without the extra ``onnx`` that platform is left out."""


def rewrite_archive(source: Path, target: Path, edit: Callable[[str, bytes], bytes | None]) -> Path:
    """Copies an archive member by member. ``edit(name below the root, data)`` gives the new data, None to drop it.

    The copy has correct checksums, as an attacker would make them.
    """
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            data = edit(info.filename.partition("/")[2], old.read(info))
            if data is not None:
                new.writestr(info.filename, data)
    return target


def add_to_archive(source: Path, target: Path, members: Mapping[str, bytes]) -> Path:
    """Copies an archive and puts members, named below the root, behind the others."""
    rewrite_archive(source, target, lambda name, data: data)
    with zipfile.ZipFile(target, "a", zipfile.ZIP_STORED) as archive:
        root = archive.namelist()[0].partition("/")[0]
        for name, data in members.items():
            archive.writestr(f"{root}/{name}", data)
    return target
