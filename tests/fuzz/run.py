"""One run of a target in this process: every input is held against the bounds, and the end tells how it went."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

SECONDS_OF_ONE = 1.0
"""Of processor time, for one input."""
WORTH_A_LOOK = SECONDS_OF_ONE / 4
"""The slowest input is kept from there on, as found/slow-TARGET; it is no violation."""
MEMORY_OF_ONE = 64 << 20
"""Bytes by which one input may raise the most memory that the process ever had."""
GROWTH = 48 << 20
"""Bytes of memory that a run may end with above what it had after a tenth."""
ENOUGH_MEMORY = 1 << 30
"""Bytes at which a run that may grow ends early."""
ADDRESS_SPACE = 8 << 30
"""What may be allocated at all, touched or not."""
MAX_VIOLATIONS = 20
OVER, BROKEN, AGAIN = 0, 1, 75
"""Exit codes: the time is up, something was found, the time is not up but the memory is."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class TooSlow(Exception):
    """An input takes too long."""


class TooLarge(Exception):
    """Memory: of one input, or of all of them together."""


class Run:
    """Calls the target until the time is up. ``found`` is a directory; ``keep_going``: not only until something is
    found. ``may_grow``: memory is not looked at, because whoever drives the run leaks."""

    def __init__(
        self,
        name: str,
        target: Callable[[bytes], None],
        seconds: float,
        found: Path,
        keep_going: bool = False,
        may_grow: bool = False,
    ) -> None:
        self._name = name
        self._target = target
        self._seconds = seconds
        self._directory = found
        self._keep_going = keep_going
        self._may_grow = may_grow
        self._started = time.monotonic()
        self._executions = 0
        self._worst = 0.0
        self._worst_bytes = 0
        self._early: int | None = None
        self._found: dict[str, str] = {}
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

    def one(self, data: bytes) -> None:
        """Ends the process when the time is up, or something was found."""
        peak, before = _peak(), time.process_time()
        try:
            with _limit(SECONDS_OF_ONE * 10):
                self._target(data)
            self._check(time.process_time() - before, _peak() - peak)
        except Exception as error:
            self._note(error, data)
        took = time.process_time() - before
        if took > self._worst:
            self._worst, self._worst_bytes = took, len(data)
            if took > WORTH_A_LOOK:
                (self._directory / f"slow-{self._name}").write_bytes(data)
        self._executions += 1
        self._look_at_the_clock()

    def end(self, code: int = OVER) -> NoReturn:
        """Ends the process; the last line that it prints is a JSON object."""
        resident = _resident()
        if not self._may_grow and self._early and resident - self._early > GROWTH:
            self._found[f"TooLarge: the run grew by {resident - self._early >> 20} MB"] = ""
        report = {
            "executions": self._executions,
            "seconds": time.monotonic() - self._started,
            "worst": self._worst,
            "worst_bytes": self._worst_bytes,
            "early": self._early or resident,
            "resident": resident,
            "found": self._found,
        }
        print(json.dumps(report), flush=True)
        sys.stderr.flush()
        os._exit(BROKEN if self._found and not self._keep_going else code)

    def _check(self, seconds: float, memory: int) -> None:
        if seconds > SECONDS_OF_ONE:
            raise TooSlow(f"{seconds:.1f} s of processor time")
        if memory > MEMORY_OF_ONE and self._executions and not self._may_grow:
            raise TooLarge(f"{memory >> 20} MB more than ever before")

    def _look_at_the_clock(self) -> None:
        passed = time.monotonic() - self._started
        if self._early is None and passed > self._seconds / 10:
            self._early = _resident()
        if passed > self._seconds:
            self.end()
        if self._may_grow and self._executions % 100 == 0 and _resident() > ENOUGH_MEMORY:
            self.end(AGAIN)

    def _note(self, error: Exception, data: bytes) -> None:
        """For each place and kind of error the first input is kept."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tfs_lite/" in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else str(error)[:60]
        what = f"{type(error).__name__} at {place}"
        if what in self._found:
            return
        path = self._directory / f"{self._name}-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        self._found[what] = str(path)
        print(f"{path}: {len(data)} bytes: {data[:200]!r}", file=sys.stderr)
        traceback.print_exception(error)
        if not self._keep_going or len(self._found) >= MAX_VIOLATIONS:
            self.end()


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raises TooSlow inside after that much processor time."""

    def late(number: int, frame: FrameType | None) -> NoReturn:
        raise TooSlow(f"not done after {seconds:g} s of processor time")

    previous: Any = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
