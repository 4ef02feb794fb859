"""A storage as a disk, below the real source: what is asked of the storage, what becomes of its errors, what is on this
machine. The storage is in memory, the cache is real, time is virtual."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.storage import MemoryStorage, unavailable
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.manifest import MANIFEST_NAME, Manifest, ManifestFile, has_state
from tfs_lite.core.servable import ServableData
from tfs_lite.core.status import StatusCode
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource
from tfs_lite.sources.object_disk import EMPTY_NOW, MOST_FAILURES, NO_VERSION, REPEAT_SECONDS, ObjectDisk
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig, SourceReport
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, VersionPolicy
from tfs_lite.storage.fetch import CLAIM_NAME, Fetcher, has_all_files
from tfs_lite.storage.files_cache import FilesCache
from tfs_lite.storage.store import PAGE, READ_SECONDS, Children, FlatListing, StorageError
from tfs_lite.testing.lifecycle.clock import VirtualClock

BASE = "s3://bucket/m"
INTERVAL = 60.0


def refused() -> StorageError:
    return StorageError(StatusCode.PERMISSION_DENIED, "the storage refuses (403 AccessDenied)")


class Server:
    """A source over a place, as one process has it. ``poll`` is one poll of every model, a minute after the last one,
    and the looks that the ends of fetches ask for."""

    def __init__(self, storage: MemoryStorage, clock: VirtualClock, directory: Path, *models: str) -> None:
        self.storage, self.clock = storage, clock
        self.cache = FilesCache(str(directory), 1 << 30, has_all_files)
        self.stop = threading.Event()
        fetcher = Fetcher(storage, self.cache, self.stop, sleep=lambda seconds: None)
        self.disk = ObjectDisk(storage, "s3://bucket", self.cache, fetcher, clock, INTERVAL)
        self.fetches = PoolExecutor("fetches", 0)
        self.lists: dict[str, Sequence[ServableData[str]]] = {}
        self.emitted = 0
        self.reports: dict[str, SourceReport] = {}
        self.config(*(models or ("m",)))
        self.source = FileSystemStoragePathSource(
            self.settings, self.disk, clock, self._report, watch=False, executor=self.fetches
        )
        self.source.set_aspired_versions_callback(self._aspire)

    def config(self, *models: str, policy: VersionPolicy | None = None) -> None:
        servables = tuple(ServableToMonitor(name, f"s3://bucket/{name}", policy or LatestPolicy()) for name in models)
        self.settings = SourceConfig(servables, poll_interval=None, quiet_period=30.0)
        self.disk.set_bases([servable.base_path for servable in servables])
        if hasattr(self, "source"):
            self.source.update_config(self.settings)

    def poll(self, seconds: float = INTERVAL) -> int:
        """The listings that the poll has asked for."""
        before = self.storage.requests["list"]
        self.source.poll()
        self.clock.advance(seconds)
        return self.storage.requests["list"] - before

    def settle(self) -> None:
        """Fetches what is to be fetched, and offers it."""
        for _ in range(4):
            self.poll()

    def versions(self, name: str = "m") -> list[int] | None:
        return [item.id.version for item in self.lists[name]] if name in self.lists else None

    def problem(self, name: str = "m") -> str:
        return str(self.reports[name].problem)

    def waiting(self, name: str = "m") -> dict[int, str]:
        return dict(self.reports[name].waiting)

    def local(self, version: str) -> Path:
        found = self.disk.local(f"{BASE}/{version}")
        assert found is not None
        return Path(found)

    def _aspire(self, name: str, versions: Sequence[ServableData[str]]) -> None:
        self.lists[name] = versions
        self.emitted += 1

    def _report(self, report: SourceReport) -> None:
        self.reports[report.name] = report


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def start(storage: MemoryStorage, clock: VirtualClock, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(*models: str) -> Server:
        servers.append(Server(storage, clock, tmp_path / "cache", *models))
        return servers[-1]

    yield make
    for server in servers:
        server.source.close()


def put(storage: MemoryStorage, version: object, data: bytes = b"weights", name: str = "m", **files: bytes) -> None:
    """Puts a version without a manifest."""
    for path, content in {"model.bin": data, **files}.items():
        storage.set(f"{name}/{version}/{path}", content)


def publish(storage: MemoryStorage, version: object, data: bytes = b"weights", listed: bytes | None = None) -> None:
    put(storage, version, data)
    entry = ManifestFile(len(data), hashlib.sha256(data if listed is None else listed).hexdigest())
    storage.set(f"m/{version}/{MANIFEST_NAME}", Manifest({"model.bin": entry}).to_bytes())


# What is asked.


def test_another_problem_of_a_base_path_without_versions_is_told_with_the_next_poll(storage, start) -> None:
    storage.fault = lambda operation, path: refused()
    server = start()
    server.settle()
    for _ in range(2):  # the second one looks closely, and the next such look is a minute away
        server.clock.advance(66.0)
        server.source._sweep()
    assert refused().sentence in server.problem()
    no_bucket = StorageError(StatusCode.NOT_FOUND, "there is no such bucket")
    for seconds, error in ((1.0, no_bucket), (1.0, unavailable()), (REPEAT_SECONDS, None)):
        storage.fault = lambda operation, path, error=error: error
        server.clock.advance(seconds)
        server.source._sweep()
        assert (error.sentence if error is not None else NO_VERSION) in server.problem()


def test_a_poll_is_one_listing_a_model_and_a_version_that_is_there_costs_no_other_request(storage, start) -> None:
    for name in ("m", "n"):
        put(storage, 1, name=name)
    server = start("m", "n")
    server.settle()
    assert (server.versions("m"), server.versions("n")) == ([1], [1])
    before, emitted = storage.requests.copy(), server.emitted
    for seconds in (54.0, 66.0, 60.0, 54.0, 54.0):
        assert server.poll(seconds) == 2
    assert storage.requests - before == {"list": 10}
    assert server.emitted == emitted + 10  # a poll that was asked for emits whatever it finds


def test_polls_at_an_interval_list_once_and_emit_nothing_while_nothing_changes(storage, start) -> None:
    publish(storage, 1)
    server = start()
    server.settle()
    before, emitted = storage.requests.copy(), server.emitted
    for seconds in (54.0, 66.0, 1.0, 54.0, 54.0, 60.0):
        server.source._sweep()
        server.clock.advance(seconds)
    assert storage.requests - before == {"list": 6}
    assert server.emitted == emitted


def test_a_published_version_is_fetched_at_the_poll_that_finds_it(storage, start) -> None:
    publish(storage, 1, b"w" * 100_000)
    server = start()
    server.source.poll()
    assert server.reports["m"].fetching == {1}
    assert server.waiting() == {1: "fetching 97.8 KiB"}
    server.source.poll()
    assert server.versions() == [1]
    assert (server.local("1") / "model.bin").read_bytes() == b"w" * 100_000


def test_a_first_start_fetches_what_is_wanted_and_none_of_the_older_versions(storage, start) -> None:
    asked: list[str] = []
    storage.fault = lambda operation, path: asked.append(path) if operation == "get" else None
    for version in (1, 2, 3):
        publish(storage, version, b"weights of %d" % version)
    server = start()
    server.settle()
    assert server.versions() == [3]
    assert {path.split("/")[1] for path in asked} == {"3"}
    server.config("m", policy=LatestPolicy(2))
    server.settle()
    assert server.versions() == [3, 2]
    assert {path.split("/")[1] for path in asked} == {"3", "2"}


def test_the_next_version_is_fetched_when_the_newest_one_cannot_be(storage, start) -> None:
    for version in (1, 2, 3):
        publish(storage, version)
    storage.cut = lambda path, given: unavailable() if path == "m/3/model.bin" else None
    server = start()
    server.settle()
    assert server.versions() == [2]
    storage.cut = lambda path, given: None
    server.settle()
    assert server.versions() == [3]


def test_an_older_version_that_is_here_is_looked_at_while_the_newest_one_is_fetched(storage, start) -> None:
    publish(storage, 1)
    start().settle()
    for version in (2, 3):
        publish(storage, version, b"new")
    server = start()
    server.source._look_at(None, forced=True)
    server.source._looks.run_pending()
    server.source._tidy()
    assert server.reports["m"].fetching == server.waiting().keys() == {3}
    assert server.source.found("m").unfinished.keys() == {3}


def test_a_version_without_a_manifest_waits_until_it_is_quiet(storage, start, clock) -> None:
    put(storage, 1)
    server = start()
    server.poll(20.0)
    storage.set("m/1/late.bin", b"more")
    server.poll(20.0)
    server.poll(9.0)
    assert storage.requests["get"] == 0
    assert server.waiting()[1].startswith("files changed less than 30 s ago")
    server.poll(2.0)
    server.poll(1.0)
    server.poll(1.0)
    assert server.versions() == [1]
    assert sorted(os.listdir(server.local("1"))) == ["late.bin", "model.bin"]


def test_what_is_uploaded_again_unchanged_is_not_fetched_again(storage, start) -> None:
    publish(storage, 1, b"w" * 1000)
    server = start()
    server.settle()
    revision = server.lists["m"][0].revision
    publish(storage, 1, b"w" * 1000)
    before = storage.requests["get"]
    server.settle()
    assert storage.requests["get"] == before
    assert server.lists["m"][0].revision == revision


def test_a_version_whose_digest_is_wrong_waits_until_it_is_replaced(storage, start) -> None:
    publish(storage, 1)
    server = start()
    server.settle()
    publish(storage, 2, b"damaged", listed=b"weights")
    server.settle()
    before = storage.requests["get"]
    server.settle()
    assert storage.requests["get"] == before
    assert server.versions() == [1]
    assert server.waiting() == {2: "model.bin does not have the sha256 digest that the manifest lists"}
    publish(storage, 2, b"repaired")
    server.settle()
    assert server.versions() == [2]


def test_a_version_that_is_being_published_waits_and_says_by_whom(storage, start) -> None:
    publish(storage, 1)
    server = start()
    server.settle()
    put(storage, 2)
    storage.set(f"m/2/{CLAIM_NAME}", json.dumps({"host": "h", "time": "2026-11-28T09:00:00Z", "token": "t"}).encode())
    server.settle()
    assert server.versions() == [1]
    assert server.waiting() == {2: "being published since 2026-11-28T09:00:00Z by h"}
    before = storage.requests["get"]
    server.poll()
    assert storage.requests["get"] == before
    publish(storage, 2)
    server.settle()
    assert server.versions() == [2]


@pytest.mark.parametrize("claim", [b"", b"[]", b'{"host": 1}', b"{" * 99, b"x" * 10_000])
def test_a_claim_of_somebody_else_is_one_all_the_same(storage, start, claim: bytes) -> None:
    put(storage, 1)
    storage.set(f"m/1/{CLAIM_NAME}", claim)
    server = start()
    server.settle()
    assert server.waiting() == {1: "being published"}


# Deep listings.


def test_a_base_path_with_more_objects_than_a_page_is_listed_level_by_level(storage, start) -> None:
    for version in range(1, 5):
        for number in range(300):
            storage.set(f"m/{version}/{number:03}", b"x")
    storage.set("m/labels.txt", b"cat")
    server = start()
    server.settle()
    assert server.versions() == [4]
    assert len(os.listdir(server.local("4"))) == 300
    assert [server.poll() for _ in range(3)] == [2, 2, 2]


def test_a_version_with_more_objects_than_a_page_is_fetched_whole(storage, start) -> None:
    for number in range(PAGE + 10):
        storage.set(f"m/1/{'a' if number % 2 else 'b'}/{number}", b"x")
    server = start()
    server.settle()
    assert server.versions() == [1]
    assert sum(len(files) for _, _, files in os.walk(server.local("1"))) == PAGE + 10


def test_a_name_that_no_file_can_have_costs_its_own_version_only(storage, start) -> None:
    odd = StorageError(StatusCode.FAILED_PRECONDITION, "an object's name cannot be that of a file")

    def files(prefix: str) -> FlatListing:
        found = MemoryStorage.files(storage, prefix)
        return found if prefix == "m/1" else FlatListing((), is_whole=False)

    def children(prefix: str) -> Children:
        if prefix == "m/2":
            raise odd
        return MemoryStorage.children(storage, prefix)

    storage.files, storage.children = files, children
    put(storage, 1)
    put(storage, 2)
    server = start()
    server.settle()
    assert server.versions() == [1]
    assert server.waiting() == {2: odd.sentence}


def test_a_stray_key_that_is_passed_over_is_named_once_and_stops_no_version(storage, start, caplog) -> None:
    def children(prefix: str) -> Children:
        found = MemoryStorage.children(storage, prefix)
        return replace(found, passed_over='"/x"') if prefix in ("m", "m/3") else found

    def files(prefix: str) -> FlatListing:
        return FlatListing((), is_whole=False) if prefix in ("m", "m/3") else MemoryStorage.files(storage, prefix)

    storage.files, storage.children = files, children
    put(storage, 1)
    server = start()
    server.settle()
    put(storage, 2)
    server.settle()
    assert server.versions() == [2]
    put(storage, 3)
    server.settle()
    assert server.versions() == [2]
    assert server.waiting() == {3: 'an object\'s name cannot be that of a file: "/x" below the version'}
    assert [record.getMessage().count('the key "/x" below s3://bucket/m ') for record in caplog.records].count(1) == 1


def test_a_storage_that_falls_silent_within_a_deep_listing_is_asked_once(storage, start, clock) -> None:
    for version in range(1, 6):
        for number in range(300):
            storage.set(f"m/{version}/{number:03}", b"x")
    server = start()
    server.config("m", policy=AllPolicy())
    storage.fault = lambda operation, path: unavailable() if path != "m" else None
    assert server.poll() == 3  # flat, first level, one version
    assert set(server.waiting().values()) == {unavailable().sentence}


# Silence and errors.

ERRORS = {
    "no answer": unavailable("the storage does not answer"),
    "refuses": refused(),
    "no bucket": StorageError(StatusCode.NOT_FOUND, "there is no such bucket"),
    "other region": StorageError(StatusCode.FAILED_PRECONDITION, "the bucket is in another region: set AWS_REGION"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_no_error_of_a_listing_emits_anything_and_it_is_told_with_its_code(storage, start, error) -> None:
    publish(storage, 1)
    server = start()
    server.settle()
    emitted, last_good = server.emitted, server.clock.time() - INTERVAL
    storage.fault = lambda operation, path: error
    for _ in range(3):
        server.poll()
    assert server.emitted == emitted
    assert server.problem() == f"{error.code.name}: model m: its base path cannot be read: {error.sentence}"
    condition = server.disk.condition(BASE)
    assert condition is not None
    assert (condition.sentence, condition.tries, condition.from_cache) == (error.sentence, 3, False)
    assert (condition.last_good, condition.since) == (last_good, last_good + INTERVAL)
    storage.fault = lambda operation, path: None
    publish(storage, 2)
    server.settle()
    assert server.versions() == [2]
    assert server.problem() == "OK"
    condition = server.disk.condition(BASE)
    assert condition is not None
    assert (condition.sentence, condition.tries, condition.since) == ("", 0, None)


def test_a_base_path_without_a_version_orders_nothing(storage, start) -> None:
    publish(storage, 1)
    server = start()
    server.settle()
    emitted = server.emitted
    storage.objects.clear()
    storage.set("m/labels.txt", b"cat")
    for _ in range(5):
        server.poll()
    assert server.emitted == emitted
    assert server.problem() == f"NOT_FOUND: model m: its base path cannot be read: {NO_VERSION}"


def test_a_version_that_is_missing_beside_others_goes_with_the_second_listing(storage, start) -> None:
    publish(storage, 1)
    publish(storage, 2)
    server = start()
    server.config("m", policy=AllPolicy())
    server.settle()
    assert server.versions() == [1, 2]
    for path in [path for path in storage.objects if path.startswith("m/2/")]:
        del storage.objects[path]
    server.poll(1.0)
    server.poll(1.0)
    assert server.versions() == [1, 2]
    server.poll(INTERVAL)
    server.poll()
    server.poll()
    assert server.versions() == [1]


def test_an_error_that_a_while_may_cure_is_repeated_without_a_request(storage, start) -> None:
    publish(storage, 1)
    server = start()
    server.settle()
    storage.fault = lambda operation, path: unavailable()
    assert [server.poll(1.0) for _ in range(5)] == [1, 0, 0, 0, 0]
    server.clock.advance(REPEAT_SECONDS)
    assert server.poll() == 1
    assert server.poll() == 1


def test_a_place_that_does_not_answer_is_tried_once_a_poll_by_each_model_in_its_turn(storage, start) -> None:
    models = [f"m{number}" for number in range(6)]
    for name in models:
        put(storage, 1, name=name)
    server = start(*models)
    server.settle()
    tried: list[str] = []

    def fault(operation: str, path: str) -> StorageError:
        tried.append(path)
        return unavailable()

    storage.fault = fault
    assert server.poll() == MOST_FAILURES
    assert [server.poll() for _ in range(12)] == [1] * 12
    assert set(tried) == set(models)
    storage.fault = lambda operation, path: None
    server.poll()
    server.poll()
    assert server.poll() == len(models)
    assert {server.problem(name) for name in models} == {"OK"}


def test_models_that_cannot_be_listed_hold_up_no_other_model_of_the_place(storage, start) -> None:
    models = [f"m{number}" for number in range(5)]
    for name in models:
        put(storage, 1, name=name)
    server = start(*models)
    storage.fault = lambda operation, path: unavailable() if operation == "list" and path[:2] < "m4" else None
    for _ in range(12):
        server.poll()
    assert server.versions("m4") == [1]


def test_a_listing_that_fails_does_not_end_a_fetch(storage, start) -> None:
    publish(storage, 1)
    server = start()
    server.source._looks.ask(server.source._streams.values())
    server.source._looks.run_pending()  # the fetch is queued
    storage.fault = lambda operation, path: unavailable() if operation == "list" else None
    server.clock.advance(INTERVAL)
    server.source._look_at(None, forced=True)
    server.source._looks.run_pending()
    server.source._tidy()
    report = server.reports["m"]
    assert (report.fetching, report.waiting) == ({1}, {1: report.waiting[1]})
    assert report.problem.code is StatusCode.UNAVAILABLE
    server.source._executor.run_pending()
    assert server.disk.local(f"{BASE}/1") is not None
    storage.fault = lambda operation, path: None
    server.poll()  # at once, though the error was to be repeated
    assert server.versions() == [1]


def test_a_fetch_that_has_given_up_is_not_fetching_and_begins_again_with_the_next_poll(storage, start) -> None:
    publish(storage, 1)
    server = start()
    storage.fault = lambda operation, path: unavailable() if path.endswith("model.bin") else None
    server.source.poll()
    server.source._look_at(None, forced=True)
    server.source._looks.run_pending()
    assert server.reports["m"].fetching == frozenset()
    assert "tried 8 times, again with the next poll" in server.waiting()[1]
    storage.fault = lambda operation, path: None
    server.settle()
    assert server.versions() == [1]


def test_a_version_that_the_disk_cannot_take_is_news_once_and_nothing_of_it_is_fetched(
    storage, start, monkeypatch
) -> None:
    publish(storage, 1)
    server = start()
    server.settle()
    reports, free = [], 1 << 20
    server.source._on_report = lambda report: (reports.append(report), server._report(report))
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free, f_frsize=1))
    publish(storage, 2, bytes(2 << 20))
    server.settle()
    told, gets = len(reports), storage.requests["get"]
    assert server.waiting() == {2: "the disk of the cache has about 1.0 MiB free, and the files need 2.0 MiB"}
    server.settle()
    server.settle()
    assert (len(reports), storage.requests["get"]) == (told, gets)
    assert server.reports["m"].fetching == frozenset()
    assert server.versions() == [1]
    free = 4 << 20
    server.settle()
    assert server.versions() == [2]


# Files beside.

CONFIG = b"""name: "m"
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "labels.txt" }
"""


def test_the_config_and_what_it_names_lie_beside_the_fetched_version(storage, start) -> None:
    for path, data in {"config.pbtxt": CONFIG, "labels.txt": b"cat", "notes.md": b"x", "data/x": b"x"}.items():
        storage.set(f"m/{path}", data)
    publish(storage, 1)
    server = start()
    server.settle()
    root = server.local("1").parent
    assert sorted(name for name in os.listdir(root) if not name.startswith(".")) == ["1", "config.pbtxt", "labels.txt"]
    assert (root / "labels.txt").read_bytes() == b"cat"


def test_what_has_changed_beside_is_brought_before_the_list_goes_out(storage, start) -> None:
    storage.set("m/config.pbtxt", CONFIG)
    storage.set("m/labels.txt", b"cat")
    publish(storage, 1)
    server = start()
    server.settle()
    revision, labels = server.lists["m"][0].revision, server.local("1").parent / "labels.txt"
    seen: list[bytes] = []
    server.source.set_aspired_versions_callback(
        lambda name, versions: seen.append(labels.read_bytes()) if versions[0].revision != revision else None
    )
    storage.set("m/labels.txt", b"dog")
    gets = storage.requests["get"]
    server.poll()
    assert seen == [b"dog"]
    assert storage.requests["get"] == gets + 1
    storage.objects.pop("m/labels.txt")
    server.poll()
    assert not labels.exists()


def test_recorded_answers_lie_beside_the_fetched_version_and_change_no_files_of_it(storage, start) -> None:
    storage.set("m/replay.tfrecord", b"recorded")
    publish(storage, 1)
    server = start()
    server.settle()
    revision, recording = server.lists["m"][0].revision, server.local("1").parent / "replay.tfrecord"
    assert recording.read_bytes() == b"recorded"
    storage.set("m/replay.tfrecord", b"recorded anew")
    server.poll()
    assert recording.read_bytes() == b"recorded anew"
    assert server.lists["m"][0].revision != revision
    assert has_state(server.lists["m"][0].revision, revision.partition("/")[0])
    storage.objects.pop("m/replay.tfrecord")
    server.poll()
    assert not recording.exists()


def test_a_config_in_the_version_is_brought_again_and_the_version_is_not(storage, start) -> None:
    publish(storage, 1)
    storage.set("m/1/config.pbtxt", CONFIG)
    server = start()
    server.settle()
    path, before = server.local("1"), storage.requests["get"]
    storage.set("m/1/config.pbtxt", CONFIG + b"# other")
    server.settle()
    assert server.local("1") == path
    assert (path / "config.pbtxt").read_bytes() == CONFIG + b"# other"
    assert storage.requests["get"] - before <= 2


def test_a_file_beside_that_cannot_be_brought_makes_the_listing_fail_and_no_change_is_lost(storage, start) -> None:
    storage.set("m/config.pbtxt", CONFIG)
    storage.set("m/labels.txt", b"cat")
    publish(storage, 1)
    server = start()
    server.settle()
    emitted, revision = server.emitted, server.lists["m"][0].revision
    storage.set("m/labels.txt", b"dog")
    storage.fault = lambda operation, path: unavailable() if path == "m/labels.txt" else None
    server.poll()
    assert server.emitted == emitted
    assert server.problem().startswith("UNAVAILABLE")
    storage.fault = lambda operation, path: None
    server.poll()
    assert server.lists["m"][0].revision != revision
    assert (server.local("1").parent / "labels.txt").read_bytes() == b"dog"


def test_a_config_that_names_too_much_beside_is_refused_with_the_bound(storage, start) -> None:
    storage.set("m/config.pbtxt", CONFIG)
    storage.set("m/labels.txt", b"c" * ((64 << 20) + 1))
    publish(storage, 1)
    server = start()
    server.settle()
    assert server.waiting()[1].startswith("it needs more than 100 files beside the versions, or 67108864 bytes")


def test_files_beside_are_brought_of_a_deep_listing_too(storage, start) -> None:
    data = b'{ key: "x" value { data_type: TYPE_FP32 dims: [1] input_data_file: "x" } }'
    config = CONFIG + b'model_warmup { name: "w" inputs ' + data + b" }"
    for number in range(PAGE):
        storage.set(f"m/1/{number}", b"x")
    storage.set("m/config.pbtxt", config)
    storage.set("m/labels.txt", b"cat")
    storage.set("m/warmup/x", b"data")
    server = start()
    server.settle()
    root = server.local("1").parent
    assert ((root / "labels.txt").read_bytes(), (root / "warmup" / "x").read_bytes()) == (b"cat", b"data")
    storage.set("m/labels.txt", b"dog")
    server.settle()
    assert (root / "labels.txt").read_bytes() == b"dog"


# The cache.


def test_a_start_with_the_version_in_the_cache_fetches_nothing_and_waits_for_nothing(storage, start) -> None:
    put(storage, 1)
    publish(storage, 2)
    server = start()
    server.config("m", policy=AllPolicy())
    server.settle()
    assert server.versions() == [1, 2]
    before, again = storage.requests["get"], start()
    again.config("m", policy=AllPolicy())
    again.source.poll()
    again.source.poll()
    assert again.versions() == [1, 2]
    assert storage.requests["get"] == before


@pytest.mark.parametrize("error", [unavailable(), refused()], ids=["no answer", "refuses"])
def test_a_start_without_the_storage_offers_what_is_in_the_cache(storage, start, error) -> None:
    storage.set("m/config.pbtxt", CONFIG)
    storage.set("m/labels.txt", b"cat")
    publish(storage, 1)
    publish(storage, 2)
    first = start()
    first.settle()
    last_good = first.clock.time() - INTERVAL
    storage.fault = lambda operation, path: error
    gets, lists, server = storage.requests["get"], storage.requests["list"], start()
    server.source.poll()
    server.source.poll()
    assert server.versions() == [2]
    asked = storage.requests["list"] - lists
    assert asked == (1 if error.is_transient else 2), "what is in the cache does not wait for a storage that is silent"
    server.settle()
    assert server.problem() == "OK"
    assert storage.requests["get"] == gets
    condition = server.disk.condition(BASE)
    assert condition is not None
    assert (condition.from_cache, condition.sentence, condition.last_good) == (True, error.sentence, last_good)
    storage.fault = lambda operation, path: None
    publish(storage, 3)
    server.settle()
    assert server.versions() == [3]
    condition = server.disk.condition(BASE)
    assert condition is not None
    assert not condition.from_cache


@pytest.mark.parametrize("is_away", [False, True], ids=["storage there", "storage away"])
def test_a_start_with_what_is_wanted_in_the_cache_says_of_no_version_that_it_is_fetched(
    storage, start, is_away: bool
) -> None:
    """Version 1, which nothing wants, is there too."""
    publish(storage, 1)
    first = start()
    first.settle()
    publish(storage, 2)
    first.settle()
    storage.fault = lambda operation, path: unavailable() if is_away else None
    reports: list[SourceReport] = []
    server = start()
    server.source._on_report = lambda report: (reports.append(report), server._report(report))
    server.settle()
    assert server.versions() == [2]
    assert [report.waiting for report in reports if report.waiting] == []


def test_a_start_without_the_storage_offers_nothing_of_a_bucket_of_this_name_elsewhere(
    storage, start, monkeypatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://staging:9000")
    publish(storage, 1)
    start().settle()
    storage.fault = lambda operation, path: unavailable()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://production:9000")
    elsewhere = start()
    elsewhere.settle()
    assert elsewhere.versions() is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://staging:9000")
    again = start()
    again.settle()
    assert again.versions() == [1]


def test_a_start_without_the_storage_and_with_nothing_in_the_cache_says_so(storage, start, tmp_path) -> None:
    publish(storage, 1)
    first = start()
    first.settle()
    shutil.rmtree(tmp_path / "cache" / Path(first.local("1")).parent.name)
    storage.fault = lambda operation, path: unavailable()
    server = start()
    server.settle()
    assert server.versions() is None
    assert server.problem().endswith("the storage answers 503 SlowDown")


def test_an_empty_listing_at_the_start_takes_nothing_out_of_service(storage, start) -> None:
    publish(storage, 1)
    start().settle()
    storage.objects.clear()
    server = start()
    server.settle()
    assert server.versions() == [1]
    condition = server.disk.condition(BASE)
    assert condition is not None
    assert (condition.from_cache, condition.sentence) == (True, EMPTY_NOW)
    publish(storage, 2)
    server.settle()
    assert server.versions() == [2]
    storage.objects.clear()
    server.settle()
    assert server.versions() == [2]


def test_a_storage_that_says_that_there_is_no_bucket_is_believed_at_the_start(storage, start) -> None:
    publish(storage, 1)
    start().settle()
    storage.fault = lambda operation, path: StorageError(StatusCode.NOT_FOUND, "there is no such bucket")
    server = start()
    server.settle()
    assert server.versions() is None
    assert server.problem().startswith("NOT_FOUND")


def test_notes_of_two_servers_on_one_cache_do_not_undo_one_another(storage, start) -> None:
    publish(storage, 1)
    first, second = start(), start()
    first.settle()
    publish(storage, 2)
    second.settle()
    first.poll()
    storage.fault = lambda operation, path: unavailable()
    server = start()
    server.config("m", policy=AllPolicy())
    server.settle()
    assert server.versions() == [1, 2]


def test_a_version_that_is_gone_from_the_cache_is_fetched_again_and_stays_offered(storage, start, tmp_path) -> None:
    publish(storage, 1)
    server = start()
    server.settle()
    revision = server.lists["m"][0].revision
    shutil.rmtree(tmp_path / "cache")
    assert server.disk.local(f"{BASE}/1") is None
    server.source.poll()
    assert server.versions() == [1]
    server.settle()
    assert (server.local("1") / "model.bin").read_bytes() == b"weights"
    assert server.lists["m"][0].revision == revision


# Base paths.


def test_what_is_known_of_a_base_path_that_is_gone_is_forgotten(storage, start) -> None:
    publish(storage, 1)
    server = start()
    server.settle()
    server.config("n")
    assert server.disk.condition(BASE) is None
    assert server.disk.local(f"{BASE}/1") is None


def test_a_base_path_inside_another_one_has_listings_of_its_own(storage, start) -> None:
    put(storage, 1, name="m")
    put(storage, 7, name="m/n")
    server = start("m", "m/n")
    server.settle()
    assert (server.versions("m"), server.versions("m/n")) == ([1], [7])
    assert server.poll() == 2


def test_ends_of_archives_are_read_by_ranges_and_come_from_the_cache_later(storage, start, archive: bytes) -> None:
    storage.set("m/1/model.pt2", archive)
    server = start()
    server.settle()
    assert server.versions() == [1]
    storage.set("m/2/model.pt2", archive[:-30])
    server.settle()
    assert server.waiting() == {2: "model.pt2 is truncated: the zip directory at its end is missing"}
    with server.disk.open(f"{BASE}/1/model.pt2") as file:
        assert file.read() == archive


def test_an_archive_that_something_between_has_answered_for_is_opened_again_later(storage, start, archive) -> None:
    storage.set("m/1/model.pt2", archive)
    right = storage.read
    storage.read = lambda path, start=0, tag="": iter([b"<html>Sign in</html>" + bytes(len(archive))])
    server = start()
    server.settle()
    assert server.waiting() == {
        1: "model.pt2 is a web page, as a download that failed leaves it, and no model: fetch the model again"
    }
    storage.read = lambda path, start=0, tag="": iter([b"<html>"])
    server.settle()
    assert server.waiting() == {1: "the answer of the storage cannot be read"}
    storage.read = right
    server.settle()
    assert server.versions() == [1]


def test_an_archive_that_stays_damaged_is_opened_less_and_less_often(storage, start, archive) -> None:
    storage.set("m/1/model.pt2", archive[:-30])
    server = start()
    for _ in range(24 * 60):
        server.poll()
    assert server.waiting() == {1: "model.pt2 is truncated: the zip directory at its end is missing"}
    assert 24 <= storage.requests["get"] <= 35


@pytest.mark.parametrize("name", ["model.pt2", "config.pbtxt"])
def test_an_object_that_comes_byte_by_byte_holds_a_look_up_for_seconds(storage, start, archive: bytes, name) -> None:
    """The storage gives a piece a second, so none of its own bounds ends the read."""
    storage.set("m/1/model.pt2", archive)
    server = start()
    server.settle()
    storage.set("m/2/model.pt2", archive)
    storage.set("m/2/config.pbtxt", CONFIG)
    storage.read, read = lambda *asked: drip(read(*asked)), storage.read

    def drip(pieces: Iterator[bytes]) -> Iterator[bytes]:
        for byte in b"".join(pieces):
            server.clock.advance(1.0)
            yield bytes([byte])

    before = server.clock.monotonic()
    with pytest.raises(StorageError, match="the storage answers too slowly"):
        server.disk.open(f"{BASE}/2/{name}").read() if server.disk.stamp(BASE) else None
    assert server.clock.monotonic() - before < 2 * READ_SECONDS


def test_a_version_in_the_root_of_the_bucket_is_one(storage, clock, tmp_path) -> None:
    storage.set("1/model.bin", b"weights")
    server = Server(storage, clock, tmp_path)
    server.settings = SourceConfig((ServableToMonitor("m", "s3://bucket"),), poll_interval=None, quiet_period=30.0)
    server.disk.set_bases(["s3://bucket"])
    server.source.update_config(server.settings)
    server.settle()
    assert server.versions() == [1]
    server.source.close()
