"""The watcher, with the real file system and its real events."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from watchdog.events import FileSystemEventHandler
from watchdog.observers import Observer

from tfs_lite.core.clock import SystemClock
from tfs_lite.sources import watch as watching
from tfs_lite.sources.watch import DirectoryWatcher
from tfs_lite.sources.watch_points import WatchPoint, point_below, points_for
from tfs_lite.testing.lifecycle.clock import VirtualClock

BOUND = 30.0


class Watch:
    """A watcher of one set of points, and the number of calls it made."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.calls = 0
        self.told: frozenset[str] = frozenset()
        self.called = threading.Event()
        self.watcher = DirectoryWatcher(self.on_change, self.clock)

    def on_change(self, owners: frozenset[str]) -> None:
        self.calls += 1
        self.told |= owners
        self.called.set()

    def on(self, *points: WatchPoint, owner: str = "") -> bool:
        return self.watcher.update(points, owner)

    def notices(self, change: Callable[[], object]) -> bool:
        self.called.clear()
        change()
        return self.called.wait(BOUND)


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.watcher.close()
    watch.clock.close()


def test_renames_creations_and_removals_in_a_directory_are_noticed(watch: Watch, tmp_path: Path) -> None:
    base = tmp_path / "base"
    (tmp_path / "elsewhere").mkdir()
    base.mkdir()
    assert watch.on(*points_for(str(base)))
    assert watch.notices(lambda: (tmp_path / "elsewhere").rename(base / "1"))
    assert watch.notices(lambda: (base / "2").mkdir())
    assert watch.notices(lambda: (base / "2").rmdir())
    assert watch.notices(lambda: (base / "1").rename(base / ".1"))


def test_the_end_of_writing_below_a_version_is_noticed(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "1" / "assets").mkdir(parents=True)
    watch.on(point_below(str(tmp_path / "1")))
    assert watch.notices(lambda: (tmp_path / "1" / "model.pt2").write_bytes(b"x"))
    assert watch.notices(lambda: (tmp_path / "1" / "assets" / "words").write_bytes(b"x"))


def test_reading_hidden_names_and_other_names_cause_no_call(watch: Watch, tmp_path: Path) -> None:
    version = tmp_path / "base" / "1"
    version.mkdir(parents=True)
    model = version / "model.pt2"
    model.write_bytes(b"x" * 1000)
    watch.on(point_below(str(version)), *points_for(str(tmp_path / "base")))

    for _ in range(50):
        model.read_bytes()
        os.listdir(version)
        (tmp_path / "base" / ".publish-1").mkdir()
        (tmp_path / "base" / ".publish-1").rmdir()
        (tmp_path / "neighbour").write_bytes(b"x")
    assert watch.notices(lambda: (tmp_path / "base" / "2").mkdir())
    assert watch.calls == 1


def test_a_base_path_that_appears_later_is_noticed_and_then_watched(watch: Watch, tmp_path: Path) -> None:
    base = tmp_path / "a" / "base"
    assert watch.on(*points_for(str(base)))
    assert watch.notices(lambda: (tmp_path / "a").mkdir())
    assert watch.on(*points_for(str(base)))
    assert watch.notices(base.mkdir)
    assert watch.on(*points_for(str(base)))
    assert not watch.on(*points_for(str(base)))
    assert watch.notices(lambda: (base / "1").mkdir())


def test_a_base_path_that_is_replaced_is_watched_anew(watch: Watch, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    watch.on(*points_for(str(base)))
    for round_trip in range(3):
        if round_trip % 2:
            assert watch.notices(lambda: base.rename(tmp_path / f"old-{round_trip}"))  # noqa: B023
        else:
            assert watch.notices(lambda: shutil.rmtree(base))
        base.mkdir()
        watch.called.clear()
        while not watch.on(*points_for(str(base))):
            assert watch.called.wait(BOUND), "the new directory is not watched, and no other look was asked for"
            watch.called.clear()
        assert watch.notices(lambda: (base / "1").mkdir())


def test_a_link_that_is_switched_is_noticed_and_followed(watch: Watch, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    base = tmp_path / "base"
    base.symlink_to("one")
    watch.on(*points_for(str(base)))
    (tmp_path / "new").symlink_to("two")
    assert watch.notices(lambda: (tmp_path / "new").rename(base))
    assert watch.on(*points_for(str(base)))
    assert watch.notices(lambda: (tmp_path / "two" / "1").mkdir())


def test_a_new_name_in_a_watched_directory_asks_for_another_look(watch: Watch, tmp_path: Path) -> None:
    assert watch.on(WatchPoint(str(tmp_path), "a"))
    assert watch.on(WatchPoint(str(tmp_path), "b"))
    assert not watch.on(WatchPoint(str(tmp_path), "b"))
    assert watch.notices(lambda: (tmp_path / "b").mkdir())


def test_where_the_system_allows_no_watch_one_line_is_logged(watch, tmp_path, monkeypatch, caplog) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    monkeypatch.setattr(watching, "Observer", refuse)
    for _ in range(3):
        assert not watch.on(*points_for(str(tmp_path)))
    assert [record.message for record in caplog.records] == [
        "cannot watch every directory ([Errno 24] inotify instance limit reached): changes there are found by polling"
    ]


def test_watches_are_bounded(watch, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(watching, "MAX_WATCHES", 2)
    for name in "abc":
        (tmp_path / name).mkdir()
    watch.on(*(WatchPoint(str(tmp_path / name)) for name in "abc"))
    assert "more than 2 directories" in caplog.text
    assert watch.notices(lambda: (tmp_path / "b" / "1").mkdir())


def test_a_directory_without_permission_or_existence_is_left_out(watch: Watch, tmp_path: Path) -> None:
    assert not watch.on(WatchPoint(str(tmp_path / "missing")))
    assert watch.on(WatchPoint(str(tmp_path / "missing")), WatchPoint(str(tmp_path)))


def test_closing_ends_the_threads_and_later_updates_do_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    watcher = DirectoryWatcher(lambda owners: None, VirtualClock())
    watcher.update(points_for(str(tmp_path)))
    watcher.close()
    watcher.close()
    assert not watcher.update(points_for(str(tmp_path)))
    assert set(threading.enumerate()) <= before


def test_watch_that_is_given_up_while_events_come_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its thread may ask for events once more when it has ended already."""
    observer = Observer()
    observer.start()
    observer.schedule(FileSystemEventHandler(), str(tmp_path))
    (emitter,) = observer.emitters
    observer.stop()
    observer.join()
    emitter.queue_events(0.0)
    assert caplog.records == []


def test_a_burst_of_changes_makes_one_call_at_once_and_one_later(tmp_path: Path) -> None:
    clock, calls = VirtualClock(), []
    throttle = watching._Throttle(lambda owners: calls.append(clock.monotonic()), clock)
    for _ in range(100):
        throttle.call(frozenset({""}))
    assert len(calls) == 1
    clock.advance(watching.MIN_GAP)
    assert len(calls) == 2
    clock.advance(1)
    throttle.call(frozenset({""}))
    throttle.call(frozenset({""}))
    throttle.close()
    clock.advance(1)
    assert len(calls) == 3


def test_a_change_is_told_to_those_whom_it_concerns_and_to_no_others(watch: Watch, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    for name in "abc":
        watch.on(*points_for(str(tmp_path / name)), owner=name)
    assert watch.notices(lambda: (tmp_path / "a" / "1").mkdir())
    assert watch.told == {"a"}
    assert watch.notices(lambda: (tmp_path / "b").rename(tmp_path / "d"))
    assert watch.told <= {"a", "b"}


def test_owners_that_share_a_directory_are_all_told_until_they_give_it_up(watch: Watch, tmp_path: Path) -> None:
    for name in "abc":
        watch.on(WatchPoint(str(tmp_path)), owner=name)
    watch.on(owner="b")
    assert watch.notices(lambda: (tmp_path / "1").mkdir())
    assert watch.told == {"a", "c"}


def test_changes_of_several_that_come_together_are_told_together(tmp_path: Path) -> None:
    clock, calls = VirtualClock(), []
    throttle = watching._Throttle(calls.append, clock)
    for name in "abcab":
        throttle.call(frozenset({name}))
    clock.advance(watching.MIN_GAP)
    assert calls == [{"a"}, {"a", "b", "c"}]


def test_a_watch_that_the_library_has_lost_keeps_neither_an_update_nor_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """watchdog 7.1 raises KeyError for what lay below a watch and was moved and deleted."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    clock = SystemClock()
    watcher = DirectoryWatcher(lambda owners: None, clock)
    points = [WatchPoint(str(tmp_path / name), recursive=True) for name in ("a", "b")]
    assert watcher.update(points)
    observer = watcher._observer
    assert observer is not None

    def lost(*ignored: object) -> None:
        raise KeyError(b"moved and deleted")

    monkeypatch.setattr(observer, "unschedule", lost)
    monkeypatch.setattr(observer, "on_thread_stop", lost)
    assert not watcher.update(points[:1])
    watcher.close()
    clock.close()
    assert not observer.is_alive()
