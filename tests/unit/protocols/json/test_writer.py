"""Trees and arrays as text. Whatever is printed reads back as the same number."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.support.profiles import examples
from tfs_lite.protocols.json import writer as json_print
from tfs_lite.protocols.json.text import loads
from tfs_lite.protocols.json.writer import dumps

SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
PARTS = [1, 7, 8192]
NARROW = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16]


@contextmanager
def in_parts(part: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_print, "_PART_VALUES", part)
        yield


def back(array: np.ndarray) -> np.ndarray:
    """Printed, read, and in the first dtype again."""
    with np.errstate(all="ignore"):
        return np.array(loads(dumps(array)), np.float64 if array.dtype.kind not in "biu" else None).astype(array.dtype)


@st.composite
def any_floats(draw: st.DrawFn, dtype: Any) -> np.ndarray:
    """Any bit pattern, in any shape and memory layout, with quiet NaNs only."""
    shape = draw(SHAPES)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    with np.errstate(all="ignore"):
        array = np.where(np.isnan(array), np.dtype(dtype).type(np.nan), array).astype(dtype)
    return array.T if draw(st.booleans()) else array[::-1] if array.ndim else array


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f4", ">f8"])
@given(data=st.data(), part=st.sampled_from(PARTS))
def test_floats_come_back_bit_for_bit(part: int, dtype: Any, data: st.DataObject) -> None:
    array = data.draw(any_floats(dtype))
    with in_parts(part):
        found = back(array)
        assert found.shape == array.shape or not array.size
        assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", NARROW)
@given(data=st.data())
def test_narrow_floats_are_printed_as_float32(dtype: Any, data: st.DataObject) -> None:
    array = data.draw(any_floats(dtype))
    with np.errstate(all="ignore"):
        wide = array.astype(np.float32)
    assert dumps(array) == dumps(wide)
    assert back(wide).astype(dtype).tobytes() == np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("dtype", [*INTEGERS, "?", ">i4", ml_dtypes.int4, ml_dtypes.uint4])
@examples(40)
@given(data=st.data(), part=st.sampled_from(PARTS))
def test_integers_and_bools_come_back(part: int, dtype: Any, data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    native = np.dtype(dtype)
    small = native.kind == "V"
    array = data.draw(npst.arrays(np.int8 if small else native, shape, elements=st.integers(0, 7) if small else None))
    array = array.astype(dtype).T
    with in_parts(part):
        found = np.array(json.loads(dumps(array)), np.int64 if small else array.dtype.newbyteorder("="))
        assert found.shape == array.shape or not array.size
        assert found.tolist() == array.astype(found.dtype).tolist()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (2, 0, 3), (1, 2, 0), ()])
def test_arrays_without_elements_or_dimensions_keep_their_nesting(shape: tuple[int, ...]) -> None:
    array = np.full(shape, 0.5, np.float32)
    assert json.loads(dumps(array)) == array.tolist()
    assert json.loads(dumps({"a": [array]})) == {"a": [array.tolist()]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32([1 / 3, 0.1, 1e6, 16777216, -0.0, 1e-45]), b"[0.33333334,0.1,1000000.0,16777216.0,-0.0,1e-45]"),
        (np.array(0.1, np.float32), b"0.1"),
        ({"a": np.array(0.1, np.float32)}, b'{"a":0.1}'),
        (np.float32(0.1), b"0.1"),
        (
            [np.float32(0.1), np.float16(0.5), ml_dtypes.bfloat16(1.5), np.int8(3), np.bool_(True)],
            b"[0.1,0.5,1.5,3,true]",
        ),
        ([np.float32("nan"), np.float64("-inf"), ml_dtypes.bfloat16("inf")], b"[NaN,-Infinity,Infinity]"),
        (float("nan"), b"NaN"),
        (
            {"a": [1.5, None, float("inf"), {"b": (float("-inf"),)}], "null": "u"},
            b'{"a":[1.5,null,Infinity,{"b":[-Infinity]}],"null":"u"}',
        ),
        ([np.array([np.nan, 1]), None, np.array([[np.inf], [2]], np.float32)], b"[[NaN,1.0],null,[[Infinity],[2.0]]]"),
        (np.array([True, False]), b"[true,false]"),
        (np.array(["a", "é", None], object), '["a","é",null]'.encode()),
        (np.array([[1.5, float("nan")]], object), b"[[1.5,NaN]]"),
        (np.arange(6).reshape(2, 3).T, b"[[0,3],[1,4],[2,5]]"),
        (np.arange(10)[::3], b"[0,3,6,9]"),
        (np.array([1, 2], ">i4"), b"[1,2]"),
        ({"a": np.array([1.5, np.inf], ">f8")}, b'{"a":[1.5,Infinity]}'),
        (np.longdouble([1.5]), b"[1.5]"),
        ([], b"[]"),
        ({}, b"{}"),
        ((1, "a"), b'[1,"a"]'),
        (2**64 - 1, b"18446744073709551615"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_have_this_text(value: Any, text: bytes) -> None:
    for part in PARTS:
        with in_parts(part):
            assert dumps(value) == text


def test_largest_number_of_single_precision_is_printed_short() -> None:
    """Whether its exponent has a sign is up to orjson."""
    assert dumps(np.float32([3.4028235e38])).replace(b"+", b"") == b"[3.4028235e38]"


@pytest.mark.parametrize("part", PARTS)
def test_large_trees_are_the_same_text_in_parts(part: int) -> None:
    chance = np.random.default_rng(0)
    tree = {
        "rows": [{"a": chance.standard_normal(3), "b": float(number), "c": "x" * 40} for number in range(300)],
        "flat": list(range(1000)),
        "one": {"two": {"three": [[chance.standard_normal((7, 30)).astype(np.float32)]]}},
        "long": "y" * 1000,
        "empty": [[], {}, np.zeros((0, 2))],
        **{f"n{number}": number for number in range(100)},
    }
    with in_parts(part):
        assert dumps(tree) == orjson.dumps(tree, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, np.float64])
def test_signalling_nans_are_nans(dtype: Any) -> None:
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(dtype).itemsize]
    infinity = np.array(np.inf).astype(dtype).view(bits)
    assert dumps((infinity + bits(1)).reshape(1).view(dtype)) == b"[NaN]"


def test_one_nan_in_a_large_array_stands_where_it_was() -> None:
    array = np.random.default_rng(0).standard_normal((3, 224, 224)).astype(np.float32)
    array[1, 100, 7], array[2, 3, 4] = np.nan, -np.inf
    text = dumps({"predictions": array})
    assert (text.count(b"NaN"), text.count(b"-Infinity")) == (1, 1)
    found: Any = loads(text)
    assert found["predictions"].astype(np.float32).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        np.array([1j]),
        [np.complex64(1)],
        b"bytes",
        {"a": b"b"},
        {1: 2},
        2**64,
        "\ud800",
        np.array([b"x"], object),
        object(),
        {1, 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_text_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps(value)
    with pytest.raises(TypeError):
        dumps([[value], np.zeros(10_000)])


TWICE = np.array([0x15AE43FD, 0x95AE43FD], np.uint32).view(np.float32)


@pytest.mark.parametrize(
    "value",
    [TWICE, {"a": TWICE, "b": [float("nan")]}, list(TWICE), TWICE.reshape(2, 1), np.tile(TWICE, 10_000), TWICE[0]],
    ids=["array", "beside NaN", "scalars", "nested", "large", "one scalar"],
)
def test_a_float32_whose_shortest_text_would_round_twice_reads_back(value: Any) -> None:
    text = dumps(value)
    assert b"7.03853069e-26" in text
    assert b"7.038531e-26" not in text


def test_a_double_of_that_text_is_printed_as_it_is() -> None:
    assert dumps([7.038531e-26, np.float64(7.038531e-26)]) == b"[7.038531e-26,7.038531e-26]"
    assert dumps(np.array([7.038531e-26])) == b"[7.038531e-26]"
