"""The file-system source while its configuration changes and its neighbours fail, in virtual time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.lifecycle.source_configs import config, model
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.testing.lifecycle.disk import MemoryDisk

Start = Callable[[SourceConfig], FileSystemStoragePathSource]
LONG_AGO = 3600.0


def test_a_target_or_receiver_that_fails_on_one_stream_still_gets_the_others(disk, clock, put, target, caplog) -> None:
    for name in ("a", "b"):
        put(name, 1)

    def fail_on_a(name: str, versions: Any) -> None:
        if name == "a":
            raise RuntimeError("no")
        target.aspire(name, versions)

    def refuse(report: Any) -> None:
        raise RuntimeError("no")

    source = FileSystemStoragePathSource(config(model("a"), model("b")), disk, clock, refuse, watch=False)
    source.set_aspired_versions_callback(fail_on_a)
    source.poll()
    source.close()
    assert target.calls == [("b", [1])]
    assert "the target failed on the versions of a" in caplog.text


class BrokenDisk(MemoryDisk):
    """A disk with a defect for one path."""

    def list_directory(self, path: str) -> Any:
        if path.endswith("/a"):
            raise ZeroDivisionError("a defect")
        return super().list_directory(path)


def test_a_defect_in_looking_at_one_stream_does_not_disturb_the_others(clock, target, archive, caplog) -> None:
    disk = BrokenDisk(clock)
    disk.mkdir("/models/a")
    disk.write("/models/b/1/model.pt2", archive)
    clock.advance(LONG_AGO)
    source = FileSystemStoragePathSource(config(model("a"), model("b")), disk, clock, target.reports.append, False)
    source.set_aspired_versions_callback(target.aspire)
    source.poll()
    source.close()
    assert target.calls == [("b", [1])]
    assert target.problem("a").startswith("INTERNAL")
    assert "a defect" in caplog.text


def test_a_removed_stream_gets_its_empty_list_at_once_and_the_others_nothing(start, put, target) -> None:
    for name in ("a", "b", "c"):
        put(name, 1)
    source = start(config(model("a"), model("b"), model("c")))
    target.calls.clear()
    source.update_config(config(model("b"), model("d")))
    assert target.calls == [("a", []), ("c", [])]
    source.poll()
    assert target.calls[2:] == [("b", [1])]


def test_a_stream_that_was_removed_and_added_again_starts_afresh(start, put, target, disk, clock) -> None:
    put("m", 1)
    source = start(config(model()))
    source.update_config(config())
    disk.write("/models/m/1/model.pt2", b"half")
    clock.advance(LONG_AGO)
    source.update_config(config(model()))
    reports = len(target.reports)
    source.poll()
    assert target.versions("m") == []
    assert len(target.reports) == reports + 1


def test_a_changed_base_path_is_followed_and_another_state_of_the_same_number(
    start, put, target, disk, clock, archive
) -> None:
    put("m", 1)
    disk.write("/other/1/model.pt2", archive)
    clock.advance(LONG_AGO)
    source = start(config(model()))
    before = target.revision("m")
    source.update_config(config(ServableToMonitor("m", "/other")))
    source.poll()
    assert target.lists["m"][0].payload == "/other/1"
    assert target.revision("m") != before
    disk.rename("/other", "/renamed")  # the very same files
    before = target.revision("m")
    source.update_config(config(ServableToMonitor("m", "/renamed")))
    source.poll()
    assert target.revision("m") != before


def refused(call: Callable[[], object]) -> ServingError:
    with pytest.raises(ServingError) as caught:
        call()
    return caught.value


def test_the_poll_interval_of_a_running_source_cannot_be_changed(start: Start, put: Any, target: Any) -> None:
    put("m", 1)
    source = start(config(model()))
    error = refused(lambda: source.update_config(config(poll_interval=2.0)))
    assert error.code is StatusCode.INVALID_ARGUMENT
    assert "poll_interval: expected None, got 2.0" in str(error)
    target.calls.clear()
    source.poll()
    assert target.calls == [("m", [1])]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ServableToMonitor("", "/m"), "field name"),
        (lambda: ServableToMonitor("m", ""), "field base_path"),
        (lambda: ServableToMonitor("m", "/m\0"), "NUL"),
        (lambda: config(model(), model()), "servable m is listed more than once"),
        (lambda: config(quiet_period=-1.0), "quiet_period"),
        (lambda: config(quiet_period=float("nan")), "quiet_period"),
        (lambda: config(poll_interval=float("inf")), "poll_interval"),
    ],
)
def test_an_invalid_config_names_the_field(build: Callable[[], object], message: str) -> None:
    error = refused(build)
    assert error.code is StatusCode.INVALID_ARGUMENT
    assert message in str(error)


def test_nothing_is_emitted_before_the_callback_is_set_nor_after_close(disk, clock, put, target) -> None:
    put("m", 1)
    source = FileSystemStoragePathSource(config(model()), disk, clock, watch=False)
    source.poll()
    source.set_aspired_versions_callback(target.aspire)
    source.poll()
    source.close()
    source.close()
    source.poll()
    source.update_config(config())
    source.wake()
    assert target.calls == [("m", [1])]


def test_without_a_thread_a_second_callback_replaces_the_first(start: Start, put: Any, target: Any) -> None:
    put("m", 1)
    source = start(config(model()))
    calls: list[str] = []
    source.set_aspired_versions_callback(lambda name, versions: calls.append(name))
    source.poll()
    assert (calls, target.calls) == (["m"], [("m", [1])])


def test_a_config_that_is_replaced_during_a_poll_ends_that_poll(disk, clock, put, target) -> None:
    for name in ("a", "b"):
        put(name, 1)
    both = config(model("a"), model("b"))
    source = FileSystemStoragePathSource(both, disk, clock, watch=False)
    listing = disk.list_directory

    def list_and_replace(path: str) -> Any:
        if path == "/models/b":
            source.update_config(dataclasses.replace(both, servables=(model("a"),)))
        return listing(path)

    disk.list_directory = list_and_replace  # type: ignore[method-assign]
    source.set_aspired_versions_callback(target.aspire)
    source.poll()
    source.close()
    assert target.calls == [("a", [1]), ("b", [])]
