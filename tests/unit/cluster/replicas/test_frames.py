"""Frames: what goes in comes out, and nothing else is believed."""

from __future__ import annotations

import struct

import numpy as np
import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.support.errors import refusal
from tfs_lite.cluster.replicas.frames import LENGTH_BYTES, MAX_HEAD, head_end, pack, read_head
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import TABLE, to_numpy
from tfs_lite.workers.channel import ProtocolError
from tfs_lite.workers.tensors import copy_tensor, view_tensor
from tfs_lite.workers.wire import RUN, Message

LIMIT = 1 << 20
NUMERIC = [to_numpy(row.dtype) for row in TABLE if row.dtype is not DataType.STRING]
QUESTION = Message(7, RUN, "s", ["y"], 1.5)


def frame_of(tensors, message=QUESTION) -> bytearray:
    return bytearray(b"".join(bytes(piece) for piece in pack(message, tensors, LIMIT, "the inputs")))


def read(frame):
    """The message and the tensors, as a receiver reads them."""
    view = memoryview(frame)
    if len(view) < LENGTH_BYTES or len(view) < head_end(view):
        raise ProtocolError("unfinished")
    head = read_head(view[: head_end(view)], LIMIT)
    if head.size != len(view):
        raise ProtocolError("unfinished")
    return head.message, {location.name: copy_tensor(view, location) for location in head.locations}


texts = st.lists(st.binary(max_size=20), max_size=6).map(lambda found: np.array([*found, None], dtype=object)[:-1])
numbers = st.sampled_from(NUMERIC).flatmap(
    lambda dtype: arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5).map(
        lambda shape: (np.arange(int(np.prod(shape))) % 2).astype(dtype).reshape(shape)
    )
)


@given(st.dictionaries(st.text(max_size=20), numbers | texts, max_size=5))
@settings(deadline=None)
def test_tensors_arrive_as_they_were_sent_each_at_a_multiple_of_64(tensors):
    frame = frame_of(tensors)
    message, found = read(frame)
    assert message == QUESTION
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert found[name].tolist() == tensor.tolist()
    locations = read_head(memoryview(frame)[: head_end(memoryview(frame))], LIMIT).locations
    assert all(location.offset % 64 == 0 for location in locations)


@given(
    st.integers(0, 2**32),
    st.text(),
    st.text(),
    st.lists(st.text()),
    st.none() | st.floats(allow_nan=False) | st.lists(st.text() | st.integers(0, 2**60)),
)
def test_messages_without_tensors_arrive_as_they_were_sent(number, what, signature, wanted, extra):
    message = Message(number, what, signature, wanted, extra)
    assert read(frame_of({}, message)) == (message, {})


def test_arrays_whose_bytes_lie_otherwise_arrive_as_well():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {"t": x.T, "part": x[:, 1:3], "big": x.astype(">f4"), "no": np.float64(2.5), "u": np.array(["ü", "a"])}
    _, found = read(frame_of(tensors))
    assert found["t"].tolist() == x.T.tolist()
    assert found["part"].tolist() == x[:, 1:3].tolist()
    assert found["big"].tolist() == x.tolist()
    assert found["big"].dtype == np.float32
    assert found["no"].tolist() == 2.5
    assert found["u"].tolist() == ["ü".encode(), b"a"]


def test_arrays_are_sent_from_where_they_are():
    x = np.arange(1000, dtype=np.float32)
    pieces = pack(QUESTION, {"x": x}, LIMIT, "")
    assert np.shares_memory(np.frombuffer(pieces[-1], np.uint8), x)


def test_tensor_in_place_is_the_memory_itself():
    frame = frame_of({"x": np.arange(4)})
    (location,) = read_head(memoryview(frame)[: head_end(memoryview(frame))], LIMIT).locations
    assert np.shares_memory(view_tensor(memoryview(frame), location), np.frombuffer(frame, np.uint8))


def test_tensors_beyond_the_limit_are_neither_sent_nor_received():
    most = {"x": np.zeros(LIMIT, np.uint8)}
    assert read(frame_of(most))[1]["x"].nbytes == LIMIT
    assert f"the inputs take {LIMIT + 1} bytes, at most {LIMIT} are allowed" in refusal(
        frame_of, {"x": np.zeros(LIMIT + 1, np.uint8)}, code=StatusCode.RESOURCE_EXHAUSTED
    )
    frame = frame_of(most)
    with pytest.raises(ProtocolError, match="at most"):
        read_head(memoryview(frame)[: head_end(memoryview(frame))], LIMIT - 1)


def test_type_that_no_tensor_has_is_refused():
    with pytest.raises(ServingError):
        frame_of({"x": np.zeros(3, "datetime64[s]")})


def test_head_that_is_too_long_is_not_sent():
    with pytest.raises(ValueError, match="at most"):
        frame_of({}, Message(1, "x" * MAX_HEAD))


def head(raw) -> bytes:
    packed = ormsgpack.packb(raw)
    return struct.pack("<I", len(packed)) + packed


def question(*tensors):
    return [1, "run", "", [], list(tensors), None]


BAD = {
    "too long": struct.pack("<I", MAX_HEAD + 1),
    "all ones": b"\xff" * 64,
    "no msgpack": struct.pack("<I", 3) + b"\xc1\xc1\xc1",
    "nothing": struct.pack("<I", 0),
    "a number": head(5),
    "five fields": head([1, "run", "", [], []]),
    "seven fields": head([*question(), 1]),
    "number as a text": head(["1", "run", "", [], [], None]),
    "no name of a request": head([1, None, "", [], [], None]),
    "no signature": head([1, "run", 5, [], [], None]),
    "outputs that are no names": head([1, "run", "", [1], [], None]),
    "tensors that are none": head([1, "run", "", [], {}, None]),
    "a tensor that is none": head(question(1)),
    "a tensor with an offset": head(question(["x", 1, [1], 0, 4])),
    "unknown dtype": head(question(["x", 999, [1], 4])),
    "negative size": head(question(["x", 1, [-1], 4])),
    "other bytes": head(question(["x", 1, [2], 4])),
    "too few bytes for texts": head(question(["x", 7, [2], 15])),
    "rank 65": head(question(["x", 1, [1] * 65, 4])),
    "more than there is memory": head(question(["x", 1, [1 << 40], 1 << 42])),
    "sizes that multiply to more": head(question(["x", 1, [1 << 40, 1 << 40, 1 << 40], 4])),
    "many that are too large together": head(question(*[[str(i), 4, [LIMIT // 2], LIMIT // 2] for i in range(3)])),
    "a name twice": head(question(["x", 4, [1], 1], ["x", 4, [1], 1])),
    "no utf-8": struct.pack("<I", 9) + b"\x96\x01\xa2\xff\xfe\xa0\x90\x90\xc0",
}


@pytest.mark.parametrize("frame", BAD.values(), ids=BAD)
def test_head_that_is_wrong_is_found_out_before_memory_is_taken(frame):
    with pytest.raises(ProtocolError):
        read(bytearray(frame))


@given(st.data())
@settings(deadline=None)
def test_frame_with_changed_bytes_is_read_or_refused_and_nothing_else(data):
    frame = frame_of({"x": np.arange(3), "t": np.array([b"a", b"bcd"], dtype=object)})
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    del frame[data.draw(st.integers(1, len(frame))) :]
    try:
        read(frame)
    except ProtocolError:
        pass


@given(st.binary(max_size=200))
def test_noise_is_read_or_refused_and_nothing_else(noise):
    try:
        read(bytearray(noise))
    except ProtocolError:
        pass
