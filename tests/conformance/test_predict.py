"""Predict through upstream's stub: every dtype in both encodings, responses as upstream encodes them, filters."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, types_pb2

NUMBERS = {
    "half": np.array([[1.5, -2.0]], np.float16),
    "bfloat": np.array([[1.5, -2.0]], tf.bfloat16.as_numpy_dtype),
    "single": np.array([[1.5, -2.0]], np.float32),
    "double": np.array([[1.5, -2.0]], np.float64),
    "int8": np.array([[3, -4]], np.int8),
    "uint8": np.array([[3, 100]], np.uint8),
    "int16": np.array([[3, -4]], np.int16),
    "int32": np.array([[3, -4]], np.int32),
    "int64": np.array([[3, -(2**40)]], np.int64),
    "complex64": np.array([[1 + 2j, -3j]], np.complex64),
}
FLAG = np.array([[True, False]])


def check_doubled(outputs) -> None:
    for name, sent in NUMBERS.items():
        got = tf.make_ndarray(outputs[name])
        assert got.dtype == sent.dtype, name
        np.testing.assert_array_equal(got, sent * 2)
    np.testing.assert_array_equal(tf.make_ndarray(outputs["flag"]), ~FLAG)


TYPED = {
    **dict.fromkeys(("float16", "bfloat16"), "half_val"),
    **dict.fromkeys(("int8", "uint8", "int16", "int32"), "int_val"),
    "float32": "float_val",
    "float64": "double_val",
    "int64": "int64_val",
}


def typed(values: np.ndarray) -> tensor_pb2.TensorProto:
    """The tensor in its typed field, never as tensor_content."""
    proto = tf.make_tensor_proto(values)
    proto.ClearField("tensor_content")
    if field := TYPED.get(values.dtype.name):
        flat = values.ravel().view(np.uint16) if field == "half_val" else values.ravel()
        getattr(proto, field)[:] = flat.tolist()
    return proto


def content(values: np.ndarray) -> tensor_pb2.TensorProto:
    """The tensor as raw bytes, also for the dtypes that make_tensor_proto writes as typed fields."""
    proto = tf.make_tensor_proto(values)
    for field in ("bool_val", "scomplex_val"):
        proto.ClearField(field)
    proto.tensor_content = values.tobytes()
    return proto


def test_answer_names_model_version_and_signature(stock):
    response = stock.predict("half_plus", {"x": np.array([[2.0, 4.0, 6.0]], np.float32)})
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("half_plus", 2, "serving_default")
    np.testing.assert_array_equal(tf.make_ndarray(response.outputs["y"]), [[3.0, 4.0, 5.0]])


def test_float_val_of_an_answer_can_be_read_directly(stock):
    response = stock.predict("half_plus", {"x": np.array([[2.0, 4.0, 6.0]], np.float32)}, version=1)
    proto = response.outputs["y"]
    assert list(proto.float_val) == [2.0, 3.0, 4.0]
    assert proto.tensor_content == b""
    assert proto.dtype == types_pb2.DT_FLOAT
    assert [dim.size for dim in proto.tensor_shape.dim] == [1, 3]


@pytest.mark.parametrize("encode", [tf.make_tensor_proto, typed, content], ids=["as_made", "typed", "content"])
def test_every_number_type_makes_the_round_trip(stock, encode):
    response = stock.predict("numbers", {name: encode(value) for name, value in {**NUMBERS, "flag": FLAG}.items()})
    check_doubled(response.outputs)


def test_strings_make_the_round_trip(stock):
    response = stock.predict("shout", {"text": tf.make_tensor_proto([b"abc", b"\xff\x00z"])})
    assert tf.make_ndarray(response.outputs["shout"]).tolist() == [b"ABC", b"\xff\x00Z"]
    assert list(response.outputs["shout"].string_val) == [b"ABC", b"\xff\x00Z"]


def test_strings_in_tensor_content_are_read(stock):
    proto = tf.make_tensor_proto(["abc", "de"])
    proto.ClearField("string_val")
    proto.tensor_content = b"\x03\x02abcde"
    assert list(stock.predict("shout", {"text": proto}).outputs["shout"].string_val) == [b"ABC", b"DE"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([2.0, 4.0], [[2.0, 3.0, 3.0], [3.0, 3.0, 3.0]]), ([], np.ones((2, 3)))],
    ids=["last value repeats", "no values mean zeros"],
)
def test_fewer_values_than_the_shape_says_are_filled_up(stock, values, expected):
    shape = {"dim": [{"size": 2}, {"size": 3}]}
    proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=values, tensor_shape=shape)
    response = stock.predict("half_plus", {"x": proto}, version=1)
    np.testing.assert_array_equal(tf.make_ndarray(response.outputs["y"]), expected)


@pytest.mark.parametrize("rows", [0, 1, 3, 500])
def test_any_number_of_rows_is_served(stock, rows):
    sent = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    got = tf.make_ndarray(stock.predict("half_plus", {"x": sent}, version=1).outputs["y"])
    np.testing.assert_array_equal(got, sent / 2 + 1)


def test_message_past_the_default_grpc_limit_is_served(stock):
    sent = np.ones((2_000_000, 3), np.float32)
    got = stock.predict("half_plus", {"x": sent}, version=1).outputs["y"]
    assert tf.make_ndarray(got).shape == (2_000_000, 3)


def test_output_filter_returns_exactly_what_it_lists(stock):
    inputs = {"a": np.array([5.0, 6.0], np.float32), "b": np.array([2.0, 3.0], np.float32)}
    assert set(stock.predict("two_inputs", inputs).outputs) == {"sum", "difference", "product"}
    filtered = stock.predict("two_inputs", inputs, output_filter=["product", "sum"]).outputs
    found = {name: list(tensor.float_val) for name, tensor in filtered.items()}
    assert found == {"product": [10.0, 18.0], "sum": [7.0, 9.0]}
