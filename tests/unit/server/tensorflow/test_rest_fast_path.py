"""The fast path gives the results of the general path, or None."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec, check_inputs
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.protocols.json import text as json_text
from tfs_lite.protocols.json.text import MAX_DEPTH
from tfs_lite.protocols.rest.predict import predict_tree, read_predict_body, tensors_of
from tfs_lite.server.tensorflow.rest_fast_path import MOST_NUMBERS, print_plain, read_instances, read_plain

BATCH = SymbolicDim("batch", 3)
PLAIN = Signature((TensorSpec("x", DataType.FLOAT, (BATCH, 2)),), (TensorSpec("y", DataType.FLOAT, (BATCH, 2)),))
NUMBERS = st.one_of(st.floats(), st.floats(width=32), st.sampled_from([1e39, -1e39, 1e-46, 3.4028236e38, -0.0]))
VALUES = st.one_of(NUMBERS, st.integers(-3, 3), st.booleans(), st.none(), st.text(max_size=2))


SPACES = st.sampled_from(["", " ", "\t", "\n ", "  "])
TREES = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner))


ENDS = st.sampled_from(["}", "}", "}", "}", "", ',"x":[1]}', ',"instances":[1]}', "}}", ",}"])


@examples(300)
@given(TREES, SPACES, SPACES, ENDS)
def test_instances_that_are_read_are_those_of_the_general_path(tree: Any, before: str, after: str, end: str) -> None:
    data = f'{{"instances":{before}{json.dumps(tree)}{after}{end}'.encode("utf-8", "replace")
    found = read_instances(data)
    if found is None:
        return
    general = read_predict_body(json_text.loads(data))
    assert repr(found) == repr(general)


@pytest.mark.parametrize("text", ["[[1.0,2.5]]", " [[1.0, 2.5], [3.0, 4.0]]", "[1,2]", "[]"])
def test_common_bodies_are_read_at_once(text: str) -> None:
    assert read_instances(f'{{"instances":{text}}}'.encode()) == read_predict_body({"instances": orjson.loads(text)})


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, 1000])
def test_instances_that_are_nested_deeply_take_the_general_path(depth: int) -> None:
    data = b'{"instances":' + b"[" * depth + b"]" * depth + b"}"
    assert (read_instances(data) is not None) == (depth < MAX_DEPTH)
    if depth >= MAX_DEPTH:
        with pytest.raises(ServingError):
            json_text.loads(data)


def body_of(tree: Any) -> Any:
    return read_predict_body(tree)


@given(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=3))
def test_rows_of_floats_are_read_to_the_same_bits(rows: list[list[float]]) -> None:
    body = body_of({"instances": rows})
    plain, general = read_plain(body, PLAIN), tensors_of(body, PLAIN)
    assert plain is not None
    assert plain["x"].dtype == general["x"].dtype
    np.testing.assert_array_equal(plain["x"], general["x"])
    np.testing.assert_array_equal(np.signbit(plain["x"]), np.signbit(general["x"]))


@given(st.lists(st.one_of(VALUES, st.lists(VALUES, max_size=3)), max_size=5))
def test_what_is_taken_is_what_the_general_path_takes(rows: list[Any]) -> None:
    body = body_of({"instances": rows})
    plain = read_plain(body, PLAIN)
    if plain is None:
        return
    general = tensors_of(body, PLAIN)
    np.testing.assert_array_equal(plain["x"], general["x"])
    check_inputs(PLAIN, {"x": (DataType.FLOAT, plain["x"].shape)})


@pytest.mark.parametrize(
    "tree",
    [
        {"inputs": [[1.0, 2.0]]},
        {"instances": []},
        {"instances": [{"x": [1.0, 2.0]}]},
        {"instances": [[1, 2]]},
        {"instances": [[1.0, 2.0]] * 4},
        {},
    ],
    ids=["columns", "no rows", "objects", "integers", "too many rows", "neither form"],
)
def test_other_bodies_take_the_general_path(tree: Any) -> None:
    assert read_plain(body_of(tree), PLAIN) is None


OTHER_INPUTS = {
    "double": (TensorSpec("x", DataType.DOUBLE, (BATCH, 2)),),
    "any width": (TensorSpec("x", DataType.FLOAT, (BATCH, SymbolicDim("n"))),),
    "no batch": (TensorSpec("x", DataType.FLOAT, (1, 2)),),
    "any shape": (TensorSpec("x", DataType.FLOAT, None),),
    "two inputs": (TensorSpec("x", DataType.FLOAT, (BATCH, 2)), TensorSpec("z", DataType.FLOAT, (BATCH,))),
}


@pytest.mark.parametrize("inputs", OTHER_INPUTS.values(), ids=OTHER_INPUTS)
def test_other_signatures_take_the_general_path(inputs: tuple[TensorSpec, ...]) -> None:
    assert read_plain(body_of({"instances": [[1.0, 2.0]]}), Signature(inputs, PLAIN.outputs)) is None


def test_signatures_with_conditions_take_the_general_path() -> None:
    conditions = read_conditions([("x", 0)], ["n0 >= 5"])
    assert read_plain(body_of({"instances": [[1.0, 2.0]]}), replace(PLAIN, conditions=conditions)) is None


@given(st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), min_size=1, max_size=3))
def test_rows_are_printed_to_the_same_text(rows: list[list[float]]) -> None:
    outputs = {"y": np.array(rows, np.float32)}
    assert print_plain(outputs, rows=True) == json_text.dumps(predict_tree(outputs, rows=True))


def test_number_that_would_be_rounded_twice_is_printed_as_ever() -> None:
    outputs = {"y": np.array([[7.038531e-26, 1.0]], np.float32)}
    text = print_plain(outputs, rows=True)
    assert text == json_text.dumps(predict_tree(outputs, rows=True))
    assert np.float32(orjson.loads(text)["predictions"][0][0]) == outputs["y"][0, 0]


MATRIX = np.zeros((2, 2), np.float32)


@pytest.mark.parametrize(
    ("outputs", "rows"),
    [
        ({"y": MATRIX}, False),
        ({"y": MATRIX, "z": MATRIX}, True),
        ({}, True),
        ({"y": MATRIX.astype(np.float64)}, True),
        ({"y": MATRIX.astype(">f4")}, True),
        ({"y": MATRIX[0]}, True),
        ({"y": np.zeros((MOST_NUMBERS, 2), np.float32)}, True),
        ({"y": np.zeros((2, 4), np.float32)[:, ::2]}, True),
    ],
    ids=["columns", "two", "none", "double", "foreign", "vector", "large", "strided"],
)
def test_other_answers_take_the_general_path(outputs: dict[str, Any], rows: bool) -> None:
    assert print_plain(outputs, rows) is None


def test_an_answer_without_rows_is_still_refused_by_the_general_path() -> None:
    assert print_plain({"y": np.float32(1)[...]}, rows=True) is None
    with pytest.raises(ServingError):
        predict_tree({"y": np.float32(1)[...]}, rows=True)
