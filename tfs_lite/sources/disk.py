"""The disk, passed in: the few things a source asks of storage.

Sources only read. Everything they decide is decided over the values defined here, so that a disk in memory can stand
in for the real one. Errors are plain :class:`OSError` (FileNotFoundError, PermissionError, ...).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from tfs_lite.core.manifest import MAX_FILES, Tree, read_tree, state_of_file


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A child of a directory. A link counts as what it points to, and as a directory when that cannot be told.

    ``state``: of a file, something that differs whenever its contents may have changed; empty if that cannot be told.
    """

    name: str
    is_directory: bool
    state: str = field(default="", compare=False)


class Disk(Protocol):
    """Read access to storage. Any thread may call any method; nothing is remembered between calls."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """The children, in no order."""

    def stat_tree(self, path: str, max_files: int = MAX_FILES) -> Tree:
        """Every file below that is looked at; see :mod:`tfs_lite.core.manifest`. No more than ``max_files``
        entries. What is neither a directory nor a plain file raises OSError."""

    def open(self, path: str) -> BinaryIO:
        """A file for reading at any position. The caller closes it."""


class RealDisk:
    """The file system of this machine."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        with os.scandir(path) as children:
            return [_entry(child) for child in children]

    def stat_tree(self, path: str, max_files: int = MAX_FILES) -> Tree:
        return read_tree(path, max_files)

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb")


def _entry(child: os.DirEntry[str]) -> DirectoryEntry:
    if _is_directory(child):
        return DirectoryEntry(child.name, True)
    return DirectoryEntry(child.name, False, state_of_file(child.path))


def _is_directory(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:
        return True
