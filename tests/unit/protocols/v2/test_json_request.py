"""Bodies of V2 inference requests in JSON: what they mean, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from tests.support import errors
from tfs_lite.core.model import SequenceFlags
from tfs_lite.protocols.v2.json_request import read_infer
from tfs_lite.protocols.v2.request import MAX_ENTRIES, InferRequest, SharedMemorySlice, WantedOutput
from tfs_lite.protocols.v2.tensors import decode

BIG = 2**63


def read(body: Any, length: int | None = None) -> InferRequest:
    return read_infer("m", None, body if isinstance(body, bytes) else orjson.dumps(body), length)


def tensor(**changes: Any) -> dict[str, Any]:
    """An input of three numbers. None drops a member."""
    members = {"name": "x", "shape": [3], "datatype": "INT32", "data": [1, 2, 3], **changes}
    return {key: value for key, value in members.items() if value is not None}


def refusal(body: Any, length: int | None = None) -> str:
    return errors.refusal(read, body, length)


VALUES = [
    ("BOOL", [True, False, True], np.bool_),
    ("UINT8", [0, 1, 255], np.uint8),
    ("UINT16", [0, 1, 65535], np.uint16),
    ("UINT32", [0, 1, 2**32 - 1], np.uint32),
    ("UINT64", [0, 1, 2**64 - 1], np.uint64),
    ("INT8", [-128, 0, 127], np.int8),
    ("INT16", [-(2**15), 0, 2**15 - 1], np.int16),
    ("INT32", [-(2**31), 0, 2**31 - 1], np.int32),
    ("INT64", [-BIG, 2**53 + 1, BIG - 1], np.int64),
    ("FP32", [0.1, 2, -3.5], np.float32),
    ("FP64", [0.1, 1e300, -0.0], np.float64),
]


@pytest.mark.parametrize(("datatype", "values", "dtype"), VALUES, ids=[row[0] for row in VALUES])
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_data_of_every_datatype_is_read_exactly(datatype: str, values: list[Any], dtype: Any, nested: bool) -> None:
    data = [[values[:1], values[1:2], values[2:]]] if nested else values
    (sent,) = read({"inputs": [tensor(datatype=datatype, shape=[1, 3, 1], data=data)]}).inputs
    assert sent.array is not None
    assert (sent.array.dtype, sent.array.shape) == (np.dtype(dtype), (1, 3, 1))
    assert np.array_equal(sent.array.ravel(), np.array(values, dtype))


READ: dict[str, tuple[dict[str, Any], Any]] = {
    "texts become bytes": (
        {"datatype": "BYTES", "shape": [2, 2], "data": [["a", "ü"], ["", "\0"]]},
        [[b"a", "ü".encode()], [b"", b"\0"]],
    ),
    "number before lists": ({"data": [1, [2, [3]]]}, [1, 2, 3]),
    "list before a number": ({"data": [[1, 2], 3]}, [1, 2, 3]),
    "deeper lists first": ({"data": [[[1]], 2, 3]}, [1, 2, 3]),
    "an empty list": ({"data": [[], [1, 2], [3]]}, [1, 2, 3]),
    "large and irregular": (
        {"shape": [50_001], "data": [[*range(20_000)], [[*range(30_000)]], 7]},
        [*range(20_000), *range(30_000), 7],
    ),
    "no elements": ({"shape": [0, 4], "data": []}, np.zeros((0, 4))),
}


@pytest.mark.parametrize(("members", "expected"), READ.values(), ids=READ)
def test_data_counts_in_the_order_of_the_text_however_it_is_nested(members: dict[str, Any], expected: Any) -> None:
    (sent,) = read({"inputs": [tensor(**members)]}).inputs
    assert sent.array is not None
    assert sent.array.shape == np.shape(expected)
    assert sent.array.tolist() == list(expected)


def test_numbers_that_are_words_are_read() -> None:
    body = b'{"inputs":[{"name":"x","shape":[3],"datatype":"FP32","data":[NaN,Infinity,-Infinity]}]}'
    (sent,) = read(body).inputs
    assert sent.array is not None
    assert str(sent.array.tolist()) == "[nan, inf, -inf]"


def test_everything_beside_the_tensors_is_read() -> None:
    request = read(
        {
            "id": "42",
            "parameters": {
                "sequence_id": 2**64 - 1,
                "sequence_start": True,
                "sequence_end": False,
                "priority": 2,
                "timeout": 1500,
                "binary_data_output": True,
                "temperature": 0.5,
                "mode": "fast",
                "deep": False,
            },
            "inputs": [tensor()],
            "outputs": [
                {"name": "y"},
                {"name": "z", "parameters": {"classification": 3, "binary_data": False}},
                {"name": "w", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}},
            ],
        }
    )
    assert (request.id, request.priority, request.timeout) == ("42", 2, 0.0015)
    assert request.sequence == SequenceFlags(2**64 - 1, start=True)
    assert request.binary_outputs
    assert request.parameters == {"temperature": 0.5, "mode": "fast", "deep": False}
    assert request.outputs == [
        WantedOutput("y"),
        WantedOutput("z", 3, False),
        WantedOutput("w", memory=SharedMemorySlice("r", 8)),
    ]


def test_input_may_be_in_shared_memory() -> None:
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 12, "shared_memory_offset": 4}
    (sent,) = read({"inputs": [tensor(data=None, parameters=place)]}).inputs
    assert (sent.array, sent.memory) == (None, SharedMemorySlice("r", 12, 4))


WRONG: list[tuple[str, Any, str]] = [
    ("no JSON", b'{"inputs": [', "failed to parse the request JSON buffer"),
    ("nothing that begins a value", b"AAA", "failed to parse the request JSON buffer: Invalid value. at 0"),
    ("empty body", b"", "failed to parse the request JSON buffer"),
    ("no object", [1], "failed to parse the request JSON buffer: expected an object, got Array"),
    ("no inputs", {}, "Unable to parse 'inputs'"),
    ("inputs no list", {"inputs": {}}, "Unable to parse 'inputs'"),
    ("input no object", {"inputs": [1]}, "Unable to parse input 0"),
    ("id no text", {"id": 1, "inputs": []}, "Unable to parse 'id'"),
    ("outputs no list", {"inputs": [], "outputs": 1}, "Unable to parse 'outputs'"),
    ("output without name", {"inputs": [], "outputs": [{}]}, "Unable to parse 'name'"),
    ("name missing", {"inputs": [tensor(name=None)]}, "Unable to parse 'name'"),
    ("name no text", {"inputs": [tensor(name=1)]}, "Unable to parse 'name'"),
    ("datatype missing", {"inputs": [tensor(datatype=None)]}, "Unable to parse 'datatype'"),
    ("datatype unknown", {"inputs": [tensor(datatype="INT33")]}, "invalid datatype 'INT33' for input 'x'; V2 has"),
    ("shape missing", {"inputs": [tensor(shape=None)]}, "Unable to parse 'shape'"),
    ("shape no list", {"inputs": [tensor(shape=3)]}, "Unable to parse 'shape'"),
    ("shape of texts", {"inputs": [tensor(shape=["3"])]}, "Unable to parse 'shape'"),
    ("shape with a fraction", {"inputs": [tensor(shape=[3.0])]}, "Unable to parse 'shape'"),
    ("negative size", {"inputs": [tensor(shape=[-1])]}, "Unable to parse 'shape'"),
    ("size of 64 bits", {"inputs": [tensor(shape=[BIG])]}, "Unable to parse 'shape'"),
    ("data no list", {"inputs": [tensor(data=1)]}, "Unable to parse 'data' of input 'x'"),
    ("too few", {"inputs": [tensor(data=[1, 2])]}, "shape does not match true shape"),
    ("too many", {"inputs": [tensor(data=[1, 2, 3, 4])]}, "Shape does not match true shape of 'data' field"),
    ("overflow of bytes", {"inputs": [tensor(shape=[4, 2**60 + 2])]}, "byte size overflow for input"),
    ("overflow", {"inputs": [tensor(shape=[BIG - 1, 4])]}, "causes total element count to exceed maximum size of"),
    ("text as number", {"inputs": [tensor(data=[1, "2", 3])]}, "attempt to access JSON non-signed-integer as signed"),
    ("fraction as integer", {"inputs": [tensor(data=[1, 2.0, 3])]}, "non-signed-integer as signed-integer"),
    ("flag as integer", {"inputs": [tensor(data=[1, True, 3])]}, "non-signed-integer as signed-integer"),
    ("nothing as integer", {"inputs": [tensor(data=[1, None, 3])]}, "non-signed-integer as signed-integer"),
    ("unsigned", {"inputs": [tensor(datatype="UINT8", data=[1, "", 3])]}, "non-unsigned-integer as unsigned-integer"),
    ("number as text", {"inputs": [tensor(datatype="BYTES", data=["1", 2, "3"])]}, "non-string as string"),
    ("object as text", {"inputs": [tensor(datatype="BYTES", data=[{"b64": "AA=="}])]}, "non-string as string"),
    ("number as flag", {"inputs": [tensor(datatype="BOOL", data=[1, 0, 1])]}, "non-boolean as boolean"),
    ("text as float", {"inputs": [tensor(datatype="FP32", data=[1, "2", 3])]}, "non-number as number"),
    ("out of range", {"inputs": [tensor(datatype="INT8", data=[1, 200, 3])]}, "200 is no INT8, whose range is -128"),
    ("below zero", {"inputs": [tensor(datatype="UINT64", data=[1, -1, 3])]}, "-1 is no UINT64"),
    ("FP16", {"inputs": [tensor(datatype="FP16", data=[1, 2, 3])]}, "sending FP16 data via JSON is not supported"),
    ("BF16", {"inputs": [tensor(datatype="BF16", data=[1, 2, 3])]}, "sending BF16 data via JSON is not supported"),
    ("null among the data", {"inputs": [tensor(datatype="FP32", data=[1, None, 3])]}, "null is Null"),
    ("inputs null", {"inputs": None}, "Unable to parse 'inputs': expected an array, got nothing"),
    ("no data", {"inputs": [tensor(data=None)]}, "exactly one of 'data', 'binary_data_size' and"),
    ("two kinds of data", {"inputs": [tensor(parameters={"binary_data_size": 12})]}, "for input 'x'"),
    ("blob without header", {"inputs": [tensor(data=None, parameters={"binary_data_size": 12})]}, "Infer-Header-Cont"),
    ("parameters no object", {"parameters": 1, "inputs": []}, "Expected JSON object for keyword: 'parameters'"),
    ("parameter an object", {"parameters": {"k": {}}, "inputs": []}, "parameter 'k' has invalid type"),
    ("parameter a list", {"parameters": {"k": [1]}, "inputs": []}, "parameter 'k' has invalid type"),
    ("reserved", {"parameters": {"triton_x": 1}, "inputs": []}, "parameter keys starting with 'triton_' are reserved"),
    ("sequence_id a flag", {"parameters": {"sequence_id": True}, "inputs": []}, "Unable to parse 'sequence_id'"),
    ("sequence_id below 0", {"parameters": {"sequence_id": -1}, "inputs": []}, "Unable to parse 'sequence_id'"),
    ("sequence_start 1", {"parameters": {"sequence_start": 1}, "inputs": []}, "Unable to parse 'sequence_start'"),
    ("sequence_end text", {"parameters": {"sequence_end": "1"}, "inputs": []}, "Unable to parse 'sequence_end'"),
    ("priority text", {"parameters": {"priority": "1"}, "inputs": []}, "Unable to parse 'priority'"),
    ("timeout fraction", {"parameters": {"timeout": 0.5}, "inputs": []}, "Unable to parse 'timeout'"),
    ("binary_data_output", {"parameters": {"binary_data_output": 1}, "inputs": []}, "'binary_data_output'"),
    ("binary_data", {"inputs": [], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "'binary_data'"),
    ("classification", {"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": -1}}]}, "'class"),
]


@pytest.mark.parametrize(("body", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_body_is_refused_with_the_words_that_clients_know(body: Any, words: str) -> None:
    assert words in refusal(body)


def test_null_is_absent_wherever_a_member_may_be_missing() -> None:
    """As MLServer's own types and KServe's print a request that says nothing else."""
    nothing: dict[str, Any] = {"parameters": None, "id": None, "outputs": None}
    plain = repr(read({"inputs": [tensor()]}))
    assert repr(read({**nothing, "inputs": [{**tensor(), "parameters": None}]})) == plain
    parameters = {"content_type": None, "sequence_id": None, "priority": None, "binary_data_output": None}
    memory = {"shared_memory_region": None, "shared_memory_byte_size": None, "binary_data_size": None}
    sent = read(
        {
            "parameters": parameters,
            "inputs": [{**tensor(), "parameters": memory}],
            "outputs": [{"name": "y", "parameters": {"classification": None, "binary_data": None, **memory}}],
        }
    )
    assert repr(sent) == repr(read({"inputs": [tensor()], "outputs": [{"name": "y"}]}))
    blob = {**tensor(data=None), "data": None, "parameters": {"binary_data_size": 12}}
    text = orjson.dumps({"inputs": [blob]})
    assert decode(read(text + bytes(12), len(text)).inputs[0]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("field", ["inputs", "outputs", "parameters"])
def test_requests_of_more_entries_than_any_model_has_are_refused(field: str) -> None:
    count = MAX_ENTRIES + 1
    entries: Any = {str(n): 1 for n in range(count)} if field == "parameters" else [{"name": "x"}] * count
    expected = f"the request has {count} {field}, at most {MAX_ENTRIES} are allowed"
    assert refusal({"inputs": [tensor()], field: entries}) == expected


def test_deep_nesting_is_refused_not_suffered() -> None:
    depth = 200_000
    body = (
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT32","data":' + b"[" * depth + b"1" + b"]" * depth + b"}]}"
    )
    assert "JSON nesting depth exceeds maximum allowed limit (100)" in refusal(body)


def test_misfit_in_a_large_array_is_named() -> None:
    numbers = [*range(40_000), 2**40]
    assert "1099511627776 is no INT32" in refusal({"inputs": [tensor(shape=[40_001], data=numbers)]})
