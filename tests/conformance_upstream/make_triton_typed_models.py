"""Writes the models of ``L0_infer`` and ``L0_optional_input``; run in the server's environment.

    python make_triton_typed_models.py DIR

As :mod:`make_triton_models`, after ``gen_qa_models.py``: sum and difference of two tensors in every datatype; some have
three versions, of which the later two give them the other way round.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from make_triton_models import TYPES, Tensors, tensors, write_config, write_onnx, write_python
from make_triton_scheduled_models import one_step
from onnx import helper

LETTERS = {"u": "UINT8", "b": "INT8", "s": "INT16", "i": "INT32", "l": "INT64", "h": "FP16", "f": "FP32", "o": "STRING"}
NAMES = {"FP16": "float16", "FP32": "float32", "STRING": "object"}
COMBINATIONS = (
    *("uuu", "bbb", "sss", "iii", "lll", "hhh", "fff", "hff", "bii", "ibb", "ibs", "fuu", "uff", "fuh", "iff", "fii"),
    *("ihs", "ooo", "oii", "oio", "ooi", "ioo", "iio", "ioi"),
)
POLICIES = {
    "bbb": "latest { num_versions: 1 }",
    "sss": "latest { num_versions: 2 }",
    "iii": "all {}",
    "uuu": "all {}",
    "hhh": "specific { versions: [ 1 ] }",
    "fff": "specific { versions: [ 1, 3 ] }",
}
"""Those with three versions."""
PYTHON = """
import numpy as np
import torch


def numbers(value):
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(np.asarray(value).astype(np.int64))


def made(value, kind):
    if kind == "STRING":
        return np.array([str(each) for each in value.flatten().tolist()], dtype=object).reshape(tuple(value.shape))
    return value.to(getattr(torch, kind))


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        first, second = numbers(inputs["INPUT0"]), numbers(inputs["INPUT1"])
        total, rest = made(first + second, "{sum_kind}"), made(first - second, "{rest_kind}")
        return {{"OUTPUT{sum}": total, "OUTPUT{rest}": rest}}
"""
IDENTITY = """
import torch


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        rows = len(next(iter(inputs.values())))
        return {f"OUTPUT{at}": inputs.get(f"INPUT{at}", torch.zeros(rows, 1)) for at in (0, 1)}
"""
OPTIONAL = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {name.replace("INPUT", "OUTPUT"): value for name, value in inputs.items()}
"""


class Typed(torch.nn.Module):
    """For TorchScript: the sum and the difference, in the datatypes of two examples, or the other way round."""

    def __init__(self, first: torch.dtype, second: torch.dtype, swapped: bool) -> None:
        super().__init__()
        self.swapped = swapped
        self.register_buffer("first", torch.zeros(1, dtype=first))
        self.register_buffer("second", torch.zeros(1, dtype=second))

    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total, rest = INPUT0 + INPUT1, INPUT0 - INPUT1
        if self.swapped:
            total, rest = rest, total
        return total.to(self.first.dtype), rest.to(self.second.dtype)


class Nop(torch.nn.Module):
    """For TorchScript."""

    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return INPUT0, INPUT1


def main(root: Path) -> None:
    infer = root / "infer"
    for letters in COMBINATIONS:
        for rows in (8, 0):
            for version in (1, 2, 3) if letters in POLICIES else (1,):
                write_version(infer, letters, rows, version)
    for letters in ("iii", "lll", "fff", "ooo"):
        for rows in (8, 0):
            write_ensembles(infer, letters, rows)
    write_mixed(infer)
    write_optional(root / "optional")


def named(platform: str, letters: str) -> str:
    return "_".join([platform, *(NAMES.get(LETTERS[letter], LETTERS[letter].lower()) for letter in letters)])


def ends_of(letters: str, output: str = "OUTPUT", dims: tuple[int, ...] = (16,)) -> tuple[Tensors, Tensors]:
    first, *outs = (f"TYPE_{LETTERS[letter]}" for letter in letters)
    inputs = [(f"INPUT{at}", first, list(dims)) for at in (0, 1)]
    return inputs, [(f"{output}{at}", kind, list(dims)) for at, kind in enumerate(outs)]


def config_of(letters: str, rows: int, output: str = "OUTPUT", policy: str = "") -> str:
    inputs, outputs = ends_of(letters, output)
    lines = [tensors("output", outputs[:1], 'label_filename: "output0_labels.txt"'), tensors("output", outputs[1:])]
    policy = f"version_policy {{ {policy} }}\n" if policy else ""
    return f"max_batch_size: {rows}\n" + tensors("input", inputs) + "".join(lines) + policy


def write_labels(base: Path, word: str = "label") -> None:
    (base / "output0_labels.txt").write_text("".join(f"{word}{at}\n" for at in range(16)))


def write_version(root: Path, letters: str, rows: int, version: int) -> None:
    middle, swapped, policy = "" if rows else "_nobatch", version > 1, POLICIES.get(letters, "")
    names = ("OUTPUT1", "OUTPUT0") if swapped else ("OUTPUT0", "OUTPUT1")
    kinds = [LETTERS[letter] for letter in letters]
    if "u" not in letters:
        base = root / named(f"onnx{middle}", letters)
        inner = TYPES["TYPE_FP32" if kinds[0].startswith("FP") else "TYPE_INT64"]
        nodes = [helper.make_node("Cast", [f"INPUT{at}"], [f"in{at}"], to=inner) for at in (0, 1)]
        nodes += [
            helper.make_node(kind, ["in0", "in1"], [f"{name}_"])
            for kind, name in zip(("Add", "Sub"), names, strict=True)
        ]
        nodes += [
            helper.make_node("Cast", [f"OUTPUT{at}_"], [f"OUTPUT{at}"], to=TYPES[f"TYPE_{kind}"])
            for at, kind in enumerate(kinds[1:])
        ]
        write_onnx(base, nodes, *ends_of(letters), version=version, rows=rows)
        head = 'platform: "onnxruntime_onnx"\n'
        (base / "config.pbtxt").write_text(head + config_of(letters, rows, policy=policy))
        write_labels(base)
        order = dict(zip(names, ("sum", "rest"), strict=True))
        words = {order[f"OUTPUT{at}"]: at for at in (0, 1)}
        spelled = [NAMES.get(kind, kind.lower()) if kind != "STRING" else kind for kind in kinds[1:]]
        source = PYTHON.format(**words, **{f"{order[f'OUTPUT{at}']}_kind": kind for at, kind in enumerate(spelled)})
        base = root / named(f"python{middle}", letters)
        write_labels(write_config(base, config_of(letters, rows, policy=policy), version))
        (base / str(version) / "model.py").write_text(source)
    if not set("oh") & set(letters) and letters != "bii":
        base = root / named(f"libtorch{middle}", letters)
        config = 'platform: "pytorch_libtorch"\n' + config_of(letters, rows, "OUTPUT__", policy)
        write_labels(write_config(base, config, version))
        first, second = (getattr(torch, NAMES.get(kind, kind.lower())) for kind in kinds[1:])
        torch.jit.script(Typed(first, second, swapped)).save(str(base / str(version) / "model.pt"))


def write_nop(root: Path, letters: str, name: str, rows: int, dims: list[int]) -> str:
    kind = f"TYPE_{LETTERS[letters[0]]}"
    inputs, outputs = ([(f"{word}{at}", kind, dims) for at in (0, 1)] for word in ("INPUT", "OUTPUT"))
    if not (root / name).exists():
        nodes = [helper.make_node("Identity", [f"INPUT{at}"], [f"OUTPUT{at}"]) for at in (0, 1)]
        write_onnx(root / name, nodes, inputs, outputs, rows=rows)
    return name


PLAIN = {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}
ENDS = {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"}
SAME_IN, SAME_OUT = {"OUTPUT0": "in0", "OUTPUT1": "in1"}, {"INPUT0": "in0", "INPUT1": "in1"}
LATE_IN, LATE_OUT = {"OUTPUT0": "out0", "OUTPUT1": "out1"}, {"INPUT0": "out0", "INPUT1": "out1"}


def write_ensemble(root: Path, name: str, config: str, *steps: str) -> Path:
    scheduling = "ensemble_scheduling {\n" + "".join(steps) + "}\n"
    return write_config(root / name, 'platform: "ensemble"\n' + config + scheduling)


def write_ensembles(root: Path, letters: str, rows: int) -> None:
    middle = "" if rows else "_nobatch"
    model = named(f"onnx{middle}", letters)
    nop = write_nop(root, letters, f"nop{middle}_{LETTERS[letters[0]]}", rows, [-1])
    config = config_of(letters, rows)
    before, after = one_step(nop, PLAIN, SAME_IN), one_step(nop, LATE_OUT, ENDS)
    write_labels(write_ensemble(root, f"simple_{model}", config, one_step(model, PLAIN, ENDS)))
    write_labels(write_ensemble(root, f"sequence_{model}", config, before, one_step(model, SAME_OUT, ENDS)))
    if "o" not in letters:
        write_labels(write_ensemble(root, f"fan_{model}", config, before, one_step(model, SAME_OUT, LATE_IN), after))


def write_mixed(root: Path) -> None:
    """Ensembles of several platforms, datatypes and ensembles, and of models with and without a batch."""
    nop = write_nop(root, "fff", "nop_FP32", 8, [-1])
    integers = write_nop(root, "iii", "nop_INT32", 8, [-1])
    rows = write_nop(root, "fff", "nop_rows_FP32", 0, [-1, 16])
    sums, onnx, python = named("onnx", "fff"), named("onnx", "iff"), named("python", "iff")
    configs = {
        letters: "max_batch_size: 8\n"
        + "".join(tensors(kind, ends) for kind, ends in zip(("input", "output"), ends_of(letters), strict=True))
        for letters in ("fff", "iff")
    }
    before, after = one_step(nop, PLAIN, SAME_IN), one_step(nop, LATE_OUT, ENDS)
    scripted = write_nop_script(root)
    platforms = one_step(scripted, PLAIN, {"OUTPUT__0": "in0", "OUTPUT__1": "in1"})
    write_ensemble(root, named("mix_platform", "fff"), configs["fff"], platforms, one_step(sums, SAME_OUT, ENDS, 1))
    typed = one_step(integers, PLAIN, SAME_IN) + one_step(python, SAME_OUT, LATE_IN) + after
    write_ensemble(root, named("mix_type", "iff"), configs["iff"], typed)
    write_ensemble(root, named("inner", "iff"), configs["iff"], one_step(onnx, PLAIN, ENDS))
    write_ensemble(root, named("mix_ensemble", "iff"), configs["iff"], one_step(named("inner", "iff"), PLAIN, ENDS))
    own = configs["iff"].replace('"OUTPUT0"', '"OUTPUT0" label_filename: "output0_labels.txt"')
    for name, word in (("wrong_label", "wrong"), ("label_override", "label")):
        write_labels(write_ensemble(root, named(name, "iff"), own, one_step(onnx, PLAIN, ENDS)), word)
    to_rows = one_step(sums, PLAIN, LATE_IN, 1) + one_step(rows, LATE_OUT, ENDS)
    from_rows = one_step(rows, PLAIN, SAME_IN) + one_step(sums, SAME_OUT, ENDS, 1)
    whole = configs["fff"].replace("max_batch_size: 8", "max_batch_size: 0").replace("[16]", "[8, 16]")
    for middle, config in (("", configs["fff"]), ("_nobatch", whole)):
        write_ensemble(root, named(f"batch_to_nobatch{middle}", "fff"), config, to_rows)
        write_ensemble(root, named(f"nobatch_to_batch{middle}", "fff"), config, from_rows)
    between = one_step(rows, SAME_OUT, LATE_IN) + one_step(sums, LATE_OUT, ENDS, 1)
    write_ensemble(root, named("mix_nobatch_batch", "fff"), configs["fff"], before, between)


def write_nop_script(root: Path) -> str:
    name = "nop_libtorch_FP32"
    inputs, outputs = ends_of("fff", "OUTPUT__")
    config = 'platform: "pytorch_libtorch"\nmax_batch_size: 8\n'
    base = write_config(root / name, config + tensors("input", inputs) + tensors("output", outputs))
    torch.jit.script(Nop()).save(str(base / "1" / "model.pt"))
    return name


def write_optional(root: Path) -> None:
    both = [("INPUT0", "TYPE_FP32", [1]), ("INPUT1", "TYPE_FP32", [1])]
    ends = tensors("input", both, "optional: true")
    ends += tensors("output", [("OUTPUT0", "TYPE_FP32", [1]), ("OUTPUT1", "TYPE_FP32", [1])])
    head, batching = "max_batch_size: 4\n" + ends, "dynamic_batching { preferred_batch_size: [ 4 ] %s }\n"
    name = "identity_2_float32"
    write_python(root / name, IDENTITY, head + batching % "max_queue_delay_microseconds: 5000000")
    write_python(root / "optional_identity", OPTIONAL, head)
    write_ensemble(root, f"ensemble_{name}", head, one_step(name, PLAIN, ENDS))
    pipeline = one_step(name, PLAIN, {"OUTPUT0": "internal_output"})
    write_ensemble(root, f"pipeline_{name}", head, pipeline, one_step(name, {"INPUT1": "internal_output"}, ENDS))
    connecting = one_step("optional_identity", PLAIN, LATE_IN), one_step("optional_identity", LATE_OUT, ENDS)
    write_ensemble(root, "optional_connecting_tensor", head, *connecting)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
