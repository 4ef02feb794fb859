"""The best classes of an output."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.protocols.v2.classification import MAX_ELEMENTS, classes


def test_the_best_come_first_equal_ones_in_their_order_and_no_numbers_last() -> None:
    found = classes(np.array([[0.5, 2, 1]], np.float32), 2, True, ["cat", "dog"])
    assert found.tolist() == [[b"2.000000:1:dog", b"1.000000:2"]]
    assert classes(np.array([3, 7, 7, -1], np.int64), 3, False).tolist() == [b"7:1", b"7:2", b"3:0"]
    assert classes(np.array([np.nan, 1, -np.inf, np.inf]), 2, False).tolist() == [b"inf:3", b"1.000000:1"]


def test_rows_are_flattened() -> None:
    found = classes(np.arange(12, dtype=np.uint8).reshape(2, 2, 3), 1, True)
    assert found.tolist() == [[b"5:5"], [b"11:5"]]


def test_there_are_no_more_classes_than_elements() -> None:
    assert classes(np.zeros((2, 3)), 9, True).shape == (2, 3)
    assert classes(np.zeros((0, 3)), 9, True).shape == (0, 3)
    assert classes(np.array(1.0), 1, True).tolist() == [b"1.000000:0"]


@pytest.mark.parametrize("dtype", [np.bool_, np.float16, ml_dtypes.bfloat16, object], ids=str)
def test_types_without_classes_are_refused(dtype: Any) -> None:
    assert "class result not available for output due to unsupported type" in refusal(
        classes, np.zeros(1, dtype), 1, False
    )


def test_large_outputs_are_refused() -> None:
    assert "classification output tensor too large" in refusal(classes, np.zeros(MAX_ELEMENTS + 1, np.int8), 1, False)


def test_rows_are_ranked_each_for_itself() -> None:
    values = np.random.default_rng(1).integers(-3, 3, (200, 7)).astype(np.int32)
    found = classes(values, 3, True)
    for row, texts in zip(values.tolist(), found.tolist(), strict=True):
        ranked = sorted(range(7), key=lambda index: (-row[index], index))[:3]
        assert texts == [f"{row[index]}:{index}".encode() for index in ranked]


def test_many_small_rows_take_about_as_long_as_few_large_ones() -> None:
    """Counted in calls, which is what takes the time."""
    assert _calls(np.zeros((20_000, 1), np.float32)) < 1000
    assert _calls(np.zeros((1, 20_000), np.float32)) < 1000


def _calls(array: Any) -> int:
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        classes(array, array.shape[1], True, ["zero"], "y")
    finally:
        sys.setprofile(before)
    return count
