"""Inference of the V2 protocol over HTTP, against a real HTTP server."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.v2_fixture import BATCH, Repeater
from tests.support.servers.v2_http_fixture import TIMEOUT, V2HttpFixture, error, serving_v2
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.server.v2.http_replies import v2_error
from tfs_lite.testing.lifecycle.servables import OwnClockServable

SIMPLE = "/v2/models/simple/infer"
ROWS = np.arange(8, dtype=np.int32).reshape(2, 4)
LENGTH = "inference-header-content-length"


def json_body(**changes: Any) -> dict[str, Any]:
    inputs = [
        {"name": name, "shape": [2, 4], "datatype": "INT32", "data": ROWS.tolist()} for name in ("INPUT0", "INPUT1")
    ]
    return {"inputs": inputs, **changes}


def binary_body(**changes: Any) -> tuple[bytes, str]:
    inputs = [
        {"name": name, "shape": [2, 4], "datatype": "INT32", "parameters": {"binary_data_size": 32}}
        for name in ("INPUT0", "INPUT1")
    ]
    text = orjson.dumps({"inputs": inputs, **changes})
    return text + ROWS.tobytes() * 2, str(len(text))


@pytest.fixture(scope="module")
def served() -> Iterator[V2HttpFixture]:
    with serving_v2() as one:
        one.models.add_simple()
        one.models.add_simple(version=3)
        one.models.add("repeat", Repeater())
        one.models.add_echo("text", DataType.STRING, BATCH)
        one.models.add_echo("one text", DataType.STRING, 1)
        one.models.add_echo("half", DataType.HALF, BATCH)
        one.models.add_echo("float", DataType.FLOAT, BATCH, 5)
        one.models.add_echo("row", DataType.INT32, 4)
        yield one


def test_json_in_json_out(served: V2HttpFixture) -> None:
    answer = served.post(SIMPLE, json_body(id="a/1"))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {
        "id": "a/1",
        "model_name": "simple",
        "model_version": "3",
        "outputs": [
            {"name": "OUTPUT0", "datatype": "INT32", "shape": [2, 4], "data": (2 * ROWS).ravel().tolist()},
            {"name": "OUTPUT1", "datatype": "INT32", "shape": [2, 4], "data": [0] * 8},
        ],
    }


def test_version_of_the_path_answers(served: V2HttpFixture) -> None:
    answer = served.post("/v2/models/simple/versions/1/infer", json_body())
    assert answer.json()["model_version"] == "1"
    assert "id" not in answer.json()


def test_bytes_in_bytes_out(served: V2HttpFixture) -> None:
    body, length = binary_body(parameters={"binary_data_output": True}, outputs=[{"name": "OUTPUT0"}])
    answer = served.post(SIMPLE, body, Inference_Header_Content_Length=length)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/octet-stream")
    size = int(answer.headers[LENGTH])
    (output,) = orjson.loads(answer.content[:size])["outputs"]
    assert output == {"name": "OUTPUT0", "datatype": "INT32", "shape": [2, 4], "parameters": {"binary_data_size": 32}}
    assert answer.content[size:] == (2 * ROWS).tobytes()


def test_large_tensors_go_both_ways(served: V2HttpFixture) -> None:
    rows = np.random.default_rng(1).normal(size=(20_000, 5)).astype(np.float32)
    inputs = [{"name": "IN", "shape": [20_000, 5], "datatype": "FP32", "parameters": {"binary_data_size": rows.nbytes}}]
    text = orjson.dumps({"inputs": inputs, "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]})
    answer = served.post(
        "/v2/models/float/infer", text + rows.tobytes(), Inference_Header_Content_Length=str(len(text))
    )
    assert answer.content.endswith(rows.tobytes())
    inputs = [{"name": "IN", "shape": [20_000, 5], "datatype": "FP32", "data": rows.tolist()}]
    (output,) = served.post("/v2/models/float/infer", {"inputs": inputs}).json()["outputs"]
    assert np.array_equal(np.array(output["data"], np.float32).reshape(rows.shape), rows)


@pytest.mark.parametrize("zeros", ["0", "000"])
def test_body_may_be_the_only_tensor(served: V2HttpFixture, zeros: str) -> None:
    row = ROWS[0]
    answer = served.post("/v2/models/row/infer", row.tobytes(), Inference_Header_Content_Length=zeros)
    size = int(answer.headers[LENGTH])
    assert (orjson.loads(answer.content[:size])["outputs"][0]["shape"], answer.content[size:]) == ([4], row.tobytes())


def test_body_may_be_the_only_text(served: V2HttpFixture) -> None:
    answer = served.post("/v2/models/one%20text/infer", b"\xffabc", Inference_Header_Content_Length="0")
    assert answer.content[int(answer.headers[LENGTH]) :] == b"\4\0\0\0\xffabc"


RAW_WRONG = [
    ("simple", b"1234", "Raw request must only have 1 input"),
    ("float", b"123", "input byte size mismatch for input 'IN'"),
    ("row", b"123", "input byte size mismatch for input 'IN'"),
]


@pytest.mark.parametrize(("model", "body", "words"), RAW_WRONG, ids=[row[0] for row in RAW_WRONG])
def test_body_that_cannot_be_the_only_tensor_is_refused(served, model, body: bytes, words: str) -> None:
    answer = served.post(f"/v2/models/{model}/infer", body, Inference_Header_Content_Length="0")
    assert (answer.status_code, words in error(answer)) == (400, True)


def test_classes_are_texts(served: V2HttpFixture) -> None:
    inputs = [{"name": "IN", "shape": [1, 5], "datatype": "FP32", "data": [1, 5, 3, 4, 2]}]
    outputs = [{"name": "OUT", "parameters": {"classification": 2}}]
    (output,) = served.post("/v2/models/float/infer", {"inputs": inputs, "outputs": outputs}).json()["outputs"]
    assert output == {"name": "OUT", "datatype": "BYTES", "shape": [2], "data": ["5.000000:1", "4.000000:3"]}


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "identity", "Deflate"])
def test_packed_request_is_unpacked_and_its_lengths_are_those_of_the_unpacked(served, encoding: str) -> None:
    body, length = binary_body(outputs=[{"name": "OUTPUT0"}])
    pack = {"gzip": gzip.compress, "x-gzip": gzip.compress, "identity": bytes}.get(encoding, zlib.compress)
    answer = served.post(SIMPLE, pack(body), Inference_Header_Content_Length=length, Content_Encoding=encoding)
    assert answer.json()["outputs"][0]["data"] == (2 * ROWS).ravel().tolist()


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("deflate, gzip", "deflate"),
        ("br, gzip;q=0.5, deflate", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("identity, gzip", None),
        ("br", None),
        ("*", "gzip"),
        ("", None),
    ],
)
@pytest.mark.parametrize("rows", [500, 20_000])
def test_answer_is_packed_in_the_first_known_way(served, accept: str, encoding: str | None, rows: int) -> None:
    data = np.ones((rows, 5), np.float32)
    inputs = [{"name": "IN", "shape": [rows, 5], "datatype": "FP32", "data": data.ravel().tolist()}]
    body = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    answer = served.post("/v2/models/float/infer", body, Accept_Encoding=accept)
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.content[int(answer.headers[LENGTH]) :] == data.tobytes()


REFUSED: list[tuple[str, str, Any, dict[str, str], int, str]] = [
    ("unknown model", "/v2/models/nobody/infer", json_body(), {}, 404, "Request for unknown model: 'nobody' is not"),
    ("unknown version", "/v2/models/simple/versions/9/infer", json_body(), {}, 404, "version 9 is not found"),
    ("version no number", "/v2/models/simple/versions/x/infer", json_body(), {}, 400, "specified version string 'x'"),
    ("decoupled", "/v2/models/repeat/infer", json_body(), {}, 501, "doesn't support models with decoupled"),
    ("bad JSON", SIMPLE, b"{", {}, 400, "failed to parse the request JSON buffer"),
    ("header too long", SIMPLE, b"{}", {"Inference_Header_Content_Length": "3"}, 400, "only 2 bytes"),
    ("header no number", SIMPLE, b"{}", {"Inference_Header_Content_Length": "x"}, 400, "unable to parse Inference"),
    ("header below 0", SIMPLE, b"{}", {"Inference_Header_Content_Length": "-1"}, 400, "unable to parse Inference"),
    ("raw for nobody", "/v2/models/nobody/infer", b"", {"Inference_Header_Content_Length": "0"}, 404, "unknown model"),
    ("encoding", SIMPLE, b"{}", {"Content_Encoding": "br"}, 501, "Content-Encoding 'br' is not supported"),
    ("two encodings", SIMPLE, b"{}", {"Content_Encoding": "gzip, deflate"}, 501, "is not supported"),
    ("no gzip", SIMPLE, b"{}", {"Content_Encoding": "gzip"}, 400, "not valid gzip"),
    ("no deflate", SIMPLE, b"{}", {"Content_Encoding": "deflate"}, 400, "not valid deflate"),
    ("cut deflate", SIMPLE, zlib.compress(b"{}" * 50)[:-3], {"Content_Encoding": "deflate"}, 400, "ends too early"),
    ("too large", SIMPLE, bytes(9 << 20), {}, 413, "larger than 8388608 bytes"),
    ("bomb", SIMPLE, zlib.compress(bytes(20 << 20)), {"Content_Encoding": "deflate"}, 413, "(after unpacking)"),
    ("one input", SIMPLE, {"inputs": json_body()["inputs"][:1]}, {}, 400, "expected 2 inputs but got 1 inputs for"),
    ("twice", SIMPLE, {"inputs": json_body()["inputs"][:1] * 2}, {}, 400, "input 'INPUT0' already exists in request"),
    (
        "output twice",
        SIMPLE,
        json_body(outputs=[{"name": "OUTPUT0"}] * 2),
        {},
        400,
        "Duplicate output name 'OUTPUT0' is not allowed in a request",
    ),
    ("unknown output", SIMPLE, json_body(outputs=[{"name": "z"}]), {}, 400, "unexpected inference output 'z'"),
    ("model fails", SIMPLE, orjson.loads(orjson.dumps(json_body()).replace(b"0,1", b"13,1")), {}, 500, "bad luck"),
]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refusal_has_its_code_and_the_server_serves_on(
    served: V2HttpFixture, path: str, body: Any, headers: dict[str, str], status: int, words: str
) -> None:
    answer = served.post(path, body, **headers)
    assert answer.status_code == status
    if words:
        assert words in error(answer)
    assert served.post(SIMPLE, json_body()).status_code == 200


def test_output_without_json_form_is_refused(served: V2HttpFixture) -> None:
    text = orjson.dumps(
        {"inputs": [{"name": "IN", "shape": [1], "datatype": "FP16", "parameters": {"binary_data_size": 2}}]}
    )
    answer = served.post("/v2/models/half/infer", text + b"\0\0", Inference_Header_Content_Length=str(len(text)))
    assert (answer.status_code, "sending FP16 data via JSON" in error(answer)) == (400, True)


CODES = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.NOT_FOUND: 404,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.INTERNAL: 500,
    StatusCode.ALREADY_EXISTS: 400,
    StatusCode.CANCELLED: 400,
    StatusCode.UNKNOWN: 400,
    StatusCode.DEADLINE_EXCEEDED: 504,
    StatusCode.RESOURCE_EXHAUSTED: 429,
}


@pytest.mark.parametrize(("code", "status"), CODES.items(), ids=[code.name for code in CODES])
def test_codes_have_the_statuses_of_v2(code: StatusCode, status: int) -> None:
    answer = v2_error(ServingError(code, "why \ud800"))
    assert (answer.status, json.loads(answer.body)) == (status, {"error": r"why \ud800"})
    assert ("retry-after" in answer.headers) == (status == 503)


def test_request_is_counted_with_its_code(served: V2HttpFixture) -> None:
    before = served.models.count("OK", version="3"), served.models.count("INTERNAL", version="3")
    served.post(SIMPLE, json_body())
    served.post(SIMPLE, orjson.dumps(json_body()).replace(b"0,1", b"13,1"))
    assert (served.models.count("OK", version="3"), served.models.count("INTERNAL", version="3")) == (
        before[0] + 1,
        before[1] + 1,
    )


def test_deadline_ends_a_request_that_takes_too_long() -> None:
    with serving_v2(timeout_seconds=0.2) as served:
        gate = served.models.add_simple().model.gate
        gate.clear()
        answer = served.post(SIMPLE, json_body())
        assert (answer.status_code, "the deadline passed" in error(answer)) == (504, True)
        gate.set()


def ask(served: V2HttpFixture) -> socket.socket:
    """A connection on which a request was sent."""
    body = orjson.dumps(json_body())
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=TIMEOUT)
    connection.sendall(f"POST {SIMPLE} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_client_that_goes_ends_its_request() -> None:
    with serving_v2() as served:
        servable = served.models.add_simple()
        servable.model.gate.clear()
        with ask(served) as first:
            wait_until(lambda: servable.model.runs, "the model runs the first")
            with ask(served):
                wait_until(lambda: servable.pending == 1, "the second waits")
            wait_until(lambda: servable.pending == 0, "the second has left the queue")
            first.close()
        wait_until(lambda: served.models.count("CANCELLED") == 2, "both are counted as cancelled")
        servable.model.gate.set()


def test_request_that_the_queue_has_no_room_for_is_refused_before_its_body_has_come() -> None:
    with serving_v2() as served:
        model = served.models.add_simple().model
        served.models.servables["simple", 1].close()
        model.gate.clear()
        servable = OwnClockServable([model], ServableId("simple", 1), BatchSettings(max_queued_calls=1))
        served.models.servables["simple", 1] = servable
        with ask(served) as running:
            wait_until(lambda: model.runs, "the model runs the first")
            with ask(served), socket.create_connection(("127.0.0.1", served.port), timeout=TIMEOUT) as refused:
                wait_until(lambda: servable.pending == 1, "the queue is full")
                refused.sendall(f"POST {SIMPLE} HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n".encode())
                answer = refused.recv(65536)
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"The batch scheduling queue to which this task was submitted is full" in answer
                model.gate.set()
                assert running.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_server_that_drains_finishes_what_is_inside_and_then_lets_nobody_in() -> None:
    with serving_v2() as served:
        servable = served.models.add_simple()
        servable.model.gate.clear()
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(served.post(SIMPLE, json_body())))
        thread.start()
        wait_until(lambda: servable.model.runs, "one is inside")
        drained = threading.Thread(target=lambda: served.loop.run(served.http.calls.drain(TIMEOUT)))
        drained.start()
        servable.model.gate.set()
        thread.join(TIMEOUT)
        drained.join(TIMEOUT)
        assert answers[0].status_code == 200
        assert served.post(SIMPLE, json_body()).status_code == 503
