"""msgpack bodies in and out: values, bounds, and large arrays of floats."""

import struct
from typing import Any

import ml_dtypes
import numpy as np
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.support import errors
from tests.support.profiles import examples
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.json import msgpack as msgpack_body
from tfs_lite.protocols.json.msgpack import LEAST_ARRAY_BYTES, MAX_TREE_BYTES, dumps, loads

LARGE = b"\xc6" + (LEAST_ARRAY_BYTES).to_bytes(4, "big") + bytes(LEAST_ARRAY_BYTES)
"""A binary value that makes a body large."""
SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


def refusal(data: bytes) -> str:
    return errors.refusal(loads, data)


def attempt(data: bytes) -> ServingError | None:
    try:
        loads(data)
    except ServingError as error:
        return error
    return None


def packed(value: Any) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_SERIALIZE_NUMPY)


@given(TREES)
def test_any_tree_comes_back(tree: Any) -> None:
    assert loads(dumps(tree)) == tree
    assert loads(dumps([b"\0" * LEAST_ARRAY_BYTES, tree]))[1] == tree  # type: ignore[index]


@given(TREES, st.data())
def test_damage_is_refused_or_read_but_nothing_else(tree: Any, data: st.DataObject) -> None:
    damaged = bytearray(dumps(tree))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged)))
        damaged[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    for body in (bytes(damaged), b"\x92" + LARGE + damaged):
        error = attempt(body)
        assert error is None or error.code is StatusCode.INVALID_ARGUMENT
        assert error is None or str(error).startswith("msgpack Parse error: ")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "The document is empty"),
        (b"\x01\x02", "something follows the value"),
        (b"\x81\xa1a\x01\xc0", "something follows the value"),
        (b"\x92\x01", "unexpected end of file"),
        (b"\xdd\xff\xff\xff\xff\x01", "unexpected end of file"),
        (b"\xdf\xff\xff\xff\xff", "unexpected end of file"),
        (b"\xc6\xff\xff\xff\xff", "unexpected end of file"),
        (b"\xdb\xff\xff\xff\xffa", "unexpected end of file"),
        (b"\xa1\xff", "invalid UTF-8 string"),
        (b"\x81\xa1\xff\x01", "invalid UTF-8 string"),
        (b"\x81\x01\x02", "a name in a map is no string"),
        (b"\x81\xc4\x01a\x02", "a name in a map is no string"),
        (b"\x81\x90\x02", "a name in a map is no string"),
        (b"\xd4\x05a", "extension types are not supported"),
        (b"\x91\xd6\xff\0\0\0\0", "extension types are not supported"),
        (b"\xc7\x01\x05a", "extension types are not supported"),
        (b"\xc1", "invalid type Reserved"),
        (b"\x91" * 100 + b"\x90", "more than 100 levels of nesting"),
        (b"\x81\xa1a" * 100 + b"\x80", "more than 100 levels of nesting"),
        (b"\x91" * 500_000, "more than 100 levels of nesting"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_is_no_body_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    assert refusal(data) == f"msgpack Parse error: {reason}"
    if data and "follows" not in reason and "nesting" not in reason:
        assert refusal(b"\x92" + LARGE + data) == f"msgpack Parse error: {reason}"


def test_a_hundred_levels_are_read() -> None:
    for data in (b"\x91" * 99 + b"\x90", b"\x91" * 100 + b"\x01", b"\x81\xa1a" * 100 + b"\x01"):
        assert loads(data)
    assert loads(b"\x91" * 100 + LARGE)
    assert "100 levels" in refusal(b"\x91" * 101 + LARGE)


def test_the_last_of_two_equal_names_wins() -> None:
    assert loads(b"\x82\xa1a\x01\xa1a\x02") == {"a": 2}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(20_000,), (1, 20_000), (5000, 4), (2, 3, 70_000), (70_000, 1, 1), (10, 20, 30, 4)])
def test_large_lists_of_floats_come_as_arrays(dtype: Any, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    values.ravel()[3:6] = [np.nan, np.inf, -0.0]
    for body in ({"inputs": values}, {"signature_name": "s", "instances": [{"a": values, "b": 1}, {"a": values}]}):
        data = dumps(body)
        assert data == packed(body)
        found: Any = loads(data)
        arrays = [found["inputs"]] if "inputs" in body else [row["a"] for row in found["instances"]]
        for array in arrays:
            assert isinstance(array, np.ndarray)
            assert array.dtype == np.float64
            assert array.shape == shape
            assert array.astype(dtype).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[5000].append(1.5),
        lambda rows: rows[9999].pop(),
        lambda rows: rows[3].__setitem__(1, 7),
        lambda rows: rows[3].__setitem__(1, None),
        lambda rows: rows.__setitem__(6000, 1.5),
        lambda rows: rows.append("x"),
    ],
)
def test_irregular_lists_stay_lists(change: Any) -> None:
    rows: list[Any] = np.random.default_rng(0).standard_normal((10_000, 3)).tolist()
    change(rows)
    assert loads(packed({"inputs": rows})) == {"inputs": rows}


def test_a_body_with_an_array_is_refused_like_any_other() -> None:
    array = packed(np.zeros((5000, 3)))
    assert "something follows" in refusal(array + b"\0")
    assert "end of file" in refusal(array[:-1])
    assert "no string" in refusal(b"\x82\xa1a" + array + b"\x01\x02")
    assert "100 levels" in refusal(b"\x91" * 99 + array)


@pytest.mark.parametrize("outer", [0, 1, 61, 62, 98])
def test_an_array_is_found_below_other_lists(outer: int) -> None:
    found: Any = loads(b"\x91" * outer + packed(np.zeros((5000, 3))))
    for _ in range(max(0, outer - 61)):
        assert isinstance(found, list)
        (found,) = found
    assert isinstance(found, np.ndarray)
    assert found.shape == (1,) * min(61, outer) + (5000, 3)


def test_a_body_of_many_values_is_read_as_a_whole() -> None:
    rows = [{"a": number, "b": ["x", b"y"]} for number in range(20_000)]
    tree = {"rows": rows, "array": np.zeros((100, 100)).tolist()}
    assert loads(dumps(tree)) == tree


@examples(60)
@pytest.mark.parametrize("dtype", ["f4", "f8", ">f4", "i1", "i8", ">i2", "u1", "u8", "?"])
@given(data=st.data())
def test_arrays_are_written_as_nested_lists(dtype: str, data: st.DataObject) -> None:
    array = data.draw(npst.arrays(dtype, SHAPES, elements={"allow_nan": False} if "f" in dtype else None)).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(msgpack_body, "_PART_VALUES", data.draw(st.sampled_from([1, 5, 1 << 16])))
        found: Any = loads(dumps({"a": array}))
    assert found["a"] == array.tolist()


@pytest.mark.parametrize("part", [1, 10, 1000])
def test_large_trees_are_the_same_bytes_in_parts(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {
        "rows": [{"a": np.arange(3.0), "b": float(number), "c": b"x" * 40} for number in range(300)],
        "flat": list(range(1000)),
        "one": {"two": {"three": [[np.ones((7, 30), np.float32)]]}},
        "long": "y" * 1000,
        "empty": [[], {}, np.zeros((0, 2)), ()],
        "many": {f"n{number}": number for number in range(70_000)},
        **{f"n{number}": number for number in range(100)},
    }
    monkeypatch.setattr(msgpack_body, "_PART_VALUES", part)
    assert dumps(tree) == packed(tree)
    assert dumps(np.array([[b"a", 1.5]], object)) == b"\x91\x92\xc4\x01a\xcb\x3f\xf8" + bytes(6)
    with pytest.raises(TypeError):
        dumps({1: [0] * 2000})


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (np.array([1.5], np.float32), b"\x91\xca\x3f\xc0\0\0"),
        (np.array(1.5, np.float32), b"\xca\x3f\xc0\0\0"),
        (np.float64(1.5), b"\xcb\x3f\xf8" + bytes(6)),
        (np.array([1.5], ml_dtypes.bfloat16), b"\x91\xca\x3f\xc0\0\0"),
        (np.array([1.5], np.float16), b"\x91\xca\x3f\xc0\0\0"),
        ([ml_dtypes.bfloat16(1.5)], b"\x91\xca\x3f\xc0\0\0"),
        (np.array([1.5], ">f4"), b"\x91\xca\x3f\xc0\0\0"),
        (np.array([np.inf]), b"\x91\xcb" + struct.pack(">d", np.inf)),
        (np.array([b"a", "b"], object), b"\x92\xc4\x01a\xa1b"),
        ({"a": [b"x", True, None]}, b"\x81\xa1a\x93\xc4\x01x\xc3\xc0"),
        (np.zeros((2, 0)), b"\x92\x90\x90"),
        (np.array([3], ml_dtypes.int4), b"\x91\x03"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_have_these_bytes(value: Any, data: bytes) -> None:
    assert dumps(value) == data


@pytest.mark.parametrize(
    "value",
    [np.array([1j]), np.complex64(1), {1: 2}, 2**64, "\ud800", object(), {1, 2}],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_bytes_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps(value)
    with pytest.raises(TypeError):
        dumps({"a": [value]})


def test_a_body_that_would_unfold_into_too_many_values_is_refused_before_it_is_read() -> None:
    with pytest.raises(ServingError, match="more than 4096 values besides large lists of floats"):
        loads(b"\xdd" + (MAX_TREE_BYTES + 1).to_bytes(4, "big") + b"\x90" * (MAX_TREE_BYTES + 1))


def test_a_large_body_of_few_large_values_is_read() -> None:
    picture = b"\0" * (MAX_TREE_BYTES + 1)
    assert loads(dumps({"instances": [{"b": picture}, {"b": picture}]})) == {"instances": [{"b": picture}] * 2}
