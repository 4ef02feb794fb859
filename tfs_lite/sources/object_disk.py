"""A storage as a disk: base paths and versions are URLs, and the files that are opened come from the cache.

    stamp(base)              asks the storage: one LIST, and what a config names beside the versions, if it has changed
    list_directory, stat_tree, every other stamp       answer from that listing
    open                     a manifest, a config, the end of an archive: from the cache if it is there
    verify(base/3)           fetches version 3 into the cache

A source begins each look with the stamp of the base path, so a look is one LIST. A base path with more objects than one
answer holds, or with one whose name cannot be that of a file, is listed level by level: a LIST for the first level, and
one for each version that is looked at. An error of the storage changes nothing that is known.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, BinaryIO

from tfs_lite.config.text import MAX_FILE_BYTES
from tfs_lite.core.clock import Clock
from tfs_lite.core.manifest import MAX_FILES, MODEL_SETTINGS_FILES, Manifest, Tree
from tfs_lite.core.servable import parse_version
from tfs_lite.core.status import StatusCode, printable
from tfs_lite.sources.disk import DirectoryEntry, Stamp
from tfs_lite.sources.object_cache import CachedVersions, FetchedVersion
from tfs_lite.sources.object_listing import (
    BaseListing,
    ListedVersion,
    arrange,
    below,
    flat_or_deep,
    listed_version,
    number_of,
    still_there,
)
from tfs_lite.storage.fetch import Fetcher, FetchProgress, RemoteVersion, with_digests
from tfs_lite.storage.files_cache import FilesCache
from tfs_lite.storage.object_errors import NO_NAME, UNREADABLE
from tfs_lite.storage.store import READ_SECONDS, RemoteFile, Storage, StorageCondition, StorageError, until
from tfs_lite.storage.url import start_of

logger = logging.getLogger(__name__)
REPEAT_SECONDS = 30.0
"""The most seconds for which an error that a while may cure is repeated without another request."""
MOST_FAILURES = 3
"""Base paths that fail one after the other, after which the place as a whole counts as silent."""
NO_VERSION = "it holds no version (objects below a prefix whose name is a number)"
EMPTY_NOW = f"{NO_VERSION}, or something between answers in its place"
PASSED_OVER = (
    "the key %s below %s cannot be that of a file; it is passed over, with all names there that sort before 0: rename "
    "or delete it, listings cost more requests until then"
)
MAX_CLAIM_BYTES = 4096
_READ_BYTES = 64 << 10
_REMOTE, _CACHED = os.makedev(0, 1), os.makedev(8, 1)
"""The devices of versions. The clock of the storage may not be ours; what is in the cache was quiet before."""


class _Base:
    """What is known of a base path. The disk's lock guards the fields; the listing is replaced as a whole."""

    __slots__ = (
        "asked",
        "condition",
        "error",
        "error_until",
        "is_deep",
        "is_offline",
        "listing",
        "passed_over",
        "was_good",
    )

    def __init__(self) -> None:
        self.listing: BaseListing | None = None
        self.asked = 0  # requests for a listing so far: the answer to an older one does not replace a newer one
        self.error: StorageError | None = None  # of the last one
        self.error_until = 0.0  # until then it is repeated
        self.is_offline = False  # the listing is one of an earlier process, which stands in for the error
        self.is_deep = False
        self.passed_over = ""  # the key, in quotes, without which the last one was made
        self.was_good = False  # this process has had a listing
        self.condition = StorageCondition()


class _Silence:
    """Holds requests back when several base paths have failed one after the other: then one of them is tried in each
    interval, each in its turn, because every try may take as long as a request may. The disk's lock guards it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0
        self._error: StorageError | None = None
        self._failed: dict[str, None] = {}  # in the order of their last try
        self._passed: set[str] = set()  # those of them that have let another one try since the last try

    def refusal(self, base: str, bases: Set[str], now: float) -> StorageError | None:
        """The error that takes the place of a request; None: it may be tried. First those of ``bases`` that have not
        failed yet, then the one whose try was first. One that has let others go first, and is asked again, is tried."""
        if len(self._failed) < MOST_FAILURES or self._seconds <= 0:
            return None
        if now < self._until:
            return self._error
        is_next = bases <= self._failed.keys() and base == next(iter(self._failed))
        if is_next or base not in self._failed or base in self._passed:
            return None
        self._passed.add(base)
        return self._error

    def note(self, base: str, error: StorageError | None, now: float) -> None:
        """A request for the base path has ended."""
        self._passed.clear()
        if error is None or not error.is_transient:
            self._failed.clear()
            return
        self._failed.pop(base, None)
        self._failed[base] = None
        self._error, self._until = error, now + self._seconds


class ObjectDisk:
    """The base paths of one place. Implements ``Disk``; paths are URLs. Threads: any. Errors are StorageError, and
    FileNotFoundError for what the last listing does not have."""

    fetches = True

    def __init__(
        self,
        storage: Storage,
        place: str,
        cache: FilesCache,
        fetcher: Fetcher,
        clock: Clock,
        interval: float | None = 60.0,
    ) -> None:
        """``place``: that of every base path. ``interval``: seconds between two polls; None or 0: they come when they
        are asked for."""
        self._storage = storage
        self._versions = CachedVersions(storage, place, cache, clock)
        self._fetcher = fetcher
        self._clock = clock
        self._interval = max(interval or 0.0, 0.0)
        self._repeat = min(REPEAT_SECONDS, self._interval / 2)
        self._lock = threading.Lock()  # guards the fields below
        self._bases: dict[str, _Base] = {}
        self._silence = _Silence(self._repeat)
        self._running: dict[str, str] = {}  # URL of a version that is being fetched -> key

    # What the owner asks.

    def set_bases(self, bases: Collection[str]) -> None:
        """These are the base paths now; what is known of others is forgotten."""
        with self._lock:
            self._bases = {base: self._bases.get(base) or _Base() for base in bases}
            known = dict(self._bases)
        self._versions.forget(lambda url: _base_of(url, known) is None)

    def fetched(self, path: str) -> FetchedVersion | None:
        """The version at ``path`` as it was fetched last, if all its files are still in the cache."""
        return self._versions.fetched(path)

    def local(self, path: str) -> str | None:
        """The directory of :meth:`fetched` in the cache."""
        found = self.fetched(path)
        return found.directory if found is not None else None

    def condition(self, base: str) -> StorageCondition | None:
        """The state of the storage as far as this base path shows it; None if it was never asked for."""
        with self._lock:
            found = self._bases.get(base)
            return found.condition if found is not None and found.condition != StorageCondition() else None

    def fetching(self, base: str) -> dict[str, FetchProgress]:
        """The fetches of versions below the base path that are under way, by the names of the directories."""
        with self._lock:
            keys = {path: key for path, key in self._running.items() if os.path.dirname(path) == base}
        found = {os.path.basename(path): self._fetcher.progress(key) for path, key in keys.items()}
        return {name: progress for name, progress in found.items() if progress is not None}

    # What a source asks.

    def identity(self, path: str) -> str:
        return path

    def device(self, path: str) -> int:
        return _REMOTE

    def stamp(self, path: str) -> Stamp:
        base, inner = self._split(path)
        if not inner:
            self._poll(base)
            return (_REMOTE, self._listing(base).state)
        name, _, rest = inner.partition("/")
        listing = self._listing(base)
        if name in listing.versions:
            version = self._version(base, name)
            if not rest:
                return (_REMOTE, number_of(repr((version.signature, version.configs, version.problem, version.claim))))
            file = next((file for file in version.files if file.path == rest), None)
        else:
            file = listing.beside.get(inner)
        return (_REMOTE, file.size, number_of(file.tag)) if file is not None else (_REMOTE, 0)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        base, inner = self._split(path)
        listing = self._listing(base)
        if not inner:
            names = {*listing.versions, *listing.folders}
            files = [entry for entry in _entries(listing.beside, "") if not entry.is_directory]
            return [DirectoryEntry(name, True) for name in names] + files
        name, _, rest = inner.partition("/")
        if name in listing.versions:
            return _entries({file.path: file for file in self._version(base, name).files}, rest)
        return _entries(self._folder(base, name).beside, inner)

    def stat_tree(self, path: str, max_files: int = MAX_FILES) -> Tree:
        version = self._version(os.path.dirname(path), os.path.basename(path))
        if version.error is not None:
            raise version.error
        if version.problem:
            raise StorageError(StatusCode.FAILED_PRECONDITION, version.problem)
        if version.claim is not None:
            raise StorageError(StatusCode.UNAVAILABLE, self._claim(path, version.claim))
        stats, newest = version.stats[:max_files], version.newest_ns
        overflow = len(version.files) > max_files
        if self._versions.current(path, version) is not None:
            return Tree(stats, 0, overflow, device=_CACHED)
        return Tree(stats, newest, overflow, newest, _REMOTE, is_here=False)

    def open(self, path: str) -> BinaryIO:
        base, inner = self._split(path)
        name, _, rest = inner.partition("/")
        listing = self._listing(base)
        if name in listing.versions:
            version = self._version(base, name)
            known = self._versions.current(os.path.join(base, name), version)
            if known is not None and rest not in MODEL_SETTINGS_FILES:
                return open(os.path.join(known.directory, rest), "rb")
            file = next((file for file in version.files if file.path == rest), None)
        else:
            file = self._folder(base, name).beside.get(inner)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if os.path.basename(path) in MODEL_SETTINGS_FILES and file.size <= MAX_FILE_BYTES:
            return io.BytesIO(self._versions.config(base, inner, file))
        reader = _RemoteReader(self._storage, self._versions.in_place(base, inner), file, self._clock)
        return io.BufferedReader(reader, _READ_BYTES)

    def is_ready(self, path: str) -> bool:
        found = self.fetched(path)  # first, so that the objects of a deep listing need not be listed without it
        return found is not None and found.signature == self._version(*os.path.split(path)).signature

    def verify(
        self,
        path: str,
        tree: Tree,
        manifest: Manifest | None,
        cancelled: Callable[[], bool],
        on_read: Callable[[int], None],
    ) -> str:
        """Fetches the version, and what its config names beside it. StorageError as :meth:`Fetcher.fetch` raises it;
        files whose digests are wrong stay so until their tags change."""
        base, name = os.path.dirname(path), os.path.basename(path)
        listing = self._last_listing(base)
        listed = listing.versions.get(name)
        if listed is None or listed.stats != tree.files:
            raise StorageError(StatusCode.ABORTED, "its files were changed before they were fetched")
        files = listed.files if manifest is None else with_digests(listed.files, manifest)
        version = RemoteVersion(base, name, self._versions.in_place(base, name), files)
        with self._lock:
            self._running[path] = version.key
        try:
            directory = self._fetcher.fetch(version, cancelled, on_read)
            self._versions.bring(base, listing, name, listed, directory, anew=True)
        except StorageError as error:
            if error.code is StatusCode.DATA_LOSS:
                return error.sentence
            raise
        finally:
            with self._lock:
                self._running.pop(path, None)
                state = self._bases.get(base)
                if state is not None and not state.is_offline:
                    state.error_until = 0.0  # the look that follows asks the storage
        self._versions.add(path, FetchedVersion(version.key, directory, listed.signature))
        with self._lock:
            last_good = self._state(base).condition.last_good if self._state(base).was_good else None
        if last_good is not None:
            self._versions.save(base, listing, last_good)
        return ""

    # Listings.

    def _poll(self, base: str) -> None:
        """Lists the base path, unless an error is repeated, and brings what lies beside fetched versions."""
        now, wall = self._clock.monotonic(), self._clock.time()
        with self._lock:
            state = self._state(base)
            refusal = state.error if now < state.error_until else self._silence.refusal(base, self._bases.keys(), now)
            if refusal is None:
                state.asked += 1
            number, before = state.asked, state.listing if state.was_good else None
        if refusal is not None:
            self._fail(base, state, refusal, wall)
            return
        try:
            listing = still_there(before, self._list(base, state), now, self._interval / 2)
            if before is None:
                self._versions.find(base, self._versions.saved(base)[0])
            for name, version in listing.versions.items():
                if version is not None:
                    self._versions.bring_again(base, listing, name, version)
        except StorageError as error:
            if self._note(base, state, number, error):
                self._fail(base, state, error, wall)
            return
        if self._note(base, state, number, None):
            with self._lock:
                state.listing, state.was_good, state.is_offline = listing, True, False
                state.condition = StorageCondition(last_good=wall)
            self._versions.forget(lambda url: _is_of_other_version(url, base, listing))
            self._versions.save(base, listing, wall)

    def _note(self, base: str, state: _Base, number: int, error: StorageError | None) -> bool:
        """A request has ended; False if a later one has begun, whose answer is to count."""
        now = self._clock.monotonic()
        with self._lock:
            self._silence.note(base, error, now)
            if number < state.asked:
                return False
            state.error = error
            state.error_until = now + self._repeat if error is not None and error.is_transient else 0.0
            if error is not None:
                state.condition = replace(state.condition, tries=state.condition.tries + 1)
            return True

    def _list(self, base: str, state: _Base) -> BaseListing:
        """NOT_FOUND for one without a version: silence orders nothing."""
        prefix = self._versions.in_place(base, "")
        listing = None
        if not state.is_deep:
            flat = self._storage.files(prefix)
            state.is_deep = flat_or_deep(flat)
            listing = None if state.is_deep else arrange(prefix, flat.files)
        if listing is None:
            children = self._storage.children(prefix)
            if children.passed_over != state.passed_over:
                state.passed_over = children.passed_over
                if children.passed_over:
                    logger.warning(PASSED_OVER, children.passed_over, base)
            listing = arrange(prefix, children.files, children.folders)
        if not listing.versions:
            raise StorageError(StatusCode.NOT_FOUND, NO_VERSION)
        return listing

    def _fail(self, base: str, state: _Base, error: StorageError, wall: float) -> None:
        """A listing has failed. Until this process has had a good one, that of an earlier process stands in for it, as
        far as its versions are in the cache. Only a storage that says that the bucket is not there is believed: an
        answer without versions may be that of something between, such as a page to sign in."""
        offline, at = None, state.condition.last_good
        is_empty = error.sentence == NO_VERSION
        if not state.was_good and (is_empty or error.code is not StatusCode.NOT_FOUND):
            offline, at = self._offline(base)
            if offline is not None and is_empty:
                error = StorageError(StatusCode.NOT_FOUND, EMPTY_NOW)
        with self._lock:
            state.error, state.is_offline = error, offline is not None
            state.listing = offline or state.listing
            state.condition = replace(
                state.condition,
                last_good=at,
                since=state.condition.since or wall,
                sentence=error.sentence,
                from_cache=offline is not None,
            )
        if offline is None:
            raise error

    def _offline(self, base: str) -> tuple[BaseListing | None, float | None]:
        """The versions of the saved listing that are in the cache, and its time; None if there are none."""
        saved, at = self._versions.saved(base)
        self._versions.find(base, saved)
        known, found = saved.listing, dict[str, ListedVersion | None]()
        for name, version in known.versions.items():
            if version is not None and self._versions.current(os.path.join(base, name), version) is not None:
                found[name] = version
        return (replace(known, versions=found), at) if found else (None, None)

    def _last_listing(self, base: str) -> BaseListing:
        """The last listing that was good, whatever has become of later ones."""
        with self._lock:
            found = self._state(base).listing
        return found if found is not None else self._listing(base)

    def _listing(self, base: str) -> BaseListing:
        with self._lock:
            state = self._state(base)
            listing, error = state.listing, None if state.is_offline else state.error
        if error is not None:
            raise error
        if listing is None:
            self._poll(base)
            return self._listing(base)
        return listing

    def _version(self, base: str, name: str) -> ListedVersion:
        """A version of the last listing, whose objects are listed now if it is a deep one."""
        listing = self._listing(base)
        if name not in listing.versions:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.join(base, name))
        version = listing.versions[name]
        if version is None:
            version = self._deep_version(base, name, listing)
            try:
                self._versions.bring_again(base, listing, name, version)
            except StorageError as error:
                version = ListedVersion(error=error)
            with self._lock:
                state = self._state(base)
                if state.listing is not None and name in state.listing.versions:
                    versions = {**state.listing.versions, name: version}
                    state.listing = replace(state.listing, versions=versions)
        return version

    def _deep_version(self, base: str, name: str, listing: BaseListing) -> ListedVersion:
        silent = next((v.error for v in listing.versions.values() if v and v.error and v.error.is_transient), None)
        if silent is not None:
            return ListedVersion(error=silent)
        prefix = self._versions.in_place(base, name)
        try:
            flat = self._storage.files(prefix)
            found = flat.files if flat.is_whole else tuple(self._walk(prefix))
        except StorageError as error:
            return ListedVersion(error=error)
        return listed_version(below(prefix, file) for file in found)

    def _walk(self, prefix: str) -> Iterator[RemoteFile]:
        """More than one answer holds, level by level; a few more than a version may have are enough."""
        pending, seen = [prefix], 0
        while pending and seen <= 2 * MAX_FILES:
            at = pending.pop()
            children = self._storage.children(at)
            if children.passed_over:  # files of the version may be left out with it
                sentence = f"{NO_NAME}: {children.passed_over} below {at[len(prefix) + 1 :] or 'the version'}"
                raise StorageError(StatusCode.FAILED_PRECONDITION, sentence)
            pending.extend(f"{at}/{folder}" for folder in children.folders)
            seen += len(children.files)
            yield from children.files

    def _folder(self, base: str, name: str) -> BaseListing:
        """The listing with the files of a folder that is no version."""
        listing = self._listing(base)
        if name in listing.folders - listing.read:
            prefix = self._versions.in_place(base, "")
            files = (below(prefix, file) for file in self._storage.children(self._versions.in_place(base, name)).files)
            beside = {**listing.beside, **{file.path: file for file in files}}
            listing = replace(listing, beside=beside, read=listing.read | {name})
            with self._lock:
                self._state(base).listing = listing
        return listing

    def _claim(self, path: str, claim: RemoteFile) -> str:
        """Who publishes the version, and since when."""
        base, name = os.path.dirname(path), os.path.basename(path)
        try:
            if claim.size > MAX_CLAIM_BYTES:
                raise ValueError("no claim of ours")
            found = json.loads(self._versions.config(base, f"{name}/{claim.path}", claim))
            return f"being published since {printable(str(found['time']))} by {printable(str(found['host']))}"
        except (StorageError, ValueError, LookupError, TypeError, RecursionError):
            return "being published"

    # Paths.

    def _split(self, path: str) -> tuple[str, str]:
        """The base path, and the path below it."""
        with self._lock:
            base = _base_of(path, self._bases)
            if base is None:
                base = path
                self._bases[path] = _Base()
        return base, path[len(base) + 1 :]

    def _state(self, base: str) -> _Base:
        """Called with the lock held."""
        return self._bases.setdefault(base, _Base())


class _RemoteReader(io.RawIOBase):
    """An object that is read at any position, each time by a request, all of them within :data:`READ_SECONDS`."""

    def __init__(self, storage: Storage, path: str, file: RemoteFile, clock: Clock) -> None:
        super().__init__()
        self._storage, self._path, self._file = storage, path, file
        self._now, self._deadline = clock.monotonic, clock.monotonic() + READ_SECONDS
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view, filled = memoryview(buffer), 0
        wanted = min(len(view), max(self._file.size - self._at, 0))
        if wanted:
            body = _generator(self._storage.read(self._path, self._at, self._file.tag))
            with contextlib.closing(body):
                for piece in until(self._deadline, self._now, body):
                    taken = piece[: wanted - filled]
                    view[filled : filled + len(taken)] = taken
                    filled += len(taken)
                    if filled == wanted:
                        break
        if filled < wanted:
            raise StorageError(StatusCode.UNAVAILABLE, UNREADABLE, is_transient=True)
        self._at += filled
        return filled


def _generator(pieces: Iterator[bytes]) -> Generator[bytes]:
    yield from pieces


def _base_of(path: str, bases: Collection[str]) -> str | None:
    """The nearest base path that this is, or is in."""
    while path not in bases:
        path, slash, _ = path.rpartition("/")
        if not slash:
            return None
    return path


def _is_of_other_version(url: str, base: str, listing: BaseListing) -> bool:
    """Whether the URL is that of a version, or of a file in one, that the listing does not have."""
    if not url.startswith(f"{base}/"):
        return False
    name = url[len(base) + 1 :].partition("/")[0]
    return parse_version(name) is not None and name not in listing.versions


def _entries(files: Mapping[str, RemoteFile], folder: str) -> list[DirectoryEntry]:
    """The children of a folder."""
    start, found = start_of(folder), dict[str, DirectoryEntry]()
    for path, file in files.items():
        if path.startswith(start):
            name, slash, _ = path[len(start) :].partition("/")
            found[name] = DirectoryEntry(name, bool(slash), "" if slash else f"{file.size} {file.tag}")
    return list(found.values())
