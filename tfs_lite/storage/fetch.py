"""Brings a version from a storage into the files cache of this machine.

    listing -> wanted_files -> RemoteVersion -> key ─┐
                                                     ├-> Fetcher.fetch -> DIR/KEY/VERSION
    Storage.read, with If-Match, from what is there ─┘

A fetch goes on where an earlier one has stopped, also after this process or another was killed. What is fetched is the
state that was listed: each request names the tag, and digests are checked where the manifest or the hub knows them.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock, SystemClock
from tfs_lite.core.manifest import MANIFEST_NAME, MAX_FILES, MODEL_SETTINGS_FILES, Manifest, is_looked_at
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.storage.files_cache import LOOK_SECONDS, Download, FilesCache, never
from tfs_lite.storage.store import RemoteFile, Storage, StorageError, is_transient
from tfs_lite.storage.url import check_names, folders_of, join_path

CLAIM_NAME = "tfs_lite.uploading"
"""The file of a version that says who is publishing it."""
SIZES_NAME = ".sizes.json"
"""The file beside a version in the cache that lists the sizes of what its key stands for."""
ATTEMPTS = 8
"""Attempts without progress after which a fetch waits for the next poll."""
PROGRESS = 256 << 10
"""Bytes that make an attempt one with progress: the count of attempts and the waits begin anew."""
MOST_WAIT = 60
"""Seconds between two attempts at most, without the jitter of one second."""
_FORMAT = 1


def wanted_files(files: Iterable[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The files of a version, sorted by path, out of the objects below its directory; their paths are those inside it.
    Hidden files, caches, logs, the claim of a publisher and markers of folders are not among them. INVALID_ARGUMENT if
    a path cannot be that of a file, FAILED_PRECONDITION if there are too many."""
    found = [file for file in files if is_looked_at(file.path) and file.path != CLAIM_NAME]
    folders = folders_of(file.path for file in found)
    found = [file for file in found if file.size or not (file.path in folders or file.path.endswith("/"))]
    if len(found) > MAX_FILES:
        raise failed_precondition(f"too many files: more than {MAX_FILES}")
    check_names([file.path for file in found])
    return tuple(sorted(found, key=lambda file: file.path))


def with_digests(files: Sequence[RemoteFile], manifest: Manifest) -> tuple[RemoteFile, ...]:
    """The files with the digests that the manifest lists. Configs have none: they may be changed after publishing."""
    listed = manifest.files
    return tuple(
        replace(file, sha256=listed[file.path].sha256)
        if file.path in listed and file.path not in MODEL_SETTINGS_FILES
        else file
        for file in files
    )


def version_key(base: str, directory: str, files: Iterable[RemoteFile]) -> str:
    """The name of these files in the cache: 32 hexadecimal digits. Equal for files that were uploaded again with the
    same digests; configs and the manifest do not change it."""
    digest = hashlib.sha256(f"{_FORMAT}\0{base}\0{directory}\n".encode(errors="surrogateescape"))
    for file in files:
        if _is_in_key(file.path):
            line = f"{file.path}\0{file.size}\0{file.sha256 or file.tag}\n"
            digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _is_in_key(path: str) -> bool:
    return path not in MODEL_SETTINGS_FILES and path != MANIFEST_NAME


@dataclass(frozen=True, slots=True)
class RemoteVersion:
    """A version as it was listed. ``base``: the canonical URL of the base path. ``directory``: the name of its own
    directory, such as ``00000123``. ``prefix``: the path of that directory in its place. ``files``: sorted, by their
    paths inside the directory. ``key``: its name in the cache."""

    base: str
    directory: str
    prefix: str
    files: tuple[RemoteFile, ...]
    key: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", version_key(self.base, self.directory, self.files))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def has_all_files(directory: str, key: str) -> bool:
    """Whether a fetched version has each file of its key in the cache with its size; ``is_whole`` of the cache."""
    try:
        with open(os.path.join(os.path.dirname(directory), SIZES_NAME), encoding="utf-8") as file:
            listed = json.load(file)
        return os.path.isdir(directory) and all(
            os.stat(os.path.join(directory, name)).st_size == size for name, size in listed[key].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


class FetchStage(enum.Enum):
    """What has happened to a fetch."""

    BEGUN = "begun"
    FETCHED = "fetched"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FetchEvent:
    """A fetch has begun or ended. ``fetched_bytes``: what came from the storage, without what was there before.
    ``seconds``: since it has begun. ``code`` and ``sentence``: why it has failed; CANCELLED is no fault."""

    stage: FetchStage
    version: RemoteVersion
    attempts: int = 0
    fetched_bytes: int = 0
    seconds: float = 0.0
    code: StatusCode = StatusCode.OK
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """Where a fetch is now. ``done`` of ``size`` bytes are in the cache, ``fetched`` of them came in the ``seconds``
    since it has begun. ``attempt`` counts from 1; ``sentence``: why the last one failed, at ``failed_at`` in seconds
    since the epoch. ``waits``: another fetch of this machine has the version."""

    size: int
    done: int = 0
    fetched: int = 0
    seconds: float = 0.0
    attempt: int = 0
    sentence: str = ""
    failed_at: float = 0.0
    waits: bool = False


class Fetcher:
    """Fetches versions of one place into the cache. Threads: any, each with a fetch of its own."""

    def __init__(
        self,
        storage: Storage,
        cache: FilesCache,
        stop: threading.Event,
        on_event: Callable[[FetchEvent], object] = ignore,
        sleep: Callable[[float], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``stop`` ends every fetch: at its next piece, or at once if it waits for its next attempt. ``on_event`` is
        called on the thread of the fetch, and raises nothing. ``sleep`` takes the place of waiting for ``stop``."""
        self._storage = storage
        self._cache = cache
        self._stop = stop
        self._on_event = on_event
        self._sleep = sleep
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()  # guards _running
        self._running: dict[str, FetchProgress | _Fetch] = {}

    def fetch(
        self, version: RemoteVersion, cancelled: Callable[[], bool] = never, on_read: Callable[[int], object] = ignore
    ) -> str:
        """The directory of the version in the cache, at once if it is there, else when all of it is. ``cancelled`` is
        asked with every piece, and twice a second while it waits. ``on_read`` gets the bytes of each piece, also of
        what was there before. Nothing is held afterwards.

        Raises StorageError: ABORTED, the version was changed meanwhile; DATA_LOSS, its files are not what the manifest
        says; RESOURCE_EXHAUSTED, no room; CANCELLED; or the error of the last attempt."""

        def unwanted() -> bool:
            return self._stop.is_set() or cancelled()

        def still_waits() -> bool:
            with self._lock:
                self._running.setdefault(version.key, waiting)
            return unwanted()

        waiting = FetchProgress(version.size, waits=True)
        try:
            found = self._cache.find_or_begin(
                version.key, version.directory, version.size, resume=True, cancelled=still_waits
            )
        except (ServingError, OSError) as error:
            failed = self._failure(error, version.size)
            if failed.code is not StatusCode.CANCELLED:
                self._on_event(_failed(FetchEvent(FetchStage.FAILED, version), failed))
            raise failed from None
        finally:
            self._forget(version.key, waiting)
        if isinstance(found, Download):
            found = self._run(_Fetch(self._storage, found, version, self._clock, unwanted, on_read))
        self._cache.release(version.key)
        return found

    def progress(self, key: str) -> FetchProgress | None:
        """Where the fetch with this key is; None if none is running."""
        with self._lock:
            found = self._running.get(key)
        return found.progress if isinstance(found, _Fetch) else found

    def _run(self, fetch: _Fetch) -> str:
        with self._lock:
            self._running[fetch.version.key] = fetch
        self._on_event(FetchEvent(FetchStage.BEGUN, fetch.version))
        try:
            directory = fetch.run(self._sleep or _sleep_until(self._stop))
        except OSError as error:
            failed = self._failure(error, fetch.version.size)
            self._on_event(_failed(fetch.event(FetchStage.FAILED), failed))
            raise failed from None
        finally:
            self._forget(fetch.version.key, fetch)
        self._on_event(fetch.event(FetchStage.FETCHED))
        return directory

    def _forget(self, key: str, entry: FetchProgress | _Fetch) -> None:
        with self._lock:
            if self._running.get(key) is entry:
                del self._running[key]

    def _failure(self, error: ServingError | OSError, size: int) -> StorageError:
        """The error of a fetch. A full disk gets room for the next one: ``size`` bytes of what nobody uses go."""
        if isinstance(error, StorageError):
            return error
        if isinstance(error, ServingError):
            return StorageError(error.code, str(error))
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            with suppress(OSError):
                self._cache.evict(size)
            return StorageError(StatusCode.RESOURCE_EXHAUSTED, "the disk of the cache is full")
        return StorageError(
            StatusCode.FAILED_PRECONDITION, f"the directory of the cache: {error.strerror or type(error).__name__}"
        )


class _Fetch:
    """One version on its way. One thread runs it; any thread may ask for its progress."""

    def __init__(
        self,
        storage: Storage,
        download: Download,
        version: RemoteVersion,
        clock: Clock,
        cancelled: Callable[[], bool],
        on_read: Callable[[int], object],
    ) -> None:
        self.version = version
        self._storage = storage
        self._download = download
        self._clock = clock
        self._cancelled = cancelled
        self._on_read = on_read
        self._begun = clock.monotonic()
        self._left = sorted(version.files, key=lambda file: (-file.size, file.path))
        self._resumed: set[str] = set()
        self._done = self._fetched = self._attempts = 0
        self._last_failure = ("", 0.0)

    @property
    def progress(self) -> FetchProgress:
        sentence, failed_at = self._last_failure
        seconds = self._clock.monotonic() - self._begun
        return FetchProgress(self.version.size, self._done, self._fetched, seconds, self._attempts, sentence, failed_at)

    def event(self, stage: FetchStage) -> FetchEvent:
        seconds = self._clock.monotonic() - self._begun
        return FetchEvent(stage, self.version, self._attempts, self._fetched, seconds)

    def run(self, sleep: Callable[[float], object]) -> str:
        """The directory of the version, which is then held. What was written stays after an error of the storage; after
        one of the disk it goes."""
        try:
            self._download.keep_only({file.path for file in self.version.files})
            while not self._attempt_until_progress(sleep):
                pass
            self._write_sizes()
            return self._download.finish()
        except StorageError:
            self._download.leave()
            raise
        except OSError:
            self._download.abort()
            raise
        except BaseException:
            self._download.leave()
            raise

    def _attempt_until_progress(self, sleep: Callable[[float], object]) -> bool:
        """Tries until an attempt brings everything (True) or at least something (False). Raises the error of the last
        attempt, or of one that no repetition mends."""
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

        attempts = Retrying(
            sleep=lambda seconds: self._pause(seconds, sleep),
            retry=retry_if_exception(is_transient),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential_jitter(max=MOST_WAIT),
            reraise=True,
        )
        try:
            return attempts(self._attempt)
        except StorageError as error:
            raise _explained(error) from None

    def _pause(self, seconds: float, sleep: Callable[[float], object]) -> None:
        """Waits for the next attempt, and no longer than anybody wants the version."""
        while seconds > 0 and not self._cancelled():
            step = min(seconds, LOOK_SECONDS)
            sleep(step)
            seconds -= step

    def _attempt(self) -> bool:
        """True: all is there. False: the attempt has failed, but brought something."""
        self._check_wanted()
        self._attempts += 1
        before = self._fetched
        try:
            while self._left:
                self._bring(self._left[0])
                del self._left[0]
        except StorageError as error:
            if not error.is_transient:
                raise
            self._last_failure = (error.sentence, self._clock.time())
            if self._fetched - before < PROGRESS:
                raise
            return False
        return True

    def _bring(self, file: RemoteFile) -> None:
        """Goes on with a file until it is whole. What an earlier process has left of one may be damaged: a wrong digest
        counts against the storage only if all of the file came from there now."""
        download = self._download
        self._resume(file)
        while True:
            if download.written(file.path) < file.size:
                self._read(file)
            elif not file.size:
                download.write(file.path, b"")
            if not file.sha256 or download.sha256(file.path) == file.sha256:
                return
            self._restart(file)
            if file.path not in self._resumed:
                lists = "the manifest lists" if self._has_manifest() else "is listed"
                raise StorageError(StatusCode.DATA_LOSS, f"{file.path} does not have the sha256 digest that {lists}")
            self._resumed.discard(file.path)

    def _resume(self, file: RemoteFile) -> None:
        """Takes over what an earlier process has left, once. The key does not tell configs and manifests apart, so they
        are fetched anew."""
        download = self._download
        if download.written(file.path):
            return
        if not _is_in_key(file.path):
            download.restart(file.path)
        elif download.resume(file.path, self._count) > file.size:
            self._restart(file)
        elif download.written(file.path):
            self._resumed.add(file.path)

    def _read(self, file: RemoteFile) -> None:
        """Appends what is missing. UNAVAILABLE if the body ends early, ABORTED if the file is not the listed one."""
        name, download = file.path, self._download
        try:
            for chunk in self._storage.read(join_path(self.version.prefix, name), download.written(name), file.tag):
                if download.written(name) + len(chunk) > file.size:
                    raise StorageError(StatusCode.ABORTED, "it is longer than listed")
                download.write(name, chunk)
                self._fetched += len(chunk)
                self._count(len(chunk))
        except StorageError as error:
            if error.code in (StatusCode.ABORTED, StatusCode.NOT_FOUND):
                self._restart(file)
                raise StorageError(StatusCode.ABORTED, f"{name} was changed while it was fetched") from None
            raise
        if download.written(name) < file.size:
            raise StorageError(StatusCode.UNAVAILABLE, "the storage ends its answers early", is_transient=True)

    def _restart(self, file: RemoteFile) -> None:
        self._done -= self._download.written(file.path)
        self._download.restart(file.path)

    def _count(self, size: int) -> None:
        self._done += size
        self._on_read(size)
        self._check_wanted()

    def _check_wanted(self) -> None:
        if self._cancelled():
            raise StorageError(StatusCode.CANCELLED, "the fetch was cancelled")

    def _has_manifest(self) -> bool:
        return any(file.path == MANIFEST_NAME for file in self.version.files)

    def _write_sizes(self) -> None:
        sizes = {file.path: file.size for file in self.version.files if _is_in_key(file.path)}
        with open(os.path.join(os.path.dirname(self._download.directory), SIZES_NAME), "w", encoding="utf-8") as file:
            json.dump({self.version.key: sizes}, file)


def _sleep_until(stop: threading.Event) -> Callable[[float], object]:
    from tenacity import sleep_using_event

    return sleep_using_event(stop)


def _explained(error: StorageError) -> StorageError:
    """The error of the last attempt as the end of a fetch."""
    if error.is_transient:
        sentence = f"{error.sentence}; tried {ATTEMPTS} times, again with the next poll"
    elif error.code in (StatusCode.ABORTED, StatusCode.DATA_LOSS, StatusCode.CANCELLED):
        return error
    else:
        sentence = error.sentence
    return StorageError(error.code, f"its files cannot be fetched: {sentence}", is_transient=error.is_transient)


def _failed(event: FetchEvent, error: StorageError) -> FetchEvent:
    return replace(event, code=error.code, sentence=error.sentence)
