"""The conditions on sizes that an exported program carries, through a server, on every protocol: a request outside of
them is refused in words, and a batch of several requests keeps to them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from torch.export import Dim

import tfs_lite
from tests.support.servers.in_process import ServerFixture, serving
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.v2 import messages as v2

pytestmark = pytest.mark.filterwarnings("ignore")
WAIT = "dynamic_batching { max_queue_delay_microseconds: 300000 preferred_batch_size: [ 64 ] }"


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x * 2}


class Blocks(torch.nn.Module):
    """Every row becomes the sum of its block of eight. Other numbers of rows run as well, and are wrong."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        count = x.shape[0] // 8
        return {"y": x[: count * 8].reshape(count, 8, 3).sum(1)}


class Eighths(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x * 2 if x.shape[0] % 8 == 0 else x}


class Longer(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x.sum(1) + 1 if x.shape[1] > y.shape[1] else y.sum(1)}


class NotSeven(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x * 2 if x.shape[0] != 7 else x}


class Checked(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        count = x.max().to(torch.int64).item()
        torch._check(count >= 2)
        torch._check(count <= 5)
        return {"y": x.sum(0, keepdim=True) + torch.zeros(count, 1)}


def publish(base: Path, module: torch.nn.Module, args: tuple[torch.Tensor, ...], shapes: Any, config: str = "") -> None:
    (base / "1").mkdir(parents=True)
    torch.export.save(torch.export.export(module, args, dynamic_shapes=shapes), base / "1" / "model.pt2")
    if config:
        (base / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("conditions")
    rows = torch.ones(16, 3)
    five = {"x": {0: Dim("b", min=5)}}
    publish(root / "five", Doubled(), (rows,), five)
    tfs_lite.save(Doubled(), root / "saved", example_inputs=(rows,), dynamic_dims={"x": {0: Dim("batch", min=5)}})
    publish(root / "blocks", Blocks(), (rows,), {"x": {0: 8 * Dim("blocks")}})
    publish(root / "auto", Eighths(), (rows,), {"x": {0: Dim.AUTO}})
    longer = {"x": {0: Dim.DYNAMIC, 1: Dim.AUTO}, "y": {0: Dim.DYNAMIC, 1: Dim.AUTO}}
    publish(root / "longer", Longer(), (torch.ones(4, 6), torch.ones(4, 5)), longer)
    publish(root / "values", Checked(), (torch.full((4, 3), 3.0),), {"x": {0: Dim.DYNAMIC}})
    publish(root / "not_seven", NotSeven(), (rows,), {"x": {0: Dim.AUTO}}, f"max_batch_size: 64 {WAIT}")
    with serving(root, model_repository=str(root), port=0, rest_api_port=0, device="cpu") as found:
        yield found


def http(served: ServerFixture, path: str, tree: Any) -> str:
    """The refusal; empty for an answer."""
    request = urllib.request.Request(served.url + path, json.dumps(tree).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
            return ""
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        return json.loads(text)["error"] if error.code == 400 else f"{error.code}: {text}"


def rest(served: ServerFixture, model: str, count: int) -> str:
    return http(served, f"/v1/models/{model}:predict", {"instances": [[0.5, 1.5, 2.5]] * count})


def predict(served: ServerFixture, model: str, count: int) -> str:
    return sent(served, model, x=np.ones((count, 3), np.float32))


def sent(served: ServerFixture, model: str, **inputs: Any) -> str:
    try:
        served.client.predict(model, inputs)
    except ServingError as error:
        return error.status.message if error.code is StatusCode.INVALID_ARGUMENT else str(error)
    return ""


def v2_http(served: ServerFixture, model: str, count: int) -> str:
    tensor = {"name": "x", "datatype": "FP32", "shape": [count, 3], "data": [[1.5, 2.5, 0.5]] * count}
    return http(served, f"/v2/models/{model}/infer", {"inputs": [tensor]})


def v2_grpc(served: ServerFixture, model: str, count: int) -> str:
    request = v2.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[count, 3]).contents.fp32_contents.extend([1.5] * 3 * count)
    with grpc.insecure_channel(served.target) as channel:
        try:
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request.SerializeToString(), timeout=30)
        except grpc.RpcError as error:
            return str(error.details() if error.code() is grpc.StatusCode.INVALID_ARGUMENT else error)
    return ""


PROTOCOLS = [rest, predict, v2_http, v2_grpc]


@pytest.mark.parametrize("ask", PROTOCOLS)
@pytest.mark.parametrize("model", ["five", "saved"])
def test_fewer_rows_than_the_program_takes_are_refused(served: ServerFixture, model: str, ask: Any) -> None:
    for count in (5, 8, 5):
        assert ask(served, model, count) == ""
    for count in (4, 1, 4):
        wanted = f"input x has size {count} in dimension 0, at least 5 is needed (model {model})"
        assert ask(served, model, count) == wanted


@pytest.mark.parametrize("ask", PROTOCOLS)
def test_only_multiples_of_eight_rows_are_taken(served: ServerFixture, ask: Any) -> None:
    for count in (16, 24):
        assert ask(served, "blocks", count) == ""
        assert ask(served, "auto", count) == ""
    for count in (12, 17):
        wanted = f"input x has size {count} in dimension 0, which has to be a multiple of 8 (model blocks)"
        assert ask(served, "blocks", count) == wanted
        assert ask(served, "auto", count) == wanted.replace("blocks", "auto")


def test_a_condition_between_two_inputs_is_named_with_both_sizes(served: ServerFixture) -> None:
    def ask(x: int, y: int) -> str:
        return sent(served, "longer", x=np.ones((4, x), np.float32), y=np.ones((4, y), np.float32))

    assert ask(6, 5) == ask(3, 2) == ""
    assert ask(5, 6) == (
        "the sizes do not fit: x.shape[1] > y.shape[1] is needed, x.shape[1] is 5 and y.shape[1] is 6 (model longer)"
    )


def test_a_value_that_the_program_checks_is_refused_and_not_an_internal_error(served: ServerFixture) -> None:
    assert sent(served, "values", x=np.full((4, 3), 3, np.float32)) == ""
    found = sent(served, "values", x=np.full((4, 3), 9, np.float32))
    assert found.startswith("model values version 1 refuses the inputs")
    assert "<= 5" in found


def test_requests_that_a_program_takes_alone_and_not_together_are_answered(served: ServerFixture) -> None:
    """Three and four rows are seven, which it does not take."""

    def ask(count: int) -> np.ndarray:
        x = np.full((count, 3), count, np.float32)
        answer: np.ndarray = served.client.predict("not_seven", {"x": x}).outputs["y"]
        return answer

    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            three, four = pool.map(ask, (3, 4))
            np.testing.assert_array_equal(three, np.full((3, 3), 6, np.float32))
            np.testing.assert_array_equal(four, np.full((4, 3), 8, np.float32))
    assert "7" in predict(served, "not_seven", 7)
