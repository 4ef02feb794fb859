"""Fuzzes one target: python tests/fuzz/drive.py TARGET --seconds N [--corpus DIR] [--keep-going]

With atheris, if it can be imported, the search is guided by which lines of ``tfs_lite`` an input reaches. Without, the
seeds are changed at random. Either way every input is held against the same bounds: what the target itself checks, one
second of processor time, and memory. A violation is written to tests/fuzz/found/, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import hashlib
import importlib.util
import io
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
FOUND = HERE / "found"
SECONDS_OF_ONE = 1.0
"""Of processor time, for one input."""
SECONDS_TO_WAIT = 60
"""After which an input counts as hanging, even if the machine is busy."""
MEMORY_OF_ONE = 64 << 20
"""Bytes by which one input may raise the most memory that the process ever had."""
GROWTH = 96 << 20
"""Bytes of memory that a run may end with above what it had after a tenth: the corpus itself is kept in memory."""
ADDRESS_SPACE = 8 << 30
"""What may be allocated at all, touched or not."""
MAX_LENGTH = 4096
MAX_VIOLATIONS = 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


class TooSlow(Exception):
    """An input takes too long."""


class TooLarge(Exception):
    """An input takes too much memory."""


class Run:
    """One run of a target: calls it, holds each input against the bounds, and tells about it all in the end."""

    def __init__(self, name: str, target: Callable[[bytes], None], seconds: float, keep_going: bool) -> None:
        self._name = name
        self._target = target
        self._seconds = seconds
        self._keep_going = keep_going
        self._started = time.monotonic()
        self._executions = 0
        self._worst = 0.0
        self._worst_input = b""
        self._early: int | None = None
        self._found: dict[str, Path] = {}

    def one(self, data: bytes) -> None:
        """Ends the process when the time is up, or something was found."""
        self._executions += 1
        peak, before = _peak(), time.process_time()
        try:
            with _limit(SECONDS_OF_ONE * 10):
                self._target(data)
            took = time.process_time() - before
            if took > SECONDS_OF_ONE:
                raise TooSlow(f"{took:.1f} s of processor time")
            if _peak() - peak > MEMORY_OF_ONE and self._executions > 1:
                raise TooLarge(f"{_peak() - peak >> 20} MB more than ever before")
        except Exception as error:
            took = time.process_time() - before
            self._note(error, data)
        if took > self._worst:
            self._worst, self._worst_input = took, data
        self._look_at_the_clock()

    def end(self) -> NoReturn:
        early = self._early or _resident()
        growth = _resident() - early
        if growth > GROWTH:
            self._found["growth"] = Path("-")
        print(
            f"{self._name}: {self._executions} executions in {time.monotonic() - self._started:.0f} s, "
            f"worst input {self._worst:.3f} s ({len(self._worst_input)} bytes), "
            f"memory {early >> 20} MB at 10 %, {_resident() >> 20} MB at the end, {len(self._found)} violations"
        )
        for what, path in self._found.items():
            print(f"  {what}: {path}")
        sys.stdout.flush()
        os._exit(1 if self._found else 0)

    def _look_at_the_clock(self) -> None:
        passed = time.monotonic() - self._started
        if self._early is None and passed > self._seconds / 10:
            self._early = _resident()
        if passed > self._seconds:
            self.end()

    def _note(self, error: Exception, data: bytes) -> None:
        """One input is kept for each place and kind of error, the first."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tfs_lite/" in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "targets"
        what = f"{type(error).__name__} at {place}: {str(error)[:60]}"
        key = f"{type(error).__name__} at {place}" if frames else what
        if any(known.startswith(key) for known in self._found):
            return
        path = FOUND / f"{self._name}-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        self._found[what] = path
        print(f"{self._name}: {path.name}: {len(data)} bytes: {data[:200]!r}", file=sys.stderr)
        traceback.print_exception(error)
        if not self._keep_going or len(self._found) >= MAX_VIOLATIONS:
            self.end()


def main() -> NoReturn:
    arguments = _arguments()
    _prepare()
    if importlib.util.find_spec("atheris") is None:
        _random(arguments)
    _guided(arguments)


def _guided(arguments: argparse.Namespace) -> NoReturn:
    import atheris

    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["tfs_lite"]):
        run, mutate = _load(arguments)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        if seed % 3 == 0:
            changed: bytes = atheris.Mutate(data, max_size)
            return changed
        return mutate(data, random.Random(seed))[:max_size]

    corpus = arguments.corpus or tempfile.mkdtemp(prefix=f"fuzz-{arguments.target}-")
    flags = [f"-max_len={MAX_LENGTH}", f"-timeout={SECONDS_TO_WAIT}", "-rss_limit_mb=0", "-print_final_stats=0", "-verbosity=0"]
    prefix = f"-artifact_prefix={FOUND}/{arguments.target}-"
    atheris.Setup(
        [sys.argv[0], *flags, prefix, str(corpus), str(HERE / "corpus" / arguments.target)],
        run.one,
        custom_mutator=mutator,
    )
    atheris.Fuzz()
    run.end()


def _random(arguments: argparse.Namespace) -> NoReturn:
    run, mutate = _load(arguments)
    chance = random.Random(arguments.seed)
    directories = [HERE / "corpus" / arguments.target, *([Path(arguments.corpus)] if arguments.corpus else [])]
    seeds = [path.read_bytes() for directory in directories for path in sorted(directory.iterdir())]
    for seed in seeds:
        run.one(seed)
    while True:
        data = chance.choice(seeds)
        for _ in range(chance.choice((1, 1, 2, 4))):
            data = mutate(data, chance)[:MAX_LENGTH]
        run.one(data)


def _load(arguments: argparse.Namespace) -> tuple[Run, Any]:
    from mutators import MUTATORS, either, of_bytes
    from targets import TARGETS

    if arguments.target not in TARGETS:
        sys.exit(f"there is no target {arguments.target}; known: {', '.join(TARGETS)}")
    mutate = either(MUTATORS[arguments.target], MUTATORS[arguments.target], of_bytes)
    return Run(arguments.target, TARGETS[arguments.target], arguments.seconds, arguments.keep_going), mutate


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--corpus", help="a directory for what is found to be of interest; used again next time")
    parser.add_argument("--keep-going", action="store_true", help="look for more after the first violation")
    parser.add_argument("--seed", type=int, default=None, help="of the random search without atheris")
    return parser.parse_args()


def _prepare() -> None:
    sys.path.insert(0, str(HERE))
    FOUND.mkdir(exist_ok=True)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("error", RuntimeWarning)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextlib.contextmanager
def _limit(seconds: float) -> Any:
    """Raises TooSlow inside after that much processor time."""

    def late(number: int, frame: FrameType | None) -> NoReturn:
        raise TooSlow(f"not done after {seconds:g} s of processor time")

    previous = signal.signal(signal.SIGPROF, late)
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


if __name__ == "__main__":
    main()
