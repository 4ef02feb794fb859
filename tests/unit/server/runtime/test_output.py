"""Output that waits for nobody."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tfs_lite.server.runtime.output import MAX_WAITING, UnblockedOutput
from tfs_lite.testing.servers.process import wait_until

LINE = b"x" * 1023 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_what_is_written_arrives_in_its_order(pipe: tuple[int, int]) -> None:
    output = UnblockedOutput(pipe[1], "the output")
    with io.TextIOWrapper(output, "utf-8", errors="backslashreplace", line_buffering=True) as text:
        text.write("one\n")
        print("two", "b\udcad", file=text)
        assert output.flush_within(10)
        assert os.read(pipe[0], 100) == b"one\ntwo b\\udcad\n"


def test_what_finds_no_room_is_lost_counted_and_said_once_somebody_reads(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    output = UnblockedOutput(pipe[1], "the output")
    lines = 3 * MAX_WAITING // len(LINE)
    for _ in range(lines):
        assert output.write(LINE) == len(LINE)
    assert not output.flush_within(0.01)
    lost = output.lost
    assert lost >= lines - (MAX_WAITING + (64 << 10)) // len(LINE) - 1
    with caplog.at_level(logging.WARNING):
        left = (lines - lost) * len(LINE)
        while left:
            left -= len(os.read(pipe[0], 1 << 16))
        assert output.flush_within(10)
        wait_until(lambda: caplog.messages, "it is said")
    assert caplog.messages == [f"{lost} lines of the output were not written: they were not read"]
    assert output.lost == lost


def test_a_descriptor_that_refuses_everything_costs_lines_only() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    output = UnblockedOutput(full, "the output")
    output.write(LINE * 3)
    assert output.flush_within(10)
    wait_until(lambda: output.lost == 3, "the lines are counted")
    os.close(full)


def test_a_pipe_that_does_not_wait_is_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    output = UnblockedOutput(pipe[1], "the output")
    for _ in range(200):
        output.write(LINE)
    left = 200 * len(LINE)
    while left:
        left -= len(os.read(pipe[0], 1 << 16))
    assert output.flush_within(10)
    assert output.lost == 0


PROCESS = """
import logging, sys, warnings
from tfs_lite.protocols.log_format import start_logging
from tfs_lite.server.runtime.output import unblock_outputs

unblock_outputs()
start_logging("INFO", "text")
for _ in range(2000):
    print("o" * 1000)
    logging.info("l" * 1000)
raise ValueError("the end")
"""


def test_a_process_whose_output_nobody_reads_ends(pipe: tuple[int, int]) -> None:
    done = subprocess.run([sys.executable, "-c", PROCESS], stdout=pipe[1], stderr=pipe[1], timeout=60)
    assert done.returncode == 1


def test_the_last_lines_are_written_before_the_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", PROCESS.replace("2000", "20")], capture_output=True, text=True)
    assert done.stdout.count("\n") == 20
    assert done.stderr.splitlines()[-1] == "ValueError: the end"
