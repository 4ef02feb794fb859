"""An empty version directory counts when the config beside it says that it needs no files."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tfs_lite.sources.base_config import BaseConfigs
from tfs_lite.sources.completeness import Complete, Waiting
from tfs_lite.sources.disk import RealDisk
from tfs_lite.sources.inspector import VersionInspector
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk
from tfs_lite.testing.lifecycle.executor import ManualExecutor

BASE = "/models/e"
ENSEMBLE = b"""
platform: "ensemble"
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
ensemble_scheduling {
  step { model_name: "a" input_map { key: "x" value: "IN" } output_map { key: "y" value: "OUT" } }
}
"""


@pytest.fixture
def inspector(disk: MemoryDisk, clock: VirtualClock) -> Iterator[VersionInspector]:
    disk.mkdir(f"{BASE}/1")
    hashing = ManualExecutor(1)
    found = VersionInspector(disk, clock, hashing)
    yield found
    found.close()
    hashing.shutdown()


@pytest.mark.parametrize("place", ["", "/1"])
@pytest.mark.timeout(60)
def test_pipe_in_the_place_of_a_config_is_not_waited_for(tmp_path, place: str) -> None:
    """The load will name it."""
    (tmp_path / "1").mkdir()
    directory = f"{tmp_path}{place}"
    os.mkfifo(f"{directory}/config.pbtxt")
    configs = BaseConfigs(RealDisk())
    assert configs.needs_files(directory) is False
    assert configs.named(directory, str(tmp_path), RealDisk().list_directory(directory)) == []
    os.unlink(f"{directory}/config.pbtxt")
    with open(f"{directory}/config.pbtxt", "wb") as file:
        file.write(b'platform: "python"')
    assert configs.needs_files(directory) is True


@pytest.mark.parametrize(
    ("config", "needs"),
    [
        pytest.param(b"", True, id="says nothing"),
        pytest.param(b'platform: "python"', True, id="another platform"),
        pytest.param(ENSEMBLE, False, id="ensemble"),
        pytest.param(b"\xff\xfe", False, id="no text"),
        pytest.param(b"no_such_field: 1", False, id="a mistake, which the load will name"),
        pytest.param(b'platform: "ensemble"', False, id="an ensemble without steps"),
    ],
)
def test_config_says_whether_versions_need_files(disk: MemoryDisk, config: bytes, needs: bool) -> None:
    disk.write(f"{BASE}/config.pbtxt", config)
    assert BaseConfigs(disk).needs_files(BASE) is needs


def test_versions_without_a_config_need_files(disk: MemoryDisk) -> None:
    disk.mkdir(f"{BASE}/config.pbtxt")
    assert BaseConfigs(disk).needs_files(BASE)


def test_config_is_read_again_only_when_it_has_changed(disk: MemoryDisk, clock: VirtualClock) -> None:
    configs = BaseConfigs(disk)
    disk.write(f"{BASE}/config.pbtxt", ENSEMBLE)
    assert [configs.needs_files(BASE) for _ in range(3)] == [False] * 3
    assert disk.opened == [f"{BASE}/config.pbtxt"]
    clock.advance(1)
    disk.write(f"{BASE}/config.pbtxt", b'platform: "python"')
    assert configs.needs_files(BASE)
    disk.remove(f"{BASE}/config.pbtxt")
    assert configs.needs_files(BASE)
    assert len(disk.opened) == 2
    configs.forget([BASE])
    disk.write(f"{BASE}/config.pbtxt", ENSEMBLE)
    assert not configs.needs_files(BASE)


def test_empty_version_of_an_ensemble_is_complete_at_once(inspector: VersionInspector, disk: MemoryDisk) -> None:
    assert inspector.inspect(f"{BASE}/1", 1.0) == Waiting("no files yet")
    disk.write(f"{BASE}/config.pbtxt", ENSEMBLE)
    assert isinstance(inspector.inspect(f"{BASE}/1", 1.0), Complete)


def test_version_that_loses_its_config_waits_for_files(inspector: VersionInspector, disk: MemoryDisk) -> None:
    disk.write(f"{BASE}/config.pbtxt", ENSEMBLE)
    assert isinstance(inspector.inspect(f"{BASE}/1", 1.0), Complete)
    disk.remove(f"{BASE}/config.pbtxt")
    assert inspector.inspect(f"{BASE}/1", 1.0) == Waiting("no files yet")


def test_files_in_the_version_are_judged_as_ever(inspector: VersionInspector, disk: MemoryDisk) -> None:
    disk.write(f"{BASE}/config.pbtxt", ENSEMBLE)
    disk.write(f"{BASE}/1/notes.txt", b"new")
    verdict = inspector.inspect(f"{BASE}/1", 1.0)
    assert isinstance(verdict, Waiting)
    assert verdict.settling


def test_base_path_that_cannot_be_read_is_the_reason(inspector: VersionInspector, disk: MemoryDisk) -> None:
    disk.deny(BASE)
    verdict = inspector.inspect(f"{BASE}/1", 1.0)
    assert isinstance(verdict, Waiting)
    assert "denied" in verdict.reason or "PermissionError" in verdict.reason
