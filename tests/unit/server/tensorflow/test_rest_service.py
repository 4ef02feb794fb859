"""Each verb over a real HTTP server: answers, refusals, forms, and what the log gets."""

from __future__ import annotations

import base64
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import ormsgpack
import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.rest_fixture import ANSWER, ROW, RestFixture, error, serving_rest
from tests.support.servers.v2_fixture import FunctionModel
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType, Signature, TensorSpec
from tfs_lite.protocols.tensorflow.tensor_proto import decode
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.testing.lifecycle.servables import OwnClockServable

Serve = Callable[..., RestFixture]


CALLS = [
    ("predict", ROW, ANSWER),
    ("predict", {"instances": [{"x": [1, 2, 3]}]}, ANSWER),
    ("predict", {"inputs": [[1, 2, 3]]}, {"outputs": [[8.0, 9.0, 10.0]]}),
    ("predict", {"inputs": {"x": [[1, 2, 3]]}}, {"outputs": [[8.0, 9.0, 10.0]]}),
    (
        "predict",
        {"signature_name": "two", "instances": [{"a": 3, "b": 1}]},
        {"predictions": [{"sum": 4.0, "difference": 2.0}]},
    ),
    (
        "predict",
        {"signature_name": "text", "inputs": ["hi", {"b64": base64.b64encode(b"\xff").decode()}]},
        {"outputs": {"text": ["hi", {"b64": "/w=="}], "as_bytes": [{"b64": "aGk="}, {"b64": "/w=="}]}},
    ),
    (
        "classify",
        {"signature_name": "classify", "examples": [{"x": 1.0}, {"x": 2.0}]},
        {"results": [[["", 1.0], ["", -1.0]], [["", 2.0], ["", -2.0]]]},
    ),
    (
        "regress",
        {"signature_name": "regress", "context": {"x": 4.0}, "examples": [{}, {"x": 3.0}]},
        {"results": [2.0, 1.5]},
    ),
]


@pytest.mark.parametrize(("verb", "body", "expected"), CALLS)
def test_each_verb_answers(shared: RestFixture, verb: str, body: dict[str, Any], expected: dict[str, Any]) -> None:
    before = shared.count("OK", verb.capitalize())
    answer = shared.post(body, f"/v1/models/m:{verb}")
    assert (answer.status_code, answer.json()) == (200, expected)
    assert shared.count("OK", verb.capitalize()) == before + 1


REFUSED = [
    ("predict", b"", 400, "The document is empty"),
    ("predict", b"{", 400, "JSON Parse error"),
    ("predict", b"[]", 400, "Is not object"),
    ("predict", b"{}", 400, "Missing 'inputs' or 'instances' key"),
    ("predict", b'{"signature_name": 1}', 400, "'signature_name' key must be a string value"),
    ("predict", b'{"signature_name": "no", "inputs": 1}', 400, 'Serving signature name: "no" not found'),
    ("predict", b'{"inputs": [[1, 2]]}', 400, "input x"),
    ("classify", b'{"examples": []}', 400, "'examples' value is an empty array"),
    ("regress", b'{"signature_name": "no", "examples": [{"x": 1.0}]}', 400, "no"),
    ("predict", b'{"signature_name": "broken", "inputs": [1]}', 503, "the queue is full"),
]


@pytest.mark.parametrize(("verb", "body", "status", "words"), REFUSED)
def test_request_that_cannot_be_answered_is_refused(
    shared: RestFixture, verb: str, body: bytes, status: int, words: str
) -> None:
    answer = shared.post(body, f"/v1/models/m:{verb}")
    assert answer.status_code == status
    assert words in error(answer)
    assert not shared.log.offers


def test_body_is_looked_at_before_the_model(shared: RestFixture) -> None:
    assert shared.post(b"{", "/v1/models/nobody:predict").status_code == 400
    answer = shared.post(b"{}", "/v1/models/nobody:predict")
    assert (answer.status_code, error(answer)) == (404, "Servable not found for request: Latest(nobody)")
    assert shared.count("NOT_FOUND", "Predict", "unknown", "") == 1


@pytest.mark.parametrize("verb", ["classify", "regress"])
def test_msgpack_is_for_predict_only(shared: RestFixture, verb: str) -> None:
    answer = shared.post(ormsgpack.packb({}), f"/v1/models/m:{verb}", content_type="application/msgpack")
    assert answer.status_code == 415
    assert "application/msgpack is for Predict" in error(answer)


@pytest.mark.parametrize(("checked", "status"), [(False, 200), (True, 400)])
def test_method_of_a_signature_is_checked_where_that_is_wanted(serve: Serve, checked: bool, status: int) -> None:
    server = serve(check_method_names=checked)
    assert server.post(ROW).status_code == 200
    answer = server.post({"signature_name": "strange", "inputs": [1.0]})
    assert answer.status_code == status
    assert checked is ("Expected prediction signature method_name" in answer.text)


def test_strings_in_msgpack_are_bytes(shared: RestFixture) -> None:
    body = ormsgpack.packb({"signature_name": "text", "inputs": ["hi", b"\xff"]})
    answer = ormsgpack.unpackb(shared.post(body, content_type="application/msgpack").content)
    assert answer == {"outputs": {"text": [b"hi", b"\xff"], "as_bytes": [b"hi", b"\xff"]}}


def test_success_is_offered_to_the_log_as_grpc_would_have_it(shared: RestFixture) -> None:
    sent = shared.post(ROW, "/v1/models/m/versions/7:predict")
    ((servable_id, signature, size, log),) = shared.log.offers
    assert (servable_id, signature) == (ServableId("m", 7), "serving_default")
    assert size == len(orjson.dumps(ROW)) + len(sent.content)
    request, response = log.predict_log.request, log.predict_log.response
    for message in (request, response):
        assert (message.model_spec.name, message.model_spec.version.value) == ("m", 7)
        assert message.model_spec.signature_name == "serving_default"
    np.testing.assert_array_equal(decode(request.inputs["x"], "x"), [[1, 2, 3]])
    np.testing.assert_array_equal(decode(response.outputs["y"], "y"), [[8, 9, 10]])


@pytest.mark.parametrize(("verb", "field"), [("classify", "classify_log"), ("regress", "regress_log")])
def test_examples_are_logged_too(shared: RestFixture, verb: str, field: str) -> None:
    shared.post({"signature_name": verb, "examples": [{"x": 1.0}]}, f"/v1/models/m:{verb}")
    ((servable_id, signature, _, log),) = shared.log.offers
    assert (servable_id, signature, log.WhichOneof("log_type")) == (ServableId("m", 7), verb, field)
    request, response = getattr(log, field).request, getattr(log, field).response
    assert request.model_spec.signature_name == verb
    assert not request.model_spec.HasField("version")
    assert response.model_spec.version.value == 7
    assert len(request.input.example_list.examples) == 1
    assert response.result.ByteSize()


def test_request_that_no_queue_has_room_for_is_refused_before_its_body_has_come() -> None:
    """As soon as its head is there; the connection serves on once the body has come."""
    signature = Signature((TensorSpec("x", DataType.FLOAT, (3,)),), (TensorSpec("y", DataType.FLOAT, (3,)),))
    model = FunctionModel(signature, lambda inputs: {"y": inputs["x"]})
    model.gate.clear()
    servable = OwnClockServable([model], ServableId("m", 7), BatchSettings(max_queued_calls=1))
    body = orjson.dumps({"inputs": [1, 2, 3]}).ljust(60_000)
    head = b"POST /v1/models/m:%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    full = b"The batch scheduling queue to which this task was submitted is full"
    with contextlib.closing(servable), serving_rest(servable=servable) as fixture, contextlib.ExitStack() as clients:

        def send(verb: bytes, *sent: bytes) -> socket.socket:
            return clients.enter_context(fixture.raw(head % (verb, len(body)), *sent))

        running = send(b"predict", body)
        wait_until(lambda: model.runs, "the model runs")
        waiting = send(b"predict", body)
        wait_until(lambda: servable.pending == 1, "the queue is full")
        for verb in (b"predict", b"classify", b"regress"):
            refused = send(verb)
            answer = refused.recv(65536)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert full in answer
            assert fixture.count("UNAVAILABLE", verb.decode().capitalize()) == 1
        model.gate.set()
        for answered in (running, waiting):
            assert answered.recv(65536).startswith(b"HTTP/1.1 200 ")
        refused.sendall(body + head % (b"predict", len(body)) + body)
        assert refused.recv(65536).startswith(b"HTTP/1.1 200 ")
