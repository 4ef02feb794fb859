"""A version from a storage into the cache: resumed, tried again for two minutes of virtual time, and never half."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.storage import PIECE, MemoryStorage, unavailable
from tfs_lite.core.manifest import MANIFEST_NAME, Manifest, ManifestFile
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.storage.fetch import (
    CLAIM_NAME,
    PROGRESS,
    Fetcher,
    FetchEvent,
    FetchProgress,
    FetchStage,
    RemoteVersion,
    has_all_files,
    version_key,
    wanted_files,
    with_digests,
)
from tfs_lite.storage.files_cache import Download, FilesCache
from tfs_lite.storage.store import RemoteFile, StorageError

TIMEOUT = 60.0
WEIGHTS = bytes(range(256)) * 4096
"""1 MiB, in 16 pieces."""


def list_version(storage: MemoryStorage, prefix: str = "m/1", manifest: Manifest | None = None) -> RemoteVersion:
    """The version as a listing shows it now."""
    found = storage.files(prefix).files
    files = wanted_files(replace(file, path=file.path.removeprefix(f"{prefix}/")) for file in found)
    if manifest is not None:
        files = with_digests(files, manifest)
    return RemoteVersion("s3://bucket/m", "1", prefix, files)


def manifest_of(**contents: bytes) -> Manifest:
    return Manifest(
        {
            name.replace("__", "."): ManifestFile(len(data), hashlib.sha256(data).hexdigest())
            for name, data in contents.items()
        }
    )


class Machine:
    """A process with a cache in ``root``. Sleeps are noted and take no time."""

    def __init__(self, root: Path, storage: MemoryStorage, most: int = 1 << 30) -> None:
        self.storage = storage
        self.cache = FilesCache(str(root), most, has_all_files)
        self.stop = threading.Event()
        self.events: list[FetchEvent] = []
        self.slept: list[float] = []
        self.read = 0
        self.fetcher = Fetcher(storage, self.cache, self.stop, self.events.append, self.slept.append)

    def fetch(self, version: RemoteVersion, cancelled: Callable[[], bool] = lambda: False) -> Path:
        return Path(self.fetcher.fetch(version, cancelled, self._count))

    def _count(self, size: int) -> None:
        self.read += size

    def fails(self, version: RemoteVersion, code: StatusCode, cancelled: Callable[[], bool] = lambda: False) -> str:
        """The sentence of the error."""
        with pytest.raises(StorageError) as caught:
            self.fetch(version, cancelled)
        assert caught.value.code is code
        assert self.fetcher.progress(version.key) is None
        return caught.value.sentence

    @property
    def stages(self) -> list[FetchStage]:
        return [event.stage for event in self.events]


@pytest.fixture
def storage() -> MemoryStorage:
    """With one version, of a large file, a small one and an empty one."""
    made = MemoryStorage()
    made.set("m/1/model.pt2", WEIGHTS)
    made.set("m/1/data/words.txt", b"words")
    made.set("m/1/data/empty", b"")
    return made


@pytest.fixture
def machine(tmp_path: Path, storage: MemoryStorage) -> Machine:
    return Machine(tmp_path / "cache", storage)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# Values.


def remote(path: str, size: int = 1, tag: str = "t", sha256: str = "") -> RemoteFile:
    return RemoteFile(path, size, tag, sha256=sha256)


def test_files_of_a_version_are_those_that_a_disk_would_have() -> None:
    wanted = ["config.yaml", "data/a.bin", "model.pt2", MANIFEST_NAME]
    litter = ["../x", "a/../../x", "__pycache__/x.pyc", ".DS_Store", "train.log", CLAIM_NAME]
    markers = [remote("data", 0), remote("data/", 0), remote("other/", 0)]
    found = wanted_files([*map(remote, [*litter, *wanted]), *markers, remote("empty", 0)])
    assert [file.path for file in found] == sorted([*wanted, "empty"])


@pytest.mark.parametrize("names", [["a", "a/b"], ["a//b"], ["a\0b"], ["x", "x"]])
def test_names_that_no_directory_can_have_are_refused(names: list[str]) -> None:
    with pytest.raises(ServingError) as caught:
        wanted_files(map(remote, names))
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_too_many_files_are_refused() -> None:
    with pytest.raises(ServingError, match="too many files"):
        wanted_files(remote(f"f{number}") for number in range(10_001))


def test_key_tells_states_apart_but_not_what_was_uploaded_again_unchanged() -> None:
    def key(*files: RemoteFile, base: str = "s3://b/m", directory: str = "1") -> str:
        return version_key(base, directory, files)

    first = key(remote("model.pt2"))
    assert len(first) == 32
    assert first == key(remote("model.pt2"), remote("config.yaml", 7, "other"), remote(MANIFEST_NAME, 9))
    assert key(remote("model.pt2", 1, "a", "5a")) == key(remote("model.pt2", 1, "b", "5a"))
    others = [
        key(remote("model.pt2", 2)),
        key(remote("model.pt2", tag="u")),
        key(remote("model.pt3")),
        key(remote("model.pt2"), remote("b")),
        key(remote("data/config.yaml"), remote("model.pt2")),
        key(remote("model.pt2"), base="s3://b/n"),
        key(remote("model.pt2"), directory="01"),
    ]
    assert len({first, *others}) == 1 + len(others)


def test_configs_have_no_digest_of_the_manifest() -> None:
    manifest = manifest_of(model__pt2=b"a", config__yaml=b"b")
    model, config = with_digests([remote("model.pt2"), remote("config.yaml")], manifest)
    assert model.sha256 == hashlib.sha256(b"a").hexdigest()
    assert config.sha256 == ""


# Fetches.


def test_version_is_fetched_once_a_machine(machine: Machine, storage: MemoryStorage, tmp_path: Path) -> None:
    version = list_version(storage)
    directory = machine.fetch(version)
    assert directory == tmp_path / "cache" / version.key / "1"
    assert contents(directory) == {"model.pt2": WEIGHTS, "data/words.txt": b"words", "data/empty": b""}
    assert storage.requests["get"] == 2
    assert machine.read == version.size
    assert machine.stages == [FetchStage.BEGUN, FetchStage.FETCHED]
    assert machine.events[-1].fetched_bytes == version.size
    assert machine.events[-1].attempts == 1
    other = Machine(tmp_path / "cache", storage)
    assert other.fetch(version) == directory
    assert storage.requests["get"] == 2
    assert other.events == []


def test_nothing_is_held_after_a_fetch(machine: Machine, storage: MemoryStorage) -> None:
    version = list_version(storage)
    machine.fetch(version)
    machine.fetch(version)
    machine.cache.evict(1)
    assert machine.cache.find(version.key, "1") is None


def test_large_files_come_first(machine: Machine, storage: MemoryStorage) -> None:
    asked: list[str] = []
    storage.fault = lambda operation, path: asked.append(path) if operation == "get" else None
    machine.fetch(list_version(storage))
    assert asked == ["m/1/model.pt2", "m/1/data/words.txt"]


def test_fetched_version_with_a_file_too_short_is_fetched_again(machine: Machine, storage: MemoryStorage) -> None:
    version = list_version(storage)
    directory = machine.fetch(version)
    (directory / "data" / "words.txt").write_bytes(b"word")
    assert machine.cache.find(version.key, "1") is None
    assert contents(machine.fetch(version))["data/words.txt"] == b"words"


def test_config_that_was_changed_later_leaves_the_version_whole(machine: Machine, storage: MemoryStorage) -> None:
    storage.set("m/1/config.yaml", b"a: 1")
    version = list_version(storage)
    directory = machine.fetch(version)
    assert (directory / "config.yaml").read_bytes() == b"a: 1"
    (directory / "config.yaml").write_bytes(b"a: 123")
    assert machine.cache.find(version.key, "1") == str(directory)


# Retries.


def test_storm_ends_a_fetch_after_eight_attempts_and_two_minutes(machine: Machine, storage: MemoryStorage) -> None:
    version = list_version(storage)
    storage.fault = lambda operation, path: unavailable()
    sentence = machine.fails(version, StatusCode.UNAVAILABLE)
    assert sentence == (
        "its files cannot be fetched: the storage answers 503 SlowDown; tried 8 times, again with the next poll"
    )
    assert storage.requests["get"] == 8
    assert 122.9 < sum(machine.slept) < 131
    assert max(machine.slept) <= 0.5
    assert machine.stages == [FetchStage.BEGUN, FetchStage.FAILED]
    assert machine.events[-1].attempts == 8


def test_next_fetch_after_a_storm_goes_on(machine: Machine, storage: MemoryStorage) -> None:
    version = list_version(storage)
    storage.cut = lambda path, given: unavailable() if given >= PIECE else None
    machine.fails(version, StatusCode.UNAVAILABLE)  # 8 attempts, 64 KiB each, none with progress
    storage.cut = lambda path, given: None
    directory = machine.fetch(version)
    assert machine.events[-1].fetched_bytes == version.size - 8 * PIECE
    assert contents(directory)["model.pt2"] == WEIGHTS


def test_body_that_is_cut_again_and_again_comes_whole_without_a_wait(machine: Machine, storage: MemoryStorage) -> None:
    storage.set("m/1/model.pt2", WEIGHTS * 4)
    storage.cut = lambda path, given: unavailable("the storage does not answer") if given >= PROGRESS else None
    directory = machine.fetch(list_version(storage))
    assert contents(directory)["model.pt2"] == WEIGHTS * 4
    assert machine.slept == []
    assert machine.events[-1].attempts == 16
    assert machine.events[-1].fetched_bytes == 4 * len(WEIGHTS) + 5


def test_body_that_ends_early_without_an_error_is_asked_for_again(machine: Machine, storage: MemoryStorage) -> None:
    version = list_version(storage)

    def half(path: str, start: int = 0, tag: str = "") -> list[bytes]:
        return [WEIGHTS[start : start + PROGRESS]] if path.endswith("pt2") else [b"words"]

    storage.read = half  # type: ignore[assignment, method-assign]
    assert contents(machine.fetch(version))["model.pt2"] == WEIGHTS


def test_refusal_is_not_repeated(machine: Machine, storage: MemoryStorage) -> None:
    version = list_version(storage)
    refusal = StorageError(StatusCode.PERMISSION_DENIED, "the storage refuses (403 AccessDenied)")
    storage.fault = lambda operation, path: refusal
    sentence = machine.fails(version, StatusCode.PERMISSION_DENIED)
    assert sentence == "its files cannot be fetched: the storage refuses (403 AccessDenied)"
    assert storage.requests["get"] == 1
    assert machine.slept == []


def test_progress_tells_attempt_bytes_and_last_failure(machine: Machine, storage: MemoryStorage) -> None:
    version = list_version(storage)
    seen: list[FetchProgress | None] = []

    def cut(path: str, given: int) -> StorageError | None:
        seen.append(machine.fetcher.progress(version.key))
        return unavailable() if storage.requests["get"] == 1 and given >= PIECE else None

    storage.cut = cut
    machine.fetch(version)
    first, last = seen[0], seen[-1]
    assert first is not None
    assert last is not None
    assert (first.size, first.done, first.attempt, first.sentence) == (version.size, 0, 1, "")
    assert (last.done, last.fetched, last.attempt) == (len(WEIGHTS), len(WEIGHTS), 2)
    assert last.sentence == "the storage answers 503 SlowDown"
    assert last.failed_at > 0
    assert not last.waits
    assert machine.fetcher.progress(version.key) is None


# Faults that no repetition mends.


@pytest.mark.parametrize("change", ["replaced", "deleted", "longer"])
def test_file_that_changes_meanwhile_ends_the_fetch_and_loses_what_came_of_it(
    machine: Machine, storage: MemoryStorage, tmp_path: Path, change: str
) -> None:
    version = list_version(storage)
    if change == "longer":
        files = tuple(replace(file, tag="", size=min(file.size, 2 * PIECE)) for file in version.files)
        version = RemoteVersion(version.base, version.directory, version.prefix, files)

    def cut(path: str, given: int) -> StorageError | None:
        if storage.requests["get"] > 1 or given < PIECE or change == "longer":
            return None
        storage.set("m/1/model.pt2", b"v" * len(WEIGHTS))
        if change == "deleted":
            storage.delete("m/1/model.pt2")
        return unavailable()

    storage.cut = cut
    assert machine.fails(version, StatusCode.ABORTED) == "model.pt2 was changed while it was fetched"
    assert contents(tmp_path / "cache" / f"{version.key}.partial") == {}
    if change == "replaced":
        assert contents(machine.fetch(list_version(storage)))["model.pt2"] == b"v" * len(WEIGHTS)


def test_wrong_digest_is_data_loss_and_nothing_is_kept_of_the_file(
    machine: Machine, storage: MemoryStorage, tmp_path: Path
) -> None:
    storage.set(f"m/1/{MANIFEST_NAME}", b"{}")
    version = list_version(storage, manifest=manifest_of(model__pt2=b"other"))
    sentence = machine.fails(version, StatusCode.DATA_LOSS)
    assert sentence == "model.pt2 does not have the sha256 digest that the manifest lists"
    assert storage.requests["get"] == 1
    assert contents(tmp_path / "cache" / f"{version.key}.partial") == {}


def test_damage_that_an_earlier_process_has_left_is_fetched_anew(machine: Machine, storage: MemoryStorage) -> None:
    version = list_version(storage, manifest=manifest_of(model__pt2=WEIGHTS))
    download = machine.cache.find_or_begin(version.key, "1", version.size, resume=True)
    assert isinstance(download, Download)
    download.write("model.pt2", bytes(PIECE))
    download.leave()
    assert contents(machine.fetch(version))["model.pt2"] == WEIGHTS
    assert storage.requests["get"] == 3


def test_config_that_an_earlier_process_has_left_is_fetched_anew(machine: Machine, storage: MemoryStorage) -> None:
    version = list_version(storage)
    download = machine.cache.find_or_begin(version.key, "1", version.size, resume=True)
    assert isinstance(download, Download)
    download.write("config.yaml", b"old")
    download.write("config.pbtxt", b"that is gone since")
    download.write("model.pt2", WEIGHTS + b"longer than it is")
    download.leave()
    storage.set("m/1/config.yaml", b"newer")
    found = list_version(storage)
    assert found.key == version.key
    fetched = contents(machine.fetch(found))
    assert fetched["config.yaml"] == b"newer"
    assert "config.pbtxt" not in fetched
    assert fetched["model.pt2"] == WEIGHTS


def test_without_room_the_numbers_are_told(tmp_path: Path, storage: MemoryStorage) -> None:
    machine = Machine(tmp_path / "cache", storage, most=1000)
    version = list_version(storage)
    sentence = machine.fails(version, StatusCode.RESOURCE_EXHAUSTED)
    assert sentence == f"model_cache_bytes is 1000: 1000 are left, and the files have {version.size}"
    assert machine.stages == [FetchStage.FAILED]
    assert storage.requests["get"] == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_loses_the_part_at_once_and_what_nobody_uses(
    machine: Machine, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    for name in ("held", "unused"):
        storage.set(f"{name}/1/model.pt2", name.encode())
    held, unused = (list_version(storage, f"{name}/1") for name in ("held", "unused"))
    machine.fetch(held)
    machine.fetch(unused)
    assert machine.cache.hold(held.key)
    write = Download.write

    def full(download: Download, name: str, chunk: bytes) -> None:
        if download.written(name):
            raise OSError(number, os.strerror(number))
        write(download, name, chunk)

    version = list_version(storage)
    monkeypatch.setattr(Download, "write", full)
    assert machine.fails(version, StatusCode.RESOURCE_EXHAUSTED) == "the disk of the cache is full"
    assert machine.cache.find(held.key, "1")
    assert machine.cache.find(unused.key, "1") is None
    assert not (tmp_path / "cache" / f"{version.key}.partial").exists()
    assert machine.slept == []
    monkeypatch.setattr(Download, "write", write)
    machine.fetch(version)


def test_cache_that_is_removed_while_a_fetch_writes_to_it_is_made_anew(
    machine: Machine, storage: MemoryStorage, tmp_path: Path
) -> None:
    version = list_version(storage)

    def cut(path: str, given: int) -> None:
        if given == PIECE and (tmp_path / "cache").exists():
            (tmp_path / "cache").rename(tmp_path / "removed")

    storage.cut = cut
    sentence = machine.fails(version, StatusCode.FAILED_PRECONDITION)
    assert sentence == "the directory of the cache: No such file or directory"
    storage.cut = lambda path, given: None
    machine.fetch(version)


# Cancellation.


def test_fetch_that_is_not_wanted_any_more_ends_with_its_next_piece_and_keeps_its_bytes(
    machine: Machine, storage: MemoryStorage, tmp_path: Path
) -> None:
    version = list_version(storage)
    machine.fails(version, StatusCode.CANCELLED, lambda: machine.read >= 3 * PIECE)
    assert machine.events[-1].code is StatusCode.CANCELLED
    machine.fetch(version)
    assert machine.events[-1].fetched_bytes == version.size - 3 * PIECE


def test_fetch_that_is_not_wanted_any_more_waits_no_longer_for_its_next_attempt(
    machine: Machine, storage: MemoryStorage
) -> None:
    version = list_version(storage)
    storage.fault = lambda operation, path: unavailable()
    machine.fails(version, StatusCode.CANCELLED, lambda: sum(machine.slept) > 10)
    assert sum(machine.slept) < 11


def test_stop_wakes_a_fetch_that_waits_for_its_next_attempt(tmp_path: Path, storage: MemoryStorage) -> None:
    cache, stop = FilesCache(str(tmp_path / "cache"), 1 << 30, has_all_files), threading.Event()
    version = list_version(storage)

    def fault(operation: str, path: str) -> StorageError:
        stop.set()
        return unavailable()

    storage.fault = fault
    with pytest.raises(StorageError) as caught:
        Fetcher(storage, cache, stop).fetch(version)
    assert caught.value.code is StatusCode.CANCELLED
    assert storage.requests["get"] == 1


# Two fetches of one version.


def test_one_fetches_and_the_other_waits(tmp_path: Path, storage: MemoryStorage) -> None:
    first, second = (Machine(tmp_path / "cache", storage) for _ in range(2))
    version = list_version(storage)
    started, waits = threading.Event(), threading.Event()

    def cut(path: str, given: int) -> None:
        started.set()
        assert waits.wait(TIMEOUT)

    def looks() -> bool:
        progress = second.fetcher.progress(version.key)
        assert progress is not None
        assert progress.waits
        waits.set()
        return False

    storage.cut = cut
    thread = threading.Thread(target=first.fetch, args=(version,))
    thread.start()
    assert started.wait(TIMEOUT)
    directory = second.fetch(version, looks)
    thread.join(TIMEOUT)
    assert contents(directory)["model.pt2"] == WEIGHTS
    assert storage.requests["get"] == 2
    assert first.stages == [FetchStage.BEGUN, FetchStage.FETCHED]
    assert second.events == []


def test_who_waits_in_the_same_process_does_not_hide_the_progress_of_the_other(
    machine: Machine, storage: MemoryStorage
) -> None:
    version = list_version(storage)
    started, given_up = threading.Event(), threading.Event()

    def cut(path: str, given: int) -> None:
        started.set()
        assert given_up.wait(TIMEOUT)

    storage.cut = cut
    thread = threading.Thread(target=machine.fetch, args=(version,))
    thread.start()
    assert started.wait(TIMEOUT)
    with pytest.raises(StorageError):
        machine.fetch(version, lambda: True)
    progress = machine.fetcher.progress(version.key)
    assert progress is not None
    assert not progress.waits
    given_up.set()
    thread.join(TIMEOUT)
    assert machine.stages == [FetchStage.BEGUN, FetchStage.FETCHED]
