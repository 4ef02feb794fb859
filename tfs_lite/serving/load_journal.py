"""Every attempt to load a version: how far it is, how long it took and why it failed.

A version stays in Loading through all its retries. The result of its last attempt is kept here until the version ends,
so that its status can show the reason at once instead of after the last retry.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tfs_lite.core.loader import Loader, LoaderAround, LoadProgress
from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import OK, ServingError, Status, status_of


@dataclass(frozen=True, slots=True)
class LoadAttempt:
    """The latest attempt of one version. ``number`` counts from 1."""

    id: ServableId
    number: int
    seconds: float
    status: Status


class LoadJournal:
    """Any thread may call any method. ``on_attempt`` is called after each attempt, outside the lock."""

    def __init__(self, on_attempt: Callable[[LoadAttempt], None]) -> None:
        self._on_attempt = on_attempt
        self._lock = threading.Lock()  # guards the three below
        self._last: dict[ServableId, LoadAttempt] = {}
        self._loading: dict[ServableId, Loader] = {}  # of two loads of one version: the later one
        self._resident: dict[Loader, ServableId] = {}  # of two loads of one version: the later one

    def held(self) -> list[ResourceAllocation]:
        """The resources that each version in memory holds now; a version whose loader cannot tell is left out."""
        with self._lock:
            loaders = list(self._resident)
        return [held for loader in loaders if (held := _estimate(loader)) is not None]

    @contextlib.contextmanager
    def loading(self, servable_id: ServableId, loader: Loader) -> Iterator[None]:
        """While the block runs, ``loader`` loads the version and tells how far it is."""
        with self._lock:
            self._loading[servable_id] = loader
        try:
            yield
        finally:
            with self._lock:
                if self._loading.get(servable_id) is loader:
                    del self._loading[servable_id]

    def progress(self, servable_id: ServableId) -> LoadProgress | None:
        """The progress of the version's load; None while no loader is at work on it, or where its loader does not
        measure it."""
        with self._lock:
            loader = self._loading.get(servable_id)
        return None if loader is None else loader.progress

    def running(self) -> dict[ServableId, LoadProgress]:
        """The progress of each load that a loader is at work on and measures."""
        with self._lock:
            loading = dict(self._loading)
        return {each: progress for each, loader in loading.items() if (progress := loader.progress) is not None}

    def loaded(self, servable_id: ServableId, loader: Loader) -> None:
        with self._lock:
            self._resident[loader] = servable_id

    def unloaded(self, loader: Loader) -> None:
        with self._lock:
            self._resident.pop(loader, None)

    def loader(self, servable_id: ServableId) -> Loader | None:
        """The loader of a version that is in memory, the latest of several; else None."""
        with self._lock:
            found = (loader for loader, loaded in reversed(self._resident.items()) if loaded == servable_id)
            return next(found, None)

    def record(self, servable_id: ServableId, seconds: float, status: Status) -> None:
        with self._lock:
            before = self._last.get(servable_id)
            attempt = LoadAttempt(servable_id, before.number + 1 if before else 1, seconds, status)
            self._last[servable_id] = attempt
        self._on_attempt(attempt)

    def last(self, servable_id: ServableId) -> LoadAttempt | None:
        with self._lock:
            return self._last.get(servable_id)

    def forget(self, servable_id: ServableId) -> None:
        """The version has ended; a later incarnation counts anew."""
        with self._lock:
            self._last.pop(servable_id, None)


class JournaledLoader(LoaderAround):
    """A loader that records each attempt of the loader inside, a failed estimate too."""

    def __init__(self, servable_id: ServableId, inner: Loader, journal: LoadJournal) -> None:
        self._id = servable_id
        super().__init__(inner)
        self._journal = journal

    def estimate_resources(self) -> ResourceAllocation:
        started = time.perf_counter()
        try:
            return self._inner.estimate_resources()
        except BaseException as error:
            self._journal.record(self._id, time.perf_counter() - started, status_of(error))
            raise

    def load(self, servable_id: ServableId) -> None:
        started = time.perf_counter()
        try:
            with self._journal.loading(self._id, self._inner):
                self._inner.load(servable_id)
        except BaseException as error:
            self._journal.record(self._id, time.perf_counter() - started, status_of(error))
            raise
        self._journal.loaded(self._id, self._inner)
        self._journal.record(self._id, time.perf_counter() - started, OK)

    def unload(self) -> None:
        self._inner.unload()
        self._journal.unloaded(self._inner)


def _estimate(loader: Loader) -> ResourceAllocation | None:
    try:
        return loader.estimate_resources()
    except ServingError:
        return None
