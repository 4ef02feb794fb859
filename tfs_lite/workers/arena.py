"""Memory that two processes share, and tensors in it.

One side writes, the other reads. The memory is a file without a name that may grow but never shrink (it is sealed), so
that no process can take away what another has mapped. A tensor starts at a multiple of 64 bytes; texts are stored as
their lengths (int64, one each) followed by their bytes. The location of a tensor comes in a message and is checked here
before anything is read, because the other process is not trusted.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tfs_lite.core.model import Shapes
from tfs_lite.core.signature import DataType, Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array, from_numpy, to_numpy
from tfs_lite.workers.channel import ProtocolError

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
class TensorLocation:
    """Where a tensor lies in an arena. ``offset`` and ``nbytes`` are in bytes."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def plain(self) -> tuple[str, int, tuple[int, ...], int, int]:
        """The location as it is sent in a message."""
        return self.name, self.dtype.value, self.shape, self.offset, self.nbytes


class Arena:
    """One shared memory. ``what`` names its contents in error messages for clients; ``limit`` is in bytes.

    Threads: one at a time. Views and mappings outlive :meth:`close` while there are references to them.
    """

    def __init__(self, descriptor: int, limit: int, what: str) -> None:
        """Owns the descriptor from now on."""
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
        """For the writer: makes room for ``nbytes``. RESOURCE_EXHAUSTED beyond the limit, or if there is no memory."""
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

    def map(self, nbytes: int) -> None:
        """For the reader: maps at least ``nbytes``. ProtocolError if the memory is smaller."""
        if nbytes <= self._size:
            return
        size = min(os.fstat(self.descriptor).st_size, self._limit)
        if nbytes > size:
            raise ProtocolError(f"a tensor that ends at byte {nbytes} of {size}")
        self._map(size)

    def view(self, location: TensorLocation) -> Array:
        """The memory itself, writable. The location has to be checked, and holds no texts."""
        if location.nbytes == 0:
            return np.empty(location.shape, to_numpy(location.dtype))
        assert self._memory is not None
        return np.ndarray(location.shape, to_numpy(location.dtype), self._memory, location.offset)

    def write(self, tensors: Mapping[str, Tensor], start: int = 0) -> list[TensorLocation]:
        """Copies the tensors in, from byte ``start``. RESOURCE_EXHAUSTED as :meth:`grow`; INVALID_ARGUMENT for an array
        of a type that no tensor has."""
        pieces = [(name, _flat(tensor)) for name, tensor in tensors.items()]
        locations = lay_out(((name, piece.dtype, piece.shape, piece.nbytes) for name, piece in pieces), start)
        self.grow(end_of(locations))
        for location, (_, piece) in zip(locations, pieces, strict=True):
            self._write(location, piece)
        return locations

    def read(self, location: TensorLocation) -> Array:
        """A copy. ProtocolError if the location does not lie in the memory, or holds no such tensor."""
        self.map(location.offset + location.nbytes)
        if location.dtype is DataType.STRING:
            return self._texts(location)
        try:
            view = self.view(location)
        except (ValueError, MemoryError):
            raise ProtocolError(f"a tensor of shape {location.shape}") from None
        return np.asarray(view.view(np.uint8) != 0) if location.dtype is DataType.BOOL else view.copy()

    def read_in_place(self, location: TensorLocation) -> Array:
        """The memory itself, or a copy for texts. Errors as those of :meth:`read`."""
        if location.dtype is DataType.STRING:
            return self.read(location)
        self.map(location.offset + location.nbytes)
        return self.view(location)

    def _map(self, size: int) -> None:
        self._memory = mmap.mmap(self.descriptor, size)
        self._size = size

    def _write(self, location: TensorLocation, piece: _Flat) -> None:
        if not location.nbytes:
            return
        if piece.texts is None:
            np.copyto(self.view(location), piece.array)
            return
        assert self._memory is not None
        body = location.offset + piece.array.nbytes
        self._memory[location.offset : body] = piece.array.tobytes()
        self._memory[body : location.offset + location.nbytes] = piece.texts

    def _texts(self, location: TensorLocation) -> Array:
        count = math.prod(location.shape)
        found = _empty_texts(location.shape)
        if not count:
            return found
        assert self._memory is not None
        lengths = np.ndarray(count, np.int64, self._memory, location.offset).tolist()
        texts = self._memory[location.offset + 8 * count : location.offset + location.nbytes]
        if min(lengths) < 0 or sum(lengths) != len(texts):
            raise ProtocolError("texts whose lengths are not those of their bytes")
        flat, end = found.reshape(-1), 0
        for index, length in enumerate(lengths):
            flat[index] = texts[end : end + length]
            end += length
        return found


def _anonymous_file() -> int:
    """Not executable, as some systems insist; older ones do not know the flag."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("tfs-lite", flags | _NOT_EXECUTABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create("tfs-lite", flags)


def lay_out(tensors: Iterable[tuple[str, DataType, tuple[int, ...], int]], start: int = 0) -> list[TensorLocation]:
    """Locations for the tensors (name, dtype, shape, bytes), one after the other, aligned."""
    locations = []
    for name, dtype, shape, nbytes in tensors:
        start = -(-start // ALIGNMENT) * ALIGNMENT
        locations.append(TensorLocation(name, dtype, shape, start, nbytes))
        start += nbytes
    return locations


def lay_out_shapes(shapes: Shapes) -> list[TensorLocation]:
    """Locations for arrays of these shapes and numpy dtypes; texts are left out."""
    wanted = [(name, from_numpy(np.dtype(dtype)), tuple(shape)) for name, (shape, dtype) in shapes.items()]
    return lay_out(
        (name, dtype, shape, math.prod(shape) * to_numpy(dtype).itemsize)
        for name, dtype, shape in wanted
        if dtype is not DataType.STRING
    )


def end_of(locations: list[TensorLocation]) -> int:
    return max((location.offset + location.nbytes for location in locations), default=0)


def read_locations(raw: object) -> list[TensorLocation]:
    """The locations in a message. ProtocolError unless names differ, dtypes are known and shapes fit the bytes.
    :meth:`Arena.read` checks whether they lie within the memory."""
    if not isinstance(raw, list):
        raise ProtocolError("no list of tensors")
    locations = [_read_location(item) for item in raw]
    if len({location.name for location in locations}) != len(locations):
        raise ProtocolError("two tensors of one name")
    return locations


def _read_location(raw: object) -> TensorLocation:
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
    return TensorLocation(name, dtype, tuple(shape), offset, nbytes)


def read_dtype(raw: object) -> DataType:
    """The element type with this number. ProtocolError if there is none."""
    found = _DTYPES.get(raw) if type(raw) is int else None
    if found is None:
        raise ProtocolError("an element type that there is not")
    return found


@dataclass(frozen=True, slots=True)
class _Flat:
    """What to write for a tensor: ``array``; for texts ``array`` holds their lengths, and ``texts`` follows."""

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
