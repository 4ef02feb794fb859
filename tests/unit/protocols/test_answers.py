"""Two answers compared: what is the same, what has changed, and what has failed."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tfs_lite.core.signature import DataType, SymbolicDim, TensorSpec
from tfs_lite.protocols.answers import Comparison, Likeness, compare, nonfinite

SAME, CHANGED, FAILED = Likeness
NAN, INF = math.nan, math.inf
BATCH = SymbolicDim("batch")


def floats(*values: float, dtype: object = np.float32) -> np.ndarray:
    return np.array(values).astype(dtype)


def texts(*values: bytes) -> np.ndarray:
    return np.array(values, object)


@pytest.mark.parametrize(
    ("recorded", "got", "likeness", "difference"),
    [
        (floats(1, 2), floats(1, 2), SAME, 0.0),
        (floats(1, 2), floats(1, 2.015625), SAME, 0.015625),
        (floats(1, 2), floats(1, 2.5), CHANGED, 0.5),
        (floats(0), floats(0.00005), SAME, np.float32(0.00005)),
        (floats(1, 2), floats(1, NAN), FAILED, INF),
        (floats(1, 2), floats(1, INF), FAILED, INF),
        (floats(1, NAN, INF), floats(1, NAN, INF), SAME, 0.0),
        (floats(NAN), floats(1), CHANGED, INF),
        (floats(INF), floats(-INF), CHANGED, INF),
        (floats(1, 2, dtype=ml_dtypes.bfloat16), floats(1, 3, dtype=ml_dtypes.bfloat16), CHANGED, 1.0),
        (floats(1, dtype=np.complex64), floats(1, dtype=np.complex64) * 1j, CHANGED, math.sqrt(2)),
        (floats(1, dtype=np.float16), floats(NAN, dtype=np.float16), FAILED, INF),
        (floats(), floats(), SAME, 0.0),
        (np.array([2**60]), np.array([2**60 + 1]), CHANGED, 1.0),
        (np.array([3]), np.array([3]), SAME, 0.0),
        (np.array([250], np.uint8), np.array([3], np.uint8), CHANGED, 247.0),
        (np.array([True]), np.array([False]), CHANGED, 0.0),
        (texts(b"cat", b"dog"), texts(b"cat", b"cat"), CHANGED, 0.0),
        (texts(b"cat"), texts(b"cat"), SAME, 0.0),
        (floats(1), floats(1, dtype=np.float64), FAILED, 0.0),
        (floats(1), np.float32([[1]]), FAILED, 0.0),
    ],
)
def test_values_are_the_same_within_the_tolerances(
    recorded: np.ndarray, got: np.ndarray, likeness: Likeness, difference: float
) -> None:
    found = compare({"y": recorded}, {"y": got})
    assert (found.likeness, found.difference) == (likeness, difference)
    assert (found.what == "") == (likeness is SAME)


def test_a_size_that_the_signature_fixes_may_not_differ_and_one_that_it_leaves_open_changes_the_answer() -> None:
    recorded, got = np.zeros((1, 10), np.float32), np.zeros((1, 12), np.float32)
    fixed = compare({"y": recorded}, {"y": got}, [TensorSpec("y", DataType.FLOAT, (BATCH, 12))])
    assert fixed == Comparison(FAILED, "y", "recorded float[1,10], got float[1,12]")
    for open_spec in (TensorSpec("y", DataType.FLOAT, (BATCH, SymbolicDim("n"))), TensorSpec("y"), TensorSpec("z")):
        assert compare({"y": recorded}, {"y": got}, [open_spec]).likeness is CHANGED
    assert compare({"y": recorded}, {"y": got * NAN}).likeness is FAILED


def test_an_output_may_come_in_addition_and_none_may_be_missing() -> None:
    assert compare({"y": floats(1)}, {"y": floats(1), "more": floats(NAN)}) == Comparison()
    assert str(compare({"y": floats(1)}, {})) == "output y: it was recorded, and is missing"
    assert compare({}, {"y": floats(NAN)}) == Comparison()


def test_the_worst_output_is_named_and_the_largest_difference_is_that_of_all() -> None:
    recorded = {"a": floats(1), "b": floats(1), "c": np.array([1])}
    found = compare(recorded, {"a": floats(9), "b": floats(NAN), "c": np.array([1])})
    assert (found.likeness, found.output, found.difference) == (FAILED, "b", INF)
    found = compare(recorded, {"a": floats(1.5), "b": floats(3), "c": np.array([1])})
    assert str(found) == "output b: 1 of 1 values differ, the most: recorded 1, got 3"


def test_an_answer_that_nothing_was_recorded_for_has_to_be_finite() -> None:
    assert nonfinite({"y": floats(1), "z": texts(b"a"), "n": np.array([1])}) == Comparison()
    assert str(nonfinite({"y": floats(1, NAN, INF)})) == "output y: 2 of 3 values are NaN or infinite"


def test_tolerances_are_those_that_are_given() -> None:
    assert compare({"y": floats(1)}, {"y": floats(1.25)}, rtol=0.5).likeness is SAME
    assert compare({"y": floats(1)}, {"y": floats(1.25)}, rtol=0, atol=0.25).likeness is SAME
    assert compare({"y": floats(1)}, {"y": floats(1.25)}, rtol=0, atol=0).likeness is CHANGED
