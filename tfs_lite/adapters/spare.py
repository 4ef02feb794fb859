"""Memory of weights that nobody uses any more, for the weights that are read next.

A push reads weights into as much memory as the unload after it gives back. New pages cost more than the bytes that are
copied into them: the system clears each one, and stops the thread for it. So the mappings of dropped weights are kept
for a moment. They are marked as free (``MADV_FREE``): the system takes their pages back as soon as it needs memory, and
counts them as memory that it can have.

    SPARE.map(nbytes)  ->  weights  ->  the last of them is dropped  ->  kept  ->  SPARE.map(nbytes), or SPARE.clear()
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tfs_lite.core.yielding import Yielder
from tfs_lite.protocols.dtypes import Array

MOST_BYTES = 512 << 20
"""Bytes that a process keeps."""
LEAST_BYTES = 1 << 16
"""Of a mapping that is worth keeping: there are not many more of them than :data:`MOST_BYTES` has room for."""
_FREE: int | None = getattr(mmap, "MADV_FREE", None)
_PIECE = 8 << 20
"""Bytes that are marked as free in one call."""


def c_function(name: str, *arguments: type[Any], result: type[Any] = ctypes.c_int) -> Callable[..., int] | None:
    """A function of the C library that returns an int, or a ``result``; it runs without the interpreter lock. None
    where the library lacks it."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes, function.restype = arguments, result
    found: Callable[..., int] = function
    return found


_madvise = c_function("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class SparePages:
    """Keeps at most so many bytes while the process has servers. Any thread may call any method."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._lock = threading.Lock()  # guards the fields below; short, and never waited for by what a collection runs
        self._most = most
        self._servers = 0
        self._kept: dict[int, list[mmap.mmap]] = {}
        self._bytes = 0
        self._changes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now; the process holds them, unless the system has taken them."""
        return self._bytes

    @property
    def changes(self) -> int:
        """How often a mapping was kept or used again."""
        return self._changes

    def begin(self) -> None:
        """A server begins."""
        with self._lock:
            self._servers += 1

    def end(self) -> None:
        """A server that has begun ends. All that is kept is given back; after the last one nothing is kept any more."""
        with self._lock:
            self._servers -= 1
        self.clear()

    def map(self, nbytes: int) -> Array:
        """``uint8[nbytes]`` in a mapping of its own, at least 1 byte, of any content. With its last reference it is
        given back, or kept. MemoryError if the system has none."""
        with self._lock:
            same = self._kept.get(nbytes)
            memory = same.pop() if same else None
            if memory is not None:
                self._bytes -= nbytes
                self._changes += 1
        if memory is None:
            try:
                memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError as error:
                raise MemoryError(f"{nbytes} bytes cannot be mapped: {error.strerror}") from None
        array: Array = np.frombuffer(memory, np.uint8)
        if self._servers and nbytes >= LEAST_BYTES:
            weakref.finalize(array, self._dropped, memory).atexit = False
        return array

    def clear(self) -> None:
        """Gives back all that is kept. Other threads run in between."""
        give_way = Yielder()
        with self._lock:
            kept, self._kept, self._bytes = self._kept, {}, 0
        for same in kept.values():
            while same:
                same.pop()
                give_way()

    def _dropped(self, memory: mmap.mmap) -> None:
        """Runs wherever the last reference goes, also in a garbage collection in the middle of another method: if the
        lock is taken, the mapping is given back."""
        if not self._has_room(memory) or not _mark_as_free(memory) or not self._lock.acquire(blocking=False):
            return
        try:
            if self._has_room(memory):
                self._kept.setdefault(len(memory), []).append(memory)
                self._bytes += len(memory)
                self._changes += 1
        finally:
            self._lock.release()

    def _has_room(self, memory: mmap.mmap) -> bool:
        return self._servers > 0 and self._bytes + len(memory) <= self._most


def _mark_as_free(memory: mmap.mmap) -> bool:
    """Whether the system takes the pages as soon as it needs any. ``mmap.madvise`` would keep the interpreter lock
    meanwhile, 30 ms for half a gigabyte."""
    if _FREE is None or _madvise is None:
        return False
    at, size = ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory)
    return all(_madvise(at + start, min(_PIECE, size - start), _FREE) == 0 for start in range(0, size, _PIECE))


SPARE = SparePages()
"""Those of this process."""
