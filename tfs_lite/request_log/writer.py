"""Writes one log: buffers records, appends them to its file, rotates files, and survives disk failures.

Records are written together, up to a quarter of a megabyte or a second's worth at a time. After a disk failure the log
pauses for a while and counts and drops its records; the first record after the pause begins a new file.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from tfs_lite.core.clock import Clock
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.tfrecord import frame
from tfs_lite.request_log.files import LogFile, create, prune, recover

logger = logging.getLogger(__name__)

MIB = 1024 * 1024
BUFFERED_BYTES = 256 * 1024
BUFFERED_RECORDS = 100
"""The buffer is written at this size. A larger write would hold the interpreter lock too long."""
NEVER = math.inf

OnResult = Callable[[str, str], None]
"""Gets the outcome of one record: its model, and the name of a canonical code."""


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds of the queue, and of the files of each prefix. ``files`` includes the open one."""

    queued_records: int = 1000
    queued_bytes: int = 64 * MIB
    file_bytes: int = 64 * MIB
    file_seconds: float = 3600.0
    files: int = 16
    write_seconds: float = 1.0
    retry_seconds: float = 1.0
    max_retry_seconds: float = 60.0
    drain_seconds: float = 5.0


class LogWriter:
    """The files of one prefix. On one thread, which waits for the disk. Raises nothing."""

    def __init__(self, prefix: str, limits: LogLimits, clock: Clock, on_result: OnResult) -> None:
        self._prefix = prefix
        self._limits = limits
        self._clock = clock
        self._on_result = on_result
        self._file: LogFile | None = None
        self._number = 0
        self._old_at = NEVER
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._models: list[str] = []  # of the buffered records
        self._write_at = NEVER
        self._paused_until = -math.inf
        self._pause_seconds = limits.retry_seconds
        self._causes: set[int | None] = set()

    @property
    def due(self) -> float:
        """The time when :meth:`tick` has to be called, in the clock's monotonic seconds; ``NEVER`` if no file is
        open."""
        return min(self._write_at, self._old_at)

    @property
    def paused(self) -> bool:
        """Whether the disk failed recently, so that records are dropped."""
        return self._clock.monotonic() < self._paused_until

    def append(self, model: str, record: bytes) -> None:
        """Buffers a record; ``on_result`` gets its outcome now or later."""
        framed = frame(record)
        size = self._file.size if self._file else 0
        if size + self._buffered_bytes and size + self._buffered_bytes + len(framed) > self._limits.file_bytes:
            self.finish()
        if self.paused:
            self._on_result(model, StatusCode.UNAVAILABLE.name)
            return
        if not self._buffer:
            self._write_at = self._clock.monotonic() + self._limits.write_seconds
        self._buffer.append(framed)
        self._buffered_bytes += len(framed)
        self._models.append(model)
        if self._buffered_bytes >= BUFFERED_BYTES or len(self._buffer) >= BUFFERED_RECORDS:
            self._write()

    def tick(self) -> None:
        """Writes or finishes if that is due."""
        now = self._clock.monotonic()
        if now >= self._old_at:
            self.finish()
        elif now >= self._write_at:
            self._write()

    def finish(self) -> None:
        """Writes the buffer and finishes the file. A later record begins a new one."""
        self._write()
        file = self._detach_file()
        if file is None:
            return
        try:
            file.finish()
        except OSError as error:
            self._failed(error)
        else:
            self._pause_seconds = self._limits.retry_seconds
            self._causes.clear()

    def _write(self) -> None:
        if not self._buffer:
            return
        data, models = b"".join(self._buffer), self._models
        self._buffer, self._buffered_bytes, self._models, self._write_at = [], 0, [], NEVER
        code = StatusCode.OK
        try:
            self._open_file().append(data)
        except OSError as error:
            self._failed(error)
            code = StatusCode.UNAVAILABLE
        for model in models:
            self._on_result(model, code.name)

    def _open_file(self) -> LogFile:
        if self._file is not None and self._file.removed:
            logger.warning(
                "request log %s: its file was deleted while it was written; a new one is begun", self._prefix
            )
            self._drop()
        if self._file is None:
            recover(self._prefix)
            prune(self._prefix, self._limits.files - 1)
            self._file = create(self._prefix, self._clock.time(), self._number + 1)
            self._number = self._file.number
            self._old_at = self._clock.monotonic() + self._limits.file_seconds
        return self._file

    def _detach_file(self) -> LogFile | None:
        file, self._file, self._old_at = self._file, None, NEVER
        return file

    def _drop(self) -> None:
        file = self._detach_file()
        if file is not None:
            with contextlib.suppress(OSError):
                file.finish()

    def _failed(self, error: OSError) -> None:
        self._drop()
        self._paused_until = self._clock.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, self._limits.max_retry_seconds)
        if error.errno not in self._causes:
            self._causes.add(error.errno)
            logger.warning("request log %s: %s; records are dropped until it works again", self._prefix, error.strerror)
