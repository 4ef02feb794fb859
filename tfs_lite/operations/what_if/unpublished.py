"""A disk on which one version has been published that is not there yet: its files are those of another directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO

from tfs_lite.core.manifest import MANIFEST_NAME, MAX_FILES, Manifest, Tree
from tfs_lite.sources.disk import DirectoryEntry, Disk, Stamp


class UnpublishedVersion:
    """Shows ``directory`` as version ``version`` of ``base_path``, complete as ``tfs-lite publish`` would leave it: no
    time has to pass, and no old manifest counts. Everything else is as on ``disk``."""

    def __init__(self, disk: Disk, base_path: str, version: int, directory: str) -> None:
        self._disk = disk
        self._base = os.path.normpath(base_path)
        self._version = str(version)
        self._directory = directory

    def real_path(self, path: str) -> str:
        """The real path of the files of ``path``."""
        place = os.path.join(self._base, self._version)
        path = os.path.normpath(path)
        if path == place or path.startswith(place + os.sep):
            return os.path.normpath(os.path.join(self._directory, os.path.relpath(path, place)))
        return path

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """A base path that is missing has this version only: publishing makes it."""
        if os.path.normpath(path) != self._base:
            return self._disk.list_directory(self.real_path(path))
        try:
            entries = self._disk.list_directory(path)
        except FileNotFoundError:
            entries = []
        return [*entries, DirectoryEntry(self._version, is_directory=True)]

    def identity(self, path: str) -> str:
        try:
            return self._disk.identity(self.real_path(path))
        except FileNotFoundError:
            if os.path.normpath(path) != self._base:
                raise
            return ""

    def stat_tree(self, path: str, max_files: int = MAX_FILES) -> Tree:
        real = self.real_path(path)
        tree = self._disk.stat_tree(real, max_files)
        if real == os.path.normpath(path):
            return tree
        return replace(tree, files=tuple(file for file in tree.files if file.name != MANIFEST_NAME), newest_ns=0)

    def open(self, path: str) -> BinaryIO:
        return self._disk.open(self.real_path(path))

    @property
    def fetches(self) -> bool:
        return self._disk.fetches

    def verify(
        self,
        path: str,
        tree: Tree,
        manifest: Manifest | None,
        cancelled: Callable[[], bool],
        on_read: Callable[[int], None],
    ) -> str:
        return self._disk.verify(self.real_path(path), tree, manifest, cancelled, on_read)

    def is_ready(self, path: str) -> bool:
        return self._disk.is_ready(self.real_path(path))

    def stamp(self, path: str) -> Stamp:
        return self._disk.stamp(self.real_path(path))

    def device(self, path: str) -> int:
        return self._disk.device(self.real_path(path))
