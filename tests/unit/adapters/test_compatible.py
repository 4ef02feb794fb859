"""What clients of one version could not do with another one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tfs_lite.adapters.replay.compatible import breaks
from tfs_lite.core.signature import DataType, ShapeContract, Signature, SymbolicDim, TensorSpec

FLOAT, BATCH, LENGTH = DataType.FLOAT, SymbolicDim("batch"), SymbolicDim("length", 512)
X = TensorSpec("x", FLOAT, (BATCH, 4))
IDS = TensorSpec("ids", DataType.INT64, (BATCH, LENGTH))
Y = TensorSpec("y", FLOAT, (BATCH, 10))
OLD = Signature((X, IDS), (Y,))


def found(new: Signature, old: Signature = OLD) -> list[str]:
    return breaks({"serving_default": old}, {"serving_default": new}, "version 7")


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (Signature((X,), (Y,)), "input ids is gone; version 7 takes it"),
        (Signature((X, IDS, TensorSpec("z")), (Y,)), "input z is new and has no default; version 7 does not take it"),
        (Signature((replace(X, dtype=DataType.DOUBLE), IDS), (Y,)), "input x is double; in version 7 it is float"),
        (Signature((replace(X, shape=(BATCH,)), IDS), (Y,)), "input x is [-1]; in version 7 it is [-1,4]"),
        (
            Signature((replace(X, shape=(BATCH, 5)), IDS), (Y,)),
            "input x takes 5 in dimension 1; in version 7 it takes 4",
        ),
        (
            Signature((replace(X, shape=(1, 4)), IDS), (Y,)),
            "input x takes 1 in dimension 0; in version 7 it takes any size",
        ),
        (
            Signature((replace(X, shape=(SymbolicDim("batch", 8), 4)), IDS), (Y,)),
            "input x takes any size up to 8 in dimension 0; in version 7 it takes any size",
        ),
        (
            Signature((X, replace(IDS, shape=(BATCH, SymbolicDim("length", 128)))), (Y,)),
            "input ids takes any size up to 128 in dimension 1; in version 7 it takes any size up to 512",
        ),
        (Signature((X, IDS), (TensorSpec("z"),)), "output y is gone; version 7 gives it"),
        (Signature((X, IDS), (replace(Y, dtype=DataType.HALF),)), "output y is half; in version 7 it is float"),
        (Signature((X, IDS), (replace(Y, shape=(BATCH,)),)), "output y is [-1]; in version 7 it is [-1,10]"),
    ],
)
def test_what_is_taken_or_given_no_more_is_named(new: Signature, message: str) -> None:
    assert found(new) == [f"signature serving_default: {message}"]


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        Signature((IDS, X), (Y, TensorSpec("more"))),
        Signature((X, IDS, TensorSpec("z")), (Y,), optional=frozenset({"z"})),
        Signature((X, IDS, TensorSpec("z")), (Y,), defaults={"z": np.float32(0)}),
        Signature((replace(X, shape=(BATCH, SymbolicDim("n"))), IDS), (Y,)),
        Signature((replace(X, shape=None), IDS), (replace(Y, shape=(BATCH, 12)),)),
        Signature((TensorSpec("x"), TensorSpec("ids")), (TensorSpec("y"),)),
        Signature((X, replace(IDS, shape=(BATCH, SymbolicDim("length", 1024)))), (Y,)),
        Signature((X, IDS), ()),
        Signature((replace(X, shape=(BATCH, 5)), IDS), (Y,), contract=ShapeContract.NONE),
    ],
)
def test_what_takes_more_or_is_undeclared_breaks_nothing(new: Signature) -> None:
    assert found(new) == []


def test_a_default_that_is_gone_is_named() -> None:
    old = Signature((X, IDS), (Y,), optional=frozenset({"ids"}))
    expected = "input ids has no default; in version 7 a request may leave it out"
    assert found(OLD, old) == [f"signature serving_default: {expected}"]


def test_a_signature_that_is_gone_is_named_and_a_new_one_may_come() -> None:
    assert breaks({"a": OLD, "b": OLD}, {"a": OLD, "c": OLD}, "version 7") == ["signature b is gone; version 7 has it"]
