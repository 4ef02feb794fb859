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
from tfs_lite.core.manifest import is_text, parse_version
from tfs_lite.core.status import OK, Status, StatusCode, printable
from tfs_lite.core.threads import PeriodicThread
from tfs_lite.core.version_files import MODEL_SETTINGS_FILES, is_litter
from tfs_lite.sources.disk import DirectoryEntry, Disk, list_in_place
from tfs_lite.sources.watch import DirectoryWatcher
from tfs_lite.sources.watch_points import WatchPoint, points_for

logger = logging.getLogger(__name__)
NO_TEXT = Status(StatusCode.INVALID_ARGUMENT, "the name of its directory is no UTF-8 text; rename it")


def models_in(listing: Mapping[str, Collection[DirectoryEntry]], known: Collection[str]) -> list[str]:
    """The sub directories that are models, given what lies in each of them that is not ``known``.

    A model has a version directory or a config. Once known as a model it stays one for as long as its directory
    exists, so that a moment without versions does not take its configuration away. Litter, as hidden directories are,
    is none, nor are directories whose names no request could contain, because they are no text.
    """
    return sorted(
        name
        for name, entries in listing.items()
        if not is_litter(name) and is_text(name) and (name in known or any(_marks_a_model(entry) for entry in entries))
    )


def _marks_a_model(entry: DirectoryEntry) -> bool:
    if entry.is_directory:
        return parse_version(entry.name) is not None
    return entry.name in MODEL_SETTINGS_FILES


class ModelRepository:
    """Watches one directory and reports its models.

    Order: construct -> ``start`` (first look at once, on its own thread) or ``poll`` -> ``close``. ``on_models`` gets
    the whole mapping of names to base paths after each look that succeeds, on the thread that polls; what it raises is
    logged. While the directory cannot be read the last mapping stays; so it does when the path leads to another
    directory than before, which holds no model. A model is gone when its directory has been for ``quiet_period``
    seconds: one that is replaced is gone for a moment. With ``poll_interval`` None or 0 it looks only when woken.
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
        quiet_period: float = 0.0,
        models_always_present: bool = False,
        on_no_text: Callable[[frozenset[str]], None] = ignore,
    ) -> None:
        """``on_problem`` is told why the last mapping stays, and OK when it does so no more, on that thread. With
        ``models_always_present`` a directory that is emptied leaves the last mapping as it is. ``on_no_text`` is told,
        before ``on_models`` and whenever that has changed, which directories are passed over because their names are no
        text, with escapes in their place."""
        self._path = path
        self._disk = disk
        self._on_models = on_models
        self._on_problem = on_problem
        self._on_no_text = on_no_text
        self._clock = clock
        self._quiet_period = quiet_period
        self._models_always_present = models_always_present
        self._polling = threading.Lock()  # serialises polls; guards the next five
        self._sent: dict[str, str] | None = None
        self._no_text: frozenset[str] = frozenset()
        self._problem = OK
        self._place = ""  # the identity of the directory when it last held models
        self._missing: dict[str, float] = {}  # models without a directory, and since when, in seconds of ``monotonic``
        self._closed = threading.Event()
        self._watcher = DirectoryWatcher(lambda owners: self.wake(), clock) if watch else None
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
                names = sorted({*models_in(listing, self._sent or {}), *self._just_gone(listing)})
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
        """What lies in each sub directory that is not known as a model yet; nothing for the others. None when the
        directory itself cannot be read."""
        try:
            place, children = list_in_place(self._disk, self._path)
        except OSError as error:
            self._set_problem(_problem(error))
            return None
        names = [entry.name for entry in children if entry.is_directory and not is_litter(entry.name)]
        self._pass_over(frozenset(printable(name) for name in names if not is_text(name)))
        known = self._sent or {}
        listing: dict[str, Collection[DirectoryEntry]] = {
            name: () if name in known else self._list_child(name) for name in names if is_text(name)
        }
        if models_in(listing, known):
            self._place = place
        elif self._sent and (self._place != place or self._models_always_present):
            self._set_problem(_emptied(is_another=self._place != place))
            return None
        self._set_problem(OK)
        return listing

    def _just_gone(self, listing: Mapping[str, Collection[DirectoryEntry]]) -> list[str]:
        """The models whose directories have been gone for less than the quiet period."""
        now = self._clock.monotonic()
        gone = [name for name in self._sent or {} if name not in listing]
        self._missing = {name: self._missing.get(name, now) for name in gone}
        left = {name: since + self._quiet_period - now for name, since in self._missing.items()}
        waits = {name: seconds for name, seconds in left.items() if seconds > 0}
        if waits:
            self._clock.call_later(min(waits.values()), self.wake)
        return list(waits)

    def _pass_over(self, no_text: frozenset[str]) -> None:
        for name in sorted(no_text - self._no_text):
            logger.warning('"%s" in the model repository is no model: %s', name, NO_TEXT.message)
        if no_text != self._no_text:
            self._no_text = no_text
            self._on_no_text(no_text)

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


def _emptied(*, is_another: bool) -> Status:
    if is_another:
        text = "the model repository has become another directory, which holds no model"
    else:
        text = "the model repository holds no model any more (--servable_versions_always_present)"
    return Status(StatusCode.NOT_FOUND, text)


def _problem(error: OSError) -> Status:
    if isinstance(error, FileNotFoundError):
        return Status(StatusCode.NOT_FOUND, "the model repository does not exist")
    return Status(StatusCode.UNAVAILABLE, f"the model repository cannot be read: {error.strerror}")
