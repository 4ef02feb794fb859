"""File-system events that shorten the wait between polls.

An event carries no truth: it only says "look now". Where watching does not work (limits of the system, network
disks), one log line says so and the polls carry on alone. Only changes of names and the end of writing are asked
for; opening and reading files, which polls and loads do all the time, causes no event.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping

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
from watchdog.observers.api import BaseObserver, EventDispatcher, ObservedWatch

from tfs_lite.core.clock import Clock
from tfs_lite.core.manifest import is_looked_at
from tfs_lite.core.threads import JOIN_SECONDS, join, within
from tfs_lite.sources.watch_points import WatchPoint, WatchTarget, targets_of

logger = logging.getLogger(__name__)

MAX_WATCHES = 512
MIN_GAP = 0.02
"""Seconds between two calls of ``on_change``, so that a busy directory does not make polls run without pause."""
LOCK_SECONDS = 1.0
"""The longest wait for another thread that makes a watch: its disk may hang."""
Owners = frozenset[str]
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


_NOT_KNOWN = "watchdog does not know a directory any more that was moved and deleted (%s); its watch is gone"


def _stop(observer: BaseObserver) -> None:
    """Ends its thread. watchdog 7.1 raises KeyError instead where a directory below a watch was moved and deleted."""
    try:
        observer.stop()
    except KeyError as error:
        logger.debug(_NOT_KNOWN, error)
        observer.event_queue.put(EventDispatcher.stop_event)


class DirectoryWatcher:
    """Calls ``on_change`` with those owners of watch points that something has changed for.

    Any thread may call any method. ``on_change`` is called on the watcher's or the clock's threads, must be short and
    must not call the watcher. No call begins after ``close``. The lock is held while a watch is made, which asks the
    disk: no thread waits for it for long.
    """

    def __init__(self, on_change: Callable[[Owners], None], clock: Clock) -> None:
        self._throttle = _Throttle(on_change, clock)
        self._lock = threading.Lock()  # guards the fields below; event handlers never take it
        self._observer: BaseObserver | None = None
        self._watches: dict[str, _Handler] = {}  # by directory
        self._owned: dict[str, dict[str, WatchTarget]] = {}  # by owner and directory
        self._warned = False
        self._closed = False

    def update(self, points: Iterable[WatchPoint], owner: str = "") -> bool:
        """Watches exactly these points for the owner from now on. True if something was added: it may have changed
        before it was watched, so the caller has to look once more."""
        wanted = targets_of(points)
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            return False
        try:
            return not self._closed and self._update(wanted, owner)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Ends the threads, which takes a bounded time."""
        self._throttle.close()
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            return
        self._closed = True
        observer, self._observer = self._observer, None
        self._watches.clear()
        self._lock.release()
        if observer is not None and within(JOIN_SECONDS, "tfs-watch", lambda: _stop(observer)):
            join(observer)

    def _update(self, wanted: Mapping[str, WatchTarget], owner: str) -> bool:
        known = self._owned.pop(owner, {})
        if wanted:
            self._owned[owner] = dict(wanted)
        for directory in known.keys() - wanted.keys():
            self._give_up(directory, owner)
        added = False
        for directory, target in wanted.items():
            handler = self._watches.get(directory)
            if handler is not None and not handler.serves(target):
                self._drop(handler)
                handler = _Handler(target, self._throttle.call, handler.targets)
                added |= self._watch(handler)
            elif handler is None:
                handler = _Handler(target, self._throttle.call)
                added |= self._watch(handler)
            if handler.targets.get(owner) != target:
                handler.set(owner, target)
                added |= directory in self._watches
        return added

    def _give_up(self, directory: str, owner: str) -> None:
        handler = self._watches.get(directory)
        if handler is not None:
            handler.set(owner, None)
            if not handler.targets:
                self._drop(handler)

    def _watch(self, handler: _Handler) -> bool:
        """Whether there is a watch now."""
        if len(self._watches) >= MAX_WATCHES:
            self._warn_once(f"more than {MAX_WATCHES} directories")
            return False
        try:
            if self._observer is None:
                observer = Observer()
                observer.start()
                self._observer = observer
            handler.watch = self._observer.schedule(
                handler, handler.directory, recursive=handler.recursive, event_filter=_EVENTS
            )
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, RuntimeError) as error:  # no watch, or no thread for it
            self._warn_once(error)
            return False
        self._watches[handler.directory] = handler
        return True

    def _drop(self, handler: _Handler) -> None:
        del self._watches[handler.directory]
        if self._observer is not None and handler.watch is not None:
            try:
                self._observer.unschedule(handler.watch)
            except KeyError as error:
                logger.debug(_NOT_KNOWN, error)

    def _warn_once(self, reason: object) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("cannot watch every directory (%s): changes there are found by polling", reason)


class _Handler(FileSystemEventHandler):
    """Decides on the observer's thread whom an event is worth a look. Takes no lock: what it reads is replaced as a
    whole. ``targets``: by owner, what matters in this directory."""

    def __init__(
        self, target: WatchTarget, on_change: Callable[[Owners], None], targets: Mapping[str, WatchTarget] | None = None
    ) -> None:
        self.directory = target.directory
        self.identity = target.identity
        self.targets = dict(targets or {})
        self.recursive = target.recursive or any(each.recursive for each in self.targets.values())
        self.gone = False  # the directory itself was deleted, and the watch with it
        self.watch: ObservedWatch | None = None
        self._on_change = on_change
        self._by_name: dict[str | None, Owners] = {}  # None: every name that is not hidden
        for owner, each in self.targets.items():
            self._add(owner, each)

    def serves(self, target: WatchTarget) -> bool:
        """Whether the watch is good for the target: of the same directory, and deep enough."""
        return not self.gone and self.identity == target.identity and (self.recursive or not target.recursive)

    def set(self, owner: str, target: WatchTarget | None) -> None:
        """Sets the watch points of the owner; None removes them."""
        before = self.targets.pop(owner, None)
        for name in _names(before):
            if left := self._by_name.get(name, frozenset()) - {owner}:
                self._by_name[name] = left
            else:
                self._by_name.pop(name, None)
        if target is not None:
            self.targets[owner] = target
            self._add(owner, target)

    def dispatch(self, event: FileSystemEvent) -> None:
        source, destination = os.fsdecode(event.src_path), os.fsdecode(event.dest_path)
        if source == self.directory:
            self.gone = self.gone or event.event_type == "deleted"
            owners = frozenset(self.targets)
        else:
            owners = self._owners_of(source) | self._owners_of(destination)
        if owners:
            self._on_change(owners)

    def _add(self, owner: str, target: WatchTarget) -> None:
        for name in _names(target):
            self._by_name[name] = self._by_name.get(name, frozenset()) | {owner}

    def _owners_of(self, path: str) -> Owners:
        name = os.path.basename(path)
        owners = self._by_name.get(name, frozenset()) if name else frozenset()
        return (
            owners
            if not name or name.startswith(".") or not is_looked_at(name)
            else owners | self._by_name.get(None, frozenset())
        )


def _names(target: WatchTarget | None) -> Iterable[str | None]:
    if target is None:
        return ()
    return (None,) if target.names is None else target.names


class _Throttle:
    """Passes a call on at once, and calls that follow too soon as one, a little later."""

    def __init__(self, call: Callable[[Owners], None], clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below
        self._last = float("-inf")
        self._gathered: Owners = frozenset()  # for the call to come
        self._pending = False
        self._closed = False

    def call(self, owners: Owners) -> None:
        with self._lock:
            left = self._last + MIN_GAP - self._clock.monotonic()
            if self._closed:
                return
            if self._pending or left > 0:
                self._gathered |= owners
            if self._pending:
                return
            self._pending = left > 0
            if not self._pending:
                self._last = self._clock.monotonic()
        if left > 0:
            self._clock.call_later(left, self._late)
        else:
            self._call(owners)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _late(self) -> None:
        with self._lock:
            self._pending = False
            self._last = self._clock.monotonic()
            owners, self._gathered = self._gathered, frozenset()
            if self._closed:
                return
        self._call(owners)
