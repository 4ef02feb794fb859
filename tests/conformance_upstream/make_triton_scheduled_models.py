"""Writes the models with which Triton's own tests try its schedulers; run in the server's environment.

    python make_triton_scheduled_models.py DIR

As :mod:`make_triton_models`. Sequence models give what those of ``gen_qa_sequence_models.py`` give: ``INPUT`` +
``START`` where ``READY``, else 0. The custom one keeps a sum for each row of its batch, those with implicit state for
each sequence.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import torch
from make_triton_models import (
    SUMS,
    Sums,
    Tensors,
    same,
    sums_config,
    tensors,
    write_config,
    write_onnx,
    write_python,
    write_sums,
)
from onnx import TensorProto, helper

NAME = "{}_float32_float32_float32".format
PREFERRED = "dynamic_batching { preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 10000000 }\n"
DELAYED = """
import time


class Model:
    made = 0

    def __init__(self, context):
        self.seconds = {seconds} * (1 if Model.made % 2 == 0 else {later})
        Model.made += 1

    def predict(self, inputs):
        time.sleep(self.seconds)
        return {{"OUTPUT0": inputs["INPUT0"]}}
"""
KEPT = """
import torch


class Model:
    def __init__(self, context):
        self.sums = torch.zeros({rows}, 1, dtype=torch.int32)

    def predict(self, inputs):
        count = len(inputs["INPUT"])
        total = torch.where(inputs["START"] == 1, 0, self.sums[:count]) + inputs["INPUT"]
        self.sums[:count] = torch.where(inputs["READY"] == 1, total, self.sums[:count])
        return {{"OUTPUT": self.sums[:count].clone()}}
"""
COUNTED = """
import torch


class Model:
    def __init__(self, context):
        self.counts = {}

    def predict(self, inputs):
        counts = []
        for id in inputs["ID"].flatten().tolist():
            self.counts[id] = self.counts.get(id, 0) + 1
            counts.append([self.counts[id]])
        return {"OUTPUT0": torch.tensor(counts, dtype=torch.int32)}
"""
ADD_SUB = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        first, second = inputs["INPUT0"], inputs["INPUT1"]
        return {"OUTPUT0": first + second, "OUTPUT1": first - second}
"""


class Sequence(torch.nn.Module):
    """For TorchScript, in the order of Triton's names: ``INPUT__0``, ``START__1``, ``READY__2``."""

    def forward(self, value: torch.Tensor, start: torch.Tensor, ready: torch.Tensor) -> torch.Tensor:
        return (value + start.to(torch.int32)) * ready.to(torch.int32)


def main(root: Path) -> None:
    write_batched(root)
    for rows, instances in ((4, 1), (2, 2), (1, 4)):
        write_sequences(root / f"sequences{instances}", rows, instances)
    write_sequences(root / "sequences0", 0, 4)
    write_sequences(root / "sequencesv", 4, 1, size=-1)
    for name, least in (("", 0), ("_half", 0.5), ("_full", 1)):
        direct = f"direct {{ max_queue_delay_microseconds: 3000000 minimum_slot_utilization: {least} }}"
        write_sequences(root / "sequences_delay", 4, 1, scheduling=direct, name=name)
    for rows, instances in ((4, 1), (0, 4)):
        write_implicit(root / f"sequences_implicit{instances}", rows, instances)
    write_with_ids(root)
    controls = control("START", "int32") + control("READY", "int32")
    inputs = same("TYPE_INT32", [1])
    sequence = f"max_batch_size: 1\nsequence_batching {{ max_sequence_idle_microseconds: 50000000 {controls} }}\n"
    slow = DELAYED.format(seconds=3, later=1)
    write_python(root / "sequences_timeout" / "custom_sequence_int32_timeout", slow, sequence + inputs)
    for name, ordered in (("seqpy_preserve_ordering", "true"), ("seqpy_no_preserve_ordering", "false")):
        oldest = "oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 1000000 "
        oldest += f"preserve_ordering: {ordered} }}"
        id_input = 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }'
        batching = f"sequence_batching {{ {oldest} max_sequence_idle_microseconds: 10000000 {id_input} }}\n"
        base = root / "sequences_order" / f"{name}_nondecoupled"
        write_python(base, COUNTED, "max_batch_size: 4\n" + batching + inputs)


def write_batched(root: Path) -> None:
    for folder, more, size in (
        ("batcher", PREFERRED, 16),
        ("batcher_var", PREFERRED, -1),
        ("batcher_preferred", "dynamic_batching { preferred_batch_size: [ 4, 6 ] }\n", 16),
    ):
        write_sums(root / folder / NAME("onnx"), "TYPE_FP32", more=more, size=size)
        config = sums_config("OUTPUT", "TYPE_FP32", size) + more
        write_python(root / folder / NAME("python"), SUMS.format(seconds=0), config)
        base = write_config(root / folder / NAME("libtorch"), sums_config("OUTPUT__", "TYPE_FP32", size) + more)
        torch.jit.script(Sums()).save(str(base / "1" / "model.pt"))
    zero, name = same("TYPE_FP32", [-1]), "custom_zero_1_float32"
    for folder, delay in (("batcher_default", 0), ("batcher_20ms", 20000)):
        batching = f"max_batch_size: 100\ndynamic_batching {{ max_queue_delay_microseconds: {delay} }}\n"
        write_python(root / folder / name, DELAYED.format(seconds=0.1, later=1), batching + zero)
    for folder, ordered in (("batcher_unordered", "false"), ("batcher_ordered", "true")):
        batching = "max_batch_size: 4\n"
        batching += f"dynamic_batching {{ preferred_batch_size: [ 4 ] preserve_ordering: {ordered} }}\n"
        two = "instance_group { count: 2 kind: KIND_CPU }\n"
        write_python(root / folder / name, DELAYED.format(seconds=0.1, later=4), batching + two + zero)
    policy = "default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 2000000 }"
    batching = f"max_batch_size: 1\ndynamic_batching {{ preferred_batch_size: [ 1 ] {policy} }}\n"
    slow = DELAYED.format(seconds=6, later=1)
    write_python(root / "batcher_timeout" / "dynamic_batch", slow, batching + same("TYPE_FP32", [-1]))


def control(name: str, kind: str, as_name: str = "") -> str:
    values = "[ false, true ]" if kind == "bool" else "[ 0, 1 ]"
    use = f"kind: CONTROL_SEQUENCE_{name} {kind}_false_true: {values}"
    return f'control_input {{ name: "{as_name or name}" control {{ {use} }} }} '


def sequence_batching(kind: str, scheduling: str = "", state: str = "", positions: tuple[str, str] = ("", "")) -> str:
    controls = control("START", kind, positions[0]) + control("READY", kind, positions[1])
    return f"sequence_batching {{ {scheduling} max_sequence_idle_microseconds: 5000000 {controls} {state} }}\n"


def write_sequences(
    repository: Path, rows: int, instances: int, size: int = 1, scheduling: str = "", name: str = ""
) -> None:
    """As many slots in all as four; without rows, one for each instance."""
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}\n"
    middle = "" if rows else "_nobatch"
    for kind in ("int32", "bool"):
        more = sequence_batching(kind, scheduling) + group
        own = [("START", f"TYPE_{kind.upper()}", [1]), ("READY", f"TYPE_{kind.upper()}", [1])]
        nodes = [
            helper.make_node("Cast", ["START"], ["first"], to=TensorProto.INT32),
            helper.make_node("Cast", ["READY"], ["there"], to=TensorProto.BOOL),
            helper.make_node("Add", ["INPUT", "first"], ["sum"]),
            helper.make_node("Sub", ["INPUT", "INPUT"], ["nothing"]),
            helper.make_node("Where", ["there", "sum", "nothing"], ["OUTPUT"]),
        ]
        ends: tuple[Tensors, Tensors] = [("INPUT", "TYPE_INT32", [size])], [("OUTPUT", "TYPE_INT32", [size])]
        base = repository / f"onnx{middle}_sequence_{kind}{name}"
        write_onnx(base, nodes, *ends, more, rows=rows, own=(own, []))
        if not rows or size < 0:
            continue
        positions = sequence_batching(kind, scheduling, positions=("START__1", "READY__2")) + group
        ends = [("INPUT__0", "TYPE_INT32", [size])], [("OUTPUT__0", "TYPE_INT32", [size])]
        config = f'platform: "pytorch_libtorch"\nmax_batch_size: {rows}\n' + positions
        config += tensors("input", ends[0]) + tensors("output", ends[1])
        base = write_config(repository / f"libtorch_sequence_{kind}{name}", config)
        torch.jit.script(Sequence()).save(str(base / "1" / "model.pt"))
    if rows and size > 0:
        ends = [("INPUT", "TYPE_INT32", [1])], [("OUTPUT", "TYPE_INT32", [1])]
        config = f"max_batch_size: {rows}\n" + sequence_batching("int32", scheduling) + group
        config += tensors("input", ends[0]) + tensors("output", ends[1])
        write_python(repository / f"custom_sequence_int32{name}", KEPT.format(rows=rows), config)
    if not scheduling:
        write_sequence_ensembles(repository, f"onnx{middle}_sequence_int32", rows, size)


def id_control(kind: str) -> str:
    told = f"kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{kind}"
    return f'control_input {{ name: "CORRID" control {{ {told} }} }} '


def write_with_ids(root: Path) -> None:
    """Models that read the id of their sequence: as a number, added at its end, and of every type, and unused."""
    controls = "".join(control(name, "int32") for name in ("START", "END", "READY")) + id_control("INT32")
    more = f"sequence_batching {{ max_sequence_idle_microseconds: 5000000 {controls} }}\n"
    more += "instance_group { count: 4 kind: KIND_CPU }\n"
    nodes = [
        helper.make_node("Mul", ["CORRID", "END"], ["last"]),
        helper.make_node("Add", ["INPUT", "START"], ["first"]),
        helper.make_node("Add", ["first", "last"], ["sum"]),
        helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"]),
    ]
    own = [(name, "TYPE_INT32", [1]) for name in ("START", "END", "READY", "CORRID")]
    ends: tuple[Tensors, Tensors] = [("INPUT", "TYPE_INT32", [1])], [("OUTPUT", "TYPE_INT32", [1])]
    base = root / "sequences_corrid4" / "onnx_dyna_sequence_int32"
    write_onnx(base, nodes, *ends, more, rows=1, own=(own, []))
    both = [("0", "TYPE_FP32", [16]), ("1", "TYPE_FP32", [16])]
    tensors_of = "".join(
        tensors(kind, [(f"{kind.upper()}{at}", datatype, dims) for at, datatype, dims in both])
        for kind in ("input", "output")
    )
    for kind in ("STRING", "UINT64", "INT64", "UINT32", "INT32"):
        config = f"sequence_batching {{ {id_control(kind)} }}\n" + tensors_of
        write_python(root / f"sequences_corrid_{kind}" / "add_sub", ADD_SUB, config)


def write_sequence_ensembles(repository: Path, model: str, rows: int, size: int) -> None:
    nop: Tensors = [("INPUT0", "TYPE_INT32", [-1]), ("INPUT1", "TYPE_INT32", [-1])]
    outputs: Tensors = [("OUTPUT0", "TYPE_INT32", [-1]), ("OUTPUT1", "TYPE_INT32", [-1])]
    nodes = [helper.make_node("Identity", [f"INPUT{at}"], [f"OUTPUT{at}"]) for at in (0, 1)]
    write_onnx(repository / "nop_TYPE_INT32_-1", nodes, nop, outputs, rows=8 if rows else 0)
    ends = tensors("input", [("INPUT", "TYPE_INT32", [size])]) + tensors("output", [("OUTPUT", "TYPE_INT32", [size])])
    before = one_step("nop_TYPE_INT32_-1", {"INPUT0": "INPUT", "INPUT1": "INPUT"}, {"OUTPUT0": "same"})
    steps = {
        "simple": one_step(model, {"INPUT": "INPUT"}, {"OUTPUT": "OUTPUT"}),
        "sequence": before + one_step(model, {"INPUT": "same"}, {"OUTPUT": "OUTPUT"}),
        "fan": before
        + one_step(model, {"INPUT": "same"}, {"OUTPUT": "sum"})
        + one_step("nop_TYPE_INT32_-1", {"INPUT0": "sum", "INPUT1": "sum"}, {"OUTPUT0": "OUTPUT"}),
    }
    for name, scheduling in steps.items():
        head = f'platform: "ensemble"\nmax_batch_size: {rows}\n'
        write_config(repository / f"{name}_{model}", head + ends + f"ensemble_scheduling {{\n{scheduling}}}\n")


def one_step(model: str, inputs: dict[str, str], outputs: dict[str, str], version: int = -1) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'  step {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}\n'


def write_implicit(repository: Path, rows: int, instances: int) -> None:
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}\n"
    middle = "" if rows else "_nobatch"
    for kind, datatype in (("int32", "TYPE_INT32"), ("bool", "TYPE_INT32"), ("object", "TYPE_STRING")):
        flags = "bool" if kind == "bool" else "int32"
        state = f'state {{ input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: {datatype} dims: [ 1 ] }}'
        own: tuple[Tensors, Tensors] = (
            [("START", f"TYPE_{flags.upper()}", [1]), ("READY", f"TYPE_{flags.upper()}", [1])],
            [("OUTPUT_STATE", datatype, [1])],
        )
        own[0].append(("INPUT_STATE", datatype, [1]))
        nodes: list[onnx.NodeProto] = [
            helper.make_node("Cast", ["START"], ["first"], to=TensorProto.BOOL),
            helper.make_node("Cast", ["READY"], ["there"], to=TensorProto.BOOL),
            helper.make_node("Sub", ["INPUT", "INPUT"], ["nothing"]),
            helper.make_node("Where", ["first", "nothing", "INPUT_STATE"], ["kept"]),
            helper.make_node("Add", ["INPUT", "kept"], ["sum"]),
            helper.make_node("Where", ["there", "sum", "kept"], ["OUTPUT_STATE"]),
            helper.make_node("Identity", ["OUTPUT_STATE"], ["OUTPUT"]),
        ]
        if kind == "object":
            nodes = [helper.make_node("Identity", ["INPUT"], [name]) for name in ("OUTPUT", "OUTPUT_STATE")]
        ends: tuple[Tensors, Tensors] = [("INPUT", datatype, [1])], [("OUTPUT", datatype, [1])]
        more = sequence_batching(flags, state=state) + group
        write_onnx(repository / f"onnx{middle}_sequence_{kind}", nodes, *ends, more, rows=rows, own=own)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
