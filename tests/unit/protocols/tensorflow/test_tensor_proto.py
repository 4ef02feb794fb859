"""TensorProto to array and back, form by form as clients send them."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import TABLE
from tfs_lite.protocols.messages import Message, TensorProto
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode

NUMERIC = [row for row in TABLE if row.dtype is not DataType.STRING]
SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def tensor(dtype: DataType | int, shape: tuple[int, ...] = (), **fields: Any) -> Message:
    message = TensorProto(dtype=int(dtype), **fields)
    message.tensor_shape.SetInParent()
    for size in shape:
        message.tensor_shape.dim.add(size=size)
    return message


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.dtype == object:
        assert got.tolist() == expected.tolist()
    else:
        assert got.tobytes() == expected.tobytes()


@st.composite
def numeric_arrays(draw: st.DrawFn) -> np.ndarray:
    """Any bit pattern of any element type, in any shape and memory layout."""
    dtype = draw(st.sampled_from(NUMERIC)).numpy
    shape = draw(SHAPES)
    if dtype == np.bool_:
        array = draw(npst.arrays(dtype, shape))
    else:
        size = int(np.prod(shape)) * dtype.itemsize
        array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    return array.T if draw(st.booleans()) else array


@given(numeric_arrays(), st.booleans())
def test_arrays_come_back_bit_for_bit(array: np.ndarray, as_content: bool) -> None:
    if array.dtype.kind in "fc" and array.dtype.itemsize > 2:
        array = np.where(np.isnan(array), array.dtype.type(0), array)  # protobuf may quieten signalling NaNs
    wire = encode(array, as_content).SerializeToString()
    assert_same(decode(TensorProto.FromString(wire), "x"), np.asarray(array, order="C"))


@given(SHAPES.flatmap(lambda shape: npst.arrays(object, shape, elements=st.binary(max_size=5))))
def test_strings_come_back_byte_for_byte(array: np.ndarray) -> None:
    assert_same(decode(encode(array), "x"), array)


@pytest.mark.parametrize("row", NUMERIC, ids=lambda row: row.dtype.text)
def test_answers_use_typed_fields_with_every_element(row: Any) -> None:
    message = encode(np.ones((2, 3), row.numpy))
    assert not message.tensor_content
    assert [dim.size for dim in message.tensor_shape.dim] == [2, 3]
    assert_same(decode(message, "x", max_bytes=0), np.ones((2, 3), row.numpy))


def test_typed_fields_have_the_values_that_clients_read() -> None:
    assert list(encode(np.array([1.5, -2], np.float32)).float_val) == [1.5, -2]
    assert list(encode(np.array([-1, 300], np.int16)).int_val) == [-1, 300]
    assert list(encode(np.array([1.5], np.float16)).half_val) == [15872]
    assert list(encode(np.array([1.5], ml_dtypes.bfloat16)).half_val) == [16320]
    assert list(encode(np.array([1 + 2j], np.complex64)).scomplex_val) == [1, 2]
    assert list(encode(np.array([True, False])).bool_val) == [True, False]
    assert list(encode(np.array([2**64 - 1], np.uint64)).uint64_val) == [2**64 - 1]


def test_a_scalar_has_a_shape_without_dimensions() -> None:
    message = encode(np.array(3, np.int32))
    assert message.HasField("tensor_shape")
    assert decode(message, "x").shape == ()


@pytest.mark.parametrize("array", [np.array(["ä", "b"]), np.array([b"\xc3\xa4", b"b"]), np.array(["ä", b"b"], object)])
def test_text_of_every_kind_is_sent_as_utf8(array: np.ndarray) -> None:
    assert list(encode(array).string_val) == ["ä".encode(), b"b"]
    assert list(encode(array, as_content=True).string_val) == ["ä".encode(), b"b"]


def test_arrays_of_another_byte_order_are_sent_by_value() -> None:
    assert decode(encode(np.array([1.5, 2], ">f4"), as_content=True), "x").tolist() == [1.5, 2]


@pytest.mark.parametrize("array", [np.array([1, "a"], object), np.array([None]), np.array([[1], [2, 3]], object)])
def test_objects_that_are_no_text_cannot_be_encoded(array: np.ndarray) -> None:
    with pytest.raises(ServingError, match="expected bytes or str"):
        encode(array)


def test_text_without_a_utf8_form_cannot_be_encoded() -> None:
    with pytest.raises(ServingError, match="UTF-8"):
        encode(np.array(["\ud800"], object))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (tensor(1, (4,), float_val=[1, 2]), np.array([1, 2, 2, 2], np.float32)),
        (tensor(1, (2,)), np.zeros(2, np.float32)),
        (tensor(1, (2,), float_val=[1, 2, 3]), np.array([1, 2], np.float32)),
        (tensor(8, (2,), scomplex_val=[1, 2]), np.array([1 + 2j, 1 + 2j], np.complex64)),
        (tensor(18, (1,), dcomplex_val=[1, 2, 3]), np.array([1 + 2j], np.complex128)),
        (tensor(9, (2,), int_val=[1, 2]), np.zeros(2, np.int64)),
        (tensor(19, (1,), int_val=[1]), np.zeros(1, np.float16)),
        (tensor(4, (2,), int_val=[300, -1]), np.array([44, 255], np.uint8)),
        (tensor(6, (1,), int_val=[200]), np.array([-56], np.int8)),
        (tensor(17, (1,), int_val=[70000]), np.array([4464], np.uint16)),
        (tensor(19, (1,), half_val=[15872]), np.array([1.5], np.float16)),
        (tensor(14, (3,), half_val=[16320]), np.array([1.5] * 3, ml_dtypes.bfloat16)),
        (tensor(10, (3,), bool_val=[False, True]), np.array([False, True, True])),
        (tensor(24, (3,), float8_val=b"\x3c\x40"), np.array([1, 2, 2], ml_dtypes.float8_e5m2)),
        (tensor(22, (1,), uint32_val=[2**32 - 1]), np.array([2**32 - 1], np.uint32)),
        (tensor(7, (3,), string_val=[b"a\0", b"b\0\0"]), np.array([b"a\0", b"b\0\0", b"b\0\0"], object)),
        (tensor(7, (2,)), np.array([b"", b""], object)),
        (tensor(7, (3,), tensor_content=b"\x01\x00\x02abc"), np.array([b"a", b"", b"bc"], object)),
        (tensor(1, (1,), tensor_content=b"\0\0\x80\x3f", float_val=[7]), np.array([1], np.float32)),
        (tensor(10, (2,), tensor_content=b"\0\x01"), np.array([False, True])),
        (tensor(3, (0, 5), tensor_content=b"abc"), np.zeros((0, 5), np.int32)),
        (tensor(3, (), int_val=[7], version_number=9), np.array(7, np.int32)),
        (TensorProto(dtype=3, int_val=[7]), np.array(7, np.int32)),
        (TensorProto(dtype=3, int_val=[7], tensor_shape={"unknown_rank": True}), np.array(7, np.int32)),
    ],
)
def test_a_tensor_is_read_as_tensorflow_reads_it(message: Message, expected: np.ndarray) -> None:
    assert_same(decode(message, "x"), expected)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (tensor(0, (1,), float_val=[1]), "DT_INVALID is not supported"),
        (tensor(11, (1,), int_val=[1]), "DT_QINT8 is not supported"),
        (tensor(101, (1,), float_val=[1]), "dtype 101 is not supported"),
        (tensor(1, (2, -1), float_val=[1]), "size -1 in dimension 1 is negative"),
        (tensor(1, (1,) * 65, float_val=[1]), "65 dimensions, at most 64"),
        (tensor(1, (2,), tensor_content=b"1234567"), r"7 bytes, expected 8 for shape \[2\] of float"),
        (tensor(1, (2,), tensor_content=b"123456789"), "9 bytes, expected 8"),
        (tensor(10, (2,), tensor_content=b"\0\x02"), "a byte other than 0 and 1"),
        (tensor(7, (3,), tensor_content=b"\0\0"), "too few for 3 strings"),
        (tensor(7, (2,), tensor_content=b"\x01\xff"), "cut off"),
        (tensor(7, (1,), tensor_content=b"\x02a"), "2 bytes, its strings need 3"),
        (tensor(7, (1,), tensor_content=b"\x01ab"), "3 bytes, its strings need 2"),
        (tensor(1, (2**62, 2**62), float_val=[1]), "too large"),
        (tensor(1, (0, 2**62, 2**62)), "too large"),
    ],
)
def test_a_malformed_tensor_is_refused_by_name(message: Message, reason: str) -> None:
    with pytest.raises(ServingError, match=f"^tensor parsing error: images: .*{reason}") as raised:
        decode(message, "images")
    assert raised.value.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "message",
    [
        tensor(1, (2**40,), float_val=[1]),
        tensor(1, (26,)),
        tensor(7, (13,)),
        tensor(7, (11,), string_val=[b"ten bytes!"]),
        tensor(24, (101,), float8_val=b"a"),
    ],
)
def test_a_repeated_value_fills_no_more_than_the_bound(message: Message) -> None:
    with pytest.raises(ServingError, match="at most 100 are allowed"):
        decode(message, "x", max_bytes=100)


def test_values_that_came_are_not_bounded_by_the_fill() -> None:
    assert decode(tensor(1, (50,), float_val=[1] * 50), "x", max_bytes=100).size == 50


def test_a_gigabyte_of_repetition_is_refused_by_default() -> None:
    with pytest.raises(ServingError, match="at most 104857600 are allowed"):
        decode(tensor(1, (2**28,), float_val=[1]), "x")
