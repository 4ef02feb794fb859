"""Everything that clients do to a gRPC server, for a long time and all at once: nothing of it may stay behind.

    python tests/chaos/soak_grpc.py --seconds 600 --grpc_server=native

A whole server in this process with a small batched torch model. Callers on many connections ask, cancel, reset streams
at any byte, set deadlines from a millisecond on, hold streams of both kinds and leave at once. Every answer that
comes is compared with the right one. After a third of the time everybody leaves, and traced memory is noted; then the
rest, and everybody leaves again. The exit code is 0 when

- every call ended, with its value or with a status that its caller asked for,
- after both parts every gauge of calls, streams and bytes is 0 and no file is left open,
- traced memory after the end is at most ``--most_growth_kb`` above that after the first third.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import re
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil

sys.path.append(str(Path(__file__).resolve().parent))

from soak_crowd import PATIENCE, VERSION, Crowd, Tally

from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until

MOST_GROWTH_KB = 1024
SPARE_FILES = 10
BATCHING = "max_batch_size { value: 4096 }\nmax_enqueued_batches { value: 1000 }\n"
NOT_ZERO = re.compile("limit|room|max|capacity|window")
"""Gauges of the transport that do not count what it holds."""
NEEDED = ("streams", "unread", "unsent")
"""What gauges of the native server must name."""


@contextlib.contextmanager
def soak_server(root: Path, **fields: Any) -> Iterator[ServerFixture]:
    """One small torch model with batching."""
    TaggedArchives().write_version(VERSION, root / "m")
    (root / "batching.txt").write_text(BATCHING)
    fields |= {"enable_batching": True, "batching_parameters_file": str(root / "batching.txt")}
    with serving(root, model_name="m", model_base_path=str(root / "m"), **fields) as server:
        assert server.version() == VERSION
        server.client.close()
        yield server


def gauges(server: ServerFixture) -> dict[str, float]:
    """What the server has inside, by its own account: calls, streams, bytes and waiting rows."""
    with urlopen(f"{server.url}/metrics", timeout=PATIENCE) as page:
        text = page.read().decode()
    names = set(re.findall(r"^# TYPE (tfs_lite_(?:grpc|queue)_\w+) gauge$", text, re.MULTILINE))
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = re.split(r"[{ ]", line, maxsplit=1)[0]
        if name in names and not NOT_ZERO.search(name):
            found[line.rsplit(" ", 1)[0]] = float(line.rsplit(" ", 1)[1])
    return found


def wait_empty(server: ServerFixture, files: int) -> dict[str, float]:
    """Returns the gauges once all are 0 and no more files are open than ``files``; TimeoutError."""
    process = psutil.Process()
    try:
        wait_until(lambda: not any(gauges(server).values()), "every gauge is 0", PATIENCE)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {gauges(server)}") from None
    wait_until(lambda: process.num_fds() <= files + SPARE_FILES, f"open files are back near {files}", PATIENCE)
    return gauges(server)


def traced() -> dict[str, int]:
    """Bytes by line of source, without what this file and the tracing itself hold."""
    gc.collect()
    own = [tracemalloc.Filter(False, name) for name in (tracemalloc.__file__, __file__)]
    lines = tracemalloc.take_snapshot().filter_traces(own).statistics("lineno")
    return {f"{line.traceback[0].filename}:{line.traceback[0].lineno}": line.size for line in lines}


def differences(before: dict[str, int], after: dict[str, int], count: int = 10) -> list[str]:
    """The lines whose memory grew most, in bytes."""
    grown = {place: size - before.get(place, 0) for place, size in after.items()}
    return [f"{grown[place]:+} {place}" for place in sorted(grown, key=lambda place: -grown[place])[:count]]


@dataclass
class Report:
    tally: Tally
    seconds: float
    gauges: dict[str, float]
    traced_kb: list[int]
    """Before, after the first third, at the end."""
    grew_most: list[str]
    most_growth_kb: int

    @property
    def growth_kb(self) -> int:
        return self.traced_kb[2] - self.traced_kb[1]

    @property
    def faults(self) -> list[str]:
        """Why this is no pass; empty: it is."""
        found = list(self.tally.faults)
        if self.growth_kb > self.most_growth_kb:
            found.append(f"traced memory grew by {self.growth_kb} KB, at most {self.most_growth_kb} expected")
        if not self.tally.answered:
            found.append("nothing was answered")
        return found


def until(seconds: float | None, calls: int | None) -> Callable[[], bool]:
    if calls is not None:
        left = iter(range(calls))
        return lambda: next(left, None) is not None
    ends = time.monotonic() + (seconds or 0)
    return lambda: time.monotonic() < ends


def soak(
    server: ServerFixture,
    *,
    seconds: float | None = None,
    calls: int | None = None,
    connections: int = 16,
    callers: int = 8,
    seed: int = 1,
    most_growth_kb: int = MOST_GROWTH_KB,
) -> Report:
    """Both parts, of so many seconds or calls together. Traces memory while it runs. TimeoutError when something stays
    in the server after all have left."""
    crowd = Crowd(server.server.port or 0, connections, callers, seed)
    started, files = time.monotonic(), psutil.Process().num_fds()
    tracemalloc.start()
    try:
        states = [traced()]
        for share in (1 / 3, 2 / 3):
            crowd.run(until(seconds and seconds * share, calls and round(calls * share)))
            left = wait_empty(server, files)
            states.append(traced())
    finally:
        tracemalloc.stop()
    sizes = [sum(state.values()) // 1024 for state in states]
    grew = differences(states[1], states[2])
    return Report(crowd.tally, time.monotonic() - started, left, sizes, grew, most_growth_kb)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--calls", type=int, help="instead of seconds")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--callers", type=int, default=8, help="on each connection")
    parser.add_argument("--grpc_server", default="", help="native or grpcio; empty: the default")
    parser.add_argument("--worker", default="thread", choices=("thread", "process"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most_growth_kb", type=int, default=MOST_GROWTH_KB)
    wanted = parser.parse_args(arguments)
    fields: dict[str, Any] = {"worker": wanted.worker}
    if wanted.grpc_server:
        fields["grpc_server"] = wanted.grpc_server
    with tempfile.TemporaryDirectory() as root, soak_server(Path(root), **fields) as server:
        report = soak(
            server,
            seconds=wanted.seconds,
            calls=wanted.calls,
            connections=wanted.connections,
            callers=wanted.callers,
            seed=wanted.seed,
            most_growth_kb=wanted.most_growth_kb,
        )
    faults = report.faults
    if wanted.grpc_server == "native":
        faults += [f"no gauge names {word}" for word in NEEDED if not any(word in name for name in report.gauges)]
    summary = {
        "seconds": round(report.seconds, 1),
        "calls": report.tally.outcomes.total(),
        "answered_right": report.tally.answered,
        "outcomes": dict(sorted(report.tally.outcomes.items())),
        "gauges": report.gauges,
        "traced_kb": report.traced_kb,
        "growth_kb": report.growth_kb,
        "grew_most": report.grew_most,
        "stream_errors": len(faults),
    }
    print(json.dumps(summary, indent=1))
    for fault in faults[:20]:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
