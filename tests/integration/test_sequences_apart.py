"""Sequences whose requests may not share a run, through a server: each answer is that of the request alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="makes the models")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

import torch
from onnx import TensorProto, helper, save

from tests.support.servers.in_process import ServerFixture, serving

pytestmark = pytest.mark.filterwarnings("ignore")
SLOTS = 2
TOGETHER = "max_queue_delay_microseconds: 300000"
DIRECT = f"direct {{ {TOGETHER} minimum_slot_utilization: 1 }}"
OLDEST = f"oldest {{ max_candidate_sequences: 2 {TOGETHER} preferred_batch_size: [ 2 ] }}"
HOW = {"direct": DIRECT, "oldest": OLDEST}
STATE = 'state { input_name: "s_in" output_name: "s_out" data_type: TYPE_FP32 dims: [ 1 ] }'
START = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }'


def config(how: str, more: str) -> str:
    tensors = 'input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }'
    sequences = f"{how} max_sequence_idle_microseconds: 60000000 {more}"
    return f"max_batch_size: {SLOTS} {tensors} sequence_batching {{ {sequences} }}"


def write_onnx(path: Path, nodes: list[Any], states: bool) -> None:
    """From x (and a state) to y, of a size of its own."""

    def value(name: str, dims: Any) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    inputs = [value("x", ["n", 1])] + ([value("s_in", ["n", 1])] if states else [value("START", ["n", 1])])
    outputs = [value("y", ["n", 1])] + ([value("s_out", ["n", 1])] if states else [])
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def fixed_two() -> list[Any]:
    """Minimum and maximum of all rows: two rows, however many come in."""
    return [
        helper.make_node("ReduceMin", ["x"], ["low"], axes=[0], keepdims=1),
        helper.make_node("ReduceMax", ["x"], ["high"], axes=[0], keepdims=1),
        helper.make_node("Concat", ["low", "high"], ["y"], axis=0),
    ]


class Centred(torch.nn.Module):
    """Of every row the difference to the mean of all; the sum of a sequence is its state."""

    def forward(self, x: torch.Tensor, s_in: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x - x.mean(0, keepdim=True) + s_in, "s_out": s_in + x}


class CentredScript(torch.nn.Module):
    """The same without a state that the server keeps, so that nobody knows what the script keeps itself."""

    def forward(self, x: torch.Tensor, START: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True) + START * 0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("apart")
    columns = torch.ones(2, 1), torch.zeros(2, 1)
    for name, how in HOW.items():
        models = {kind: root / f"{kind}_{name}" for kind in ("fixed", "mean_onnx", "centred", "script", "plain")}
        for base in models.values():
            (base / "1").mkdir(parents=True)
        identity = helper.make_node("Add", ["s_in", "x"], ["s_out"])
        write_onnx(models["fixed"] / "1" / "model.onnx", [*fixed_two(), identity], states=True)
        mean = [
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
            helper.make_node("Sub", ["x", "m"], ["d"]),
            helper.make_node("Add", ["d", "s_in"], ["y"]),
            identity,
        ]
        write_onnx(models["mean_onnx"] / "1" / "model.onnx", mean, states=True)
        shapes = {key: {0: torch.export.Dim("batch")} for key in ("x", "s_in")}
        program = torch.export.export(Centred(), columns, dynamic_shapes=shapes)
        torch.export.save(program, models["centred"] / "1" / "model.pt2")
        torch.jit.script(CentredScript()).save(str(models["script"] / "1" / "model.pt"))
        write_onnx(models["plain"] / "1" / "model.onnx", fixed_two(), states=False)
        y = 'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }'
        for kind, base in models.items():
            stateful = kind in ("fixed", "mean_onnx", "centred")
            output = "" if kind in ("fixed", "plain") else y.replace('"y"', '"output_0"') if kind == "script" else y
            (base / "config.pbtxt").write_text(config(how, STATE if stateful else START) + output)
    with serving(root, model_repository=str(root), port=0, rest_api_port=0, device="cpu") as found:
        yield found


def infer(
    served: ServerFixture, model: str, number: float, sequence: int, start: bool = False, end: bool = False
) -> list[float]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]}
    tree = {"inputs": [tensor], "parameters": {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}}
    request = urllib.request.Request(f"{served.url}/v2/models/{model}/infer", json.dumps(tree).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            (output,) = json.load(answer)["outputs"]
            return output["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from None


ALONE = {"fixed": lambda x, before: [x, x], "plain": lambda x, before: [x, x], "script": lambda x, before: [0.0]}
"""What a request gets that runs alone, where it is not what its sequence has sent before."""


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", ["fixed", "plain", "mean_onnx", "centred", "script"])
def test_sequences_at_once_are_answered_as_each_is_alone(served: ServerFixture, kind: str, how: str) -> None:
    expected = ALONE.get(kind, lambda x, before: [before])
    short = kind == "script"  # with Direct the one sequence waits for the end of the other
    sent = {1: [1.0, 2.0, 4.0], 2: [10.0, 20.0, 40.0]}
    with ThreadPoolExecutor(SLOTS) as pool:
        for turn in range(3):
            calls = {
                id: pool.submit(
                    infer, served, f"{kind}_{how}", numbers[turn], id, turn == 0 or short, turn == 2 or short
                )
                for id, numbers in sent.items()
            }
            for id, call in calls.items():
                assert call.result() == expected(sent[id][turn], sum(sent[id][:turn])), (turn, id)
