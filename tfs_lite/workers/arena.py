"""Memory that two processes share, and tensors in it.

One side writes, the other reads. The memory is a file without a name that may grow but never shrink (it is sealed), so
that no process can take away what another has mapped. A tensor lies at a multiple of 64 bytes; texts lie as their
lengths (int64, one each) and behind them their bytes. Where a tensor lies is told in a message and checked here before
anything is read, because the other process may say whatever it likes.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfs_lite.core.model import Shapes
from tfs_lite.core.signature import DataType, Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import from_numpy, to_numpy
from tfs_lite.workers.channel import ProtocolError

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64
FIRST_BYTES = 1 << 16
DEFAULT_LIMIT = 1 << 31
_MAX_RANK = 64
_MAX_SIZE = 1 << 62
_DTYPES = {dtype.value: dtype for dtype in DataType if dtype is not DataType.INVALID}
_NOT_EXECUTABLE = 8
"""MFD_NOEXEC_SEAL, which Python does not name yet."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies. ``offset`` and ``nbytes`` are in bytes."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def plain(self) -> tuple[str, int, tuple[int, ...], int, int]:
        """As it goes into a message."""
        return self.name, self.dtype.value, self.shape, self.offset, self.nbytes


class Arena:
    """One shared memory. ``what`` names what it carries in messages for clients; ``limit`` is in bytes.

    Threads: one at a time. Views and mappings outlive :meth:`close` as long as somebody holds them.
    """

    def __init__(self, descriptor: int, limit: int, what: str) -> None:
        """Takes the descriptor over."""
        self.descriptor = descriptor
        self._limit = limit
        self._what = what
        self._memory: mmap.mmap | None = None
        self._size = 0

    @classmethod
    def create(cls, limit: int, what: str) -> Arena:
        descriptor = _anonymous_file()
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, limit, what)

    def close(self) -> None:
        """May be called again."""
        self._memory, self._size = None, 0
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def grow(self, nbytes: int) -> None:
        """The writer's: makes room for so many bytes. RESOURCE_EXHAUSTED beyond the limit, or if there is no memory."""
        if nbytes <= self._size:
            return
        if nbytes > self._limit:
            raise ServingError(
                StatusCode.RESOURCE_EXHAUSTED, f"{self._what} take {nbytes} bytes, at most {self._limit} are allowed"
            )
        size = min(max(FIRST_BYTES, 1 << (nbytes - 1).bit_length()), self._limit)
        try:
            if os.fstat(self.descriptor).st_size < size:
                os.ftruncate(self.descriptor, size)
            self._map(size)
        except OSError as error:
            raise ServingError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{self._what} take {nbytes} bytes, which the system refuses ({os.strerror(error.errno or 0)})",
            ) from None

    def follow(self, nbytes: int) -> None:
        """The reader's: sees to it that so many bytes can be read. Garbage if they are not there."""
        if nbytes <= self._size:
            return
        size = min(os.fstat(self.descriptor).st_size, self._limit)
        if nbytes > size:
            raise ProtocolError(f"a tensor that ends at byte {nbytes} of {size}")
        self._map(size)

    def view(self, place: Place) -> Array:
        """The memory itself, writable. The place was checked; it holds no texts."""
        if place.nbytes == 0:
            return np.empty(place.shape, to_numpy(place.dtype))
        assert self._memory is not None
        return np.ndarray(place.shape, to_numpy(place.dtype), self._memory, place.offset)

    def put(self, tensors: Mapping[str, Tensor], start: int = 0) -> list[Place]:
        """Copies the tensors in, from byte ``start``. RESOURCE_EXHAUSTED as :meth:`grow`; INVALID_ARGUMENT for an array
        of a type that no tensor has."""
        pieces = [(name, _flat(tensor)) for name, tensor in tensors.items()]
        places = lay_out(((name, piece.dtype, piece.shape, piece.nbytes) for name, piece in pieces), start)
        self.grow(end_of(places))
        for place, (_, piece) in zip(places, pieces, strict=True):
            self._write(place, piece)
        return places

    def get(self, place: Place) -> Array:
        """A copy. Garbage if the place does not lie in the memory, or holds no such tensor."""
        self.follow(place.offset + place.nbytes)
        if place.dtype is DataType.STRING:
            return self._texts(place)
        try:
            view = self.view(place)
        except (ValueError, MemoryError):
            raise ProtocolError(f"a tensor of shape {place.shape}") from None
        return np.asarray(view.view(np.uint8) != 0) if place.dtype is DataType.BOOL else view.copy()

    def look(self, place: Place) -> Array:
        """The memory itself where that is possible, which it is not for texts. Garbage as :meth:`get`."""
        if place.dtype is DataType.STRING:
            return self.get(place)
        self.follow(place.offset + place.nbytes)
        return self.view(place)

    def _map(self, size: int) -> None:
        self._memory = mmap.mmap(self.descriptor, size)
        self._size = size

    def _write(self, place: Place, piece: _Flat) -> None:
        if not place.nbytes:
            return
        if piece.texts is None:
            np.copyto(self.view(place), piece.array)
            return
        assert self._memory is not None
        body = place.offset + piece.array.nbytes
        self._memory[place.offset : body] = piece.array.tobytes()
        self._memory[body : place.offset + place.nbytes] = piece.texts

    def _texts(self, place: Place) -> Array:
        count = math.prod(place.shape)
        found = _empty_texts(place.shape)
        if not count:
            return found
        assert self._memory is not None
        lengths = np.ndarray(count, np.int64, self._memory, place.offset).tolist()
        texts = self._memory[place.offset + 8 * count : place.offset + place.nbytes]
        if min(lengths) < 0 or sum(lengths) != len(texts):
            raise ProtocolError("texts whose lengths are not those of their bytes")
        flat, end = found.reshape(-1), 0
        for index, length in enumerate(lengths):
            flat[index] = texts[end : end + length]
            end += length
        return found


def _anonymous_file() -> int:
    """Never executable, which some systems insist on and older ones cannot be told."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("tfs-lite", flags | _NOT_EXECUTABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create("tfs-lite", flags)


def lay_out(tensors: Iterable[tuple[str, DataType, tuple[int, ...], int]], start: int = 0) -> list[Place]:
    """(name, dtype, shape, bytes) one behind the other, aligned."""
    places = []
    for name, dtype, shape, nbytes in tensors:
        start = -(-start // ALIGNMENT) * ALIGNMENT
        places.append(Place(name, dtype, shape, start, nbytes))
        start += nbytes
    return places


def lay_out_shapes(shapes: Shapes) -> list[Place]:
    """Where arrays of these shapes and numpy dtypes would lie; texts are left out."""
    wanted = [(name, from_numpy(np.dtype(dtype)), tuple(shape)) for name, (shape, dtype) in shapes.items()]
    return lay_out(
        (name, dtype, shape, math.prod(shape) * to_numpy(dtype).itemsize)
        for name, dtype, shape in wanted
        if dtype is not DataType.STRING
    )


def end_of(places: list[Place]) -> int:
    return max((place.offset + place.nbytes for place in places), default=0)


def read_places(raw: object) -> list[Place]:
    """The places of a message. Garbage unless each is one: names that differ, a known dtype, a shape that fits the
    bytes. Whether it lies within the memory is for :meth:`Arena.get`."""
    if not isinstance(raw, list):
        raise ProtocolError("no list of tensors")
    places = [_read_place(item) for item in raw]
    if len({place.name for place in places}) != len(places):
        raise ProtocolError("two tensors of one name")
    return places


def _read_place(raw: object) -> Place:
    if not isinstance(raw, list) or len(raw) != 5:
        raise ProtocolError("no tensor")
    name, number, shape, offset, nbytes = raw
    if not isinstance(name, str) or not isinstance(shape, list) or len(shape) > _MAX_RANK:
        raise ProtocolError("a tensor without a name or a shape")
    if not all(type(size) is int and 0 <= size <= _MAX_SIZE for size in (*shape, offset, nbytes)):
        raise ProtocolError(f"sizes of tensor {name:.100} that are no sizes")
    dtype = read_dtype(number)
    count = math.prod(shape)
    least = 8 * count if dtype is DataType.STRING else count * to_numpy(dtype).itemsize
    if offset % ALIGNMENT or nbytes < least or (nbytes > least and (dtype is not DataType.STRING or not count)):
        raise ProtocolError(f"tensor {name:.100} of {nbytes} bytes at byte {offset}, expected {least} bytes")
    return Place(name, dtype, tuple(shape), offset, nbytes)


def read_dtype(raw: object) -> DataType:
    """An element type by its number. Garbage if there is none."""
    found = _DTYPES.get(raw) if type(raw) is int else None
    if found is None:
        raise ProtocolError("an element type that there is not")
    return found


@dataclass(frozen=True, slots=True)
class _Flat:
    """What is to be written: ``array``, or for texts their lengths and behind them ``texts``."""

    dtype: DataType
    shape: tuple[int, ...]
    array: Array
    texts: bytes | None = None

    @property
    def nbytes(self) -> int:
        if self.texts is not None:
            return self.array.nbytes + len(self.texts)
        return math.prod(self.shape) * to_numpy(self.dtype).itemsize


def _flat(tensor: Tensor) -> _Flat:
    array = np.asarray(tensor)
    dtype = from_numpy(array.dtype)
    if dtype is not DataType.STRING:
        return _Flat(dtype, array.shape, array)
    texts = [text.encode() if isinstance(text, str) else bytes(text) for text in array.ravel().tolist()]
    return _Flat(dtype, array.shape, np.fromiter(map(len, texts), np.int64, len(texts)), b"".join(texts))


def _empty_texts(shape: tuple[int, ...]) -> Array:
    try:
        return np.empty(shape, dtype=object)
    except (ValueError, MemoryError):
        raise ProtocolError(f"texts of shape {shape}") from None
