"""``tfs-lite`` with a thread that measures for how long the interpreter lock is not to be had, and what loads do then.

    python benchmarks/watched_server.py FILE serve [flags]

The thread begins once there is a FILE, and sleeps for 0.2 ms again and again. Whenever it wakes more than a millisecond
late it looks where the threads that load are: the innermost function of theirs is what has just given the lock away. At
the end FILE gets, for each place in the code, how often that was so, and for how many milliseconds in all and at most.

Watching costs a twentieth of a core: figures of requests come from a server that is not watched.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

TICK_SECONDS, LATE_SECONDS = 0.0002, 0.001
BEGIN_SECONDS = 0.05
LOADERS = ("tfs-load", "tfs-unload", "tfs-manager", "tfs-look", "tfs-digests", "tfs-prepare")
DEPTH = 2
"""The functions that a place names: the innermost ones, and the innermost one of this package."""


class LockWatch(threading.Thread):
    def __init__(self, file: Path) -> None:
        super().__init__(name="watch", daemon=True)
        self._file = file
        self.places: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])

    def run(self) -> None:
        while not self._file.exists():
            time.sleep(BEGIN_SECONDS)
        before = time.perf_counter()
        while True:
            time.sleep(TICK_SECONDS)
            now = time.perf_counter()
            late = now - before - TICK_SECONDS
            if late > LATE_SECONDS:
                self._note(late * 1e3)
            before = time.perf_counter()

    def _note(self, late: float) -> None:
        frames = sys._current_frames()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        busy = [
            f"{names[ident]}: {place(frame)}"
            for ident, frame in frames.items()
            if names.get(ident, "").startswith(LOADERS) and not is_idle(frame)
        ]
        for where in busy or ["no load"]:
            found = self.places[where]
            found[0], found[1], found[2] = found[0] + 1, found[1] + late, max(found[2], late)


def is_idle(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(("threading.py", "queue.py", "selectors.py"))


def place(frame: FrameType) -> str:
    """The innermost functions, and the innermost one of this package."""
    inner, own, at = list[str](), "", frame
    while at is not None and not own:
        name = f"{Path(at.f_code.co_filename).stem}.{at.f_code.co_name}:{at.f_lineno}"
        if f"{os.sep}tfs_lite{os.sep}" in at.f_code.co_filename:
            own = name
        elif len(inner) < DEPTH:
            inner.append(name)
        at = at.f_back  # type: ignore[assignment]
    return " < ".join([*inner, own])


def main() -> int:
    from tfs_lite.cli.main import main as serve

    file = Path(sys.argv.pop(1))
    watch = LockWatch(file)
    watch.start()
    try:
        return serve()
    finally:
        rows = sorted(watch.places.items(), key=lambda item: -item[1][1])
        file.write_text(json.dumps([{"place": k, "times": n, "ms": s, "longest": m} for k, (n, s, m) in rows]))


if __name__ == "__main__":
    sys.exit(main())
