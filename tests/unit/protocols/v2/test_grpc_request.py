"""ModelInferRequest and ModelInferResponse as bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.support import errors
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.v2.grpc_answer import answer_bytes, stream_bytes, stream_error
from tfs_lite.protocols.v2.grpc_request import MAX_SPLIT_FIELDS, SPLIT_BYTES, read_message, read_request, read_version
from tfs_lite.protocols.v2.messages import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from tfs_lite.protocols.v2.request import MAX_ENTRIES, InferAnswer, InferRequest, SharedMemorySlice, WantedOutput
from tfs_lite.protocols.v2.tensors import decode, encode_raw

ID = ServableId("m", 3)


def request(**fields: Any) -> Any:
    return ModelInferRequest(model_name="m", **fields)


def typed(datatype: str, shape: tuple[int, ...], **contents: Any) -> dict[str, Any]:
    return {"name": "in", "datatype": datatype, "shape": shape, "contents": contents}


def read(message: Any) -> InferRequest:
    return read_request(read_message(message.SerializeToString()))


def refusal(message: Any) -> str:
    return errors.refusal(read, message)


TENSOR = {"name": "in", "datatype": "INT32", "shape": [2]}
EIGHT = np.array([1, 2], np.int32).tobytes()
REGION = {"shared_memory_region": {"string_param": "r"}, "shared_memory_byte_size": {"int64_param": 8}}


@pytest.mark.parametrize(
    ("datatype", "field", "values", "expected"),
    [
        ("BOOL", "bool_contents", [True, False], np.array([True, False])),
        ("INT8", "int_contents", [-1, 257], np.array([-1, 1], np.int8)),
        ("INT16", "int_contents", [1, 65537], np.array([1, 1], np.int16)),
        ("INT32", "int_contents", [1, -2], np.array([1, -2], np.int32)),
        ("INT64", "int64_contents", [2**62, -1], np.array([2**62, -1])),
        ("UINT8", "uint_contents", [255, 256], np.array([255, 0], np.uint8)),
        ("UINT16", "uint_contents", [1, 2], np.array([1, 2], np.uint16)),
        ("UINT32", "uint_contents", [2**32 - 1, 2], np.array([2**32 - 1, 2], np.uint32)),
        ("UINT64", "uint64_contents", [2**64 - 1, 0], np.array([2**64 - 1, 0], np.uint64)),
        ("FP32", "fp32_contents", [0.5, 2], np.array([0.5, 2], np.float32)),
        ("FP64", "fp64_contents", [0.1, 2], np.array([0.1, 2])),
        ("BYTES", "bytes_contents", [b"a\0", b""], np.array([b"a\0", b""], object)),
    ],
    ids=str,
)
def test_typed_contents_of_every_datatype_are_read(datatype: str, field: str, values: Any, expected: Any) -> None:
    (tensor,) = read(request(inputs=[typed(datatype, (2,), **{field: values})])).inputs
    array = decode(tensor)
    assert array.dtype == expected.dtype
    assert array.tolist() == expected.tolist()


def test_typed_contents_of_no_element_are_read() -> None:
    (tensor,) = read(request(inputs=[typed("INT32", (0, 3))])).inputs
    assert decode(tensor).shape == (0, 3)


@pytest.mark.parametrize("count", [2, SPLIT_BYTES], ids=["parsed whole", "split"])
def test_raw_contents_belong_to_the_inputs_outside_shared_memory(count: int) -> None:
    first, second = np.arange(count, dtype=np.int32), np.arange(count, dtype=np.float64)
    inputs = [
        {"name": "a", "datatype": "INT32", "shape": [count]},
        {"name": "b", "datatype": "INT32", "shape": [2], "parameters": REGION},
        {"name": "c", "datatype": "FP64", "shape": [count]},
    ]
    made = read(request(id="x", inputs=inputs, raw_input_contents=[first.tobytes(), second.tobytes()]))
    assert made.id == "x"
    assert made.inputs[1].memory == SharedMemorySlice("r", 8)
    assert decode(made.inputs[0]).tolist() == first.tolist()
    assert decode(made.inputs[2]).tolist() == second.tolist()


def test_a_message_of_very_many_fields_is_read_too() -> None:
    count = MAX_SPLIT_FIELDS + 1
    inputs = [{"name": f"in{index}", "datatype": "INT32", "shape": [2]} for index in range(count)]
    made = read(request(inputs=inputs, raw_input_contents=[EIGHT] * count))
    assert len(made.inputs) == count
    assert decode(made.inputs[-1]).tolist() == [1, 2]


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_any_large_bytes_are_read_as_protobuf_reads_them(head: bytes, tail: bytes) -> None:
    large = request(inputs=[TENSOR], raw_input_contents=[bytes(SPLIT_BYTES)])
    whole = head + large.SerializeToString() + tail
    try:
        expected = ModelInferRequest.FromString(whole)
    except DecodeError:
        with pytest.raises(ServingError):
            read_message(whole)
        return
    sent = read_message(whole)
    assert [bytes(raw) for raw in sent.raw] == list(expected.raw_input_contents)
    del expected.raw_input_contents[:]
    assert sent.message == expected


def test_what_the_request_says_is_read() -> None:
    outputs = [
        {"name": "plain"},
        {"name": "best", "parameters": {"classification": {"int64_param": 3}}},
        {"name": "there", "parameters": {**REGION, "shared_memory_offset": {"int64_param": 4}}},
    ]
    parameters = {"priority": {"uint64_param": 2}, "timeout": {"int64_param": 1_000_000}, "own": {"bool_param": True}}
    made = read(request(model_version="4", outputs=outputs, parameters=parameters))
    assert (made.model, made.version, made.priority, made.timeout) == ("m", 4, 2, 1.0)
    assert made.parameters == {"own": True}
    assert made.outputs == [
        WantedOutput("plain"),
        WantedOutput("best", 3),
        WantedOutput("there", memory=SharedMemorySlice("r", 8, 4)),
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": [TENSOR]}, "unable to find data for input tensor 'in' for model 'm' in request"),
        ({"inputs": [TENSOR, TENSOR], "raw_input_contents": [EIGHT]}, "unable to find data"),
        ({"inputs": [TENSOR], "raw_input_contents": [EIGHT, b""]}, "raw_input_contents has 2 entries"),
        (
            {"inputs": [typed("INT32", (1,), int_contents=[1])], "raw_input_contents": [b"1234"]},
            "contents field must not be specified when using raw_input_contents for 'in'",
        ),
        (
            {"inputs": [typed("INT32", (1,), fp32_contents=[1])]},
            "unexpected fp32_contents for input 'in' of datatype INT32, expected int_contents",
        ),
        ({"inputs": [typed("FP16", (1,), fp32_contents=[1])]}, "which must be sent in raw_input_contents"),
        ({"inputs": [typed("BF16", (0,))]}, "must be sent in raw_input_contents"),
        ({"inputs": [typed("INT", (1,), int_contents=[1])]}, "invalid datatype 'INT' for input 'in'; V2 has"),
        (
            {"inputs": [{**typed("INT32", (2,)), "parameters": REGION}]},
            "unexpected 'content' provided when using shared memory for input tensor 'in'",
        ),
        (
            {"inputs": [{**TENSOR, "parameters": {"shared_memory_region": {"string_param": "r"}}}]},
            "'shared_memory_byte_size' must be specified",
        ),
        (
            {"inputs": [{**TENSOR, "parameters": {"shared_memory_region": {"int64_param": 1}}}]},
            "invalid value for 'shared_memory_region' of input 'in', expected string",
        ),
        (
            {"outputs": [{"name": "out", "parameters": {"classification": {"string_param": "1"}}}]},
            "invalid value for 'classification' of output 'out'",
        ),
        (
            {"outputs": [{"name": "out", "parameters": {"classification": {"int64_param": -1}}}]},
            "invalid value for 'classification'",
        ),
        ({"parameters": {"own": {}}}, "parameter 'own' has no value"),
        ({"parameters": {"own": {"uint64_param": 1}}}, "parameter 'own' is of type uint64"),
        ({"model_version": "-1"}, "model version '-1'"),
    ],
    ids=str,
)
def test_requests_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    assert message in refusal(request(**fields))


def test_bytes_that_are_no_message_or_name_no_model_are_refused_and_a_large_size_is_told() -> None:
    assert "no model name" in refusal(ModelInferRequest())
    assert "are not a" in errors.refusal(read_message, b"\xff" * 10)
    data = request(raw_input_contents=[bytes(SPLIT_BYTES)]).SerializeToString() + b"\x2a\1\xff"
    with pytest.raises(ServingError, match=f"the request's {len(data)} bytes are not a inference.ModelInferRequest"):
        read_message(data)


@pytest.mark.parametrize("field", ["inputs", "outputs", "parameters", "raw_input_contents"])
def test_requests_of_more_entries_than_any_model_has_are_refused(field: str) -> None:
    count = MAX_ENTRIES + 1
    entries: dict[str, Any] = {
        "inputs": [{"name": str(index)} for index in range(count)],
        "outputs": [{"name": str(index)} for index in range(count)],
        "parameters": {str(index): {"int64_param": 1} for index in range(count)},
        "raw_input_contents": [b""] * count,
    }
    expected = f"the request has {count} {field}, at most {MAX_ENTRIES} are allowed"
    assert refusal(request(**{field: entries[field]})) == expected


@pytest.mark.parametrize("text", ["1.0", " 1", "x", "-1", "+1", "9" * 19, "1" * 5000, "²"])
def test_versions_are_whole_numbers(text: str) -> None:
    assert "model version" in errors.refusal(read_version, text)
    assert read_version("") is None
    assert read_version("0") == 0
    assert read_version(str(2**63 - 1)) == 2**63 - 1


ARRAYS = {
    "f": np.array([[1.5, 2]], np.float32),
    "t": np.array([b"a", "é"], object),
    "none": np.empty((0, 3), np.int64),
    "half": np.array([1, 2], ml_dtypes.bfloat16),
    "backwards": np.arange(6, dtype=np.int16).reshape(2, 3).T,
    "one": np.array(5, np.uint8),
    "big": np.arange(3, dtype=">i4"),
    "yes": np.array([True, False]),
}


def check(response: Any) -> None:
    assert len(response.raw_output_contents) == len(response.outputs) == len(ARRAYS)
    for output, raw, (name, array) in zip(response.outputs, response.raw_output_contents, ARRAYS.items(), strict=True):
        assert (output.name, tuple(output.shape)) == (name, array.shape)
        assert not output.HasField("contents")
        assert raw == encode_raw(array.astype(array.dtype.newbyteorder("=")))


def test_answers_are_raw_one_entry_for_each_output() -> None:
    parameters = {"a": True, "b": -1, "c": "x", "d": 0.5, "e": 2**63}
    response = ModelInferResponse.FromString(answer_bytes(InferAnswer(ID, "x", ARRAYS, parameters=parameters)))
    assert (response.model_name, response.model_version, response.id) == ("m", "3", "x")
    check(response)
    assert [output.datatype for output in response.outputs] == [
        *("FP32", "BYTES", "INT64", "BF16", "INT16", "UINT8", "INT32", "BOOL")
    ]
    kinds = {key: value.WhichOneof("parameter_choice") for key, value in response.parameters.items()}
    assert kinds == {
        "a": "bool_param",
        "b": "int64_param",
        "c": "string_param",
        "d": "double_param",
        "e": "uint64_param",
    }


@pytest.mark.parametrize("final", [True, False])
def test_answers_of_streams_say_whether_they_are_the_last(final: bool) -> None:
    answer = InferAnswer(ID, "x", ARRAYS)
    streamed = ModelStreamInferResponse.FromString(stream_bytes(answer, final))
    assert not streamed.error_message
    check(streamed.infer_response)
    assert streamed.infer_response.parameters["triton_final_response"].bool_param is final
    del streamed.infer_response.parameters["triton_final_response"]
    assert streamed.infer_response == ModelInferResponse.FromString(answer_bytes(answer))


def test_a_large_answer_is_within_its_stream() -> None:
    array = np.arange(100_000, dtype=np.int64)
    streamed = ModelStreamInferResponse.FromString(stream_bytes(InferAnswer(ID, "", {"out": array}), True))
    assert streamed.infer_response.raw_output_contents[0] == array.tobytes()


def test_outputs_in_shared_memory_have_no_bytes() -> None:
    outputs = {"a": np.zeros(2, np.int32), "b": np.ones(2, np.int32)}
    wanted = {"a": WantedOutput("a", memory=SharedMemorySlice("r", 100, 4)), "b": WantedOutput("b")}
    response = ModelInferResponse.FromString(answer_bytes(InferAnswer(ID, "", outputs, wanted)))
    assert list(response.raw_output_contents) == [b"", outputs["b"].tobytes()]
    parameters = response.outputs[0].parameters
    assert parameters["shared_memory_region"].string_param == "r"
    assert parameters["shared_memory_byte_size"].int64_param == 8
    assert parameters["shared_memory_offset"].int64_param == 4
    assert not response.outputs[1].parameters


def test_an_answer_beyond_a_message_is_refused() -> None:
    wide = np.broadcast_to(np.zeros(1, np.int8), (2**20, 2**10))
    outputs = {"a": wide.view(), "b": wide.view()}
    errors.refusal(answer_bytes, InferAnswer(ID, "", outputs))


def test_failures_in_streams_have_the_id_and_are_the_last() -> None:
    streamed = ModelStreamInferResponse.FromString(stream_error("why", "x"))
    assert (streamed.error_message, streamed.infer_response.id) == ("why", "x")
    assert streamed.infer_response.parameters["triton_final_response"].bool_param
    assert ModelStreamInferResponse.FromString(stream_error("", "")).error_message
