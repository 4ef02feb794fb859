"""A disk in memory, for tests of sources: real enough for scans, completeness and errors, and nothing to clean up."""

from __future__ import annotations

import io
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from tfs_lite.core.clock import Clock
from tfs_lite.core.manifest import MAX_FILES, FileStat, Manifest, Tree, is_looked_at
from tfs_lite.sources.disk import DirectoryEntry, Stamp, digest_problem

BLOCK_DEVICE, FILE_SERVER = os.makedev(8, 1), os.makedev(0, 50)
"""Numbers of devices: a disk of this machine, and one that a file server exports."""


@dataclass(slots=True)
class _Node:
    """A file, or a directory when ``data`` is None."""

    data: bytes | None
    inode: int
    mtime_ns: int
    ctime_ns: int


class MemoryDisk:
    """Implements ``Disk``. Time stamps come from the clock, paths are absolute, any thread may call any method.

    ``opened`` lists every path in the order in which files were opened, so that a test can say "nothing was read".
    """

    fetches = False

    def __init__(self, clock: Clock, device: int = BLOCK_DEVICE) -> None:
        """``device`` is its number, as ``os.stat`` gives it."""
        self._clock = clock
        self._device = device
        self._lock = threading.Lock()  # guards the fields below
        self._nodes: dict[str, _Node] = {}
        self._inodes = itertools.count(1)
        self._errors: dict[str, type[OSError]] = {}
        self.opened: list[str] = []
        self.mkdir("/")

    def mkdir(self, path: str) -> None:
        """Makes a directory and, if needed, its parents."""
        with self._lock:
            self._mkdir(path)

    def write(self, path: str, data: bytes, mtime: float | None = None) -> None:
        """Writes a whole file in place, and the directories above it. ``mtime`` None means now."""
        with self._lock:
            self._mkdir(os.path.dirname(path))
            node = self._nodes.get(path)
            if node is None:
                node = self._nodes[path] = _Node(data, next(self._inodes), 0, 0)
                self._touch(os.path.dirname(path))
            node.data = data
            node.ctime_ns = self._now()
            node.mtime_ns = self._now() if mtime is None else int(mtime * 1e9)

    def remove(self, path: str) -> None:
        """Removes a file, or a directory with everything below it."""
        with self._lock:
            self._node(path)
            for name in self._below(path):
                del self._nodes[name]
            self._touch(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        """Moves a file or directory; nothing inside it changes. What was at the target is gone."""
        with self._lock:
            self._node(source)
            for name in self._below(target):
                del self._nodes[name]
            for name in self._below(source):
                self._nodes[target + name[len(source) :]] = self._nodes.pop(name)
            self._touch(os.path.dirname(source))
            self._touch(os.path.dirname(target))

    def deny(self, path: str, error: type[OSError] = PermissionError) -> None:
        """Makes everything that touches this path raise ``error`` from now on."""
        with self._lock:
            self._errors[path] = error

    def allow(self, path: str) -> None:
        with self._lock:
            self._errors.pop(path, None)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        with self._lock:
            return [self._entry(name) for name in self._children(path)]

    def identity(self, path: str) -> str:
        with self._lock:
            return str(self._node(path).inode)

    def _entry(self, name: str) -> DirectoryEntry:
        node = self._nodes[name]
        state = "" if node.data is None else f"{len(node.data)} {node.mtime_ns}"
        return DirectoryEntry(os.path.basename(name), node.data is None, state)

    def stat_tree(self, path: str, max_files: int = MAX_FILES) -> Tree:
        files: list[FileStat] = []
        with self._lock:
            self._children(path)
            prefix = len(path.rstrip("/")) + 1
            names = [name for name in self._below(path) if name == path or is_looked_at(name[prefix:])]
            newest = changed = 0
            for name in names[: max_files + 1]:
                self._raise_denied(name)
                node = self._nodes[name]
                newest = max(newest, node.mtime_ns)
                if node.data is not None:
                    newest, changed = max(newest, node.ctime_ns), max(changed, node.ctime_ns)
                    relative = name[len(path) + 1 :]
                    files.append(FileStat(relative, len(node.data), node.mtime_ns, node.ctime_ns, node.inode))
        files.sort(key=lambda file: file.name)
        return Tree(tuple(files), newest, len(names) > max_files + 1, changed, self._device)

    def open(self, path: str) -> BinaryIO:
        with self._lock:
            node = self._node(path)
            if node.data is None:
                raise IsADirectoryError(21, os.strerror(21), path)
            self.opened.append(path)
            return io.BytesIO(node.data)

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
        with self._lock:
            node = self._node(path)
            return (self._device, node.inode, len(node.data or b""), node.mtime_ns, node.ctime_ns)

    def device(self, path: str) -> int:
        return self._device

    def _mkdir(self, path: str) -> None:
        if path not in self._nodes:
            if path != "/":
                self._mkdir(os.path.dirname(path))
                self._touch(os.path.dirname(path))
            now = self._now()
            self._nodes[path] = _Node(None, next(self._inodes), now, now)

    def _touch(self, directory: str) -> None:
        self._nodes[directory].mtime_ns = self._nodes[directory].ctime_ns = self._now()

    def _now(self) -> int:
        return int(self._clock.time() * 1e9)

    def _node(self, path: str) -> _Node:
        self._raise_denied(path)
        if path not in self._nodes:
            raise FileNotFoundError(2, os.strerror(2), path)
        return self._nodes[path]

    def _children(self, path: str) -> list[str]:
        if self._node(path).data is not None:
            raise NotADirectoryError(20, os.strerror(20), path)
        return [name for name in self._below(path) if name != path and os.path.dirname(name) == path]

    def _below(self, path: str) -> list[str]:
        """The path itself, if it is there, and everything under it."""
        prefix = path.rstrip("/") + "/"
        return [name for name in self._nodes if name == path or name.startswith(prefix)]

    def _raise_denied(self, path: str) -> None:
        error = self._errors.get(path)
        if error is not None:
            number = {PermissionError: 13, FileNotFoundError: 2}.get(error, 5)
            raise error(number, os.strerror(number), path)
