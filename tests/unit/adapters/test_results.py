from collections import namedtuple

import numpy as np
import pytest
import torch

from tfs_lite.adapters.pytorch.tensors import check_tensors
from tfs_lite.adapters.results import by_name
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.errors import refusal

Pair = namedtuple("Pair", ["left", "right"])


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
    ],
)
def test_results_get_their_names(result, declared, expected):
    assert by_name(result, declared) == expected


def test_other_number_of_results_than_declared_is_the_models_fault():
    assert "returned 3 results, expected 2: a, b" in refusal(by_name, (1, 2, 3), ("a", "b"), code=StatusCode.INTERNAL)


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
