"""Requests that Predict refuses, with upstream's codes and messages; the server keeps serving."""

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2

INVALID, PRECONDITION = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
ROW = np.array([[1.0, 2.0, 3.0]], np.float32)
A = np.array([5.0, 6.0], np.float32)
BOTH = {"a": A, "b": A}
SIZE = "input size does not match signature"


@pytest.fixture(autouse=True)
def still_serving(stock):
    """After each test the next good request is answered."""
    yield
    assert stock.predict("half_plus", {"x": ROW}).model_spec.version.value == 2


@pytest.mark.parametrize(
    ("inputs", "how", "code", "words"),
    [
        ({"x": ROW}, {"signature_name": "nope"}, PRECONDITION, 'Serving signature key "nope" not found'),
        ({"a": A}, {}, INVALID, (f"{SIZE}: 1!=2", "Missing but required: {b}")),
        ({"a": A, "b": A, "d": A, "c": A}, {}, INVALID, (f"{SIZE}: 4!=2", "Sent extra: {c,d}")),
        ({"a": A, "z": A}, {}, INVALID, ("Signature input alias: b", "not found in request")),
        (BOTH, {"output_filter": ["sum", "ratio"]}, INVALID, "output tensor alias not found in signature: ratio"),
        (BOTH, {"output_filter": ["sum", "sum"]}, INVALID, "duplicate output tensor alias: sum"),
    ],
    ids=["signature", "missing input", "extra input", "misspelt input", "unknown output", "output listed twice"],
)
def test_names_that_the_model_does_not_have_are_refused(stock, refused, inputs, how, code, words):
    refused(code, words, stock.predict, "half_plus" if "x" in inputs else "two_inputs", inputs, **how)


@pytest.mark.parametrize(
    ("value", "sent"),
    [(tf.make_tensor_proto([["a", "b", "c"]]), "string"), (np.array([[1, 2, 3]], np.int64), "int64")],
    ids=["string", "int64"],
)
def test_wrong_dtype_says_what_was_expected_and_sent(stock, refused, value, sent):
    refused(INVALID, f"to be float but {sent} is provided", stock.predict, "half_plus", {"x": value})


@pytest.mark.parametrize("shape", [(3,), (1, 4), (1, 3, 1), ()], ids=str)
def test_wrong_shape_names_the_input(stock, refused, shape):
    refused(INVALID, ("x", "3"), stock.predict, "half_plus", {"x": np.ones(shape, np.float32)})


CONTENT = ROW.tobytes()


def floats(content=CONTENT, shape=(1, 3), dtype=types_pb2.DT_FLOAT, **fields):
    tensor = tensor_pb2.TensorProto(dtype=dtype, tensor_content=content, **fields)
    tensor.tensor_shape.dim.extend(tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in shape)
    return tensor


BROKEN = {
    "content_too_short": floats(CONTENT[:-1]),
    "content_too_long": floats(CONTENT + b"0000"),
    "negative_dimension": floats(shape=(-1, 3)),
    "no_dtype": floats(b"", (), types_pb2.DT_INVALID, float_val=[1.0]),
    "reference_dtype": floats(b"", (), types_pb2.DT_FLOAT_REF, float_val=[1.0]),
    "declares_more_than_any_memory": floats(b"", (2**40, 2**40), float_val=[1.0]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_tensor_that_cannot_be_decoded_names_its_alias(stock, refused, name):
    refused(INVALID, "tensor parsing error: x", stock.predict, "half_plus", {"x": BROKEN[name]})


def test_long_messages_are_cut_as_upstream_cuts_them(stock, refused):
    cut = "...TRUNCATED"
    details = refused(PRECONDITION, cut, stock.predict, "half_plus", {"x": ROW}, signature_name="s" * 5000)
    assert (details.index(cut), len(details)) == (1024, 1024 + len(cut))


def test_no_answer_shows_a_path_or_a_stack(stock, refused, model_root):
    details = refused(grpc.StatusCode.NOT_FOUND, "", stock.predict, "corrupt", {"x": ROW})
    status = stock.status("corrupt")[0].status.error_message
    for text in (details, status):
        assert str(model_root) not in text
        assert "Traceback" not in text
