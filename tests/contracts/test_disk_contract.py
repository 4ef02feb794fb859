"""One suite over every disk: the real one and the one in memory answer alike."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from tfs_lite.core.manifest import Manifest, ManifestFile
from tfs_lite.core.status import ServingError
from tfs_lite.sources.disk import DirectoryEntry, Disk, RealDisk
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk


class DiskFixture(Protocol):
    """A disk, a directory on it, and the means to change what is there."""

    disk: Disk
    root: str

    def mkdir(self, path: str) -> None: ...
    def write(self, path: str, data: bytes) -> None: ...
    def remove(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...


class RealBench:
    def __init__(self, root: Path) -> None:
        self.disk: Disk = RealDisk()
        self.root = str(root)
        self._tick = 0

    def mkdir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def write(self, path: str, data: bytes) -> None:
        self.mkdir(os.path.dirname(path))
        Path(path).write_bytes(data)
        self._tick += 1
        os.utime(path, ns=(self._tick, self._tick))

    def remove(self, path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.remove(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)


class MemoryBench:
    def __init__(self) -> None:
        self._clock = VirtualClock()
        disk = MemoryDisk(self._clock)
        self.disk: Disk = disk
        self.root = "/root"
        self.mkdir, self.remove, self.rename = disk.mkdir, disk.remove, disk.rename
        self._write: Callable[[str, bytes], None] = disk.write
        disk.mkdir(self.root)

    def write(self, path: str, data: bytes) -> None:
        self._clock.advance(1)
        self._write(path, data)


@pytest.fixture(params=["real", "memory"])
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> DiskFixture:
    return RealBench(tmp_path) if request.param == "real" else MemoryBench()


def test_children_are_listed_with_their_kind(fixture: DiskFixture) -> None:
    fixture.write(f"{fixture.root}/file", b"x")
    fixture.write(f"{fixture.root}/directory/file", b"x")
    assert sorted(fixture.disk.list_directory(fixture.root), key=lambda entry: entry.name) == [
        DirectoryEntry("directory", True),
        DirectoryEntry("file", False),
    ]


def test_a_missing_directory_and_a_file_in_its_place_raise_what_the_system_raises(fixture: DiskFixture) -> None:
    fixture.write(f"{fixture.root}/file", b"x")
    for look in (fixture.disk.list_directory, fixture.disk.stat_tree):
        with pytest.raises(FileNotFoundError) as caught:
            look(f"{fixture.root}/missing")
        assert caught.value.filename == f"{fixture.root}/missing"
        assert caught.value.strerror == "No such file or directory"
        with pytest.raises(NotADirectoryError):
            look(f"{fixture.root}/file")


def test_a_tree_holds_every_file_below_sorted_by_relative_name(fixture: DiskFixture) -> None:
    for name in ("b", "a/c", "a/b", "a.txt", "__pycache__/model.pyc", "a/__pycache__/x.pyc"):
        fixture.write(f"{fixture.root}/{name}", b"x" * len(name))
    tree = fixture.disk.stat_tree(fixture.root)
    assert [(file.name, file.size) for file in tree.files] == [("a.txt", 5), ("a/b", 3), ("a/c", 3), ("b", 1)]
    assert not tree.overflow
    assert len({file.inode for file in tree.files}) == 4


def test_a_tree_of_more_entries_than_wanted_overflows(fixture: DiskFixture) -> None:
    for number in range(5):
        fixture.write(f"{fixture.root}/{number}", b"")
    assert not fixture.disk.stat_tree(fixture.root, max_files=5).overflow
    assert fixture.disk.stat_tree(fixture.root, max_files=4).overflow


def test_an_empty_directory_is_an_empty_tree(fixture: DiskFixture) -> None:
    fixture.mkdir(f"{fixture.root}/empty/inside")
    assert fixture.disk.stat_tree(f"{fixture.root}/empty").files == ()


def test_looking_and_reading_change_no_fingerprint(fixture: DiskFixture) -> None:
    fixture.write(f"{fixture.root}/1/model", b"abc")
    before = fixture.disk.stat_tree(f"{fixture.root}/1")
    with fixture.disk.open(f"{fixture.root}/1/model") as file:
        file.read()
    assert fixture.disk.stat_tree(f"{fixture.root}/1") == before


def test_every_change_of_a_file_changes_the_fingerprint(fixture: DiskFixture) -> None:
    path = f"{fixture.root}/1/model"
    seen = set()
    for change in (
        lambda: fixture.write(path, b"abc"),
        lambda: fixture.write(path, b"abcd"),
        lambda: fixture.write(path, b"dcba"),
        lambda: fixture.write(f"{path}.2", b""),
        lambda: fixture.rename(f"{path}.2", f"{path}.3"),
        lambda: fixture.remove(f"{path}.3"),
    ):
        change()
        seen.add(fixture.disk.stat_tree(f"{fixture.root}/1").fingerprint)
    assert len(seen) == 5  # after the removal the files are as they were before the second one came


def test_moving_a_version_changes_nothing_inside_it(fixture: DiskFixture) -> None:
    fixture.write(f"{fixture.root}/.staged/model", b"abc")
    before = fixture.disk.stat_tree(f"{fixture.root}/.staged")
    fixture.rename(f"{fixture.root}/.staged", f"{fixture.root}/1")
    assert fixture.disk.stat_tree(f"{fixture.root}/1") == before


def test_a_version_made_again_has_another_fingerprint(fixture: DiskFixture) -> None:
    fixture.write(f"{fixture.root}/1/model", b"abc")
    before = fixture.disk.stat_tree(f"{fixture.root}/1").fingerprint
    fixture.remove(f"{fixture.root}/1")
    fixture.write(f"{fixture.root}/1/model", b"abc")
    assert fixture.disk.stat_tree(f"{fixture.root}/1").fingerprint != before


def test_the_newest_time_moves_when_a_file_comes_or_goes(fixture: DiskFixture) -> None:
    fixture.write(f"{fixture.root}/1/a", b"")
    fixture.write(f"{fixture.root}/1/b", b"")
    first = fixture.disk.stat_tree(f"{fixture.root}/1").newest_ns
    fixture.write(f"{fixture.root}/2/wait", b"")
    fixture.remove(f"{fixture.root}/1/b")
    assert fixture.disk.stat_tree(f"{fixture.root}/1").newest_ns >= first


def test_files_are_read_at_any_position(fixture: DiskFixture) -> None:
    fixture.write(f"{fixture.root}/model", b"0123456789")
    with fixture.disk.open(f"{fixture.root}/model") as file:
        file.seek(4)
        assert file.read(3) == b"456"
        file.seek(0)
        assert file.read() == b"0123456789"
    with pytest.raises(FileNotFoundError):
        fixture.disk.open(f"{fixture.root}/missing")
    with pytest.raises(IsADirectoryError):
        fixture.disk.open(fixture.root)


def test_files_of_this_machine_are_verified_by_the_digests_of_a_manifest(fixture: DiskFixture) -> None:
    path, data = f"{fixture.root}/1", b"weights"
    fixture.write(f"{path}/model", data)
    fixture.write(f"{path}/notes", b"not listed")
    tree, read = fixture.disk.stat_tree(path), list[int]()
    whole = Manifest({"model": ManifestFile(len(data), hashlib.sha256(data).hexdigest())})
    other = Manifest({"model": ManifestFile(len(data), hashlib.sha256(b"others").hexdigest())})

    def verify(manifest: Manifest | None) -> str:
        return fixture.disk.verify(path, tree, manifest, lambda: False, read.append)

    assert verify(None) == verify(whole) == ""
    assert sum(read) == len(data)
    assert verify(other) == "model does not have the sha256 digest that the manifest lists"
    assert fixture.disk.is_ready(path)
    assert not fixture.disk.fetches
    with pytest.raises(ServingError):
        fixture.disk.verify(path, tree, whole, lambda: True, read.append)
