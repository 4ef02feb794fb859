"""Predict bodies that no JSON text can show (msgpack, arrays), and the way there and back of every element type.

The rules of JSON bodies are in ``test_json_rules``.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.support.errors import refusal
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.protocols.dtypes import TABLE, from_numpy
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES, dumps, loads
from tfs_lite.protocols.rest.predict import (
    PredictBody,
    find_rest_signature,
    predict_tree,
    read_predict_body,
    tensors_of,
)

COMPLEX = (DataType.COMPLEX64, DataType.COMPLEX128)
NUMERIC = [row for row in TABLE if row.dtype not in (DataType.STRING, *COMPLEX)]
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=3)
BATCH = SymbolicDim("batch")


def one(dtype: DataType) -> Signature:
    return Signature((TensorSpec("x", dtype),), ())


def read(tree: Any, signature: Signature) -> dict[str, np.ndarray]:
    return tensors_of(read_predict_body(tree), signature)


def refused(tree: Any, signature: Signature) -> str:
    return refusal(read, tree, signature)


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit; one NaN is as good as another."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.dtype == object or expected.dtype.kind in "biu":
        assert got.tolist() == expected.tolist()
        return
    with np.errstate(all="ignore"):
        nans = np.isnan(expected)
        assert (np.isnan(got) == nans).all()
    assert got[~nans].tobytes() == expected[~nans].tobytes()


@st.composite
def arrays(draw: st.DrawFn, shapes: st.SearchStrategy[tuple[int, ...]] = SHAPES) -> np.ndarray:
    """Any bit pattern of any element type that REST has, also with no elements in the last dimension."""
    row = draw(st.sampled_from(TABLE))
    shape = draw(shapes)
    if len(shape) > 1 and draw(st.integers(0, 9)) == 0:
        shape = (*shape[:-1], 0)
    if row.dtype is DataType.STRING or row.dtype in COMPLEX:
        return draw(npst.arrays(object, shape, elements=st.binary(max_size=4) | st.text(max_size=4).map(str.encode)))
    if row.dtype is DataType.BOOL:
        return draw(npst.arrays(bool, shape))
    size = int(np.prod(shape)) * row.numpy.itemsize
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), row.numpy).reshape(shape)


def signature_for(outputs: dict[str, np.ndarray]) -> Signature:
    return Signature(tuple(TensorSpec(name, from_numpy(array.dtype)) for name, array in outputs.items()), ())


def there_and_back(outputs: dict[str, np.ndarray], rows: bool) -> None:
    answer = predict_tree(outputs, rows)
    request = {"instances": answer["predictions"]} if rows else {"inputs": answer["outputs"]}
    got = read(loads(dumps(request)), signature_for(outputs))
    assert got.keys() == outputs.keys()
    for name, array in outputs.items():
        assert_same(got[name], array)


@given(arrays(), st.sampled_from(["x", "x_bytes"]))
def test_an_output_sent_as_an_input_is_the_same_bit_for_bit(array: np.ndarray, name: str) -> None:
    there_and_back({name: array}, rows=False)
    if array.ndim:
        there_and_back({name: array}, rows=True)


@given(st.dictionaries(st.sampled_from(["a", "b", "c_bytes", "b64"]), arrays(), min_size=2))
def test_several_outputs_sent_as_inputs_are_the_same(outputs: dict[str, np.ndarray]) -> None:
    there_and_back(outputs, rows=False)


@given(st.data(), st.integers(1, 4))
def test_several_outputs_in_rows_sent_as_inputs_are_the_same(data: st.DataObject, batch: int) -> None:
    shapes = npst.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=3).map(lambda shape: (batch, *shape))
    outputs = data.draw(st.dictionaries(st.sampled_from(["a", "b", "c_bytes"]), arrays(shapes), min_size=2))
    there_and_back(outputs, rows=True)


@pytest.mark.parametrize("row", NUMERIC, ids=lambda row: row.dtype.text)
def test_the_extremes_of_every_type_come_back(row: Any) -> None:
    if row.dtype is DataType.BOOL:
        values = np.array([True, False])
    elif row.numpy.kind in "iu":
        values = np.array([np.iinfo(row.numpy).min, 0, np.iinfo(row.numpy).max], row.numpy)
    else:
        info = ml_dtypes.finfo(row.numpy)
        tiny = [info.smallest_subnormal, info.smallest_normal, info.eps]
        values = np.array([info.min, info.max, *tiny, 0.0, -0.0, np.nan, np.inf, -np.inf], row.numpy)
    there_and_back({"x": values}, rows=False)
    there_and_back({"x": values}, rows=True)


def test_strings_of_msgpack_may_be_text_or_binary_and_binary_data_is_no_number() -> None:
    tree = {"instances": ["a", b"\xff", {"b64": "/w=="}]}
    assert read(tree, one(DataType.STRING))["x"].tolist() == [b"a", b"\xff", b"\xff"]
    assert read({"inputs": [[b"\xff", b""]]}, one(DataType.STRING))["x"].tolist() == [[b"\xff", b""]]
    assert read({"inputs": b"\xff"}, one(DataType.INVALID))["x"].tolist() == b"\xff"
    message = refused({"inputs": [1, b"\xff"]}, one(DataType.FLOAT))
    assert 'JSON Value: {"b64":"/w=="} Type: Binary is not of expected type: float' in message


@pytest.mark.parametrize("dtype", [DataType.FLOAT, DataType.DOUBLE, DataType.INT32, DataType.UINT8, DataType.INVALID])
def test_large_lists_may_come_as_arrays_at_any_level(dtype: DataType) -> None:
    numbers = np.arange(24).reshape(4, 2, 3)
    expected = read({"instances": numbers.tolist()}, one(dtype))["x"]
    mixed = [numbers[0], numbers[1].tolist(), [numbers[2][0], numbers[2][1].tolist()], numbers[3].astype(np.uint64)]
    for value in (numbers, list(numbers), mixed):
        assert_same(read({"instances": value}, one(dtype))["x"], expected)
        assert_same(read({"instances": [{"x": item} for item in value]}, one(dtype))["x"], expected)
        assert_same(read({"inputs": value}, one(dtype))["x"], expected)
        assert_same(read({"inputs": {"x": value}}, one(dtype))["x"], expected)


def test_rows_of_integers_and_rows_of_fractions_are_float_where_no_type_is_declared() -> None:
    value = [np.array([1, 2]), np.array([0.5, 2]), [3, 4]]
    assert_same(
        read({"instances": value}, one(DataType.INVALID))["x"], np.array([[1, 2], [0.5, 2], [3, 4]], np.float32)
    )


@pytest.mark.parametrize("dtype", [DataType.FLOAT, DataType.DOUBLE, DataType.INVALID])
def test_a_large_text_is_read_as_a_small_one(dtype: DataType) -> None:
    numbers = np.random.default_rng(0).normal(size=(3, 40, 100))
    numbers[1] = np.round(numbers[1]) + 0.0
    expected = numbers.astype(np.float32 if dtype is not DataType.DOUBLE else np.float64)
    rows: list[Any] = [numbers[0].tolist(), numbers[1].astype(int).tolist(), numbers[2].tolist()]
    for tree in ({"instances": rows}, {"instances": [{"x": row} for row in rows]}, {"inputs": {"x": rows}}):
        text = dumps(tree)
        assert len(text) > COMFORTABLE_BYTES
        assert_same(read(loads(text), one(dtype))["x"], expected)


def test_a_large_array_is_refused_by_its_first_misfit() -> None:
    numbers = np.zeros((1000, 1000), np.int64)
    numbers[700, 3] = 256
    numbers[800, 3] = -1
    message = refused({"instances": numbers}, one(DataType.UINT8))
    assert message.startswith("Failed to process element: 700 of 'instances' list. Error: INVALID_ARGUMENT: ")
    assert "JSON Value: 256 " in message
    assert "JSON Value: 256 " in refused({"inputs": numbers}, one(DataType.UINT8))
    assert "JSON Value: 0.0 Type: Number" in refused({"inputs": numbers.astype(float)}, one(DataType.INT64))


def test_several_inputs_cannot_come_as_one_array() -> None:
    signature = Signature((TensorSpec("a"), TensorSpec("b")), ())
    assert "instances is a plain list" in refused({"instances": np.zeros((5, 2))}, signature)
    assert "expected a list of objects with the keys a,b" in refused({"instances": np.zeros(5)}, signature)
    assert "inputs is a plain value/list" in refused({"inputs": np.zeros(5)}, signature)


def test_a_message_shows_only_the_start_of_a_large_value() -> None:
    for value in ("x" * 10**6, [["x"] * 1000] * 1000, {"k" * 10**6: 1}, np.zeros((1000, 1000)), [np.zeros(10**6)]):
        assert len(refused({"instances": value}, Signature((TensorSpec("x", DataType.BOOL),), ()))) < 1000
        assert len(refused({"instances": [{"x": 1, "y": value}]}, one(DataType.FLOAT))) < 1000
        assert len(refused({"inputs": {"x": {"y": value}}}, one(DataType.FLOAT))) < 1000
    assert len(refused({"instances": [{"k" * 10**6: 1}]}, one(DataType.FLOAT))) < 1000
    assert len(refused({"signature_name": ["x" * 10**6], "instances": [1]}, one(DataType.FLOAT))) < 1000
    assert len(refused(["x"] * 10**6, one(DataType.FLOAT))) < 1000


@pytest.mark.parametrize("leaf", [1, "a", {"b64": "YQ=="}, np.zeros(3)])
@pytest.mark.parametrize("depth", [63, 64, 65, 99])
def test_no_tensor_has_more_dimensions_than_numpy_allows(depth: int, leaf: Any) -> None:
    dtype = DataType.STRING if isinstance(leaf, str | dict) else DataType.FLOAT
    value = leaf
    for _ in range(depth):
        value = [value]
    rank = depth + np.ndim(leaf) if isinstance(leaf, np.ndarray) else depth
    for tree, extra in (({"inputs": value}, 0), ({"instances": [value]}, 1), ({"instances": [{"x": value}]}, 1)):
        if rank + extra <= 64:
            assert read(tree, one(dtype))["x"].ndim == rank + extra
        else:
            assert "nested more than 64 deep" in refused(tree, one(dtype))


def test_defaults_are_repeated_for_rows_that_say_nothing_within_a_bound() -> None:
    row = np.zeros((1024, 1024), np.float32)
    specs = (TensorSpec("x", DataType.FLOAT, (BATCH, 1024, 1024)), TensorSpec("t", DataType.FLOAT, (1,)))
    signature = Signature(specs, (), defaults={"x": row, "t": np.zeros(1, np.float32)})
    got = read({"instances": [{}] * 3}, signature)
    assert got.keys() == {"x"}
    assert got["x"].shape == (3, 1024, 1024)
    assert "at most 104857600 are allowed" in refused({"instances": [{}] * 26}, signature)


def test_the_parts_of_a_body() -> None:
    assert read_predict_body({"signature_name": "s", "inputs": 1}) == PredictBody("s", False, 1)
    assert read_predict_body({"instances": [1]}) == PredictBody("", True, [1])
    assert read_predict_body({}).problem


def test_null_is_absent_beside_the_tensors() -> None:
    assert read_predict_body({"signature_name": None, "inputs": 1, "instances": None}) == PredictBody("", False, 1)
    assert read_predict_body({"inputs": None, "instances": [1]}) == PredictBody("", True, [1])
    assert read_predict_body({"instances": None}).problem == "Missing 'inputs' or 'instances' key"
    pair = Signature((TensorSpec("a", DataType.FLOAT), TensorSpec("b", DataType.FLOAT)), (), optional=frozenset({"b"}))
    assert read({"inputs": {"a": [1], "b": None}}, pair).keys() == {"a"}
    assert "Type: Null" in refused({"inputs": {"a": None, "b": [1]}}, pair)
    assert "Type: Null" in refused({"inputs": {"x": [1, None]}}, one(DataType.FLOAT))


def test_signatures_are_looked_up_between_the_members_and_the_tensors() -> None:
    float_, pair = one(DataType.FLOAT), Signature((TensorSpec("a"), TensorSpec("b")), ())
    body = read_predict_body(loads(b'{"signature_name": "no"}'))
    assert 'Serving signature name: "no" not found in signature def' in refusal(
        find_rest_signature, {"a": float_, "serving_default": pair}, body.signature_name
    )
    assert find_rest_signature({"a": float_, "serving_default": pair}, "") is pair
    assert find_rest_signature({"a": float_}, "a") is float_
