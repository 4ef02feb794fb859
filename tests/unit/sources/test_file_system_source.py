"""The file-system source in virtual time, on a disk in memory, polled by hand."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource, ServableToMonitor, SourceConfig
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy, VersionPolicy
from tfs_lite.testing.clock import VirtualClock
from tfs_lite.testing.disk import MemoryDisk

Start = Callable[..., FileSystemStoragePathSource]
LONG_AGO = 3600.0


def config(*servables: ServableToMonitor, **settings: Any) -> SourceConfig:
    return SourceConfig(servables, **{"poll_interval": None, **settings})


def model(name: str = "m", policy: VersionPolicy | None = None) -> ServableToMonitor:
    return ServableToMonitor(name, f"/models/{name}", policy or LatestPolicy())


@pytest.fixture
def start(disk: MemoryDisk, clock: VirtualClock, target: Any) -> Iterator[Start]:
    """Makes a source whose every poll is a call of ``poll``; hashing happens inside it."""
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
        clock.advance(LONG_AGO)

    return write


def test_the_newest_version_is_emitted_with_its_path(start: Start, put: Any, target: Any) -> None:
    put("m", "0001")
    put("m", "0002")
    start(config(model()))
    (item,) = target.lists["m"]
    assert (item.id.version, item.payload) == (2, "/models/m/0002")
    assert item.revision


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        (LatestPolicy(), [10]),
        (LatestPolicy(2), [10, 9]),
        (AllPolicy(), [1, 10, 9]),
        (SpecificPolicy((9, 4, 1)), [9, 1]),
        (SpecificPolicy(()), []),
    ],
)
def test_each_policy_emits_its_versions(
    start: Start, put: Any, target: Any, policy: VersionPolicy, versions: list[int]
) -> None:
    for version in (1, 9, 10):
        put("m", version)
    start(config(model(policy=policy)))
    assert target.versions("m") == versions


def test_every_poll_emits_every_stream_in_alphabetical_order(start: Start, put: Any, target: Any) -> None:
    for name in ("b", "a", "c"):
        put(name, 1)
    source = start(config(model("b"), model("c"), model("a")))
    source.poll()
    assert target.calls == [("a", [1]), ("b", [1]), ("c", [1])] * 2


def test_files_hidden_names_and_other_directories_are_no_versions(
    start: Start, put: Any, target: Any, disk: MemoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    put("m", 1)
    disk.write("/models/m/3", b"a plain file")
    for name in (".publish-9-aa", "5.denied", "v7", "12345678901234567890"):
        disk.write(f"/models/m/{name}/model.pt2", b"")
    source = start(config(model()))
    source.poll()
    assert target.versions("m") == [1]
    assert [record.message for record in caplog.records if "ignored" in record.message] == [
        "m: 3 in /models/m is no directory: ignored"
    ]


def test_a_missing_base_path_emits_nothing_and_disturbs_nobody(
    start: Start, put: Any, target: Any, disk: MemoryDisk
) -> None:
    put("a", 1)
    put("b", 1)
    source = start(config(model("a"), model("b"), model("c")))
    assert target.versions("c") is None
    assert target.problem("c") == "NOT_FOUND: model c: its base path does not exist"
    disk.rename("/models/a", "/models/elsewhere")
    put("b", 2)
    target.calls.clear()
    source.poll()
    assert target.calls == [("b", [2])]
    disk.rename("/models/elsewhere", "/models/a")
    source.poll()
    assert target.versions("a") == [1]
    assert target.problem("a") == "OK"


@pytest.mark.parametrize(
    ("error", "code"), [(PermissionError, "PERMISSION_DENIED"), (OSError, "UNAVAILABLE"), (NotADirectoryError, None)]
)
def test_an_unreadable_base_path_emits_nothing(
    start: Start, put: Any, target: Any, disk: MemoryDisk, error: type[OSError], code: str | None
) -> None:
    put("m", 1)
    source = start(config(model()))
    if code is None:
        disk.remove("/models/m")
        disk.write("/models/m", b"a file")
    else:
        disk.deny("/models/m", error)
    target.calls.clear()
    source.poll()
    assert target.calls == []
    assert target.problem("m").startswith(code or "FAILED_PRECONDITION")
    assert "/models" not in target.problem("m")


def test_an_empty_base_path_emits_an_empty_list(start: Start, put: Any, target: Any, disk: MemoryDisk) -> None:
    put("m", 1)
    source = start(config(model()))
    disk.remove("/models/m/1")
    source.poll()
    assert target.versions("m") == []
    assert target.problem("m").startswith("NOT_FOUND: model m: its base path holds no version")


def test_a_stream_whose_versions_are_always_present_never_gets_an_empty_list(
    start: Start, put: Any, target: Any, disk: MemoryDisk
) -> None:
    put("m", 1)
    source = start(config(model(), servable_versions_always_present=True))
    disk.remove("/models/m/1")
    target.calls.clear()
    source.poll()
    assert target.calls == []
    assert "no version" in target.problem("m")


def test_a_removed_version_is_no_longer_emitted(start: Start, put: Any, target: Any, disk: MemoryDisk) -> None:
    put("m", 1)
    put("m", 2)
    source = start(config(model(policy=LatestPolicy(2))))
    disk.rename("/models/m/2", "/models/m/2.denied")
    source.poll()
    assert target.versions("m") == [1]


def test_a_version_that_is_being_written_waits_and_its_predecessor_stays(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes
) -> None:
    put("m", 1)
    source = start(config(model(), quiet_period=1.0))
    disk.mkdir("/models/m/2")
    source.poll()
    assert (target.versions("m"), target.waiting("m")) == ([1], {2: "no files yet"})
    for end in range(0, len(archive), 40):
        disk.write("/models/m/2/model.pt2", archive[: end + 40])
        source.poll()
        assert (target.versions("m"), target.waiting("m")) == ([1], {2: "files changed less than 1 s ago"})
        clock.advance(0.5)
    source.poll()
    assert target.versions("m") == [1]
    clock.advance(0.5)
    source.poll()
    assert (target.versions("m"), target.waiting("m")) == ([2], {})


def test_old_time_stamps_do_not_hurry_a_version_that_was_seen_arriving(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock
) -> None:
    disk.mkdir("/models/m/1")
    source = start(config(model()))
    clock.advance(LONG_AGO)
    disk.write("/models/m/.staged", b"")
    disk.rename("/models/m/.staged", "/models/m/1/model.py")
    clock.advance(LONG_AGO)
    source.poll()
    assert target.versions("m") == []
    clock.advance(1.0)
    source.poll()
    assert target.versions("m") == [1]


def test_the_poll_asks_to_be_woken_when_the_quiet_period_ends(
    start: Start, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes
) -> None:
    disk.write("/models/m/1/model.pt2", archive)
    clock.advance(0.25)
    source = start(config(model()))
    assert clock.next_due == pytest.approx(0.75)
    clock.advance(0.75)
    source.poll()
    assert target.versions("m") == [1]
    assert clock.pending == 0


def test_a_truncated_archive_waits_as_truncated_and_is_offered_when_repaired(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes
) -> None:
    put("m", 1)
    put("m", 2, archive[:-30])
    source = start(config(model()))
    assert target.versions("m") == [1]
    assert target.waiting("m") == {2: "model.pt2 is truncated: the zip directory at its end is missing"}
    opened = len(disk.opened)
    source.poll()
    assert len(disk.opened) == opened
    disk.write("/models/m/2/model.pt2", archive)
    source.poll()
    clock.advance(1.0)
    source.poll()
    assert (target.versions("m"), target.waiting("m")) == ([2], {})


def test_a_version_once_offered_stays_offered_and_changed_files_give_it_a_new_revision(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes
) -> None:
    put("m", 1)
    source = start(config(model()))
    first = target.revision("m")
    disk.write("/models/m/1/model.pt2", archive[:-1])
    source.poll()
    clock.advance(LONG_AGO)
    source.poll()
    assert (target.revision("m"), target.waiting("m")) == (first, {})
    disk.write("/models/m/1/model.pt2", archive)
    source.poll()
    assert target.revision("m") == first
    clock.advance(1.0)
    source.poll()
    assert target.revision("m") != first


def test_a_version_removed_and_made_again_between_two_polls_has_another_revision(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock
) -> None:
    put("m", 1)
    source = start(config(model()))
    first = target.revision("m")
    disk.remove("/models/m/1")
    put("m", 1)
    source.poll()
    clock.advance(1.0)
    source.poll()
    assert target.revision("m") not in (first, "")


def test_a_version_seen_to_be_gone_must_be_complete_again_before_it_is_offered(
    start: Start, put: Any, target: Any, disk: MemoryDisk
) -> None:
    put("m", 1)
    source = start(config(model()))
    disk.remove("/models/m/1")
    source.poll()
    disk.mkdir("/models/m/1")
    source.poll()
    assert (target.versions("m"), target.waiting("m")) == ([], {1: "no files yet"})


def test_a_version_without_permission_waits_and_its_siblings_do_not(
    start: Start, put: Any, target: Any, disk: MemoryDisk
) -> None:
    for version in (1, 2, 3):
        put("m", version)
    disk.deny("/models/m/3")
    disk.deny("/models/m/2/model.pt2")
    source = start(config(model(policy=AllPolicy())))
    assert target.versions("m") == [1]
    assert target.waiting("m") == {
        2: "model.pt2: Permission denied",
        3: "the version directory: Permission denied",
    }
    disk.allow("/models/m/3")
    disk.allow("/models/m/2/model.pt2")
    source.poll()
    assert target.versions("m") == [1, 2, 3]


def test_listed_versions_that_do_not_exist_are_reported_as_waiting(start: Start, put: Any, target: Any) -> None:
    put("m", 1)
    start(config(model(policy=SpecificPolicy((1, 4)))))
    assert (target.versions("m"), target.waiting("m")) == ([1], {4: "there is no such version directory"})


def test_a_report_is_sent_once_and_again_only_when_it_changes(
    start: Start, put: Any, target: Any, disk: MemoryDisk
) -> None:
    put("m", 1)
    source = start(config(model()))
    source.poll()
    assert len(target.reports) == 1
    disk.mkdir("/models/m/2")
    source.poll()
    source.poll()
    assert len(target.reports) == 2


def test_file_names_that_are_no_text_do_not_reach_reports(
    start: Start, target: Any, disk: MemoryDisk, clock: VirtualClock
) -> None:
    disk.write("/models/m/1/\udcff.pt2", b"")
    clock.advance(LONG_AGO)
    start(config(model()))
    assert target.waiting("m") == {1: "\\udcff.pt2 is not a zip archive (truncated?)"}


def test_a_target_or_receiver_that_fails_on_one_stream_still_gets_the_others(
    disk: MemoryDisk, clock: VirtualClock, put: Any, target: Any, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_defect_in_looking_at_one_stream_does_not_disturb_the_others(
    clock: VirtualClock, target: Any, archive: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk = BrokenDisk(clock)
    disk.write("/models/b/1/model.pt2", archive)
    clock.advance(LONG_AGO)
    source = FileSystemStoragePathSource(config(model("a"), model("b")), disk, clock, target.reports.append, False)
    source.set_aspired_versions_callback(target.aspire)
    source.poll()
    source.close()
    assert target.calls == [("b", [1])]
    assert target.problem("a").startswith("INTERNAL")
    assert "a defect" in caplog.text


def test_a_removed_stream_gets_its_empty_list_at_once_and_the_others_nothing(
    start: Start, put: Any, target: Any
) -> None:
    for name in ("a", "b", "c"):
        put(name, 1)
    source = start(config(model("a"), model("b"), model("c")))
    target.calls.clear()
    source.update_config(config(model("b"), model("d")))
    assert target.calls == [("a", []), ("c", [])]
    source.poll()
    assert target.calls[2:] == [("b", [1])]


def test_a_stream_that_was_removed_and_added_again_starts_afresh(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock
) -> None:
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


def test_a_changed_base_path_is_logged_and_followed(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes, caplog: Any
) -> None:
    put("m", 1)
    disk.write("/other/2/model.pt2", archive)
    clock.advance(LONG_AGO)
    source = start(config(model()))
    source.update_config(config(ServableToMonitor("m", "/other")))
    source.poll()
    assert target.lists["m"][0].payload == "/other/2"
    assert "base path changed from /models/m to /other" in caplog.text


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


@pytest.mark.parametrize("setting", ["fail_if_zero_versions_at_startup", "servable_versions_always_present"])
def test_a_config_that_insists_on_versions_is_refused_without_them(
    start: Start, put: Any, target: Any, disk: MemoryDisk, setting: str
) -> None:
    put("m", 1)
    disk.mkdir("/models/empty")
    source = start(config(model(), **{setting: True}))
    for name, code in (("missing", StatusCode.INVALID_ARGUMENT), ("empty", StatusCode.NOT_FOUND)):
        bad = config(model(name), **{setting: True})
        assert refused(lambda bad=bad: source.update_config(bad)).code is code
        assert refused(lambda bad=bad: start(bad)).code is code
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


def test_nothing_is_emitted_before_the_callback_is_set_nor_after_close(
    disk: MemoryDisk, clock: VirtualClock, put: Any, target: Any
) -> None:
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


def test_a_quiet_disk_costs_no_reading(
    start: Start, put: Any, target: Any, disk: MemoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    for version in range(1, 6):
        put("m", version)
    with caplog.at_level(logging.INFO):
        source = start(config(model(policy=AllPolicy())))
        opened, logged = list(disk.opened), len(caplog.records)
        for _ in range(10):
            source.poll()
    assert len(opened) == 5
    assert disk.opened == opened
    assert len(caplog.records) == logged


def test_a_config_that_is_replaced_during_a_poll_ends_that_poll(
    disk: MemoryDisk, clock: VirtualClock, put: Any, target: Any
) -> None:
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
