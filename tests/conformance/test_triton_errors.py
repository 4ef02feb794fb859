"""Errors of requests that do not fit, to Triton's client: the status and the words that its users look for."""

import grpc
import numpy as np
import pytest

from tests.conformance.servers import post
from tests.conformance.transport_tools import infer

SUMS = "/v2/models/sums/infer"


def ones(rows=1, columns=4, dtype=np.float32):
    return np.ones((rows, columns), dtype)


A, B = ("a", ones()), ("b", ones())
REFUSED = {
    "unknown models and versions": [
        {"words": "unknown model: 'none_such' is not found", "model": "none_such", "code": "NOT_FOUND"},
        {"words": "unknown model: 'sums' version 2 is not found", "model_version": "2", "code": "NOT_FOUND"},
        {"model_version": "latest"},
    ],
    "missing and surplus inputs": [
        {"words": ("expected 2 inputs but got 1 inputs for model 'sums'", "'a'", "'b'"), "inputs": [A]},
        {"words": "expected 2 inputs but got 3 inputs for model 'sums'", "inputs": [A, B, ("c", ones())]},
    ],
    "wrong names": [
        {"words": "unexpected inference input 'c' for model 'sums'", "inputs": [A, ("c", ones())]},
        {"words": "unexpected inference output 'product' for model 'sums'", "outputs": ["product"]},
    ],
    "names twice": [
        {"words": "input 'a' already exists in request", "inputs": [A, A]},
        {"words": "Duplicate output name 'sum' is not allowed in a request", "outputs": ["sum", "sum"]},
    ],
    "wrong datatype": [
        {
            "words": "inference input 'a' data-type is 'INT32', but model 'sums' expects 'FP32'",
            "inputs": [("a", ones(dtype=np.int32)), B],
        }
    ],
    "batch that is too large": [
        {"words": "inference request batch-size must be <= 8 for 'sums'", "inputs": [("a", ones(9)), ("b", ones(9))]}
    ],
    "batches that differ": [
        {
            "words": "input 'b' batch size does not match other inputs for 'sums'",
            "inputs": [("a", ones(2)), ("b", ones(3))],
        }
    ],
    "shape without batch": [
        {"words": "has no shape but model requires batch dimension", "inputs": [("a", np.ones((), np.float32)), B]}
    ],
    **{
        f"wrong shape: {problem}": [
            {
                "words": f"unexpected shape for input 'a' for model 'sums'. Expected [-1,4], got [{shown}]",
                "inputs": [("a", np.ones(shape, np.float32)), ("b", ones(shape[0]))],
            }
        ]
        for problem, shape, shown in (("size", (1, 5), "1,5"), ("rank", (1, 4, 1), "1,4,1"), ("no batch", (4,), "4"))
    },
    "model that raises": [{"model": "fails", "inputs": [("x", ones(1, 2))], "code": "INTERNAL"}],
    "step of an ensemble that does not fit": [
        {
            "words": "inference request batch-size must be <= 4 for 'chain'",
            "model": "chain",
            "inputs": [("IN", ones(5))],
        }
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_requests_that_do_not_fit(api, name):
    def check(words="", inputs=(A, B), model="sums", outputs=None, code="INVALID_ARGUMENT", **how):
        tensors = [api.input(*each) for each in inputs]
        wanted = outputs and [api.output(each) for each in outputs]
        api.refused(code, words, api.client.infer, model, tensors, outputs=wanted, **how)

    for request in REFUSED[name]:
        check(**request)


def with_bytes(api, name, shape, datatype, data):
    """An input of so many bytes, whatever its shape says."""
    tensor = api.module.InferInput(name, shape, datatype)
    if api.is_grpc:
        tensor._raw_content = data
    else:
        tensor._raw_data = data
        tensor._parameters["binary_data_size"] = len(data)
    return tensor


MISMATCH = "input byte size mismatch for input 'a' for model 'sums'. Expected 16, got "


@pytest.mark.parametrize(
    ("datatype", "size", "words"),
    [("FP99", 16, "FP99"), ("FP32", 12, MISMATCH + "12"), ("FP32", 20, MISMATCH + "20")],
    ids=["datatype that is none", "too few bytes", "too many bytes"],
)
def test_bytes_that_are_not_what_the_shape_says(api, datatype, size, words):
    tensors = [with_bytes(api, "a", [1, 4], datatype, b"\0" * size), api.input(*B)]
    api.refused("INVALID_ARGUMENT", words, api.client.infer, "sums", tensors)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\2\0\0\0ab", "expected 2 string elements for inference input 'STRING'"),
        (b"\1\0\0\0a" * 3, "unexpected number of string elements"),
        (b"\1\0\0\0a\1\0", "incomplete string length indicator"),
        (b"\1\0\0\0a\5\0\0\0b", "incomplete string data"),
    ],
    ids=["few", "many", "length", "data"],
)
def test_texts_that_are_cut_or_too_many(api, data, words):
    sizes = {1: ("BOOL", "INT8", "UINT8"), 2: ("INT16", "UINT16", "FP16", "BF16"), 4: ("INT32", "UINT32", "FP32")}
    sizes[8] = ("INT64", "UINT64", "FP64")
    others = [with_bytes(api, name, [1, 1], name, b"\0" * size) for size, names in sizes.items() for name in names]
    tensors = [*others, with_bytes(api, "STRING", [1, 2], "BYTES", data)]
    api.refused("INVALID_ARGUMENT", words, api.client.infer, "types", tensors)


def test_size_of_minus_one(grpc_api):
    tensors = [with_bytes(grpc_api, "a", [1, -1], "FP32", b"\0" * 16), grpc_api.input("b", ones())]
    words = "All input dimensions should be specified for input 'a'"
    grpc_api.refused("INVALID_ARGUMENT", words, grpc_api.client.infer, "sums", tensors)


@pytest.mark.parametrize("name", ["sequence_start", "triton_own"], ids=["wrong type", "reserved name"])
def test_parameters_that_cannot_be_over_grpc(grpc_api, refused, name):
    """The client does not send these by itself."""
    request = infer("sums", a=ones(), b=ones())
    request.parameters[name].int64_param = 1
    refused(grpc.StatusCode.INVALID_ARGUMENT, name, grpc_api.client._client_stub.ModelInfer, request, timeout=60)


GOOD = {"name": "a", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("name", "value", "statuses"),
    [("sequence_start", 1, (400, 500)), ("triton_own", True, (400,)), ("mine", [1], (400,))],
    ids=["wrong type", "reserved name", "list"],
)
def test_parameters_that_cannot_be_over_http(http_api, name, value, statuses):
    body = {"inputs": [GOOD, {**GOOD, "name": "b"}], "parameters": {name: value}}
    answer = post(http_api.address, SUMS, body)
    assert answer.status_code in statuses
    assert name in answer.json()["error"]


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
    bad = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    answer = post(http_api.address, SUMS, {"inputs": [bad, {**GOOD, "name": "b"}]})
    assert answer.status_code in status
    assert words in answer.json()["error"]


def test_text_that_is_no_json(http_api):
    answer = post(http_api.address, SUMS, b'{"inputs": [')
    assert answer.status_code in (400, 500)
    assert "failed to parse the request JSON buffer" in answer.json()["error"]


def test_decoupled_model_without_a_stream(api):
    tensors = [api.input("IN", np.array([1], np.int32))]
    words = ["ModelInfer RPC doesn't support models with decoupled transaction policy"] if api.is_grpc else []
    api.refused("UNIMPLEMENTED", words, api.client.infer, "repeat", tensors)


def test_load_and_unload_are_refused_where_directories_are_watched(api):
    words = "explicit model load / unload is not allowed if polling is enabled"
    api.refused("UNAVAILABLE", words, api.client.load_model, "sums")
    api.refused("UNAVAILABLE", words, api.client.unload_model, "sums")
    assert api.client.is_model_ready("sums")
