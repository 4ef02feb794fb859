"""Writes the models that Triton's own tests name; run in the server's environment.

    python make_triton_models.py DIR

``DIR/<repository>/<model>`` has the names, inputs and outputs that the tests' ``test.sh`` and ``gen_qa_*.py`` give them.
What is a model of ONNX or TorchScript there is one here; custom backends and TensorFlow's identities are ``model.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import torch
from onnx import TensorProto, helper

TYPES = {
    "TYPE_FP32": TensorProto.FLOAT,
    "TYPE_FP16": TensorProto.FLOAT16,
    "TYPE_INT32": TensorProto.INT32,
    "TYPE_STRING": TensorProto.STRING,
}
ONE = """
import torch


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"OUTPUT0": torch.ones(1)}
"""
SAME = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"OUTPUT0": inputs["INPUT0"]}
"""
SUMS = """
import time


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        time.sleep({seconds})
        return {{"OUTPUT0": inputs["INPUT0"] + inputs["INPUT1"], "OUTPUT1": inputs["INPUT0"] - inputs["INPUT1"]}}
"""
MOCK = """
import time


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        def given(name, otherwise):
            return inputs[name].item() if name in inputs else otherwise

        if not inputs["STREAM"].item():
            yield {"TEXT": inputs["PROMPT"]}
            return
        for _ in range(given("REPETITION", 1)):
            time.sleep(given("DELAY", 0))
            yield {"TEXT": inputs["PROMPT"]}
        if given("FAIL_LAST", False):
            raise RuntimeError("An Error Occurred")
"""
MOCK_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [
  { name: "PROMPT" data_type: TYPE_STRING dims: [ 1, 1 ] },
  { name: "STREAM" data_type: TYPE_BOOL dims: [ 1, 1 ] }
]
output { name: "TEXT" data_type: TYPE_STRING dims: [ 1, -1 ] }
"""
MOCK_VALUES = """
input [
  { name: "REPETITION" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "DELAY" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "FAIL_LAST" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
"""


class Sums(torch.nn.Module):
    """For TorchScript."""

    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return INPUT0 + INPUT1, INPUT0 - INPUT1


QUEUE = """
dynamic_batching {
  max_queue_delay_microseconds: 1000000
  preferred_batch_size: [ 8 ]
  default_queue_policy { max_queue_size: 1 }
}
"""


def main(root: Path) -> None:
    validation = root / "input_validation"
    required = [("INPUT0", "TYPE_FP32", [-1]), ("INPUT1", "TYPE_FP32", [-1]), ("INPUT2", "TYPE_FP32", [-1])]
    one = tensors("output", [("OUTPUT0", "TYPE_FP32", [1])])
    write_python(validation / "input_all_required", ONE, tensors("input", required) + one)
    fourth = tensors("input", [("INPUT3", "TYPE_FP32", [-1])], "optional: true")
    write_python(validation / "input_optional", ONE, tensors("input", required) + fourth + one)
    write_python(validation / "input_all_optional", ONE, tensors("input", required, "optional: true") + one)
    base = write_config(validation / "pt_identity", 'backend: "pytorch" max_batch_size: 8' + same("TYPE_FP32", [8]))
    torch.jit.script(torch.nn.Identity()).save(str(base / "1" / "model.pt"))

    http = root / "http"
    write_identity(http / "onnx_zero_1_float32", "TYPE_FP32", [-1])
    write_identity(http / "onnx_zero_1_float32_queue", "TYPE_FP32", [-1], more=QUEUE)
    write_identity(http / "onnx_zero_1_float16", "TYPE_FP16", [-1, -1])
    write_identity(http / "onnx_zero_1_object", "TYPE_STRING", [-1])
    write_identity(http / "onnx_zero_1_object_1_element", "TYPE_STRING", [1])
    write_identity(http / "onnx_zero_3_float32", "TYPE_FP32", [-1], count=3)
    write_python(http / "simple_identity", SAME, "max_batch_size: 8" + same("TYPE_STRING", [-1]))
    write_python(http / "simple_identity_int64", SAME, "max_batch_size: 8" + same("TYPE_INT64", [-1]))

    write_sums(root / "simple" / "simple", "TYPE_INT32")
    for name in ("onnx", "plan", "openvino"):  # TensorRT and OpenVINO are no platforms here
        write_sums(root / "simple" / f"{name}_int32_int32_int32", "TYPE_INT32")
    write_python(root / "simple" / "python_int32_int32_int32", SUMS.format(seconds=0), sums_config("OUTPUT"))
    write_python(root / "slow" / "simple", SUMS.format(seconds=5), sums_config("OUTPUT"))
    base = write_config(root / "simple" / "libtorch_int32_int32_int32", sums_config("OUTPUT__"))
    torch.jit.script(Sums()).save(str(base / "1" / "model.pt"))
    write_python(root / "generate" / "mock_llm", MOCK, MOCK_CONFIG)
    write_python(root / "generate_values" / "mock_llm", MOCK, MOCK_CONFIG + MOCK_VALUES)
    for name in ("graphdef_nobatch_zero_1_object", "string_identity"):
        write_python(root / "string_io" / name, SAME, same("TYPE_STRING", [-1]))


def tensors(kind: str, named: list[tuple[str, str, list[int]]], more: str = "") -> str:
    """Lines of a config: inputs or outputs of these names, datatypes and dims."""
    return "".join(
        f'{kind} {{ name: "{name}" data_type: {kind_of} dims: {dims} {more} }}\n' for name, kind_of, dims in named
    )


def same(datatype: str, dims: list[int]) -> str:
    return "\n" + tensors("input", [("INPUT0", datatype, dims)]) + tensors("output", [("OUTPUT0", datatype, dims)])


def write_config(base: Path, config: str) -> Path:
    (base / "1").mkdir(parents=True)
    (base / "config.pbtxt").write_text(config)
    return base


def write_python(base: Path, source: str, config: str) -> None:
    (write_config(base, config) / "1" / "model.py").write_text(source)


def write_identity(base: Path, datatype: str, dims: list[int], count: int = 1, more: str = "") -> None:
    """``onnx_zero_<count>_...``: as many inputs as outputs, each an output as it is."""
    inputs = [(f"INPUT{index}", datatype, dims) for index in range(count)]
    outputs = [(f"OUTPUT{index}", datatype, dims) for index in range(count)]
    nodes = [helper.make_node("Identity", [f"INPUT{index}"], [f"OUTPUT{index}"]) for index in range(count)]
    write_onnx(base, nodes, inputs, outputs, more)


def sums_config(output: str) -> str:
    inputs, outputs = ([(f"{kind}{at}", "TYPE_INT32", [16]) for at in (0, 1)] for kind in ("INPUT", output))
    return "max_batch_size: 8\n" + tensors("input", inputs) + tensors("output", outputs)


def write_sums(base: Path, datatype: str) -> None:
    """The sum and the difference of two vectors of 16."""
    nodes = [
        helper.make_node(kind, ["INPUT0", "INPUT1"], [out]) for kind, out in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1"))
    ]
    inputs, outputs = ([(f"{kind}{index}", datatype, [16]) for index in (0, 1)] for kind in ("INPUT", "OUTPUT"))
    write_onnx(base, nodes, inputs, outputs)


def write_onnx(
    base: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[tuple[str, str, list[int]]],
    outputs: list[tuple[str, str, list[int]]],
    more: str = "",
) -> None:
    """A model of up to eight rows; a dim of -1 is one of any size."""

    def values(named: list[tuple[str, str, list[int]]]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                name, TYPES[datatype], ["rows", *(f"{name}_{at}" if dim < 0 else dim for at, dim in enumerate(dims))]
            )
            for name, datatype, dims in named
        ]

    graph = helper.make_graph(nodes, base.name, values(inputs), values(outputs))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    head = 'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
    write_config(base, head + tensors("input", inputs) + tensors("output", outputs) + more)
    onnx.save(model, str(base / "1" / "model.onnx"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
