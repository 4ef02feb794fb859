"""Rows of large bodies: what is right is skipped in runs, what is wrong is still named by its number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.core.signature import DataType, Signature, TensorSpec
from tfs_lite.protocols.rest.rows import read_rows

FLOAT = Signature((TensorSpec("x", DataType.FLOAT),), ())
STRING = Signature((TensorSpec("x", DataType.STRING),), ())
PAIR = Signature((TensorSpec("a", DataType.INT32), TensorSpec("b", DataType.STRING)), ())


@pytest.mark.parametrize("place", [0, 1, 1023, 1024, 2999])
@pytest.mark.parametrize(
    ("row", "bad", "marker"),
    [
        (1.5, "a", "is not of expected type: float"),
        ([1.5, 2], [1.5, None], "is not of expected type: float"),
        (np.array([1.5, 2]), [1.5, None], "is not of expected type: float"),
        ([1.5, 2], [1.5, [2]], "at unexpected level"),
    ],
)
def test_a_bad_row_anywhere_is_named_by_its_number(place: int, row: Any, bad: Any, marker: str) -> None:
    rows = [row] * 3000
    rows[place] = bad
    message = refusal(read_rows, rows, FLOAT)
    assert message.startswith(f"Failed to process element: {place} of 'instances' list. Error: INVALID_ARGUMENT: ")
    assert marker in message
    message = refusal(read_rows, [{"x": row} for row in rows], FLOAT)
    assert message.startswith(f"Failed to process element: {place} key: x of 'instances' list. Error: ")
    assert marker in message


@pytest.mark.parametrize("place", [1, 1023, 1024, 2048, 2999])
def test_rows_of_another_shape_anywhere_are_named_by_their_number(place: int) -> None:
    rows = [[1.5, 2.0]] * place + [[1.5]] * (3000 - place)
    assert f"element: {place} of" in refusal(read_rows, rows, FLOAT)
    assert "Expecting tensor size: 2 but got: 1" in refusal(read_rows, rows, FLOAT)
    assert f"element: {place} key: x of" in refusal(read_rows, [{"x": row} for row in rows], FLOAT)


@pytest.mark.parametrize("place", [1, 1023, 1024, 2999])
def test_a_row_of_the_other_kind_anywhere_is_named_by_its_number(place: int) -> None:
    values: list[Any] = ["a"] * 3000
    values[place] = {"x": "a"}
    assert f"Expecting value/list but got object at item {place} " in refusal(read_rows, values, STRING)
    objects: list[Any] = [{"x": "a"}] * 3000
    objects[place] = "a"
    assert f"Expecting object but got list at item {place} " in refusal(read_rows, objects, STRING)


@pytest.mark.parametrize("place", [0, 1023, 1024, 2999])
def test_a_row_with_other_keys_anywhere_is_named_by_its_number(place: int) -> None:
    rows = [{"a": 1, "b": "x"}] * 3000
    rows[place] = {"a": 1}
    assert refusal(read_rows, rows, PAIR).startswith(f"Failed to process element: {place} of 'instances' list. Error: ")
    rows[place] = {"a": 1, "b": "x", "c": 1}
    assert f"element: {place} key: c of" in refusal(read_rows, rows, PAIR)


def test_the_first_of_several_bad_rows_is_named() -> None:
    rows: list[Any] = [1.5] * 3000
    rows[2500], rows[2501], rows[2999] = [1.5], "a", {"x": 1}
    assert refusal(read_rows, rows, FLOAT).startswith("Failed to process element: 2500 of 'instances' list. Error: ")


def test_a_bad_leaf_late_in_one_row_is_found() -> None:
    row: list[Any] = [[1.5] * 40 for _ in range(2000)]
    row[1999] = [*row[1999][:-1], "late"]
    assert "element: 1 of" in refusal(read_rows, [[[1.5] * 40] * 2000, row], FLOAT)
    assert 'JSON Value: "late" Type: String' in refusal(read_rows, [row], FLOAT)


def test_optional_inputs_are_in_every_row_or_in_none() -> None:
    signature = Signature(PAIR.inputs, (), optional=frozenset({"b"}))
    assert read_rows([{"a": 1}, {"a": 2}], signature)["a"].tolist() == [1, 2]
    assert read_rows([{"a": 1}, {"a": 2}], signature).keys() == {"a"}
    assert read_rows([{"a": 1, "b": "x"}], signature)["b"].tolist() == [b"x"]
    for rows in ([{"a": 1, "b": "x"}, {"a": 2}], [{"a": 1}, {"a": 2, "b": "x"}]):
        message = refusal(read_rows, rows, signature)
        assert message.startswith("Failed to process element: 1 of 'instances' list. Error: ")
        assert message.endswith("; every element has to have b, or none of them")
    assert "or none of them" not in refusal(read_rows, [{"a": 1}, {"b": "x"}], signature)


def test_null_leaves_out_an_optional_input_and_is_wrong_for_another() -> None:
    signature = Signature(PAIR.inputs, (), optional=frozenset({"b"}))
    assert read_rows([{"a": 1, "b": None}, {"a": 2}], signature).keys() == {"a"}
    assert "Type: Null" in refusal(read_rows, [{"a": None, "b": "x"}], signature)
    assert "Type: Null" in refusal(read_rows, [{"a": 1, "b": None}], PAIR)
