"""V2's datatypes and raw bytes."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.v2.request import SentTensor
from tfs_lite.protocols.v2.tensors import (
    RawTensor,
    check_byte_size,
    datatype_of,
    decode,
    decode_raw,
    dtype_of,
    encode_raw,
    name_of,
)

NUMBERS = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": ml_dtypes.bfloat16,
}


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_of_every_datatype_come_back(datatype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(NUMBERS[datatype])
    assert datatype_of(array) == datatype == name_of(dtype_of(datatype))
    back = decode_raw(datatype, (2, 3), encode_raw(array))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("datatype", [*NUMBERS, "BYTES"])
def test_no_elements_are_no_bytes(datatype: str) -> None:
    array = decode_raw(datatype, (3, 0), b"")
    assert array.shape == (3, 0)
    assert encode_raw(array) == b""


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_texts_come_back(texts: list[bytes]) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    data = encode_raw(array)
    assert data == b"".join(struct.pack("<I", len(text)) + text for text in texts)
    assert decode_raw("BYTES", array.shape, data).tolist() == texts


@given(st.binary(max_size=40), st.lists(st.integers(0, 5), max_size=3))
def test_any_bytes_are_texts_or_refused(data: bytes, shape: list[int]) -> None:
    try:
        array = decode_raw("BYTES", tuple(shape), data, "in", "m")
    except ServingError as error:
        code = error.code
    else:
        assert encode_raw(array) == data
        return
    assert code is StatusCode.INVALID_ARGUMENT


def test_raw_numbers_share_the_memory_they_came_in_unless_they_are_not_aligned() -> None:
    data = np.arange(4, dtype=np.float32).tobytes()
    array = decode_raw("FP32", (4,), data)
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    data = b"x" + np.arange(4, dtype=np.float64).tobytes()
    array = decode_raw("FP64", (4,), memoryview(data)[1:])
    assert array.flags.aligned
    assert array.tolist() == [0, 1, 2, 3]


def test_any_byte_but_0_is_true() -> None:
    assert decode_raw("BOOL", (4,), b"\x00\x01\x02\xff").tolist() == [False, True, True, True]


def text(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(one)) + one for one in texts)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("FP32", (2,), b"1234", "input byte size mismatch for input 'in' for model 'm'. Expected 8, got 4"),
        ("INT8", (2,), b"123", "Expected 2, got 3"),
        ("BYTES", (2,), text(b"a"), "expected 2 string elements for inference input 'in' for model 'm', got 1"),
        ("BYTES", (1,), text(b"a", b"b"), "unexpected number of string elements 2 for inference input 'in'"),
        ("BYTES", (0,), text(b"a"), "unexpected number of string elements 1"),
        ("BYTES", (2,), text(b"abcdef") + b"\x01\x00", "incomplete string length indicator"),
        ("BYTES", (1,), struct.pack("<I", 9) + b"abc", "incomplete string data"),
        ("BYTES", (10**9,), text(b"a"), "expected 1000000000 string elements"),
        ("FP32", (-1, 2), b"", "All input dimensions should be specified for input 'in'"),
        ("FP32", (2**40, 2**40), b"", "exceed maximum size"),
        ("FP32", (0, 2**40), b"", "exceed maximum size"),
        ("FP32", (1,) * 65, b"1234", "65 dimensions"),
        ("FLOAT", (1,), b"1234", "invalid datatype 'FLOAT'"),
    ],
    ids=str,
)
def test_bytes_that_do_not_fit_are_refused(datatype: str, shape: tuple[int, ...], data: bytes, message: str) -> None:
    assert message in refusal(decode_raw, datatype, shape, data, "in", "m")


def test_values_sent_one_by_one_are_counted() -> None:
    values = np.arange(6, dtype=np.int32)
    assert decode(RawTensor("in", "INT32", (2, 3), data=values)).shape == (2, 3)
    message = refusal(decode, RawTensor("in", "INT32", (2, 4), data=values), "m")
    assert "Expected 32, got 24" in message
    texts = np.array([b"a", b"b"], object)
    assert "got 2" in refusal(decode, RawTensor("in", "BYTES", (3,), data=texts))
    assert "expecting 1" in refusal(decode, RawTensor("in", "BYTES", (1,), data=texts))


def test_an_array_that_is_there_is_taken_and_an_input_without_data_refused() -> None:
    assert "unable to find data for input tensor 'in'" in refusal(decode, SentTensor("in", "INT32", (1,)))
    array = np.ones(1, np.int32)
    assert decode(SentTensor("in", "INT32", (1,), array)) is array


def test_the_size_of_a_place_is_checked_for_numbers_only() -> None:
    check_byte_size(SentTensor("in", "INT32", (2,)), 8)
    check_byte_size(SentTensor("in", "BYTES", (2,)), 8000)
    assert "Expected 8, got 9" in refusal(check_byte_size, SentTensor("in", "INT32", (2,)), 9)


def test_outputs_that_v2_has_no_name_for_are_the_models_fault() -> None:
    assert "complex64" in refusal(datatype_of, np.zeros(1, np.complex64), "out", code=StatusCode.INTERNAL)
    assert name_of(DataType.INVALID) == "INVALID"


def test_an_array_of_texts_may_hold_str() -> None:
    assert encode_raw(np.array(["é"], object)) == text("é".encode())
    assert "holds int" in refusal(encode_raw, np.array([5], object))
    assert "UTF-8" in refusal(encode_raw, np.array(["\ud800"], object))
