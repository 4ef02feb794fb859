"""Standard output and error of the process, which may have no reader: written text waits in a bounded queue for a
thread of its own, and is dropped when the queue is full. So a pipe without a reader, a stopped terminal or a disk that
hangs holds up no request, no load and no stop.

Everything that writes with Python's ``sys.stdout`` and ``sys.stderr`` goes this way: the log, ``print``, warnings,
tracebacks, and the output of the processes of models. Libraries that write to the descriptors themselves do not wait
either where these are pipes; what finds no room in the pipe is lost without being counted.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import select
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

logger = logging.getLogger(__name__)

MAX_WAITING = 1 << 20
"""Bytes that wait for one of the two."""
MAX_WRITE = 1 << 16
"""Bytes of one write, unless a single piece is larger."""
FLUSH_SECONDS = 2.0
"""The seconds that the end of the process waits for both at most."""
NAMES = {1: "stdout", 2: "stderr"}
_SPOKEN = {1: "standard output", 2: "standard error"}


class UnblockedOutput(io.RawIOBase):
    """Any thread may write; no write waits or fails. ``lost`` counts the lines that were not written."""

    def __init__(self, descriptor: int, name: str) -> None:
        """``name`` is said when lines were lost. The descriptor stays the caller's."""
        self.lost = 0
        self._descriptor = descriptor
        self._name = name
        # Re-entrant: a garbage collection inside it may run code that logs.
        self._changed = threading.Condition()  # guards all below
        self._waiting = deque[bytes]()
        self._bytes = 0  # the bytes that wait or are being written
        self._unsaid = 0
        threading.Thread(target=self._run, name=f"tfs-output-{descriptor}", daemon=True).start()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Does nothing: the code of a model may close ``sys.stderr``, which the log goes on to write to."""

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        piece = bytes(data)
        with self._changed:
            if self._bytes + len(piece) > MAX_WAITING:
                self._lose(piece)
            else:
                self._waiting.append(piece)
                self._bytes += len(piece)
                self._changed.notify_all()
        return len(piece)

    def flush_within(self, seconds: float) -> bool:
        """Waits until everything is written or lost, at most for so long: whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                piece = self._take()
            written = self._write(piece)
            with self._changed:
                self._bytes -= len(piece)
                self._changed.notify_all()
                if not written:
                    self._lose(piece)
                unsaid = self._unsaid if written and self._bytes <= MAX_WAITING // 2 else 0
                self._unsaid -= unsaid
            if unsaid:
                logger.warning("%d lines of %s were not written: they were not read", unsaid, self._name)

    def _take(self) -> bytes:
        pieces = [self._waiting.popleft()]
        size = len(pieces[0])
        while self._waiting and size + len(self._waiting[0]) <= MAX_WRITE:
            pieces.append(self._waiting.popleft())
            size += len(pieces[-1])
        return b"".join(pieces)

    def _write(self, data: bytes) -> bool:
        """Writes on the thread, which may wait here for as long as it takes. False if the system refuses it."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            except OSError:
                return False
        return True

    def _lose(self, piece: bytes) -> None:
        lines = piece.count(b"\n") or 1
        self.lost += lines
        self._unsaid += lines


_outputs: dict[int, UnblockedOutput] = {}


def unblock_outputs() -> None:
    """Makes sure that nothing that this process writes to its standard output and error waits from now on. Starts
    threads. Call it once; the log has to be directed to ``sys.stderr`` afterwards."""
    sys.stdout, sys.stderr = _unblocked(1, sys.stdout), _unblocked(2, sys.stderr)
    atexit.register(flush_outputs)


def lost_lines() -> Mapping[str, int]:
    """The number of lines of each stream that were not written; empty where the outputs are as Python has them."""
    return {NAMES[descriptor]: output.lost for descriptor, output in _outputs.items()}


def flush_outputs(seconds: float = FLUSH_SECONDS) -> None:
    """Waits until both are written, at most for so long together."""
    ends = time.monotonic() + seconds
    for output in _outputs.values():
        output.flush_within(max(ends - time.monotonic(), 0.0))


def _unblocked(descriptor: int, before: TextIO) -> TextIO:
    _unblock_pipe(descriptor)
    output = _outputs[descriptor] = UnblockedOutput(descriptor, _SPOKEN[descriptor])
    encoding = getattr(before, "encoding", None) or "utf-8"
    # What it asks of a raw stream is what the output has.
    return io.TextIOWrapper(output, encoding, errors="backslashreplace", line_buffering=True)  # type: ignore[type-var]


def _unblock_pipe(descriptor: int) -> None:
    """Opens a pipe anew without waiting, for libraries that write to it themselves. The other processes that have the
    pipe keep it as it is. Not every pipe can be opened anew (another user's)."""
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return
    with suppress(OSError):
        opened = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
        os.dup2(opened, descriptor)
        os.close(opened)
