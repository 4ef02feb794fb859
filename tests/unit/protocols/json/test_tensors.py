"""Nested lists -> arrays: the quick way and the careful way agree, and lists and arrays are alike."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.signature import DataType, Signature, TensorSpec
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import to_numpy
from tfs_lite.protocols.json.tensors import infer_dtype, read_tensor
from tfs_lite.protocols.rest.rows import read_rows

INTEGERS = st.sampled_from([0, 1, -1, 127, 128, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)])
FRACTIONS = st.sampled_from([0.5, -1.5, 1e-60, 1e39, float("inf"), float("nan")])
LEAVES = st.sampled_from([0.5, "a", "", True, False, None, {"b64": "YQ=="}, {"a": 1}]) | INTEGERS
UNIFORM = st.sampled_from([INTEGERS, FRACTIONS, st.floats(), st.text(max_size=2), st.booleans(), LEAVES])
ALIKE = st.sampled_from([INTEGERS, FRACTIONS, LEAVES])
"""Without whole floats, which an array cannot tell from integers."""
DTYPES = st.sampled_from(
    [
        *(DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.INT8, DataType.UINT8, DataType.INT32),
        *(DataType.INT64, DataType.UINT64, DataType.BOOL, DataType.STRING, DataType.COMPLEX64),
    ]
)


@st.composite
def trees(draw: st.DrawFn, kinds: Any = UNIFORM) -> Any:
    """Nested lists that are mostly regular, with leaves that are mostly of one kind."""
    leaves = draw(kinds)
    shape = draw(st.lists(st.integers(0, 3), max_size=3))

    def build(level: int) -> Any:
        if level == len(shape) or draw(st.integers(0, 40)) == 0:
            return draw(leaves)
        size = shape[level] if draw(st.integers(0, 20)) else draw(st.integers(0, 3))
        return [build(level + 1) for _ in range(size)]

    value = build(0)
    return [value] if not isinstance(value, list) and draw(st.booleans()) else value


def with_arrays(value: Any, draw: Any) -> Any:
    """Arrays in place of some of the lists that may be one."""
    if not isinstance(value, list) or not value:
        return value
    leaves = value
    while leaves and all(isinstance(item, list) for item in leaves) and len({*map(len, leaves)}) == 1:
        leaves = list(chain.from_iterable(leaves))
    if leaves and {*map(type, leaves)} == {float}:
        return np.array(value)
    if leaves and {*map(type, leaves)} == {int} and (min(leaves) >= 0 or max(leaves) < 2**63) and draw(st.booleans()):
        return np.array(value, np.uint64 if max(leaves) >= 2**63 else np.int64)
    return [with_arrays(item, draw) for item in value]


def outcome(call: Any, *args: Any) -> Any:
    """What a call gives, in a form that can be compared: an array's parts, or the error's."""
    try:
        array = call(*args)
    except ServingError as error:
        return error.code, str(error)
    return array.dtype, array.shape, str(array.tolist())


def fits(leaf: Any, dtype: DataType) -> bool:
    numpy_dtype = to_numpy(dtype)
    if dtype is DataType.STRING:
        return isinstance(leaf, str) or leaf == {"b64": "YQ=="}
    if dtype is DataType.BOOL:
        return isinstance(leaf, bool)
    if numpy_dtype.kind in "iu":
        return type(leaf) is int and np.iinfo(numpy_dtype).min <= leaf <= np.iinfo(numpy_dtype).max
    return numpy_dtype.kind == "f" and type(leaf) in (int, float)


def regular(value: Any, shape: list[int], dtype: DataType) -> bool:
    if not shape:
        return not isinstance(value, list) and fits(value, dtype)
    return isinstance(value, list) and len(value) == shape[0] and all(regular(v, shape[1:], dtype) for v in value)


def first_shape(value: Any) -> list[int]:
    if not isinstance(value, list):
        return []
    return [len(value), *first_shape(value[0])] if value else [0]


@examples(1000)
@given(trees(), DTYPES)
def test_a_value_is_read_if_it_is_regular_and_every_leaf_fits(value: Any, dtype: DataType) -> None:
    shape = first_shape(value)
    if not regular(value, shape, dtype):
        with pytest.raises(ServingError):
            read_tensor(value, dtype)
        return
    array = read_tensor(value, dtype)
    assert array.shape == tuple(shape)
    assert array.dtype == to_numpy(dtype)
    leaves = [value]
    for _ in shape:
        leaves = list(chain.from_iterable(leaves))
    if dtype is DataType.STRING:
        assert array.ravel().tolist() == [b"a" if isinstance(leaf, dict) else leaf.encode() for leaf in leaves]
    elif array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            expected = np.array([float(leaf) for leaf in leaves]).astype(array.dtype)
        assert str(array.ravel().tolist()) == str(expected.tolist())
    else:
        assert array.ravel().tolist() == leaves


@given(trees(ALIKE), DTYPES | st.just(DataType.INVALID), st.data())
def test_lists_and_arrays_give_the_same_array_or_the_same_error(value: Any, dtype: DataType, data: Any) -> None:
    other = with_arrays(value, data.draw)
    assert infer_dtype(other) is infer_dtype(value)
    dtype = dtype or infer_dtype(value)
    assert outcome(read_tensor, other, dtype) == outcome(read_tensor, value, dtype)


@given(st.lists(trees(ALIKE), min_size=1, max_size=4), DTYPES | st.just(DataType.INVALID), st.data())
def test_rows_of_lists_and_of_arrays_give_the_same(rows: list[Any], dtype: DataType, data: Any) -> None:
    signature = Signature((TensorSpec("x", dtype),), ())

    def read(value: Any) -> Any:
        return outcome(lambda: read_rows(value, signature)["x"])

    assert read(with_arrays(rows, data.draw)) == read(rows)
    objects = [{"x": row} for row in rows]
    assert read([{"x": with_arrays(row, data.draw)} for row in rows]) == read(objects)


@given(st.lists(trees(), min_size=1, max_size=4), DTYPES)
def test_rows_are_read_if_each_is_read_and_all_have_one_shape(rows: list[Any], dtype: DataType) -> None:
    signature = Signature((TensorSpec("x", dtype),), ())
    alone = [outcome(read_tensor, row, dtype) for row in rows]
    together = outcome(lambda: read_rows([{"x": row} for row in rows], signature)["x"])
    if all(len(item) == 3 for item in alone) and len({item[1] for item in alone}) == 1:
        assert together[1] == (len(rows), *alone[0][1])
        assert together[2] == f"[{', '.join(item[2] for item in alone)}]"
    else:
        assert "Failed to process element: " in together[1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], DataType.FLOAT),
        ([[], [[]]], DataType.FLOAT),
        ([1, 2], DataType.INT64),
        ([1, [2.0]], DataType.FLOAT),
        ([np.array([1]), np.array([0.5])], DataType.FLOAT),
        ([np.array([1], np.uint64), 2], DataType.INT64),
        ([True], DataType.BOOL),
        ([[b"a"]], DataType.STRING),
        ({"b64": ""}, DataType.STRING),
        (None, DataType.FLOAT),
    ],
)
def test_the_type_of_what_is_not_declared_follows_from_the_leaves(value: Any, expected: DataType) -> None:
    assert infer_dtype(value) is expected
