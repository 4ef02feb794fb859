"""Virtual time, a disk in memory and small archives for the tests of sources."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence

import pytest

from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.servable import ServableData
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource
from tfs_lite.sources.source_config import SourceConfig, SourceReport
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def disk(clock: VirtualClock) -> MemoryDisk:
    return MemoryDisk(clock)


@pytest.fixture(scope="session")
def archive() -> bytes:
    """The smallest thing that passes for a whole ``model.pt2``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/version", b"0" * 200)
    return buffer.getvalue()


class Target:
    """Remembers what a source says."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.lists: dict[str, list[ServableData[str]]] = {}
        self.reports: list[SourceReport] = []

    def aspire(self, name: str, versions: Sequence[ServableData[str]]) -> None:
        self.calls.append((name, [item.id.version for item in versions]))
        self.lists[name] = list(versions)

    def versions(self, name: str) -> list[int] | None:
        """The aspired versions; None if nothing was ever said about the stream."""
        return [item.id.version for item in self.lists[name]] if name in self.lists else None

    def revision(self, name: str) -> str:
        (item,) = self.lists[name]
        return item.revision

    def waiting(self, name: str) -> dict[int, str]:
        return dict(next(report.waiting for report in reversed(self.reports) if report.name == name))

    def problem(self, name: str) -> str:
        return str(next(report.problem for report in reversed(self.reports) if report.name == name))


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def start(
    disk: MemoryDisk, clock: VirtualClock, target: Target
) -> Iterator[Callable[[SourceConfig], FileSystemStoragePathSource]]:
    """Makes a source whose every poll is a call of ``poll``; hashing happens inside it. It has seen that the disk's
    clock is not behind."""
    sources = []

    def make(settings: SourceConfig) -> FileSystemStoragePathSource:
        source = FileSystemStoragePathSource(
            settings, disk, clock, target.reports.append, watch=False, executor=PoolExecutor("digests", 0)
        )
        sources.append(source)
        source.set_aspired_versions_callback(target.aspire)
        source.poll()
        return source

    yield make
    for source in sources:
        source.close()


@pytest.fixture
def put(disk: MemoryDisk, clock: VirtualClock, archive: bytes) -> Callable[..., None]:
    """Puts a version of long ago on the disk."""

    def write(name: str, child: int | str, data: bytes = archive) -> None:
        disk.write(f"/models/{name}/{child}/model.pt2", data)
        clock.advance(3600.0)

    return write
