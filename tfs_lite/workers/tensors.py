"""Tensors as bytes, one after the other, each at a multiple of 64 bytes.

Texts are stored as their lengths (int64, one each) followed by their bytes. Where a tensor lies, or how large it is,
comes in a message from another process that is not trusted: it is checked here before anything is read and before
memory is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from mmap import mmap
from typing import Any, NamedTuple

import numpy as np

from tfs_lite.core.model import Shapes
from tfs_lite.core.signature import DataType, Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array, from_numpy, to_numpy
from tfs_lite.workers.channel import ProtocolError

ALIGNMENT = 64
_MAX_RANK = 64
_MAX_SIZE = 1 << 62
Memory = mmap | memoryview
"""The kinds of memory that tensors lie in."""
_DTYPES = {dtype.value: dtype for dtype in DataType if dtype is not DataType.INVALID}


class TensorLocation(NamedTuple):
    """The location of a tensor in a memory. ``offset`` and ``nbytes`` are in bytes."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def plain(self) -> tuple[str, int, tuple[int, ...], int, int]:
        """The location as it is sent in a message."""
        return self.name, int(self.dtype), self.shape, self.offset, self.nbytes


class FlatTensor(NamedTuple):
    """The bytes to write for a tensor: ``array``; for texts ``array`` holds their lengths, and ``texts`` follows."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    nbytes: int
    array: Array
    texts: bytes | None = None


def flatten(tensors: Mapping[str, Tensor]) -> list[FlatTensor]:
    """The bytes to write for each tensor. INVALID_ARGUMENT for an array of a type that no tensor has."""
    return [_flat(name, np.asarray(tensor)) for name, tensor in tensors.items()]


def _flat(name: str, array: Array) -> FlatTensor:
    dtype = from_numpy(array.dtype)
    if dtype is not DataType.STRING:
        return FlatTensor(name, dtype, array.shape, array.nbytes, array)
    texts = [text.encode() if isinstance(text, str) else bytes(text) for text in array.ravel().tolist()]
    lengths, joined = np.fromiter(map(len, texts), np.int64, len(texts)), b"".join(texts)
    return FlatTensor(name, dtype, array.shape, lengths.nbytes + len(joined), lengths, joined)


def lay_out(tensors: Iterable[FlatTensor], start: int = 0) -> list[TensorLocation]:
    """Locations for the tensors, one after the other, from byte ``start``."""
    return _in_a_row((tensor[:4] for tensor in tensors), start)


def lay_out_shapes(shapes: Shapes) -> list[TensorLocation]:
    """Locations for arrays of these shapes and numpy dtypes; texts are left out."""
    wanted = [(name, from_numpy(np.dtype(dtype)), tuple(shape)) for name, (shape, dtype) in shapes.items()]
    return _in_a_row(
        (name, dtype, shape, math.prod(shape) * to_numpy(dtype).itemsize)
        for name, dtype, shape in wanted
        if dtype is not DataType.STRING
    )


def end_of(locations: list[TensorLocation]) -> int:
    return max([location.offset + location.nbytes for location in locations], default=0)


def view_tensor(memory: Memory, location: TensorLocation) -> Array:
    """The memory itself. The location has to lie in the memory, and holds no texts. ProtocolError for a shape that
    numpy does not take."""
    try:
        if location.nbytes == 0:
            return np.empty(location.shape, to_numpy(location.dtype))
        return np.ndarray(location.shape, to_numpy(location.dtype), memory, location.offset)
    except (ValueError, MemoryError):
        raise ProtocolError(f"a tensor of shape {location.shape}") from None


def copy_tensor(memory: Memory, location: TensorLocation) -> Array:
    """A copy. The location has to lie in the memory. ProtocolError if there is no such tensor."""
    if location.dtype is DataType.STRING:
        return _texts(memory, location)
    view = view_tensor(memory, location)
    return np.asarray(view.view(np.uint8) != 0) if location.dtype is DataType.BOOL else view.copy()


def read_locations(raw: object) -> list[TensorLocation]:
    """The locations in a message. ProtocolError unless names differ, dtypes are known and shapes fit the bytes. Whether
    they lie within the memory is the reader's to check."""
    return _different([_read_location(*_fields(item, 5)) for item in _items(raw)])


def read_sizes(raw: object, start: int) -> list[TensorLocation]:
    """Reads locations as :func:`read_locations` does, for tensors that are sent as (name, dtype, shape, bytes), and lie
    one after the other from byte ``start``."""
    locations = []
    for item in _items(raw):
        name, number, shape, nbytes = _fields(item, 4)
        locations.append(_read_location(name, number, shape, aligned(start), nbytes))
        start = locations[-1].offset + locations[-1].nbytes
    return _different(locations)


def too_large(what: str, nbytes: int, limit: int) -> ServingError:
    """The error RESOURCE_EXHAUSTED for tensors of more than ``limit`` bytes. ``what`` names the tensors for clients."""
    return ServingError(StatusCode.RESOURCE_EXHAUSTED, f"{what} take {nbytes} bytes, at most {limit} are allowed")


def read_dtype(raw: object) -> DataType:
    """The element type with this number. ProtocolError if there is none."""
    found = _DTYPES.get(raw) if type(raw) is int else None
    if found is None:
        raise ProtocolError("an element type that there is not")
    return found


def aligned(offset: int) -> int:
    """The next multiple of :data:`ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _in_a_row(tensors: Iterable[tuple[str, DataType, tuple[int, ...], int]], start: int = 0) -> list[TensorLocation]:
    locations = []
    for name, dtype, shape, nbytes in tensors:
        start = aligned(start)
        locations.append(TensorLocation(name, dtype, shape, start, nbytes))
        start += nbytes
    return locations


def _items(raw: object) -> list[object]:
    if not isinstance(raw, list):
        raise ProtocolError("no list of tensors")
    return raw


def _fields(raw: object, count: int) -> list[Any]:
    if not isinstance(raw, list) or len(raw) != count:
        raise ProtocolError("no tensor")
    return raw


def _different(locations: list[TensorLocation]) -> list[TensorLocation]:
    if len(locations) > 1 and len({location.name for location in locations}) != len(locations):
        raise ProtocolError("two tensors of one name")
    return locations


def _read_location(name: object, number: object, shape: object, offset: object, nbytes: object) -> TensorLocation:
    if not isinstance(name, str) or not isinstance(shape, list) or len(shape) > _MAX_RANK:
        raise ProtocolError("a tensor without a name or a shape")
    for size in (*shape, offset, nbytes):
        if type(size) is not int or not 0 <= size <= _MAX_SIZE:
            raise ProtocolError(f"sizes of tensor {name:.100} that are no sizes")
    assert isinstance(offset, int)
    assert isinstance(nbytes, int)
    dtype = read_dtype(number)
    count = math.prod(shape)
    least = 8 * count if dtype is DataType.STRING else count * to_numpy(dtype).itemsize
    if offset % ALIGNMENT or nbytes < least or (nbytes > least and (dtype is not DataType.STRING or not count)):
        raise ProtocolError(f"tensor {name:.100} of {nbytes} bytes at byte {offset}, expected {least} bytes")
    return TensorLocation(name, dtype, tuple(shape), offset, nbytes)


def _texts(memory: Memory, location: TensorLocation) -> Array:
    count = math.prod(location.shape)
    found = _empty_texts(location.shape)
    if not count:
        return found
    lengths = np.ndarray(count, np.int64, memory, location.offset).tolist()
    texts = bytes(memory[location.offset + 8 * count : location.offset + location.nbytes])
    if min(lengths) < 0 or sum(lengths) != len(texts):
        raise ProtocolError("texts whose lengths are not those of their bytes")
    flat, end = found.reshape(-1), 0
    for index, length in enumerate(lengths):
        flat[index] = texts[end : end + length]
        end += length
    return found


def _empty_texts(shape: tuple[int, ...]) -> Array:
    try:
        return np.empty(shape, dtype=object)
    except (ValueError, MemoryError):
        raise ProtocolError(f"texts of shape {shape}") from None
