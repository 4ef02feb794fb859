"""Stalls of the machine, told from those of a server: a process that no other may hold up comes late all the same.

    with Stalls("0", folder) as stalls:
        ...
    stalls.found                    # (start, end) in seconds of perf_counter, of each tick that came late

It ticks each millisecond at a real-time priority on the cores that are measured. Where the system does not grant that
priority, ``reliable`` is False and its lateness may be that of a busy core.

The first touch of memory that a host has taken back from a virtual machine is such a stall: up to 3 ms a megabyte, in
which the core does nothing else. :func:`touch` makes the host give the memory back before anything is measured.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

TICK_SECONDS, LATE_SECONDS = 0.001, 0.003
STOP_SECONDS = 10.0


class Stalls:
    """Ticks until the block ends; ``found`` and ``reliable`` are there then."""

    def __init__(self, cpus: str, folder: Path) -> None:
        self.found: list[tuple[float, float]] = []
        self.reliable = False
        self._file = folder / "stalls.json"
        self._command = ["taskset", "-c", cpus.partition(",")[0], sys.executable, __file__, str(self._file)]

    def __enter__(self) -> Stalls:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=STOP_SECONDS)
        found = json.loads(self._file.read_text())
        self.found, self.reliable = [(start, end) for start, end in found["stalls"]], found["reliable"]

    def meet(self, start: float, end: float) -> bool:
        """Whether one of them falls into that time."""
        return any(start < last and first < end for first, last in self.found)


def touch(megabytes: int) -> None:
    """Writes to so much memory, in a process that ends."""
    code = f"held = bytearray({megabytes} << 20); held[::4096] = bytes(len(held[::4096]))"
    subprocess.run([sys.executable, "-c", code], check=True)


def main() -> None:
    reliable, stalls = True, list[tuple[float, float]]()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        reliable = False
    end = sys.stdin.fileno()
    print("begun", flush=True)
    before = time.perf_counter()
    while True:
        time.sleep(TICK_SECONDS)
        now = time.perf_counter()
        if now - before > TICK_SECONDS + LATE_SECONDS:
            stalls.append((before, now))
        before = now
        if select.select([end], [], [], 0)[0]:
            break
    Path(sys.argv[1]).write_text(json.dumps({"stalls": stalls, "reliable": reliable}))


if __name__ == "__main__":
    main()
