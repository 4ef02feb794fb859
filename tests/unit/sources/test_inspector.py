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


class InspectorFixture:
    """An inspector with its disk, and hashing that happens when told."""

    def __init__(self, disk: MemoryDisk, clock: VirtualClock) -> None:
        self.disk = disk
        self.hashing = ManualExecutor(1)
        self.progress = 0
        self.inspector = VersionInspector(disk, clock, self.hashing, self.on_progress)

    def on_progress(self, path: str) -> None:
        self.progress += 1

    def look(self, path: str = PATH) -> Complete | Waiting:
        return self.inspector.inspect(path, 1.0)

    def publish(self, data: bytes = DATA, listed: bytes = DATA, stamp: str = "") -> None:
        self.disk.write(f"{PATH}/model.onnx", data)
        entry = ManifestFile(len(listed), hashlib.sha256(listed).hexdigest(), stamp)
        self.disk.write(f"{PATH}/{MANIFEST_NAME}", Manifest({"model.onnx": entry}).to_bytes())


@pytest.fixture
def fixture(disk: MemoryDisk, clock: VirtualClock) -> Iterator[InspectorFixture]:
    fixture = InspectorFixture(disk, clock)
    yield fixture
    fixture.inspector.close()
    fixture.hashing.shutdown()


def test_a_copied_version_is_complete_as_soon_as_its_digests_are_checked(fixture: InspectorFixture) -> None:
    fixture.publish()
    assert fixture.look() == fixture.look()
    verdict = fixture.look()
    assert isinstance(verdict, Waiting)
    assert verdict.reason.startswith("checking the digests of ")
    assert len(fixture.hashing.queued) == 1
    assert fixture.inspector.hashing == {}
    fixture.hashing.run_all()
    assert fixture.progress == 1
    assert fixture.inspector.hashing == {}
    assert isinstance(fixture.look(), Complete)
    assert isinstance(fixture.look(), Complete)
    assert fixture.disk.opened.count(f"{PATH}/model.onnx") == 1


def test_the_times_of_a_manifest_say_nothing_that_those_of_its_files_do_not(fixture: InspectorFixture) -> None:
    fixture.publish()
    fixture.look()
    assert fixture.inspector.parts(PATH) == ([PATH], [f"{PATH}/model.onnx"])


def test_the_very_file_that_was_published_is_not_hashed(fixture: InspectorFixture) -> None:
    fixture.publish()
    (stamp,) = [file.stamp for file in fixture.disk.stat_tree(PATH).files if file.name == "model.onnx"]
    entry = ManifestFile(len(DATA), hashlib.sha256(DATA).hexdigest(), stamp)
    fixture.disk.write(f"{PATH}/{MANIFEST_NAME}", Manifest({"model.onnx": entry}).to_bytes())
    assert isinstance(fixture.look(), Complete)
    assert fixture.hashing.queued == []
    assert f"{PATH}/model.onnx" not in fixture.disk.opened


def test_other_contents_of_the_same_size_wait_until_they_are_replaced(fixture, clock) -> None:
    fixture.publish(data=DATA.upper())
    fixture.look()
    fixture.hashing.run_all()
    assert fixture.look() == Waiting("model.onnx does not have the sha256 digest that the manifest lists")
    assert fixture.hashing.queued == []
    clock.advance(1)
    fixture.publish()
    fixture.look()
    fixture.hashing.run_all()
    assert isinstance(fixture.look(), Complete)


def test_a_file_that_is_still_growing_is_reported_with_both_sizes_and_not_hashed(fixture: InspectorFixture) -> None:
    fixture.publish(data=DATA[:100])
    assert fixture.look() == Waiting("manifest lists model.onnx with 700 bytes, found 100")
    assert fixture.hashing.queued == []


def test_a_manifest_that_is_still_being_written_waits(fixture: InspectorFixture) -> None:
    fixture.publish()
    fixture.disk.write(f"{PATH}/{MANIFEST_NAME}", b'{"format": 1, ')
    verdict = fixture.look()
    assert isinstance(verdict, Waiting)
    assert "is not whole JSON" in verdict.reason


def test_an_oversized_manifest_waits(fixture: InspectorFixture) -> None:
    fixture.disk.write(f"{PATH}/{MANIFEST_NAME}", b" " * (MAX_MANIFEST_BYTES + 1))
    assert fixture.look() == Waiting(f"{MANIFEST_NAME} is larger than {MAX_MANIFEST_BYTES} bytes")


def test_hashing_stops_when_the_version_is_of_no_interest_any_more(fixture: InspectorFixture) -> None:
    fixture.publish()
    fixture.look()
    fixture.hashing.start()
    fixture.inspector.forget({PATH})
    fixture.hashing.finish()
    assert fixture.progress == 0
    fixture.look()
    fixture.inspector.forget({PATH})
    assert not fixture.hashing.start()


def test_hashing_of_a_state_that_is_gone_is_not_taken_for_the_new_one(fixture, clock) -> None:
    fixture.publish()
    fixture.look()
    fixture.hashing.start()
    fixture.hashing.work()
    clock.advance(1)
    fixture.publish(data=DATA.upper())
    fixture.look()
    fixture.hashing.finish()
    assert isinstance(fixture.look(), Waiting)
    fixture.hashing.run_all()
    assert fixture.look() == Waiting("model.onnx does not have the sha256 digest that the manifest lists")


def test_after_an_error_hashing_is_tried_again(fixture: InspectorFixture) -> None:
    fixture.publish()
    fixture.look()
    fixture.disk.deny(f"{PATH}/model.onnx", OSError)
    fixture.hashing.start()
    fixture.hashing.work()
    fixture.disk.allow(f"{PATH}/model.onnx")
    fixture.hashing.finish()
    assert fixture.look() == Waiting("model.onnx: Input/output error")
    fixture.look()
    fixture.hashing.run_all()
    assert isinstance(fixture.look(), Complete)


def test_closing_stops_hashing(fixture: InspectorFixture) -> None:
    fixture.publish()
    fixture.look()
    fixture.inspector.close()
    assert not fixture.hashing.start()


def test_a_version_that_vanishes_while_it_is_looked_at_is_looked_at_again_soon(fixture: InspectorFixture) -> None:
    verdict = fixture.look()
    assert verdict == Waiting("the version directory: No such file or directory", retry_in=1.0)


def test_archives_are_not_opened_again_while_nothing_changes(fixture, clock, archive) -> None:
    fixture.disk.write(f"{PATH}/model.pt2", archive)
    fixture.disk.write("/models/m/2/model.pt2", archive[:-5])
    clock.advance(100)
    for _ in range(3):
        assert isinstance(fixture.look(), Complete)
        assert isinstance(fixture.look("/models/m/2"), Waiting)
    assert fixture.disk.opened == [f"{PATH}/model.pt2", "/models/m/2/model.pt2"]


def test_what_loading_writes_beside_a_model_changes_nothing(fixture: InspectorFixture, clock: VirtualClock) -> None:
    fixture.disk.write(f"{PATH}/model.py", b"class Model: ...")
    clock.advance(100)
    before = fixture.look()
    fixture.disk.write(f"{PATH}/__pycache__/model.cpython-311.pyc", b"compiled")
    assert isinstance(before, Complete)
    clock.advance(100)
    assert fixture.look() == before
