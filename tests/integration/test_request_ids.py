"""Ids of requests and times in answers, on every protocol and on both gRPC servers."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.models import TaggedArchives
from tfs_lite.protocols.messages import PredictRequest
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.protocols.v2 import messages as v2

TIMEOUT = 30.0
V2_BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}]}
PARTS = ("recv", "decode", "queue", "compute", "encode", "total")


@pytest.fixture(scope="module", params=["native", "grpcio"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("models")
    TaggedArchives().write_version(1, root / "m")
    with serving(root, model_name="m", model_base_path=str(root / "m"), grpc_server=request.param) as found:
        yield found


def predict_bytes(model: str = "m") -> bytes:
    request = PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].CopyFrom(encode(np.ones((1, 3), np.float32)))
    data: bytes = request.SerializeToString()
    return data


def v2_bytes(request_id: str = "") -> bytes:
    request = v2.ModelInferRequest(model_name="m", id=request_id, raw_input_contents=[np.ones(3, "f4").tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    data: bytes = request.SerializeToString()
    return data


PREDICT = "/tensorflow.serving.PredictionService/Predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"


def trailers(served: ServerFixture, path: str, data: bytes, **metadata: str) -> Mapping[str, str]:
    pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    with grpc.insecure_channel(served.target) as channel:
        try:
            _, call = channel.unary_unary(path).with_call(data, metadata=pairs, timeout=TIMEOUT)
        except grpc.RpcError as error:
            call = error
        return {name: value for name, value in call.trailing_metadata() or () if isinstance(value, str)}


def post(served: ServerFixture, path: str, body: object, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{served.url}{path}", json=body, headers=names, timeout=TIMEOUT)


@pytest.mark.parametrize(("path", "data"), [(PREDICT, predict_bytes()), (INFER, v2_bytes())], ids=["predict", "v2"])
def test_a_call_that_is_named_has_its_name_in_the_trailers(served: ServerFixture, path: str, data: bytes):
    for _ in range(3):  # the first is read in full, others are recognised
        assert trailers(served, path, data, x_request_id="abc-1")["x-request-id"] == "abc-1"
    assert "x-request-id" not in trailers(served, path, data)
    assert "x-request-id" not in trailers(served, path, data, x_request_id="not an id")


def test_a_call_that_fails_has_an_id_in_any_case(served: ServerFixture):
    assert trailers(served, PREDICT, predict_bytes("x"), x_request_id="abc")["x-request-id"] == "abc"
    assert re.fullmatch("[0-9a-f]{16}", trailers(served, PREDICT, predict_bytes("x"))["x-request-id"])


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/models/m:predict", {"instances": [[1.0, 2.0, 3.0]]}), ("/v2/models/m/infer", V2_BODY)],
    ids=["rest", "v2"],
)
def test_every_prediction_over_http_has_an_id_in_its_answer(served: ServerFixture, path: str, body: object):
    made = {post(served, path, body).headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in made)
    for _ in range(2):
        assert post(served, path, body, x_request_id="a.b:c_d-9").headers["x-request-id"] == "a.b:c_d-9"
    failed = post(served, path.replace("models/m", "models/x"), body)
    assert failed.status_code >= 400
    assert "x-request-id" in failed.headers


def test_a_v2_request_keeps_its_own_id_unless_its_head_names_another(served: ServerFixture):
    for _ in range(2):
        assert post(served, "/v2/models/m/infer", V2_BODY | {"id": "mine"}).headers["x-request-id"] == "mine"
        answer = post(served, "/v2/models/m/infer", V2_BODY | {"id": "mine"}, x_request_id="other")
        assert (answer.headers["x-request-id"], answer.json()["id"]) == ("other", "mine")
    assert "x-request-id" not in trailers(served, INFER, v2_bytes("mine"))


def test_an_id_cannot_add_a_header(served: ServerFixture):
    body = V2_BODY | {"id": "a\r\nset-cookie: b"}
    answer = post(served, "/v2/models/m/infer", body)
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])
    assert "set-cookie" not in answer.headers


def check_timing(line: str) -> None:
    found = {name: float(value) for name, value in re.findall(r"(\w+);dur=([0-9]+\.[0-9]{3})(?:, |$)", line)}
    assert tuple(found) == PARTS, line
    total = found.pop("total")
    assert sum(found.values()) <= total + 1e-9
    assert total > 0


def test_who_asks_is_told_how_long_it_took(served: ServerFixture):
    for path, body in (("/v1/models/m:predict", {"instances": [[1.0, 2.0, 3.0]]}), ("/v2/models/m/infer", V2_BODY)):
        check_timing(post(served, path, body, x_server_timing="1").headers["server-timing"])
        assert "server-timing" not in post(served, path, body).headers
    for method, data in ((PREDICT, predict_bytes()), (INFER, v2_bytes())):
        check_timing(trailers(served, method, data, x_server_timing="1")["server-timing"])
        assert "server-timing" not in trailers(served, method, data)


def test_the_flag_tells_everybody_or_nobody_and_the_log_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    TaggedArchives().write_version(1, tmp_path / "m")
    place: dict[str, Any] = {"model_name": "m", "model_base_path": str(tmp_path / "m")}
    with serving(tmp_path, **place, server_timing="always", access_log="all") as served:
        caplog.set_level(logging.INFO)
        check_timing(trailers(served, PREDICT, predict_bytes())["server-timing"])
        answer = post(served, "/v2/models/m/infer", V2_BODY)
        check_timing(answer.headers["server-timing"])
    lines = [record for record in caplog.records if record.name == "tfs_lite.access"]
    assert [line.__dict__["method"] for line in lines] == ["Predict", "ModelInfer"]
    assert lines[1].__dict__["request_id"] == answer.headers["x-request-id"]
    assert lines[1].__dict__["peer"] == "127.0.0.1"
    with serving(tmp_path, **place, server_timing="never") as served:
        assert "server-timing" not in post(served, "/v2/models/m/infer", V2_BODY, x_server_timing="1").headers


def test_traces_over_v2_are_lines_of_json_with_the_id(served: ServerFixture, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
    assert post(served, "/v2/models/m/trace/setting", settings).status_code == 200
    post(served, "/v2/models/m/infer", V2_BODY, x_request_id="abc")
    post(served, "/v2/models/m/trace/setting", {"trace_level": None, "trace_rate": None})
    (line,) = [json.loads(record.message) for record in caplog.records if record.name == "tfs_lite.trace"]
    assert (line["request_id"], line["model_name"], line["code"]) == ("abc", "m", "OK")
