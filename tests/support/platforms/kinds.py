"""A small model of each platform for the contract suite, and one of each that returns what it gets.

The models of all platforms but ``transformers`` are those of :mod:`tests.support.servers.platforms`.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tfs_lite
from tests.support.platforms.damage import (
    COMPILED_DAMAGE,
    ENCODER_DAMAGE,
    EXPORTED_DAMAGE,
    ONNX_DAMAGE,
    PYTHON_DAMAGE,
    SCRIPT_DAMAGE,
    Damage,
)
from tests.support.servers.platforms import (
    MAX_ROWS,
    WIDTH,
    Doubler,
    write_exported,
    write_module,
    write_onnx,
    write_script,
)
from tfs_lite.adapters.pytorch.tensors import TORCH_DTYPES
from tfs_lite.core.signature import DataType
from tfs_lite.protocols.dtypes import TABLE

OFFSET = 1.0
Arrays = Mapping[str, Any]
Reference = Callable[[Arrays], Arrays]
"""What a model has to answer."""

CONFIG = f"""
max_batch_size: {MAX_ROWS}
input {{ name: "x" data_type: TYPE_FP32 dims: {WIDTH} }}
output {{ name: "y" data_type: TYPE_FP32 dims: {WIDTH} }}
output {{ name: "total" data_type: TYPE_FP32 dims: 1 }}
"""
_CONFIG_NAMES = {row.dtype: row.config for row in TABLE if row.config}
_INDUCTOR_LACKS = {DataType.COMPLEX64, DataType.COMPLEX128}


def _rows(count: int) -> Arrays:
    return {"x": np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH)}


def _doubled(inputs: Arrays) -> Arrays:
    y = 2 * inputs["x"] + OFFSET
    return {"y": y, "total": y.sum(1, keepdims=True)}


def _texts(count: int) -> Arrays:
    texts = np.empty(count, object)
    texts[:] = [b"the cat sat", b"dog", b"yes no and or"][:count]
    return {"text": texts}


BAD_ROWS: Mapping[str, tuple[Arrays, str]] = {
    "another width": ({"x": np.zeros((1, WIDTH + 1), np.float32)}, "x"),
    "another rank": ({"x": np.zeros((1, 1, WIDTH), np.float32)}, "x"),
    "a number alone": ({"x": np.float32(1)}, "x"),
    "another element type": ({"x": np.zeros((1, WIDTH), np.float64)}, "double"),
    "texts": ({"x": np.array([[b"a"] * WIDTH], object)}, "string"),
    "too many rows": ({"x": np.zeros((MAX_ROWS + 1, WIDTH), np.float32)}, str(MAX_ROWS)),
    "no input": ({}, "x"),
    "another input": ({"z": np.zeros((1, WIDTH), np.float32)}, "z"),
    "one input more": ({**_rows(1), "z": np.zeros((1, WIDTH), np.float32)}, "z"),
}
"""Inputs, and a word of the refusal."""
BAD_TEXTS: Mapping[str, tuple[Arrays, str]] = {
    "another rank": ({"text": np.array([[b"a"]], object)}, "text"),
    "numbers": ({"text": np.zeros(1, np.float32)}, "float"),
    "bytes that are no text": ({"text": np.array([b"\xff"], object)}, "text"),
    "no input": ({}, "text"),
    "another input": ({"z": np.array([b"a"], object)}, "z"),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """``write`` writes a version with its config and returns what it has to answer to ``inputs(rows)``.

    ``write_same`` writes a version with the input ``<type>`` and the output ``<type>_out`` for each element type that
    the platform takes, and returns those types. ``damage`` is done to copies of what ``write`` wrote. ``modules`` and
    ``programs`` have to be installed. ``slow``: writing takes 10 seconds and more.
    """

    write: Callable[[Path], Reference]
    damage: Mapping[str, Damage]
    write_same: Callable[[Path], Sequence[DataType]] | None = None
    inputs: Callable[[int], Arrays] = _rows
    bad_inputs: Mapping[str, tuple[Arrays, str]] = field(default_factory=lambda: BAD_ROWS)
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    needs_trust: bool = False
    slow: bool = False

    def lacks(self) -> str:
        """What is not installed here; empty if nothing is lacking."""
        missing = [name for name in self.modules if find_spec(name) is None]
        return ", ".join(missing + [name for name in self.programs if shutil.which(name) is None])


def _exported(directory: Path) -> Reference:
    write_exported(directory, OFFSET)
    return _doubled


def _script(directory: Path) -> Reference:
    write_script(directory, Doubler(OFFSET))
    (directory / "config.pbtxt").write_text(CONFIG)
    return _doubled


def _python(directory: Path) -> Reference:
    write_module(directory, OFFSET)
    (directory / "config.pbtxt").write_text(CONFIG)
    return _doubled


def _onnx(directory: Path) -> Reference:
    write_onnx(directory, OFFSET)
    (directory / "config.pbtxt").write_text(CONFIG)
    return _doubled


def _compiled(directory: Path) -> Reference:
    base = directory.parent / f".{directory.name}"
    inputs = {"x": torch.zeros(3, WIDTH)}
    made = tfs_lite.save(Doubler(OFFSET), base, example_inputs=inputs, max_batch_size=MAX_ROWS, compile="aoti")
    made.rename(directory)
    return _doubled


def _encoder(directory: Path) -> Reference:
    from tests.support.language.tiny_encoders import save_embedder, tokenizer

    network, tokens = save_embedder(directory), tokenizer()

    @torch.inference_mode()
    def embed(inputs: Arrays) -> Arrays:
        sent = [tokens(text.decode(), return_tensors="pt", return_token_type_ids=False) for text in inputs["text"]]
        found = [network(**each).last_hidden_state[0].mean(0).numpy() for each in sent]
        counts = [each["input_ids"].shape[1] for each in sent]
        return {"embeddings": np.stack(found), "token_count": np.array(counts, np.int32)}

    return embed


def _same_module(directory: Path, types: Sequence[DataType]) -> torch.nn.Module:
    """A module whose inputs have the names of the types; TorchScript wants to read its source."""
    names = [dtype.text for dtype in types]
    takes = ", ".join(f"{name}_: torch.Tensor" for name in names)
    gives = ", ".join(f'"{name}_out": {name}_.clone()' for name in names)
    source = directory.parent / f".{directory.name}.py"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(
        "import torch\n\n\nclass Same(torch.nn.Module):\n"
        f"    def forward(self, {takes}) -> dict[str, torch.Tensor]:\n        return {{{gives}}}\n"
    )
    spec = importlib.util.spec_from_file_location(f"same_{len(types)}", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: torch.nn.Module = module.Same().eval()
    return made


def _same_config(types: Sequence[DataType]) -> str:
    lines = ["max_batch_size: 4"]
    for dtype in types:
        lines.append(f'input {{ name: "{dtype.text}_" data_type: {_CONFIG_NAMES[dtype]} dims: 2 }}')
        lines.append(f'output {{ name: "{dtype.text}_out" data_type: {_CONFIG_NAMES[dtype]} dims: 2 }}')
    return "\n".join(lines)


def _same_saved(directory: Path, types: Sequence[DataType], **options: Any) -> Sequence[DataType]:
    inputs = {f"{dtype.text}_": torch.zeros(2, 2, dtype=TORCH_DTYPES[dtype]) for dtype in types}
    base = directory.parent / f".{directory.name}"
    tfs_lite.save(_same_module(directory, types), base, example_inputs=inputs, **options).rename(directory)
    return types


def _same_exported(directory: Path) -> Sequence[DataType]:
    return _same_saved(directory, list(TORCH_DTYPES))


def _same_compiled(directory: Path) -> Sequence[DataType]:
    return _same_saved(directory, [dtype for dtype in TORCH_DTYPES if dtype not in _INDUCTOR_LACKS], compile="aoti")


def _same_script(directory: Path) -> Sequence[DataType]:
    types = [dtype for dtype in TORCH_DTYPES if dtype in _CONFIG_NAMES]
    write_script(directory, _same_module(directory, types))
    (directory / "config.pbtxt").write_text(_same_config(types))
    return types


def _same_python(directory: Path) -> Sequence[DataType]:
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(
        "class Model:\n    def __init__(self, context):\n        pass\n\n    def predict(self, inputs):\n"
        '        return {f"{name}out": value for name, value in inputs.items()}\n'
    )
    types = list(_CONFIG_NAMES)
    (directory / "config.pbtxt").write_text(_same_config(types))
    return types


def _same_onnx(directory: Path) -> Sequence[DataType]:
    from onnx import helper, save

    from tfs_lite.adapters.onnx.signature import ELEMENT_TYPES, NOT_IN_NUMPY

    numbers = {dtype: number for number, dtype in ELEMENT_TYPES.items()}
    types = [dtype for dtype in numbers if dtype not in NOT_IN_NUMPY]  # not together with texts
    nodes = [helper.make_node("Identity", [f"{dtype.text}_"], [f"{dtype.text}_out"]) for dtype in types]
    inputs, outputs = (
        [helper.make_tensor_value_info(f"{dtype.text}_{more}", numbers[dtype], ["n", 2]) for dtype in types]
        for more in ("", "out")
    )
    graph = helper.make_graph(nodes, "same", inputs, outputs)
    directory.mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save(model, directory / "model.onnx")
    return types


KINDS: Mapping[str, Kind] = {
    "pytorch_export": Kind(_exported, EXPORTED_DAMAGE, _same_exported),
    "pytorch_libtorch": Kind(_script, SCRIPT_DAMAGE, _same_script),
    "python": Kind(_python, PYTHON_DAMAGE, _same_python, needs_trust=True),
    "onnxruntime_onnx": Kind(_onnx, ONNX_DAMAGE, _same_onnx, modules=("onnx", "onnxruntime")),
    "pytorch_aoti": Kind(_compiled, COMPILED_DAMAGE, _same_compiled, programs=("g++",), needs_trust=True, slow=True),
    "transformers": Kind(_encoder, ENCODER_DAMAGE, inputs=_texts, bad_inputs=BAD_TEXTS, modules=("transformers",)),
}
"""By platform. SavedModels are made where TensorFlow is: see tests/tensorflow."""
