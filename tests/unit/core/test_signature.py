"""The check between a request and a model's kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfs_lite.core.signature import (
    PREDICT_METHOD,
    DataType,
    Signature,
    SymbolicDim,
    TensorSpec,
    check_input_names,
    check_inputs,
    check_output_filter,
    find_signature,
    format_shape,
)
from tfs_lite.core.status import StatusCode
from tfs_lite.testing.errors import refusal

BATCH = SymbolicDim("batch")
SIGNATURE = Signature(
    inputs=(TensorSpec("x", DataType.FLOAT, (BATCH, 3)), TensorSpec("mask", DataType.BOOL, (BATCH,))),
    outputs=(TensorSpec("y"), TensorSpec("z")),
)
GOOD = {"x": (DataType.FLOAT, (4, 3)), "mask": (DataType.BOOL, (4,))}


def refused(call, code: StatusCode = StatusCode.INVALID_ARGUMENT) -> str:
    return refusal(call, code=code)


def test_names_are_in_order_and_the_method_is_predict() -> None:
    assert SIGNATURE.input_names == ("x", "mask")
    assert SIGNATURE.output_names == ("y", "z")
    assert SIGNATURE.method_name == PREDICT_METHOD


@pytest.mark.parametrize("key", ["", "serving_default"])
def test_default_signature_needs_no_name(key: str) -> None:
    assert find_signature({"serving_default": SIGNATURE}, key) is SIGNATURE


def test_unknown_signature_is_answered_with_the_known_ones() -> None:
    message = refused(lambda: find_signature({"b": SIGNATURE, "a": SIGNATURE}, "c"), StatusCode.FAILED_PRECONDITION)
    assert message == 'Serving signature key "c" not found. The model has: a,b'


def test_exactly_the_inputs_of_the_signature_are_taken() -> None:
    check_input_names(SIGNATURE, ["mask", "x"])
    message = refused(lambda: check_input_names(SIGNATURE, ["x", "w", "v"]))
    assert message.startswith("input size does not match signature: 3!=2 ")
    assert message.endswith("Sent extra: {v,w}. Missing but required: {mask}.")


def test_input_under_another_name_is_refused_with_both_names() -> None:
    message = refused(lambda: check_input_names(SIGNATURE, ["x", "w"]))
    assert "mask not found in request" in message
    assert "invalid name: w." in message


HALF_GIVEN = replace(SIGNATURE, defaults={"mask": object()})  # only the names of defaults are looked at here


@pytest.mark.parametrize("sent", [("x",), ("x", "mask"), ("mask", "x")])
def test_input_with_a_default_may_be_left_out(sent: tuple[str, ...]) -> None:
    check_input_names(HALF_GIVEN, sent)


def test_signature_without_inputs_takes_none() -> None:
    check_input_names(Signature((), ()), ())
    assert "1!=0" in refused(lambda: check_input_names(Signature((), ()), ("x",)))


NOT_FOUND = "Signature input alias: x not found in request and no default value provided."
INVALID_NAME = "Inputs contains invalid name: w."


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (("mask",), NOT_FOUND),
        ((), NOT_FOUND),
        (("w",), f"{NOT_FOUND} {INVALID_NAME}"),
        (("mask", "w"), f"{NOT_FOUND} {INVALID_NAME}"),
        (("x", "w"), INVALID_NAME),
        (
            ("x", "mask", "w"),
            "input size does not match signature: 3!=2 len({mask,w,x}) != len({mask,x}). "
            "Sent extra: {w}. Missing but required: {}.",
        ),
        (
            ("mask", "v", "w"),
            "input size does not match signature: 3!=2 len({mask,v,w}) != len({mask,x}). "
            "Sent extra: {v,w}. Missing but required: {x}.",
        ),
    ],
)
def test_names_that_defaults_do_not_excuse_are_refused(sent: tuple[str, ...], message: str) -> None:
    assert refused(lambda: check_input_names(HALF_GIVEN, sent)) == message


def test_fewer_inputs_without_any_default_are_counted() -> None:
    message = refused(lambda: check_input_names(SIGNATURE, ["x"]))
    assert message == (
        "input size does not match signature: 1!=2 len({x}) != len({mask,x}). "
        "Sent extra: {}. Missing but required: {mask}."
    )


def test_defaults_do_not_make_signatures_unequal() -> None:
    assert SIGNATURE == HALF_GIVEN


def test_output_filter_names_known_outputs_once() -> None:
    check_output_filter(SIGNATURE, [])
    check_output_filter(SIGNATURE, ["z", "y"])
    assert "output tensor alias not found in signature: w" in refused(lambda: check_output_filter(SIGNATURE, ["w"]))
    assert refused(lambda: check_output_filter(SIGNATURE, ["y", "y"])) == "duplicate output tensor alias: y"


@pytest.mark.parametrize("batch", [0, 1, 2, 1000])
def test_any_batch_size_is_taken(batch: int) -> None:
    check_inputs(SIGNATURE, {"x": (DataType.FLOAT, (batch, 3)), "mask": (DataType.BOOL, (batch,))})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (DataType.DOUBLE, (4, 3))}, "Expects arg[0] to be float but double is provided (input x)"),
        ({"mask": (DataType.INT64, (4,))}, "Expects arg[1] to be bool but int64 is provided (input mask)"),
        ({"x": (DataType.FLOAT, (3,))}, "input x has rank 1, expected 2: got shape [3], expected [-1,3]"),
        ({"x": (DataType.FLOAT, ())}, "input x has rank 0, expected 2: got shape [], expected [-1,3]"),
        ({"x": (DataType.FLOAT, (4, 5))}, "input x has size 5 in dimension 1, expected 3"),
        ({"mask": (DataType.BOOL, (5,))}, "input mask has size 5 in dimension 0, but input x has 4"),
    ],
)
def test_input_that_does_not_fit_is_refused_by_name(change: dict, message: str) -> None:
    assert refused(lambda: check_inputs(SIGNATURE, GOOD | change)).startswith(message)


def test_symbolic_dimension_may_be_bounded() -> None:
    signature = Signature((TensorSpec("x", DataType.FLOAT, (SymbolicDim("n", 8),)),), ())
    check_inputs(signature, {"x": (DataType.FLOAT, (8,))})
    message = refused(lambda: check_inputs(signature, {"x": (DataType.FLOAT, (9,))}))
    assert message == "input x has size 9 in dimension 0, at most 8 is allowed"


def test_what_is_not_declared_is_not_checked() -> None:
    signature = Signature((TensorSpec("x"), TensorSpec("y", DataType.FLOAT)), ())
    check_inputs(signature, {"x": (DataType.STRING, (1, 2, 3)), "y": (DataType.FLOAT, (9, 9))})


@pytest.mark.parametrize(("shape", "text"), [((BATCH, 28, 28), "[-1,28,28]"), ((), "[]"), (None, "[?]")])
def test_shapes_read_as_in_tensorflow(shape, text: str) -> None:
    assert format_shape(shape) == text


@pytest.mark.parametrize(
    ("dtype", "number", "text"),
    [
        (DataType.FLOAT, 1, "float"),
        (DataType.INT64, 9, "int64"),
        (DataType.STRING, 7, "string"),
        (DataType.HALF, 19, "half"),
    ],
)
def test_dtypes_have_tensorflows_numbers_and_names(dtype: DataType, number: int, text: str) -> None:
    assert (int(dtype), dtype.text) == (number, text)


def test_of_very_many_names_some_are_told() -> None:
    signature = Signature((TensorSpec("x"),), ())
    message = refusal(check_input_names, signature, {f"name{number}": None for number in range(1000)})
    assert "and 968 more" in message
    assert len(message) < 2000
