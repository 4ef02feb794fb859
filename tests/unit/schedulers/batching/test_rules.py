"""Which calls may share a run, and which are refused before they wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tfs_lite.core.signature import DataType, Dim, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.schedulers.batching.rules import BatchRule, why_alone
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
    assert not why_alone(signature)


def test_calls_that_never_share_a_run_have_a_reason() -> None:
    fixed = Signature((spec("x", 4, 3),), (spec("y", 4),))
    dependent = replace(Signature((spec("x", ROWS),), (spec("y", ROWS),)), conditions=read_conditions((), (), False))
    assert why_alone(fixed) == "the first dimension of x is fixed"
    assert "depends on the rows beside it" in why_alone(dependent)
    assert "no open first dimension in common" in why_alone(Signature((spec("x", ROWS), spec("z", LENGTH)), ()))


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


TWO = (spec("a", ROWS, LENGTH), spec("b", ROWS, LENGTH, WIDTH))
UNTYPED = spec("x", ROWS, LENGTH, dtype=DataType.INVALID)


def a_b(length: int, width: int) -> dict[str, np.ndarray]:
    return {"a": np.ones((2, length)), "b": np.ones((2, length, width))}


@pytest.mark.parametrize(
    ("rule", "groups"),
    [
        pytest.param(rule_of(spec("x", ROWS, 3)), [[x(5, 3), x(1, 3)]], id="rows do not count"),
        pytest.param(rule_of(spec("x", ROWS, LENGTH, 3)), [[x(1, 4, 3), x(7, 4, 3)], [x(1, 5, 3)]], id="lengths"),
        pytest.param(rule_of(*TWO), [[a_b(1, 1)], [a_b(1, 2)], [a_b(2, 1)], [a_b(2, 2)]], id="of every input"),
        pytest.param(
            rule_of(UNTYPED), [[x(1, 2), x(3, 2)], [x(1, 2, dtype=np.float64)]], id="dtypes that are not declared"
        ),
        pytest.param(
            rule_of(UNTYPED, settings=FILLING),
            [[x(1, 2), x(1, 9)], [x(1, 2, dtype=np.int32)]],
            id="dtypes where lengths are filled up",
        ),
        pytest.param(
            rule_of(spec("x", ROWS, LENGTH), settings=FILLING),
            [[x(1, 4), x(2, 9)], [x(0, 1_000_000)], [x(0, 2)]],
            id="no lengths where they are filled up, but those of calls without rows",
        ),
        pytest.param(
            rule_of(spec("x", ROWS, LENGTH, WIDTH), settings=FILLING),
            [[x(2, 0, 3), x(5, 0, 3)], [x(2, 1, 3)], [x(2, 0, 4)]],
            id="an empty input is never filled up with others",
        ),
    ],
)
def test_calls_share_a_run_if_their_keys_are_equal(rule: BatchRule, groups: list[list[dict[str, np.ndarray]]]) -> None:
    keys = [{rule.key(inputs) for inputs in group} for group in groups]
    assert all(len(key) == 1 for key in keys)
    assert len(set.union(*keys)) == len(groups)


@pytest.mark.parametrize("settings", [SETTINGS, FILLING], ids=["plain", "filling up"])
def test_calls_with_optional_inputs_share_a_run_if_they_send_the_same(settings: BatchSettings) -> None:
    rule = BatchRule.of(Signature(TWO, (), optional=frozenset({"a", "b"})), settings)
    assert rule is not None
    both, longer, only_b = a_b(5, 6), a_b(7, 6), {"b": a_b(5, 6)["b"]}
    assert [rule.rows(inputs) for inputs in (both, only_b, {})] == [*[len(both["a"])] * 2, 1]
    assert rule.key(both) == rule.key(a_b(5, 6))
    assert len({rule.key(inputs) for inputs in (both, longer, only_b)}) == 3
    assert rule.key({}) != rule.key({}), "nothing tells how many rows there are"


def test_where_nothing_but_rows_can_differ_there_is_no_key() -> None:
    assert rule_of(spec("x", ROWS, 3), spec("z", ROWS)).key({**x(5, 3), "z": np.ones(5)}) is None
    assert rule_of(spec("x", ROWS, LENGTH), settings=FILLING).key(x(1, 4)) is None


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
    ids=["run", "model", "smaller", "not split", "split", "split, but the model takes less"],
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
    assert rule_of(spec("x", SymbolicDim("s0", 40))).settings == SETTINGS, "it takes more than a run"


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


def conditioned(*texts: str, settings: BatchSettings = SETTINGS, complete: bool = True) -> BatchRule | None:
    """The rule of a model that takes these rows (``n0``) and lengths (``n1``)."""
    conditions = read_conditions([("x", 0), ("x", 1)], texts, complete)
    return BatchRule.of(Signature((spec("x", ROWS, LENGTH),), (), conditions=conditions), settings)


def test_a_run_of_several_calls_keeps_to_the_conditions_of_the_model() -> None:
    rule = conditioned("n0 != 7", "n0 + n1 < 20", settings=FILLING)
    assert rule is not None
    assert rule.takes([x(3, 2), x(3, 4)], 6)
    assert not rule.takes([x(3, 2), x(4, 2)], 7)
    assert not rule.takes([x(3, 2), x(3, 14)], 6)


def test_calls_run_alone_where_nobody_knows_which_sizes_a_run_may_have() -> None:
    assert conditioned("n0 >= 1", complete=False) is None


@pytest.mark.parametrize(
    ("text", "rows", "wanted"),
    [
        ("n0 >= 5", 12, 7),  # 8 and 4 would not do
        ("n0 >= 5", 16, 8),
        ("n0 % 3 == 0", 15, 6),
        ("n0 != 8", 15, 7),
        ("n0 >= 8", 12, 0),
    ],
)
def test_a_large_call_is_split_into_parts_that_the_model_takes(text: str, rows: int, wanted: int) -> None:
    rule = conditioned(text)
    assert rule is not None
    assert rule.part_rows(x(rows, 2), rows) == wanted


def test_without_conditions_parts_are_as_large_as_a_run() -> None:
    assert rule_of(spec("x", ROWS)).part_rows(x(12), 12) == 8


@pytest.mark.parametrize("size", ["2*s1", "s1 - 1"])
def test_nothing_is_filled_up_where_the_size_of_an_output_follows_from_the_length(size: str) -> None:
    """Of a longer answer nobody could tell the call's own part."""
    rule = rule_of(spec("x", ROWS, LENGTH), outputs=(spec("y", ROWS, SymbolicDim(size)),), settings=FILLING)
    assert not rule.padded
    assert rule.key(x(1, 3)) != rule.key(x(1, 5))
