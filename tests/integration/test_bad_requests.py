"""Requests that cannot be served: each gets its code and a message that helps, and the server goes on serving."""

from __future__ import annotations

import json

import grpc
import numpy as np
import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import (
    GetModelMetadataRequest,
    GetModelStatusRequest,
    PredictRequest,
    ReloadConfigRequest,
)

pytestmark = pytest.mark.wire

ROW = np.array([[1.0, 2.0, 3.0]], np.float32)
PREDICT = "/tensorflow.serving.PredictionService/Predict"
METHODS = {
    PREDICT: PredictRequest,
    "/tensorflow.serving.PredictionService/GetModelMetadata": GetModelMetadataRequest,
    "/tensorflow.serving.ModelService/GetModelStatus": GetModelStatusRequest,
    "/tensorflow.serving.ModelService/HandleReloadConfigRequest": ReloadConfigRequest,
}


def refusal(served, code: StatusCode, model: str = "steady", inputs: dict | None = None, **options) -> str:
    """The message of a prediction that must fail with the code; it shows no path and no stack."""
    with pytest.raises(ServingError) as caught:
        served.probe.client.predict(model, {"x": ROW} if inputs is None else inputs, **options)
    assert caught.value.code is code, caught.value
    message = str(caught.value)
    assert str(served.path) not in message
    assert "Traceback" not in message
    return message


def test_wrong_dtype_names_input_expected_and_sent(served):
    message = refusal(served, StatusCode.INVALID_ARGUMENT, inputs={"x": ROW.astype(np.int64)})
    assert all(word in message for word in ("x", "float", "int64"))


@pytest.mark.parametrize("shape", [(3,), (1, 2), (2, 3, 1)], ids=str)
def test_wrong_shape_names_input_expected_and_sent(served, shape):
    message = refusal(served, StatusCode.INVALID_ARGUMENT, inputs={"x": np.zeros(shape, np.float32)})
    assert "input x" in message
    assert "[-1,3]" in message
    assert f"[{','.join(map(str, shape))}]" in message


def test_missing_input_is_named(served):
    assert "Missing but required: {x}" in refusal(served, StatusCode.INVALID_ARGUMENT, inputs={})


def test_extra_input_is_named(served):
    assert "Sent extra: {z}" in refusal(served, StatusCode.INVALID_ARGUMENT, inputs={"x": ROW, "z": ROW})


def test_unknown_model_is_named(served):
    assert "Latest(staedy)" in refusal(served, StatusCode.NOT_FOUND, "staedy")


def test_unknown_version_is_named(served):
    assert "Specific(steady, 9)" in refusal(served, StatusCode.NOT_FOUND, version=9)


def test_unknown_label_is_named(served):
    assert "label: best" in refusal(served, StatusCode.INVALID_ARGUMENT, label="best")


def test_unknown_signature_is_named_and_the_known_ones_are_told(served):
    message = refusal(served, StatusCode.FAILED_PRECONDITION, signature="serve")
    assert '"serve"' in message
    assert "serving_default" in message


def test_unknown_output_is_named(served):
    assert "logits" in refusal(served, StatusCode.INVALID_ARGUMENT, outputs=["logits"])


def test_message_past_the_limit_is_refused(served):
    rows = 101 * 2**20 // ROW.nbytes
    message = refusal(served, StatusCode.RESOURCE_EXHAUSTED, inputs={"x": np.ones((rows, 3), np.float32)})
    assert str(100 * 2**20) in message, "the limit is told"


def test_message_just_below_the_limit_is_served(served):
    x = np.ones((90 * 2**20 // ROW.nbytes, 3), np.float32)
    assert served.probe.ask("steady", x, timeout=120) == 1


GARBAGE = {
    "noise": np.random.default_rng(7).bytes(1000),
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "cut_short": PredictRequest(output_filter=["a long name"]).SerializeToString()[:-4],
    "endless_varint": b"\x08" + b"\xff" * 40,
    "group_never_closed": b"\x0b" * 500,
    "not_utf8": b"\x1a\x02\xff\xfe",
}


@pytest.mark.parametrize("garbage", ["text", "endless_varint", "group_never_closed"])
@pytest.mark.parametrize("path", METHODS)
def test_bytes_that_are_no_protobuf_are_refused_by_every_method(served, path, garbage):
    with pytest.raises(grpc.RpcError) as caught:
        served.probe.raw(path, GARBAGE[garbage])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert METHODS[path].DESCRIPTOR.full_name in caught.value.details()


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
def test_garbage_never_gets_an_answer_other_than_invalid(served, body):
    with pytest.raises(grpc.RpcError) as caught:
        served.probe.raw(PREDICT, body)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_empty_body_lacks_a_model(served):
    for path in list(METHODS)[:3]:
        with pytest.raises(grpc.RpcError) as caught:
            served.probe.raw(path, b"")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "Missing ModelSpec" in caught.value.details()


def test_tensor_that_claims_more_than_it_brings_is_refused_without_allocating(served):
    request = PredictRequest()
    request.model_spec.name = "steady"
    tensor = request.inputs["x"]
    tensor.dtype = 1
    for size in (2**40, 3):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.append(1.0)
    with pytest.raises(grpc.RpcError) as caught:
        served.probe.raw(PREDICT, request.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "x" in caught.value.details()


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/v1/models/nobody", 404, "nobody"),
        ("/v1/models/steady/versions/77", 404, "77"),
        ("/v1/models/steady/versions/text", 400, "Malformed request"),
        ("/v1/models/steady/versions/99999999999999999999", 400, "version"),
        ("/v1/models/steady/nonsense", 400, "Malformed request"),
        ("/v1/nonsense", 400, "Malformed request"),
        ("/v1/models/nobody/metadata", 404, "Latest(nobody)"),
    ],
)
def test_bad_urls_get_a_json_error(served, path, status, word):
    got, body = served.server.get(path)
    assert got == status
    assert word in json.loads(body)["error"]


def test_python_model_without_trust_is_refused_and_says_how_to_allow_it(served, model):
    served.publish_code(model, 1, "class Model:\n    pass\n")
    failed = served.probe.wait_failed(model, 1)
    assert "trusted_model_base_paths" in failed.status.message
    assert str(served.path) not in failed.status.message
