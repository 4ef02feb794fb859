"""What ``max_batch_size`` means on every protocol: the most rows of a request, with and without a batcher. And whose
request was refused: every refusal names the model."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

import tfs_lite
from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.process import wait_until
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.v2 import messages as v2

SOURCE = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"] * 2}
"""
TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
MODELS = {
    "alone": ('platform: "python" max_batch_size: 4' + TENSORS, SOURCE),
    "batched": ('platform: "python" max_batch_size: 4 dynamic_batching {}' + TENSORS, SOURCE),
    "undeclared": ("max_batch_size: 4", ""),
    "pair": (
        'platform: "ensemble" max_batch_size: 4'
        + TENSORS
        + 'ensemble_scheduling { step { model_name: "alone" model_version: -1 '
        'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }',
        None,
    ),
    "wide": (
        'platform: "ensemble" max_batch_size: 8'
        + TENSORS
        + 'ensemble_scheduling { step { model_name: "undeclared" model_version: -1 '
        'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }',
        None,
    ),
}
LIMITED = ["alone", "batched", "undeclared", "pair"]


class Doubled(torch.nn.Module):
    def forward(self, x):
        return {"y": x * 2}


def write(root: Path, name: str, config: str, source: str | None) -> None:
    base = root / name
    if source == "":
        tfs_lite.save(Doubled(), base, example_inputs=(torch.zeros(3, 2),), version=1)
    else:
        (base / "1").mkdir(parents=True)
        if source:
            (base / "1" / "model.py").write_text(source)
    (base / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("limits")
    for name, (config, source) in MODELS.items():
        write(root, name, config, source)
    fields = {"port": 0, "rest_api_port": 0, "device": "cpu", "max_num_load_retries": 0}
    trusted = {"trusted_model_base_paths": (f"{root}/**",)}
    with serving(root, model_repository=str(root), **fields, **trusted) as found:
        ready = {1: VersionState.AVAILABLE}
        wait_until(lambda: all(found.states(name) == ready for name in LIMITED), "the models are available", 60)
        yield found


def http(served: ServerFixture, path: str, tree: Any = None) -> tuple[int, dict[str, Any]]:
    data = None if tree is None else json.dumps(tree).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(served.url + path, data), timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def rows(count: int) -> list[list[float]]:
    return [[1.5, 2.5]] * count


def rest(served: ServerFixture, model: str, count: int) -> str:
    code, answer = http(served, f"/v1/models/{model}:predict", {"instances": rows(count)})
    assert code in (200, 400)
    return str(answer.get("error", ""))


def predict(served: ServerFixture, model: str, count: int) -> str:
    try:
        served.client.predict(model, {"x": np.array(rows(count), np.float32)})
    except ServingError as error:
        return error.status.message if error.code is StatusCode.INVALID_ARGUMENT else str(error)
    return ""


def v2_http(served: ServerFixture, model: str, count: int) -> str:
    tensor = {"name": "x", "datatype": "FP32", "shape": [count, 2], "data": rows(count)}
    code, answer = http(served, f"/v2/models/{model}/infer", {"inputs": [tensor]})
    assert code in (200, 400)
    return str(answer.get("error", ""))


def v2_grpc(served: ServerFixture, model: str, count: int) -> str:
    request = v2.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[count, 2]).contents.fp32_contents.extend([1.5, 2.5] * count)
    with grpc.insecure_channel(served.target) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        try:
            call(request.SerializeToString(), timeout=30)
        except grpc.RpcError as error:
            return str(error.details() if error.code() is grpc.StatusCode.INVALID_ARGUMENT else error)
    return ""


PROTOCOLS: list[Callable[[ServerFixture, str, int], str]] = [rest, predict, v2_http, v2_grpc]


@pytest.mark.parametrize("ask", PROTOCOLS)
@pytest.mark.parametrize("model", LIMITED)
def test_a_request_has_at_most_max_batch_size_rows(served: ServerFixture, model: str, ask: Any) -> None:
    assert ask(served, model, 4) == ""
    assert ask(served, model, 5) == f"inference request batch-size must be <= 4 for '{model}'"


def test_ensemble_of_more_rows_than_its_model_takes_is_not_loaded(served: ServerFixture) -> None:
    wait_until(lambda: all(not status.status.ok for status in served.status("wide").values()), "it has failed", 30)
    (status,) = served.status("wide").values()
    assert "step 0 (model undeclared) takes at most 4 rows, fewer than the max_batch_size 8" in status.status.message


@pytest.mark.parametrize("model", LIMITED)
def test_rows_are_counted_and_not_requests(served: ServerFixture, model: str) -> None:
    def counts() -> tuple[int, int, float, float]:
        _, tree = http(served, f"/v2/models/{model}/stats")
        (found,) = tree["model_stats"]
        with urllib.request.urlopen(f"{served.url}/metrics", timeout=30) as answer:
            samples = dict(
                line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")
            )
        labels = f'{{model="{model}",version="1"}}'
        return (
            found["inference_count"],
            found["execution_count"],
            float(samples[f"nv_inference_count{labels}"]),
            float(samples.get(f"tfs_lite_batch_size_sum{labels}", 0.0)),
        )

    assert rest(served, model, 1) == ""
    before = counts()
    assert rest(served, model, 3) == ""
    assert predict(served, model, 2) == ""
    after = counts()
    own_runs = 0 if model == "pair" else 5
    assert [new - old for new, old in zip(after, before, strict=True)] == [5, 2, 5, own_runs]


@pytest.mark.parametrize(
    ("path", "tree"),
    [
        ("/v1/models/alone:predict", {"instances": [[1.0]]}),
        ("/v1/models/alone:predict", {"instances": [{"z": [1.0, 2.0]}]}),
        ("/v1/models/alone:predict", {"inputs": {"z": 1}}),
        ("/v1/models/alone:predict", {"inputs": {"x": "text"}}),
        ("/v1/models/alone:predict", {"signature_name": "none", "instances": [[1.0, 2.0]]}),
        ("/v1/models/alone:classify", {"examples": [{"x": [1.0, 2.0]}]}),
        ("/v1/models/alone:regress", {"signature_name": "none", "examples": [{"x": [1.0, 2.0]}]}),
        ("/v2/models/alone/infer", {"inputs": [{"name": "z", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}),
        (
            "/v2/models/alone/infer",
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}] * 2},
        ),
    ],
)
def test_refusals_name_the_model(served: ServerFixture, path: str, tree: Any) -> None:
    code, answer = http(served, path, tree)
    assert code == 400
    assert "alone" in answer["error"], answer


def test_refusals_of_predict_name_model_and_input(served: ServerFixture) -> None:
    for inputs in ({"z": rows(1)}, {"x": [1.0]}, {"x": rows(1), "z": rows(1)}):
        with pytest.raises(ServingError) as caught:
            served.client.predict("alone", {name: np.array(value, np.float32) for name, value in inputs.items()})
        message = caught.value.status.message
        assert caught.value.code is StatusCode.INVALID_ARGUMENT
        assert "alone" in message
        assert any(name in message.replace("(model alone)", "") for name in inputs)
