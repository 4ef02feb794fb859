"""Files of request logs: names, locks, what dead servers leave behind, and what is deleted."""

from __future__ import annotations

import io
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tfs_lite.protocols.tfrecord import frame, read_records
from tfs_lite.request_log.files import create, finished, prune, recover

NOON = 1_763_726_400.0  # 2025-11-21 12:00:00 UTC
OTHER_SERVER = """
import os, sys, time
from tfs_lite.protocols.tfrecord import frame
from tfs_lite.request_log.files import create
file = create(sys.argv[1], 0.0, 1)
file.append(frame(b"one") + frame(b"two"))
os.write(file._descriptor, frame(b"three")[:-1])
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path / "m.log")


def names(prefix: str) -> list[str]:
    return sorted(os.listdir(os.path.dirname(prefix)))


def records(path: str) -> list[bytes]:
    with open(path, "rb") as file:
        return list(read_records(file, 1 << 20))


def write(prefix: str, *data: bytes, seconds: float = NOON, number: int = 1) -> str:
    """A finished file with one record for each of ``data``."""
    file = create(prefix, seconds, number)
    for item in data:
        file.append(frame(item))
    file.finish()
    return file.path.removesuffix(".open")


def test_a_name_tells_time_process_and_number_and_whether_the_file_is_finished(prefix: str) -> None:
    file = create(prefix, NOON, 7)
    assert names(prefix) == [f"m.log.20251121-120000.{os.getpid()}.0007.tfrecord.open"]
    assert stat.S_IMODE(os.stat(file.path).st_mode) & 0o137 == 0
    file.append(frame(b"data"))
    file.finish()
    assert names(prefix) == [f"m.log.20251121-120000.{os.getpid()}.0007.tfrecord"]
    assert records(finished(prefix)[0]) == [b"data"]


def test_a_file_without_records_leaves_no_trace(prefix: str) -> None:
    create(prefix, NOON, 1).finish()
    assert names(prefix) == []


def test_what_is_not_known_to_be_whole_is_cut_off(prefix: str) -> None:
    file = create(prefix, NOON, 1)
    file.append(frame(b"whole"))
    os.write(file._descriptor, b"torn")
    file.finish()
    assert records(finished(prefix)[0]) == [b"whole"]


def test_no_two_writers_get_the_same_file(prefix: str) -> None:
    written = write(prefix, b"earlier")
    files = [create(prefix, NOON, 1) for _ in range(3)]
    assert [file.number for file in files] == [2, 3, 4]
    for file in files:
        file.append(frame(b"%d" % file.number))
        file.finish()
    assert [records(path) for path in finished(prefix)] == [[b"earlier"], [b"2"], [b"3"], [b"4"]]
    assert finished(prefix)[0] == written


def test_a_deleted_file_is_noticed(prefix: str) -> None:
    file = create(prefix, NOON, 1)
    assert not file.removed
    os.unlink(file.path)
    assert file.removed
    file.abandon()


def test_files_are_told_in_the_order_in_which_they_were_begun(prefix: str) -> None:
    order = [(NOON, 9), (NOON, 10), (NOON, 11_000), (NOON + 1, 1)]
    paths = [write(prefix, b"x", seconds=seconds, number=number) for seconds, number in order]
    assert finished(prefix) == paths


@pytest.mark.parametrize("keep", [0, 1, 3, 5])
def test_the_oldest_files_are_deleted(prefix: str, keep: int) -> None:
    paths = [write(prefix, b"x", number=number) for number in range(1, 4)]
    prune(prefix, keep)
    assert finished(prefix) == (paths[-keep:] if keep else [])


def test_nothing_is_deleted_or_finished_that_has_another_name(prefix: str) -> None:
    directory = Path(prefix).parent
    others = [
        "m.log",
        "m.log.tfrecord",
        "m.log.20251121-120000.1.tfrecord",
        "m.log.20251121-120000.1.1.tfrecord.gz",
        "m.log.20251121-120000.1.1.tfrecord.open.old",
        "m.log.2025112-120000.1.1.tfrecord",
        "m.log.٢0251121-120000.1.1.tfrecord",
        "m.log.20251121-120000.1.1.tfrecord\n",
        "m.log.x.20251121-120000.1.1.tfrecord",
        "m-log.20251121-120000.1.1.tfrecord",
        "xm.log.20251121-120000.1.1.tfrecord",
        "m.log2.20251121-120000.1.1.tfrecord.open",
    ]
    for name in others:
        (directory / name).write_bytes(b"precious")
    (directory / "m.log.20251121-120000.1.2.tfrecord").mkdir()
    (directory / "m.log.20251121-120000.1.3.tfrecord").symlink_to(directory / "m.log")
    before = names(prefix)
    prune(prefix, 0)
    recover(prefix)
    assert names(prefix) == before
    assert all((directory / name).read_bytes() == b"precious" for name in others)


def test_a_prefix_is_a_text_and_no_pattern(tmp_path: Path) -> None:
    plain, strange = str(tmp_path / "mmm"), str(tmp_path / "m+[*")
    write(plain, b"x")
    write(strange, b"y")
    prune(strange, 0)
    assert (len(finished(plain)), len(finished(strange))) == (1, 0)


def test_a_file_that_is_being_written_is_left_alone(prefix: str) -> None:
    file = create(prefix, NOON, 1)
    file.append(frame(b"one"))
    recover(prefix)
    assert finished(prefix) == []
    file.append(frame(b"two"))
    file.finish()
    assert records(finished(prefix)[0]) == [b"one", b"two"]


def test_the_file_of_a_dead_server_is_finished_behind_its_last_whole_record(prefix: str) -> None:
    with subprocess.Popen([sys.executable, "-c", OTHER_SERVER, prefix], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            recover(prefix)
            assert finished(prefix) == []
        finally:
            server.send_signal(signal.SIGKILL)
    recover(prefix)
    (path,) = finished(prefix)
    assert re.fullmatch(rf"m\.log\.19700101-000000\.{server.pid}\.0001\.tfrecord", os.path.basename(path))
    assert records(path) == [b"one", b"two"]
    assert os.path.getsize(path) == len(frame(b"one") + frame(b"two"))


@pytest.mark.parametrize("content", [b"", b"x" * 5, b"no record at all", frame(b"cut")[:-1]])
def test_a_left_file_without_a_whole_record_is_deleted(prefix: str, content: bytes) -> None:
    Path(f"{prefix}.20251121-120000.1.0001.tfrecord.open").write_bytes(content)
    recover(prefix)
    assert names(prefix) == []


def test_many_left_records_are_all_kept(prefix: str) -> None:
    data = [b"%d" % number for number in range(300)]
    Path(f"{prefix}.20251121-120000.1.0001.tfrecord.open").write_bytes(b"".join(map(frame, data)) + b"torn")
    recover(prefix)
    assert list(read_records(io.BytesIO(Path(finished(prefix)[0]).read_bytes()), 100)) == data


def test_a_missing_directory_is_an_error_of_the_disk(tmp_path: Path) -> None:
    prefix = str(tmp_path / "missing" / "m")
    for call in (lambda: create(prefix, NOON, 1), lambda: recover(prefix), lambda: prune(prefix, 1)):
        with pytest.raises(FileNotFoundError):
            call()
