"""A source of one version that never changes, for tests and for serving a single directory."""

from __future__ import annotations

from tfs_lite.core.servable import ServableData, ServableId, StoragePath
from tfs_lite.core.source import AspiredVersionsCallback


class StaticStoragePathSource:
    """Emits its one version once, on the thread that sets the callback. Looks at no disk."""

    def __init__(self, name: str, version: int, path: StoragePath) -> None:
        self._id = ServableId(name, version)
        self._path = path

    def set_aspired_versions_callback(self, callback: AspiredVersionsCallback[StoragePath]) -> None:
        callback(self._id.name, [ServableData.ok(self._id, self._path)])
