"""Memory that the server and one gRPC frontend share, for payloads that are too large for their socket.

It has two halves, one for each direction. The writer of a half fills it like a ring and tells the reader, over the
socket, where a piece lies; the reader copies it out at once and tells how far it has read. Positions count the bytes
ever written, so they only rise; where a position lies in the half is its remainder. The size is fixed and sealed, so
that neither side can take the memory away from the other.
"""

from __future__ import annotations

import fcntl
import mmap
import os

RING_BYTES = 32 * 1024 * 1024
"""Of one direction. Pages that were never written cost nothing."""
PIECES = 4
"""At least so many pieces fit into a ring; larger payloads go in several."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class RingError(Exception):
    """The other side named a place where nothing can be."""


def make_memory(ring_bytes: int = RING_BYTES) -> int:
    """A descriptor of memory for both directions. Whoever maps it may close it then."""
    descriptor = os.memfd_create("tfs-frontend", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 2 * ring_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def map_memory(descriptor: int) -> mmap.mmap:
    """Both halves; the size is that of the memory."""
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


class RingWriter:
    """The writing end of one half. One thread."""

    def __init__(self, memory: mmap.mmap, base: int, size: int, max_piece: int) -> None:
        """The half is ``memory[base : base + size]``; ``max_piece`` is at most half of ``size``."""
        self._memory = memory
        self._base = base
        self._size = size
        self._head = 0
        self._tail = 0
        self.max_piece = max_piece

    def put(self, piece: memoryview) -> int | None:
        """Writes up to ``max_piece`` bytes and returns their position; None while there is no room."""
        length = len(piece)
        offset = self._head % self._size
        start = self._head if offset + length <= self._size else self._head + self._size - offset
        if start + length - self._tail > self._size:
            return None
        place = self._base + start % self._size
        self._memory[place : place + length] = piece
        self._head = start + length
        return start

    def free(self, position: int) -> None:
        """The reader needs nothing before ``position`` any more."""
        if not self._tail <= position <= self._head:
            raise RingError(f"{position} was read, of {self._tail} to {self._head}")
        self._tail = position


class RingReader:
    """The reading end of one half. One thread. ``position``: how far it has read."""

    def __init__(self, memory: mmap.mmap, base: int, size: int, max_piece: int) -> None:
        self._memory = memory
        self._base = base
        self._size = size
        self._max_piece = max_piece
        self.position = 0

    def take(self, position: int, length: int) -> bytes:
        """A copy of one piece. RingError if none can be there."""
        offset = position % self._size
        in_reach = self.position <= position and position + length <= self.position + self._size
        if not (0 < length <= self._max_piece and in_reach and offset + length <= self._size):
            raise RingError(f"a piece of {length} bytes at {position}, read so far: {self.position}")
        self.position = position + length
        place = self._base + offset
        return self._memory[place : place + length]


def open_rings(memory: mmap.mmap, *, server_side: bool) -> tuple[RingWriter, RingReader]:
    """The two ends of one side. The server writes the first half, the frontend the second."""
    size = len(memory) // 2
    own, other = (0, size) if server_side else (size, 0)
    return RingWriter(memory, own, size, size // PIECES), RingReader(memory, other, size, size // PIECES)
