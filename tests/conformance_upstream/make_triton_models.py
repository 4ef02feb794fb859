"""Writes the models that Triton's own tests name; run in the server's environment.

    python make_triton_models.py DIR

``DIR/<repository>/<model>`` has the names, inputs and outputs that their ``test.sh`` and ``gen_qa_*.py`` give them.
What is a model of ONNX or TorchScript there is one here; custom backends and TensorFlow's identities are ``model.py``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import onnx
import torch
from onnx import TensorProto, helper

TYPES = {
    "TYPE_BOOL": TensorProto.BOOL,
    "TYPE_UINT8": TensorProto.UINT8,
    "TYPE_INT8": TensorProto.INT8,
    "TYPE_INT16": TensorProto.INT16,
    "TYPE_INT32": TensorProto.INT32,
    "TYPE_INT64": TensorProto.INT64,
    "TYPE_FP16": TensorProto.FLOAT16,
    "TYPE_FP32": TensorProto.FLOAT,
    "TYPE_STRING": TensorProto.STRING,
}
Tensors = list[tuple[str, str, list[int]]]
"""Name, datatype and dims of each."""
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
    write_lifecycle(root)
    write_reloads(root)
    write_python(root / "generate" / "mock_llm", MOCK, MOCK_CONFIG)
    write_python(root / "generate_values" / "mock_llm", MOCK, MOCK_CONFIG + MOCK_VALUES)
    for name in ("graphdef_nobatch_zero_1_object", "string_identity"):
        write_python(root / "string_io" / name, SAME, same("TYPE_STRING", [-1]))


def write_lifecycle(root: Path) -> None:
    """What the cases of lifecycle and ensemble change while they run: each has ``models`` and what it copies there."""
    some, name = "version_policy { specific { versions: [ 1, 3 ] } }\n", "{}_float32_float32_float32".format
    for case in ("lifecycle_load", "lifecycle_control", "lifecycle_fail"):
        write_sums(root / case / "models" / name("onnx"), "TYPE_FP32", (1, 3), 3, some)
    write_sums(root / "lifecycle_load" / name("savedmodel"), "TYPE_FP32", (1, 3), 3, some)
    whole = step(name("onnx"), -1, "INPUT0", "INPUT1", OUTPUT0="OUTPUT0", OUTPUT1="OUTPUT1")
    write_ensemble(root / "lifecycle_control" / "models" / name("simple_onnx"), "TYPE_FP32", whole, (1, 3))
    for file in (root / "lifecycle_fail").rglob("model.onnx"):
        file.unlink()
    graphdef = root / "lifecycle_versions" / "models" / "graphdef_int32_int32_int32"
    write_sums(graphdef, "TYPE_INT32", (1, 2, 3), more="version_policy { all {} }\n")
    models = root / "ensemble" / "models"
    write_sums(models / "simple", "TYPE_INT32", (1, 2), more="version_policy { all {} }\n")
    steps = (
        step("simple", -1, "INPUT0", "INPUT0", OUTPUT0="double_input0"),
        step("simple", 1, "INPUT1", "INPUT1", OUTPUT0="double_input1"),
        step("simple", -1, "double_input0", "INPUT0", OUTPUT1="input0_val"),
        step("simple", 1, "double_input1", "INPUT1", OUTPUT1="input1_val"),
        step("simple", -1, "input0_val", "INPUT1", OUTPUT0="OUTPUT0"),
        step("simple", 1, "INPUT0", "input1_val", OUTPUT1="OUTPUT1"),
    )
    write_ensemble(models / "ensemble_add_sub_int32_int32_int32", "TYPE_INT32", "".join(steps))


SLOW_OPEN = """
import time


class Model:
    def __init__(self, context):
        time.sleep(6)

    def predict(self, inputs):
        return {"OUTPUT0": inputs["INPUT0"]}
"""
SLOW_RUN = SLOW_OPEN.replace("time.sleep(6)", "pass").replace("        return", "        time.sleep(2)\n        return")


def write_reloads(root: Path) -> None:
    """The other cases of lifecycle: names as in :func:`write_lifecycle`."""
    some, name = "version_policy { specific { versions: [ 1, 3 ] } }\n", "{}_float32_float32_float32".format
    for base in ("graphdef", "savedmodel", "onnx"):
        write_sums(root / "lifecycle_broken" / "models" / name(base), "TYPE_FP32")
    (root / "lifecycle_broken" / "models" / name("graphdef") / "1" / "model.onnx").write_bytes(b"no model")
    for base in ("savedmodel", "onnx", "plan"):
        more = some if base == "plan" else ""
        write_sums(root / "lifecycle_none" / "models" / name(base), "TYPE_FP32", (1, 3), 3, more)
    none = root / "lifecycle_none" / "models" / name("graphdef")
    none.mkdir()
    shutil.copy(root / "lifecycle_broken" / "models" / name("graphdef") / "config.pbtxt", none)
    for case, other in (("lifecycle_names", "abc"), ("lifecycle_zeros", "01")):
        base = root / case / "models" / name("savedmodel")
        write_sums(base, "TYPE_FP32", (1, 3), 3)
        (base / "3").rename(base / other)
    for base in ("savedmodel", "plan"):
        folder = root / "lifecycle_modify" / "models" / name(base)
        write_sums(folder, "TYPE_FP32", (1, 3), 3, some)
        (folder / "labels.txt").write_text("".join(f"label{at}\n" for at in range(16)))
        (folder / "wrong.txt").write_text("label9\n" * 16)
        config = (folder / "config.pbtxt").read_text()
        for ending, labels, policy in (("wrong.", "wrong.txt", some), ("", "labels.txt", "")):
            changed = config.replace('"OUTPUT0"', f'"OUTPUT0" label_filename: "{labels}"').replace(some, policy)
            (root / "lifecycle_modify" / f"config.pbtxt.{ending}{base}").write_text(changed)
    write_sums(root / "lifecycle_platform" / "models" / name("simple"), "TYPE_FP32", (1, 3), 3, some)
    for version in (1, 3):
        config = 'platform: "pytorch_libtorch"\n' + sums_config("OUTPUT__", "TYPE_FP32") + some
        base = write_config(root / "lifecycle_platform" / name("simple"), config, version)
        torch.jit.script(Sums() if version == 1 else Swapped()).save(str(base / str(version) / "model.pt"))
    for case, versions in (("lifecycle_reload", (1,)), ("lifecycle_reload2", (1, 2))):
        base, config = root / case / "models" / "identity_zero_1_int32", same("TYPE_INT32", [-1])
        for version in versions:
            write_config(base, config, version)
            (base / str(version) / "model.py").write_text(SLOW_OPEN)
        policy = "version_policy {{ specific {{ versions: [ {} ] }} }}\n".format
        (base / "config.pbtxt").write_text(config + policy(1) if len(versions) > 1 else config)
        gpu = "instance_group { kind: KIND_GPU gpus: [ 0 ] }\n"
        (root / case / "config.pbtxt.v2").write_text(config + policy(2))
        (root / case / "config.pbtxt.v2.gpu").write_text(config + policy(2) + gpu)
        changed = policy(1) + 'parameters { key: "changed" value { string_value: "yes" } }\n'
        (root / case / "config.pbtxt.new").write_text(config + changed)
    base = root / "lifecycle_override" / "models" / name("onnx")
    write_sums(base, "TYPE_FP32", (1, 2, 3), 2, some)
    for version in (1, 3):
        (base / str(version) / "model.onnx").write_bytes(b"no model")
    batching = "max_batch_size: 1\ndynamic_batching { preferred_batch_size: [ 1 ] }\n"
    write_python(
        root / "lifecycle_shutdown" / "models" / "custom_zero_1_float32", SLOW_RUN, batching + same("TYPE_FP32", [1])
    )


class Swapped(torch.nn.Module):
    """For TorchScript."""

    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return INPUT0 - INPUT1, INPUT0 + INPUT1


def tensors(kind: str, named: Tensors, more: str = "") -> str:
    """Lines of a config: inputs or outputs of these names, datatypes and dims."""
    return "".join(
        f'{kind} {{ name: "{name}" data_type: {kind_of} dims: {dims} {more} }}\n' for name, kind_of, dims in named
    )


def same(datatype: str, dims: list[int]) -> str:
    return "\n" + tensors("input", [("INPUT0", datatype, dims)]) + tensors("output", [("OUTPUT0", datatype, dims)])


def write_config(base: Path, config: str, version: int = 1) -> Path:
    (base / str(version)).mkdir(parents=True, exist_ok=True)
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


def sums_config(output: str, datatype: str = "TYPE_INT32", size: int = 16) -> str:
    inputs, outputs = ([(f"{kind}{at}", datatype, [size]) for at in (0, 1)] for kind in ("INPUT", output))
    return "max_batch_size: 8\n" + tensors("input", inputs) + tensors("output", outputs)


def write_sums(
    base: Path, datatype: str, versions: tuple[int, ...] = (1,), swapped: int = 0, more: str = "", size: int = 16
) -> None:
    """The sum and the difference of two vectors of 16; the version ``swapped`` has them the other way round."""
    inputs, outputs = ([(f"{kind}{index}", datatype, [size]) for index in (0, 1)] for kind in ("INPUT", "OUTPUT"))
    for version in versions:
        names = ("OUTPUT1", "OUTPUT0") if version == swapped else ("OUTPUT0", "OUTPUT1")
        nodes = [
            helper.make_node(kind, ["INPUT0", "INPUT1"], [name])
            for kind, name in zip(("Add", "Sub"), names, strict=True)
        ]
        write_onnx(base, nodes, inputs, outputs, more, version)


def write_ensemble(base: Path, datatype: str, steps: str, versions: tuple[int, ...] = (1,)) -> None:
    inputs, outputs = ([(f"{kind}{index}", datatype, [16]) for index in (0, 1)] for kind in ("INPUT", "OUTPUT"))
    head = f'platform: "ensemble"\nmax_batch_size: 8\nversion_policy {{ specific {{ versions: {list(versions)} }} }}\n'
    scheduling = f"ensemble_scheduling {{\n{steps}}}\n"
    for version in versions:
        write_config(base, head + tensors("input", inputs) + tensors("output", outputs) + scheduling, version)


def step(model: str, version: int, first: str, second: str, **outputs: str) -> str:
    """A step of a model of sums; ``outputs`` says what becomes of its outputs."""
    maps = "".join(f' output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items())
    inputs = f'input_map {{ key: "INPUT0" value: "{first}" }} input_map {{ key: "INPUT1" value: "{second}" }}'
    return f'  step {{ model_name: "{model}" model_version: {version} {inputs}{maps} }}\n'


def write_onnx(
    base: Path,
    nodes: list[onnx.NodeProto],
    inputs: Tensors,
    outputs: Tensors,
    more: str = "",
    version: int = 1,
    rows: int = 8,
    own: tuple[Tensors, Tensors] = ([], []),
) -> None:
    """A model of up to so many rows (0: without a batch); a dim of -1 is one of any size. ``own``: inputs and outputs
    of the graph that clients do not see."""

    def values(named: Tensors) -> list[onnx.ValueInfoProto]:
        first = ["rows"] if rows else []
        return [
            helper.make_tensor_value_info(
                name, TYPES[datatype], [*first, *(f"{name}_{at}" if dim < 0 else dim for at, dim in enumerate(dims))]
            )
            for name, datatype, dims in named
        ]

    graph = helper.make_graph(nodes, base.name, values(inputs + own[0]), values(outputs + own[1]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    head = f'platform: "onnxruntime_onnx"\nmax_batch_size: {rows}\n'
    write_config(base, head + tensors("input", inputs) + tensors("output", outputs) + more, version)
    onnx.save(model, str(base / str(version) / "model.onnx"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
