"""The first load of a version whose check takes longer than files may take to settle: in virtual time, over the real
source, states and waiter."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO
from unittest.mock import ANY

import pytest

from tests.support.servers.process import wait_until
from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.executor import PoolExecutor, Task
from tfs_lite.core.manifest import MANIFEST_NAME, Manifest, ManifestFile
from tfs_lite.core.servable import ServableData
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.load_journal import LoadJournal
from tfs_lite.serving.load_waiter import SETTLING, ModelWaiter
from tfs_lite.serving.model_states import ModelStates
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource
from tfs_lite.sources.inspector import STALLED_SECONDS
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk

WEIGHTS = b"w" * 1000
BASE = "/models/m"


class SlowFile(io.BytesIO):
    """Each piece that is read of it takes a while."""

    def __init__(self, data: bytes, on_piece: Callable[[], None]) -> None:
        super().__init__(data)
        self._on_piece = on_piece

    def read(self, size: int | None = -1) -> bytes:
        self._on_piece()
        return super().read(min(size or 0, 10))


class SlowDisk(MemoryDisk):
    """Weights are read in a hundred pieces."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.on_piece: Callable[[], None] = lambda: None

    def open(self, path: str) -> BinaryIO:
        file = super().open(path)
        return SlowFile(file.read(), lambda: self.on_piece()) if path.endswith("weights.bin") else file


class CountedExecutor(PoolExecutor):
    """``left``: tasks that have not ended."""

    left = 0

    def submit(self, task: Task) -> None:
        def done(error: BaseException | None) -> None:
            task.done(error)
            self.left -= 1

        self.left += 1
        super().submit(replace(task, done=done))


class Server:
    """What of a server decides when ``/readyz`` is 200. In each second that the waiter waits, one piece of the weights
    is read, and the source polls."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.disk = SlowDisk(self.clock)
        self.disk.on_piece = self._on_piece
        self.pieces, self.asked, self.given = threading.Semaphore(0), 0, 0
        self.stops_after = 1000
        self.hashing = CountedExecutor("digests", 1)
        self.bus: EventBus[ServableState] = EventBus(self.clock)
        self.changes = ChangeNotifier()
        self.changes.wait_since = self._wait  # type: ignore[method-assign]
        monitor, journal = ServableStateMonitor(self.bus), LoadJournal(lambda attempt: None)
        self.states = ModelStates(monitor, journal, self.changes, self.clock)
        self.states.configure(["m"])
        self.waiter = ModelWaiter(self.states, self.changes, self.clock)
        self.waited = 0
        self.each_second: Callable[[int], None] = lambda second: None
        self.fails: frozenset[int] = frozenset()
        self.loaded: list[ServableState] = []
        config = SourceConfig((ServableToMonitor("m", BASE),), poll_interval=None)
        self.source = FileSystemStoragePathSource(
            config, self.disk, self.clock, self.states.on_source_report, watch=False, executor=self.hashing
        )
        self.source.set_aspired_versions_callback(self.states.observe(self._aspire))

    def publish(self, version: int, listed: bytes = WEIGHTS) -> None:
        entry = ManifestFile(len(WEIGHTS), hashlib.sha256(listed).hexdigest())
        self.disk.write(f"{BASE}/{version}/weights.bin", WEIGHTS)
        self.disk.write(f"{BASE}/{version}/{MANIFEST_NAME}", Manifest({"weights.bin": entry}).to_bytes())

    def first_load(self) -> dict[str, tuple[str, ...]]:
        """The models that have failed when the first load ends, and why."""
        self.source.poll()
        result = self.waiter.wait(["m"], None, since=0.0, first_attempt_counts=True)
        return {name: tuple(str(status) for _, status in found.reasons) for name, found in result.failed.items()}

    def _on_piece(self) -> None:
        self.asked += 1
        assert self.pieces.acquire(timeout=60)

    def _wait(self, count: int, timeout: float | None) -> None:
        self.waited += 1
        assert self.waited < 1000, "it waits for ever"
        self.each_second(self.waited)
        if self.waited <= self.stops_after:
            self._read_on()
        self.clock.advance(1.0)
        for state in self.loaded:
            self.source.on_state(state)
        self.source.poll()
        self.changes.notify()

    def _read_on(self) -> None:
        """The check in hand reads a piece, and has come to the next one or to its end when this returns."""
        wait_until(lambda: self.asked > self.given or not self.hashing.left, "it wants a piece")
        if self.hashing.left:
            self.given += 1
            self.pieces.release()
            wait_until(lambda: self.asked > self.given or not self.hashing.left, "it has read it")

    def _aspire(self, name: str, versions: Sequence[ServableData[str]]) -> None:
        for item in versions:
            works = item.id.version not in self.fails
            health = OK if works else Status(StatusCode.INVALID_ARGUMENT, "broken")
            state = ServableState(item.id, ManagerState.AVAILABLE if works else ManagerState.END, health)
            self.bus.publish(state)
            self.loaded.append(state)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.disk.on_piece = lambda: None
    server.pieces.release(1000)
    server.source.close()
    server.hashing.shutdown()


def test_the_first_load_waits_for_a_check_that_takes_longer_than_files_may_take_to_settle(server: Server) -> None:
    server.publish(1)
    assert server.first_load() == {}
    assert server.waited > SETTLING


def test_a_base_path_that_cannot_be_listed_ends_neither_the_first_load_nor_the_check(server: Server) -> None:
    server.publish(1)

    def each_second(second: int) -> None:
        if second == 10:
            server.disk.deny(BASE)
        if second == 20:
            server.disk.allow(BASE)

    server.each_second = each_second
    assert server.first_load() == {}
    assert server.waited > SETTLING
    assert server.disk.opened.count(f"{BASE}/1/weights.bin") == 1


def test_a_look_that_has_a_mistake_of_ours_does_not_end_a_check(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.publish(1)

    def each_second(second: int) -> None:
        if second == 10:
            monkeypatch.setattr("tfs_lite.sources.look.choose", None)
        if second == 20:
            monkeypatch.undo()

    server.each_second = each_second
    assert server.first_load() == {}
    assert server.disk.opened.count(f"{BASE}/1/weights.bin") == 1


def test_an_older_version_that_is_checked_may_yet_stand_in_for_one_that_has_failed(server: Server) -> None:
    server.publish(1)
    server.fails = frozenset({2})
    server.disk.write(f"{BASE}/2/model.bin", b"")
    server.clock.advance(3600)
    assert server.first_load() == {}
    assert server.waited > SETTLING


def test_a_check_that_has_found_another_digest_ends_the_first_load(server: Server) -> None:
    server.publish(1, listed=b"other")
    (reason,) = server.first_load()["m"]
    assert "does not have the sha256 digest" in reason
    assert server.waited > SETTLING


def test_a_check_that_does_not_come_on_ends_the_first_load(server: Server) -> None:
    server.publish(1)
    server.stops_after = 10
    assert server.first_load() == {"m": ("UNAVAILABLE: checking the digests of 1169 bytes",)}
    assert server.waited == pytest.approx(10 + STALLED_SECONDS + SETTLING, abs=2)


def test_a_base_path_that_hangs_ends_the_first_load_though_a_check_is_in_hand(server: Server) -> None:
    server.publish(1)
    server.source.poll()
    report = server.states.source_report("m")
    assert report is not None
    assert report.fetching == {1}
    (stream,) = server.source._streams.values()
    stream.on_hang("its disk has not answered for 10 s")
    assert server.states.source_report("m") == replace(report, problem=ANY, fetching=frozenset())
