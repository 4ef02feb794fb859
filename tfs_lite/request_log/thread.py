"""The thread that writes request logs, and the bounded queue in front of it.

To queue an entry takes a microsecond and never waits: an entry that does not fit is counted and dropped. The thread
makes the records one at a time, with a pause after each, so that requests get the interpreter lock in between.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tfs_lite.core.clock import Clock, Timer
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.request_log.files import pause
from tfs_lite.request_log.writer import NEVER, LogLimits, LogWriter, OnResult

logger = logging.getLogger(__name__)

MAX_REMEMBERED_CAUSES = 1000


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One request to be logged. ``make`` returns its PredictionLog; ``size``, in bytes, counts against the queue's
    bound; ``seconds`` is the time of the answer, since the epoch."""

    writer: LogWriter
    sampling: Message
    id: ServableId
    signature: str
    seconds: int
    size: int
    make: Callable[[], Message]

    def record(self) -> bytes:
        """The serialized PredictionLog with its metadata. Raises what ``make`` raises."""
        log = self.make()
        metadata = log.log_metadata
        metadata.model_spec.CopyFrom(model_spec(ModelRef(self.id.name, self.id.version, signature=self.signature)))
        metadata.sampling_config.CopyFrom(self.sampling)
        metadata.timestamp_secs = self.seconds
        data: bytes = log.SerializeToString()
        return data


class _Signal(enum.Enum):
    WOKEN = enum.auto()
    END = enum.auto()


class LogThread:
    """The thread that writes the logs: it begins with :meth:`start`, and takes ``put`` and ``retire`` from any thread
    until ``close``."""

    def __init__(self, limits: LogLimits, clock: Clock, on_result: OnResult) -> None:
        self._limits = limits
        self._clock = clock
        self._on_result = on_result
        self._changed = threading.Condition()  # guards the five below
        self._queue: deque[LogEntry | LogWriter] = deque()
        self._bytes = 0  # of the queue and of the entry in work
        self._in_work = 0
        self._woken = False
        self._closing = False
        # The rest belongs to the thread.
        self._writers: set[LogWriter] = set()
        self._due = NEVER
        self._timer_at = NEVER
        self._timer: Timer | None = None
        self._causes: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, name="tfs-request-log", daemon=True)

    def start(self) -> None:
        """Starts the thread; a second call has no effect."""
        if self._thread.ident is None:
            self._thread.start()

    def put(self, entry: LogEntry) -> None:
        """Queues the entry, or drops it with RESOURCE_EXHAUSTED if it does not fit, UNAVAILABLE after the end."""
        with self._changed:
            refused = self._refusal(entry)
            if refused is None:
                self._queue.append(entry)
                self._bytes += entry.size
                self._changed.notify()
        if refused is not None:
            self._on_result(entry.id.name, refused.name)

    def retire(self, writer: LogWriter) -> None:
        """Finishes the writer's file after its queued entries."""
        with self._changed:
            self._queue.append(writer)
            self._changed.notify()

    def close(self) -> None:
        """Writes the queued entries, finishes all files and ends the thread, within ``drain_seconds``; the entries left
        then are dropped. May be called more than once."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is None:
            return
        self._thread.join(self._limits.drain_seconds)
        with self._changed:
            left = [item for item in self._queue if isinstance(item, LogEntry)]
            self._queue.clear()
        if left:
            logger.warning("request log: the disk is slow; %d records are dropped at the end", len(left))
        for entry in left:
            self._on_result(entry.id.name, StatusCode.UNAVAILABLE.name)

    def _refusal(self, entry: LogEntry) -> StatusCode | None:
        if self._closing:
            return StatusCode.UNAVAILABLE
        full = len(self._queue) >= self._limits.queued_records
        return StatusCode.RESOURCE_EXHAUSTED if full or self._bytes + entry.size > self._limits.queued_bytes else None

    def _run(self) -> None:
        while (item := self._take()) is not _Signal.END:
            try:
                if isinstance(item, LogEntry):
                    self._write(item)
                    pause()
                elif isinstance(item, LogWriter):
                    item.finish()
                self._run_timers()
            except Exception:
                logger.exception("request log: a step failed; the next record comes as planned")
        for writer in self._writers:
            writer.finish()
        if self._timer is not None:
            self._timer.cancel()

    def _take(self) -> LogEntry | LogWriter | _Signal:
        """Waits for the next item and releases the bytes of the one before."""
        with self._changed:
            self._bytes -= self._in_work
            self._in_work = 0
            while not (self._queue or self._woken or self._closing):
                self._changed.wait()
            self._woken = False
            if not self._queue:
                return _Signal.END if self._closing else _Signal.WOKEN
            item = self._queue.popleft()
            self._in_work = item.size if isinstance(item, LogEntry) else 0
            return item

    def _write(self, entry: LogEntry) -> None:
        model, writer = entry.id.name, entry.writer
        if writer.paused:
            self._on_result(model, StatusCode.UNAVAILABLE.name)
            return
        try:
            record = entry.record()
        except Exception as error:
            self._on_result(model, StatusCode.INTERNAL.name)
            self._log_once(model, error)
            return
        writer.append(model, record)
        self._writers.add(writer)
        self._due = min(self._due, writer.due)

    def _log_once(self, model: str, error: Exception) -> None:
        cause = (model, type(error).__name__)
        if cause not in self._causes and len(self._causes) < MAX_REMEMBERED_CAUSES:
            self._causes.add(cause)
            logger.warning("request log: a record of model %s could not be made", model, exc_info=error)

    def _run_timers(self) -> None:
        """Ticks the writers that are due and sets the timer for the next one."""
        now = self._clock.monotonic()
        if now >= self._due:
            for writer in self._writers:
                writer.tick()
            self._writers = {writer for writer in self._writers if writer.due < NEVER}
            self._due = min((writer.due for writer in self._writers), default=NEVER)
        if now >= self._timer_at:
            self._timer_at = NEVER
        if self._due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self._due
            self._timer = self._clock.call_later(self._due - now, self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify()
