"""File-system events that shorten the wait between polls.

An event carries no truth: it only says "look now". Where watching does not work (limits of the system, network
disks), one log line says so and the polls carry on alone. Only changes of names and the end of writing are asked
for; opening and reading files, which polls and loads do all the time, causes no event.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from tfs_lite.core.clock import Clock
from tfs_lite.core.manifest import is_looked_at
from tfs_lite.sources.watch_points import WatchPoint, WatchTarget, targets_of

logger = logging.getLogger(__name__)

MAX_WATCHES = 512
MIN_GAP = 0.02
"""Seconds between two calls of ``on_change``, so that a busy directory does not make polls run without pause."""
_EVENTS: list[type[FileSystemEvent]] = [
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
]


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """watchdog logs an error when an event comes while its watch is given up, as happens on every change of the points
    and at the end. It then drops the event, which is right."""
    return "called when the thread is inactive" not in record.getMessage()


logging.getLogger("watchdog.observers.inotify").addFilter(_is_worth_a_line)


class DirectoryWatcher:
    """Calls ``on_change`` when something changes at one of the watch points.

    ``update`` comes from one thread at a time (the poll); ``on_change`` is called on the watcher's or the clock's
    threads, must be short and must not call the watcher. No call begins after ``close``.
    """

    def __init__(self, on_change: Callable[[], None], clock: Clock) -> None:
        self._throttle = _Throttle(on_change, clock)
        self._lock = threading.Lock()  # guards the fields below; event handlers never take it
        self._observer: BaseObserver | None = None
        self._watches: dict[str, tuple[_Handler, ObservedWatch]] = {}
        self._warned = False
        self._closed = False

    def update(self, points: Iterable[WatchPoint]) -> bool:
        """Watches exactly these points from now on. True if something was added: it may have changed before it was
        watched, so the caller has to look once more."""
        wanted = targets_of(points)
        with self._lock:
            if self._closed:
                return False
            changed = False
            for directory, (handler, watch) in list(self._watches.items()):
                target = wanted.get(directory)
                if handler.gone or target is None or target.identity != handler.target.identity:
                    self._drop(directory, watch)
                elif target != handler.target:
                    handler.target, changed = target, True
            missing = [target for directory, target in wanted.items() if directory not in self._watches]
            return self._add(missing) or changed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            observer, self._observer = self._observer, None
            self._watches.clear()
        self._throttle.close()
        if observer is not None:
            observer.stop()
            observer.join()

    def _add(self, targets: list[WatchTarget]) -> bool:
        added = False
        for target in targets:
            if len(self._watches) >= MAX_WATCHES:
                self._warn_once(f"more than {MAX_WATCHES} directories")
                break
            try:
                self._watch(target)
                added = True
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self._warn_once(error)
                break
        return added

    def _watch(self, target: WatchTarget) -> None:
        if self._observer is None:
            observer = Observer()
            observer.start()
            self._observer = observer
        handler = _Handler(target, self._throttle.call)
        watch = self._observer.schedule(handler, target.directory, recursive=target.recursive, event_filter=_EVENTS)
        self._watches[target.directory] = (handler, watch)

    def _drop(self, directory: str, watch: ObservedWatch) -> None:
        del self._watches[directory]
        if self._observer is not None:
            self._observer.unschedule(watch)

    def _warn_once(self, reason: object) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("cannot watch every directory (%s): changes there are found by polling", reason)


class _Handler(FileSystemEventHandler):
    """Decides on the observer's thread whether an event is worth a look. Takes no lock."""

    def __init__(self, target: WatchTarget, on_change: Callable[[], None]) -> None:
        self.target = target
        self.gone = False  # the directory itself was deleted, and the watch with it
        self._on_change = on_change

    def dispatch(self, event: FileSystemEvent) -> None:
        source, destination = os.fsdecode(event.src_path), os.fsdecode(event.dest_path)
        if source == self.target.directory:
            self.gone = self.gone or event.event_type == "deleted"
            self._on_change()
        elif self._matters(source) or self._matters(destination):
            self._on_change()

    def _matters(self, path: str) -> bool:
        name = os.path.basename(path)
        names = self.target.names
        if names is not None:
            return name in names
        return bool(name) and not name.startswith(".") and is_looked_at(name)


class _Throttle:
    """Passes a call on at once, and calls that follow too soon as one, a little later."""

    def __init__(self, call: Callable[[], None], clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._lock = threading.Lock()  # guards _last, _pending and _closed
        self._last = float("-inf")
        self._pending = False
        self._closed = False

    def call(self) -> None:
        with self._lock:
            left = self._last + MIN_GAP - self._clock.monotonic()
            if self._pending or self._closed:
                return
            self._pending = left > 0
            if not self._pending:
                self._last = self._clock.monotonic()
        if left > 0:
            self._clock.call_later(left, self._late)
        else:
            self._call()

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _late(self) -> None:
        with self._lock:
            self._pending = False
            self._last = self._clock.monotonic()
            if self._closed:
                return
        self._call()
