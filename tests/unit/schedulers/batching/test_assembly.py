"""Every call gets exactly its rows, whatever it shared a run with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.model import Model, PredictCall, Shapes
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.protocols.dtypes import TABLE
from tfs_lite.schedulers.batching.assembly import assemble, split_outputs
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import BatchSettings

ROWS, LENGTH, WIDTH = SymbolicDim("s0"), SymbolicDim("s1"), SymbolicDim("s2")
NAMES = ("y", "ids", "texts")


def specs(*rows: Any) -> tuple[TensorSpec, ...]:
    """Of names, types and dimensions."""
    return tuple(TensorSpec(name, dtype, dims) for name, dtype, *dims in rows)


FLOAT, INT64, STRING = DataType.FLOAT, DataType.INT64, DataType.STRING
SIGNATURE = Signature(
    specs(("x", FLOAT, ROWS, 3), ("id", INT64, ROWS), ("text", STRING, ROWS)),
    specs(("y", FLOAT, ROWS, 3), ("ids", INT64, ROWS), ("texts", STRING, ROWS)),
)

Arrays = Mapping[str, np.ndarray]


class Adding(Model):
    """y = x + id for every row, and the rows' ids and texts. ``memory``: what ``stage`` lends, by input."""

    platform = "numpy"
    signatures = {"s": SIGNATURE}  # noqa: RUF012

    def __init__(self, memory: Sequence[str] | None = None) -> None:
        self._memory = memory
        self.staged: dict[str, np.ndarray] = {}
        self.asked: Shapes = {}
        self.got: dict[str, np.ndarray] = {}

    def stage(self, signature: str, shapes: Shapes) -> dict[str, np.ndarray] | None:
        assert signature == "s"
        self.asked = shapes
        if self._memory is None:
            return None
        self.staged = {name: np.full(*shapes[name][:1], 7, shapes[name][1]) for name in self._memory}
        return self.staged

    def run(self, signature: str, inputs: Arrays, outputs: tuple[str, ...]) -> dict[str, np.ndarray]:
        self.got = dict(inputs)
        y = inputs["x"] + inputs["id"][:, None].astype(np.float32)
        found = {"y": y, "ids": inputs["id"], "texts": inputs["text"]}
        return {name: found[name].copy() for name in outputs or NAMES}

    def close(self) -> None:
        pass


def call_of(inputs: Arrays, outputs: tuple[str, ...] = ()) -> PredictCall:
    return PredictCall("s", inputs, outputs, None, on_done=lambda result: None)


def adding_call(first_id: int, rows: int, outputs: tuple[str, ...] = ()) -> PredictCall:
    ids = np.arange(first_id, first_id + rows)
    x = (ids[:, None] * 10 + np.arange(3)).astype(np.float32)
    text = np.array([b"row %d\x00" % value for value in ids], dtype=object)
    return call_of({"x": x, "id": ids, "text": text}, outputs)


def rule_of(signature: Signature, settings: BatchSettings) -> BatchRule:
    rule = BatchRule.of(signature, settings)
    assert rule is not None
    return rule


def run_all(
    model: Model, calls: Sequence[PredictCall], settings: BatchSettings, signature: Signature = SIGNATURE
) -> list[Any]:
    rule = rule_of(signature, settings)
    sizes = [rule.rows(call.inputs) for call in calls]
    batch = assemble(rule, model, "s", calls, sizes, settings)
    assert batch.rows == sum(sizes)
    return split_outputs(rule, batch, model.run("s", batch.inputs, batch.outputs), calls, sizes)


def plain(array: np.ndarray) -> tuple[Any, tuple[int, ...], list[Any]]:
    return array.dtype, array.shape, array.tolist()


wishes = st.permutations(NAMES).flatmap(lambda names: st.integers(0, 3).map(lambda count: tuple(names[:count])))


@given(
    st.lists(st.tuples(st.integers(0, 7), wishes), min_size=1, max_size=8),
    st.lists(st.integers(1, 60), max_size=3).map(lambda sizes: tuple(sorted(set(sizes)))),
    st.sampled_from([None, (), ("x",), ("x", "id")]),
)
def test_every_call_gets_its_rows_of_the_outputs_it_wants(
    wanted: list[tuple[int, tuple[str, ...]]], allowed: tuple[int, ...], memory: tuple[str, ...] | None
) -> None:
    calls = [adding_call(100 * index, rows, names) for index, (rows, names) in enumerate(wanted)]
    model = Adding(memory)
    answers = run_all(model, calls, BatchSettings(max_batch_size=60, allowed_sizes=allowed))
    assert len(answers) == len(calls)
    for call, answer in zip(calls, answers, strict=True):
        alone = Adding().run("s", call.inputs, call.outputs)
        assert list(answer) == list(alone)
        assert all(plain(answer[name]) == plain(alone[name]) for name in alone)
    rows = sum(rows for rows, _ in wanted)
    expected = min((size for size in allowed if size >= rows), default=rows) if rows else 0
    assert {len(array) for array in model.got.values()} == {expected}
    assert all(array is model.got[name] for name, array in model.staged.items())


def test_split_outputs_are_not_copied() -> None:
    calls = [adding_call(0, 2), adding_call(10, 1)]
    settings = BatchSettings(max_batch_size=8)
    rule = rule_of(SIGNATURE, settings)
    batch = assemble(rule, Adding(), "s", calls, [2, 1], settings)
    results = Adding().run("s", batch.inputs, batch.outputs)
    answers = split_outputs(rule, batch, results, calls, [2, 1])
    assert all(np.shares_memory(answer["y"], results["y"]) for answer in answers)


def test_one_call_goes_in_and_comes_out_as_it_is_with_and_without_a_rule() -> None:
    settings = BatchSettings(max_batch_size=8)
    call, rule, model = adding_call(0, 3, ("ids",)), rule_of(SIGNATURE, settings), Adding(("x",))
    batch = assemble(rule, model, "s", [call], [3], settings)
    assert (batch.inputs, batch.outputs, batch.rows, batch.padding) == (call.inputs, ("ids",), 3, 0)
    assert batch.inputs is call.inputs
    assert not model.asked
    results = {"whatever": np.float32(1)}
    assert split_outputs(rule, batch, results, [call], [3]) == [results]
    call = call_of({"x": np.float32(3)})
    batch = assemble(None, Adding(), "s", [call], [1], BatchSettings(max_batch_size=8, allowed_sizes=(8,)))
    assert batch.inputs is call.inputs
    assert batch.padding == 0
    assert split_outputs(None, batch, results, [call], [1]) == [results]


def test_padding_is_the_first_row_of_the_last_call_with_rows() -> None:
    model = Adding()
    calls = [adding_call(0, 2), adding_call(10, 2), adding_call(20, 0)]
    answers = run_all(model, calls, BatchSettings(max_batch_size=8, allowed_sizes=(2, 6, 8)))
    assert model.got["id"].tolist() == [0, 1, 10, 11, 10, 10]
    assert model.got["text"].tolist()[4:] == [b"row 10\x00"] * 2
    assert [answer["ids"].tolist() for answer in answers] == [[0, 1], [10, 11], []]


def test_one_call_is_padded_too() -> None:
    model = Adding(("x",))
    (answer,) = run_all(model, [adding_call(5, 3)], BatchSettings(max_batch_size=4, allowed_sizes=(4,)))
    assert model.got["id"].tolist() == [5, 6, 7, 5]
    assert model.got["x"] is model.staged["x"]
    assert answer["ids"].tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("allowed", "maximum", "padding"),
    [
        ((2, 5, 8), None, {1: 1, 2: 0, 3: 2, 5: 0, 6: 2, 8: 0}),
        pytest.param((2,), None, {3: 0}, id="more rows than every allowed size"),
        pytest.param((2, 8), 5, {3: 0}, id="no more than the model takes"),
    ],
)
def test_runs_are_padded_to_allowed_sizes(
    allowed: tuple[int, ...], maximum: int | None, padding: dict[int, int]
) -> None:
    signature = Signature((TensorSpec("x", DataType.FLOAT, (SymbolicDim("s0", maximum),)),), ())
    settings = BatchSettings(max_batch_size=8, allowed_sizes=allowed)
    for rows, added in padding.items():
        calls = [call_of({"x": np.ones(size, np.float32)}) for size in (rows - 1, 1)]
        batch = assemble(rule_of(signature, settings), Adding(), "s", calls, [rows - 1, 1], settings)
        assert (batch.rows, batch.padding) == (rows, added)


def test_nothing_but_empty_calls_is_run_without_rows() -> None:
    calls = [adding_call(0, 0), adding_call(0, 0)]
    answers = run_all(Adding(), calls, BatchSettings(max_batch_size=8, allowed_sizes=(8,)))
    assert [answer["y"].shape for answer in answers] == [(0, 3), (0, 3)]


@pytest.mark.parametrize(
    ("wishes", "union"),
    [
        ([("ids",), ("ids",)], ("ids",)),
        ([("ids",), ("texts", "ids")], ("ids", "texts")),
        ([("ids",), ()], ()),
        ([(), ()], ()),
    ],
    ids=["the same", "different", "one wants all", "both want all"],
)
def test_the_model_is_asked_for_what_some_call_wants(wishes: list[tuple[str, ...]], union: tuple[str, ...]) -> None:
    settings = BatchSettings(max_batch_size=8)
    calls = [adding_call(index, 1, names) for index, names in enumerate(wishes)]
    assert assemble(rule_of(SIGNATURE, settings), Adding(), "s", calls, [1, 1], settings).outputs == union


def test_the_model_is_asked_for_memory_for_numbers_only() -> None:
    model = Adding()
    run_all(model, [adding_call(0, 2), adding_call(9, 1)], BatchSettings(max_batch_size=4, allowed_sizes=(4,)))
    assert model.asked == {"x": ((4, 3), np.dtype(np.float32)), "id": ((4,), np.dtype(np.int64))}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.dtype.text)
@pytest.mark.parametrize("fill", [False, True], ids=["stacked", "filled"])
def test_every_element_type_keeps_its_bits(row: Any, fill: bool) -> None:
    settings = BatchSettings(max_batch_size=8, allowed_sizes=(8,), pad_variable_length=fill)
    signature = Signature((TensorSpec("x", row.dtype, (ROWS, LENGTH)),), (TensorSpec("x", row.dtype, (ROWS, LENGTH)),))
    first, second = values(row.numpy, 2, 2), values(row.numpy, 3, 4 if fill else 2)
    calls = [call_of({"x": first}), call_of({"x": second})]
    rule = rule_of(signature, settings)
    batch = assemble(rule, Adding(), "s", calls, [2, 3], settings)
    array: Any = batch.inputs["x"]
    assert array.dtype == row.numpy
    assert array.shape == (8, 4 if fill else 2)
    answers: Any = split_outputs(rule, batch, {"x": array.copy()}, calls, [2, 3])
    assert bits(answers[0]["x"]) == bits(first)
    assert bits(answers[1]["x"]) == bits(second)
    assert bits(array[5:]) == bits(np.concatenate([second[:1]] * 3))
    if fill:
        assert bits(array[:2, 2:]) == bits(np.concatenate([np.concatenate([first[:1, :1]] * 2)] * 2, axis=1))


def values(dtype: np.dtype[Any], *shape: int) -> np.ndarray:
    """Different ones, NaN and all."""
    count = int(np.prod(shape))
    if dtype.hasobject:
        return np.array([b"\xff%d\x00" % index for index in range(count)], object).reshape(shape)
    raw = (np.arange(count * dtype.itemsize) * 37 + 200).astype(np.uint8)
    return (raw & 1 if dtype == np.bool_ else raw).view(dtype).reshape(shape)


def bits(array: np.ndarray) -> object:
    return array.tolist() if array.dtype.hasobject else (array.shape, array.tobytes())


FILLED = Signature(
    specs(("a", FLOAT, ROWS, LENGTH, WIDTH), ("b", DataType.BFLOAT16, ROWS, LENGTH), ("c", INT64, ROWS, 2)),
    specs(("turned", FLOAT, ROWS, WIDTH, LENGTH), ("sums", FLOAT, ROWS, LENGTH)),
)
FILLING = BatchSettings(max_batch_size=100, pad_variable_length=True)


class Turning(Adding):
    signatures = {"s": FILLED}  # noqa: RUF012

    def run(self, signature: str, inputs: Arrays, outputs: tuple[str, ...]) -> dict[str, np.ndarray]:
        self.got = dict(inputs)
        a, b, c = (inputs[name].astype(np.float32) for name in "abc")
        sums = b + c.sum(1, keepdims=True)
        return {"turned": a.transpose(0, 2, 1).copy(), "sums": sums}


def filled_call(seed: int, rows: int, length: int, width: int) -> PredictCall:
    draw = np.random.default_rng(seed)
    return call_of(
        {
            "a": draw.random((rows, length, width), np.float32),
            "b": draw.integers(-9, 9, (rows, length)).astype(ml_dtypes.bfloat16),
            "c": draw.integers(0, 9, (rows, 2)),
        }
    )


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)), min_size=2, max_size=6),
    st.sampled_from([(), (30, 100)]),
)
def test_every_call_gets_its_own_length_back(shapes: list[tuple[int, int, int]], allowed: tuple[int, ...]) -> None:
    calls = [filled_call(seed, *shape) for seed, shape in enumerate(shapes)]
    settings = BatchSettings(max_batch_size=100, pad_variable_length=True, allowed_sizes=allowed)
    model = Turning()
    answers = run_all(model, calls, settings, FILLED)
    longest, widest = (max(shape[axis] for shape in shapes) for axis in (1, 2))
    start = 0
    for call, answer, (rows, length, width) in zip(calls, answers, shapes, strict=True):
        alone = Turning().run("s", call.inputs, ())
        assert plain(answer["turned"]) == plain(alone["turned"])
        assert plain(answer["sums"]) == plain(alone["sums"])
        seen, own = model.got["a"][start : start + rows], call.inputs["a"]
        assert seen.shape == (rows, longest, widest)
        outside = np.ones((longest, widest), bool)
        outside[:length, :width] = False
        assert (seen[:, outside] == own[0, 0, 0]).all()
        start += rows


def test_calls_without_rows_but_of_one_length_are_stacked() -> None:
    calls = [filled_call(seed, 0, 3, 2) for seed in range(2)]
    answers = run_all(Turning(), calls, FILLING, FILLED)
    assert [answer["turned"].shape for answer in answers] == [(0, 2, 3)] * 2


def test_an_output_that_the_call_does_not_want_is_not_trimmed() -> None:
    calls = [filled_call(0, 1, 2, 1), filled_call(1, 1, 3, 1)]
    calls[0].outputs = ("sums",)
    answers = run_all(Turning(), calls, FILLING, FILLED)
    assert {name: array.shape for name, array in answers[0].items()} == {"sums": (1, 2)}


@pytest.mark.parametrize(
    "result",
    [np.float32(1), np.ones((2, 3)), np.ones((0, 3)), np.ones((3, 3))],
    ids=["a scalar", "too few rows", "no row", "as many as without padding"],
)
def test_results_that_are_not_one_row_for_each_fail_every_call(result: Any) -> None:
    wrong_rows = "0th dimension does not equal the sum of the 0th dimension sizes"
    marker = wrong_rows if result.ndim else "Batched output tensor has 0 dimensions"
    settings = BatchSettings(max_batch_size=8, allowed_sizes=(4,))
    calls, rule = [adding_call(0, 2), adding_call(10, 1)], rule_of(SIGNATURE, settings)
    batch = assemble(rule, Adding(), "s", calls, [2, 1], settings)
    answers = split_outputs(rule, batch, {"ids": np.ones(4), "y": result}, calls, [2, 1])
    assert len(answers) == 2
    for answer in answers:
        assert isinstance(answer, Status)
        assert answer.code is StatusCode.FAILED_PRECONDITION
        assert marker in answer.message
        assert "output y" in answer.message
