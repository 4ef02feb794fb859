"""Processes that share a cache of files: killed at any byte, waiting for one another, and on a disk that is full."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.remote.fetch_program import FILES, SIZE, content_of, stored
from tests.support.storage import PIECE
from tfs_lite.core.status import StatusCode
from tfs_lite.storage.fetch import Fetcher, RemoteVersion, has_all_files
from tfs_lite.storage.files_cache import FilesCache
from tfs_lite.storage.store import StorageError

ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0


class FetchProcess:
    """A process that fetches the version into the cache."""

    def __init__(self, cache: Path, **settings: object) -> None:
        command = [sys.executable, "-m", "tests.support.remote.fetch_program", str(cache), json.dumps(settings)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def next(self, stage: str) -> dict[str, Any]:
        """The next line that it writes, which is of this stage."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        found: dict[str, Any] = json.loads(line)
        assert found["stage"] == stage
        return found

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.ends(-signal.SIGKILL)

    def ends(self, code: int = 0) -> list[dict[str, Any]]:
        """The lines that are left of its output."""
        out, errors = self.process.communicate(timeout=TIMEOUT)
        assert self.process.returncode == code, errors
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def version() -> RemoteVersion:
    return stored()[1]


def left_on_disk(cache: Path, version: RemoteVersion) -> int:
    """Bytes of the part of the version, after a look at it: each file is a beginning of the right one."""
    total = 0
    for name in FILES:
        path = cache / f"{version.key}.partial" / "1" / name
        if path.exists():
            data = path.read_bytes()
            assert content_of(name).startswith(data)
            total += len(data)
    return total


def check_whole(cache: Path, version: RemoteVersion) -> None:
    for name in FILES:
        assert (cache / version.key / "1" / name).read_bytes() == content_of(name)
    assert sorted(entry.name for entry in cache.iterdir()) == sorted([version.key, "bases", "locks"])


@pytest.mark.load
def test_fetch_that_is_killed_at_every_tenth_reads_each_byte_once(cache: Path, version: RemoteVersion) -> None:
    before = 0
    for tenth in range(1, 10):
        killed = FetchProcess(cache, kill_at=SIZE * tenth // 10)
        killed.ends(-signal.SIGKILL)
        left = left_on_disk(cache, version)
        assert before < left <= SIZE * tenth // 10 + PIECE
        assert FilesCache(str(cache), 1 << 30, has_all_files).find(version.key, "1") is None
        before = left
    begun, fetched, ended = FetchProcess(cache).ends()
    assert (begun["stage"], ended["stage"]) == ("begun", "ends")
    assert fetched["fetched"] == SIZE - before
    check_whole(cache, version)


@pytest.mark.load
@pytest.mark.parametrize("tenth", range(1, 10))
def test_fetch_that_was_killed_at_a_tenth_goes_on_there(cache: Path, version: RemoteVersion, tenth: int) -> None:
    FetchProcess(cache, kill_at=SIZE * tenth // 10).ends(-signal.SIGKILL)
    left = left_on_disk(cache, version)
    _, fetched, _ = FetchProcess(cache).ends()
    assert fetched["fetched"] == SIZE - left
    check_whole(cache, version)


def test_fetch_that_was_killed_when_all_was_written_asks_for_nothing(cache: Path, version: RemoteVersion) -> None:
    FetchProcess(cache, kill_before_rename=True).ends(-signal.SIGKILL)
    assert left_on_disk(cache, version) == SIZE
    _, fetched, ended = FetchProcess(cache).ends()
    assert fetched["fetched"] == 0
    assert ended["gets"] == 0
    check_whole(cache, version)


def test_of_two_processes_one_fetches_and_one_waits(cache: Path, version: RemoteVersion) -> None:
    first = FetchProcess(cache, pause=True)
    first.next("begun")
    first.next("fetches")
    second = FetchProcess(cache)
    second.next("waits")
    first.go_on()
    assert [line["stage"] for line in first.ends()] == ["fetched", "ends"]
    (ended,) = second.ends()
    assert ended["gets"] == 0
    check_whole(cache, version)


def test_who_waits_goes_on_where_the_other_process_was_killed(cache: Path, version: RemoteVersion) -> None:
    first = FetchProcess(cache, pause=True)
    first.next("begun")
    first.next("fetches")
    second = FetchProcess(cache)
    second.next("waits")
    first.kill()
    begun, fetched, _ = second.ends()
    assert begun["stage"] == "begun"
    assert fetched["fetched"] == SIZE - PIECE
    check_whole(cache, version)


# A disk that is full.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """5 MiB: a version fits, and no two."""
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=5m", "tfs-lite-test", str(directory)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a disk of a test's own needs the right to mount one")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_version_that_the_disk_cannot_take_is_not_begun_until_another_one_may_go(small_disk: Path) -> None:
    storage, version = stored()
    other = RemoteVersion("s3://bucket/other", "1", "m/1", version.files)
    cache = FilesCache(str(small_disk / "cache"), 1 << 30, has_all_files)
    fetcher = Fetcher(storage, cache, threading.Event())
    fetcher.fetch(version)
    assert cache.hold(version.key)
    with pytest.raises(StorageError, match=r"the disk of the cache has about .* free, and the files need") as caught:
        fetcher.fetch(other)
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    check_whole(small_disk / "cache", version)  # it is held
    cache.release(version.key)
    fetcher.fetch(other)
    check_whole(small_disk / "cache", other)
