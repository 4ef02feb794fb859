"""How far the check of digests is, which may take longer than the load that follows."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from tests.support.servers.process import wait_until
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.loader import LoadPhase
from tfs_lite.core.manifest import MANIFEST_NAME, Manifest, ManifestFile
from tfs_lite.core.servable import ServableId
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.testing.lifecycle.disk import MemoryDisk

WEIGHTS = b"w" * 1000
M7 = ServableId("m", 7)


class GatedDisk(MemoryDisk):
    """Opens weights when the gate is open."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.gate = threading.Event()

    def open(self, path: str) -> BinaryIO:
        if path.endswith("weights.bin"):
            assert self.gate.wait(60)
        return super().open(path)


@pytest.fixture
def disk() -> Iterator[GatedDisk]:
    disk = GatedDisk()
    yield disk
    disk.gate.set()


def test_a_version_whose_digests_are_checked_tells_its_bytes_until_it_is_offered(disk: GatedDisk) -> None:
    entry = ManifestFile(len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest())
    disk.write("/models/m/007/weights.bin", WEIGHTS)
    disk.write(f"/models/m/007/{MANIFEST_NAME}", Manifest({"weights.bin": entry}).to_bytes())
    disk.mkdir("/models/n/7")
    servables = ServableToMonitor("m", "/models/m"), ServableToMonitor("n", "/models/n")
    source = FileSystemStoragePathSource(SourceConfig(servables, poll_interval=None), disk, SystemClock())
    offered: dict[str, list[int]] = {}

    def aspire(name: str, versions: list) -> None:
        offered[name] = [item.id.version for item in versions]

    source.set_aspired_versions_callback(aspire)
    assert source.checking() == {}
    source.poll()
    found = wait_until(source.checking, "the digests are being checked")
    assert found.keys() == {M7}
    assert (found[M7].phase, found[M7].read_bytes, found[M7].expected_bytes) == (LoadPhase.CHECKING, 0, 1000)
    assert offered.get("m", []) == []
    disk.gate.set()
    wait_until(lambda: not source.checking(), "they are checked")
    source.poll()
    assert offered["m"] == [7]
    source.close()
