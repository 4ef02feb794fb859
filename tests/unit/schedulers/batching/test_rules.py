"""Which calls may share a run, and which are refused before they wait."""

from __future__ import annotations

import numpy as np
import pytest

from tfs_lite.core.signature import DataType, Dim, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import StatusCode
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import ALONE, BatchSettings

ROWS, LENGTH, WIDTH = SymbolicDim("s0"), SymbolicDim("s1"), SymbolicDim("s2")
SETTINGS = BatchSettings(max_batch_size=8)
FILLING = BatchSettings(max_batch_size=8, pad_variable_length=True)


def spec(name: str, *dims: Dim, dtype: DataType = DataType.FLOAT) -> TensorSpec:
    return TensorSpec(name, dtype, dims)


def rule_of(*inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = (), settings: BatchSettings = SETTINGS) -> BatchRule:
    rule = BatchRule.of(Signature(inputs, outputs), settings)
    assert rule is not None
    return rule


def x(*shape: int, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {"x": np.ones(shape, dtype)}


@pytest.mark.parametrize(
    "signature",
    [
        pytest.param(Signature((spec("x", ROWS, 3),), (spec("y", ROWS),)), id="one input"),
        pytest.param(Signature((spec("x", ROWS), spec("z", ROWS, 2)), (spec("y", ROWS),)), id="two inputs"),
        pytest.param(Signature((spec("x", ROWS),), ()), id="outputs not declared"),
        pytest.param(Signature((spec("x", ROWS, LENGTH),), (spec("y", ROWS, LENGTH),)), id="a length of its own"),
        pytest.param(Signature((spec("x", ROWS),), (spec("y", ROWS, SymbolicDim("2*s01")),)), id="another's number"),
        pytest.param(
            Signature((spec("x", SymbolicDim("batch"), SymbolicDim("a/batch/b_1")),), ()), id="a name with batch in it"
        ),
    ],
)
def test_calls_share_runs_where_rows_come_first_everywhere(signature: Signature) -> None:
    assert BatchRule.of(signature, SETTINGS) is not None


@pytest.mark.parametrize(
    "signature",
    [
        pytest.param(Signature((), ()), id="no input"),
        pytest.param(Signature((), (spec("y", ROWS),)), id="outputs only"),
        pytest.param(Signature((spec("x", 4, 3),), (spec("y", 4),)), id="fixed size"),
        pytest.param(Signature((spec("x"),), (spec("y", ROWS),)), id="a scalar"),
        pytest.param(Signature((TensorSpec("x"),), ()), id="undeclared rank"),
        pytest.param(Signature((spec("x", ROWS), spec("z", LENGTH)), ()), id="two symbols"),
        pytest.param(Signature((spec("x", ROWS), spec("z", 3)), ()), id="an input without rows"),
        pytest.param(Signature((spec("x", ROWS),), (spec("y", 3),)), id="an output without rows"),
        pytest.param(Signature((spec("x", ROWS),), (TensorSpec("y"),)), id="an output of undeclared rank"),
        pytest.param(Signature((spec("x", ROWS),), (spec("y", SymbolicDim("2*s0")),)), id="twice as many rows out"),
        pytest.param(Signature((spec("x", ROWS, 3),), (spec("y", ROWS, ROWS),)), id="every row with every row"),
        pytest.param(Signature((spec("x", ROWS, ROWS),), (spec("y", ROWS),)), id="square input"),
        pytest.param(
            Signature((spec("x", ROWS),), (spec("y", ROWS, SymbolicDim("2*s0 + 1")),)), id="rows decide width"
        ),
        pytest.param(Signature((spec("x", SymbolicDim("2*s0")),), ()), id="only an even number of rows"),
    ],
)
def test_calls_run_alone_where_rows_do_not_come_first_everywhere(signature: Signature) -> None:
    assert BatchRule.of(signature, SETTINGS) is None


def test_no_rule_where_the_settings_let_every_call_run_alone() -> None:
    assert BatchRule.of(Signature((spec("x", ROWS),), ()), ALONE) is None


def test_rows_are_the_first_dimension() -> None:
    rule = rule_of(spec("x", ROWS, 3))
    assert [rule.rows(x(5, 3)), rule.rows(x(0, 3))] == [5, 0]


def test_calls_that_differ_in_rows_only_have_one_key() -> None:
    rule = rule_of(spec("x", ROWS, 3), spec("z", ROWS))
    assert rule.key({**x(5, 3), "z": np.ones(5)}) is None


def test_calls_of_different_lengths_have_different_keys() -> None:
    rule = rule_of(spec("x", ROWS, LENGTH, 3))
    assert rule.key(x(1, 4, 3)) == rule.key(x(7, 4, 3))
    assert rule.key(x(1, 4, 3)) != rule.key(x(1, 5, 3))


def test_every_symbol_counts_in_whatever_input_it_is() -> None:
    rule = rule_of(spec("a", ROWS, LENGTH), spec("b", ROWS, LENGTH, WIDTH))
    keys = {
        rule.key({"a": np.ones((2, length)), "b": np.ones((2, length, width))}) for length in (1, 2) for width in (1, 2)
    }
    assert len(keys) == 4


def test_dtypes_count_where_they_are_not_declared() -> None:
    rule = rule_of(spec("x", ROWS, dtype=DataType.INVALID))
    assert rule.key(x(1, dtype=np.float32)) == rule.key(x(3, dtype=np.float32))
    assert rule.key(x(1, dtype=np.float32)) != rule.key(x(1, dtype=np.float64))


def test_dtypes_count_also_where_lengths_are_filled_up() -> None:
    rule = rule_of(spec("x", ROWS, LENGTH, dtype=DataType.INVALID), settings=FILLING)
    assert rule.key(x(1, 2, dtype=np.float32)) == rule.key(x(1, 9, dtype=np.float32))
    assert rule.key(x(1, 2, dtype=np.float32)) != rule.key(x(1, 2, dtype=np.int32))


def test_lengths_do_not_count_where_they_are_filled_up() -> None:
    rule = rule_of(spec("x", ROWS, LENGTH), settings=FILLING)
    assert rule.key(x(1, 4)) is None
    assert rule.key(x(2, 9)) is None


def test_an_empty_input_is_never_filled_up_with_others() -> None:
    rule = rule_of(spec("x", ROWS, LENGTH, WIDTH), settings=FILLING)
    empty = rule.key(x(2, 0, 3))
    assert empty != rule.key(x(2, 1, 3))
    assert empty != rule.key(x(2, 0, 4))
    assert empty == rule.key(x(5, 0, 3))


def test_a_call_without_rows_makes_nobody_longer() -> None:
    rule = rule_of(spec("x", ROWS, LENGTH), settings=FILLING)
    assert rule.key(x(0, 1_000_000)) not in (rule.key(x(1, 2)), rule.key(x(0, 2)))


@pytest.mark.parametrize(
    ("settings", "maximum", "most"),
    [
        (BatchSettings(max_batch_size=8), None, 8),
        (BatchSettings(max_batch_size=8), 5, 5),
        (BatchSettings(max_batch_size=8, max_request_rows=3), None, 3),
        (BatchSettings(max_batch_size=8, max_request_rows=20), None, 8),
        (BatchSettings(max_batch_size=8, max_request_rows=20, split_large=True), None, 20),
        (BatchSettings(max_batch_size=8, max_request_rows=20, split_large=True), 12, 12),
    ],
    ids=["run", "model", "smaller", "not cut", "cut", "cut, but the model takes less"],
)
def test_too_many_rows_are_refused(settings: BatchSettings, maximum: int | None, most: int) -> None:
    rule = rule_of(spec("x", SymbolicDim("s0", maximum), 3), settings=settings)
    assert rule.refusal(0) is None
    assert rule.refusal(most) is None
    refusal = rule.refusal(most + 1, "resnet-3")
    assert refusal is not None
    assert refusal.code is StatusCode.INVALID_ARGUMENT
    assert refusal.message == f"Task size {most + 1} is larger than maximum input batch size {most} of resnet-3"


def test_the_model_bounds_what_a_run_may_have() -> None:
    settings = BatchSettings(max_batch_size=64, preferred=(4, 32), allowed_sizes=(8, 64))
    rule = rule_of(spec("x", SymbolicDim("s0", 40)), spec("z", SymbolicDim("s0", 30)), settings=settings)
    assert rule.max_rows == 30
    assert rule.settings == BatchSettings(max_batch_size=30, preferred=(4,), allowed_sizes=(8,))


def test_a_model_that_takes_more_than_a_run_bounds_nothing() -> None:
    rule = rule_of(spec("x", SymbolicDim("s0", 40)))
    assert rule.settings == SETTINGS


def test_inputs_of_seven_dimensions_are_not_filled_up() -> None:
    rule = rule_of(spec("x", ROWS, 1, 1, 1, 1, 1, LENGTH), settings=FILLING)
    refusal = rule.refusal(1, "m")
    assert refusal is not None
    assert refusal.code is StatusCode.INVALID_ARGUMENT
    assert "Only tensors with rank from 1 to 6 can be padded: input x of m" in refusal.message


@pytest.mark.parametrize(
    ("dims", "settings"),
    [
        ((ROWS, 1, 1, 1, 1, LENGTH), FILLING),
        ((ROWS, 1, 1, 1, 1, 1, 2), FILLING),
        ((ROWS, 1, 1, 1, 1, 1, LENGTH), SETTINGS),
    ],
    ids=["six dimensions", "nothing to fill up", "nothing is filled up"],
)
def test_inputs_are_taken_that_can_be_filled_up_or_need_not(dims: tuple[Dim, ...], settings: BatchSettings) -> None:
    assert rule_of(spec("x", *dims), settings=settings).refusal(1) is None
