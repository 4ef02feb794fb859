"""How many values of a feature make a row, and what stands in for a feature that is missing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.servers.examples import Features, rows
from tfs_lite.core.signature import DataType, Dim, Signature, SymbolicDim, TensorSpec
from tfs_lite.protocols.dtypes import to_numpy
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.examples import tensors_of_input

BATCH = SymbolicDim("batch")
OTHER = SymbolicDim("length")


def signature(dtype: DataType = DataType.FLOAT, *shape: Dim, default: Any = None, name: str = "x") -> Signature:
    defaults = {} if default is None else {name: np.asarray(default, to_numpy(dtype) if dtype else None)}
    return Signature((TensorSpec(name, dtype, shape or (BATCH,)),), (), defaults=defaults)


UNDECLARED = Signature((TensorSpec("x"),), ())


def x(input: Message, of: Signature) -> np.ndarray[Any, Any]:
    (array,) = tensors_of_input(input, of).values()
    assert array.flags.c_contiguous
    return array


def refused(input: Message, of: Signature, **rest: Any) -> str:
    return refusal(tensors_of_input, input, of, **rest)


def assert_same(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert (got.dtype, got.shape, got.tolist()) == (expected.dtype, expected.shape, expected.tolist())


@pytest.mark.parametrize("width", [1, 4, 31, 32, 100])
@pytest.mark.parametrize("make", [float, int])
def test_rows_of_a_fixed_width(width: int, make: Any) -> None:
    values = np.arange(3 * width).reshape(3, width)
    sent = rows(*({"x": [make(value) for value in row]} for row in values))
    assert_same(x(sent, signature(DataType.FLOAT, BATCH, width)), values.astype(np.float32))


@pytest.mark.parametrize(
    ("inner", "size", "shape"),
    [
        ((2, 3), 6, (2, 3)),
        ((OTHER,), 5, (5,)),
        ((OTHER,), 0, (0,)),
        ((2, OTHER), 6, (2, 3)),
        ((OTHER, 2), 6, (3, 2)),
        ((2, OTHER, 2), 0, (2, 0, 2)),
        ((1,), 1, (1,)),
        ((0,), 0, (0,)),
        ((), 1, ()),
        ((BATCH,), 2, (2,)),
        ((BATCH, OTHER), 6, (2, 3)),
    ],
)
def test_shape_of_a_row_is_found_from_its_number_of_values(
    inner: tuple[Dim, ...], size: int, shape: tuple[int, ...]
) -> None:
    sent = [np.arange(size, dtype=np.float32) + 10 * row for row in range(2)]
    got = x(rows(*({"x": row.tolist()} for row in sent)), signature(DataType.FLOAT, BATCH, *inner))
    assert_same(got, np.array(sent, np.float32).reshape(2, *shape))


@pytest.mark.parametrize(
    ("inner", "sizes", "message"),
    [
        ((), (1, 2), "feature x of example 1 has 2 values, expected 1 for a row of input x, which has shape [-1]"),
        ((), (0,), "feature x of example 0 has 0 values, expected 1 for a row of input x, which has shape [-1]"),
        (
            (4,),
            (4, 4, 3),
            "feature x of example 2 has 3 values, expected 4 for a row of input x, which has shape [-1,4]",
        ),
        ((OTHER,), (2, 2, 3), "feature x of example 2 has 3 values, expected 2 as in example 0"),
        ((2, OTHER), (3,), "feature x of example 0 has 3 values, expected a multiple of 2 for shape [-1,2,-1]"),
        ((0, OTHER), (0,), "feature x of example 0 has 0 values, expected a multiple of 0 for shape [-1,0,-1]"),
        ((SymbolicDim("h"), OTHER), (4,), "input x has shape [-1,-1,-1]: examples cannot feed several unknown sizes"),
    ],
)
def test_rows_of_another_size_are_refused(inner: tuple[Dim, ...], sizes: tuple[int, ...], message: str) -> None:
    sent = rows(*({"x": [1.0] * size} for size in sizes))
    assert refused(sent, signature(DataType.FLOAT, BATCH, *inner)) == message


def test_input_without_a_batch_takes_as_many_examples_as_it_has_rows() -> None:
    fixed = signature(DataType.FLOAT, 2, 3)
    assert x(rows({"x": [1.0, 2.0, 3.0]}, {"x": [4.0, 5.0, 6.0]}), fixed).tolist() == [[1, 2, 3], [4, 5, 6]]
    message = refused(rows({"x": [1.0, 2.0, 3.0]}), fixed)
    assert message.startswith("input x has a fixed size of 2 in dimension 0, which is no batch dimension: 1 examples")


def test_single_value_cannot_be_fed() -> None:
    scalar = Signature((TensorSpec("x", DataType.FLOAT, ()),), ())
    assert "is a single value without a batch dimension" in refused(rows({"x": [1.0]}), scalar)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (([1.5], [2.5]), np.array([1.5, 2.5], np.float32)),
        (([1], [2]), np.array([1, 2])),
        (([1], [2.5]), np.array([1, 2.5], np.float32)),
        (([1, 2], [3, 4]), np.array([[1, 2], [3, 4]])),
        (([b"a"], [b"b"]), np.array([b"a", b"b"], object)),
        (([], []), np.zeros((2, 0), np.float32)),
    ],
)
def test_what_is_not_declared_is_found_from_the_features(sent: Any, expected: np.ndarray[Any, Any]) -> None:
    assert_same(x(rows(*({"x": values} for values in sent)), UNDECLARED), expected)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (([1], [1, 2]), "feature x of example 1 has 2 values, expected 1 as in example 0"),
        (([b"a"], [1]), "feature x of example 1 came as int64_list, but input x of string takes bytes_list"),
        (([1], None), "feature x is missing in example 1"),
    ],
)
def test_undeclared_rows_must_agree(sent: Any, words: str) -> None:
    assert words in refused(rows(*({"x": values} for values in sent)), UNDECLARED)


# Missing features


@pytest.mark.parametrize("absent", [{}, {"x": None}, {"y": [1.0]}])
def test_a_missing_feature_names_the_example(absent: Features) -> None:
    message = refused(rows({"x": [1.0]}, absent, absent), signature())
    assert message == "feature x is missing in example 1, and input x has no default for a row"


def test_default_row_stands_in_for_a_missing_feature() -> None:
    of = signature(DataType.FLOAT, BATCH, 2, default=[7, 8])
    assert x(rows({"x": [1.0, 2.0]}, {}, {"x": None}), of).tolist() == [[1, 2], [7, 8], [7, 8]]
    assert x(rows({}, {}), of).tolist() == [[7, 8], [7, 8]]
    assert x(rows({"x": [1.0, 2.0]}), of).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("dtype", "default", "sent", "expected"),
    [
        (DataType.STRING, b"none", [b"some"], np.array([b"none", b"some"], object)),
        (DataType.BFLOAT16, 1.5, [2.5], np.array([1.5, 2.5], ml_dtypes.bfloat16)),
        (DataType.BOOL, True, [0], np.array([True, False])),
    ],
)
def test_default_of_every_kind(dtype: DataType, default: Any, sent: Any, expected: np.ndarray[Any, Any]) -> None:
    assert_same(x(rows({}, {"x": sent}), signature(dtype, default=default)), expected)


def test_default_of_an_undeclared_type_says_the_type() -> None:
    of = Signature((TensorSpec("x", shape=(BATCH,)),), (), defaults={"x": np.array(3, np.int32)})
    assert_same(x(rows({}, {"x": [4]}), of), np.array([3, 4], np.int32))


def test_default_of_an_unknown_size_must_agree_with_what_was_sent() -> None:
    of = signature(DataType.FLOAT, BATCH, OTHER, default=[7, 8])
    assert x(rows({}, {"x": [1.0, 2.0]}), of).tolist() == [[7, 8], [1, 2]]
    assert x(rows({}), of).tolist() == [[7, 8]]
    assert "has shape [2], but the features that were sent have [3]" in refused(rows({}, {"x": [1.0] * 3}), of)


def test_default_of_an_input_with_fixed_rows_has_one_for_each_example() -> None:
    of = signature(DataType.FLOAT, 2, default=[7, 8])
    assert x(rows({"x": [1.0]}, {}), of).tolist() == [1, 8]
    assert "no batch dimension: 1 examples" in refused(rows({"x": [1.0]}), of)


@pytest.mark.parametrize("shape", [(), (2,), None])
def test_input_that_no_example_feeds_is_left_to_its_default(shape: tuple[int, ...] | None) -> None:
    spec = TensorSpec("k", DataType.FLOAT, shape)
    of = Signature((*signature().inputs, spec), (), defaults={"k": np.zeros(shape or (), np.float32)})
    assert set(tensors_of_input(rows({"x": [1.0]}), of)) == {"x"}


def test_whole_default_is_no_row() -> None:
    of = Signature((TensorSpec("x", DataType.FLOAT),), (), defaults={"x": np.zeros(3, np.float32)})
    assert "missing in example 1, and input x has no default for a row" in refused(rows({"x": [1.0]}, {}), of)


def test_inputs_are_fed_by_name_and_other_features_passed_over() -> None:
    of = Signature((TensorSpec("a", DataType.FLOAT, (BATCH,)), TensorSpec("b", DataType.INT64, (BATCH, 2))), ())
    arrays = tensors_of_input(rows({"b": [1, 2], "a": [0.5], "c": [b"ignored"]}), of)
    assert {name: array.tolist() for name, array in arrays.items()} == {"a": [0.5], "b": [[1, 2]]}
