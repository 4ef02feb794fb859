"""The state directory's events: written as lines of JSON by a thread of their own, read back at the next start.

    events.jsonl, events.jsonl.1, ... events.jsonl.7      the newest first, 8 MiB each; then the oldest goes

A line is written whole with one call, so a killed server leaves at most one torn line, which is skipped. Of an event
that repeats, a line is written when its count has doubled. One server at a time may use a directory: it holds a lock on
the file ``lock`` there, which the system releases when the process ends, whatever ends it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

from tfs_lite.core.history import Event
from tfs_lite.core.status import failed_precondition

FILE = "events.jsonl"
FILES = 8
FILE_BYTES = 8 << 20
QUEUED = 1000
"""Events that wait to be written; one more is dropped."""
RESTORED = 2000
"""Events that are read back."""
CLOSE_SECONDS = 5.0
logger = logging.getLogger(__name__)


class EventFile:
    """``read`` -> ``start`` -> ``write`` from any thread -> ``close``. Construction takes the directory, made if it
    does not exist; FAILED_PRECONDITION if another server has it, or it cannot be used."""

    def __init__(self, directory: str, file_bytes: int = FILE_BYTES) -> None:
        self._path = Path(directory, FILE)
        self._file_bytes = file_bytes
        self._lock_file = _take(directory)
        try:
            self._file = _open(self._path)
            self._size = os.fstat(self._file).st_size
        except OSError as error:
            os.close(self._lock_file)
            raise _unusable(error) from None
        self._torn = self._size > 0 and not _ends_with_newline(self._path)
        self._queue: queue.Queue[Event | None] = queue.Queue(QUEUED)
        self._dropped = 0  # written by any thread; a lost count does no harm
        self._logged = ""
        self._thread = threading.Thread(target=self._run, name="tfs-events", daemon=True)

    @property
    def dropped(self) -> int:
        """Events that were not written, because too many waited or the disk refused them."""
        return self._dropped

    def read(self) -> list[Event]:
        """The latest events of earlier servers, the oldest first. Lines that are no events are skipped."""
        found: list[Event] = []
        for path in self._paths():
            found = [*_events_of(path)][-(RESTORED - len(found)) :] + found
            if len(found) >= RESTORED:
                break
        return found

    def start(self) -> None:
        """Starts to write events."""
        self._thread.start()

    def write(self, event: Event) -> None:
        """Has the event written soon. Never blocks."""
        if event.count & (event.count - 1):
            return
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Writes what waits, for a few seconds at most, and gives the directory back."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSE_SECONDS)
                self._thread.join(CLOSE_SECONDS)
            except queue.Full:
                pass
            if self._thread.is_alive():  # the disk hangs; the descriptors end with the process
                logger.error("the last events are not written: the state directory does not answer")
                return
        os.close(self._file)
        os.close(self._lock_file)

    def _paths(self) -> Iterator[Path]:
        """The files, the newest first."""
        yield self._path
        for number in range(1, FILES):
            yield self._path.with_name(f"{FILE}.{number}")

    def _run(self) -> None:
        """The thread."""
        while True:
            events, ends = self._next()
            if events:
                self._write(events)
            if ends:
                return

    def _next(self) -> tuple[list[Event], bool]:
        """The events that wait, at least one, and whether the last is among them."""
        events, event = [], self._queue.get()
        while event is not None:
            events.append(event)
            if self._queue.empty():
                return events, False
            event = self._queue.get()
        return events, True

    def _write(self, events: list[Event]) -> None:
        data = b"".join(json.dumps(event.as_json()).encode() + b"\n" for event in events)
        try:
            if self._size and self._size + len(data) > self._file_bytes:
                self._rotate()
            self._append(b"\n" + data if self._torn else data)
        except OSError as error:
            self._dropped += len(events)
            self._torn = True
            reason = error.strerror or type(error).__name__
            if reason != self._logged:
                logger.error("events are not written to the state directory: %s", reason)
            self._logged = reason
        else:
            self._torn, self._logged = False, ""

    def _append(self, data: bytes) -> None:
        written = os.write(self._file, data)
        self._size += written
        if written < len(data):
            raise OSError(0, "the disk took a part of it")

    def _rotate(self) -> None:
        paths = list(self._paths())
        for older, newer in zip(reversed(paths), reversed(paths[:-1]), strict=False):
            if newer.exists():
                os.replace(newer, older)
        fresh = _open(self._path)
        os.close(self._file)
        self._file, self._size, self._torn = fresh, 0, False


def _take(directory: str) -> int:
    """The descriptor of the locked file, to be closed."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        lock = os.open(Path(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        message = f"state_directory: another server uses {directory}; give each server a directory of its own"
        raise failed_precondition(message) from None
    return lock


def _unusable(error: OSError) -> Exception:
    return failed_precondition(f"state_directory: it cannot be used: {error.strerror or type(error).__name__}")


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _events_of(path: Path) -> Iterator[Event]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        logger.error("%s of the state directory cannot be read: %s", path.name, error.strerror)
        return
    for line in lines[-RESTORED - 1 :]:
        try:
            yield Event.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
