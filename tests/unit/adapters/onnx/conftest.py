"""Models made with the package onnx, and how they open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="makes the models")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper

from tfs_lite.adapters.onnx.model import OnnxModel, open_onnx
from tfs_lite.config.model import ModelSettings


def value(name: str, dtype: int = TensorProto.FLOAT, dims: Any = ("n", 2)) -> Any:
    return helper.make_tensor_value_info(name, dtype, dims)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes nodes as the version in ``tmp_path / "1"``; an identity of ``x`` if there are none."""

    def make(
        nodes: Any = None,
        inputs: Any = None,
        outputs: Any = None,
        initializers: Any = (),
        opset: int = 21,
        ir_version: int = 10,
        functions: Any = (),
        domains: Any = (),
        name: str = "1",
    ) -> Path:
        graph = helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])] if nodes is None else nodes,
            "g",
            [value("x")] if inputs is None else inputs,
            [value("y")] if outputs is None else outputs,
            list(initializers),
        )
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=list(functions))
        directory = tmp_path / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "model.onnx").write_bytes(model.SerializeToString())
        return directory

    return make


@pytest.fixture
def opened(request_for: Any) -> Any:
    """Opens versions, and closes them after the test."""
    found: list[OnnxModel] = []

    def make(directory: Path, settings: ModelSettings | None = None, trusted: bool = False) -> OnnxModel:
        found.append(open_onnx(request_for(directory, settings, trusted)))
        return found[-1]

    yield make
    for model in found:
        model.close()
