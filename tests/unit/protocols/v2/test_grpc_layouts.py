"""ModelInferRequests recognised by their bytes: what is read out of them is what a parser would have read, or they are
not recognised at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import event, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.support.profiles import examples
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import Array, from_numpy, to_numpy
from tfs_lite.protocols.v2.grpc_layouts import GrpcLayouts
from tfs_lite.protocols.v2.grpc_request import read_message, read_request
from tfs_lite.protocols.v2.messages import ModelInferRequest
from tfs_lite.protocols.v2.plain import PlainRequest, plain_form
from tfs_lite.protocols.v2.request import InferRequest
from tfs_lite.protocols.v2.tensors import decode, dtype_of, name_of

NAMES = [*("FP16", "BF16", "FP32", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")]
NUMBERS = [to_numpy(dtype_of(name)) for name in NAMES]
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
"""The dtypes whose typed contents are runs of numbers."""
SHAPES = st.just(()) | npst.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4)


def read(data: bytes) -> InferRequest:
    return read_request(read_message(data))


def learn(layouts: GrpcLayouts, data: bytes) -> None:
    request = read(data)
    form = plain_form(request)
    if form is not None:
        layouts.learn(data, request, form)


def learned(data: bytes) -> GrpcLayouts:
    layouts = GrpcLayouts()
    learn(layouts, data)
    assert layouts.find(data) is not None
    return layouts


def message(*arrays: Array, typed: bool = False, **fields: Any) -> bytes:
    """A request for inputs x0, x1, ... as a client writes it."""
    request = ModelInferRequest(model_name=fields.pop("model_name", "m"), **fields)
    for index, array in enumerate(arrays):
        name = name_of(from_numpy(array.dtype))
        tensor = request.inputs.add(name=f"x{index}", datatype=name, shape=array.shape)
        if typed:
            contents = tensor.contents.fp32_contents if array.dtype == np.float32 else tensor.contents.fp64_contents
            contents.extend(array.ravel().tolist())
        else:
            request.raw_input_contents.append(array.tobytes())
    encoded: bytes = request.SerializeToString()
    return encoded


def assert_told_like_a_parser(layouts: GrpcLayouts, data: bytes) -> PlainRequest | None:
    """What is recognised is a ModelInferRequest, and says what a parser finds in it."""
    found = layouts.find(data)
    if found is not None:
        request = read(data)
        assert (found.form.model, found.id) == (ModelRef(request.model, request.version), request.id)
        assert [*found.form.wanted.values()] == request.outputs
        assert [*found.inputs] == [tensor.name for tensor in request.inputs]
        for tensor in request.inputs:
            got, expected = found.inputs[tensor.name], decode(tensor, request.model)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            if got.tobytes() != expected.tobytes():  # protobuf turns signalling NaNs into quiet ones
                np.testing.assert_array_equal(got, expected)
    return found


def numbers(draw: st.DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Any bit pattern, but no NaNs where protobuf may turn them into others."""
    size = int(np.prod(shape)) * dtype.itemsize
    array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    return np.where(np.isnan(array), dtype.type(0), array) if dtype in FLOATS else array


@st.composite
def alike(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two messages that differ in nothing but their numbers and their ids, which have the same length."""
    typed = draw(st.booleans())
    dtypes = draw(st.lists(st.sampled_from(FLOATS if typed else NUMBERS), min_size=1, max_size=3))
    shapes = [draw(SHAPES) for _ in dtypes]
    text = st.text("ab7-", min_size=3, max_size=3)
    ids = (draw(text), draw(text)) if draw(st.booleans()) else ("", "")
    outputs = [{"name": name} for name in draw(st.lists(st.text(max_size=4), max_size=2, unique=True))]
    version = draw(st.sampled_from(["", "3"]))
    one, other = (
        message(
            *[numbers(draw, dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)],
            typed=typed,
            id=request_id,
            outputs=outputs,
            model_version=version,
        )
        for request_id in ids
    )
    return one, other


def may_differ(layouts: GrpcLayouts, data: bytes) -> set[int]:
    """The offsets of all bytes whose change leaves the message recognised, by trying each."""
    return {at for at in range(len(data)) if layouts.find(changed(data, at, 1)) is not None}


def changed(data: bytes, at: int, bits: int) -> bytes:
    return bytes([*data[:at], data[at] ^ bits, *data[at + 1 :]])


@given(alike())
def test_a_message_with_other_numbers_and_another_id_is_read_like_by_a_parser(messages: tuple[bytes, bytes]) -> None:
    one, other = messages
    layouts = learned(one)
    for data in (one, other):
        assert assert_told_like_a_parser(layouts, data) is not None


@given(alike(), st.data())
def test_a_message_with_any_byte_changed_is_told_like_a_parser_or_not_at_all(
    messages: tuple[bytes, bytes], data: st.DataObject
) -> None:
    layouts = learned(messages[0])
    position = data.draw(st.integers(0, len(messages[1]) - 1))
    assert_told_like_a_parser(layouts, changed(messages[1], position, data.draw(st.integers(1, 255))))


@given(alike(), st.binary(min_size=1, max_size=4), st.integers(0, 200))
def test_a_message_of_another_length_is_not_recognised(
    messages: tuple[bytes, bytes], more: bytes, position: int
) -> None:
    layouts = learned(messages[0])
    other = messages[1]
    assert layouts.find(other[:position] + more + other[position:]) is None
    assert layouts.find(other[: -len(more)]) is None


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_only_the_bytes_of_numbers_and_of_the_id_may_differ(dtype: np.dtype[Any], typed: bool) -> None:
    two = (np.full((2, 2), 1.5, dtype), np.full(3, 2.5, dtype))
    data = message(*two, typed=typed, id="abc", model_version="7", outputs=[{"name": "y"}])
    layouts = learned(data)
    places = may_differ(layouts, data)
    assert len(places) == len(b"abc") + sum(array.nbytes for array in two)
    for position in range(len(data)):
        for bits in (1, 2, 64, 128, 255):
            assert_told_like_a_parser(layouts, changed(data, position, bits))


def test_an_id_that_is_no_text_is_left_to_the_parser() -> None:
    data = message(np.ones(2, np.float32), id="abc")
    layouts = learned(data)
    assert layouts.find(data.replace(b"abc", b"a\xffc")) is None


ONES = np.ones(2, np.float32)
INPUT = ModelInferRequest(inputs=[{"name": "x0", "datatype": "FP32", "shape": [2]}]).SerializeToString()
RAW = ModelInferRequest(raw_input_contents=[ONES.tobytes()]).SerializeToString()
MODEL = ModelInferRequest(model_name="m").SerializeToString()
ID = ModelInferRequest(id="a").SerializeToString()
TEXTS = {"name": "x0", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"a"]}}
IN_MEMORY = {"shared_memory_region": {"string_param": "r"}, "shared_memory_byte_size": {"int64_param": 8}}

NOT_PLAIN = {
    "two ids": MODEL + ID + INPUT + RAW + ID,
    "input in two pieces of contents": MODEL
    + ModelInferRequest(
        inputs=[{"name": "x0", "datatype": "FP32", "shape": [2], "contents": {"fp32_contents": [1]}}]
    ).SerializeToString()[:-8]
    + RAW,
    "integers one by one": ModelInferRequest(
        model_name="m", inputs=[{"name": "x0", "datatype": "INT32", "shape": [2], "contents": {"int_contents": [1, 2]}}]
    ).SerializeToString(),
    "texts": ModelInferRequest(model_name="m", inputs=[TEXTS]).SerializeToString(),
    "booleans": message(np.array([True, False])),
    "no elements": message(np.empty((0, 3), np.float32)),
    "a parameter": message(ONES, parameters={"speed": {"int64_param": 1}}),
    "a priority": message(ONES, parameters={"priority": {"uint64_param": 1}}),
    "a timeout": message(ONES, parameters={"timeout": {"int64_param": 1}}),
    "a sequence": message(ONES, parameters={"sequence_id": {"int64_param": 1}}),
    "classes": message(ONES, outputs=[{"name": "y", "parameters": {"classification": {"int64_param": 1}}}]),
    "an output in shared memory": message(ONES, outputs=[{"name": "y", "parameters": IN_MEMORY}]),
    "group": MODEL + INPUT + RAW + b"\xa3\x06\xa4\x06",
    "no inputs": MODEL,
}


@pytest.mark.parametrize("data", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_message_that_is_not_plain_is_not_learned(data: bytes) -> None:
    layouts = GrpcLayouts()
    try:
        learn(layouts, data)
    except ServingError:
        return
    assert layouts.find(data) is None


PLAIN = {
    "raw contents first": RAW + INPUT + MODEL,
    "id last": MODEL + INPUT + RAW + ID,
    "a model that is named twice": ModelInferRequest(model_name="other").SerializeToString() + INPUT + RAW + MODEL,
    "unknown field": MODEL + INPUT + RAW + b"\x98\x06\x01",
    "one number, unpacked": MODEL + b"\x2a\x13\x0a\x02x0\x12\x04FP32\x1a\x00\x2a\x05\x35\x00\x00\x80\x3f",
}


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
def test_message_in_an_unusual_order_is_told_like_a_parser(data: bytes) -> None:
    layouts = learned(data)
    for position in may_differ(layouts, data):
        assert assert_told_like_a_parser(layouts, changed(data, position, 1)) is not None


PIECES = st.sampled_from([MODEL, INPUT, RAW, ID, *(data for data in PLAIN.values())])


@given(st.lists(PIECES, min_size=1, max_size=5), st.data())
@examples(500)
def test_hostile_messages_are_never_told_otherwise_than_by_a_parser(pieces: list[bytes], data: st.DataObject) -> None:
    sent = bytearray(b"".join(pieces))
    if data.draw(st.integers(0, 2)) == 0:
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    layouts = GrpcLayouts()
    try:
        learn(layouts, bytes(sent))
    except (DecodeError, ServingError):
        return
    event(f"learned: {layouts.find(bytes(sent)) is not None}")
    assert_told_like_a_parser(layouts, bytes(sent))
    for position in range(len(sent)):
        assert_told_like_a_parser(layouts, changed(bytes(sent), position, data.draw(st.sampled_from([1, 4, 128]))))


def test_arrays_are_views_that_cannot_be_written_to() -> None:
    data = message(ONES)
    found = learned(data).find(data)
    assert found is not None
    (array,) = found.inputs.values()
    assert not array.flags.writeable
    assert not array.flags.owndata


def test_large_raw_contents_are_recognised_by_the_bytes_around_them() -> None:
    rows = np.arange(20_000, dtype=np.float32).reshape(5, 4000)
    layouts = learned(message(rows))
    assert assert_told_like_a_parser(layouts, message(-rows)) is not None


def at_offsets(count: int) -> Iterator[bytes]:
    for length in range(1, count + 1):
        yield message(ONES, model_name="m" * length)


def test_layouts_are_bounded() -> None:
    layouts = GrpcLayouts()
    messages = [*at_offsets(300)]
    for data in messages:
        learn(layouts, data)
    assert 0 < sum(layouts.find(data) is not None for data in messages) <= 128
    assert layouts.find(messages[-1]) is not None


def test_the_types_of_the_protocol_are_all_tried() -> None:
    known = {name_of(dtype) for dtype in DataType} - {"INVALID"}
    assert {*NAMES, "BYTES", "BOOL"} == known
