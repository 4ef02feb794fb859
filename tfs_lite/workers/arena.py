"""Memory that two processes share, and tensors in it.

One side writes, the other reads. The memory is a file without a name that may grow but never shrink (it is sealed), so
that no process can take away what another has mapped. The location of a tensor comes in a message and is checked here
before anything is read, because the other process is not trusted.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Mapping

import numpy as np

from tfs_lite.core.signature import DataType, Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.workers.channel import ProtocolError
from tfs_lite.workers.tensors import (
    FlatTensor,
    Memory,
    TensorLocation,
    copy_tensor,
    end_of,
    flatten,
    lay_out,
    too_large,
    view_tensor,
)

FIRST_BYTES = 1 << 16
DEFAULT_LIMIT = 1 << 31
_NOT_EXECUTABLE = 8
"""The flag MFD_NOEXEC_SEAL, which Python does not name yet."""
_NOTHING = memoryview(b"")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


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

    def restrict(self, limit: int) -> None:
        """Limits memory that another process has made: at most ``limit`` bytes of it are used. ProtocolError unless it
        is sealed, so that it cannot be taken away."""
        self._limit = min(self._limit, limit)
        try:
            sealed = fcntl.fcntl(self.descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        except OSError:
            sealed = False
        if not sealed:
            raise ProtocolError("memory that may be taken away")

    def close(self) -> None:
        """Releases the memory; may be called again."""
        self._memory, self._size = None, 0
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def grow(self, nbytes: int) -> None:
        """Makes room for ``nbytes``; called by the writer. RESOURCE_EXHAUSTED beyond the limit, or if there is no
        memory."""
        if nbytes <= self._size:
            return
        if nbytes > self._limit:
            raise too_large(self._what, nbytes, self._limit)
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
        """Maps at least ``nbytes``; called by the reader. ProtocolError if the memory is smaller."""
        if nbytes <= self._size:
            return
        size = min(os.fstat(self.descriptor).st_size, self._limit)
        if nbytes > size:
            raise ProtocolError(f"a tensor that ends at byte {nbytes} of {size}")
        self._map(size)

    def view(self, location: TensorLocation) -> Array:
        """The memory itself, writable. The location has to be checked, and holds no texts."""
        return view_tensor(self._mapped, location)

    def write(self, tensors: Mapping[str, Tensor], start: int = 0) -> list[TensorLocation]:
        """Copies the tensors in, from byte ``start``. RESOURCE_EXHAUSTED as :meth:`grow`; INVALID_ARGUMENT for an array
        of a type that no tensor has."""
        flat = flatten(tensors)
        locations = lay_out(flat, start)
        self.grow(end_of(locations))
        for location, tensor in zip(locations, flat, strict=True):
            self._write(location, tensor)
        return locations

    def read(self, location: TensorLocation) -> Array:
        """A copy. ProtocolError if the location does not lie in the memory, or holds no such tensor."""
        self.map(location.offset + location.nbytes)
        return copy_tensor(self._mapped, location)

    def read_in_place(self, location: TensorLocation) -> Array:
        """The memory itself, or a copy for texts. Errors as those of :meth:`read`."""
        if location.dtype is DataType.STRING:
            return self.read(location)
        self.map(location.offset + location.nbytes)
        return self.view(location)

    @property
    def _mapped(self) -> Memory:
        return _NOTHING if self._memory is None else self._memory

    def _map(self, size: int) -> None:
        self._memory = mmap.mmap(self.descriptor, size)
        self._size = size

    def _write(self, location: TensorLocation, tensor: FlatTensor) -> None:
        if not location.nbytes:
            return
        if tensor.texts is None:
            np.copyto(self.view(location), tensor.array)
            return
        assert self._memory is not None
        body = location.offset + tensor.array.nbytes
        self._memory[location.offset : body] = tensor.array.tobytes()
        self._memory[body : location.offset + location.nbytes] = tensor.texts


def _anonymous_file() -> int:
    """Opens a file without a name that is not executable, as some systems insist; older ones do not know the flag."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("tfs-lite", flags | _NOT_EXECUTABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create("tfs-lite", flags)
