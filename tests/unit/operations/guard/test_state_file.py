"""What the guard remembers over a restart."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.errors import fail_syncs
from tfs_lite.operations.guard.state_file import FILE, StateFile, with_files
from tfs_lite.operations.guard.trial import MAX_REMEMBERED, NOTHING, By, ModelState, Rejection, Running


def rejecting(*rejections: Rejection, accepted: Mapping[int, str] = NOTHING) -> ModelState:
    rejected = {each.version: each for each in rejections}
    return ModelState(rejected=rejected, accepted=accepted, ungated=frozenset(accepted))


TRIAL = ModelState(armed={8: Running(8, 7, "f8")})
REJECTED = rejecting(
    Rejection(9, "f9", "taken back after 11 s", 5.0),
    Rejection(8, "f8", "rolled back", 6.0, By.OPERATOR, True),
    accepted={7: "f7"},
)


def file_in(directory: Path, **options: bool) -> StateFile:
    return StateFile(str(directory), lambda: 100.0, **options)


def run(directory: Path, *, clean: bool, **options: bool) -> dict[str, ModelState]:
    """A server that goes on with what it finds, and ends."""
    file = file_in(directory, **options)
    found = file.read()
    file.write(found)
    if clean:
        file.close(found)
    return found


def test_what_was_written_is_read_by_the_next_server(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    assert file.read() == {}
    file.write({"m": REJECTED, "n": TRIAL})
    assert file_in(tmp_path).read() == {"m": REJECTED, "n": TRIAL}
    path = tmp_path / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [FILE]
    assert json.loads(path.read_text())["format"] == 1


def test_file_is_made_when_there_is_something_to_remember_and_emptied_when_it_is_over(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.write({})
    assert os.listdir(tmp_path) == []
    file.write({"m": REJECTED})
    file.write({})
    assert file_in(tmp_path).read() == {}


def test_version_during_whose_trial_two_servers_ended_uncleanly_is_rejected(tmp_path: Path) -> None:
    file_in(tmp_path).write({"m": TRIAL})
    assert run(tmp_path, clean=False) == {"m": TRIAL}
    (rejection,) = run(tmp_path, clean=False)["m"].rejected.values()
    assert (rejection.version, rejection.files, rejection.at, rejection.by) == (8, "f8", 100.0, By.GUARD)
    assert "2 servers before it ended uncleanly during its trial" in rejection.why
    assert run(tmp_path, clean=True)["m"] == rejecting(rejection)


def test_clean_ends_and_trials_of_other_files_do_not_count(tmp_path: Path) -> None:
    file_in(tmp_path).write({"m": TRIAL})
    for _ in range(3):
        assert run(tmp_path, clean=True) == {"m": TRIAL}
    other = {"m": ModelState(armed={8: Running(8, 7, "mended")})}
    file = file_in(tmp_path)
    file.read()
    file.write(other)
    assert run(tmp_path, clean=False) == other


def test_where_versions_come_by_calls_unclean_ends_reject_none(tmp_path: Path) -> None:
    file_in(tmp_path).write({"m": TRIAL})
    for _ in range(3):
        assert run(tmp_path, clean=False, counts_ends=False) == {"m": TRIAL}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 2, "clean": true, "models": {}}',
        '{"format": 1, "clean": true, "models": {"m": {"rejected": [{"version": "x"}], "accepted": {}, "trials": []}}}',
        '{"format": 1, "clean": true, "models": {"m": {"rejected": "no", "accepted": {}, "trials": []}}}',
        "[" * 100_000,
    ],
)
def test_file_that_cannot_be_read_is_moved_aside_with_one_line_in_the_log(tmp_path: Path, caplog, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    file = file_in(tmp_path)
    assert file.read() == {}
    assert os.listdir(tmp_path) == [f"{FILE}.unreadable"]
    (record,) = caplog.records
    assert "guard.json of the state directory cannot be read (" in record.getMessage()
    file.write({"m": REJECTED})
    assert file_in(tmp_path).read() == {"m": REJECTED}


def test_file_that_cannot_be_written_is_told_once_and_the_one_of_before_stays(tmp_path: Path, caplog) -> None:
    file = file_in(tmp_path)
    file.write({"m": REJECTED})
    (tmp_path / f"{FILE}.new").mkdir()
    for version in (1, 2):
        problem = file.write({"m": rejecting(Rejection(version, "f", "why", 1.0))})
        assert problem == "guard.json of the state directory cannot be written: Is a directory"
    assert [record.getMessage() for record in caplog.records] == [problem]
    assert file_in(tmp_path).read() == {"m": REJECTED}


@pytest.mark.parametrize("of_files", [False, True])
def test_a_disk_that_cannot_sync_keeps_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_files: bool
) -> None:
    fail_syncs(monkeypatch, errno.EINVAL, of_files=of_files)
    assert StateFile(str(tmp_path), lambda: 5.0).write({"m": ModelState(accepted={8: "files"})}) == ""
    assert (tmp_path / FILE).exists()


def test_nothing_is_written_after_the_clean_end(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.write({"m": TRIAL})
    file.close({"m": TRIAL})
    file.write({})
    assert file_in(tmp_path).read() == {"m": TRIAL}


def test_of_many_rejected_versions_the_highest_are_remembered(tmp_path: Path) -> None:
    many = [Rejection(version, "f", "why", 1.0) for version in range(MAX_REMEMBERED + 10)]
    file_in(tmp_path).write({"m": rejecting(*many)})
    assert list(file_in(tmp_path).read()["m"].rejected) == list(range(MAX_REMEMBERED + 9, 9, -1))


def test_files_may_be_told_by_something_else() -> None:
    found = with_files({"m": REJECTED, "n": TRIAL}, str.upper)
    assert [each.files for each in found["m"].rejected.values()] == ["F9", "F8"]
    assert (found["m"].accepted, found["n"].armed) == ({7: "F7"}, {8: Running(8, 7, "F8")})
