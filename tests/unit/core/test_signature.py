"""The check between a request and a model's kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.core.signature import (
    PREDICT_METHOD,
    DataType,
    ShapeContract,
    Signature,
    SymbolicDim,
    TensorSpec,
    check_input_names,
    check_inputs,
    check_output_filter,
    check_rows,
    find_signature,
    format_shape,
    named,
    served,
    shapes_fault,
)
from tfs_lite.core.status import Reason, ServingError, StatusCode

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


def test_unknown_signature_of_a_model_is_answered_with_its_name() -> None:
    found = served({"a": SIGNATURE}, "m")
    message = refused(lambda: find_signature(found, "c"), StatusCode.FAILED_PRECONDITION)
    assert message == 'Serving signature key "c" not found. Model m has: a'


def test_served_signature_differs_in_its_model_and_the_rows_of_its_inputs_only() -> None:
    assert served({"a": SIGNATURE}, "m") == {"a": SIGNATURE}
    (found,) = served({"a": SIGNATURE}, "m", 4).values()
    assert (found.model, found.max_rows, found.outputs) == ("m", 4, SIGNATURE.outputs)
    assert [spec.shape for spec in found.inputs] == [(SymbolicDim("batch", 4), 3), (SymbolicDim("batch", 4),)]


@pytest.mark.parametrize(
    ("shape", "limited"),
    [
        ((SymbolicDim("n", 2), 3), (SymbolicDim("n", 2), 3)),
        ((SymbolicDim("n", 8), 3), (SymbolicDim("n", 4), 3)),
        ((SymbolicDim("n"), SymbolicDim("n")), (SymbolicDim("n", 4), SymbolicDim("n"))),
        ((7, 3), (7, 3)),
        ((), ()),
        (None, None),
    ],
    ids=["fewer rows", "more rows", "any number", "no batch", "a scalar", "undeclared"],
)
def test_first_dimension_of_an_input_has_no_more_rows_than_are_served(shape, limited) -> None:
    (found,) = served({"a": Signature((TensorSpec("x", DataType.FLOAT, shape),), ())}, "m", 4).values()
    assert found.inputs[0].shape == limited


def test_more_rows_than_are_served_are_refused_whatever_is_declared() -> None:
    (found,) = served({"a": Signature((TensorSpec("x"),), ())}, "m", 4).values()
    check_rows(found, [(4, 9), ()])
    assert refused(lambda: check_rows(found, [(5,)])) == "inference request batch-size must be <= 4 for 'm'"
    check_rows(SIGNATURE, [(5,)])


def test_refusal_keeps_its_code_and_reason_and_gets_the_models_name() -> None:
    error = ServingError(StatusCode.UNAVAILABLE, "full", Reason.QUEUE_FULL)
    assert named(error, "") is error
    status = named(error, "m").status
    assert (status.code, status.message, status.reason) == (error.code, "full (model m)", Reason.QUEUE_FULL)


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


@pytest.mark.parametrize(
    ("symbol", "rest"),
    [
        ("s53", "and these have to be equal"),
        ("2*s53", "and these have to be equal"),
        ("tokens", "and these have to be equal (both are 'tokens')"),
    ],
)
def test_sizes_that_differ_are_told_by_input_and_dimension_and_by_a_name_that_somebody_chose(
    symbol: str, rest: str
) -> None:
    dim = SymbolicDim(symbol)
    signature = Signature((TensorSpec("a", DataType.FLOAT, (4, dim)), TensorSpec("b", DataType.FLOAT, (dim,))), ())
    sent = {"a": (DataType.FLOAT, (4, 2)), "b": (DataType.FLOAT, (3,))}
    told = refused(lambda: check_inputs(signature, sent))
    assert told == f"input b has size 3 in dimension 0, but input a has 2 in dimension 1, {rest}"


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


def test_shapes_that_are_no_contract_are_not_checked_and_types_are() -> None:
    signature = replace(PAIR, contract=ShapeContract.NONE)
    check_inputs(signature, {"x": (DataType.FLOAT, (3,)), "y": (DataType.FLOAT, (1, 2, 3))})
    message = refused(lambda: check_inputs(signature, {"x": (DataType.DOUBLE, (3,)), "y": (DataType.FLOAT, (3, 2))}))
    assert "Expects arg[0] to be float but double is provided" in message


@pytest.mark.parametrize(
    ("x", "y", "fault"),
    [
        ((4, 2), (4, 2), ""),
        ((4,), (4, 2), "input x has rank 1, expected 2"),
        ((4, 3), (4, 2), "input x has size 3 in dimension 1, expected 2"),
        ((4, 2), (5, 2), "have to be equal"),
    ],
)
def test_what_differs_from_the_declared_shapes_is_told_whatever_the_contract(x, y, fault: str) -> None:
    inputs = {"x": np.zeros(x, np.float32), "y": np.zeros(y, np.float32)}
    for contract in ShapeContract:
        found = shapes_fault(replace(PAIR, contract=contract), inputs)
        assert fault in found
        assert bool(found) is bool(fault)


PAIR = Signature(
    tuple(TensorSpec(name, DataType.FLOAT, (SymbolicDim("batch"), 2)) for name in "xy"),
    (TensorSpec("z", DataType.FLOAT, (SymbolicDim("batch"),)),),
)
