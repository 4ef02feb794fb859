"""Manifests, digests and what is remembered of a version between polls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tfs_lite.core.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, ManifestFile
from tfs_lite.sources.completeness import Complete, Waiting
from tfs_lite.sources.inspector import VersionInspector
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk
from tfs_lite.testing.lifecycle.executor import ManualExecutor

PATH = "/models/m/1"
DATA = b"weights" * 100


class Bench:
    """An inspector with its disk, and hashing that happens when told."""

    def __init__(self, disk: MemoryDisk, clock: VirtualClock) -> None:
        self.disk = disk
        self.hashing = ManualExecutor(1)
        self.progress = 0
        self.inspector = VersionInspector(disk, clock, self.hashing, self.on_progress)

    def on_progress(self) -> None:
        self.progress += 1

    def look(self, path: str = PATH) -> Complete | Waiting:
        return self.inspector.inspect(path, 1.0)

    def publish(self, data: bytes = DATA, listed: bytes = DATA, stamp: str = "") -> None:
        self.disk.write(f"{PATH}/model.onnx", data)
        entry = ManifestFile(len(listed), hashlib.sha256(listed).hexdigest(), stamp)
        self.disk.write(f"{PATH}/{MANIFEST_NAME}", Manifest({"model.onnx": entry}).to_bytes())


@pytest.fixture
def bench(disk: MemoryDisk, clock: VirtualClock) -> Iterator[Bench]:
    bench = Bench(disk, clock)
    yield bench
    bench.inspector.close()
    bench.hashing.shutdown()


def test_a_copied_version_is_complete_as_soon_as_its_digests_are_checked(bench: Bench) -> None:
    bench.publish()
    assert bench.look() == bench.look()
    verdict = bench.look()
    assert isinstance(verdict, Waiting)
    assert verdict.reason.startswith("checking the digests of ")
    assert len(bench.hashing.queued) == 1
    bench.hashing.run_all()
    assert bench.progress == 1
    assert isinstance(bench.look(), Complete)
    assert isinstance(bench.look(), Complete)
    assert bench.disk.opened.count(f"{PATH}/model.onnx") == 1


def test_the_very_file_that_was_published_is_not_hashed(bench: Bench) -> None:
    bench.publish()
    (stamp,) = [file.stamp for file in bench.disk.stat_tree(PATH).files if file.name == "model.onnx"]
    entry = ManifestFile(len(DATA), hashlib.sha256(DATA).hexdigest(), stamp)
    bench.disk.write(f"{PATH}/{MANIFEST_NAME}", Manifest({"model.onnx": entry}).to_bytes())
    assert isinstance(bench.look(), Complete)
    assert bench.hashing.queued == []
    assert f"{PATH}/model.onnx" not in bench.disk.opened


def test_other_contents_of_the_same_size_wait_until_they_are_replaced(bench: Bench, clock: VirtualClock) -> None:
    bench.publish(data=DATA.upper())
    bench.look()
    bench.hashing.run_all()
    assert bench.look() == Waiting("model.onnx does not have the sha256 digest that the manifest lists")
    assert bench.hashing.queued == []
    clock.advance(1)
    bench.publish()
    bench.look()
    bench.hashing.run_all()
    assert isinstance(bench.look(), Complete)


def test_a_file_that_is_still_growing_is_reported_with_both_sizes_and_not_hashed(bench: Bench) -> None:
    bench.publish(data=DATA[:100])
    assert bench.look() == Waiting("manifest lists model.onnx with 700 bytes, found 100")
    assert bench.hashing.queued == []


def test_a_manifest_that_is_still_being_written_waits(bench: Bench) -> None:
    bench.publish()
    bench.disk.write(f"{PATH}/{MANIFEST_NAME}", b'{"format": 1, ')
    verdict = bench.look()
    assert isinstance(verdict, Waiting)
    assert "is not whole JSON" in verdict.reason


def test_an_oversized_manifest_waits(bench: Bench) -> None:
    bench.disk.write(f"{PATH}/{MANIFEST_NAME}", b" " * (MAX_MANIFEST_BYTES + 1))
    assert bench.look() == Waiting(f"{MANIFEST_NAME} is larger than {MAX_MANIFEST_BYTES} bytes")


def test_hashing_stops_when_the_version_is_of_no_interest_any_more(bench: Bench) -> None:
    bench.publish()
    bench.look()
    bench.hashing.start()
    bench.inspector.keep_only(set())
    bench.hashing.finish()
    assert bench.progress == 0
    bench.look()
    bench.inspector.keep_only(set())
    assert not bench.hashing.start()


def test_hashing_of_a_state_that_is_gone_is_not_taken_for_the_new_one(bench: Bench, clock: VirtualClock) -> None:
    bench.publish()
    bench.look()
    bench.hashing.start()
    bench.hashing.work()
    clock.advance(1)
    bench.publish(data=DATA.upper())
    bench.look()
    bench.inspector.keep_only({PATH})
    bench.hashing.finish()
    assert isinstance(bench.look(), Waiting)
    bench.hashing.run_all()
    assert bench.look() == Waiting("model.onnx does not have the sha256 digest that the manifest lists")


def test_after_an_error_hashing_is_tried_again(bench: Bench) -> None:
    bench.publish()
    bench.look()
    bench.disk.deny(f"{PATH}/model.onnx", OSError)
    bench.hashing.start()
    bench.hashing.work()
    bench.disk.allow(f"{PATH}/model.onnx")
    bench.hashing.finish()
    assert bench.look() == Waiting("model.onnx: Input/output error")
    bench.look()
    bench.hashing.run_all()
    assert isinstance(bench.look(), Complete)


def test_closing_stops_hashing(bench: Bench) -> None:
    bench.publish()
    bench.look()
    bench.inspector.close()
    assert not bench.hashing.start()


def test_a_version_that_vanishes_while_it_is_looked_at_is_looked_at_again_soon(bench: Bench) -> None:
    verdict = bench.look()
    assert verdict == Waiting("the version directory: No such file or directory", retry_in=1.0)


def test_archives_are_not_opened_again_while_nothing_changes(bench: Bench, clock: VirtualClock, archive: bytes) -> None:
    bench.disk.write(f"{PATH}/model.pt2", archive)
    bench.disk.write("/models/m/2/model.pt2", archive[:-5])
    clock.advance(100)
    for _ in range(3):
        assert isinstance(bench.look(), Complete)
        assert isinstance(bench.look("/models/m/2"), Waiting)
        bench.inspector.keep_only({PATH, "/models/m/2"})
    assert bench.disk.opened == [f"{PATH}/model.pt2", "/models/m/2/model.pt2"]


def test_what_loading_writes_beside_a_model_changes_nothing(bench: Bench, clock: VirtualClock) -> None:
    bench.disk.write(f"{PATH}/model.py", b"class Model: ...")
    clock.advance(100)
    before = bench.look()
    bench.disk.write(f"{PATH}/__pycache__/model.cpython-311.pyc", b"compiled")
    assert isinstance(before, Complete)
    clock.advance(100)
    assert bench.look() == before
