"""The versions of a place that are on this machine: which were fetched, the files beside them, and the notes from which
a server starts without the storage.

    DIR/KEY/VERSION/            a version, as the cache of files keeps it
    DIR/KEY/config.pbtxt, ...   the config beside the versions, and what it names there (labels, the data of a warm-up)
    DIR/KEY/.beside.json        the tags of these
    DIR/bases/HASH.json         the last good listing of a base path, as far as its versions were fetched; its time is
                                that of the last listing. The same bucket name at two endpoints is two base paths
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tfs_lite.config.text import MAX_FILE_BYTES
from tfs_lite.core.clock import Clock
from tfs_lite.core.manifest import FILES_ABOUT_LOADS_BESIDE, MAX_FILES, MODEL_SETTINGS_FILES
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.sources.base_config import files_named
from tfs_lite.sources.object_listing import BaseListing, ListedVersion, SavedBase, SavedVersion, Signature, below
from tfs_lite.storage.files_cache import FilesCache
from tfs_lite.storage.store import READ_SECONDS, RemoteFile, Storage, StorageError, until
from tfs_lite.storage.url import check_names, endpoint_of, join_path

logger = logging.getLogger(__name__)
MAX_BESIDE, MAX_BESIDE_BYTES = 100, 64 << 20
"""The most files beside the versions that configs may name, and their bytes together."""
_BESIDE_NAME = ".beside.json"


@dataclass(frozen=True, slots=True)
class FetchedVersion:
    """A version in the cache. ``signature``: of the files that it was listed with."""

    key: str
    directory: str
    signature: Signature


class CachedVersions:
    """Threads: any. Versions go by their URLs; an error of the storage or of the cache's disk is a StorageError."""

    def __init__(self, storage: Storage, place: str, cache: FilesCache, clock: Clock) -> None:
        self._storage = storage
        self._place = place
        self._endpoint = endpoint_of(storage.scheme, os.environ)
        self._cache = cache
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below
        self._fetched: dict[str, FetchedVersion] = {}  # by URL
        self._configs: dict[str, tuple[str, bytes]] = {}  # URL of a config -> tag and contents
        self._brought: dict[str, frozenset[tuple[str, str]]] = {}  # directory -> paths and tags of the files beside

    # What was fetched.

    def fetched(self, url: str) -> FetchedVersion | None:
        """The version as it was fetched last, if all its files are still in the cache."""
        with self._lock:
            found = self._fetched.get(url)
        is_there = found is not None and self._cache.find(found.key, os.path.basename(found.directory)) is not None
        return found if is_there else None

    def current(self, url: str, version: ListedVersion) -> FetchedVersion | None:
        """The version in the cache, if it was fetched in the state that is listed."""
        found = self.fetched(url)
        return found if found is not None and found.signature == version.signature else None

    def add(self, url: str, found: FetchedVersion) -> None:
        """The version was fetched."""
        with self._lock:
            self._fetched[url] = found

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Forgets the versions and the configs of such URLs. Their files stay until their room is needed."""
        with self._lock:
            gone = [found.directory for url, found in self._fetched.items() if is_gone(url)]
            self._fetched = {url: found for url, found in self._fetched.items() if not is_gone(url)}
            self._configs = {url: found for url, found in self._configs.items() if not is_gone(url)}
            for directory in gone:
                self._brought.pop(directory, None)

    # Contents.

    def in_place(self, base: str, inner: str = "") -> str:
        """The path in the place of something below a base path."""
        return join_path(base[len(self._place) + 1 :], inner)

    def config(self, base: str, inner: str, file: RemoteFile) -> bytes:
        """The contents of a small file below the base path, read once a state."""
        url = os.path.join(base, inner)
        with self._lock:
            known = self._configs.get(url)
        if known is None or known[0] != file.tag:
            known = file.tag, self._brought_before(base, inner, file) or self._read_all(base, inner, file)
            with self._lock:
                self._configs[url] = known
        return known[1]

    def _brought_before(self, base: str, inner: str, file: RemoteFile) -> bytes:
        """The contents from beside a version in the cache; empty if they are not there."""
        with self._lock:
            roots = {os.path.dirname(f.directory) for url, f in self._fetched.items() if os.path.dirname(url) == base}
        for root in sorted(roots):
            if _read_tags(root).get(inner) == file.tag:
                with suppress(OSError), open(os.path.join(root, inner), "rb") as copy:
                    return copy.read()
        return b""

    def _read_all(self, base: str, inner: str, file: RemoteFile) -> bytes:
        data, now = bytearray(), self._clock.monotonic
        for piece in until(now() + READ_SECONDS, now, self._storage.read(self.in_place(base, inner), 0, file.tag)):
            data += piece
            if len(data) > file.size:
                break
        if len(data) != file.size:
            raise StorageError(StatusCode.ABORTED, f"{os.path.basename(inner)} was changed while it was fetched")
        return bytes(data)

    # The files beside.

    def bring_again(self, base: str, listing: BaseListing, name: str, version: ListedVersion) -> None:
        """Brings what has changed beside a version that was fetched before."""
        found = self.current(os.path.join(base, name), version)
        if found is not None:
            self.bring(base, listing, name, version, found.directory)

    def bring(
        self, base: str, listing: BaseListing, name: str, version: ListedVersion, directory: str, *, anew: bool = False
    ) -> None:
        """Brings the configs of a version, and what they name beside it, to where it lies in the cache. Files with the
        tags of before stay. ``anew``: the directory may be another one than before."""
        wanted = self._beside(base, listing, name, version)
        tags = {path: file.tag for path, file in wanted.items()}
        with self._lock:
            if not anew and self._brought.get(directory) == frozenset(tags.items()):
                return
        root = os.path.dirname(directory)
        try:
            before = _read_tags(root)
            for path, file in wanted.items():
                target = os.path.join(root, path)
                if before.get(path) != file.tag or not os.path.exists(target):
                    _replace(target, self._read_all(base, path, file))
            for path in before.keys() - tags.keys():
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(root, path))
            if before != tags:
                _replace(os.path.join(root, _BESIDE_NAME), json.dumps(tags).encode())
        except StorageError:
            raise
        except OSError as error:
            sentence = f"the directory of the cache: {error.strerror or type(error).__name__}"
            raise StorageError(StatusCode.FAILED_PRECONDITION, sentence) from None
        with self._lock:
            self._brought[directory] = frozenset(tags.items())

    def _beside(self, base: str, listing: BaseListing, name: str, version: ListedVersion) -> dict[str, RemoteFile]:
        """The configs, what they name, and recorded answers, by their paths below the base path. FAILED_PRECONDITION if
        they are too many, or too large."""
        own = {f"{name}/{file.path}": file for file in version.configs}
        shared = {path: file for path, file in listing.beside.items() if path in FILES_ABOUT_LOADS_BESIDE}
        configs = own or {path: file for path, file in shared.items() if path in MODEL_SETTINGS_FILES}
        names = frozenset[str]().union(*(self._named(base, path, file) for path, file in configs.items()))
        found = {**own, **shared}
        for path in sorted(names):
            beside = listing.beside
            if path.partition("/")[0] in listing.folders - listing.read:
                files = self._storage.children(self.in_place(base, os.path.dirname(path))).files
                beside = {file.path: file for file in (below(self.in_place(base), file) for file in files)}
            if path in beside:
                found[path] = beside[path]
        if len(found) > MAX_BESIDE or sum(file.size for file in found.values()) > MAX_BESIDE_BYTES:
            sentence = f"it needs more than {MAX_BESIDE} files beside the versions, or {MAX_BESIDE_BYTES} bytes of them"
            raise StorageError(StatusCode.FAILED_PRECONDITION, sentence)
        try:
            check_names(tuple(found))
        except ServingError as error:
            raise StorageError(StatusCode.FAILED_PRECONDITION, str(error)) from None
        return found

    def _named(self, base: str, path: str, file: RemoteFile) -> frozenset[str]:
        """The files that a config names. What is wrong with one that cannot be read is said by loading a version."""
        if file.size > MAX_FILE_BYTES:
            return frozenset()
        return files_named(lambda: self.config(base, path, file), os.path.basename(path))

    # Notes.

    def saved(self, base: str) -> tuple[SavedBase, float | None]:
        """The noted listing, without versions if there is none, and its time in seconds since 1970."""
        path = self._notes(base)
        try:
            with open(path, encoding="utf-8") as file:
                return SavedBase.from_json(file.read(), base), os.stat(path).st_mtime
        except (OSError, ValueError):
            return SavedBase(base, {}), None

    def find(self, base: str, saved: SavedBase) -> None:
        """Takes note of the versions that an earlier process has fetched."""
        for name, known in saved.versions.items():
            directory = self._cache.find(known.key, name)
            if directory is not None:
                found = FetchedVersion(known.key, directory, ListedVersion(known.files).signature)
                with self._lock:
                    self._fetched.setdefault(os.path.join(base, name), found)

    def save(self, base: str, listing: BaseListing, wall_time: float) -> None:
        """Notes a good listing down. Other servers on this machine may have fetched other versions of it."""
        known, _ = self.saved(base)
        with self._lock:
            fetched = {os.path.basename(url): f for url, f in self._fetched.items() if os.path.dirname(url) == base}
        versions = dict[str, SavedVersion]()
        for name, version in listing.versions.items():
            found, before = fetched.get(name), known.versions.get(name)
            if version is None:
                versions.update({name: before} if before is not None else {})
            elif found is not None and found.signature == version.signature:
                versions[name] = SavedVersion(found.key, version.files)
            elif before is not None and ListedVersion(before.files).signature == version.signature:
                versions[name] = SavedVersion(before.key, version.files)
        saved = SavedBase(base, versions, tuple(listing.beside[path] for path in sorted(listing.beside))[:MAX_FILES])
        if not versions:
            return
        try:
            if saved != known:
                self._cache.prepare()
                _replace(self._notes(base), saved.to_json().encode())
            os.utime(self._notes(base), (wall_time, wall_time))
        except (OSError, ServingError) as error:
            logger.warning("the listing of %s cannot be noted down: %s", base, error)

    def _notes(self, base: str) -> str:
        named = f"{base}\n{self._endpoint}" if self._endpoint else base
        return os.path.join(self._cache.bases, hashlib.sha256(named.encode()).hexdigest()[:32] + ".json")


def _read_tags(root: str) -> dict[str, str]:
    try:
        with open(os.path.join(root, _BESIDE_NAME), encoding="utf-8") as file:
            return {str(path): str(tag) for path, tag in json.load(file).items()}
    except (FileNotFoundError, ValueError, AttributeError):
        return {}


def _replace(path: str, data: bytes) -> None:
    """Writes a file in one step."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=folder, prefix=".new-")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
