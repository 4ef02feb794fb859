"""Looks at base paths as a server does at its start, for checks that serve nothing.

Of a URL the server's own code decides which versions are complete and wanted. Nothing is fetched: the place of a fetch
has a directory of links to what is in the cache, which is read and never written to.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.loader import size_text
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.sources.disk import Disk, RealDisk
from tfs_lite.sources.inspector import VersionInspector
from tfs_lite.sources.look import Look, LookStream, look_at
from tfs_lite.sources.object_disk import ObjectDisk
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.sources.version_scan import versions_in
from tfs_lite.storage.fetch import Fetcher, RemoteVersion, has_all_files
from tfs_lite.storage.files_cache import FilesCache, never
from tfs_lite.storage.objects import open_storage
from tfs_lite.storage.store import Storage
from tfs_lite.storage.url import StorageUrl, is_url

_REPEAT_SECONDS = 60.0
"""Half of it is the time for which a storage that does not answer is not asked again, for this and other models."""


@dataclass(frozen=True, slots=True)
class RemoteFiles:
    """The files of a version at a URL. ``manifest``: it has one. ``cached``: they are on this machine, and checked."""

    bytes: int
    files: int
    manifest: bool
    cached: bool

    @property
    def text(self) -> str:
        manifest = "with a manifest" if self.manifest else "without a manifest"
        cached = "in the cache" if self.cached else "not in the cache: its files are not checked"
        return f"{size_text(self.bytes)} in {self.files} file{'' if self.files == 1 else 's'}, {manifest}, {cached}"


class _Links(Fetcher):
    """Brings links to the files that the cache has of a version, into ``cache``; an empty directory if it has none."""

    def __init__(self, storage: Storage, cache: FilesCache, filled: FilesCache) -> None:
        super().__init__(storage, cache, threading.Event())
        self._links, self._filled = cache, filled
        self.found: dict[str, RemoteFiles] = {}  # by URL
        self.origins: dict[str, str] = {}  # real directory -> URL

    def fetch(
        self, version: RemoteVersion, cancelled: Callable[[], bool] = never, on_read: Callable[[int], object] = ignore
    ) -> str:
        url = os.path.join(version.base, version.directory)
        directory, cached = self._links.whole(version.key, version.directory), None
        with suppress(OSError):  # a cache of somebody else
            cached = self._filled.find(version.key, version.directory)
        os.makedirs(directory, exist_ok=True)
        for file in version.files if cached else ():
            link = os.path.join(directory, file.path)
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(os.path.join(str(cached), file.path), link)
        manifest = any(file.path == MANIFEST_NAME for file in version.files)
        self.found[url] = RemoteFiles(version.size, len(version.files), manifest, cached is not None)
        self.origins.update({os.path.realpath(each): url for each in (directory, cached) if each})
        return directory


@dataclass(frozen=True, slots=True)
class _Place:
    """A disk and who knows its versions. ``links``: of a place of URLs."""

    disk: Disk
    inspector: VersionInspector
    is_atomic: bool = False
    links: _Links | None = None


class FirstLooks:
    """Looks at base paths as a server does at its start. What is seen of the files counts for the next look at them.
    One thread at a time. ``cache``: the directory in which servers keep what they have fetched; empty: the user's."""

    def __init__(self, cache: str = "") -> None:
        self._executor = PoolExecutor("tfs-check", 0)
        self._filled = FilesCache(cache, 1, has_all_files)
        self._here = self._place(RealDisk())
        self._places: dict[str, _Place] = {}
        self._bases: set[str] = set()
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.close()

    def begin(self, base_path: str) -> None:
        """Lists a base path at a URL anew; a directory is listed with each look."""
        place = self._of(base_path)
        if isinstance(place.disk, ObjectDisk):
            with suppress(OSError):  # the look says so
                place.disk.stamp(base_path)

    def look(self, servable: ServableToMonitor, quiet_period: float, refused: Collection[int]) -> Look:
        """The result of a server's first poll, with all digests computed, once the versions that are ``refused`` have
        failed. What would be fetched counts as fetched."""
        place = self._of(servable.base_path)
        config = SourceConfig((servable,), quiet_period=0.0 if place.is_atomic else quiet_period)
        stream = LookStream(failed=frozenset(refused))
        look_at(servable, config, stream, place.disk, place.inspector)
        self._executor.run_pending()
        return look_at(servable, config, stream, place.disk, place.inspector)

    def versions(self, base_path: str) -> list[int]:
        """The numbers of all version directories; none if they cannot be listed."""
        try:
            children = self._of(base_path).disk.list_directory(base_path)
        except OSError:
            return []
        return list(versions_in(entry.name for entry in children if entry.is_directory))

    def files(self, path: str) -> tuple[str, RemoteFiles | None]:
        """The directory with the files of the version at ``path``, and what is known of them at a URL."""
        place = self._of(os.path.dirname(path))
        if place.links is None or not isinstance(place.disk, ObjectDisk):
            return path, None
        return place.disk.local(path) or path, place.links.found[path]

    def origin_of(self, path: str) -> str | None:
        """The URL from which the file at this real path was fetched; None: from nowhere."""
        for place in self._places.values():
            for directory, url in place.links.origins.items() if place.links else ():
                if path == directory or path.startswith(directory + os.sep):
                    return url
        return None

    def _of(self, base_path: str) -> _Place:
        if not is_url(base_path):
            return self._here
        url = StorageUrl.parse(base_path)
        if url.place not in self._places:
            storage = open_storage(url)
            directory = self._ends.enter_context(tempfile.TemporaryDirectory(prefix="tfs-check-"))
            cache = FilesCache(directory, 1 << 40, lambda path, key: os.path.isdir(path))
            links = _Links(storage, cache, self._filled)
            disk = ObjectDisk(storage, url.place, cache, links, SystemClock(), _REPEAT_SECONDS)
            self._places[url.place] = self._place(disk, storage.is_atomic, links)
        place = self._places[url.place]
        if base_path not in self._bases and isinstance(place.disk, ObjectDisk):
            self._bases.add(base_path)
            place.disk.set_bases({base for base in self._bases if StorageUrl.parse(base).place == url.place})
        return place

    def _place(self, disk: Disk, is_atomic: bool = False, links: _Links | None = None) -> _Place:
        inspector = VersionInspector(disk, SystemClock(), self._executor, trusts_stamps=True)
        return _Place(disk, inspector, is_atomic, links)
