"""One log on disk: when files begin and end, and what becomes of records when the disk refuses them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.protocols.tfrecord import frame, read_records
from tfs_lite.request_log.files import finished
from tfs_lite.request_log.writer import BUFFERED_BYTES, BUFFERED_RECORDS, NEVER, LogLimits, LogWriter
from tfs_lite.testing.lifecycle.clock import VirtualClock

LIMITED_DISK = """
import json, resource, sys
from collections import Counter
from tfs_lite.request_log.writer import LogLimits, LogWriter
from tfs_lite.testing.lifecycle.clock import VirtualClock

clock, results = VirtualClock(), Counter()
writer = LogWriter(sys.argv[1], LogLimits(), clock, lambda model, code: results.update([code]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for _ in range(4):
    for _ in range(3):
        writer.append("m", b"x" * 300)
        clock.advance(1.0)
        writer.tick()
    writer.append("m", b"y" * 300)
    clock.advance(1.0)
    writer.tick()
    clock.advance(60.0)
writer.finish()
print(json.dumps(results))
"""


class Log:
    """A writer, its clock, and what it said about each record."""

    def __init__(self, prefix: str, limits: LogLimits) -> None:
        self.prefix = prefix
        self.clock = VirtualClock()
        self.results: Counter[tuple[str, str]] = Counter()
        self.writer = LogWriter(prefix, limits, self.clock, self._on_result)

    def _on_result(self, model: str, code: str) -> None:
        self.results[model, code] += 1

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.writer.tick()

    def open_files(self) -> list[str]:
        return [str(path) for path in sorted(Path(self.prefix).parent.glob("*.open"))]

    def finished(self) -> list[list[bytes]]:
        return [records(path) for path in finished(self.prefix)]


def records(path: str) -> list[bytes]:
    with open(path, "rb") as file:
        return list(read_records(file, 1 << 30))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(str(tmp_path / "m"), LogLimits(file_bytes=1000, files=3))


def test_records_are_written_a_second_later_together(log: Log) -> None:
    for data in (b"one", b"two"):
        log.writer.append("m", data)
    assert log.writer.due == log.clock.monotonic() + 1.0
    log.advance(0.9)
    assert log.open_files() == []
    assert log.results == {}
    log.advance(0.1)
    assert records(*log.open_files()) == [b"one", b"two"]
    assert log.results == {("m", "OK"): 2}


@pytest.mark.parametrize("data", [[bytes(BUFFERED_BYTES)], [b"x"] * BUFFERED_RECORDS])
def test_much_is_written_at_once(tmp_path: Path, data: list[bytes]) -> None:
    log = Log(str(tmp_path / "m"), LogLimits())
    for item in data:
        log.writer.append("m", item)
    assert records(*log.open_files()) == data


def test_each_model_of_a_log_is_counted(log: Log) -> None:
    for model in "aba":
        log.writer.append(model, b"x")
    log.writer.finish()
    assert log.results == {("a", "OK"): 2, ("b", "OK"): 1}


def test_a_file_ends_before_it_grows_beyond_its_size(log: Log) -> None:
    data = [bytes([number]) * 300 for number in range(7)]
    for item in data:
        log.writer.append("m", item)
    log.writer.finish()
    assert log.finished() == [data[:3], data[3:6], data[6:]]


def test_a_record_larger_than_a_file_gets_a_file_of_its_own(log: Log) -> None:
    for data in (b"a", b"b" * 5000, b"c"):
        log.writer.append("m", data)
    log.writer.finish()
    assert log.finished() == [[b"a"], [b"b" * 5000], [b"c"]]


def test_a_file_ends_after_an_hour_also_when_nothing_comes(log: Log) -> None:
    log.writer.append("m", b"one")
    log.advance(1.0)
    log.advance(3599.0)
    assert len(log.open_files()) == 1
    log.advance(1.0)
    assert log.finished() == [[b"one"]]
    assert log.writer.due == NEVER
    log.writer.append("m", b"two")
    log.writer.finish()
    assert log.finished() == [[b"one"], [b"two"]]


def test_at_most_so_many_files_are_there_the_open_one_included(log: Log) -> None:
    seen = 0
    for number in range(10):
        log.writer.append("m", b"%d" % number)
        log.advance(1.0)
        seen = max(seen, len(log.finished()) + len(log.open_files()))
        log.writer.finish()
    assert seen == 3
    assert log.finished() == [[b"7"], [b"8"], [b"9"]]


def test_two_logs_with_one_prefix_write_into_two_files(log: Log) -> None:
    other = LogWriter(log.prefix, LogLimits(), log.clock, lambda *_: None)
    for number in range(3):
        log.writer.append("m", b"mine %d" % number)
        other.append("m", b"theirs %d" % number)
        log.advance(1.0)
        other.tick()
    log.writer.finish()
    other.finish()
    assert sorted(log.finished()) == [[b"%s %d" % (who, number) for number in range(3)] for who in (b"mine", b"theirs")]


def test_a_deleted_file_is_replaced_and_what_was_gathered_is_kept(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.writer.append("m", b"lost")
    log.advance(1.0)
    os.unlink(*log.open_files())
    log.writer.append("m", b"kept")
    log.advance(1.0)
    log.writer.finish()
    assert log.finished() == [[b"kept"]]
    assert "its file was deleted" in caplog.text


def test_a_removed_directory_costs_records_and_nothing_else(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    directory = Path(log.prefix).parent
    log.writer.append("m", b"before")
    log.advance(1.0)
    shutil.rmtree(directory)
    for _ in range(5):
        log.writer.append("m", b"meanwhile")
        log.advance(60.0)
        assert log.writer.due == NEVER
    directory.mkdir()
    log.clock.advance(60.0)
    log.writer.append("m", b"after")
    log.writer.finish()
    assert log.finished() == [[b"after"]]
    assert log.results == {("m", "OK"): 2, ("m", "UNAVAILABLE"): 5}
    assert caplog.text.count("No such file or directory") == 1


def test_a_directory_that_went_before_the_file_ended_is_told(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.writer.append("m", b"x")
    log.advance(1.0)
    shutil.rmtree(Path(log.prefix).parent)
    log.writer.finish()
    assert log.writer.paused
    assert "No such file or directory" in caplog.text


def test_the_rest_after_failures_doubles_up_to_a_bound_and_a_good_file_ends_that(log: Log) -> None:
    directory = Path(log.prefix).parent
    shutil.rmtree(directory)
    rests = []
    for _ in range(8):
        log.writer.append("m", b"x")
        log.writer.finish()
        waited = 0.0
        while log.writer.paused:
            log.clock.advance(1.0)
            waited += 1.0
        rests.append(waited)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60]
    directory.mkdir()
    log.writer.append("m", b"x")
    log.writer.finish()
    shutil.rmtree(directory)
    log.writer.append("m", b"x")
    log.writer.finish()
    log.clock.advance(1.0)
    assert not log.writer.paused


def test_a_full_disk_leaves_whole_records_and_later_files(tmp_path: Path) -> None:
    prefix = str(tmp_path / "m")
    run = subprocess.run(
        [sys.executable, "-c", LIMITED_DISK, prefix], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(run.stdout) == {"OK": 12, "UNAVAILABLE": 4}
    assert [records(path) for path in finished(prefix)] == [[b"x" * 300] * 3] * 4
    assert run.stderr.count("File too large") == 1


@given(
    st.lists(st.integers(0, 400), max_size=40),
    st.lists(st.sampled_from([0.0, 0.4, 1.0, 3600.0]), min_size=40, max_size=40),
)
def test_every_record_is_in_some_file_in_order_and_no_file_is_too_large(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], pauses: list[float]
) -> None:
    limits = replace(LogLimits(), file_bytes=500, files=1000)
    log = Log(str(tmp_path_factory.mktemp("log") / "m"), limits)
    data = [bytes([number]) * size for number, size in enumerate(sizes)]
    for item, pause in zip(data, pauses, strict=False):
        log.writer.append("m", item)
        log.advance(pause)
    log.writer.finish()
    assert [item for file in log.finished() for item in file] == data
    assert all(len(file) == 1 or sum(map(len, map(frame, file))) <= 500 for file in log.finished())
    assert log.results[("m", "OK")] == len(data)
    assert log.open_files() == []
