from collections import namedtuple

import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tfs_lite.adapters.pytorch.tensors import check_tensors
from tfs_lite.adapters.results import by_name
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode

Pair = namedtuple("Pair", ["left", "right"])
T, U, V = torch.zeros(1), torch.ones(2), torch.ones(3)


@pytest.mark.parametrize(
    ("result", "declared", "expected"),
    [
        (7, (), {"output_0": 7}),
        (7, ("y",), {"y": 7}),
        ((1, 2), (), {"output_0": 1, "output_1": 2}),
        ([1, 2], ("a", "b"), {"a": 1, "b": 2}),
        ({"k": 1}, (), {"k": 1}),
        ({"k": 1}, ("y",), {"k": 1}),
        (Pair(1, 2), (), {"left": 1, "right": 2}),
        (Pair(1, 2), ("right", "left"), {"left": 1, "right": 2}),
        (Pair(1, 2), ("OUTPUT__0", "OUTPUT__1"), {"OUTPUT__0": 1, "OUTPUT__1": 2}),
        (["a", b"b"], (), {"output_0": ["a", b"b"]}),
        (["a", "b"], ("y",), {"y": ["a", "b"]}),
        (["a", "b"], ("y", "z"), {"y": "a", "z": "b"}),
        ((T, (U, V)), (), {"output_0": T, "output_1.0": U, "output_1.1": V}),
        ((T, (U, V)), ("y", "h", "c"), {"y": T, "h": U, "c": V}),
        ((T, {"h": U, 3: [V, T]}), (), {"output_0": T, "output_1.h": U, "output_1.3.0": V, "output_1.3.1": T}),
        ((T, None, Pair(U, None)), (), {"output_0": T, "output_2.left": U}),
        ({"y": T, "states": (U, V)}, (), {"y": T, "states.0": U, "states.1": V}),
        ({"y": [T, U]}, ("y",), {"y": [T, U]}),
        (([1, 2], [[3.5]]), (), {"output_0": [1, 2], "output_1": [[3.5]]}),
    ],
)
def test_results_get_their_names(result, declared, expected):
    assert by_name(result, declared) == expected


def test_other_number_of_results_than_declared_is_the_models_fault():
    for result in ((1, 2, 3), (T, (U, V))):
        message = refusal(by_name, result, ("a", "b"), code=StatusCode.INTERNAL)
        assert "returned 3 results, expected 2: a, b" in message


BATCH = SymbolicDim("batch", 8)
SIGNATURE = Signature(
    (TensorSpec("x", DataType.FLOAT, (BATCH, 3)),),
    (TensorSpec("y", DataType.FLOAT, (BATCH, SymbolicDim("y_1"))), TensorSpec("z")),
)
X = {"x": np.zeros((2, 3), np.float32)}


@pytest.mark.parametrize("y", [np.zeros((2, 5), np.float32), np.zeros((2, 0), np.float32)])
def test_results_as_declared_pass(y):
    check_tensors(SIGNATURE, X, {"y": y, "z": np.array([b"any"], dtype=object)})


@pytest.mark.parametrize(
    "y", [np.zeros((2, 5), np.int64), np.zeros((3, 5), np.float32), np.zeros(2, np.float32), np.array([[b"a"]], object)]
)
def test_results_of_other_type_or_shape_are_the_models_fault(y):
    with pytest.raises(ServingError, match=r"output y as .*, expected float\[-1,-1\]") as caught:
        check_tensors(SIGNATURE, X, {"y": y})
    assert caught.value.code is StatusCode.INTERNAL


@pytest.mark.parametrize("y", [torch.zeros(2, 5, dtype=torch.int64), torch.zeros(3, 5), torch.zeros(1).expand(2**50)])
def test_results_are_checked_while_they_are_tensors(y):
    with pytest.raises(ServingError, match=r"output y as .*, expected float\[-1,-1\]"):
        check_tensors(SIGNATURE, X, {"y": y, "z": torch.zeros(1)})


@pytest.mark.parametrize("y", [torch.zeros(2, 5), [[1.0]], None, np.zeros((2, 5), "datetime64[s]")])
def test_results_that_fit_or_show_no_type_pass(y):
    check_tensors(SIGNATURE, X, {"y": y})
