from __future__ import annotations

import numpy as np
import pytest
import torch

from tfs_lite.adapters.cuda.memory import DeviceLocks, HostBuffers, StreamPool, tried_twice
from tfs_lite.adapters.pytorch.tensors import CPU, TORCH_DTYPES, to_tensor
from tfs_lite.protocols.dtypes import to_numpy

FLOAT = np.dtype(np.float32)
TEXT = np.dtype(object)


def shapes(rows, width=4, dtype=FLOAT):
    return {"x": ((rows, width), dtype)}


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)])
def test_staged_array_is_a_window_onto_a_tensor_of_its_type(dtype, shape):
    buffers = HostBuffers(pinned=False)
    array = buffers.get({"x": (shape, to_numpy(dtype))})["x"]
    assert (array.dtype, array.shape) == (to_numpy(dtype), shape)
    assert array.flags.writeable
    assert array.flags.c_contiguous
    values = (np.arange(array.size) % 2).reshape(shape).astype(array.dtype)
    array[...] = values
    tensor = to_tensor(array, CPU, share=True)
    assert tensor.dtype is TORCH_DTYPES[dtype]
    assert array.size == 0 or tensor.data_ptr() == array.ctypes.data
    assert array.tobytes() == values.tobytes()


def test_the_same_shapes_get_the_same_memory_and_others_do_not():
    buffers = HostBuffers(pinned=False)
    first, other, again = (buffers.get(shapes(rows))["x"] for rows in (2, 3, 2))
    assert first is again
    assert not np.shares_memory(first, other)
    assert buffers.bytes == 4 * 4 * (2 + 3)


def test_texts_are_left_out():
    buffers = HostBuffers(pinned=False)
    assert list(buffers.get({"x": ((2,), FLOAT), "t": ((2,), TEXT)})) == ["x"]
    assert buffers.get({"t": ((2,), TEXT)}) is None


def test_the_shapes_used_longest_ago_go_first():
    buffers = HostBuffers(pinned=False, max_shapes=2)
    first, second = buffers.get(shapes(1))["x"], buffers.get(shapes(2))["x"]
    assert buffers.get(shapes(1))["x"] is first
    buffers.get(shapes(3))
    assert len(buffers) == 2
    assert buffers.get(shapes(1))["x"] is first
    assert buffers.get(shapes(2))["x"] is not second


def test_bytes_are_bounded_and_what_is_too_large_is_not_staged():
    buffers = HostBuffers(pinned=False, max_bytes=100)
    for rows in (1, 2, 3, 4, 5, 6):
        assert buffers.get(shapes(rows)) is not None
        assert buffers.bytes <= 100
    assert buffers.get(shapes(7)) is None
    buffers.clear()
    assert (buffers.bytes, len(buffers)) == (0, 0)


# Memory of the device


def test_room_is_made_once_when_memory_runs_out_and_the_error_comes_if_that_does_not_help():
    calls = []

    def make():
        calls.append("make")
        if "room" not in calls or "never" in calls:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 7

    assert tried_twice(make, lambda: calls.append("room")) == 7
    assert calls == ["make", "room", "make"]
    calls[:] = ["never"]
    with pytest.raises(torch.OutOfMemoryError):
        tried_twice(make, lambda: calls.append("room"))
    with pytest.raises(KeyError):
        tried_twice(lambda: {}["missing"], lambda: calls.append("unwanted"))
    assert "unwanted" not in calls


def test_each_device_has_one_lock():
    locks = DeviceLocks()
    one, zero = locks.of(torch.device("cuda", 1)), locks.of(torch.device("cuda", 0))
    assert one is not zero
    assert locks.of(torch.device("cuda")) is zero
    assert locks.known() == [zero, one]


def test_streams_are_used_again_on_their_device_only():
    made = []
    pool = StreamPool(lambda device: made.append(device) or object())
    zero, one = torch.device("cuda", 0), torch.device("cuda", 1)
    stream = pool.take(zero)
    pool.put_back(zero, stream)
    other = pool.take(one)
    assert pool.take(zero) is stream
    assert other is not stream
    assert made == [zero, one]
