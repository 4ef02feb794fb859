"""A storage in memory, with faults that are drawn or put in by a test."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO

from tfs_lite.core.status import StatusCode
from tfs_lite.storage.store import PAGE, Children, FlatListing, RemoteFile, StorageError

PIECE = 64 << 10


def unavailable(text: str = "the storage answers 503 SlowDown") -> StorageError:
    return StorageError(StatusCode.UNAVAILABLE, text, is_transient=True)


class MemoryStorage:
    """Objects by path. ``fault``: asked before each request with (operation, path); what it returns is raised. ``cut``:
    asked before each piece of a body, with (path, bytes given so far). ``requests`` counts by operation."""

    scheme = "s3"
    is_atomic = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.requests: Counter[str] = Counter()
        self.fault: Callable[[str, str], StorageError | None] = lambda operation, path: None
        self.cut: Callable[[str, int], StorageError | None] = lambda path, given: None
        self._changes = 0

    def set(self, path: str, data: bytes) -> None:
        """Puts an object there, as somebody else would."""
        with self._lock:
            self._changes += 1
            self.objects[path] = (data, self._changes)

    def _ask(self, operation: str, path: str) -> None:
        with self._lock:
            self.requests[operation] += 1
        error = self.fault(operation, path)
        if error is not None:
            raise error

    def _file(self, path: str) -> RemoteFile:
        data, changed = self.objects[path]
        return RemoteFile(path, len(data), _tag(data), changed * 1_000_000_000)

    def _below(self, prefix: str) -> list[str]:
        start = f"{prefix}/" if prefix else ""
        return sorted(path for path in self.objects if path.startswith(start))

    def files(self, prefix: str) -> FlatListing:
        self._ask("list", prefix)
        with self._lock:
            paths = self._below(prefix)
            return FlatListing(tuple(self._file(path) for path in paths[:PAGE]), len(paths) < PAGE)

    def children(self, prefix: str) -> Children:
        self._ask("list", prefix)
        skip = len(prefix) + 1 if prefix else 0
        with self._lock:
            paths = self._below(prefix)
            files = tuple(self._file(path) for path in paths if "/" not in path[skip:])
            return Children(files, tuple(sorted({p[skip:].split("/")[0] for p in paths if "/" in p[skip:]})))

    def read(self, path: str, start: int = 0, tag: str = "") -> Iterator[bytes]:
        self._ask("get", path)
        with self._lock:
            data, _ = self.objects.get(path, (None, 0))
        if data is None:
            raise StorageError(StatusCode.NOT_FOUND, "there is no such object")
        if tag and _tag(data) != tag:
            raise StorageError(StatusCode.ABORTED, "the object was changed")
        return self._body(path, data, start)

    def _body(self, path: str, data: bytes, start: int) -> Iterator[bytes]:
        for at in range(start, len(data), PIECE):
            error = self.cut(path, at - start)
            if error is not None:
                raise error
            yield data[at : at + PIECE]

    def put(self, path: str, source: bytes | BinaryIO, *, create: bool = False) -> None:
        self._ask("put", path)
        data = source if isinstance(source, bytes) else source.read()
        with self._lock:
            if create and self.objects.get(path, (data,))[0] != data:
                raise StorageError(StatusCode.ALREADY_EXISTS, "there is such an object already")
            self._changes += 1
            self.objects[path] = (data, self._changes)

    def delete(self, path: str) -> None:
        self._ask("delete", path)
        with self._lock:
            self.objects.pop(path, None)


def _tag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
