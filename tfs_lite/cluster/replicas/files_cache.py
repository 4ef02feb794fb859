"""The files of versions that a node has got from servers: whole ones only, and no more than it may keep.

    DIR/DIGEST/VERSION/...       a version, as it is opened; the name of its directory is as on the server
    DIR/DIGEST.partial/...       one that is being written
    DIR/locks/DIGEST.use         held shared by every process that uses the version, alone by who removes it
    DIR/locks/DIGEST.download    held alone by who writes it; its text is how many bytes that will be
    DIR/locks/room               held alone by who makes room

Each replica of a node is a process of its own; the locks are the system's, so they end with their process. What is
written is on the disk before it has its name. The version that was used least recently goes first; one that is used
stays. Lock files stay too: they are empty.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tfs_lite.cluster.replicas.generation import files_digest, is_digest
from tfs_lite.config.replicas import CACHE_BYTES
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition

_PARTIAL = ".partial"
_LOCKS = "locks"
_ROOM = "room"
_USE, _DOWNLOAD = ".use", ".download"


def default_directory() -> str:
    """The directory of this user: in the cache directory, or, without a home, among temporary files."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(home) and os.access(os.path.dirname(home), os.W_OK):
        return os.path.join(home, "tfs-lite", "versions")
    return os.path.join(tempfile.gettempdir(), f"tfs-lite-{os.getuid()}", "versions")


class FilesCache:
    """Threads and processes: any. Errors of the disk are raised as they are."""

    def __init__(self, directory: str = "", most: int = CACHE_BYTES) -> None:
        """Keeps at most ``most`` bytes in ``directory``, which is made when it is needed; empty: the user's own."""
        self._directory = os.path.abspath(directory or default_directory())
        self._most = most
        self._lock = threading.Lock()  # guards _used
        self._used: dict[str, int] = {}  # digest -> descriptor of the lock that says that it is used

    def find_or_begin(self, digest: str, version: str, size: int) -> str | Download:
        """The directory of the version with this digest, or, if it is not there, the means to write ``size`` bytes of
        it. Waits while another process writes it. The version stays as long as this process runs. RESOURCE_EXHAUSTED
        without room; FAILED_PRECONDITION if others may write to the cache."""
        self._prepare()
        use = self._take(digest + _USE, fcntl.LOCK_SH)
        try:
            download = self._take(digest + _DOWNLOAD, fcntl.LOCK_EX)
        except BaseException:
            os.close(use)
            raise
        try:
            found = self._find(digest, version)
            if found is None:
                self._make_room(digest, size, download)
                return Download(self, digest, version, (use, download))
        except BaseException:
            os.close(download)
            os.close(use)
            raise
        os.close(download)
        self._keep(digest, use)
        return found

    def partial(self, digest: str) -> str:
        return os.path.join(self._directory, digest + _PARTIAL)

    def publish(self, digest: str, use: int) -> None:
        """Gives files their name once they are whole, and on the disk."""
        os.rename(self.partial(digest), os.path.join(self._directory, digest))
        _sync(self._directory)
        self._keep(digest, use)

    def whole(self, digest: str, version: str) -> str:
        return os.path.join(self._directory, digest, version)

    def _prepare(self) -> None:
        os.makedirs(os.path.join(self._directory, _LOCKS), mode=0o700, exist_ok=True)
        found = os.stat(self._directory)
        if found.st_uid not in (0, os.getuid()) or found.st_mode & stat.S_IWOTH:
            raise failed_precondition("model_cache_dir: others may write to it, and so change what is opened")

    def _find(self, digest: str, version: str) -> str | None:
        """Finds a version; removes what is damaged."""
        directory = self.whole(digest, version)
        try:
            if files_digest(directory) == digest:
                os.utime(self._path(digest + _USE))
                return directory
        except ServingError:
            pass
        shutil.rmtree(os.path.join(self._directory, digest), ignore_errors=True)
        return None

    def _make_room(self, digest: str, size: int, download: int) -> None:
        """Removes versions until there is room for the new one, and makes its directory."""
        with self._room():
            shutil.rmtree(self.partial(digest), ignore_errors=True)
            held = self._sizes()
            for oldest in sorted(held, key=self._last_use) if size <= self._most else ():
                if sum(held.values()) + size <= self._most:
                    break
                if self._remove(oldest):
                    del held[oldest]
            left = max(self._most - sum(held.values()), 0)
            if size > left:
                message = f"model_cache_bytes is {self._most}: {left} are left, and the files have {size}"
                raise ServingError(StatusCode.RESOURCE_EXHAUSTED, message)
            os.ftruncate(download, 0)
            os.pwrite(download, str(size).encode(), 0)
            os.mkdir(self.partial(digest), 0o700)

    def _sizes(self) -> dict[str, int]:
        """Bytes of each version that is here or on its way. What else lies in the directory is not ours."""
        found: dict[str, int] = {}
        for entry in os.scandir(self._directory):
            digest = entry.name.removesuffix(_PARTIAL)
            if not is_digest(digest) or not entry.is_dir(follow_symlinks=False):
                continue
            size = self._announced(digest) if entry.name.endswith(_PARTIAL) else _size(entry.path)
            found[digest] = found.get(digest, 0) + size
        return found

    def _announced(self, digest: str) -> int:
        with open(self._path(digest + _DOWNLOAD)) as file:
            text = file.read()
        return int(text) if text.isdecimal() else 0

    def _last_use(self, digest: str) -> float:
        try:
            return os.stat(self._path(digest + _USE)).st_mtime
        except FileNotFoundError:
            return 0.0

    def _remove(self, digest: str) -> bool:
        """Removes a version; returns False if a process uses or writes it."""
        try:
            use = self._take(digest + _USE, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            for name in (digest, digest + _PARTIAL):
                shutil.rmtree(os.path.join(self._directory, name), ignore_errors=True)
        finally:
            os.close(use)
        return True

    def _keep(self, digest: str, use: int) -> None:
        """Keeps a version until the end of this process."""
        with self._lock:
            if self._used.setdefault(digest, use) != use:
                os.close(use)

    @contextmanager
    def _room(self) -> Iterator[None]:
        lock = self._take(_ROOM, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(lock)

    def _take(self, name: str, how: int) -> int:
        """A descriptor that holds the lock until it is closed."""
        descriptor = os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, how)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _path(self, lock: str) -> str:
        return os.path.join(self._directory, _LOCKS, lock)


class Download:
    """A version that is being written. Ends with ``finish`` or ``abort``. One thread at a time. Names have been
    checked."""

    def __init__(self, cache: FilesCache, digest: str, version: str, locks: tuple[int, int]) -> None:
        """``locks``: the lock of its use, and the lock of its writing."""
        self._cache = cache
        self._digest, self._version = digest, version
        self._use, self._writing = locks
        self._hashes: dict[str, hashlib._Hash] = {}
        self._sizes: dict[str, int] = {}
        self._folders: set[str] = set()
        self.directory = os.path.join(cache.partial(digest), version)
        os.mkdir(self.directory, 0o700)

    def written(self, name: str) -> int:
        """Bytes of the file so far."""
        return self._sizes.get(name, 0)

    def sha256(self, name: str) -> str:
        """The digest of what was written of the file."""
        return self._hashes.get(name, hashlib.sha256()).hexdigest()

    def write(self, name: str, chunk: bytes) -> None:
        """Appends to the file."""
        with self._open(name) as descriptor:
            view = memoryview(chunk)
            while view:
                view = view[os.write(descriptor, view) :]
        self._hashes.setdefault(name, hashlib.sha256()).update(chunk)
        self._sizes[name] = self.written(name) + len(chunk)

    def finish(self) -> str:
        """Keeps the version once everything was written and is right. Returns its directory."""
        for folder, _, names in os.walk(self._cache.partial(self._digest), topdown=False):
            for name in names:
                _sync(os.path.join(folder, name))
            _sync(folder)
        self._cache.publish(self._digest, self._use)
        os.close(self._writing)
        return self._cache.whole(self._digest, self._version)

    def abort(self) -> None:
        """Drops what was written."""
        shutil.rmtree(self._cache.partial(self._digest), ignore_errors=True)
        os.close(self._writing)
        os.close(self._use)

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        path = os.path.join(self.directory, name)
        folder = os.path.dirname(path)
        if folder not in self._folders:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._folders.add(folder)
        new = os.O_EXCL | os.O_CREAT if name not in self._sizes else os.O_APPEND
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | new, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _size(directory: str) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
