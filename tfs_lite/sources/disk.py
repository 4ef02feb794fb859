"""The disk, passed in: the few things a source asks of storage.

Sources only read. Everything they decide is decided over the values defined here, so that a disk in memory can stand
in for the real one. Errors are plain :class:`OSError` (FileNotFoundError, PermissionError, ...).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from tfs_lite.core.manifest import MAX_FILES, Manifest, Tree, open_plain, read_tree, sha256_of, state_of_file
from tfs_lite.sources.completeness import unverified

_LISTINGS = 3
"""The most listings of a directory that becomes another one while it is listed."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A child of a directory. A link counts as what it points to, and as a directory when that cannot be told.

    ``state``: of a file, something that differs whenever its contents may have changed; empty if that cannot be told.
    """

    name: str
    is_directory: bool
    state: str = field(default="", compare=False)


class Disk(Protocol):
    """Read access to storage. Any thread may call any method; the disks of this machine remember nothing."""

    @property
    def fetches(self) -> bool:
        """Whether the files of a version are elsewhere, and come to this machine when they are verified."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """The children, in no order."""

    def identity(self, path: str) -> str:
        """A text for the directory that ``path`` leads to. It differs when the path leads to another one, as after a
        switched link, or where a volume was mounted and is no more."""

    def stat_tree(self, path: str, max_files: int = MAX_FILES) -> Tree:
        """Every file below that is looked at; see :mod:`tfs_lite.core.manifest`. No more than ``max_files``
        entries. What is neither a directory nor a plain file raises OSError."""

    def open(self, path: str) -> BinaryIO:
        """A plain file for reading at any position; NoPlainFileError for a pipe. The caller closes it."""

    def verify(
        self,
        path: str,
        tree: Tree,
        manifest: Manifest | None,
        cancelled: Callable[[], bool],
        on_read: Callable[[int], None],
    ) -> str:
        """Reads the files of the version at ``path``, which are those of ``tree``; says what is wrong with them, or
        returns an empty text. ``cancelled`` is asked with every piece and ends it with an error, ``on_read`` gets the
        bytes of each. Raises OSError."""

    def is_ready(self, path: str) -> bool:
        """Whether what ``verify`` has found, or brought, is still there. Cheap."""

    def stamp(self, path: str) -> Stamp:
        """A value that differs whenever the contents of a file, or the children of a directory, may have changed.
        Cheap."""

    def device(self, path: str) -> int:
        """The number of the device that the path is on, as far as the mount points say: it looks at no disk. 0 where
        that is not known."""


Stamp = tuple[int, ...]
"""Device, inode, size, and times of the last changes; links are followed."""


def list_in_place(disk: Disk, path: str) -> tuple[str, list[DirectoryEntry]]:
    """The identity of the directory, and its children: of one and the same, if it does not change all the time."""
    place = disk.identity(path)
    for _ in range(_LISTINGS):
        entries = disk.list_directory(path)
        before, place = place, disk.identity(path)
        if place == before:
            break
    return place, entries


def digest_problem(
    disk: Disk,
    path: str,
    tree: Tree,
    manifest: Manifest | None,
    cancelled: Callable[[], bool],
    on_read: Callable[[int], None],
) -> str:
    """The first file whose digest is not the listed one; empty without one. Files that are the very ones which the
    publisher has hashed are not read."""
    if manifest is None:
        return ""
    for stat in unverified(tree, manifest):
        with disk.open(os.path.join(path, stat.name)) as file:
            if sha256_of(file, cancelled, on_read) != manifest.files[stat.name].sha256:
                return f"{stat.name} does not have the sha256 digest that the manifest lists"
    return ""


class RealDisk:
    """The file system of this machine."""

    fetches = False

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        with os.scandir(path) as children:
            return [_entry(child) for child in children]

    def identity(self, path: str) -> str:
        status = os.stat(path)
        return f"{status.st_dev}:{status.st_ino}"

    def stat_tree(self, path: str, max_files: int = MAX_FILES) -> Tree:
        return read_tree(path, max_files)

    def open(self, path: str) -> BinaryIO:
        return open_plain(path)

    def verify(
        self,
        path: str,
        tree: Tree,
        manifest: Manifest | None,
        cancelled: Callable[[], bool],
        on_read: Callable[[int], None],
    ) -> str:
        return digest_problem(self, path, tree, manifest, cancelled, on_read)

    def is_ready(self, path: str) -> bool:
        return True

    def stamp(self, path: str) -> Stamp:
        found = os.stat(path)
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def device(self, path: str) -> int:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
                return device_of(path, mounts)
        except OSError:
            return 0


def device_of(path: str, mounts: Iterable[str]) -> int:
    """The device of the nearest mount point above the path, given the lines of ``mountinfo``; 0 if there is none."""
    best, device = "", 0
    for line in mounts:
        fields = line.split(" ", 5)
        point = fields[4].replace("\\040", " ") if len(fields) > 5 else ""
        if len(point) >= len(best) and point and (path == point or path.startswith(point.rstrip("/") + "/")):
            best, device = point, os.makedev(*map(int, fields[2].split(":")))
    return device


def _entry(child: os.DirEntry[str]) -> DirectoryEntry:
    if _is_directory(child):
        return DirectoryEntry(child.name, True)
    return DirectoryEntry(child.name, False, state_of_file(child.path))


def _is_directory(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:
        return True
