"""Events in the state directory: written, read back, bounded, and of one server at a time."""

from __future__ import annotations

import json
import os
import stat

import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tfs_lite.core.history import EventKind, History
from tfs_lite.core.status import StatusCode
from tfs_lite.operations.history.file import FILES, QUEUED, RESTORED, EventFile

LINES = "events.jsonl"


@pytest.fixture
def history():
    return History(lambda: 1000.0)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "state"


def written(directory, history, versions, **rest):
    """The events of these versions, after a server has written them and has ended."""
    file = EventFile(str(directory), **rest)
    file.start()
    events = [history.append(EventKind.ASPIRED, "m", version) for version in versions]
    for event in events:
        file.write(event)
    file.close()
    return events


def read_back(directory):
    file = EventFile(str(directory))
    try:
        return file.read()
    finally:
        file.close()


def test_the_next_server_reads_what_this_one_wrote(directory, history):
    events = written(directory, history, range(3))
    assert read_back(directory) == events


def test_it_is_for_the_servers_user_alone(directory, history):
    written(directory, history, [1])
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    assert {stat.S_IMODE(os.stat(directory / name).st_mode) for name in os.listdir(directory)} == {0o600}


def test_a_torn_last_line_is_skipped_and_the_next_event_has_a_line_of_its_own(directory, history):
    first = written(directory, history, [1])
    with (directory / LINES).open("a") as file:
        file.write('{"seq": 5, "ti')
    second = written(directory, history, [2])
    assert read_back(directory) == first + second


@pytest.mark.parametrize(
    "line",
    ["garbage", "{}", "[1]", "null", '"text"', "\xff\x00", '{"seq": "x"}', "{" * 5000, '{"kind": "OF_A_LATER_SERVER"}'],
)
def test_lines_that_are_no_events_are_skipped(directory, history, line):
    first = written(directory, history, [1])
    with (directory / LINES).open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    second = written(directory, history, [2])
    assert read_back(directory) == first + second


def test_a_kind_that_this_server_does_not_know_is_skipped(directory, history):
    (event,) = written(directory, history, [1])
    with (directory / LINES).open("a") as file:
        file.write(json.dumps({**event.as_json(), "kind": "ROLLOUT_STARTED"}) + "\n")
    assert read_back(directory) == [event]


def test_files_are_bounded_and_the_oldest_goes(directory, history):
    for start in range(0, 400, 20):
        written(directory, history, range(start, start + 20), file_bytes=2000)
    names = os.listdir(directory)
    assert len(names) == FILES + 1  # and the lock
    versions = [event.version for event in read_back(directory)]
    assert versions == list(range(versions[0], 400))
    assert 0 < versions[0] < 400


def test_the_latest_are_read_back(directory, history):
    for start in range(0, RESTORED + 600, 650):
        written(directory, history, range(start, start + 650), file_bytes=100_000)
    versions = [event.version for event in read_back(directory)]
    assert len(versions) == RESTORED
    assert versions == sorted(versions)
    assert versions[-1] == 2599


def test_a_second_server_is_refused_until_the_first_has_ended(directory, history):
    file = EventFile(str(directory))
    refused = refusal(EventFile, str(directory), code=StatusCode.FAILED_PRECONDITION)
    assert f"another server uses {directory}; " in str(refused)
    file.close()
    EventFile(str(directory)).close()


def test_a_directory_that_cannot_be_used_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    refused = refusal(EventFile, str(tmp_path / "file" / "state"), code=StatusCode.FAILED_PRECONDITION)
    assert "state_directory: it cannot be used" in str(refused)
    (tmp_path / "state" / LINES).mkdir(parents=True)
    refusal(EventFile, str(tmp_path / "state"), code=StatusCode.FAILED_PRECONDITION)
    (tmp_path / "state" / LINES).rmdir()
    EventFile(str(tmp_path / "state")).close()  # the refusal has not kept the lock


def test_of_a_repeated_event_a_line_is_written_when_its_count_has_doubled(directory, history):
    file = EventFile(str(directory))
    file.start()
    for _ in range(20):
        file.write(history.append(EventKind.ACCESS_DENIED))
    file.close()
    found = read_back(directory)
    assert [event.count for event in found] == [1, 2, 4, 8, 16]
    restored = History(lambda: 0.0)
    restored.restore(found)
    assert [event.count for event in restored.after(0)] == [16]


def test_more_events_than_may_wait_are_dropped_and_counted(directory, history):
    file = EventFile(str(directory))  # nothing writes yet
    for version in range(QUEUED + 5):
        file.write(history.append(EventKind.ASPIRED, "m", version))
    assert file.dropped == 5
    file.start()
    file.close()
    assert len(read_back(directory)) == QUEUED


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_disk_that_refuses_costs_events_and_one_line_of_log(directory, history, monkeypatch, caplog):
    file = EventFile(str(directory))
    file.start()
    with monkeypatch.context() as patch:
        patch.setattr("tfs_lite.operations.history.file.os.write", full)
        file.write(history.append(EventKind.ASPIRED, "m", 1))
        wait_until(lambda: file.dropped, "the event is dropped")
    event = history.append(EventKind.ASPIRED, "m", 2)
    file.write(event)
    file.close()
    assert read_back(directory) == [event]
    assert caplog.text.count("No space left on device") == 1
