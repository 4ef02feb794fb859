import gc
import itertools
import os

import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.dtypes import TABLE
from tfs_lite.workers.arena import Arena
from tfs_lite.workers.channel import ProtocolError
from tfs_lite.workers.tensors import ALIGNMENT, TensorLocation, end_of, lay_out_shapes, read_locations

LIMIT = 1 << 20
NUMERIC = [row for row in TABLE if row.dtype is not DataType.STRING]


@pytest.fixture
def arenas():
    """The two sides of one memory: who writes, who reads."""
    writer = Arena.create(LIMIT, "the inputs of a run")
    reader = Arena(os.dup(writer.descriptor), LIMIT, "")
    yield writer, reader
    writer.close()
    reader.close()


def through(arenas, **tensors):
    """What the reader gets, via the message."""
    writer, reader = arenas
    plain = [list(location.plain) for location in writer.write(tensors)]
    for location in plain:
        location[2] = list(location[2])
    return {location.name: reader.read(location) for location in read_locations(plain)}


def texts(*values, shape=None):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array if shape is None else array.reshape(shape)


@pytest.mark.parametrize("row", NUMERIC, ids=[row.dtype.name for row in NUMERIC])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 5)], ids=str)
def test_every_element_type_arrives_bit_for_bit(arenas, row, shape):
    size = int(np.prod(shape)) * row.numpy.itemsize
    raw = np.random.default_rng(7).integers(0, 2 if row.dtype is DataType.BOOL else 256, size, np.uint8)
    sent = raw.view(row.numpy).reshape(shape)
    got = through(arenas, x=sent)["x"]
    assert got.dtype == row.numpy
    assert got.shape == shape
    assert got.tobytes() == sent.tobytes()


@pytest.mark.parametrize(
    "sent",
    [texts(), texts(b""), texts(b"a", b"", b"\0\xff" * 1000), texts(*[b"x"] * 6, shape=(2, 3)), texts(b"q", shape=())],
    ids=["none", "empty", "several", "rows", "one"],
)
def test_texts_arrive(arenas, sent):
    got = through(arenas, a=np.ones(3), t=sent)["t"]
    assert got.dtype == object
    assert got.shape == sent.shape
    assert got.tolist() == sent.tolist()


def test_arrays_of_any_layout_arrive_as_their_values(arenas):
    grid = np.arange(24, dtype=np.int32).reshape(4, 6)
    got = through(arenas, turned=grid.T, every=grid[::2, 1::2], big=grid.astype(">i4"))
    np.testing.assert_array_equal(got["turned"], grid.T)
    np.testing.assert_array_equal(got["every"], grid[::2, 1::2])
    np.testing.assert_array_equal(got["big"], grid)
    assert got["big"].dtype == np.int32


def test_what_is_got_is_a_copy_and_what_is_looked_at_is_not(arenas):
    writer, reader = arenas
    (location,) = writer.write({"x": np.zeros(4, np.float32)})
    copy, window = reader.read(location), reader.read_in_place(location)
    writer.write({"x": np.ones(4, np.float32)})
    assert copy.tolist() == [0] * 4
    assert window.tolist() == [1] * 4


def test_tensors_are_aligned_and_do_not_overlap(arenas):
    writer, _ = arenas
    locations = writer.write(
        {"a": np.zeros(3, np.uint8), "t": texts(b"abc"), "b": np.zeros(100), "c": np.zeros((), bool)}
    )
    assert all(location.offset % ALIGNMENT == 0 for location in locations)
    for before, after in itertools.pairwise(locations):
        assert before.offset + before.nbytes <= after.offset


def test_memory_grows_with_what_is_put_into_it_and_older_views_stay_good(arenas):
    writer, reader = arenas
    (location,) = writer.write({"x": np.arange(10)})
    window = reader.read_in_place(location)
    big = np.random.default_rng(1).random(LIMIT // 16)
    np.testing.assert_array_equal(through(arenas, x=np.zeros(10), big=big)["big"], big)
    writer.view(location)[:] = 5
    assert window.tolist() == [5] * 10


def test_more_than_the_limit_is_refused_and_less_goes_on(arenas):
    writer, _ = arenas
    message = refusal(writer.write, {"x": np.zeros(LIMIT // 8 + 1)}, code=StatusCode.RESOURCE_EXHAUSTED)
    assert f"the inputs of a run take {LIMIT + 8} bytes, at most {LIMIT}" in message
    assert through(arenas, x=np.ones(LIMIT // 8))["x"].sum() == LIMIT // 8


def test_array_of_no_element_type_is_refused(arenas):
    refusal(arenas[0].write, {"x": np.array(["2020-01-01"], "datetime64[D]")})


def test_memory_cannot_be_taken_away(arenas):
    writer, reader = arenas
    (location,) = writer.write({"x": np.arange(10)})
    with pytest.raises(PermissionError):
        os.ftruncate(reader.descriptor, 0)
    assert reader.read(location).tolist() == list(range(10))


def test_nothing_is_left_after_the_last_view(arenas):
    before = set(os.listdir("/proc/self/fd"))
    arena = Arena.create(LIMIT, "")
    (location,) = arena.write({"x": np.arange(10)})
    view = arena.view(location)
    arena.close()
    assert view.tolist() == list(range(10))
    del view
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before


GOOD = ["x", int(DataType.FLOAT), [2, 3], 64, 24]


def changed(**changes):
    names = ["name", "dtype", "shape", "offset", "nbytes"]
    return [changes.get(name, value) for name, value in zip(names, GOOD, strict=True)]


def test_location_in_a_message_is_read():
    assert read_locations([GOOD]) == [TensorLocation("x", DataType.FLOAT, (2, 3), 64, 24)]
    assert read_locations([]) == []


INVALID = {
    "name": [7],
    "dtype": [0, -1, 11, "FLOAT", 2**63],
    "shape": [6, [6.0], [True, 6], [-2, -3], [2**63, 2**63], [2, 4]],
    "offset": [-64, 1, 64.0, None],
    "nbytes": [23, 25, -24, 2**63],
}
"""Values that a location may not have when the others are good."""


@pytest.mark.parametrize(
    "raw",
    [
        *(None, "locations", [None], [[]], [GOOD[:4]], [[*GOOD, 0]], [GOOD, GOOD]),
        *([changed(**{name: value})] for name, values in INVALID.items() for value in values),
        [changed(shape=[1] * 65, nbytes=4)],
        [changed(dtype=int(DataType.STRING), nbytes=47)],
        [changed(dtype=int(DataType.STRING), shape=[0], nbytes=8)],
    ],
    ids=str,
)
def test_invalid_location_is_a_protocol_error(raw):
    with pytest.raises(ProtocolError):
        read_locations(raw)


@pytest.mark.parametrize(
    ("dtype", "shape", "offset", "nbytes"),
    [
        (DataType.FLOAT, (4,), 1 << 16, 16),
        (DataType.FLOAT, (4,), 1 << 60, 16),
        (DataType.FLOAT, (1 << 40,), 0, 1 << 42),
        (DataType.FLOAT, (1 << 61, 0, 1 << 61), 0, 0),
        (DataType.STRING, (1,), 1 << 16, 8),
        (DataType.STRING, (1 << 61, 0, 1 << 61), 0, 0),
    ],
)
def test_tensor_outside_the_memory_is_garbage(arenas, dtype, shape, offset, nbytes):
    writer, reader = arenas
    writer.grow(1)
    with pytest.raises(ProtocolError):
        reader.read(TensorLocation("x", dtype, shape, offset, nbytes))


@pytest.mark.parametrize("lengths", [(-1, 4), (4, 4), (0, 0), (2**62, 2**62), (1 << 40, 3 - (1 << 40))], ids=str)
def test_texts_with_wrong_lengths_are_garbage(arenas, lengths):
    writer, reader = arenas
    (location,) = writer.write({"t": texts(b"a", b"bc")})
    writer.view(TensorLocation("", DataType.INT64, (2,), location.offset, 16))[:] = lengths
    with pytest.raises(ProtocolError, match="lengths"):
        reader.read(location)


def test_bool_is_true_or_false_whatever_was_written(arenas):
    writer, reader = arenas
    (location,) = writer.write({"b": np.array([0, 1, 2, 255], np.uint8)})
    got = reader.read(TensorLocation("b", DataType.BOOL, (4,), location.offset, 4))
    assert got.dtype == bool
    assert got.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_file_that_grows_beyond_the_limit_is_not_followed(arenas):
    writer, reader = arenas
    os.ftruncate(writer.descriptor, 1 << 40)
    with pytest.raises(ProtocolError):
        reader.read(TensorLocation("x", DataType.UINT8, (LIMIT + 1,), 0, LIMIT + 1))
    assert reader.read(TensorLocation("x", DataType.UINT8, (4,), LIMIT - 64, 4)).tolist() == [0] * 4


def test_shapes_are_laid_out_without_texts():
    locations = lay_out_shapes({"x": ((2, 3), np.float32), "t": ((5,), object), "n": ((), np.dtype(">i8"))})
    assert [(location.name, location.shape, location.offset, location.nbytes) for location in locations] == [
        ("x", (2, 3), 0, 24),
        ("n", (), 64, 8),
    ]
    assert end_of(locations) == 72
    assert end_of([]) == 0
