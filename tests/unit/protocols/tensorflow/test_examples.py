"""Rows of named features as the arrays of a signature: what fits, what is filled in, and who is named when not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tests.support.servers.examples import Features, example, rows
from tfs_lite.core.signature import DataType, Dim, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import TABLE, to_numpy
from tfs_lite.protocols.messages import Example, Input, Message
from tfs_lite.protocols.tensorflow import examples
from tfs_lite.protocols.tensorflow.examples import example_count, takes_serialized, tensors_of_input

BATCH = SymbolicDim("batch")
OTHER = SymbolicDim("length")


def signature(dtype: DataType = DataType.FLOAT, *shape: Dim, default: Any = None, name: str = "x") -> Signature:
    defaults = {} if default is None else {name: np.asarray(default, to_numpy(dtype) if dtype else None)}
    return Signature((TensorSpec(name, dtype, shape or (BATCH,)),), (), defaults=defaults)


UNDECLARED = Signature((TensorSpec("x"),), ())


def x(input: Message, of: Signature) -> np.ndarray[Any, Any]:
    (array,) = tensors_of_input(input, of).values()
    assert array.flags.c_contiguous
    return array


def refused(input: Message, of: Signature, **rest: Any) -> str:
    return refusal(tensors_of_input, input, of, **rest)


def assert_same(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert (got.dtype, got.shape, got.tolist()) == (expected.dtype, expected.shape, expected.tolist())


# How many


@pytest.mark.parametrize(
    "empty",
    [
        Input(),
        Input(example_list={}),
        Input(example_list_with_context={}),
        Input(example_list_with_context={"context": example({"x": [1.0]})}),
    ],
)
def test_input_without_examples_is_empty(empty: Message) -> None:
    with pytest.raises(ServingError, match=r"^Input is empty$"):
        example_count(empty)
    assert refused(empty, signature()) == "Input is empty"


@pytest.mark.parametrize("context", [None, {"x": [1.0]}])
def test_examples_are_counted_in_both_kinds_of_input(context: Features | None) -> None:
    assert example_count(rows({}, {}, {}, context=context)) == 3


def test_number_of_examples_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "MAX_EXAMPLES", 2)
    assert example_count(rows({}, {})) == 2
    assert refused(rows({}, {}, {}), signature()) == "Input has 3 examples, at most 2 are allowed"


# Serialized

STRINGS = signature(DataType.STRING, name="inputs")


@pytest.mark.parametrize(
    ("of", "serialized"),
    [
        (STRINGS, True),
        (Signature((TensorSpec("inputs", DataType.STRING),), ()), True),
        (Signature((TensorSpec("inputs", DataType.STRING, (2,)),), ()), True),
        (signature(DataType.STRING, BATCH, 3, name="inputs"), False),
        (signature(DataType.STRING), False),
        (signature(DataType.FLOAT, name="inputs"), False),
        (Signature((TensorSpec("inputs"),), ()), False),
        (Signature((*STRINGS.inputs, TensorSpec("y")), ()), False),
    ],
)
def test_one_string_called_inputs_takes_examples_whole(of: Signature, serialized: bool) -> None:
    assert takes_serialized(of) is serialized


def test_examples_are_handed_over_as_they_were_sent() -> None:
    sent = [{"a": [1.5], "b": [b"text"]}, {}]
    strings = tensors_of_input(rows(*sent), STRINGS)["inputs"]
    assert (strings.shape, strings.dtype) == ((2,), object)
    assert [Example.FromString(string) for string in strings] == [example(row) for row in sent]


def test_context_is_joined_in_front_so_that_the_example_wins() -> None:
    strings = x(rows({"a": [1]}, {"b": [2]}, context={"a": [9], "c": [3]}), STRINGS)
    assert strings[0].startswith(example({"a": [9], "c": [3]}).SerializeToString()[:2])
    merged = [
        {name: list(value.int64_list.value) for name, value in Example.FromString(row).features.feature.items()}
        for row in strings
    ]
    assert merged == [{"a": [1], "c": [3]}, {"a": [9], "b": [2], "c": [3]}]


# Dtypes

NUMBERS = [
    *(DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64),
    *(DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64),
]
FLOATING = [DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16]


def limits(dtype: DataType) -> tuple[int, int]:
    if dtype is DataType.BOOL:
        return 0, 1
    bounds = np.iinfo(to_numpy(dtype))
    return int(bounds.min), int(bounds.max)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("sent", [([1.5], [-2.0]), ([3], [-4]), ([1.5], [2])])
def test_floats_take_floats_and_integers(dtype: DataType, sent: Any) -> None:
    got = x(rows(*({"x": values} for values in sent)), signature(dtype))
    assert_same(got, np.array([values[0] for values in sent], to_numpy(dtype)))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_integers_take_integers_within_their_range(dtype: DataType) -> None:
    lowest, highest = limits(dtype)
    ends = [lowest, min(highest, 2**63 - 1)]
    assert_same(x(rows(*({"x": [end]} for end in ends)), signature(dtype)), np.array(ends, to_numpy(dtype)))


@pytest.mark.parametrize("dtype", [*NUMBERS, DataType.BOOL])
def test_integers_out_of_range_are_refused(dtype: DataType) -> None:
    lowest, highest = limits(dtype)
    for value in (lowest - 1, highest + 1):
        if -(2**63) <= value < 2**63:
            message = refused(rows({"x": [1, 1]}, {"x": [1, value]}), signature(dtype, BATCH, 2))
            assert message == f"feature x of example 1 holds {value}, out of range of {dtype.text}"


def test_values_arrive_as_they_were_sent() -> None:
    assert_same(x(rows({"x": [0]}, {"x": [1]}), signature(DataType.BOOL)), np.array([False, True]))
    got = x(rows({"x": [float("inf")]}, {"x": [float("nan")]}), signature(DataType.HALF))
    assert np.isinf(got[0])
    assert np.isnan(got[1])
    assert x(rows({"x": [2**53 - 1]}), signature(DataType.DOUBLE)).tolist() == [2.0**53 - 1]
    got = x(rows({"x": [b"a\0", b""]}, {"x": [b"\xff", b"b"]}), signature(DataType.STRING, BATCH, 2))
    assert got.tolist() == [[b"a\0", b""], [b"\xff", b"b"]]


@pytest.mark.parametrize(("dtype", "value"), [(DataType.HALF, 1e5), (DataType.HALF, 70000)])
def test_float_too_large_for_its_input_is_refused(dtype: DataType, value: float) -> None:
    assert "example 1 holds" in refused(rows({"x": [1.0]}, {"x": [value]}), signature(dtype))


@pytest.mark.parametrize(
    ("dtype", "values", "words"),
    [
        (DataType.FLOAT, [b"a"], "came as bytes_list, but input x of float takes float_list or int64_list"),
        (DataType.INT32, [1.0], "came as float_list, but input x of int32 takes int64_list"),
        (DataType.STRING, [1], "came as int64_list, but input x of string takes bytes_list"),
        (DataType.BOOL, [0.5], "came as float_list, but input x of bool takes int64_list"),
        (DataType.COMPLEX64, [1.0], "examples cannot express its values"),
        (DataType.FLOAT8_E5M2, [1.0], "examples cannot express its values"),
    ],
)
def test_feature_of_another_kind_is_refused_by_name(dtype: DataType, values: Any, words: str) -> None:
    message = refused(rows({"x": values}), signature(dtype))
    assert message.startswith("feature x of example 0 ")
    assert words in message


def test_first_example_with_the_wrong_kind_is_named() -> None:
    assert "feature x of example 2 came as" in refused(rows({"x": [1]}, {}, {"x": [b""]}), signature(default=1))


def is_fed(dtype: DataType) -> bool:
    try:
        array = x(rows({"x": [b"a"] if dtype is DataType.STRING else [1]}), signature(dtype))
    except ServingError:
        return False
    return bool(array.dtype == to_numpy(dtype))


def test_every_element_type_is_fed_but_complex_and_tiny_floats() -> None:
    refused_types = {row.dtype for row in TABLE if not is_fed(row.dtype)}
    assert {dtype.text for dtype in refused_types} == {
        *("complex64", "complex128"),
        *("float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    }


# Context


def test_features_of_the_context_stand_in_before_the_default_and_those_of_no_kind_hide_nothing() -> None:
    sent = rows({"x": [1.0]}, {}, context={"x": [9.0]})
    assert x(sent, signature()).tolist() == [1, 9]
    assert x(rows({}, context={"x": [9.0]}), signature(default=7)).tolist() == [9]
    assert x(rows({}, context={"x": None}), signature(default=7)).tolist() == [7]
    assert x(rows({"x": None}, {"x": [1.0]}, context={"x": [9.0]}), signature(default=7)).tolist() == [9, 1]


# Bounds


def test_repeated_values_fill_no_more_than_the_bound() -> None:
    wide = signature(DataType.FLOAT, BATCH, 10, default=np.zeros(10))
    few, many = [{}] * 2, [{}] * 3
    context = {"x": [1.0] * 10}
    assert len(x(rows(*few), wide)) == 2
    assert "the default of input x, repeated for 3 examples, would fill 120 bytes" in refused(
        rows(*many), wide, max_bytes=119
    )
    assert "feature x of the context, repeated for 3 examples" in refused(
        rows(*many, context=context), wide, max_bytes=300
    )
    assert "the context, repeated for 3 examples" in refused(rows(*many, context=context), STRINGS, max_bytes=100)


def test_what_is_sent_in_every_row_is_not_bounded_by_the_fill() -> None:
    wide = signature(DataType.FLOAT, BATCH, 10, default=np.zeros(10))
    sent = rows({"x": [1.0] * 10}, {"x": [2.0] * 10}, context={"x": [3.0] * 10})
    assert tensors_of_input(sent, wide, max_bytes=0)["x"].shape == (2, 10)


# Whatever comes


@st.composite
def inputs(draw: st.DrawFn) -> Message:
    values = st.one_of(
        st.none(),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
        st.lists(st.floats(width=32), max_size=4),
        st.lists(st.binary(max_size=3), max_size=4),
    )
    features = st.dictionaries(st.sampled_from(["x", "inputs", "z"]), values, max_size=3)
    context = draw(st.none() | features)
    return rows(*draw(st.lists(features, max_size=4)), context=context)


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    dtype = draw(st.sampled_from([DataType.INVALID, *(row.dtype for row in TABLE)]))
    dims = st.sampled_from([BATCH, OTHER, 0, 1, 2, 4])
    shape = draw(st.none() | st.lists(dims, max_size=3).map(tuple))
    return Signature((TensorSpec(draw(st.sampled_from(["x", "inputs"])), dtype, shape),), ())


def outcome(input: Message, of: Signature) -> dict[str, Any] | ServingError:
    try:
        return tensors_of_input(input, of)
    except ServingError as error:
        return error


@given(inputs(), signatures())
def test_any_input_becomes_rows_of_the_signature_or_a_refusal(input: Message, of: Signature) -> None:
    got = outcome(input, of)
    if isinstance(got, ServingError):
        assert got.code is StatusCode.INVALID_ARGUMENT
        return
    (spec,) = of.inputs
    array = got[spec.name]
    assert array.shape[0] == example_count(input)
    assert spec.dtype is DataType.INVALID or array.dtype == to_numpy(spec.dtype)
    assert spec.shape is None or len(array.shape) == len(spec.shape)
