"""The disk, passed in: the few things a source asks of storage.

Sources only read. Everything they decide is decided over the values defined here, so that a disk in memory can stand
in for the real one. Errors are plain :class:`OSError` (FileNotFoundError, PermissionError, ...).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from tfs_lite.core.manifest import file_stamp

MAX_FILES = 10_000
_IGNORED = frozenset({"__pycache__"})
"""Directories that loading a model may write into its version; they are no part of it."""
_LISTINGS = 3
"""Of a directory that becomes another one while it is listed."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A child of a directory. A link counts as what it points to, and as a directory when that cannot be told.

    ``state``: of a file, something that differs whenever its contents may have changed; empty if that cannot be told.
    """

    name: str
    is_directory: bool
    state: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class FileStat:
    """A file by its path inside the version directory, ``/`` between the parts; links are followed."""

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def stamp(self) -> str:
        return file_stamp(self.inode, self.ctime_ns)


@dataclass(frozen=True, slots=True)
class Tree:
    """All files below a directory, sorted by name, at one moment.

    ``newest_ns`` is the latest time, since the epoch, at which anything in it changed: contents and inodes of files,
    entries of directories. ``overflow``: there were more than the caller wanted, and ``files`` is a part.
    """

    files: tuple[FileStat, ...]
    newest_ns: int
    overflow: bool = False

    @property
    def fingerprint(self) -> str:
        """Equal for two looks at the same unchanged files, and different whenever anything was changed."""
        digest = hashlib.sha256()
        for file in self.files:
            line = f"{file.name}\0{file.size}\0{file.mtime_ns}\0{file.stamp}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:16]


class Disk(Protocol):
    """Read access to storage. Any thread may call any method; nothing is remembered between calls."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """The children, in no order."""

    def identity(self, path: str) -> str:
        """Which directory ``path`` leads to: another text when it leads to another one, as after a switched link, or
        where a volume was mounted and is no more."""

    def stat_tree(self, path: str, max_files: int = MAX_FILES) -> Tree:
        """Every file below, ``__pycache__`` aside. Looks at no more than ``max_files`` entries. What is neither a
        directory nor a plain file raises OSError."""

    def open(self, path: str) -> BinaryIO:
        """A file for reading at any position. The caller closes it."""


def list_in_place(disk: Disk, path: str) -> tuple[str, list[DirectoryEntry]]:
    """The identity of the directory, and its children: of one and the same, if it does not change all the time."""
    place = disk.identity(path)
    for _ in range(_LISTINGS):
        entries = disk.list_directory(path)
        before, place = place, disk.identity(path)
        if place == before:
            break
    return place, entries


class RealDisk:
    """The file system of this machine."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        with os.scandir(path) as children:
            return [_entry(child) for child in children]

    def identity(self, path: str) -> str:
        status = os.stat(path)
        return f"{status.st_dev}:{status.st_ino}"

    def stat_tree(self, path: str, max_files: int = MAX_FILES) -> Tree:
        files: list[FileStat] = []
        newest = 0
        for seen, (relative, status) in enumerate(_walk(path)):
            if seen > max_files:
                return Tree(tuple(files), newest, overflow=True)
            newest = max(newest, status.st_mtime_ns)
            if relative is not None:
                newest = max(newest, status.st_ctime_ns)
                files.append(FileStat(relative, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
        return Tree(tuple(sorted(files, key=lambda file: file.name)), newest)

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb")


def _walk(root: str) -> Iterator[tuple[str | None, os.stat_result]]:
    """Files with their relative paths, and directories with None. A loop of links ends with the system's ELOOP."""
    pending = [""]
    while pending:
        prefix = pending.pop()
        directory = os.path.join(root, prefix) if prefix else root
        yield None, os.stat(directory)
        with os.scandir(directory) as children:
            for child in children:
                if child.name in _IGNORED:
                    continue
                if child.is_dir():
                    pending.append(f"{prefix}{child.name}/")
                else:
                    yield prefix + child.name, _stat_file(child.path)


def _stat_file(path: str) -> os.stat_result:
    """Pipes, sockets and devices are refused: reading one may block for ever."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a plain file", path)
    return status


def _entry(child: os.DirEntry[str]) -> DirectoryEntry:
    if _is_directory(child):
        return DirectoryEntry(child.name, True)
    try:
        status = child.stat()
    except OSError:
        return DirectoryEntry(child.name, False)
    return DirectoryEntry(
        child.name, False, f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    )


def _is_directory(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:
        return True
