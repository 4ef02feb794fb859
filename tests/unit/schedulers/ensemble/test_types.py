"""What a tensor becomes between a model with a batch dimension and one without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.schedulers.ensembles import signature
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.schedulers.ensemble.types import Interface, adapt_batch_dimension, agree, consistent, interface_of

ROWS_OF_3 = TensorSpec("x", DataType.FLOAT, (SymbolicDim("s0"), 3))
ROWS, SUMS = TensorSpec("y", DataType.FLOAT, (SymbolicDim("s0"),)), TensorSpec("y", DataType.FLOAT, (3,))


def interface(dims: Sequence[int], batch: int) -> Interface:
    return interface_of(signature({"x": dims}, {"y": dims}, batch))


@pytest.mark.parametrize(
    ("made_by_batched", "user_batch", "dims", "shape", "becomes"),
    [
        pytest.param(False, 8, (3,), (3,), (1, 3), id="one row for a batch"),
        pytest.param(False, 8, (-1,), (5,), (1, 5), id="one row of any size for a batch"),
        pytest.param(False, 8, (3,), (4, 3), (4, 3), id="its first dimension is the batch"),
        pytest.param(False, 8, (), (), (1,), id="one value for a batch"),
        pytest.param(True, 0, (4, 3), (4, 3), (4, 3), id="the whole batch is one tensor"),
        pytest.param(True, 0, (-1, 3), (1, 3), (1, 3), id="a batch of one is one tensor too"),
        pytest.param(True, 0, (3,), (1, 3), (3,), id="a batch of one loses its dimension"),
        pytest.param(True, 0, (3,), (2, 3), (2, 3), id="a larger batch is left to the model"),
        pytest.param(True, 8, (3,), (1, 3), (1, 3), id="both batch"),
        pytest.param(False, 0, (3,), (1, 3), (1, 3), id="none batches"),
    ],
)
def test_tensor_gains_or_loses_a_dimension(
    made_by_batched: bool, user_batch: int, dims: tuple[int, ...], shape: tuple[int, ...], becomes: tuple[int, ...]
) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    user = interface(dims, user_batch)
    got = adapt_batch_dimension(array, made_by_batched, user, user.inputs["x"])
    assert got.shape == becomes
    assert np.shares_memory(got, array)


def test_tensor_for_an_undeclared_shape_stays_as_it_is() -> None:
    user = Interface({"x": TensorSpec("x")}, {})
    array = np.zeros((1, 3), np.float32)
    assert adapt_batch_dimension(array, True, user, user.inputs["x"]) is array


@pytest.mark.parametrize(
    ("maker", "user", "fits"),
    [
        pytest.param(interface((3,), 8), interface((3,), 0), True, id="equal without the batch"),
        pytest.param(interface((3,), 8), interface((-1, 3), 0), True, id="equal with the batch"),
        pytest.param(interface((3,), 8), interface((4, 3), 0), True, id="a batch of any size may be this one"),
        pytest.param(interface((3,), 0), interface((3,), 4), True, id="one row"),
        pytest.param(interface((7, 3), 0), interface((3,), 4), True, id="its first dimension is the batch"),
        pytest.param(interface((3,), 8), interface((4,), 8), False, id="other size"),
        pytest.param(interface((3,), 8), interface((3, 3), 8), False, id="other rank"),
        pytest.param(interface((-1,), 8), interface((4,), 8), True, id="any size"),
        pytest.param(interface((3, 3), 0), interface((2,), 0), False, id="nothing fits"),
        pytest.param(Interface({}, {"y": TensorSpec("y")}), interface((2,), 0), True, id="undeclared"),
    ],
)
def test_consistent_shapes_agree_with_or_without_the_batch(maker: Interface, user: Interface, fits: bool) -> None:
    assert consistent(maker, maker.outputs["y"], user, user.inputs["x"]) is fits


def test_shapes_of_different_rank_do_not_agree() -> None:
    assert not agree((1, 2), (1, 2, 3))


@pytest.mark.parametrize(
    ("found", "batched", "rows"),
    [
        pytest.param(signature({"x": (3,)}, {"y": (2,)}, 8), True, 8, id="declared batch"),
        pytest.param(signature({"x": (3,)}, {"y": (2,)}), False, None, id="no batch"),
        pytest.param(signature({"x": (-1,)}, {"y": (-1,)}), False, None, id="sizes of their own"),
        pytest.param(Signature((ROWS_OF_3,), (ROWS,)), True, None, id="any number of rows"),
        pytest.param(Signature((ROWS_OF_3,), (SUMS,)), False, None, id="an output that sums the rows up"),
    ],
)
def test_a_model_is_batched_when_all_tensors_begin_with_rows(found: Signature, batched: bool, rows: int | None) -> None:
    assert (interface_of(found).batched, interface_of(found).max_rows) == (batched, rows)
