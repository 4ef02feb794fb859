"""The rules of TensorProto as one table: every element type, in both forms, with too few and too many values.

The messages are written here element by element, as other clients write them, so that reading and writing are held
against something else than one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.support.errors import refusal
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import TABLE, to_numpy
from tfs_lite.protocols.messages import Message, TensorProto
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Rule:
    """One element type: samples, its typed field, and what stands there for an array."""

    dtype: DataType
    field: str
    samples: Array
    values: Callable[[Array], Any]

    def __str__(self) -> str:
        return self.dtype.text

    def array(self, shape: tuple[int, ...]) -> Array:
        return np.resize(self.samples, shape)

    def typed(self, shape: tuple[int, ...], values: Array) -> Message:
        return tensor(self.dtype, shape, **{self.field: self.values(values)})

    def content(self, shape: tuple[int, ...], values: Array) -> Message:
        data = strings(values.tolist()) if values.dtype == object else values.tobytes()
        return tensor(self.dtype, shape, tensor_content=data)


def tensor(dtype: int, shape: tuple[int, ...] | None = (), **fields: Any) -> Message:
    message = TensorProto(dtype=int(dtype), **fields)
    if shape is not None:
        message.tensor_shape.SetInParent()
        for size in shape:
            message.tensor_shape.dim.add(size=size)
    return message


def strings(values: list[bytes]) -> bytes:
    return b"".join(varint(len(value)) for value in values) + b"".join(values)


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number % 128 + 128)
        number //= 128
    return bytes([*encoded, number])


def plain(array: Array) -> Any:
    return array.tolist()


def pairs(array: Array) -> Any:
    return [part for value in array.tolist() for part in (value.real, value.imag)]


def patterns(array: Array) -> Any:
    return array.view(np.uint16).tolist()


def tiny(array: Array) -> Any:
    return array.tobytes()


def _floats(dtype: DataType, field: str, values: Callable[[Array], Any] = plain) -> Rule:
    numpy = to_numpy(dtype)
    limits = ml_dtypes.finfo(numpy)
    extremes = [limits.max, limits.min, limits.tiny, limits.smallest_subnormal, -0.0, 0.5]
    return Rule(dtype, field, np.array(extremes).astype(numpy), values)


def _integers(dtype: DataType, field: str = "int_val") -> Rule:
    limits = np.iinfo(to_numpy(dtype))
    return Rule(dtype, field, np.array([limits.max, limits.min, 1, 2, 127, 100], to_numpy(dtype)), plain)


def _complex(dtype: DataType, field: str) -> Rule:
    return Rule(dtype, field, np.array([1.5 - 2j, -0.0 + 1j, 3, -4j, 1e30, 0.5j], to_numpy(dtype)), pairs)


RULES = [
    _floats(DataType.FLOAT, "float_val"),
    _floats(DataType.DOUBLE, "double_val"),
    _integers(DataType.INT32),
    _integers(DataType.UINT8),
    _integers(DataType.INT16),
    _integers(DataType.INT8),
    Rule(DataType.STRING, "string_val", np.array([b"a", b"", b"\xff\0", b"b" * 300, b"c", b"d"], object), plain),
    _complex(DataType.COMPLEX64, "scomplex_val"),
    _integers(DataType.INT64, "int64_val"),
    Rule(DataType.BOOL, "bool_val", np.array([True, True, False, True, False, True]), plain),
    _floats(DataType.BFLOAT16, "half_val", patterns),
    _integers(DataType.UINT16),
    _complex(DataType.COMPLEX128, "dcomplex_val"),
    _floats(DataType.HALF, "half_val", patterns),
    _integers(DataType.UINT32, "uint32_val"),
    _integers(DataType.UINT64, "uint64_val"),
    _floats(DataType.FLOAT8_E5M2, "float8_val", tiny),
    _floats(DataType.FLOAT8_E4M3FN, "float8_val", tiny),
    _floats(DataType.FLOAT8_E4M3FNUZ, "float8_val", tiny),
    _floats(DataType.FLOAT8_E5M2FNUZ, "float8_val", tiny),
]
FILLED = {
    "float_val": [7],
    "double_val": [7],
    "int_val": [7],
    "string_val": [b"7"],
    "scomplex_val": [7, 7],
    "int64_val": [7],
    "bool_val": [True],
    "dcomplex_val": [7, 7],
    "half_val": [7],
    "uint32_val": [7],
    "uint64_val": [7],
    "float8_val": b"7",
}
SHAPES = [(), (1,), (6,), (2, 3), (1, 1, 2), (0,), (2, 0), (0, 2**20)]

every_type = pytest.mark.parametrize("rule", RULES, ids=str)


def assert_same(got: Array, expected: Array) -> None:
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if expected.dtype == object:
        assert got.tolist() == expected.tolist()
    else:
        assert got.tobytes() == expected.tobytes()


def refused(message: Message) -> str:
    with pytest.raises(ServingError, match=r"^tensor parsing error: x: ") as raised:
        decode(message, "x")
    assert raised.value.code is StatusCode.INVALID_ARGUMENT
    return str(raised.value)


def test_the_table_has_every_element_type() -> None:
    assert [rule.dtype for rule in RULES] == [row.dtype for row in TABLE]
    assert {rule.field for rule in RULES} == set(FILLED)


@every_type
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_forms_are_read_in_every_shape(rule: Rule, shape: tuple[int, ...]) -> None:
    array = rule.array(shape)
    for message in (rule.typed(shape, array.ravel()), rule.content(shape, array.ravel())):
        sent = TensorProto.FromString(message.SerializeToString())
        assert_same(decode(sent, "x", max_bytes=0 if array.size else 1 << 26), array)


@every_type
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_forms_are_written_as_others_write_them(rule: Rule, shape: tuple[int, ...]) -> None:
    array = rule.array(shape)
    typed = rule.typed(shape, array.ravel())
    assert encode(array) == typed
    assert encode(array, as_content=True) == (
        typed if rule.dtype is DataType.STRING else rule.content(shape, array.ravel())
    )


@every_type
def test_the_last_value_is_repeated(rule: Rule) -> None:
    for count in range(1, 6):
        values = rule.samples[:count]
        expected = np.concatenate([values, np.repeat(values[-1:], 6 - count)])
        assert_same(decode(rule.typed((2, 3), values), "x"), expected.reshape(2, 3))


@every_type
def test_no_values_are_zeros(rule: Rule) -> None:
    expected = np.array([b""] * 4, object) if rule.dtype is DataType.STRING else np.zeros(4, rule.samples.dtype)
    assert_same(decode(tensor(rule.dtype, (4,)), "x"), expected)
    assert_same(decode(tensor(rule.dtype, ()), "x"), expected[0:1].reshape(()))


@every_type
def test_values_of_other_fields_are_no_values(rule: Rule) -> None:
    others = {field: value for field, value in FILLED.items() if field != rule.field}
    empty = decode(tensor(rule.dtype, (3,)), "x")
    assert_same(decode(tensor(rule.dtype, (3,), **others), "x"), empty)


@every_type
def test_surplus_values_are_passed_over(rule: Rule) -> None:
    for count in range(6):
        assert_same(decode(rule.typed((count,), rule.samples), "x"), rule.samples[:count])


@every_type
def test_content_comes_before_every_field(rule: Rule) -> None:
    message = rule.content((6,), rule.samples)
    message.MergeFrom(TensorProto(**FILLED))
    assert_same(decode(message, "x"), rule.samples)


@every_type
@pytest.mark.parametrize("elements", [1, 6])
def test_content_of_another_length_is_refused(rule: Rule, elements: int) -> None:
    whole = rule.content((elements,), rule.array((elements,))).tensor_content
    for data in (whole[:-1], whole + b"\0", whole + whole):
        if data:
            assert "tensor_content has" in refused(tensor(rule.dtype, (elements,), tensor_content=data))


@every_type
def test_content_of_an_empty_tensor_is_passed_over(rule: Rule) -> None:
    assert decode(tensor(rule.dtype, (2, 0), tensor_content=b"anything"), "x").shape == (2, 0)


@every_type
@pytest.mark.parametrize("shape", [(-1,), (2, -1), (-1, 0), (0, -1), (-(2**63),)], ids=str)
def test_negative_sizes_are_refused(rule: Rule, shape: tuple[int, ...]) -> None:
    assert "is negative" in refused(rule.typed(shape, rule.samples))


@every_type
def test_without_a_shape_the_tensor_is_one_value(rule: Rule) -> None:
    for unknown in (False, True):
        message = tensor(rule.dtype, None, **{rule.field: rule.values(rule.samples[:1])})
        if unknown:
            message.tensor_shape.unknown_rank = True
        assert_same(decode(message, "x"), rule.samples[:1].reshape(()))


@pytest.mark.parametrize("version", [0, 1, -1, 2**31 - 1])
def test_version_numbers_say_nothing(version: int) -> None:
    assert decode(tensor(1, (1,), float_val=[1], version_number=version), "x").tolist() == [1]


NUMBERS = [value.number for value in TensorProto.DESCRIPTOR.fields_by_name["dtype"].enum_type.values]


@pytest.mark.parametrize("number", sorted({*NUMBERS, *range(-1, 40), *range(100, 140), 2**31 - 1, -(2**31)}))
def test_other_types_are_refused_whatever_they_carry(number: int) -> None:
    if number not in {rule.dtype for rule in RULES}:
        for shape in ((), (1,), (0,)):
            assert "is not supported" in refused(tensor(number, shape, **FILLED))


def test_reference_types_are_refused_by_name() -> None:
    known = TensorProto.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_number
    for number in (rule.dtype + 100 for rule in RULES):
        name = known[number].name if number in known else number
        assert f"dtype {name} is not supported" in refused(tensor(number, (1,), float_val=[1]))


# Narrow integers


@given(st.sampled_from([3, 4, 5, 6, 17]), st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5))
def test_integers_out_of_range_wrap_around(dtype: int, values: list[int]) -> None:
    bits = to_numpy(DataType(dtype)).itemsize * 8
    got = decode(tensor(dtype, (len(values),), int_val=values), "x").tolist()
    assert [(number - value) % 2**bits for number, value in zip(got, values, strict=True)] == [0] * len(values)


@given(st.sampled_from([14, 19]), st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5))
def test_bit_patterns_are_the_low_sixteen_bits(dtype: int, values: list[int]) -> None:
    got = decode(tensor(dtype, (len(values),), half_val=values), "x").view(np.uint16).tolist()
    assert got == [value % 2**16 for value in values]


@pytest.mark.parametrize("byte", [2, 127, 128, 255])
def test_bool_content_is_zeros_and_ones(byte: int) -> None:
    assert "other than 0 and 1" in refused(tensor(10, (3,), tensor_content=bytes([0, 1, byte])))


# Strings in content


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16383, 16384, 2**21])
def test_lengths_of_strings_take_as_many_bytes_as_they_need(length: int) -> None:
    array = np.array([b"a" * length, b"end"], object)
    assert_same(decode(tensor(7, (2,), tensor_content=strings(array.tolist())), "x"), array)


@pytest.mark.parametrize("one", [b"\x81\x00", b"\x81\x80\x80\x80\x00"])
def test_padded_lengths_are_read(one: bytes) -> None:
    assert decode(tensor(7, (2,), tensor_content=one + b"\x02abc"), "x").tolist() == [b"a", b"bc"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80", "cut off"),
        (b"\x81\x80\x80\x80\x80\x00a", "more than 32 bits"),
        (b"\xff\xff\xff\xff\x0f", "its strings need"),
        (b"\x02a", "its strings need 3"),
        (b"\x00a", "its strings need 1"),
    ],
)
def test_lengths_that_lie_are_refused(content: bytes, reason: str) -> None:
    assert reason in refused(tensor(7, (1,), tensor_content=content))


def test_more_strings_than_bytes_are_refused_before_anything_is_read() -> None:
    assert "too few for 1099511627776 strings" in refused(tensor(7, (2**40,), tensor_content=b"\0" * 10))


# Any bits


@st.composite
def bit_patterns(draw: st.DrawFn) -> Array:
    """Any element of any type: NaNs with payloads, quiet and not, negative zeros, subnormals, extremes."""
    rule = draw(st.sampled_from(RULES))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    if rule.dtype is DataType.STRING:
        return draw(npst.arrays(object, shape, elements=st.binary(max_size=200)))
    if rule.dtype is DataType.BOOL:
        return draw(npst.arrays(np.bool_, shape))
    width = rule.samples.dtype.itemsize
    unit = {1: np.uint8, 2: np.uint16, 4: np.uint32}.get(width, np.uint64)
    special = np.concatenate([rule.samples, _not_numbers(rule.samples.dtype)]).view(unit).tolist()
    elements = st.one_of(st.sampled_from(special), st.integers(0, 2 ** (8 * np.dtype(unit).itemsize) - 1))
    units = draw(npst.arrays(unit, (*shape, width // np.dtype(unit).itemsize), elements=elements))
    return units.view(rule.samples.dtype).reshape(shape)


def _not_numbers(dtype: np.dtype[Any]) -> Array:
    """NaNs of 4 and 8 byte floats: quiet, signalling, negative, each with a payload."""
    if dtype.kind not in "fc" or dtype.itemsize < 4:
        return np.zeros(0, dtype)
    if dtype in (np.float32, np.complex64):
        return np.array([0x7FC00001, 0x7F800001, 0xFFC12345, 0xFF8ABCDE], np.uint32).view(dtype)
    return np.array([0x7FF8000000000001, 0x7FF0000000000001, 0xFFF8123456789ABC, 0xFFF0DEADBEEF0001], np.uint64).view(
        dtype
    )


TELLS_ITS_TYPE = np.asarray(TensorProto(float_val=[1.0]).float_val).dtype == np.float32
"""Before protobuf 7 a field's numbers come as Python's floats, in which a signalling NaN becomes a quiet one."""


@given(bit_patterns(), st.booleans(), st.booleans())
def test_every_bit_survives_the_way_there_and_back(array: Array, transposed: bool, as_content: bool) -> None:
    array = array.T if transposed else array
    wire = encode(array, as_content).SerializeToString()
    again = TensorProto.FromString(wire).SerializeToString()
    passes_through_python = not (TELLS_ITS_TYPE or as_content) and array.dtype in (np.float32, np.complex64)
    expected = np.array(array.tolist(), array.dtype) if passes_through_python and array.size else array
    assert_same(decode(TensorProto.FromString(again), "x"), expected)


@pytest.mark.parametrize("array", [np.array(["ä", "b"]), np.array([b"\xc3\xa4", b"b"]), np.array(["ä", b"b"], object)])
def test_text_of_every_kind_is_sent_as_utf8(array: Array) -> None:
    assert list(encode(array).string_val) == ["ä".encode(), b"b"]
    assert list(encode(array, as_content=True).string_val) == ["ä".encode(), b"b"]


@pytest.mark.parametrize("values", [[1, "a"], [None], [[1], [2, 3]]], ids=["number", "none", "lists"])
def test_objects_that_are_no_text_cannot_be_encoded(values: Any) -> None:
    assert "expected bytes or str" in refusal(encode, np.array(values, object))


def test_text_without_a_utf8_form_cannot_be_encoded() -> None:
    assert "UTF-8" in refusal(encode, np.array(["\ud800"], object))


def test_arrays_of_another_byte_order_are_sent_by_value() -> None:
    assert decode(encode(np.array([1.5, 2], ">f4"), as_content=True), "x").tolist() == [1.5, 2]


def test_half_a_complex_number_is_passed_over() -> None:
    assert decode(tensor(18, (1,), dcomplex_val=[1, 2, 3]), "x").tolist() == [1 + 2j]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (tensor(11, (1,), int_val=[1]), "DT_QINT8 is not supported"),
        (tensor(1, (2, -1), float_val=[1]), "size -1 in dimension 1 is negative"),
        (tensor(1, (1,) * 65, float_val=[1]), "65 dimensions, at most 64"),
        (tensor(1, (2,), tensor_content=b"1234567"), "7 bytes, expected 8 for shape [2] of float"),
        (tensor(1, (2**62, 2**62), float_val=[1]), "too large"),
        (tensor(1, (0, 2**62, 2**62)), "too large"),
    ],
)
def test_a_malformed_tensor_is_refused_with_the_reason(message: Message, reason: str) -> None:
    assert reason in refused(message)


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
    assert "at most 100 are allowed" in refusal(decode, message, "x", max_bytes=100)
    assert "at most 104857600 are allowed" in refused(tensor(1, (2**28,), float_val=[1]))


def test_an_empty_tensor_may_not_say_that_its_other_sizes_are_huge() -> None:
    assert "of an empty tensor is too large" in refused(tensor(1, (0, 2**40)))
    assert "of an empty tensor is too large" in refused(tensor(1, (2**31, 0)))


def test_an_array_beyond_what_a_message_holds_is_not_encoded() -> None:
    huge = np.broadcast_to(np.zeros(1, np.float32), (2**29,))
    assert "is more than a message holds" in refusal(encode, huge, code=StatusCode.RESOURCE_EXHAUSTED)
