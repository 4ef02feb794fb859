"""Outputs of a model -> the tree of a REST answer."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.protocols.json.text import dumps, loads
from tfs_lite.protocols.rest.predict import predict_tree

TEXT = np.array([b"a", "ä".encode()], object)
BINARY = np.array([b"a", b"\xff"], object)


def plain(tree: Any) -> Any:
    return loads(dumps(tree))


@pytest.mark.parametrize(
    ("outputs", "rows", "expected"),
    [
        ({"y": np.array([1, 2])}, True, {"predictions": [1, 2]}),
        ({"y": np.array([[1, 2]])}, True, {"predictions": [[1, 2]]}),
        ({"y": np.zeros((0, 3))}, True, {"predictions": []}),
        ({"y": np.array([1, 2])}, False, {"outputs": [1, 2]}),
        ({"y": np.array(True)}, False, {"outputs": True}),
        ({"y": np.array(7, np.int8)}, False, {"outputs": 7}),
        ({"y": np.array(0.2, np.float32)}, False, {"outputs": 0.2}),
        ({"y": np.array(0.2)}, False, {"outputs": 0.2}),
        ({"y": np.zeros((2, 0))}, False, {"outputs": [[], []]}),
        ({"y": np.array(["x"])[:0].astype(object)}, False, {"outputs": []}),
        ({"a": np.array([1, 2]), "b": np.array([[3], [4]])}, False, {"outputs": {"a": [1, 2], "b": [[3], [4]]}}),
        ({"a": np.array([1]), "b": np.array(3)}, False, {"outputs": {"a": [1], "b": 3}}),
        ({"a": np.array([1, 2]), "b": np.array([[3], [4]])}, True,
         {"predictions": [{"a": 1, "b": [3]}, {"a": 2, "b": [4]}]}),
        ({"a": np.array([0.1, 0.2], np.float32), "b": TEXT}, True,
         {"predictions": [{"a": 0.1, "b": "a"}, {"a": 0.2, "b": "ä"}]}),
        ({"a": np.array([True]), "b": np.array([0.1])}, True, {"predictions": [{"a": True, "b": 0.1}]}),
        ({"a": np.zeros((0, 3)), "b": np.zeros(0, object)}, True, {"predictions": []}),
        ({"y": TEXT}, True, {"predictions": ["a", "ä"]}),
        ({"y": TEXT.reshape(2, 1)}, False, {"outputs": [["a"], ["ä"]]}),
        ({"y": np.array(b"a", object)}, False, {"outputs": "a"}),
        ({"y_bytes": np.array(b"a", object)}, False, {"outputs": {"b64": "YQ=="}}),
        ({"y_bytes": TEXT}, True, {"predictions": [{"b64": "YQ=="}, {"b64": "w6Q="}]}),
        ({"y_bytes": np.array([1])}, True, {"predictions": [1]}),
        ({"y": BINARY}, True, {"predictions": ["a", {"b64": "/w=="}]}),
        ({"y_bytes": TEXT, "z": BINARY}, True,
         {"predictions": [{"y_bytes": {"b64": "YQ=="}, "z": "a"}, {"y_bytes": {"b64": "w6Q="}, "z": {"b64": "/w=="}}]}),
        ({"y": np.array([1, 2.5], np.float16)}, True, {"predictions": [1.0, 2.5]}),
        ({"y": np.array([1.5], ml_dtypes.bfloat16)}, True, {"predictions": [1.5]}),
        ({"y": np.array([1.5], ml_dtypes.float8_e5m2), "z": np.array([65535], np.uint16)}, True,
         {"predictions": [{"y": 1.5, "z": 65535}]}),
        ({"y": np.array([2**64 - 1], np.uint64)}, False, {"outputs": [2**64 - 1]}),
        ({"y": np.arange(4).reshape(2, 2).T}, False, {"outputs": [[0, 2], [1, 3]]}),
        ({"y": np.array([1, 2], ">i4")}, False, {"outputs": [1, 2]}),
    ],
)  # fmt: skip
def test_outputs_become_json(outputs: dict[str, np.ndarray], rows: bool, expected: Any) -> None:
    assert plain(predict_tree(outputs, rows)) == expected


@pytest.mark.parametrize(
    ("outputs", "rows", "marker"),
    [
        ({}, True, "Cannot convert empty tensor map to JSON"),
        ({}, False, "Cannot convert empty tensor map to JSON"),
        ({"y": np.array(1)}, True, "Tensor name: y has no shape information"),
        ({"a": np.zeros(2), "y": np.array(1)}, True, "Tensor name: y has no shape information"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, True, "Tensor name: b has inconsistent batch size: 3 expecting: 2"),
        ({"a": np.zeros(0), "b": np.zeros(3)}, True, "Tensor name: b has inconsistent batch size: 3 expecting: 0"),
        ({"y": np.zeros(2, np.complex64)}, True, "Failed to write JSON value for tensor type: complex64"),
        ({"y": np.zeros(2, np.complex128)}, False, "Failed to write JSON value for tensor type: complex128"),
        ({"a": np.zeros(2), "y": np.zeros(3, np.complex64)}, True, "has inconsistent batch size"),
    ],
)
def test_outputs_without_a_json_form_are_refused(outputs: dict[str, np.ndarray], rows: bool, marker: str) -> None:
    assert marker in refusal(predict_tree, outputs, rows)


def test_binary_strings_stay_binary_for_msgpack() -> None:
    outputs = {"y_bytes": BINARY, "z": np.array([0.5, 1], np.float32)}
    assert predict_tree({"y": BINARY}, rows=True, binary=True) == {"predictions": [b"a", b"\xff"]}
    assert predict_tree(outputs, rows=True, binary=True) == {
        "predictions": [{"y_bytes": b"a", "z": 0.5}, {"y_bytes": b"\xff", "z": 1.0}]
    }
    column = predict_tree(outputs, rows=False, binary=True)["outputs"]
    assert column["y_bytes"] == [b"a", b"\xff"]


def test_numbers_stay_arrays() -> None:
    array = np.zeros((2, 3), np.float32)
    assert predict_tree({"y": array}, rows=True)["predictions"] is array
    rows = predict_tree({"y": array, "z": array}, rows=True)["predictions"]
    assert all(np.shares_memory(row["y"], array) for row in rows)


def test_a_float_is_printed_with_the_digits_of_its_width() -> None:
    outputs = {"y": np.array([0.2], np.float32), "z": np.array([0.2], ml_dtypes.bfloat16), "w": np.array([0.2])}
    assert plain(predict_tree(outputs, rows=True)) == {"predictions": [{"y": 0.2, "z": 0.20019531, "w": 0.2}]}
    assert plain(predict_tree({"y": np.array(0.2, np.float32)}, rows=False)) == {"outputs": 0.2}
