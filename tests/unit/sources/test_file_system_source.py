"""What the file-system source says of the versions it finds: virtual time, a disk in memory, polled by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from tests.support.lifecycle.source_configs import config, model
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource, NotTaken
from tfs_lite.sources.look import FIRST_WAIT_SECONDS, LEFT_COPY
from tfs_lite.sources.source_config import SourceConfig
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy, VersionPolicy
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.disk import MemoryDisk

Start = Callable[[SourceConfig], FileSystemStoragePathSource]
LONG_AGO = 3600.0


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
def test_each_policy_emits_its_versions(start, put, target, policy: VersionPolicy, versions: list[int]) -> None:
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


def test_files_hidden_names_and_other_directories_are_no_versions(start, put, target, disk, caplog) -> None:
    put("m", 1)
    disk.write("/models/m/3", b"a plain file")
    for name in (".publish-9-aa", "5.denied", "v7", "12345678901234567890"):
        disk.write(f"/models/m/{name}/model.pt2", b"")
    source = start(config(model()))
    source.poll()
    assert target.versions("m") == [1]
    passed_over = {
        "12345678901234567890": "the highest version is 9223372036854775807",
        "3": "it is no directory but a file, or a link that leads nowhere",
        "v7": "a version is a whole number in the digits 0 to 9",
    }
    assert target.reports[-1].passed_over == passed_over
    assert [record.message for record in caplog.records if "passed over" in record.message] == [
        f"m: {name} in /models/m is passed over: {why}" for name, why in passed_over.items()
    ]


def test_a_hidden_copy_is_named_when_nobody_has_written_to_it_for_an_hour(start, put, target, disk, clock) -> None:
    put("m", 1)
    disk.write("/models/m/.publish-2-aa/model.pt2", b"")
    source = start(config(model()))
    clock.advance(3500.0)
    source.poll()
    assert target.reports[-1].passed_over == {}
    clock.advance(200.0)
    source.poll()
    assert target.reports[-1].passed_over == {".publish-2-aa": LEFT_COPY}
    disk.write("/models/m/.publish-2-aa/more", b"")
    source.poll()
    assert target.reports[-1].passed_over == {}


def test_a_version_of_a_list_that_was_not_taken_is_offered_only_while_it_is_complete(start, put, target, disk) -> None:
    put("m", 1)
    source = start(config(model()))
    refusing = [True]

    def take(name: str, versions: list[Any]) -> None:
        if refusing:
            raise NotTaken
        target.aspire(name, versions)

    source.set_aspired_versions_callback(take)
    put("m", 2)
    source.poll()
    disk.write("/models/m/2/tfs_lite.manifest.json", b"{")
    refusing.clear()
    source.poll()
    assert target.versions("m") == [1]
    assert target.reports[-1].waiting.keys() == {2}


def test_a_missing_base_path_emits_nothing_and_does_not_disturb_the_others(start, put, target, disk) -> None:
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


def test_base_path_that_stays_empty_emits_an_empty_list(start, put, target, disk, clock) -> None:
    put("m", 1)
    source = start(config(model()))
    disk.remove("/models/m/1")
    source.poll()
    assert target.versions("m") == [1]
    assert target.problem("m").startswith("NOT_FOUND: model m: its base path holds no version")
    assert target.reports[-1].keeps == "its base path has been empty for less than 1 s"
    assert clock.next_due == pytest.approx(1.0)
    clock.advance(1.0)
    source.poll()
    assert (target.versions("m"), target.reports[-1].keeps) == ([], "")


def test_version_that_is_replaced_under_the_eyes_of_the_poll_stays_wanted(start, put, target, disk, clock) -> None:
    put("m", 1)
    source = start(config(model()))
    first = target.revision("m")
    for _ in range(3):
        disk.remove("/models/m/1")
        source.poll()
        clock.advance(0.6)
        disk.mkdir("/models/m/1")
        source.poll()
        clock.advance(0.6)
    put("m", 1)
    source.poll()
    clock.advance(1.0)
    source.poll()
    assert {tuple(versions) for _, versions in target.calls} == {(1,)}
    assert target.revision("m") != first


def test_another_directory_that_is_empty_withdraws_nothing_until_versions_appear(
    start, put, target, disk, clock
) -> None:
    put("m", 1)
    source = start(config(model()))
    disk.rename("/models/m", "/models/away")
    source.poll()
    assert target.problem("m") == "NOT_FOUND: model m: its base path does not exist"
    disk.mkdir("/models/m/lost+found")
    for _ in range(3):
        source.poll()
        clock.advance(LONG_AGO)
    assert target.calls == [("m", [1])]
    assert "has become another directory, which holds no version" in target.problem("m")
    put("m", 2)
    source.poll()
    assert (target.versions("m"), target.problem("m")) == ([2], "OK")


def test_emptied_base_path_withdraws_nothing_where_versions_are_always_present(start, put, target, disk, clock) -> None:
    put("m", 1)
    source = start(config(model(), versions_always_present=True))
    disk.remove("/models/m/1")
    source.poll()
    clock.advance(LONG_AGO)
    source.poll()
    assert target.calls == [("m", [1])]
    assert target.problem("m").startswith("NOT_FOUND: model m: its base path holds no version")


@pytest.mark.parametrize("policy", [LatestPolicy(), AllPolicy(), SpecificPolicy((2,)), SpecificPolicy((2, 3))])
def test_nothing_is_ordered_while_all_that_is_wanted_is_still_to_come(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, policy: VersionPolicy
) -> None:
    put("m", 1)
    source = start(config(model(policy=SpecificPolicy((1,)))))
    disk.mkdir("/models/m/2")
    disk.rename("/models/m/1", "/models/m/one")
    source.update_config(config(model(policy=policy)))
    source.poll()
    clock.advance(1.0)
    source.poll()
    assert {tuple(versions) for _, versions in target.calls} == {(1,)}
    assert target.reports[-1].keeps == "nothing that is wanted now is there yet"
    put("m", 2)
    source.poll()
    clock.advance(1.0)
    source.poll()
    assert target.versions("m") == [2]
    assert target.reports[-1].keeps == ""


def test_policy_that_names_no_version_is_an_order(start: Start, put: Any, target: Any) -> None:
    put("m", 1)
    source = start(config(model()))
    source.update_config(config(model(policy=SpecificPolicy(()))))
    source.poll()
    assert target.versions("m") == []


def test_version_that_failed_takes_nobodys_place_until_it_is_available(
    start, put, target, disk, clock, archive
) -> None:
    for version in (1, 2, 3):
        put("m", version)
    source = start(config(model()))

    def say(state: ManagerState, health: Status = OK) -> list[int]:
        source.on_state(ServableState(ServableId("m", 3), state, health))
        source.poll()
        return target.versions("m")

    assert say(ManagerState.LOADING) == [3]
    assert say(ManagerState.END, Status(StatusCode.CANCELLED, "not wanted")) == [3]
    assert say(ManagerState.END, Status(StatusCode.DATA_LOSS, "corrupt")) == [3, 2]
    assert [item.given_up for item in target.lists["m"]] == [True, False]
    assert (target.reports[-1].failed, target.reports[-1].stand_ins) == ({3}, {2})
    disk.write("/models/m/3/model.pt2", archive + b"0")
    clock.advance(LONG_AGO)
    assert say(ManagerState.START) == [3, 2]
    assert say(ManagerState.LOADING) == [3, 2]
    assert say(ManagerState.AVAILABLE) == [3]
    assert (target.reports[-1].failed, target.reports[-1].stand_ins) == (frozenset(), frozenset())


def test_failure_is_forgotten_with_the_directory_of_the_version(start, put, target, disk) -> None:
    put("m", 1)
    put("m", 2)
    source = start(config(model()))
    source.on_state(ServableState(ServableId("m", 2), ManagerState.END, Status(StatusCode.DATA_LOSS, "corrupt")))
    disk.rename("/models/m/2", "/models/m/two")
    source.poll()
    assert target.versions("m") == [1]
    disk.rename("/models/m/two", "/models/m/2")
    source.poll()
    assert target.versions("m") == [2]


def test_a_removed_version_is_no_longer_emitted_after_the_quiet_period(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    put("m", 1)
    put("m", 2)
    source = start(config(model(policy=LatestPolicy(2)), quiet_period=2.0))
    disk.rename("/models/m/2", "/models/m/2.denied")
    source.poll()
    clock.advance(1.9)
    source.poll()
    assert target.versions("m") == [2, 1]
    assert target.reports[-1].changing == {2: "its directory has been gone for less than 2 s"}
    with caplog.at_level(logging.INFO):
        clock.advance(0.1)
        source.poll()
    assert target.versions("m") == [1]
    assert target.reports[-1].on_disk == {1}
    assert "model m: the directory of version 2 is gone" in caplog.messages


@pytest.mark.parametrize("policy", [LatestPolicy(), LatestPolicy(2), AllPolicy(), SpecificPolicy((2,))])
def test_no_older_version_takes_the_place_of_one_that_is_replaced(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes, policy: VersionPolicy
) -> None:
    put("m", 1)
    put("m", 2)
    source = start(config(model(policy=policy), quiet_period=2.0))
    before = {item.id.version: item for item in target.lists["m"]}
    disk.remove("/models/m/2")
    source.poll()
    clock.advance(1.5)
    source.poll()
    disk.write("/models/m/2/model.pt2", archive[:100])
    for _ in range(5):
        source.poll()
        clock.advance(1.0)
        assert {item.id.version: item for item in target.lists["m"]} == before
    disk.write("/models/m/2/model.pt2", archive)
    source.poll()
    clock.advance(2.0)
    source.poll()
    assert {tuple(sorted(versions)) for _, versions in target.calls} == {tuple(sorted(before))}
    assert target.lists["m"] != list(before.values()), "the new files are another state of the version"


def test_version_that_has_failed_is_gone_at_once(start: Start, put: Any, target: Any, disk: MemoryDisk) -> None:
    put("m", 1)
    put("m", 2)
    source = start(config(model(), quiet_period=2.0))
    source.on_failed_attempt(ServableId("m", 2))
    source.poll()
    assert target.versions("m") == [2, 1]
    disk.remove("/models/m/2")
    source.poll()
    assert target.versions("m") == [1]


def test_version_that_is_gone_holds_up_no_newer_one(
    start: Start, put: Any, target: Any, disk: MemoryDisk, archive: bytes
) -> None:
    put("m", 1)
    put("m", 2)
    source = start(config(model(), quiet_period=2.0))
    disk.remove("/models/m/2")
    source.poll()
    put("m", 3)
    source.poll()
    assert target.versions("m") == [3]


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


def test_old_time_stamps_do_not_hurry_a_version_that_was_seen_arriving(start, put, target, disk, clock) -> None:
    disk.mkdir("/models/m/1")
    source = start(config(model()))
    clock.advance(LONG_AGO)
    disk.write("/models/m/.staged", b"")
    disk.rename("/models/m/.staged", "/models/m/1/model.py")
    clock.advance(LONG_AGO)
    source.poll()
    assert target.versions("m") is None
    clock.advance(1.0)
    source.poll()
    assert target.versions("m") == [1]


def test_the_poll_asks_to_be_woken_when_the_quiet_period_ends(start, target, disk, clock, archive) -> None:
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
    assert target.waiting("m") == {}  # it may be whole in a moment
    clock.advance(LONG_AGO)
    source.poll()
    reason = "model.pt2 is truncated: the zip directory at its end is missing"
    assert (target.revision("m"), target.waiting("m")) == (first, {1: reason})
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


def test_a_version_that_counted_as_gone_must_be_complete_again_before_it_is_offered(
    start, put, target, disk, clock
) -> None:
    put("m", 1)
    put("m", 2)
    source = start(config(model()))
    disk.remove("/models/m/2")
    source.poll()
    clock.advance(1.0)
    source.poll()
    disk.mkdir("/models/m/2")
    source.poll()
    assert (target.versions("m"), target.waiting("m")) == ([1], {2: "no files yet"})


def test_a_version_without_permission_waits_and_its_siblings_do_not(start, put, target, disk) -> None:
    for version in (1, 2, 3):
        put("m", version)
    disk.deny("/models/m/3")
    disk.deny("/models/m/2/model.pt2")
    source = start(config(model(policy=AllPolicy())))
    assert target.versions("m") == [1]
    assert target.waiting("m") == {2: "model.pt2: Permission denied", 3: "the version directory: Permission denied"}
    disk.allow("/models/m/3")
    disk.allow("/models/m/2/model.pt2")
    source.poll()
    assert target.versions("m") == [1, 2, 3]


def test_listed_versions_that_do_not_exist_are_reported_as_waiting(start: Start, put: Any, target: Any) -> None:
    put("m", 1)
    start(config(model(policy=SpecificPolicy((1, 4)))))
    assert (target.versions("m"), target.waiting("m")) == ([1], {4: "there is no such version directory"})


def test_a_report_is_sent_once_and_again_only_when_it_changes(start, put, target, disk) -> None:
    put("m", 1)
    source = start(config(model()))
    source.poll()
    assert len(target.reports) == 1
    disk.mkdir("/models/m/2")
    source.poll()
    source.poll()
    assert len(target.reports) == 2


def test_file_names_that_are_no_text_do_not_reach_reports(start, target, disk, clock) -> None:
    disk.write("/models/m/1/\udcff.pt2", b"")
    clock.advance(LONG_AGO)
    start(config(model()))
    assert target.waiting("m") == {1: "\\xff.pt2 is not a zip archive (truncated?)"}


def test_a_quiet_disk_costs_no_reading(start, put, target, disk, caplog) -> None:
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


def test_a_changed_file_beside_the_versions_gives_them_a_new_revision(start, put, target, disk, clock) -> None:
    put("m", 1)
    disk.write("/models/m/config.yaml", b"max_batch_size: x")
    source = start(config(model()))
    first = target.revision("m")
    source.poll()
    assert target.revision("m") == first
    clock.advance(1.0)
    disk.write("/models/m/config.yaml", b"max_batch_size: 1")
    source.poll()
    second = target.revision("m")
    disk.write("/models/m/.hidden", b"")
    source.poll()
    assert (second == first, target.revision("m") == second) == (False, True)


def test_versions_of_a_moment_ago_are_waited_for_at_the_start_before_older_ones_are_loaded(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes
) -> None:
    put("m", 1)
    disk.write("/models/m/2/model.pt2", archive)
    source = start(config(model(), quiet_period=2.0))
    assert target.versions("m") is None
    assert target.reports[-1].settling == {2}
    clock.advance(2.0)
    source.poll()
    assert target.calls == [("m", [2])]


@pytest.mark.parametrize("policy", [AllPolicy(), SpecificPolicy((1, 2)), LatestPolicy(2)])
def test_every_policy_waits_for_the_newest_at_the_start(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes, policy: VersionPolicy
) -> None:
    put("m", 1)
    disk.write("/models/m/2/model.pt2", archive)
    source = start(config(model(policy=policy), quiet_period=2.0))
    clock.advance(2.0)
    source.poll()
    assert [sorted(versions) for _, versions in target.calls] == [[1, 2]]


def test_a_version_that_is_being_written_at_the_start_is_not_waited_for(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock
) -> None:
    put("m", 1)
    disk.write("/models/m/2/model.pt2", b"a part")
    source = start(config(model(), quiet_period=2.0))
    assert target.versions("m") is None
    clock.advance(1.0)
    disk.write("/models/m/2/model.pt2", b"a longer part")
    source.poll()
    assert target.versions("m") == [1]


def test_a_newest_version_that_settles_for_long_is_waited_for_no_longer_than_it_says(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes
) -> None:
    put("m", 1)
    disk.write("/models/m/2/model.pt2", archive)
    source = start(config(model(), quiet_period=1000.0))
    clock.advance(FIRST_WAIT_SECONDS - 1)
    source.poll()
    assert target.versions("m") is None
    clock.advance(1.0)
    source.poll()
    assert target.versions("m") == [1]


def test_a_volume_that_comes_back_brings_no_older_version_first(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes
) -> None:
    put("m", 1)
    disk.write("/models/m/2/model.pt2", archive)
    source = start(config(model(), quiet_period=2.0))
    clock.advance(2.0)
    source.poll()
    disk.rename("/models/m", "/models/away")
    disk.mkdir("/models/m")
    source.poll()
    disk.remove("/models/m")
    disk.rename("/models/away", "/models/m")
    disk.write("/models/m/2/model.pt2", archive)  # with times of now
    for _ in range(4):
        source.poll()
        clock.advance(1.0)
    assert {tuple(versions) for _, versions in target.calls} == {(2,)}


def test_an_older_version_that_was_offered_once_is_offered_again_only_when_it_is_complete(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes
) -> None:
    put("m", 1)
    source = start(config(model()))
    put("m", 2)
    source.poll()
    disk.remove("/models/m/1")
    disk.write("/models/m/1/model.pt2", archive[:100])
    disk.remove("/models/m/2")
    for _ in range(2):
        clock.advance(3600.0)
        source.poll()
    assert [versions for _, versions in target.calls] == [[1], [2], [2]]
    assert target.reports[-1].waiting.keys() == {1}


def test_a_base_path_that_comes_back_with_other_versions_brings_no_older_one_first(
    start: Start, put: Any, target: Any, disk: MemoryDisk, clock: VirtualClock, archive: bytes
) -> None:
    put("m", 1)
    source = start(config(model(), quiet_period=2.0))
    put("m", 3)
    source.poll()
    put("other", 1)
    disk.write("/models/other/2/model.pt2", archive)
    disk.remove("/models/m")
    source.poll()
    disk.rename("/models/other", "/models/m")
    for _ in range(4):
        source.poll()
        clock.advance(1.0)
    offered = [number for number, _ in groupby(versions for _, versions in target.calls)]
    assert offered == [[1], [3], [2]]


def test_rejected_version_is_offered_as_one_that_failed_and_another_stands_in_for_it(start, put, target) -> None:
    for version in (1, 2, 3):
        put("m", version)
    source = start(config(model()))
    source.reject("m", {3})
    source.poll()
    assert target.versions("m") == [3, 2]
    assert [item.given_up for item in target.lists["m"]] == [True, False]
    report = target.reports[-1]
    assert (report.failed, report.rejected, report.stand_ins) == (frozenset(), {3}, {2})
    assert report.stands_in_for(2) == "version 3, which must not answer"
    report = replace(report, failed=frozenset({4}), rejected=frozenset({2, 3}))
    assert report.stands_in_for(1) == "versions 2, 3 and 4, which must not answer or whose load failed"
    source.on_state(ServableState(ServableId("m", 3), ManagerState.AVAILABLE))
    source.poll()
    assert target.versions("m") == [3, 2]
    source.reject("m", ())
    source.poll()
    assert target.versions("m") == [3]
    assert target.reports[-1].rejected == frozenset()


def test_rejection_outlasts_the_policy_the_base_path_and_the_model(start, put, target, disk) -> None:
    for version in (1, 2, 3):
        put("m", version)
        put("n", version)
    source = start(config(model()))
    source.reject("m", {3})
    source.update_config(config(model(policy=SpecificPolicy((3,)))))
    source.poll()
    assert target.versions("m") == [3, 2]
    assert [look.report.rejected for look in source.look_ahead(config(model())).values()] == [{3}]
    source.update_config(config())
    source.update_config(config(model()))
    source.poll()
    assert target.versions("m") == [3, 2]


def test_version_may_be_rejected_before_its_model_is_in_the_config(start, put, target) -> None:
    for version in (1, 2):
        put("m", version)
    source = start(config())
    source.reject("m", {2})
    source.update_config(config(model()))
    source.poll()
    assert target.versions("m") == [2, 1]
