"""Versions that are loaded before the manager asks for them.

When the files or the config of a version change that is being served, the new state is loaded first, while the old one
serves. Only when that has succeeded does it take the old one's place, and the manager's own load of the new one then
only takes over what is there: a change that cannot be loaded takes nothing away.
"""

from __future__ import annotations

import threading

from tfs_lite.core.loader import Loader, LoaderAround
from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.core.servable import ServableId


class Preloads:
    """Loaders that have loaded and wait to be taken over. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the loaders
        self._loaders: dict[tuple[ServableId, str], Loader] = {}

    def put(self, servable_id: ServableId, revision: str, loader: Loader) -> None:
        with self._lock:
            self._loaders[servable_id, revision] = loader

    def take(self, servable_id: ServableId, revision: str) -> Loader | None:
        """The caller has to unload it."""
        with self._lock:
            return self._loaders.pop((servable_id, revision), None)

    def estimate(self, servable_id: ServableId, revision: str) -> ResourceAllocation | None:
        """The estimate of a loader that still waits; None if there is none."""
        with self._lock:
            loader = self._loaders.get((servable_id, revision))
        return loader.estimate_resources() if loader is not None else None

    def drop(self, name: str) -> None:
        """Unloads those of the model that were not taken over."""
        with self._lock:
            left = [self._loaders.pop(key) for key in list(self._loaders) if key[0].name == name]
        for loader in left:
            loader.unload()


class PreloadedLoader(LoaderAround):
    """Takes over what was preloaded for this revision of the version; without it, loads with the loader inside."""

    def __init__(self, servable_id: ServableId, revision: str, inner: Loader, preloads: Preloads) -> None:
        self._id = servable_id
        self._revision = revision
        super().__init__(inner)
        self._preloads = preloads

    def estimate_resources(self) -> ResourceAllocation:
        return self._preloads.estimate(self._id, self._revision) or self._inner.estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        found = self._preloads.take(self._id, self._revision)
        if found is None:
            self._inner.load(servable_id)
        else:
            self._inner = found

    def unload(self) -> None:
        self._inner.unload()
