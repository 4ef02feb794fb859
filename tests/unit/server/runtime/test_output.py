"""Output that waits for nobody."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.process import wait_until
from tfs_lite.server.runtime.output import MAX_WAITING, UnblockedOutput

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


INSIDE_A_MODEL = {
    "closes both": "sys.stdout.close(); sys.stderr.close()",
    "has none": "sys.stdout = sys.stderr = None",
    "configures logging": "logging.config.dictConfig({'version': 1, 'root': {'level': 'ERROR'}})",
    "takes the root": "logging.basicConfig(force=True, filename='other.log')",
    "disables": "logging.disable(logging.CRITICAL)",
    "clears": "logging.getLogger().handlers.clear()",
    "shuts down": "logging.shutdown()",
}
LOGS = """
import logging, logging.config, sys
from tfs_lite.protocols.log_format import start_logging
from tfs_lite.server.runtime.output import unblock_outputs

unblock_outputs()
logger = logging.getLogger("tfs_lite.server")
start_logging("INFO", "text")
INSIDE
logger.info("it goes on")
logger.debug("not this")
"""


@pytest.mark.parametrize("code", INSIDE_A_MODEL.values(), ids=INSIDE_A_MODEL)
def test_what_code_of_models_does_to_logging_and_output_silences_no_line_of_the_log(code: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOGS.replace("INSIDE", code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line.partition(" INFO ")[2] for line in done.stderr.splitlines()] == ["it goes on"]


def test_a_line_that_cannot_be_written_raises_nothing() -> None:
    code = "sys.stderr.detach()"
    done = subprocess.run([sys.executable, "-c", LOGS.replace("INSIDE", code)], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "a line of the log could not be written: ValueError" in done.stderr


def test_log_settings_reach_the_lines_of_the_package() -> None:
    code = """
from tfs_lite.serving.statistics.trace_settings import LevelFilter
from tfs_lite.protocols.log_format import log_roots
settings = {"log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 1}
level_filter = LevelFilter()
for root in log_roots():
    for handler in root.handlers:
        handler.addFilter(level_filter)
level_filter.set(settings)
logger.debug("verbose")
level_filter.set({**settings, "log_info": False, "log_verbose_level": 0})
logger.info("silent")
level_filter.set({**settings, "log_verbose_level": 0})
"""
    done = subprocess.run([sys.executable, "-c", LOGS.replace("INSIDE", code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(" ")[2] for line in done.stderr.splitlines()] == ["verbose", "on"]
