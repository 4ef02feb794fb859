"""What Triton's client is told about requests that do not fit: the status and the words that its users look for."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2


def ones(rows=1, columns=4, dtype=np.float32):
    return np.ones((rows, columns), dtype)


def refused(api, *words, inputs, model="sums", code="INVALID_ARGUMENT", **how):
    tensors = [api.input(name, array) for name, array in inputs.items()]
    return api.refused(code, *words, call=lambda: api.client.infer(model, tensors, **how))


def test_unknown_models_and_versions(api):
    both = {"a": ones(), "b": ones()}
    words = "Request for unknown model: 'none_such' is not found"
    refused(api, words, inputs=both, model="none_such", code="NOT_FOUND")
    words = "Request for unknown model: 'sums' version 2 is not found"
    refused(api, words, inputs=both, model_version="2", code="NOT_FOUND")
    refused(api, inputs=both, model_version="latest")


def test_missing_and_surplus_inputs(api):
    words = "expected 2 inputs but got 1 inputs for model 'sums'"
    refused(api, words, "'a'", "'b'", inputs={"a": ones()})
    words = "expected 2 inputs but got 3 inputs for model 'sums'"
    refused(api, words, inputs={"a": ones(), "b": ones(), "c": ones()})


def test_wrong_names(api):
    refused(api, "unexpected inference input 'c' for model 'sums'", inputs={"a": ones(), "c": ones()})
    outputs = [api.output("product")]
    words = "unexpected inference output 'product' for model 'sums'"
    refused(api, words, inputs={"a": ones(), "b": ones()}, outputs=outputs)


def test_names_twice(api):
    twice = [api.input("a", ones()), api.input("a", ones())]
    words = "input 'a' already exists in request"
    api.refused("INVALID_ARGUMENT", words, call=lambda: api.client.infer("sums", twice))
    outputs = [api.output("sum"), api.output("sum")]
    words = "output 'sum' already exists in request"
    refused(api, words, inputs={"a": ones(), "b": ones()}, outputs=outputs)


def test_wrong_datatype(api):
    words = "inference input 'a' data-type is 'INT32', but model 'sums' expects 'FP32'"
    refused(api, words, inputs={"a": ones(dtype=np.int32), "b": ones()})


def test_datatype_that_is_none(api):
    tensors = [with_bytes(api, "a", [1, 4], "FP99", ones().tobytes()), api.input("b", ones())]
    api.refused("INVALID_ARGUMENT", "FP99", call=lambda: api.client.infer("sums", tensors))


@pytest.mark.parametrize("shape", [(1, 5), (1, 4, 1), (4,)], ids=["size", "rank", "no batch"])
def test_wrong_shape(api, shape):
    got = ",".join(map(str, shape))
    words = f"unexpected shape for input 'a' for model 'sums'. Expected [-1,4], got [{got}]"
    refused(api, words, inputs={"a": np.ones(shape, np.float32), "b": ones(shape[0])})


def test_batch_that_is_too_large(api):
    words = "inference request batch-size must be <= 8 for 'sums'"
    refused(api, words, inputs={"a": ones(9), "b": ones(9)})


def test_batches_that_differ(api):
    words = "input 'b' batch size does not match other inputs for 'sums'"
    refused(api, words, inputs={"a": ones(2), "b": ones(3)})


def test_shape_without_batch(api):
    tensors = [api.input("a", np.ones((), np.float32)), api.input("b", ones())]
    words = "has no shape but model requires batch dimension"
    api.refused("INVALID_ARGUMENT", words, call=lambda: api.client.infer("sums", tensors))


def with_bytes(api, name, shape, datatype, data):
    """An input of so many bytes, whatever its shape says."""
    tensor = api.module.InferInput(name, shape, datatype)
    if api.is_grpc:
        tensor._raw_content = data
    else:
        tensor._raw_data = data
        tensor._parameters["binary_data_size"] = len(data)
    return tensor


@pytest.mark.parametrize("size", [12, 20])
def test_bytes_that_are_not_as_many_as_the_shape_says(api, size):
    tensors = [with_bytes(api, "a", [1, 4], "FP32", b"\0" * size), api.input("b", ones())]
    words = f"input byte size mismatch for input 'a' for model 'sums'. Expected 16, got {size}"
    api.refused("INVALID_ARGUMENT", words, call=lambda: api.client.infer("sums", tensors))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\2\0\0\0ab", "expected 2 string elements for inference input 'text_input'"),
        (b"\1\0\0\0a" * 3, "unexpected number of string elements"),
        (b"\1\0\0\0a\1\0", "incomplete string length indicator"),
        (b"\1\0\0\0a\5\0\0\0b", "incomplete string data"),
    ],
    ids=["few", "many", "length", "data"],
)
def test_texts_that_are_cut_or_too_many(api, data, words):
    tensor = with_bytes(api, "STRING", [1, 2], "BYTES", data)
    from_numpy = [
        api.input(name, np.zeros((1, 1), dtype), name)
        for name, dtype in (("BOOL", bool), ("INT8", np.int8), ("INT16", np.int16), ("INT32", np.int32))
    ]
    others = [("INT64", 8), ("UINT8", 1), ("UINT16", 2), ("UINT32", 4), ("UINT64", 8)]
    others += [("FP16", 2), ("BF16", 2), ("FP32", 4), ("FP64", 8)]
    tensors = [*from_numpy, *(with_bytes(api, name, [1, 1], name, b"\0" * size) for name, size in others), tensor]
    words = words.replace("text_input", "STRING")
    api.refused("INVALID_ARGUMENT", words, call=lambda: api.client.infer("types", tensors))


def test_size_of_minus_one(grpc_api):
    tensors = [with_bytes(grpc_api, "a", [1, -1], "FP32", b"\0" * 16), grpc_api.input("b", ones())]
    words = "All input dimensions should be specified for input 'a'"
    grpc_api.refused("INVALID_ARGUMENT", words, call=lambda: grpc_api.client.infer("sums", tensors))


@pytest.mark.parametrize("name", ["sequence_start", "triton_own"], ids=["wrong type", "reserved name"])
def test_parameters_that_cannot_be_over_grpc(grpc_api, name):
    """The client does not send these by itself."""
    request = service_pb2.ModelInferRequest(model_name="sums")
    for each in "ab":
        request.inputs.add(name=each, datatype="FP32", shape=[1, 4])
        request.raw_input_contents.append(ones().tobytes())
    request.parameters[name].int64_param = 1
    with pytest.raises(grpc.RpcError) as caught:
        grpc_api.client._client_stub.ModelInfer(request, timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert name in caught.value.details()


@pytest.mark.parametrize(
    ("name", "value", "statuses"),
    [("sequence_start", 1, (400, 500)), ("triton_own", True, (400,)), ("mine", [1], (400,)), ("mine", None, (400,))],
    ids=["wrong type", "reserved name", "list", "null"],
)
def test_parameters_that_cannot_be_over_http(http_api, name, value, statuses):
    tensor = {"shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    inputs = [{"name": each, **tensor} for each in "ab"]
    status, body = post(http_api, "/v2/models/sums/infer", {"inputs": inputs, "parameters": {name: value}})
    assert status in statuses
    assert name in body["error"]


def post(api, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{api.address}{path}", data=data)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"data": [1, 2, 3]}, {400, 500}, "shape does not match true shape"),
        ({"data": [1, 2, 3, 4, 5]}, {400, 500}, "Shape does not match true shape of 'data' field"),
        ({"data": ["1", 2, 3, 4]}, {400, 500}, "attempt to access JSON non-"),
        ({"shape": [1, -4]}, {400, 500}, "Unable to parse 'shape'"),
        ({"shape": None}, {400, 500}, "Unable to parse 'shape'"),
        ({"data": None}, {400, 500}, "'a'"),
        ({"parameters": {"binary_data_size": 16}}, {400}, "'a'"),
    ],
    ids=range(7),
)
def test_json_that_is_wrong(http_api, change, status, words):
    good = {"name": "a", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    bad = {key: value for key, value in {**good, **change}.items() if value is not None}
    found, body = post(http_api, "/v2/models/sums/infer", {"inputs": [bad, {**good, "name": "b"}]})
    assert found in status
    assert words in body["error"]


def test_text_that_is_no_json(http_api):
    found, body = post(http_api, "/v2/models/sums/infer", b'{"inputs": [')
    assert found in (400, 500)
    assert "failed to parse the request JSON buffer" in body["error"]


def test_model_that_raises(api):
    refused(api, inputs={"x": ones(1, 2)}, model="fails", code="INTERNAL")


def test_decoupled_model_without_a_stream(api):
    tensors = [api.input("IN", np.array([1], np.int32))]
    words = ["ModelInfer RPC doesn't support models with decoupled transaction policy"] if api.is_grpc else []
    api.refused("UNIMPLEMENTED", *words, call=lambda: api.client.infer("repeat", tensors))


def test_step_of_an_ensemble_that_does_not_fit(api):
    refused(api, "inference request batch-size must be <= 4 for 'chain'", inputs={"IN": ones(5)}, model="chain")


def test_load_and_unload_are_refused_where_directories_are_watched(api):
    words = "explicit model load / unload is not allowed if polling is enabled"
    api.refused("UNAVAILABLE", words, call=lambda: api.client.load_model("sums"))
    api.refused("UNAVAILABLE", words, call=lambda: api.client.unload_model("sums"))
    assert api.client.is_model_ready("sums")
