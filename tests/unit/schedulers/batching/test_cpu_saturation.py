"""Who has time to spare, by numbers alone; and what the system says of real processes."""

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
from tfs_lite.schedulers.batching.cpu_saturation import STRAINED, WINDOW, CpuSaturation, strain_of

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
    """A strain whose first window begins at ``START``, and what it looks at."""

    def __init__(self, threads: int = 1, cores: int = 4) -> None:
        self.server, self.models = Watch(), Watch()
        self.strain = CpuSaturation(threads, cores, self.server, self.models)
        self.strain.ran(START, 0.0)


SHARES = pytest.mark.parametrize(("busy", "strained"), [(0.0, False), (0.79, False), (0.81, True), (1.5, True)])


def test_nothing_is_strained_before_anything_ran() -> None:
    assert not CpuSaturation(1, 1).strained


@SHARES
def test_model_whose_thread_is_hardly_ever_idle_is_under_strain(busy: float, strained: bool) -> None:
    times = Times()
    step = WINDOW / 10 * 1.01
    for number in range(1, 11):
        times.strain.ran(START + number * step, busy * step)
    assert times.strain.strained is strained


@SHARES
def test_time_in_runs_counts_for_each_thread(busy: float, strained: bool) -> None:
    times = Times(threads=3)
    for _ in range(3):
        times.strain.ran(START + WINDOW / 2, busy * WINDOW)
    times.strain.ran(START + WINDOW, 0.0)
    assert times.strain.strained is strained


@SHARES
def test_server_process_has_one_core_of_time(busy: float, strained: bool) -> None:
    times = Times(cores=64)
    times.server.seconds += busy * 2 * WINDOW
    times.strain.ran(START + 2 * WINDOW, 0.0)
    assert times.strain.strained is strained


@SHARES
def test_server_and_processes_of_models_share_the_cores(busy: float, strained: bool) -> None:
    times = Times(cores=4)
    times.server.seconds += 0.4 * WINDOW
    times.models.seconds += (4 * busy - 0.4) * WINDOW
    times.strain.ran(START + WINDOW, 0.0)
    assert times.strain.strained is strained


def test_runs_within_a_window_change_nothing_and_are_cheap() -> None:
    times = Times()
    before = times.server.looks, times.models.looks
    times.server.seconds += 100
    for _ in range(100):
        times.strain.ran(START + WINDOW * 0.99, 1.0)
    assert not times.strain.strained
    assert (times.server.looks, times.models.looks) == before


def test_strain_ends_with_the_first_quiet_window() -> None:
    times = Times()
    times.server.seconds += WINDOW
    times.strain.ran(START + WINDOW, WINDOW)
    assert times.strain.strained
    times.strain.ran(START + 2 * WINDOW, WINDOW * STRAINED * 0.9)
    assert not times.strain.strained


def test_model_process_that_begins_anew_is_a_moment_of_rest() -> None:
    times = Times(cores=1)
    times.models.seconds = 0.0
    times.strain.ran(START + WINDOW, 0.0)
    assert not times.strain.strained
    times.models.seconds = WINDOW
    times.strain.ran(START + 2 * WINDOW, 0.0)
    assert times.strain.strained


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
        raise AssertionError("nobody runs it here")

    def close(self) -> None:
        """Nothing to close."""


def burn(until: Callable[[], bool]) -> None:
    latest = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < latest


def test_time_of_the_real_server_process_counts() -> None:
    strain = strain_of([Elsewhere(None)], 1)
    before = time.process_time()
    burn(lambda: time.process_time() - before > 2 * WINDOW)
    strain.ran(2 * WINDOW, 0.0)
    assert strain.strained


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
        strain = strain_of([Elsewhere(process.pid), Elsewhere(None)], 1)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"done\n"
        strain.ran(WINDOW, 0.0)
        process.stdin.write(b"\n")
    assert strain.strained


def test_process_that_is_gone_counts_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(PATIENCE)
    strain = strain_of([Elsewhere(process.pid), Elsewhere(None)], 1)
    strain.ran(1e9, 0.0)
    assert not strain.strained
