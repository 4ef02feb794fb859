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
from tfs_lite.core.manifest import MODEL_SETTINGS_FILES, is_litter, is_text
from tfs_lite.core.servable import parse_version
from tfs_lite.core.status import OK, Reason, Status, StatusCode, listed, printable
from tfs_lite.core.threads import PeriodicThread
from tfs_lite.sources.disk import DirectoryEntry, Disk, list_in_place
from tfs_lite.sources.look_queue import DISK_TIMEOUT_SECONDS, MOST_HANGING, Looked, LookQueue
from tfs_lite.sources.watch import DirectoryWatcher
from tfs_lite.sources.watch_points import WatchPoint, points_for

logger = logging.getLogger(__name__)
NO_TEXT = Status(StatusCode.INVALID_ARGUMENT, "the name of its directory is no UTF-8 text; rename it")


def models_in(listing: Mapping[str, Collection[DirectoryEntry]], known: Collection[str]) -> list[str]:
    """The sub directories that are models, given what lies in each of them.

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


class _Root(Looked):
    """The directory itself. ``children``: the names of its directories, as the last look has found them; None: it
    cannot be read, as ``problem`` says. ``place`` is the identity of the directory."""

    __slots__ = ("_disk", "children", "done", "place", "problem")

    def __init__(self, path: str, disk: Disk) -> None:
        super().__init__(path)
        self._disk = disk
        self.children: list[str] | None = None
        self.place = ""
        self.problem = OK
        self.done = threading.Event()

    def look(self) -> None:
        try:
            self.place, entries = list_in_place(self._disk, self.path)
            self.children = [entry.name for entry in entries if entry.is_directory and not is_litter(entry.name)]
            self.problem = OK
        except OSError as error:
            self.children, self.problem = None, _problem(error)
        finally:
            self.done.set()

    def on_hang(self, what: str) -> None:
        text = f"the model repository cannot be read: {what}"
        self.children, self.problem = None, Status(StatusCode.UNAVAILABLE, text, Reason.DISK_HANGS)
        self.done.set()


class _Child(Looked):
    """One directory in it. ``is_known``: it was a model before. ``is_marked``: what lies there makes it one; not looked
    at while it is known. ``problem``: why that is not known."""

    __slots__ = ("_disk", "_on_look", "is_known", "is_marked", "name", "problem")

    def __init__(self, name: str, path: str, disk: Disk, on_look: Callable[[str, str], None]) -> None:
        super().__init__(path)
        self.name = name
        self._disk, self._on_look = disk, on_look
        self.is_known = self.is_marked = False
        self.problem = ""

    @property
    def is_model(self) -> bool:
        return self.is_known or self.is_marked

    def look(self) -> None:
        if not self.is_known:
            before, self.problem = self.problem, ""
            try:
                self.is_marked = bool(models_in({self.name: self._disk.list_directory(self.path)}, ()))
            except OSError as error:
                self.is_marked, self.problem = False, error.strerror or str(error)
                if self.problem != before and not isinstance(error, FileNotFoundError):  # it is just being removed
                    logger.warning("%s in the model repository cannot be read: %s", self.name, self.problem)
        if self.is_model:
            self._on_look(self.name, self.path)

    def on_hang(self, what: str) -> None:
        self.problem = what
        logger.warning("model %s of the repository: %s (%s)", self.name, what, self.path)


class _EndOfRound(Looked):
    """Stands behind the children in the queue: when its turn comes, each of them has answered or hangs."""

    __slots__ = ("done",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.device = -1  # it lies on no disk
        self.done = threading.Event()

    def look(self) -> None:
        self.done.set()


class ModelRepository:
    """Watches one directory and reports its models.

    Order: construct -> ``start`` (first look at once, on its own thread) or ``poll`` -> ``close``. ``on_models`` gets
    the whole mapping of names to base paths after each look that succeeds, on the thread that polls; what it raises is
    logged. While the directory cannot be read the last mapping stays; so it does when the path leads to another
    directory than before, which holds no model. A model is gone when its directory has been for ``quiet_period``
    seconds: one that is replaced is gone for a moment. With ``poll_interval`` None or 0 it looks only when woken.

    What asks the disk runs in a :class:`LookQueue`: a directory that hangs does not hold up the others, and a model
    that is known stays one.
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
        on_look: Callable[[str, str], None] = ignore,
        disk_timeout: float = DISK_TIMEOUT_SECONDS,
    ) -> None:
        """``on_problem`` is told why the last mapping stays, and OK when it does so no more, on that thread. With
        ``models_always_present`` a directory that is emptied leaves the last mapping as it is. ``on_no_text`` is told,
        before ``on_models`` and whenever that has changed, which directories are passed over because their names are no
        text, with escapes in their place. ``on_look`` is called with the name and the base path of each model before
        ``on_models``, on a thread of the queue, and may ask the disk."""
        self._path = path
        self._disk = disk
        self._on_models = on_models
        self._on_problem = on_problem
        self._on_no_text = on_no_text
        self._clock = clock
        self._quiet_period = quiet_period
        self._models_always_present = models_always_present
        self._on_look = on_look
        self._longest_round = disk_timeout * (MOST_HANGING + 1)
        self._looks = LookQueue("tfs-repository-look", disk, clock, disk_timeout)
        self._polling = threading.Lock()  # serialises polls; guards the next nine
        self._root = _Root(path, disk)
        self._listed: list[str] = []  # the names of its directories
        self._children: dict[str, _Child] = {}  # those of them that are text, by name
        self._others: list[str] = []  # those that are no models
        self._sent: dict[str, str] | None = None
        self._no_text: frozenset[str] = frozenset()
        self._problem = OK
        self._place = ""  # the identity of the directory when it last held models
        self._missing: dict[str, float] = {}  # models without a directory, and since when, in seconds of ``monotonic``
        self._closed = threading.Event()
        self._awaited = threading.Event()  # by the poll; set too when the repository ends
        self._watcher = DirectoryWatcher(lambda owners: self.wake(), clock) if watch else None
        self._thread = PeriodicThread("tfs-repository", self.poll, poll_interval or None)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Looks soon, on its own thread."""
        self._thread.wake()

    def poll(self) -> None:
        """Looks once, and reports on the caller's thread. Waits for the disk, for a bounded time."""
        with self._polling:
            if self._closed.is_set():
                return
            models = self._list()
            if self._closed.is_set():
                return
            if models is not None:
                self._send(models | self._just_gone())
            hangs = self._looks.hanging()
            if self._watcher is not None and not hangs and self._watcher.update(self._points()):
                self.wake()

    def _await(self, done: threading.Event) -> None:
        """Returns at once when the repository ends."""
        self._awaited = done
        if not self._closed.is_set():
            done.wait(self._longest_round)

    def end(self) -> None:
        """Stops all reports. Returns at once."""
        self._closed.set()
        self._awaited.set()
        self._thread.end()

    def close(self) -> None:
        """Ends it, waiting for a look in progress, for a bounded time."""
        self.end()
        self._looks.close()
        self._thread.stop()
        if self._watcher is not None:
            self._watcher.close()

    def _list(self) -> dict[str, str] | None:
        """The base paths of the models, by name, each looked at if its disk answers; None when nothing may be concluded
        from what is there."""
        root = self._root
        if root.hangs_since is None:
            root.done.clear()
        self._looks.ask([root])
        self._await(root.done)
        if root.children is None:
            self._set_problem(root.problem)
            return None
        if root.children != self._listed:
            self._replace_children(root.children)
        known = self._sent or {}
        for name, child in self._children.items():
            child.is_known = name in known
        end = _EndOfRound(self._path)
        self._looks.ask([*self._children.values(), end])
        self._await(end.done)
        if self._closed.is_set():
            return None
        models = {name: child.path for name, child in self._children.items() if child.is_model}
        others = [name for name, child in self._children.items() if not (child.is_model or child.problem)]
        if others != self._others:
            self._others = others
            if others:
                logger.info("not models in the repository, for they have no version directory: %s", listed(others))
        if models:
            self._place = root.place
        elif self._sent and (self._place != root.place or self._models_always_present):
            self._set_problem(_emptied(is_another=self._place != root.place))
            return None
        self._set_problem(OK)
        return models

    def _replace_children(self, names: list[str]) -> None:
        self._listed = names
        self._pass_over(frozenset(printable(name) for name in names if not is_text(name)))
        before = self._children
        self._children = {
            name: before.get(name) or _Child(name, os.path.join(self._path, name), self._disk, self._on_look)
            for name in sorted(names)
            if is_text(name)
        }
        self._looks.drop([child for name, child in before.items() if name not in self._children])

    def _just_gone(self) -> dict[str, str]:
        """The models whose directories have been gone for less than the quiet period."""
        now = self._clock.monotonic()
        gone = {name: path for name, path in (self._sent or {}).items() if name not in self._children}
        self._missing = {name: self._missing.get(name, now) for name in gone}
        left = {name: since + self._quiet_period - now for name, since in self._missing.items()}
        waits = {name: seconds for name, seconds in left.items() if seconds > 0}
        if waits:
            self._clock.call_later(min(waits.values()), self.wake)
        return {name: gone[name] for name in waits}

    def _pass_over(self, no_text: frozenset[str]) -> None:
        for name in sorted(no_text - self._no_text):
            logger.warning('"%s" in the model repository is no model: %s', name, NO_TEXT.message)
        if no_text != self._no_text:
            self._no_text = no_text
            self._on_no_text(no_text)

    def _send(self, models: dict[str, str]) -> None:
        if models != self._sent:
            logger.info("models in the repository: %s", ", ".join(sorted(models)) or "none")
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

    def _points(self) -> Iterator[WatchPoint]:
        yield from points_for(self._path)
        for name, child in self._children.items():
            if name not in (self._sent or {}):
                yield WatchPoint(os.path.realpath(child.path))


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
