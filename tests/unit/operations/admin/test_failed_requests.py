"""A failed request is found by its id afterwards, whichever protocol it came by, with the stage in which it failed."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.language.tiny_version import BYTES_OF_TEXT, write_version
from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.process import wait_until
from tests.support.servers.v2_client import V2Client
from tfs_lite.protocols import messages as predict_pb2

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SECRET = 424242.5
"""An input that must not be seen anywhere."""
CONFIG = """
platform: "python"
max_batch_size: 4
dynamic_batching { max_queue_delay_microseconds: 100000 default_queue_policy { max_queue_size: 4 } }
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
SOURCE = """
import pathlib
import time

GATE = pathlib.Path({gate!r})


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        x = inputs["x"]
        if (x[:, 0] < 0).any():
            raise ValueError("no negative numbers")
        if (x[:, 1] == 7).any():
            (GATE / "entered").touch()
            latest = time.monotonic() + 60
            while not (GATE / "open").exists() and time.monotonic() < latest:
                time.sleep(0.005)
        return {{"y": x}}
"""
"""Fails for rows that begin with a negative number, and waits at 7 in the second place."""
HALVES = """
import torch


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"].half()}
"""
"""Answers what V2's JSON has no form for."""
STREAMS = """
import pathlib
import time

GATE = pathlib.Path({gate!r})


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        yield {{"y": inputs["x"]}}
        latest = time.monotonic() + 60
        while not (GATE / "stream-open").exists() and time.monotonic() < latest:
            time.sleep(0.005)
        yield {{"y": inputs["x"]}}
"""
"""Gives one answer, and waits before the second one."""
STREAMS_CONFIG = """
platform: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
model_transaction_policy { decoupled: true }
"""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


def write_model(version: Path, source: str, config: str) -> None:
    version.mkdir(parents=True)
    (version / "model.py").write_text(source)
    (version / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def fixture(gate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("served")
    halves = CONFIG.replace('"y" data_type: TYPE_FP32', '"y" data_type: TYPE_FP16')
    write_model(root / "fragile" / "3", SOURCE.format(gate=str(gate)), CONFIG)
    write_model(root / "halves" / "1", HALVES, halves)
    write_model(root / "streams" / "1", STREAMS.format(gate=str(gate.parent)), STREAMS_CONFIG)
    write_version(root / "lm" / "1", BYTES_OF_TEXT)
    trusted = tuple(str(root / name) for name in ("fragile", "halves", "streams"))
    with serving(root, ready=False, model_repository=str(root), trusted_model_base_paths=trusted) as one:
        one.server.wait_ready(180)  # the language model's library takes its time on a busy machine
        yield one


@pytest.fixture(autouse=True)
def closed_gate(gate: Path) -> Iterator[None]:
    yield
    for file in gate.iterdir():
        file.unlink()


def get(fixture: ServerFixture, id: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{fixture.url}/v1/requests/{id}", timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def found(fixture: ServerFixture, id: str) -> dict[str, Any]:
    """The one failed request with this id."""
    status, answer = get(fixture, id)
    assert status == 200, answer
    (request,) = answer["requests"]
    assert str(SECRET) not in json.dumps(answer)
    return dict(request)


def failed(fixture: ServerFixture, id: str) -> dict[str, Any]:
    """Waits for it: the end of a request that its client has given up is not known at once."""
    wait_until(lambda: get(fixture, id)[0] == 200, f"the request {id} is kept", 30)
    return found(fixture, id)


def row(first: float = 1.0, second: float = 2.0) -> list[float]:
    return [first, second, SECRET]


def over_grpc(fixture: ServerFixture, id: str, first: float, second: float, model: str, **rest: Any) -> None:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    tensor = request.inputs["x"]
    tensor.dtype = 1
    values = row(first, second)[: rest.get("width", 3)]
    for size in (1, len(values)):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend(values)
    metadata = (("x-request-id", id), ("traceparent", PARENT))
    with grpc.insecure_channel(fixture.target) as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=predict_pb2.PredictRequest.SerializeToString,
            response_deserializer=predict_pb2.PredictResponse.FromString,
        )
        call(request, timeout=rest.get("timeout", 30.0), metadata=metadata)


def post(fixture: ServerFixture, path: str, id: str, body: bytes, timeout: float = 30.0) -> None:
    headers = {"content-type": "application/json", "x-request-id": id, "traceparent": PARENT}
    with urllib.request.urlopen(
        urllib.request.Request(f"{fixture.url}{path}", body, headers), timeout=timeout
    ) as answer:
        answer.read()


def over_rest(fixture: ServerFixture, id: str, first: float, second: float, model: str, **rest: Any) -> None:
    values = row(first, second)[: rest.get("width", 3)]
    post(fixture, f"/v1/models/{model}:predict", id, json.dumps({"instances": [values]}).encode())


def over_v2_grpc(fixture: ServerFixture, id: str, first: float, second: float, model: str, **rest: Any) -> None:
    values = row(first, second)[: rest.get("width", 3)]
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(values)], "contents": {"fp32_contents": values}}
    with grpc.insecure_channel(fixture.target) as channel:
        V2Client(channel).call("ModelInfer", model_name=model, id=id, inputs=[tensor])


def over_v2_http(fixture: ServerFixture, id: str, first: float, second: float, model: str, **rest: Any) -> None:
    values = row(first, second)[: rest.get("width", 3)]
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    post(fixture, f"/v2/models/{model}/infer", id, json.dumps({"inputs": [tensor]}).encode())


PROTOCOLS: dict[str, Callable[..., None]] = {
    "gRPC": over_grpc,
    "REST": over_rest,
    "V2 over gRPC": over_v2_grpc,
    "V2 over HTTP": over_v2_http,
}
ERRORS = (grpc.RpcError, urllib.error.HTTPError)
protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


@protocols
def test_request_that_the_model_cannot_run(fixture: ServerFixture, protocol: str) -> None:
    id = f"run-{protocol.replace(' ', '-')}"
    with pytest.raises(ERRORS):
        PROTOCOLS[protocol](fixture, id, -1.0, 2.0, "fragile")
    request = found(fixture, id)
    assert (request["stage"], request["batch"], request["protocol"]) == ("run", "alone", protocol)
    assert (request["model"], request["version"], request["rows"], request["batch_rows"]) == ("fragile", 3, 1, 1)
    assert "no negative numbers" in request["message"]
    assert request["peer"] == "127.0.0.1"
    assert 0 < request["run_seconds"] <= request["seconds"]
    assert request["queue_seconds"] > 0
    if protocol != "V2 over gRPC":
        assert request["trace_id"] == TRACE
        assert id in [each["request_id"] for each in get(fixture, TRACE)[1]["requests"]]


@protocols
def test_request_for_a_model_that_is_not_served(fixture: ServerFixture, protocol: str) -> None:
    id = f"route-{protocol.replace(' ', '-')}"
    with pytest.raises(ERRORS):
        PROTOCOLS[protocol](fixture, id, 1.0, 2.0, "nobody")
    request = found(fixture, id)
    assert (request["stage"], request["model"], request["version"]) == ("route", "nobody", None)
    assert request["code"] == "NOT_FOUND"


@protocols
def test_request_whose_inputs_do_not_fit(fixture: ServerFixture, protocol: str) -> None:
    id = f"check-{protocol.replace(' ', '-')}"
    with pytest.raises(ERRORS):
        PROTOCOLS[protocol](fixture, id, 1.0, 2.0, "fragile", width=2)
    request = found(fixture, id)
    assert (request["stage"], request["code"], request["version"]) == ("check", "INVALID_ARGUMENT", 3)


@pytest.mark.parametrize("path", ["/v1/models/fragile:predict", "/v2/models/fragile/infer"])
def test_body_that_cannot_be_read(fixture: ServerFixture, path: str) -> None:
    id = f"decode{path.replace('/', '.').replace(':', '.')}"
    with pytest.raises(urllib.error.HTTPError):
        post(fixture, path, id, b'{"instances": [[1, 2')
    request = found(fixture, id)
    assert (request["stage"], request["code"]) == ("decode", "INVALID_ARGUMENT")


def test_request_whose_time_is_up_in_the_queue(fixture: ServerFixture, gate: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        runs = pool.submit(over_rest, fixture, "long", 1.0, 7.0, "fragile")
        wait_until(lambda: (gate / "entered").exists(), "the model is busy", 30)
        with pytest.raises(grpc.RpcError):
            over_grpc(fixture, "late", 1.0, 2.0, "fragile", timeout=2.0)
        request = failed(fixture, "late")
        (gate / "open").touch()
        runs.result(30)
    assert (request["stage"], request["batch"]) == ("queue", "")
    assert request["code"] in ("DEADLINE_EXCEEDED", "CANCELLED")  # the client's own clock may be the first
    assert request["run_seconds"] == 0


def test_request_that_a_full_queue_refuses(fixture: ServerFixture, gate: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = pool.submit(over_rest, fixture, "busy", 1.0, 7.0, "fragile")
        wait_until(lambda: (gate / "entered").exists(), "the model is busy", 30)
        others = [pool.submit(over_rest, fixture, f"waits-{n}", 1.0, 2.0, "fragile") for n in range(4)]
        core = fixture.server.core
        wait_until(lambda: sum(count for _, count in core.view.queues()) >= 4, "four requests wait", 30)
        with pytest.raises(grpc.RpcError):
            over_grpc(fixture, "one-too-many", 1.0, 2.0, "fragile")
        (gate / "open").touch()
        for each in (runs, *others):
            each.result(30)
    request = found(fixture, "one-too-many")
    assert (request["stage"], request["batch"]) == ("queue", "")
    assert request["code"] in ("UNAVAILABLE", "RESOURCE_EXHAUSTED")


def test_the_guilty_request_of_a_batch_is_told_from_its_neighbours(fixture: ServerFixture, gate: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        busy = pool.submit(over_rest, fixture, "first", 1.0, 7.0, "fragile")
        wait_until(lambda: (gate / "entered").exists(), "the model is busy", 30)
        good = [pool.submit(over_rest, fixture, f"good-{n}", 1.0, 2.0, "fragile") for n in range(3)]
        bad = pool.submit(over_grpc, fixture, "guilty", -1.0, 2.0, "fragile")
        core = fixture.server.core
        wait_until(lambda: sum(count for _, count in core.view.queues()) >= 4, "a batch waits", 30)
        (gate / "open").touch()
        for each in (busy, *good):
            each.result(30)
        with pytest.raises(grpc.RpcError):
            bad.result(30)
    request = found(fixture, "guilty")
    assert (request["stage"], request["batch"]) == ("run", "guilty")
    assert (request["rows"], request["batch_rows"]) == (1, 1)
    assert get(fixture, "good-0")[0] == 404


def test_answer_that_its_protocol_cannot_write(fixture: ServerFixture) -> None:
    with pytest.raises(urllib.error.HTTPError):
        over_v2_http(fixture, "halves", 1.0, 2.0, "halves")
    request = found(fixture, "halves")
    assert (request["stage"], request["version"], request["batch"]) == ("encode", 1, "")
    assert request["run_seconds"] > 0


def test_openai_requests_that_fail(fixture: ServerFixture) -> None:
    text = "a prompt that nobody may see"

    def ask(id: str, **fields: Any) -> None:
        body = json.dumps({"model": "lm", "prompt": text, **fields}).encode()
        with pytest.raises(urllib.error.HTTPError):
            post(fixture, "/openai/v1/completions", id, body)

    ask("ai-route", model="nobody")
    ask("ai-decode", max_tokens="many")
    ask("ai-check", max_tokens=100_000)
    stages = {id: found(fixture, id) for id in ("ai-route", "ai-decode", "ai-check")}
    assert {id: request["stage"] for id, request in stages.items()} == {
        "ai-route": "route",
        "ai-decode": "decode",
        "ai-check": "check",
    }
    for request in stages.values():
        assert request["protocol"] == "OpenAI"
        assert text not in json.dumps(request)
        assert request["trace_id"] == TRACE


def test_stream_whose_reader_has_gone_ends_in_send(fixture: ServerFixture, gate: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", fixture.server.rest_api_port or 0, timeout=30)
    headers = {"content-type": "application/json", "x-request-id": "gone"}
    try:
        connection.request("POST", "/v2/models/streams/generate_stream", b'{"x": 1}', headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.readline().startswith(b"data: ")
        answer.close()
        connection.close()
        request = failed(fixture, "gone")
    finally:
        (gate.parent / "stream-open").touch()
    assert (request["stage"], request["code"], request["model"]) == ("send", "CANCELLED", "streams")


def test_a_request_that_was_not_kept_says_how_far_the_ring_reaches(fixture: ServerFixture) -> None:
    over_rest(fixture, "fine", 1.0, 2.0, "fragile")
    status, answer = get(fixture, "fine")
    assert status == 404
    assert "no failed request with the id 'fine' was kept; the ring reaches back to 20" in answer["error"]


def test_failed_requests_are_in_the_explanation_of_their_model(fixture: ServerFixture) -> None:
    with pytest.raises(urllib.error.HTTPError):
        over_rest(fixture, "explained", -1.0, 2.0, "fragile")
    with urllib.request.urlopen(f"{fixture.url}/v1/models/fragile:explain", timeout=30) as answer:
        requests = json.loads(answer.read())["requests"]
    assert requests[0]["request_id"] == "explained"
    assert requests[0]["stage"] == "run"


def test_threads_may_read_while_requests_fail(fixture: ServerFixture) -> None:
    stop = threading.Event()

    def fail() -> None:
        while not stop.is_set():
            with pytest.raises(urllib.error.HTTPError):
                over_rest(fixture, "many", 1.0, 2.0, "nobody")

    with ThreadPoolExecutor(2) as pool:
        failing = [pool.submit(fail) for _ in range(2)]
        try:
            for _ in range(50):
                assert get(fixture, "nothing")[0] == 404
        finally:
            stop.set()
        for each in failing:
            each.result(30)
