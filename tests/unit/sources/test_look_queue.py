"""Looks that hang, and what is looked at all the same: virtual time, real threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.lifecycle.source_configs import config, model
from tfs_lite.sources.disk import device_of
from tfs_lite.sources.file_system_source import FILES_SECONDS, FULL_LOOK_SECONDS, FileSystemStoragePathSource
from tfs_lite.sources.look_queue import MOST_ON_ONE_DISK, Looked, LookQueue
from tfs_lite.sources.source_config import ServableToMonitor, SourceReport
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk

SECONDS = 10.0
BOUND = 30.0


class State:
    """What has happened, told by any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: list[str] = []

    def note(self, line: str) -> None:
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def wait_for(self, line: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._lines.count(line) >= times, BOUND), (line, self._lines)

    def count(self, line: str) -> int:
        with self._changed:
            return self._lines.count(line)


class Place(Looked):
    """Looks at it wait while it is closed."""

    def __init__(self, state: State, name: str, device: int = 1) -> None:
        super().__init__(f"/{name}")
        self.device = device
        self.name, self._state = name, state
        self.open = threading.Event()
        self.open.set()

    def look(self) -> None:
        self._state.note(f"look at {self.name}")
        assert self.open.wait(BOUND)
        self._state.note(f"{self.name} seen")

    def on_hang(self, what: str) -> None:
        self._state.note(f"{self.name}: {what}")

    def on_answer(self, seconds: float) -> None:
        self._state.note(f"{self.name} answers")


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def queue(clock: VirtualClock, disk: MemoryDisk) -> Iterator[LookQueue]:
    queue = LookQueue("looks", disk, clock, SECONDS)
    yield queue
    queue.close()


@pytest.fixture
def places(state: State) -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def make(name: str, device: int = 1) -> Place:
        made.append(Place(state, name, device))
        return made[-1]

    yield make
    for place in made:
        place.open.set()


HANGS = "its disk has not answered for 10 s"


def test_of_a_bucket_the_storage_is_named(state, places, queue, clock, disk: MemoryDisk) -> None:
    place, disk.fetches = places("a"), True
    place.open.clear()
    queue.ask([place])
    state.wait_for("look at a")
    clock.advance(SECONDS)
    state.wait_for("a: its storage has not answered for 10 s")


def hang(state: State, queue: LookQueue, clock: VirtualClock, *places: Place) -> None:
    for place in places:
        place.open.clear()
        queue.ask([place])
        state.wait_for(f"look at {place.name}")
        clock.advance(SECONDS)
        state.wait_for(f"{place.name}: {HANGS}")


def test_look_that_hangs_holds_up_no_other(state: State, queue: LookQueue, clock: VirtualClock, places) -> None:
    sick, well = places("sick"), places("well")
    hang(state, queue, clock, sick)
    for times in range(1, 4):
        queue.ask([sick, well])
        state.wait_for("well seen", times)
    assert state.count("look at sick") == 1
    assert queue.hanging() == [(sick, SECONDS)]


def test_what_hung_is_looked_at_again_once_it_answers(state: State, queue: LookQueue, clock, places) -> None:
    sick = places("sick")
    hang(state, queue, clock, sick)
    queue.ask([sick])
    sick.open.set()
    state.wait_for("sick answers")
    state.wait_for("sick seen", 2)
    assert queue.hanging() == []


def test_the_rest_of_the_queue_goes_on_when_its_head_hangs(state: State, queue: LookQueue, clock, places) -> None:
    sick, others = places("sick"), [places(str(number)) for number in range(5)]
    sick.open.clear()
    queue.ask([sick, *others])
    state.wait_for("look at sick")
    assert state.count("0 seen") == 0
    clock.advance(SECONDS)
    for other in others:
        state.wait_for(f"{other.name} seen")


def test_few_looks_hang_on_one_device_and_its_other_places_wait_and_say_so(state, queue, clock, places) -> None:
    sick = [places(f"sick {number}") for number in range(MOST_ON_ONE_DISK)]
    hang(state, queue, clock, *sick)
    beside, elsewhere = places("beside"), places("elsewhere", device=2)
    queue.ask([beside, elsewhere])
    state.wait_for("elsewhere seen")
    assert state.count("beside: its disk hangs: 3 looks at other directories there have not answered") == 1
    sick[0].open.set()
    state.wait_for("sick 0 answers")
    queue.ask([beside])
    state.wait_for("beside seen")


def test_place_that_was_never_seen_is_on_the_device_of_its_mount_point() -> None:
    mounts = [
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
        "30 22 0:45 / /models/far rw - nfs4 server:/ rw\n",
        "31 22 0:46 / /models/a\\040b rw - fuse x rw\n",
    ]
    found = [device_of(path, mounts) for path in ("/models/near", "/models/far/m", "/models/farther", "/models/a b/1")]
    assert [(device >> 8, device & 255) for device in found] == [(8, 1), (0, 45), (8, 1), (0, 46)]


class SickDisk(MemoryDisk):
    """Looks at the paths of ``sick`` wait."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.sick: dict[str, threading.Event] = {}
        self.inside = threading.Event()
        self.listed: list[str] = []

    def stamp(self, path: str):
        if path in self.sick:
            self.inside.set()
            assert self.sick[path].wait(BOUND)
        return super().stamp(path)

    def list_directory(self, path: str):
        self.listed.append(path)
        return super().list_directory(path)


class Running:
    """A source with threads, polled when it is told."""

    def __init__(self, disk: SickDisk, clock: VirtualClock) -> None:
        self.state, self.reports, self.refused = State(), {}, set()
        self.source = FileSystemStoragePathSource(
            config(model("a"), model("b"), poll_interval=0), disk, clock, self.on_report, disk_timeout=SECONDS
        )
        self.source.set_aspired_versions_callback(self.aspire)

    def on_report(self, report: SourceReport) -> None:
        self.reports[report.name] = report
        self.state.note(f"{report.name}: {report.problem}")

    def aspire(self, name: str, versions) -> None:
        self.state.note(f"{name} {[item.id.version for item in versions]}")
        if name in self.refused:
            raise RuntimeError("refused")


@pytest.fixture
def sick_disk(clock: VirtualClock) -> SickDisk:
    return SickDisk(clock)


@pytest.fixture
def running(sick_disk: SickDisk, clock: VirtualClock, archive: bytes) -> Iterator[Running]:
    for name in "ab":
        sick_disk.write(f"/models/{name}/1/model.pt2", archive)
    clock.advance(3600)
    running = Running(sick_disk, clock)
    running.state.wait_for("a [1]")
    running.state.wait_for("b [1]")
    yield running
    for event in sick_disk.sick.values():
        event.set()
    running.source.close()


def test_stream_whose_disk_hangs_says_so_and_is_taken_up_again(running, sick_disk, clock, archive) -> None:
    sick_disk.sick["/models/a"] = threading.Event()
    running.source.wake({"a"})
    assert sick_disk.inside.wait(BOUND)
    clock.advance(SECONDS)
    running.state.wait_for("a: UNAVAILABLE: model a: its disk has not answered for 10 s")
    assert running.reports["a"].on_disk == {1}
    assert running.source.hanging() == {"a": SECONDS}
    for name in "ab":
        sick_disk.write(f"/models/{name}/2/model.pt2", archive)
    clock.advance(3600)
    running.source.wake()
    running.state.wait_for("b [2]")
    assert running.source.look_ahead(config(model("a")))["a"].report.problem.message.endswith("answered for 10 s")
    sick_disk.sick.pop("/models/a").set()
    running.state.wait_for("a [2]")
    running.state.wait_for("a: OK", 2)


def test_moved_stream_is_looked_at_although_its_old_path_hangs(running, sick_disk, clock, archive) -> None:
    sick_disk.write("/other/2/model.pt2", archive)
    sick_disk.sick["/models/a"] = threading.Event()
    clock.advance(3600)
    running.source.wake({"a"})
    assert sick_disk.inside.wait(BOUND)
    clock.advance(SECONDS)
    running.state.wait_for("a: UNAVAILABLE: model a: its disk has not answered for 10 s")
    moved = ServableToMonitor("a", "/other")
    running.source.update_config(config(moved, model("b"), poll_interval=0))
    running.state.wait_for("a [2]")


def test_stream_at_rest_is_not_listed_again_for_a_while(running, sick_disk, clock, archive) -> None:
    def sweep() -> list[str]:
        sick_disk.listed.clear()
        running.source._look_at(None)
        running.source._look_at({"b"}, forced=True)
        running.state.wait_for("b [1]", running.state.count("b [1]") + 1)
        return [path for path in sick_disk.listed if path == "/models/a"]

    sweep()  # what a look has found counts once another one has found the same
    assert (sweep(), sweep()) == ([], [])
    sick_disk.write("/models/a/1/model.pt2", archive)
    assert sweep() == []
    clock.advance(FILES_SECONDS)  # a file that is overwritten where it lies changes no directory
    assert sweep() == ["/models/a"]
    clock.advance(FULL_LOOK_SECONDS)
    assert sweep() == ["/models/a"]


def test_changed_directory_is_listed_at_the_next_look(running, sick_disk, clock, archive) -> None:
    def sweep() -> None:
        of_b = running.state.count("b [1]")
        running.source._look_at(None)
        running.source._look_at({"b"}, forced=True)
        running.state.wait_for("b [1]", of_b + 1)

    sweep()
    sweep()
    sick_disk.write("/models/a/2/model.pt2", archive)
    clock.advance(0.1)
    sick_disk.listed.clear()
    sweep()
    assert "/models/a" in sick_disk.listed


def test_woken_stream_is_looked_at_alone(running, sick_disk) -> None:
    sick_disk.listed.clear()
    before = running.state.count("a [1]")
    running.source.wake({"a"})
    running.state.wait_for("a [1]", before + 1)
    assert set(sick_disk.listed) == {"/models/a"}


def test_a_close_look_sends_a_list_again_only_where_the_target_has_raised_on_it(running, clock) -> None:
    def look_closely() -> int:
        """How many lists of a it has sent."""
        before, of_b = running.state.count("a [1]"), running.state.count("b [1]")
        clock.advance(FULL_LOOK_SECONDS)
        running.source._look_at({"a"})
        running.source.wake({"b"})
        running.state.wait_for("b [1]", of_b + 1)
        return running.state.count("a [1]") - before

    assert (look_closely(), look_closely()) == (0, 0)
    running.refused.add("a")
    sent = running.state.count("a [1]")
    running.source.wake({"a"})
    running.state.wait_for("a [1]", sent + 1)
    assert look_closely() == 1
    running.refused.clear()
    assert (look_closely(), look_closely()) == (1, 0)
