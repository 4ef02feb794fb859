"""What Predict refuses, with upstream's codes and the words that its clients look for; the server keeps serving."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, types_pb2

INVALID = grpc.StatusCode.INVALID_ARGUMENT
ROW = np.array([[1.0, 2.0, 3.0]], np.float32)
A = np.array([5.0, 6.0], np.float32)


@pytest.fixture(autouse=True)
def still_serving(stock):
    """Whatever a test did, the next good request is answered."""
    yield
    assert stock.predict("half_plus", {"x": ROW}).model_spec.version.value == 2


def test_unknown_signature_is_refused(stock, refused):
    refused(
        lambda: stock.predict("half_plus", {"x": ROW}, signature_name="nope"),
        grpc.StatusCode.FAILED_PRECONDITION,
        'Serving signature key "nope" not found',
    )


def test_missing_input_is_named(stock, refused):
    refused(
        lambda: stock.predict("two_inputs", {"a": A}),
        INVALID,
        "input size does not match signature: 1!=2",
        "Missing but required: {b}",
    )


def test_extra_input_is_named(stock, refused):
    refused(
        lambda: stock.predict("two_inputs", {"a": A, "b": A, "d": A, "c": A}),
        INVALID,
        "input size does not match signature: 4!=2",
        "Sent extra: {c,d}",
    )


def test_misspelt_input_is_refused(stock, refused):
    refused(
        lambda: stock.predict("two_inputs", {"a": A, "z": A}),
        INVALID,
        "Signature input alias: b",
        "not found in request",
    )


def test_unknown_output_is_named(stock, refused):
    refused(
        lambda: stock.predict("two_inputs", {"a": A, "b": A}, output_filter=["sum", "ratio"]),
        INVALID,
        "output tensor alias not found in signature: ratio",
    )


def test_output_listed_twice_is_refused(stock, refused):
    refused(
        lambda: stock.predict("two_inputs", {"a": A, "b": A}, output_filter=["sum", "sum"]),
        INVALID,
        "duplicate output tensor alias: sum",
    )


@pytest.mark.parametrize(
    ("value", "sent"),
    [(tf.make_tensor_proto([["a", "b", "c"]]), "string"), (np.array([[1, 2, 3]], np.int64), "int64")],
    ids=["string", "int64"],
)
def test_wrong_dtype_says_what_was_expected_and_sent(stock, refused, value, sent):
    refused(lambda: stock.predict("half_plus", {"x": value}), INVALID, f"to be float but {sent} is provided")


@pytest.mark.parametrize("shape", [(3,), (1, 4), (1, 3, 1), ()], ids=str)
def test_wrong_shape_names_the_input(stock, refused, shape):
    refused(lambda: stock.predict("half_plus", {"x": np.ones(shape, np.float32)}), INVALID, "x", "3")


def broken_tensors():
    short = tf.make_tensor_proto(ROW)
    short.tensor_content = short.tensor_content[:-1]
    yield pytest.param(short, id="content_too_short")
    long = tf.make_tensor_proto(ROW)
    long.tensor_content += b"0000"
    yield pytest.param(long, id="content_too_long")
    negative = tf.make_tensor_proto(ROW)
    negative.tensor_shape.dim[0].size = -1
    yield pytest.param(negative, id="negative_dimension")
    yield pytest.param(tensor_pb2.TensorProto(dtype=types_pb2.DT_INVALID, float_val=[1.0]), id="no_dtype")
    yield pytest.param(tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT_REF, float_val=[1.0]), id="reference_dtype")
    huge = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[1.0])
    for size in (2**40, 2**40):
        huge.tensor_shape.dim.add().size = size
    yield pytest.param(huge, id="declares_more_than_any_memory")


@pytest.mark.parametrize("tensor", broken_tensors())
def test_tensor_that_cannot_be_decoded_names_its_alias(stock, refused, tensor):
    refused(lambda: stock.predict("half_plus", {"x": tensor}), INVALID, "tensor parsing error: x")


def test_long_messages_are_cut_as_upstream_cuts_them(stock, refused):
    details = refused(
        lambda: stock.predict("half_plus", {"x": ROW}, signature_name="s" * 5000), grpc.StatusCode.FAILED_PRECONDITION
    )
    assert details.endswith("...TRUNCATED")
    assert len(details) == 1024 + len("...TRUNCATED")


def test_no_answer_shows_a_path_or_a_stack(stock, refused, model_root):
    details = refused(lambda: stock.predict("corrupt", {"x": ROW}), grpc.StatusCode.NOT_FOUND)
    status = stock.status("corrupt")[0].status.error_message
    for text in (details, status):
        assert str(model_root) not in text
        assert "Traceback" not in text
