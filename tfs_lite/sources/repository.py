"""The models of a whole directory, ``DIR/<model>/<version>/``: which names are served, and from which base path.

The server turns each new mapping into a config of the file-system source, so that models appear and disappear
without a config file.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.manifest import MODEL_SETTINGS_FILES, is_litter, parse_version
from tfs_lite.core.periodic import PeriodicThread
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.sources.disk import DirectoryEntry, Disk
from tfs_lite.sources.watch import DirectoryWatcher
from tfs_lite.sources.watch_points import WatchPoint, points_for

logger = logging.getLogger(__name__)


def models_in(listing: Mapping[str, Collection[DirectoryEntry]], known: Collection[str]) -> list[str]:
    """The sub directories that are models, given what lies in each of them.

    A model has a version directory or a config. Once known as a model it stays one for as long as its directory
    exists, so that a moment without versions does not take its configuration away. Litter, as hidden directories are,
    is none.
    """
    return sorted(
        name
        for name, entries in listing.items()
        if not is_litter(name) and (name in known or any(_marks_a_model(entry) for entry in entries))
    )


def _marks_a_model(entry: DirectoryEntry) -> bool:
    if entry.is_directory:
        return parse_version(entry.name) is not None
    return entry.name in MODEL_SETTINGS_FILES


class ModelRepository:
    """Watches one directory and reports its models.

    Order: construct -> ``start`` (first look at once, on its own thread) or ``poll`` -> ``close``. ``on_models`` gets
    the whole mapping of names to base paths after each look that succeeds, on the thread that polls; what it raises is
    logged. While the directory cannot be read the last mapping stays. With ``poll_interval`` None or 0 it looks only
    when woken.
    """

    def __init__(
        self,
        path: str,
        disk: Disk,
        clock: Clock,
        on_models: Callable[[Mapping[str, str]], None],
        poll_interval: float | None = 1.0,
        watch: bool = True,
        on_problem: Callable[[Status], None] = ignore,
    ) -> None:
        """``on_problem`` is told why the directory cannot be read, and OK when it can again, on that
        thread."""
        self._path = path
        self._disk = disk
        self._on_models = on_models
        self._on_problem = on_problem
        self._polling = threading.Lock()  # serialises polls; guards the next two
        self._sent: dict[str, str] | None = None
        self._problem = OK
        self._closed = threading.Event()
        self._watcher = DirectoryWatcher(self.wake, clock) if watch else None
        self._thread = PeriodicThread("tfs-repository", self.poll, poll_interval or None)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Looks soon, on its own thread."""
        self._thread.wake()

    def poll(self) -> None:
        """Looks once, on the caller's thread."""
        with self._polling:
            if self._closed.is_set():
                return
            listing = self._list()
            if listing is not None:
                names = models_in(listing, self._sent or {})
                self._send({name: os.path.join(self._path, name) for name in names})
            if self._watcher is not None and self._watcher.update(self._points(listing or {})):
                self.wake()

    def close(self) -> None:
        """Ends it, waiting for a look in progress."""
        self._closed.set()
        self._thread.stop()
        if self._watcher is not None:
            self._watcher.close()

    def _list(self) -> dict[str, Collection[DirectoryEntry]] | None:
        """What lies in each sub directory; None when the directory itself cannot be read."""
        try:
            children = self._disk.list_directory(self._path)
        except OSError as error:
            self._set_problem(_problem(error))
            return None
        self._set_problem(OK)
        names = [entry.name for entry in children if entry.is_directory and not is_litter(entry.name)]
        return {name: self._list_child(name) for name in names}

    def _list_child(self, name: str) -> Collection[DirectoryEntry]:
        try:
            return self._disk.list_directory(os.path.join(self._path, name))
        except OSError as error:
            logger.debug("%s in the model repository cannot be read: %s", name, error)
            return ()

    def _send(self, models: dict[str, str]) -> None:
        if models != self._sent:
            logger.info("models in the repository: %s", ", ".join(models) or "none")
        try:
            self._on_models(models)
        except Exception:
            logger.exception("the receiver failed on the models of the repository; they are sent again")
        else:
            self._sent = models

    def _set_problem(self, problem: Status) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        self._on_problem(problem)
        if not problem.ok:
            logger.warning("%s (%s): the models stay as they are", problem.message, self._path)

    def _points(self, listing: Mapping[str, Collection[DirectoryEntry]]) -> Iterator[WatchPoint]:
        yield from points_for(self._path)
        for name in listing:
            if name not in (self._sent or {}):
                yield WatchPoint(os.path.realpath(os.path.join(self._path, name)))


def _problem(error: OSError) -> Status:
    if isinstance(error, FileNotFoundError):
        return Status(StatusCode.NOT_FOUND, "the model repository does not exist")
    return Status(StatusCode.UNAVAILABLE, f"the model repository cannot be read: {error.strerror}")
