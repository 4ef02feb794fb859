"""Models in a bucket, against whatever order of pushes, faults, listings, fetches, evictions and ends of processes
hypothesis can think of.

The storage is in memory; the cache of files is a real one, on a disk in memory; the sources, their leases, the manager
and its executors are the real ones, in virtual time. The files of each push carry a serial number. The promises, after
each step:

 - nothing that serves is withdrawn by an error or by silence: a version leaves the list for a newer one, or because its
   objects are gone
 - what is loaded was whole, of one push, and its files stay in the cache, as they were, until it has ended
 - a version is fetched once, and again only if its files were evicted or removed
 - a poll asks for one listing a model at most
 - the cache never holds more than its bound

and at rest, with all faults mended: the newest version that is complete, fits and can be loaded answers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.support.profiles import CountedMachine, SeededRuns
from tests.support.storage import PIECE, MemoryStorage, unavailable
from tfs_lite.core.manifest import MANIFEST_NAME, Manifest, ManifestFile
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.sources.disk import DirectoryEntry
from tfs_lite.sources.object_disk import ObjectDisk
from tfs_lite.sources.remote_sources import RemoteEffects, RemoteSources
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig, SourceReport
from tfs_lite.storage.fetch import CLAIM_NAME, Fetcher, FetchEvent, FetchStage
from tfs_lite.storage.files_cache import Download, FilesCache
from tfs_lite.storage.store import StorageError
from tfs_lite.testing.lifecycle.executor import ManualExecutor
from tfs_lite.testing.lifecycle.loader import FakeLoader
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

MODELS = ("a", "b")
PLACE = "s3://bucket"
INTERVAL, QUIET = 60.0, 30.0
FILES = ("weights.bin", "code/model.py")
ROOM = 4 * (2 * PIECE + 2000)
"""Bytes of the cache: four of the largest versions, two for each model."""
NOTES = 64 << 10
"""More than the notes and configs beside all versions have; they do not count as room."""
REFUSED = StorageError(StatusCode.PERMISSION_DENIED, "the storage refuses (403 AccessDenied)")
NO_BUCKET = StorageError(StatusCode.NOT_FOUND, "there is no such bucket")
SHM = "/dev/shm" if os.path.isdir("/dev/shm") else None


class Push:
    """One push of a version. ``is_complete``: it may be taken; ``works``: it can be loaded."""

    def __init__(self, serial: int, works: bool, how: str) -> None:
        self.serial, self.works, self.how = serial, works, how

    @property
    def is_complete(self) -> bool:
        return self.how in ("published", "by hand")


class Loader(FakeLoader):
    """Reads the files at its path, which must be those of one push."""

    def __init__(self, process: Process, path: str) -> None:
        super().__init__()
        self._process, self.path = process, path
        self.serial = 0

    def load(self, servable_id: ServableId) -> None:
        serials = serials_in(self.path)
        assert len(serials) == 1, f"{servable_id} is loaded from files of several pushes: {serials}"
        (self.serial,) = serials
        if not self._process.world.pushes[self.serial].works:
            raise ServingError(StatusCode.DATA_LOSS, "it cannot be loaded")
        super().load(servable_id)


def serials_in(directory: str) -> set[int]:
    """The serial numbers in the files of a version; raises OSError if it is gone."""
    found = set[int]()
    assert os.path.isdir(directory), f"{directory} is gone"
    for folder, _, names in os.walk(directory):
        found.update(int(Path(folder, name).read_bytes()[:8]) for name in names if name != MANIFEST_NAME)
    return found


class World:
    """What outlives a process: the bucket, the cache, other processes, and the time."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.directory = tempfile.mkdtemp(prefix="tfs-lite-simulation-", dir=SHM)
        self.pushes: dict[int, Push] = {}
        self.versions: dict[tuple[str, int], Push] = {}  # what lies in the bucket
        self.highest: Counter[str] = Counter()
        self.fetched: Counter[str] = Counter()  # by key
        self.gone: Counter[str] = Counter()  # by key: how often it was removed from the cache
        self.list_fault: StorageError | None = None
        self.get_faults = self.cuts = 0  # how many requests and bodies are still to fail
        self.meanwhile: Callable[[str], None] | None = None  # called within the next body, with the path of the object
        self.storage.fault, self.storage.cut = self._fault, self._cut
        self.other = FilesCache(self.directory, ROOM, lambda directory, key: os.path.isdir(directory), self.on_evicted)
        self.elapsed = 0.0
        self.asked, self.held = 0, ""  # how often the other process has asked for room; the key of what it keeps

    def _fault(self, operation: str, path: str) -> StorageError | None:
        if operation == "list":
            return self.list_fault
        self.get_faults -= 1
        return unavailable() if self.get_faults >= 0 else None

    def _cut(self, path: str, given: int) -> StorageError | None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile(path)
        if not given or self.cuts <= 0:
            return None
        self.cuts -= 1
        return unavailable("the connection was reset")

    def on_evicted(self, key: str, size: int) -> None:
        self.gone[key] += 1

    def push(self, name: str, version: int, pieces: int, works: bool, how: str) -> None:
        serial = len(self.pushes) + 1
        self.pushes[serial] = self.versions[name, version] = Push(serial, works, how)
        at, weights = f"{name}/{version}", self._data(serial, pieces * PIECE - 100)
        data = {FILES[0]: weights, FILES[1]: self._data(serial, 50)}
        for path in [path for path in self.storage.objects if path.startswith(f"{at}/")]:
            del self.storage.objects[path]
        if how == "claimed":
            claim = {"host": "h", "time": "2026-11-28T09:00:00Z", "token": "t"}
            self.storage.set(f"{at}/{CLAIM_NAME}", json.dumps(claim).encode())
        for path, content in data.items():
            self.storage.set(f"{at}/{path}", content)
        if how in ("published", "damaged"):
            wrong = b"x" if how == "damaged" else b""
            listed = {p: ManifestFile(len(c), hashlib.sha256(c + wrong).hexdigest()) for p, c in data.items()}
            self.storage.set(f"{at}/{MANIFEST_NAME}", Manifest(listed).to_bytes())
        self.highest[name] = max(self.highest[name], version)

    @staticmethod
    def _data(serial: int, size: int) -> bytes:
        return f"{serial:08}".encode() * (size // 8)

    def remove(self, name: str, version: int) -> None:
        self.versions.pop((name, version), None)
        for path in [path for path in self.storage.objects if path.startswith(f"{name}/{version}/")]:
            del self.storage.objects[path]

    def use_room(self, size: int) -> None:
        """Another process keeps something in the cache, as long as it does not ask for room again."""
        self.free_room()
        key = f"{self.asked:032x}"
        self.asked += 1
        with suppress(ServingError):
            found = self.other.find_or_begin(key, "1", size)
            assert isinstance(found, Download)
            found.write("x", b"x" * size)
            found.finish()
            self.held = key

    def free_room(self) -> None:
        if self.held:
            self.other.release(self.held)
            self.held = ""

    def close(self) -> None:
        self.free_room()
        shutil.rmtree(self.directory, ignore_errors=True)


class Process:
    """One server process: sources, leases, manager."""

    def __init__(self, world: World, models: Sequence[str]) -> None:
        self.world = world
        self.manager = ManagerFixture("availability", max_num_load_retries=0)
        self.clock = self.manager.clock
        self.clock.slip(world.elapsed)
        self.fetches = ManualExecutor(2)
        self.listed: dict[str, frozenset[int]] = {}
        self.reports: dict[str, SourceReport] = {}
        self.loaders: list[tuple[ServableId, Loader]] = []
        self.sources = RemoteSources(
            self.clock,
            self._offer,
            world.directory,
            ROOM,
            RemoteEffects(on_report=self._on_report, on_fetch=self._on_fetch, on_evicted=self._on_evicted),
            lambda url, on_request: world.storage,
        )
        self.ended = False
        self.polls = 0
        self.manager.bus.subscribe(lambda event: None if self.ended else self.sources.on_state(event.event))
        self.models: tuple[str, ...] = ()
        self.configure(models)

    def configure(self, models: Sequence[str]) -> None:
        self.models = tuple(models)
        servables = tuple(ServableToMonitor(name, f"{PLACE}/{name}") for name in models)
        with (
            patch("tfs_lite.sources.remote_sources.PoolExecutor", lambda name, threads: self.fetches),
            patch("tfs_lite.sources.remote_sources.Fetcher", self._fetcher),
            patch("tfs_lite.sources.remote_sources.ObjectDisk", self._disk),
        ):
            self.sources.update_config(SourceConfig(servables, poll_interval=None, quiet_period=QUIET))

    def _fetcher(self, storage: Any, cache: Any, stop: Any, on_event: Any) -> Fetcher:
        return Fetcher(storage, cache, stop, on_event, sleep=lambda seconds: None, clock=self.clock)

    def _disk(self, storage: Any, place: Any, cache: Any, fetcher: Any, clock: Any, interval: Any) -> ObjectDisk:
        return ObjectDisk(storage, place, cache, fetcher, clock, INTERVAL)

    @property
    def cache(self) -> FilesCache:
        return self.sources._files()

    def poll(self) -> None:
        """May be called while another poll reads a manifest."""
        before, polls = self.world.storage.requests["list"], self.polls
        self.polls += 1
        for place in self.sources._places.values():
            place.source.poll()
        asked = self.world.storage.requests["list"] - before
        assert asked <= (self.polls - polls) * len(self.models), "more than one listing a model and poll"

    def advance(self, seconds: float) -> None:
        self.world.elapsed += seconds
        self.clock.advance(seconds)

    def answering(self, name: str) -> int | None:
        return max(self.manager.ready(name), default=None)

    def check(self) -> None:
        """What is loaded is as it was; the cache is within its bound."""
        for servable_id, loader in self.loaders:
            if loader.servable is not None:
                assert serials_in(loader.path) == {loader.serial}, f"the files of {servable_id} have changed"
        assert not self.manager.violations()
        held = self.cache.bytes_held
        assert held <= ROOM + NOTES, f"the cache has {held} bytes, it may have {ROOM}"

    def end(self) -> None:
        """Everything ends at once, as when a process is killed."""
        self.ended = True
        self.sources.close()
        for found in self.cache._held.values():
            os.close(found.lock)
        self.cache._held.clear()
        self.manager.manager.close()

    def _offer(self, owner: str, name: str, versions: Sequence[ServableData[str]]) -> bool:
        before, now = self.listed.get(name, frozenset()), frozenset(item.id.version for item in versions)
        self.listed[name] = now
        if name in self.models:
            assert now, f"{name}: the list is empty"
            for version in before - now:
                is_there = any(path.startswith(f"{name}/{version}/") for path in self.world.storage.objects)
                assert max(now) > version or not is_there, f"{name}: {version} is withdrawn, what is left is {now}"
        items = []
        for item in versions:
            loader = Loader(self, item.payload)
            self.loaders.append((item.id, loader))
            self.manager.loaders.setdefault(item.id, []).append(loader)
            items.append(ServableData.ok(item.id, loader, item.revision, item.given_up))
        self.manager.emit(name, items)
        return True

    def _on_report(self, report: SourceReport) -> None:
        self.reports[report.name] = report

    def _on_fetch(self, servable_id: ServableId, event: FetchEvent) -> None:
        if event.stage is FetchStage.FETCHED:
            key, world = event.version.key, self.world
            world.fetched[key] += 1
            assert world.fetched[key] <= 1 + world.gone[key], f"{servable_id} is fetched again"

    def _on_evicted(self, key: str, size: int) -> None:
        self.world.on_evicted(key, size)
        paths = [loader.path for _, loader in self.loaders if loader.servable is not None]
        assert not any(f"/{key}/" in path for path in paths), "what is loaded was evicted"


HOW = st.sampled_from(["published"] * 5 + ["by hand"] * 3 + ["claimed", "damaged"])
NAMES = st.sampled_from(MODELS)
FAULTS = st.sampled_from([None, None, unavailable(), REFUSED, NO_BUCKET])


class RemoteStorage(CountedMachine):
    """Two models in one bucket."""

    world: World

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.process = Process(self.world, MODELS)
        for name in MODELS:
            self.world.push(name, 1, 1, True, "published")
        self._rest()
        self._step()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.process.end()
            finally:
                self.world.close()

    # What people do to the bucket.

    @rule(name=NAMES, pieces=st.integers(1, 2), works=st.sampled_from([True] * 7 + [False]), how=HOW)
    def push(self, name: str, pieces: int, works: bool, how: str) -> None:
        self.world.push(name, self.world.highest[name] + 1, pieces, works, how)
        self._step()

    @rule(name=NAMES, pieces=st.integers(1, 2), how=HOW, version=st.integers(1, 6))
    def replace(self, name: str, pieces: int, how: str, version: int) -> None:
        """Other files under a number that was there before, or below it."""
        self.world.push(name, min(version, self.world.highest[name]), pieces, True, how)
        self._step()

    @rule(name=NAMES, version=st.integers(1, 8))
    def remove(self, name: str, version: int) -> None:
        self.world.remove(name, version)
        self._step()

    @rule(name=NAMES, really=st.sampled_from([True, False, False]))
    def remove_all(self, name: str, really: bool) -> None:
        for owner, version in list(self.world.versions) if really else ():
            if owner == name:
                self.world.remove(name, version)
        self._step()

    # Faults.

    @rule(fault=FAULTS, gets=st.sampled_from([0, 0, 0, 2, 9, 99]), cuts=st.sampled_from([0, 0, 1, 3, 20]))
    def fault(self, fault: StorageError | None, gets: int, cuts: int) -> None:
        self.world.list_fault, self.world.get_faults, self.world.cuts = fault, gets, cuts
        self._step()

    @rule(what=st.sampled_from(["replace", "remove", "poll", "fall silent", "use room"]), how=HOW)
    def meanwhile(self, what: str, how: str) -> None:
        """Something happens while an object of a version is read the next time."""

        def happen(path: str) -> None:
            name, version, _ = path.split("/", 2)
            if what == "replace":
                self.world.push(name, int(version), 2, True, how)
            elif what == "remove":
                self.world.remove(name, int(version))
            elif what == "poll":
                self.process.poll()
            elif what == "use room":
                self.world.use_room(4 * PIECE)
            else:
                self.world.list_fault, self.world.get_faults = unavailable(), 9

        self.world.meanwhile = happen
        self._step()

    @rule(pieces=st.integers(1, 7))
    def use_room(self, pieces: int) -> None:
        self.world.use_room(pieces * PIECE)
        self._step()

    @rule(really=st.sampled_from([True, False, False]))
    def kill(self, really: bool) -> None:
        if really:
            models = self.process.models
            self.process.end()
            self.process = Process(self.world, models)
        self._step()

    # What goes on by itself.

    @rule(seconds=st.sampled_from([1.0, QUIET + 1, INTERVAL, INTERVAL]))
    def let_time_pass(self, seconds: float) -> None:
        self.process.advance(seconds)
        self._step()

    @rule(times=st.integers(1, 2))
    def poll(self, times: int) -> None:
        for _ in range(times):
            self.process.poll()
        self._step()

    @rule(minutes=st.integers(2, 6), fetches=st.booleans(), loads=st.booleans())
    def let_minutes_pass(self, minutes: int, fetches: bool, loads: bool) -> None:
        """Polls go on; so do fetches, loads and unloads, unless their threads have something else to do."""
        for _ in range(minutes):
            self.process.advance(INTERVAL)
            self.process.poll()
            if fetches:
                self.process.fetches.run_all()
            if loads:
                self.process.manager.settle()
            self.process.check()
        self._step()

    @rule(index=st.integers(0, 1), work=st.booleans())
    def fetch(self, index: int, work: bool) -> None:
        self._run(self.process.fetches, index, work)
        self._step()

    @rule(loads=st.booleans(), work=st.booleans(), ticks=st.integers(0, 2))
    def run(self, loads: bool, work: bool, ticks: int) -> None:
        for _ in range(ticks):
            self.process.manager.tick()
        self._run(self.process.manager.loads if loads else self.process.manager.unloads, 0, work)
        self._step()

    @rule(models=st.sampled_from([MODELS, MODELS, MODELS[:1]]))
    def configure(self, models: tuple[str, ...]) -> None:
        self.process.configure(models)
        self._step()

    @rule(now=st.sampled_from([True, False, False]))
    def rest(self, now: bool) -> None:
        if now:
            self._rest()
        self._step()

    @staticmethod
    def _run(executor: ManualExecutor, index: int, work: bool) -> None:
        if executor.can_start:
            if executor.start() and work:
                executor.work(len(executor.running) - 1)
        elif executor.running:
            executor.finish(min(index, len(executor.running) - 1))

    def _step(self) -> None:
        self.count_step()
        self.process.check()

    # At rest.

    def _rest(self) -> None:
        world, process = self.world, self.process
        world.list_fault, world.get_faults, world.cuts, world.meanwhile = None, 0, 0, None
        world.free_room()
        manager = process.manager
        for executor in (process.fetches, manager.loads, manager.unloads):
            while executor.running:
                executor.finish()
        for _ in range(10):
            process.advance(INTERVAL + 1)
            process.poll()
            process.fetches.run_all()
            process.poll()
            manager.settle()
        for name in process.models:
            self._check_rest(name)

    def _check_rest(self, name: str) -> None:
        """No version that could answer is newer than the one that does."""
        process, answering = self.process, self.process.answering(name) or 0
        report = process.reports[name]
        lacks_room = any("model_cache_bytes" in reason for reason in report.waiting.values())
        better = [
            version
            for (owner, version), push in self.world.versions.items()
            if owner == name and version > answering and push.is_complete and push.works
        ]
        assert not better or lacks_room, f"{name}: {answering} answers, not {better}: {report}"


RUNS = SeededRuns(
    RemoteStorage,
    "tests/simulation/test_remote_storage.py -k promises",
    runs=5,
    steps=60,
    batches=(3, 170),
    min_steps=(400, 50_000),
)


@pytest.mark.timeout(1200)
def test_the_promises_of_models_in_a_bucket(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("tfs_lite"), "propagate", False)
    RUNS.check(pytestconfig.getoption("--hypothesis-seed"))


def _lists_twice(disk: ObjectDisk, path: str) -> list[DirectoryEntry]:
    disk.stamp(path)
    return list_directory(disk, path)


def _takes_no_lease(sources: RemoteSources, leases: Any) -> bool:
    return True


list_directory = ObjectDisk.list_directory
MISTAKES = {
    "a look lists twice": (ObjectDisk, "list_directory", _lists_twice),
    "what is loaded has no lease": (RemoteSources, "_hold", _takes_no_lease),
}


@pytest.mark.parametrize(("where", "name", "mistake"), MISTAKES.values(), ids=MISTAKES)
def test_each_of_these_mistakes_breaks_a_promise(
    where: type[Any], name: str, mistake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tfs_lite"), "propagate", False)
    monkeypatch.setattr(where, name, mistake)
    with pytest.raises(AssertionError):
        RUNS.find_failure(range(40))
