"""Litter, logs, files that a config names, and clocks that are behind: what holds a version back, what changes it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.lifecycle.source_configs import config, model
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.manifest import has_state
from tfs_lite.sources.completeness import RESTLESS_SECONDS
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource
from tfs_lite.sources.source_config import SourceConfig
from tfs_lite.sources.version_scan import AllPolicy
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import FILE_SERVER, MemoryDisk

Start = Callable[[SourceConfig], FileSystemStoragePathSource]
BASE = "/models/m"
LABELS = b'output { name: "y" data_type: TYPE_FP32 dims: 3 label_filename: "labels.txt" }'
WARM_UP = b"""model_warmup { name: "w" batch_size: 1 inputs { key: "x" value {
  data_type: TYPE_FP32 dims: 3 input_data_file: "x.bin" } } }"""


@pytest.mark.parametrize("name", ["._model.pt2", ".DS_Store", "Thumbs.db", "lost+found/x.pt2", ".nfs01", "#model.py#"])
def test_litter_neither_holds_a_version_back_nor_changes_it(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, name: str
) -> None:
    put("m", 1)
    disk.write(f"{BASE}/1/{name}", b"no archive")
    clock.advance(10.0)
    source = start(config(model()))
    before = target.revision("m")
    for place in (f"{BASE}/1/{name}", f"{BASE}/{name}"):
        disk.write(place, b"another one")
        source.poll()
        assert target.revision("m") == before


@pytest.mark.parametrize("name", ["train.log", "events.out.tfevents.1.host"])
@pytest.mark.parametrize("where", [BASE, f"{BASE}/1", f"{BASE}/1/logs"])
def test_log_that_grows_neither_holds_a_version_back_nor_changes_it(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, name: str, where: str
) -> None:
    put("m", 1)
    source, revisions = start(config(model())), set()
    for number in range(20):
        disk.write(f"{where}/{name}", b"." * number)
        clock.advance(0.3)
        source.poll()
        assert target.versions("m") == [1]
        revisions.add(target.revision("m"))
    assert len(revisions) == 1


def test_file_beside_the_versions_changes_them_only_if_their_config_names_it(
    start: Start, put: Any, target: Any, disk: MemoryDisk
) -> None:
    put("m", 1)
    disk.write(f"{BASE}/config.pbtxt", LABELS + WARM_UP)
    source = start(config(model()))
    seen = [target.revision("m")]
    for name in ("labels.txt", "labels.txt", "warmup/x.bin", "notes.txt", "warmup/y.bin", "train/labels.txt"):
        disk.write(f"{BASE}/{name}", b"." * len(seen))
        source.poll()
        seen.append(target.revision("m"))
    assert [one != other for one, other in itertools.pairwise(seen)] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("place", [f"{BASE}/replay.tfrecord", f"{BASE}/1/assets.extra/replay.tfrecord"])
def test_recorded_answers_change_how_a_version_is_loaded_and_not_its_files(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, place: str
) -> None:
    put("m", 1)
    disk.write(f"{BASE}/config.pbtxt", LABELS)
    disk.write(f"{BASE}/labels.txt", b"cat")
    clock.advance(10.0)
    source = start(config(model()))
    before = target.revision("m")
    for content in (b"recorded", b"recorded anew"):
        disk.write(place, content)
        source.poll()
        clock.advance(10.0)
        source.poll()
        after = target.revision("m")
        assert after != before
        assert has_state(after, before.partition("/")[0]), "the files are the same"
        before = after


def test_config_of_a_version_may_name_a_file_beside_it(start: Start, put: Any, target: Any, disk: MemoryDisk) -> None:
    put("m", 1)
    disk.write(f"{BASE}/1/config.pbtxt", LABELS)
    source = start(config(model(), quiet_period=0.0))
    before = target.revision("m")
    disk.write(f"{BASE}/labels.txt", b"cat")
    source.poll()
    assert target.revision("m") != before


@pytest.mark.parametrize("name", [".weights.bin.x7Gh2k", "weights.bin.part", ".cache/blob.incomplete"])
def test_copy_in_progress_holds_a_version_back_and_what_it_leaves_is_no_part_of_it(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, name: str
) -> None:
    put("m", 1)
    source = start(config(model()))
    disk.write(f"{BASE}/2/model.py", b"class Model: ...")
    for number in range(5):
        disk.write(f"{BASE}/2/{name}", b"." * number)
        clock.advance(0.6)
        source.poll()
        assert target.versions("m") == [1]
    clock.advance(1.0)
    source.poll()
    assert target.versions("m") == [2]
    before = target.revision("m")
    disk.remove(f"{BASE}/2/{name}")
    clock.advance(1.0)
    source.poll()
    clock.advance(1.0)
    source.poll()
    assert target.revision("m") == before


def test_file_that_goes_on_changing_is_named(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock
) -> None:
    put("m", 1)
    source = start(config(model()))
    disk.write(f"{BASE}/2/model.py", b"class Model: ...")
    for number in range(int(RESTLESS_SECONDS / 0.5) + 3):
        disk.write(f"{BASE}/2/metrics.csv", b"." * number)
        source.poll()
        clock.advance(0.5)
    assert "have gone on changing for 30 s and more: metrics.csv" in target.waiting("m")[2]
    clock.advance(1.0)
    source.poll()
    assert target.versions("m") == [2]


class LaggingClock(VirtualClock):
    """That of a file server which is an hour behind."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._ours = clock

    def time(self) -> float:
        return self._ours.time() - 3600.0


@pytest.fixture
def lagging(clock: VirtualClock, target: Any) -> tuple[MemoryDisk, Callable[[SourceConfig], Any]]:
    """A disk whose clock is behind, and how to make a source for it."""
    disk = MemoryDisk(LaggingClock(clock), FILE_SERVER)

    def make(settings: SourceConfig) -> FileSystemStoragePathSource:
        source = FileSystemStoragePathSource(
            settings, disk, clock, target.reports.append, watch=False, executor=PoolExecutor("digests", 0)
        )
        source.set_aspired_versions_callback(target.aspire)
        source.poll()
        return source

    return disk, make


def test_copy_on_a_server_whose_clock_is_behind_is_not_taken_for_an_old_one(
    lagging: Any, target: Any, clock: VirtualClock
) -> None:
    disk, make = lagging
    disk.write(f"{BASE}/1/model.py", b"class Model:")
    source = make(config(model()))
    assert target.versions("m") is None
    clock.advance(0.5)
    disk.write(f"{BASE}/1/weights.bin", b"the rest")
    source.poll()
    clock.advance(0.6)
    source.poll()
    assert target.versions("m") is None
    clock.advance(0.5)
    source.poll()
    assert target.versions("m") == [1]


def test_at_the_start_old_versions_wait_for_a_moment_once_and_together(
    lagging: Any, target: Any, clock: VirtualClock
) -> None:
    disk, make = lagging
    for version in range(1, 101):
        disk.write(f"{BASE}/{version}/model.py", b"class Model: ...")
        clock.advance(60.0)
    source = make(config(model(policy=AllPolicy())))
    clock.advance(1.0)
    source.poll()
    assert len(target.versions("m")) == 100


def test_stamps_count_once_the_disk_has_shown_that_its_clock_is_not_behind(
    put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes
) -> None:
    for version in (2, 3, 4):
        put("m", version)
    disk.write(f"{BASE}/1/model.pt2", archive)
    source = FileSystemStoragePathSource(
        config(model(policy=AllPolicy())),
        disk,
        clock,
        target.reports.append,
        watch=False,
        executor=PoolExecutor("d", 0),
    )
    source.set_aspired_versions_callback(target.aspire)
    for _ in range(2):
        source.poll()
    assert target.versions("m") == [2, 3, 4]
