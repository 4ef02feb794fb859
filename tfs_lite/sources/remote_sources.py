"""The sources of versions at URLs: one for each place, such as a bucket, so that one that hangs holds up no other.

    place: storage -> ObjectDisk -> FileSystemStoragePathSource ─┐
    place: ...                                                  ─┼─ URLs become paths of the cache, with leases ─ lists
    place: ...                                                  ─┘

What goes on has paths of this machine, so nothing behind it knows of storages. Each path has a lease in the cache of
files from before the list goes out until no list has the version and the manager has ended it, or has loaded it anew
from elsewhere: what is loaded or wanted is never evicted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.loader import LoadPhase, LoadProgress
from tfs_lite.core.manifest import configs_of, revision_of, state_of
from tfs_lite.core.servable import ServableData, ServableId, StoragePath, parse_version
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.core.threads import start
from tfs_lite.sources.base_config import BaseConfigs
from tfs_lite.sources.disk import RealDisk
from tfs_lite.sources.file_system_source import NOTHING_ENDS, FileSystemStoragePathSource, NotTaken
from tfs_lite.sources.look import FoundVersions, Look
from tfs_lite.sources.object_disk import ObjectDisk
from tfs_lite.sources.source_config import SourceConfig, SourceReport
from tfs_lite.storage.fetch import Fetcher, FetchEvent, FetchProgress, has_all_files
from tfs_lite.storage.files_cache import FilesCache
from tfs_lite.storage.objects import open_storage
from tfs_lite.storage.store import Storage, StorageCondition
from tfs_lite.storage.url import StorageUrl

logger = logging.getLogger(__name__)
LISTING_SECONDS = 60.0
"""The time after which a look at a place hangs. Each request of it has a bound of its own, well below this."""
FETCHES = 2
"""Versions of one place that are fetched at a time."""
CLOSE_SECONDS = 1.0
"""The longest wait for the end of what looks at places and fetches from them."""
AGAIN_SECONDS = 5.0
"""The seconds after which a list comes again whose files were gone from the cache when it should have gone out."""
Versions: TypeAlias = Sequence[ServableData[StoragePath]]


class OneSourceEach:
    """Passes on the lists of each model from the one source that has it now, one at a time: a list of the source that
    had it before, the empty one too, would undo what the new one says. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below; held while a list goes on
        self._callback: AspiredVersionsCallback[StoragePath] = ignore
        self._owners: Mapping[str, str] = {}  # those of models that have just gone, too
        self._current: Mapping[str, str] = {}

    def start(self, callback: AspiredVersionsCallback[StoragePath]) -> None:
        with self._lock:
            self._callback = callback

    def assign(self, owners: Mapping[str, str]) -> None:
        """``owners``: the source of each model from now on. A model that is gone stays with its last one until the next
        call, for its empty list."""
        with self._lock:
            self._owners, self._current = {**self._current, **owners}, dict(owners)

    def offer(self, owner: str, name: str, versions: Versions) -> bool:
        """Passes a list on; False for one of another source. Raises what the target raises."""
        with self._lock:
            if self._owners.get(name) != owner:
                return False
            self._callback(name, versions)
            return True


@dataclass(frozen=True, slots=True)
class Lease:
    """The use of a directory of the cache by a version. ``real``: its path without links. ``url``: where its files come
    from."""

    id: ServableId
    key: str
    path: str
    real: str
    url: str


def leases_to_drop(
    held: Iterable[Lease], listed: Set[Lease], loaded: Mapping[ServableId, StoragePath]
) -> frozenset[Lease]:
    """The leases that nothing needs any more: no list has them, and their version is loaded from another path.
    ``loaded`` has the versions about which that is known; an empty path: the manager has ended it, or never had it."""
    return frozenset(
        lease for lease in held if lease.id in loaded and lease not in listed and lease.path != loaded[lease.id]
    )


def revision_here(path: StoragePath, revision: str) -> str:
    """The revision of a fetched version: the state of its files is that of the copies at ``path``, as who loads it sees
    them, and the state of its configs that of the storage. Raises OSError."""
    disk, base = RealDisk(), os.path.dirname(path)
    tree = disk.stat_tree(path)
    place = path if tree.has_config else base
    named = BaseConfigs(disk).named(place, base, disk.list_directory(place))
    return revision_of(state_of(path, tree.version.fingerprint, named), configs_of(revision))


@dataclass(frozen=True, slots=True)
class RemoteEffects:
    """The functions by which what happens at URLs is told. Any thread may call them; they must be short.

    ``on_request``: scheme, operation, result, as :data:`~tfs_lite.storage.store.OnRequest`. ``on_fetch``: of each
    version whose files are fetched. ``on_evicted``: key and bytes of what was removed from the cache.
    """

    on_report: Callable[[SourceReport], None] = ignore
    on_request: Callable[[str, str, str], None] = ignore
    on_fetch: Callable[[ServableId, FetchEvent], None] = ignore
    on_evicted: Callable[[str, int], None] = ignore


class _Place:
    """One place: its storage as a disk, and the source that looks at it."""

    def __init__(
        self,
        url: StorageUrl,
        storage: Storage,
        cache: FilesCache,
        clock: Clock,
        interval: float | None,
        effects: RemoteEffects,
        on_fetch: Callable[[FetchEvent], None],
    ) -> None:
        self.config = SourceConfig((), interval)
        self.is_atomic = storage.is_atomic
        self._stop = threading.Event()
        fetcher = Fetcher(storage, cache, self._stop, on_fetch)
        self.disk = ObjectDisk(storage, url.place, cache, fetcher, clock, interval)
        self._fetches = PoolExecutor("tfs-fetch", FETCHES)
        self.source = FileSystemStoragePathSource(
            self.config,
            self.disk,
            clock,
            effects.on_report,
            watch=False,
            executor=self._fetches,
            disk_timeout=LISTING_SECONDS,
        )

    def update(self, config: SourceConfig) -> None:
        self.config = replace(config, quiet_period=0.0) if self.is_atomic else config
        self.disk.set_bases({servable.base_path for servable in config.servables})
        self.source.update_config(self.config)

    def close(self) -> None:
        """Ends looks and fetches. What a fetch has brought so far is kept, and the next one goes on from there: nothing
        waits for a request that hangs."""
        self._stop.set()
        self._fetches.shutdown(0)
        self.source.close()


class RemoteSources:
    """``start`` -> ``update_config``* and the rest from any thread -> ``close``. Until a URL is in a config nothing is
    imported, opened or started."""

    def __init__(
        self,
        clock: Clock,
        offer: Callable[[str, str, Versions], bool],
        cache_dir: str = "",
        cache_bytes: int = 0,
        effects: RemoteEffects | None = None,
        open_storage: Callable[[StorageUrl, Callable[[str, str], None]], Storage] = open_storage,
    ) -> None:
        """``offer``: takes a list of a place's source; False if the model is another source's now."""
        self._clock = clock
        self._offer = offer
        self._cache_dir, self._cache_bytes = cache_dir, cache_bytes
        self._effects = effects if effects is not None else RemoteEffects()
        self._open_storage = open_storage
        self._changing = threading.Lock()  # serialises update_config and close, guards no field
        self._lock = threading.Lock()  # guards the fields below; nothing is called under it
        self._cache: FilesCache | None = None
        self._root = ""  # the real path of the cache
        self._places: Mapping[str, _Place] = {}  # replaced as a whole
        self._models: Mapping[str, str] = {}  # model -> place; replaced as a whole
        self._held: set[Lease] = set()
        self._rejected: dict[str, frozenset[int]] = {}  # by model, also of models that there are not
        self._listed: dict[tuple[str, str], frozenset[Lease]] = {}  # by place and model
        self._live: set[ServableId] = set()  # versions that the manager has begun with and not ended
        self._paths: Mapping[str, str] = {}  # path -> URL of what has a lease; replaced as a whole
        self._closed = False

    # Configs.

    @staticmethod
    def places_of(config: SourceConfig) -> dict[str, str]:
        """The place of each model."""
        return {servable.name: StorageUrl.parse(servable.base_path).place for servable in config.servables}

    def update_config(self, config: SourceConfig) -> None:
        """Each model goes to the source of its place. Models that are gone get their empty list before this returns.
        Raises the ServingError of a storage that cannot be opened; then nothing has changed."""
        with self._changing:
            models, urls = self.places_of(config), dict[str, StorageUrl]()
            for servable in config.servables:
                urls.setdefault(models[servable.name], StorageUrl.parse(servable.base_path))
            before = self._places
            added = {place: self._open(url, config) for place, url in urls.items() if place not in before}
            gone = {place: before[place] for place in before if place not in urls}
            with self._lock:
                self._places = {place: before.get(place) or added[place] for place in urls}
                self._models = models
                rejected = dict(self._rejected)
            for place, found in added.items():
                for name, versions in rejected.items():
                    found.source.reject(name, versions)
                found.source.set_aspired_versions_callback(self._callback_of(place, found))
            for place, found in (self._places | gone).items():
                servables = tuple(each for each in config.servables if models[each.name] == place)
                found.update(replace(config, servables=servables))
            _close(gone)

    def _open(self, url: StorageUrl, config: SourceConfig) -> _Place:
        def on_request(operation: str, result: str) -> None:
            self._effects.on_request(url.scheme, operation, result)

        storage = self._open_storage(url, on_request)
        return _Place(url, storage, self._files(), self._clock, config.poll_interval, self._effects, self._on_fetch)

    def _files(self) -> FilesCache:
        """The cache of all places."""
        with self._lock:
            if self._cache is None:
                self._cache = FilesCache(self._cache_dir, self._cache_bytes, has_all_files, self._effects.on_evicted)
                self._root = os.path.realpath(self._cache.directory)
            return self._cache

    def _callback_of(self, place: str, found: _Place) -> AspiredVersionsCallback[StoragePath]:
        return lambda name, versions: self._pass(place, found, name, versions)

    # Lists on their way.

    def _pass(self, place: str, found: _Place, name: str, versions: Versions) -> None:
        """Passes a list of a source on, with paths of this machine. If files are gone meanwhile, it is not passed on:
        what serves stays, and the source fetches them again."""
        with self._lock:
            if self._closed:
                return
        items, leases = self._translate(found, versions)
        before = self._list(place, name, leases)
        if len(items) < len(versions) or not self._hold(leases):
            self._list(place, name, before)
            self._drop(leases_to_drop(self._held_now(), self._listed_now(), self._ended(leases)))
            logger.warning("model %s: files are gone from the cache; they are fetched again", name)
            self._clock.call_later(AGAIN_SECONDS, lambda: found.source.wake({name}))
            raise NotTaken
        try:
            self._offer(place, name, items)
        finally:
            self._drop(leases_to_drop(self._held_now(), self._listed_now(), self._ended(before)))

    @staticmethod
    def _translate(found: _Place, versions: Versions) -> tuple[Versions, frozenset[Lease]]:
        """The items with paths of the cache, and the leases for them; those whose files are not there are left out."""
        items, leases = list[ServableData[StoragePath]](), set[Lease]()
        for item in versions:
            there = found.disk.fetched(item.payload)
            if there is None:
                continue
            with suppress(OSError):
                revision = revision_here(there.directory, item.revision)
                items.append(ServableData.ok(item.id, there.directory, revision, item.given_up))
                real = os.path.realpath(there.directory)
                leases.add(Lease(item.id, there.key, there.directory, real, item.payload))
        return items, frozenset(leases)

    def _list(self, place: str, name: str, leases: frozenset[Lease]) -> frozenset[Lease]:
        """Notes what a source has listed last; returns what it had before. It calls for one model at a time."""
        with self._lock:
            before = self._listed.pop((place, name), frozenset[Lease]())
            if leases:
                self._listed[place, name] = leases
            return before

    def _hold(self, leases: Iterable[Lease]) -> bool:
        """Takes the leases that are not held yet; False, and none of them, if files are not there any more."""
        cache, held = self._files(), self._held_now()
        new = [lease for lease in leases if lease not in held]
        taken = [lease for lease in new if _is_held(cache, lease.key)]
        if len(taken) < len(new):
            for lease in taken:
                cache.release(lease.key)
            return False
        with self._lock:
            self._held.update(taken)
            self._note_paths()
        return True

    def _drop(self, leases: Iterable[Lease]) -> None:
        cache = self._files() if leases else None
        with self._lock:
            dropped = [lease for lease in leases if lease in self._held]
            self._held.difference_update(dropped)
            self._note_paths()
        for lease in dropped:
            assert cache is not None
            cache.release(lease.key)

    def _note_paths(self) -> None:
        """Called with the lock held."""
        self._paths = {lease.real: lease.url for lease in self._held}

    def _held_now(self) -> frozenset[Lease]:
        with self._lock:
            return frozenset(self._held)

    def _listed_now(self) -> frozenset[Lease]:
        with self._lock:
            return frozenset[Lease]().union(*self._listed.values())

    def _ended(self, leases: Iterable[Lease]) -> dict[ServableId, StoragePath]:
        """Those of these versions that the manager does not have."""
        with self._lock:
            return {lease.id: "" for lease in leases if lease.id not in self._live}

    # What becomes of versions.

    def on_state(self, state: ServableState) -> None:
        """Takes note of the state that a version has reached. Any thread; short."""
        with self._lock:
            known = any(lease.id == state.id for lease in self._held)
            if state.state is not ManagerState.END:
                if known:
                    self._live.add(state.id)
            else:
                self._live.discard(state.id)
        if known and state.state is ManagerState.END:
            self._drop(leases_to_drop(self._held_now(), self._listed_now(), {state.id: ""}))
        for found in self._of([state.id.name]):
            found.source.on_state(state)

    def on_replaced(self, servable_id: ServableId, path: StoragePath) -> None:
        """Takes note that a version that serves was loaded anew, from this path."""
        self._drop(leases_to_drop(self._held_now(), self._listed_now(), {servable_id: path}))

    def reject(self, name: str, versions: Collection[int]) -> None:
        """See :meth:`FileSystemStoragePathSource.reject`."""
        with self._lock:
            self._rejected.pop(name, None)
            if versions:
                self._rejected[name] = frozenset(versions)
        for found in self._of(None):
            found.source.reject(name, versions)

    def on_failed_attempt(self, servable_id: ServableId) -> None:
        """See :meth:`FileSystemStoragePathSource.on_failed_attempt`."""
        for found in self._of([servable_id.name]):
            found.source.on_failed_attempt(servable_id)

    def _on_fetch(self, event: FetchEvent) -> None:
        version = parse_version(event.version.directory)
        with self._lock:
            places = dict(self._places)
        names = {
            servable.name
            for found in places.values()
            for servable in found.config.servables
            if servable.base_path == event.version.base
        }
        for name in sorted(names):
            if version is not None:
                self._effects.on_fetch(ServableId(name, version), event)

    # What is asked of the sources.

    def _of(self, names: Collection[str] | None) -> list[_Place]:
        """The places of these models (None: of all)."""
        with self._lock:
            places, models = self._places, self._models
        if names is None:
            return list(places.values())
        return [places[place] for place in sorted({models[name] for name in names if name in models})]

    def wake(self, names: Collection[str] | None = None) -> None:
        """The sources look again soon at these models (None: at all)."""
        for found in self._of(names):
            found.source.wake(names)

    def found(self, name: str) -> FoundVersions | None:
        """The findings of the last look at the model; None if its base path is no URL."""
        return next((found.source.found(name) for found in self._of([name])), None)

    def checking(self) -> dict[ServableId, LoadProgress]:
        """The progress of the versions that are being fetched, by this process or by another one."""
        found = {id: progress for place in self._of(None) for id, progress in place.source.checking().items()}
        for id, fetch in self.fetches().items():
            if fetch.waits and id in found:
                elsewhere = LoadPhase.FETCHED_ELSEWHERE
                found[id] = replace(found[id], phase=elsewhere, read_bytes=None, expected_bytes=None)
        return found

    def hanging(self) -> dict[str, float]:
        """The models whose storage does not answer, and for how many seconds it has not."""
        return {name: seconds for found in self._of(None) for name, seconds in found.source.hanging().items()}

    def conditions(self) -> dict[str, StorageCondition]:
        """The state of the storage of each model, by name."""
        conditions = {
            servable.name: found.disk.condition(servable.base_path)
            for found in self._of(None)
            for servable in found.config.servables
        }
        return {name: condition or StorageCondition() for name, condition in conditions.items()}

    def fetches(self) -> dict[ServableId, FetchProgress]:
        """The attempts of each version that is being fetched."""
        found = dict[ServableId, FetchProgress]()
        for place in self._of(None):
            for servable in place.config.servables:
                for directory, progress in place.disk.fetching(servable.base_path).items():
                    version = parse_version(directory)
                    if version is not None:
                        found[ServableId(servable.name, version)] = progress
        return found

    def cache_use(self) -> tuple[int, int] | None:
        """The bytes in the cache of files, and the most that it may hold; None where nothing was at a URL."""
        with self._lock:
            cache = self._cache
        return None if cache is None else (cache.bytes_held, cache.most)

    def origin_of(self, path: str) -> str | None:
        """The URL of the version directory that a real path is in; empty if that is not known any more, None for what
        is not in the cache."""
        with self._lock:
            root, paths = self._root, self._paths
        if not root or not path.startswith(root + os.sep):
            return None
        parts = path[len(root) + 1 :].split(os.sep)
        return paths.get(os.path.join(root, *parts[:2]), "")

    def look_ahead(self, config: SourceConfig, outcomes: Mapping[ServableId, bool] = NOTHING_ENDS) -> dict[str, Look]:
        """The findings, by name, that looks for ``config`` would have now; see
        :meth:`FileSystemStoragePathSource.look_ahead`. A place of which no model is served is not asked."""
        with self._lock:
            places = self._places
        looks, models = dict[str, Look](), self.places_of(config)
        for place in sorted(set(models.values())):
            found = places.get(place)
            servables = tuple(each for each in config.servables if models[each.name] == place)
            if found is None:
                looks |= {each.name: Look(SourceReport(each.name, _not_asked(each.name))) for each in servables}
                continue
            ahead = found.source.look_ahead(replace(found.config, servables=servables), None, outcomes)
            for look in ahead.values():
                if look.aspired is not None:
                    look.aspired = list(self._translate(found, look.aspired)[0])
            looks |= ahead
        return looks

    def close(self) -> None:
        """Afterwards no list goes out. Waits for looks and fetches to end, for a second at most."""
        with self._changing:
            with self._lock:
                places, self._places, self._models, self._closed = self._places, {}, {}, True
            _close(places)


def _is_held(cache: FilesCache, key: str) -> bool:
    try:
        return cache.hold(key)
    except OSError:
        return False


def _close(places: Mapping[str, _Place]) -> None:
    """A place whose storage hangs ends by itself, when its request does."""
    threads = [threading.Thread(target=found.close, name="tfs-close", daemon=True) for found in places.values()]
    ends = time.monotonic() + CLOSE_SECONDS
    with suppress(ServingError):  # the system has no thread, and the process ends soon
        for thread in threads:
            start(thread)
    for thread in threads:
        if thread.is_alive():
            thread.join(max(ends - time.monotonic(), 0.0))


def _not_asked(name: str) -> Status:
    message = f"model {name}: the server has no model at its place yet; what is there shows once the config is in force"
    return Status(StatusCode.UNAVAILABLE, message)
