"""The files of versions that a node has got from servers or from a storage, within a bound.

    DIR/KEY/VERSION/...          a version, as it is opened; its directory is named as where it came from
    DIR/KEY.partial/VERSION/...  one that is being written: each file is a beginning, and its length is what is valid
    DIR/KEY.gone                 one that is being removed
    DIR/bases/                   what its users note down about base paths
    DIR/locks/KEY.use            held shared by every process that uses the version, alone by who removes it
    DIR/locks/KEY.download       held alone by who writes it; its text is how many bytes that will be
    DIR/locks/room               held alone by who makes room

A key has 32 hexadecimal digits. Each replica of a node is a process of its own, as is each server; the locks are the
system's, so they end with their process. A version is on the disk before it has its name. The version that was used
least recently goes first; one that is used stays. Lock files stay too: they are empty.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.loader import size_text
from tfs_lite.core.publish import sync_directory, sync_file
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition

LOOK_SECONDS = 0.5
"""Seconds between two looks of a process that waits for another one to write a version."""
_KEY = re.compile(r"[0-9a-f]{32}", re.ASCII)
_PARTIAL, _GONE = ".partial", ".gone"
_LOCKS, _BASES = "locks", "bases"
_ROOM = "room"
_USE, _DOWNLOAD = ".use", ".download"
_CHUNK = 1 << 20


def never() -> bool:
    """Takes the place of ``cancelled`` for what nobody cancels."""
    return False


def default_directory() -> str:
    """The directory of this user: in the cache directory, or, without a home, among temporary files."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(home) and os.access(os.path.dirname(home), os.W_OK):
        return os.path.join(home, "tfs-lite", "versions")
    return os.path.join(tempfile.gettempdir(), f"tfs-lite-{os.getuid()}", "versions")


class FilesCache:
    """Threads and processes: any. Errors of the disk are raised as they are."""

    def __init__(
        self,
        directory: str,
        most: int,
        is_whole: Callable[[str, str], bool],
        on_evicted: Callable[[str, int], object] = ignore,
    ) -> None:
        """Keeps at most ``most`` bytes in ``directory``, which is made when it is needed; empty: the user's own.
        ``is_whole`` gets the directory of a version and its key, and says whether all its files are there; it raises
        nothing for a directory that is not. ``on_evicted`` gets the key and the bytes of what had to go."""
        self._directory = os.path.abspath(directory or default_directory())
        self._most = most
        self._is_whole = is_whole
        self._on_evicted = on_evicted
        self._lock = threading.Lock()  # guards what follows
        self._held: dict[str, _Held] = {}
        self._locks_work = False

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def bases(self) -> str:
        """The directory of what is noted down about base paths. It is there once anything was asked of the cache."""
        return os.path.join(self._directory, _BASES)

    @property
    def most(self) -> int:
        return self._most

    @property
    def bytes_held(self) -> int:
        """Bytes of all versions; one that is being written counts with all of its bytes. Looks at every file."""
        return sum(self._sizes().values()) if os.path.isdir(self._directory) else 0

    def prepare(self) -> None:
        """Makes the directory. FAILED_PRECONDITION if others may write to it, or if its disk knows no locks."""
        for name in (_LOCKS, _BASES):
            os.makedirs(os.path.join(self._directory, name), mode=0o700, exist_ok=True)
        found = os.stat(self._directory)
        if found.st_uid not in (0, os.getuid()) or found.st_mode & stat.S_IWOTH:
            raise failed_precondition("model_cache_dir: others may write to it, and so change what is opened")
        if not self._locks_work:
            _check_locks(os.path.join(self._directory, _LOCKS))
            self._locks_work = True

    def find(self, key: str, version: str) -> str | None:
        """The directory of a version that is there with all its files. Waits for nobody, and holds nothing."""
        directory = self.whole(key, version)
        return directory if self._is_whole(directory, key) else None

    def find_or_begin(
        self, key: str, version: str, size: int, *, resume: bool = False, cancelled: Callable[[], bool] = never
    ) -> str | Download:
        """The directory of the version with this key, which is then held, or, if it is not there, the means to write
        ``size`` bytes of it; with ``resume`` what an earlier process has written stays. Waits while another process
        writes the version, and asks ``cancelled`` every :data:`LOOK_SECONDS` meanwhile: CANCELLED. RESOURCE_EXHAUSTED
        without room within the bound, or on the disk; FAILED_PRECONDITION as :meth:`prepare`."""
        self.prepare()
        with ExitStack() as locks:
            use = self._take(key + _USE, fcntl.LOCK_SH)
            locks.callback(os.close, use)
            writing = self._take_writing(key, cancelled)
            locks.callback(os.close, writing)
            directory = self.whole(key, version)
            if self._is_whole(directory, key):
                locks.pop_all()
                os.close(writing)
                self._keep(key, use)
                return directory
            self._drop(key)
            if not resume:
                shutil.rmtree(self.partial(key), ignore_errors=True)
            self._make_room(key, size, writing)
            os.utime(use)
            download = Download(self, key, version, (use, writing))
            locks.pop_all()
            return download

    def hold(self, key: str) -> bool:
        """Keeps a version from being removed until it is released as often as it was held. Returns False if it is not
        there any more."""
        try:
            use = self._take(key + _USE, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):  # it is being removed, or all of the cache was
            return False
        if not os.path.isdir(os.path.join(self._directory, key)):
            os.close(use)
            return False
        self._keep(key, use)
        return True

    def release(self, key: str) -> None:
        """Gives back what one ``hold``, ``find_or_begin`` or ``finish`` has taken."""
        with self._lock:
            held = self._held[key]
            held.count -= 1
            if held.count:
                return
            del self._held[key]
        os.utime(held.lock)
        os.close(held.lock)

    def evict(self, size: int) -> None:
        """Removes versions that nobody uses until ``size`` bytes of the disk are free again, or none is left."""
        with self._room(), ExitStack() as locks:
            on_disk = {key: self._size_on_disk(key) for key in self._sizes()}
            evicted = [(key, self._remove(key)) for key in self._unused(on_disk, size, locks)]
        for key, freed in evicted:
            self._on_evicted(key, freed)

    def partial(self, key: str) -> str:
        return os.path.join(self._directory, key + _PARTIAL)

    def publish(self, key: str, use: int) -> None:
        """Gives files their name once they are whole, and on the disk."""
        os.rename(self.partial(key), os.path.join(self._directory, key))
        sync_directory(self._directory)
        self._keep(key, use)

    def whole(self, key: str, version: str) -> str:
        return os.path.join(self._directory, key, version)

    def _take_writing(self, key: str, cancelled: Callable[[], bool]) -> int:
        while True:
            try:
                return self._take(key + _DOWNLOAD, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if cancelled():
                    raise ServingError(StatusCode.CANCELLED, "it is not wanted any more") from None
                time.sleep(LOOK_SECONDS)

    def _make_room(self, key: str, size: int, writing: int) -> None:
        """Removes versions until there is room for the new one, and makes its directory. Without room all stay."""
        with self._room(), ExitStack() as locks:
            held = self._sizes()
            held.pop(key, None)
            left = self._most - sum(held.values())
            going = self._unused(held, size - left, locks)
            left += sum(held[old] for old in going)
            if size > left:
                message = f"model_cache_bytes is {self._most}: {max(left, 0)} are left, and the files have {size}"
                raise ServingError(StatusCode.RESOURCE_EXHAUSTED, message)
            going += self._unused_for_disk(key, size, held, going, locks)
            evicted = [(old, self._remove(old)) for old in going]
            os.ftruncate(writing, 0)
            os.pwrite(writing, str(size).encode(), 0)
            os.makedirs(self.partial(key), 0o700, exist_ok=True)
        for old, freed in evicted:
            self._on_evicted(old, freed)

    def _unused_for_disk(
        self, key: str, size: int, held: Mapping[str, int], going: Collection[str], locks: ExitStack
    ) -> list[str]:
        """The versions that have to go beside ``going`` for the disk to take the new one. RESOURCE_EXHAUSTED if that
        does not suffice. The free room is told roughly: what others write there must not make it another reason."""
        needed = size - _size(self.partial(key))
        on_disk = {old: self._size_on_disk(old) for old in held}
        free = _free(self._directory)
        left = free + sum(on_disk[old] for old in going)
        more = self._unused(on_disk, needed - left, locks)
        if needed > left + sum(on_disk[old] for old in more):
            message = f"the disk of the cache has about {size_text(_rough(free))} free"
            raise ServingError(StatusCode.RESOURCE_EXHAUSTED, f"{message}, and the files need {size_text(needed)}")
        return more

    def _unused(self, held: Mapping[str, int], size: int, locks: ExitStack) -> list[str]:
        """The versions that were used least recently and have ``size`` bytes together, or all that nobody uses or
        writes. Their locks are taken."""
        found: list[str] = []
        for key in sorted(held, key=self._last_use):
            if size <= 0:
                break
            with suppress(BlockingIOError):
                locks.callback(os.close, self._take(key + _USE, fcntl.LOCK_EX | fcntl.LOCK_NB))
                found.append(key)
                size -= held[key]
        return found

    def _sizes(self) -> dict[str, int]:
        """Bytes of each version that is here or on its way. What else lies in the directory is not ours."""
        found: dict[str, int] = {}
        for entry in os.scandir(self._directory):
            key = entry.name.removesuffix(_PARTIAL).removesuffix(_GONE)
            if not _KEY.fullmatch(key) or not entry.is_dir(follow_symlinks=False):
                continue
            size = self._announced(key) if entry.name.endswith(_PARTIAL) else _size(entry.path)
            found[key] = found.get(key, 0) + size
        return found

    def _size_on_disk(self, key: str) -> int:
        return sum(_size(os.path.join(self._directory, key + end)) for end in ("", _PARTIAL, _GONE))

    def _announced(self, key: str) -> int:
        try:
            with open(self._path(key + _DOWNLOAD)) as file:
                text = file.read()
        except FileNotFoundError:
            return 0
        return int(text) if text.isdecimal() else 0

    def _last_use(self, key: str) -> float:
        try:
            return os.stat(self._path(key + _USE)).st_mtime
        except FileNotFoundError:
            return 0.0

    def _remove(self, key: str) -> int:
        """Removes a version, or the part of one; returns its bytes. The lock of its use is held alone."""
        size = self._size_on_disk(key)
        self._drop(key)
        shutil.rmtree(self.partial(key), ignore_errors=True)
        return size

    def _drop(self, key: str) -> None:
        """Removes a whole version. In one step it has no name any more, so that nobody finds a part of it."""
        gone = os.path.join(self._directory, key + _GONE)
        shutil.rmtree(gone, ignore_errors=True)
        with suppress(FileNotFoundError):
            os.rename(os.path.join(self._directory, key), gone)
            shutil.rmtree(gone, ignore_errors=True)

    def _keep(self, key: str, use: int) -> None:
        """Counts one more use of the version. The lock that was taken last is kept: the file of an earlier one is
        another if all of the cache was removed meanwhile."""
        os.utime(use)
        with self._lock:
            held = self._held.setdefault(key, _Held())
            held.count += 1
            earlier, held.lock = held.lock, use
        if earlier >= 0:
            os.close(earlier)

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


@dataclass(slots=True)
class _Held:
    """A version that this process uses: the descriptor of the lock that says so, and how often it is held."""

    lock: int = -1
    count: int = 0


class Download:
    """A version that is being written. Ends with ``finish``, ``leave`` or ``abort``. One thread at a time. Names have
    been checked."""

    def __init__(self, cache: FilesCache, key: str, version: str, locks: tuple[int, int]) -> None:
        """``locks``: the lock of its use, and the lock of its writing."""
        self._cache = cache
        self._key, self._version = key, version
        self._use, self._writing = locks
        self._hashes: dict[str, hashlib._Hash] = {}
        self._sizes: dict[str, int] = {}
        self._folders: set[str] = set()
        self.directory = os.path.join(cache.partial(key), version)
        os.makedirs(self.directory, 0o700, exist_ok=True)

    def written(self, name: str) -> int:
        """Bytes of the file so far."""
        return self._sizes.get(name, 0)

    def sha256(self, name: str) -> str:
        """The digest of what was written of the file."""
        return self._hashes.get(name, hashlib.sha256()).hexdigest()

    def keep_only(self, names: Collection[str]) -> None:
        """Removes what an earlier process has left of other files."""
        for folder, _, found in os.walk(self.directory):
            for name in found:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self.directory) not in names:
                    os.unlink(path)

    def resume(self, name: str, on_read: Callable[[int], object] = ignore) -> int:
        """Goes on with what an earlier process has left of the file; returns its bytes, 0 if there is nothing. They are
        hashed again; ``on_read`` gets the number of bytes of each piece, and may raise."""
        path = os.path.join(self.directory, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        digest, size = hashlib.sha256(), 0
        with open(descriptor, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                on_read(len(chunk))
        self._hashes[name], self._sizes[name] = digest, size
        return size

    def restart(self, name: str) -> None:
        """Drops what was written of the file."""
        self._hashes.pop(name, None)
        self._sizes.pop(name, None)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.directory, name))

    def write(self, name: str, chunk: bytes) -> None:
        """Appends to the file."""
        with self._open(name) as descriptor:
            view = memoryview(chunk)
            while view:
                view = view[os.write(descriptor, view) :]
        self._hashes.setdefault(name, hashlib.sha256()).update(chunk)
        self._sizes[name] = self.written(name) + len(chunk)

    def finish(self) -> str:
        """Keeps the version once everything was written and is right. Returns its directory, which is then held."""
        for folder, _, names in os.walk(self._cache.partial(self._key), topdown=False):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    sync_file(file)
            sync_directory(folder)
        self._cache.publish(self._key, self._use)
        os.close(self._writing)
        return self._cache.whole(self._key, self._version)

    def leave(self) -> None:
        """Gives the locks back. What was written stays for whoever resumes it, until its room is needed."""
        os.close(self._writing)
        os.close(self._use)

    def abort(self) -> None:
        """Drops what was written."""
        shutil.rmtree(self._cache.partial(self._key), ignore_errors=True)
        self.leave()

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


def _check_locks(directory: str) -> None:
    """A disk over a network may take locks and keep them from nobody."""
    with tempfile.NamedTemporaryFile(dir=directory) as file, open(file.name, "r+b") as second:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        except OSError as error:
            raise failed_precondition(f"model_cache_dir: its disk takes no locks: {error.strerror}") from None
    raise failed_precondition("model_cache_dir: its disk does not keep locks")


def _size(directory: str) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _free(directory: str) -> int:
    """The bytes of the disk that this user may still write."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def _rough(count: int) -> int:
    """The number with its three highest bits."""
    unit = 1 << max(count.bit_length() - 3, 0)
    return count // unit * unit
