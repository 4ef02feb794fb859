"""When something counts as saturated, by numbers alone; and what the system says of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest

from tfs_lite.core.model import Model, WorkerStatus
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.schedulers.batching.cpu_saturation import SATURATED, WINDOW, CpuSaturation, saturation_of

START = 500.0
PATIENCE = 30.0


class Watch:
    """Processor time, set by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.seconds


class Times:
    """A measurement whose first window begins at ``START``, and the times that it reads."""

    def __init__(self, threads: int = 1, cores: int = 4) -> None:
        self.server, self.models = Watch(), Watch()
        self.saturation = CpuSaturation(threads, cores, self.server, self.models)
        self.saturation.ran(START, 0.0)

    def ran(self, windows: float, seconds: float = 0.0) -> bool:
        """A run of ``seconds`` ends so many windows after ``START``. Returns whether that is saturation."""
        self.saturation.ran(START + windows * WINDOW, seconds)
        return self.saturation.saturated


def test_nothing_is_saturated_before_anything_ran() -> None:
    assert not CpuSaturation(1, 1).saturated


@pytest.mark.parametrize(("busy", "saturated"), [(0.0, False), (0.79, False), (0.81, True), (1.5, True)])
def test_whatever_is_busy_most_of_its_time_is_saturated(busy: float, saturated: bool) -> None:
    thread = Times()
    assert [thread.ran(number / 10 * 1.01, busy * WINDOW / 10 * 1.01) for number in range(1, 11)][-1] is saturated
    threads = Times(threads=3)
    for _ in range(3):
        threads.ran(0.5, busy * WINDOW)
    assert threads.ran(1) is saturated, "time in runs counts for each thread"
    server = Times(cores=64)
    server.server.seconds += busy * 2 * WINDOW
    assert server.ran(2) is saturated, "the server's process has one core of time"
    cores = Times(cores=4)
    cores.server.seconds += 0.4 * WINDOW
    cores.models.seconds += (4 * busy - 0.4) * WINDOW
    assert cores.ran(1) is saturated, "the server and the processes of models share the cores"


def test_runs_within_a_window_change_nothing_and_are_cheap() -> None:
    times = Times()
    before = times.server.looks, times.models.looks
    times.server.seconds += 100
    assert not any(times.ran(0.99, 1.0) for _ in range(100))
    assert (times.server.looks, times.models.looks) == before


def test_saturation_ends_with_the_first_quiet_window() -> None:
    times = Times()
    times.server.seconds += WINDOW
    assert times.ran(1, WINDOW)
    assert not times.ran(2, WINDOW * SATURATED * 0.9)


def test_model_process_that_begins_anew_looks_idle_for_a_moment() -> None:
    times = Times(cores=1)
    times.models.seconds = 0.0
    assert not times.ran(1)
    times.models.seconds = WINDOW
    assert times.ran(2)


class Elsewhere(Model):
    """A model whose worker is some process."""

    platform = "test"
    signatures: ClassVar[Mapping[str, Signature]] = {}

    def __init__(self, pid: int | None) -> None:
        self.pid = pid

    @property
    def worker(self) -> WorkerStatus:
        return WorkerStatus("process", True, self.pid)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        raise AssertionError("it is not run here")

    def close(self) -> None:
        """Nothing to close."""


def burn(until: Callable[[], bool]) -> None:
    latest = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < latest


def test_time_of_the_real_server_process_counts() -> None:
    saturation = saturation_of([Elsewhere(None)], 1)
    before = time.process_time()
    burn(lambda: time.process_time() - before > 2 * WINDOW)
    saturation.ran(2 * WINDOW, 0.0)
    assert saturation.saturated


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not tell")
def test_time_of_the_real_processes_of_models_counts() -> None:
    cores = len(os.sched_getaffinity(0))
    work = f"""
import time
print("ready", flush=True)
input()
while time.process_time() < {cores * WINDOW} + 0.2: pass
print("done", flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        saturation = saturation_of([Elsewhere(process.pid), Elsewhere(None)], 1)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"done\n"
        saturation.ran(WINDOW, 0.0)
        process.stdin.write(b"\n")
    assert saturation.saturated


def test_process_that_is_gone_counts_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(PATIENCE)
    saturation = saturation_of([Elsewhere(process.pid), Elsewhere(None)], 1)
    saturation.ran(1e9, 0.0)
    assert not saturation.saturated
