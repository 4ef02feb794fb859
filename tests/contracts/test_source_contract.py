"""One suite over every source of storage paths."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.source import Source, TargetBase, connect
from tfs_lite.sources.disk import RealDisk
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource, ServableToMonitor, SourceConfig
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk

BOUND = 30.0


class Target(TargetBase[str]):
    """Keeps the newest list of every stream and checks what every target may rely on."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[str, Sequence[ServableData[str]]] = {}
        self.heard = threading.Event()
        self.broken_promises: list[str] = []
        self._inside = threading.Lock()

    def set_aspired_versions(self, name: str, versions: Sequence[ServableData[str]]) -> None:
        if not self._inside.acquire(blocking=False):
            self.broken_promises.append("two lists at a time")
        if any(item.id.name != name for item in versions):
            self.broken_promises.append("an item of another stream")
        if len({item.id for item in versions}) != len(versions):
            self.broken_promises.append("a version twice in one list")
        self.lists[name] = versions
        self.heard.set()
        self._inside.release()


class SourceFixture:
    """A source that offers version 3 of model "m" at ``path``; ``close`` ends it."""

    def __init__(self, source: Source[str], path: str, close: Callable[[], None] = lambda: None) -> None:
        self.source, self.path, self.close = source, path, close


def _in_memory(tmp_path: Path) -> SourceFixture:
    clock = VirtualClock()
    disk = MemoryDisk(clock)
    disk.write("/models/m/3/model.py", b"class Model: ...")
    clock.advance(60)
    config = SourceConfig((ServableToMonitor("m", "/models/m"),), poll_interval=0.001, quiet_period=0.0)
    source = FileSystemStoragePathSource(config, disk, clock, watch=False)
    return SourceFixture(source, "/models/m/3", source.close)


def _on_disk(tmp_path: Path) -> SourceFixture:
    (tmp_path / "model.py").write_bytes(b"class Model: ...")
    path = publish(str(tmp_path / "model.py"), str(tmp_path / "m"), 3).path
    clock = SystemClock()
    config = SourceConfig((ServableToMonitor("m", str(tmp_path / "m")),), poll_interval=0.001)
    source = FileSystemStoragePathSource(config, RealDisk(), clock)

    def close() -> None:
        source.close()
        clock.close()

    return SourceFixture(source, path, close)


@pytest.fixture(params=[_in_memory, _on_disk], ids=["in_memory", "on_disk"])
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceFixture]:
    fixture = request.param(tmp_path)
    yield fixture
    fixture.close()


def test_the_version_is_emitted_with_its_path_once_there_is_somewhere_to_send_it(fixture: SourceFixture) -> None:
    target = Target()
    connect(fixture.source, target)
    assert target.heard.wait(BOUND)
    (item,) = target.lists["m"]
    assert (item.id, item.payload, item.status.ok) == (ServableId("m", 3), fixture.path, True)
    fixture.close()
    assert target.broken_promises == []


def test_a_target_that_has_gone_does_not_disturb_the_source(fixture: SourceFixture) -> None:
    target = Target()
    callback = target.aspired_versions_callback()
    called = threading.Event()

    def call(name: str, versions: Sequence[ServableData[str]]) -> None:
        callback(name, versions)
        called.set()

    target.detach()
    fixture.source.set_aspired_versions_callback(call)
    assert called.wait(BOUND)
    assert target.lists == {}


def test_after_closing_nothing_is_emitted(fixture: SourceFixture) -> None:
    target = Target()
    connect(fixture.source, target)
    assert target.heard.wait(BOUND)
    fixture.close()
    target.lists.clear()
    fixture.close()
    assert target.lists == {}
