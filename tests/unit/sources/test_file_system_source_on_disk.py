"""The file-system source with its thread, the real disk and real events.

Every source here polls once a minute at most, far longer than any test waits: what is noticed is noticed by watching.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import ServableData
from tfs_lite.sources.disk import DirectoryEntry, Disk, RealDisk
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource, ServableToMonitor, SourceConfig
from tfs_lite.sources.source_config import SourceReport
from tfs_lite.sources.version_scan import AllPolicy

POLL_INTERVAL = 60.0
BOUND = 30.0
PROMPT = 5.0
QUIET = 0.05


class Watched:
    """A running source; waits for what it says."""

    def __init__(self, disk: Disk, *servables: ServableToMonitor, **settings: Any) -> None:
        self.changed = threading.Condition()
        self.lists: dict[str, list[ServableData[str]]] = {}
        self.reports: dict[str, SourceReport] = {}
        self.polls = 0
        self.clock = SystemClock()
        self.settings = {"poll_interval": POLL_INTERVAL, "quiet_period": QUIET, **settings}
        config = SourceConfig(servables, **self.settings)
        self.source = FileSystemStoragePathSource(config, disk, self.clock, self.on_report)
        self.source.set_aspired_versions_callback(self.aspire)

    def aspire(self, name: str, versions: Sequence[ServableData[str]]) -> None:
        with self.changed:
            self.lists[name] = list(versions)
            self.polls += 1
            self.changed.notify_all()

    def on_report(self, report: SourceReport) -> None:
        with self.changed:
            self.reports[report.name] = report
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool], bound: float = BOUND) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, bound), (self.lists, self.reports)

    def wait_for(self, name: str, *versions: int, bound: float = BOUND) -> None:
        self.wait(lambda: [item.id.version for item in self.lists.get(name, [])] == list(versions), bound)

    def wait_for_reason(self, name: str, version: int, reason: str) -> None:
        self.wait(lambda: name in self.reports and reason in self.reports[name].waiting.get(version, ""))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "m"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def run() -> Iterator[Callable[..., Watched]]:
    running = []

    def make(*servables: ServableToMonitor, disk: Disk | None = None, **settings: Any) -> Watched:
        running.append(Watched(disk or RealDisk(), *servables, **settings))
        return running[-1]

    yield make
    for watched in running:
        watched.source.close()
        watched.clock.close()


@pytest.fixture
def made(tmp_path: Path, archive: bytes) -> Path:
    """A model file outside of the base path."""
    path = tmp_path / "made" / "model.pt2"
    path.parent.mkdir()
    path.write_bytes(archive)
    return path


def servable(base: Path, name: str = "m", **policy: Any) -> ServableToMonitor:
    return ServableToMonitor(name, str(base), **policy)


def test_a_published_version_is_noticed(run: Callable[..., Watched], base: Path, made: Path) -> None:
    watched = run(servable(base))
    for version in (1, 2, 3):
        assert publish(str(made), str(base)).version == version
        watched.wait_for("m", version)


def test_a_renamed_directory_and_a_removed_one_are_noticed(run: Callable[..., Watched], base: Path, made: Path) -> None:
    watched = run(servable(base))
    made.parent.rename(base / "7")
    watched.wait_for("m", 7)
    shutil.rmtree(base / "7")
    watched.wait_for("m")


def test_a_rename_into_the_base_path_is_emitted_long_before_the_next_poll(run, base, made) -> None:
    shutil.copytree(made.parent, base / "1")
    watched = run(servable(base))
    watched.wait_for("m", 1)
    made.parent.rename(base / "2")
    watched.wait_for("m", 2, bound=PROMPT)


def test_a_version_written_in_place_is_noticed_when_it_is_quiet(run, base, archive) -> None:
    watched = run(servable(base))
    (base / "1").mkdir()
    watched.wait_for_reason("m", 1, "no files yet")
    with open(base / "1" / "model.pt2", "wb") as file:
        file.write(archive[:-20])
        file.flush()
        watched.source.wake()
        watched.wait_for_reason("m", 1, "is truncated")
        assert not watched.lists.get("m")
        file.write(archive[-20:])
    watched.wait_for("m", 1)


def test_a_copy_with_a_manifest_is_noticed_when_its_last_file_has_arrived(run, base, made, tmp_path) -> None:
    (made.parent / "words.txt").write_bytes(b"some words")
    finished = Path(publish(str(made.parent), str(tmp_path / "store")).path)
    watched = run(servable(base))
    (base / "1").mkdir()
    for name in (MANIFEST_NAME, "model.pt2"):
        shutil.copy2(finished / name, base / "1" / name)
    watched.wait_for_reason("m", 1, "manifest lists words.txt with 10 bytes, found no such file")
    (base / "1" / "words.txt").write_bytes(b"SOME WORDS")
    watched.wait_for_reason("m", 1, "words.txt does not have the sha256 digest")
    (base / "1" / "words.txt").write_bytes(b"some words")
    watched.wait_for("m", 1)


def test_a_base_path_that_is_made_later_is_noticed(run: Callable[..., Watched], tmp_path: Path, made: Path) -> None:
    base = tmp_path / "late" / "m"
    watched = run(servable(base))
    watched.wait(lambda: "m" in watched.reports)
    assert watched.lists == {}
    publish(str(made), str(base))
    watched.wait_for("m", 1)


def test_a_base_path_that_is_a_link_is_followed_when_it_is_switched(run, tmp_path, made) -> None:
    for release, version in (("one", 1), ("two", 2)):
        publish(str(made), str(tmp_path / release), version)
    base = tmp_path / "current"
    base.symlink_to("one")
    watched = run(servable(base))
    watched.wait_for("m", 1)
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(base)
    watched.wait_for("m", 2)
    publish(str(made), str(tmp_path / "two"), 3)
    watched.wait_for("m", 3)


def test_a_version_that_is_a_link_to_a_directory_is_a_version(run, base, made, tmp_path) -> None:
    (base / "1").symlink_to(made.parent)
    (base / "2").symlink_to("2")
    (base / "3").symlink_to(made)
    watched = run(servable(base, policy=AllPolicy()))
    watched.wait_for("m", 1)
    assert set(watched.reports["m"].waiting) == {2}


def test_a_waiting_version_beyond_a_link_is_watched_where_it_is(run, base, tmp_path, archive) -> None:
    (tmp_path / "store").mkdir()
    (base / "1").symlink_to(tmp_path / "store")
    watched = run(servable(base))
    watched.wait_for_reason("m", 1, "no files yet")
    (tmp_path / "store" / "model.pt2").write_bytes(archive)
    watched.wait_for("m", 1)


def test_links_to_missing_files_and_loops_wait_with_the_reason(run, base, made) -> None:
    (base / "1").mkdir()
    (base / "1" / "model.pt2").symlink_to("nowhere")
    (base / "2").mkdir()
    (base / "2" / "loop").symlink_to(".")
    shutil.copytree(made.parent, base / "3")
    watched = run(servable(base, policy=AllPolicy()))
    watched.wait_for("m", 3)
    waiting = watched.reports["m"].waiting
    assert waiting[1] == "model.pt2: it is a link that leads nowhere"
    assert "Too many levels of symbolic links" in waiting[2]


def test_updates_are_polled_at_once(run: Callable[..., Watched], base: Path, made: Path, tmp_path: Path) -> None:
    publish(str(made), str(base))
    publish(str(made), str(tmp_path / "other"))
    for interval in (60.0, 0.0):
        watched = run(poll_interval=interval)
        both = (servable(base), servable(tmp_path / "other", "other"))
        watched.source.update_config(SourceConfig(both, **watched.settings))
        watched.wait_for("m", 1)
        watched.wait_for("other", 1)


def test_with_interval_zero_a_version_that_is_not_quiet_yet_is_still_taken(run, base, archive) -> None:
    (base / "1").mkdir()
    (base / "1" / "model.pt2").write_bytes(archive)
    run(servable(base), poll_interval=0.0, quiet_period=0.5).wait_for("m", 1)


def test_a_second_callback_of_a_running_source_is_ignored(run, base, made, caplog) -> None:
    watched = run(servable(base))
    watched.source.set_aspired_versions_callback(lambda name, versions: pytest.fail("called"))
    assert "callback stays" in caplog.text
    publish(str(made), str(base))
    watched.wait_for("m", 1)


class ScanCounter(RealDisk):
    """Counts listings and opened files."""

    def __init__(self) -> None:
        self.listings = 0
        self.opened = 0

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        self.listings += 1
        return super().list_directory(path)

    def open(self, path: str) -> Any:
        self.opened += 1
        return super().open(path)


def test_reading_models_does_not_make_the_source_poll(run, base, made, archive) -> None:
    disk = ScanCounter()
    publish(str(made), str(base))
    (base / "2").mkdir()
    (base / "2" / "model.pt2").write_bytes(archive[:-1])
    os.utime(base / "2" / "model.pt2", (1, 1))
    watched = run(servable(base), disk=disk)
    watched.wait_for_reason("m", 2, "is truncated")
    polls = disk.listings
    for _ in range(500):
        (base / "1" / "model.pt2").read_bytes()
        (base / "2" / "model.pt2").read_bytes()
    (base / "3").mkdir()
    watched.wait_for_reason("m", 3, "no files yet")
    assert disk.listings - polls <= 5
    assert disk.opened <= 2


def test_a_thousand_versions_are_opened_once_and_never_again(tmp_path: Path, archive: bytes) -> None:
    disk = ScanCounter()
    servables = []
    for number in range(100):
        base = tmp_path / f"m{number:03}"
        servables.append(servable(base, base.name, policy=AllPolicy()))
        for version in range(10):
            (base / str(version)).mkdir(parents=True)
            (base / str(version) / "model.pt2").write_bytes(archive)
    clock = SystemClock()
    config = SourceConfig(tuple(servables), poll_interval=None, quiet_period=0.0)
    source = FileSystemStoragePathSource(config, disk, clock)
    lists: dict[str, int] = {}
    source.set_aspired_versions_callback(lambda name, versions: lists.update({name: len(versions)}))
    for _ in range(3):
        source.poll()
    source.close()
    clock.close()
    assert set(lists.values()) == {10}
    assert (len(lists), disk.opened, disk.listings) == (100, 1000, 300)


def test_closing_during_a_poll_waits_for_it_and_leaves_no_thread(base: Path, made: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    class SlowDisk(RealDisk):
        def list_directory(self, path: str) -> list[DirectoryEntry]:
            entered.set()
            assert leave.wait(BOUND)
            return super().list_directory(path)

    before = set(threading.enumerate())
    publish(str(made), str(base))
    clock, calls = SystemClock(), []
    source = FileSystemStoragePathSource(SourceConfig((servable(base),)), SlowDisk(), clock)
    source.set_aspired_versions_callback(lambda name, versions: calls.append(name))
    assert entered.wait(BOUND)
    closer = threading.Thread(target=source.close)
    closer.start()
    leave.set()
    closer.join(BOUND)
    clock.close()
    assert calls in ([], ["m"])
    assert set(threading.enumerate()) <= before
