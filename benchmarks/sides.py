"""A side is a server asked in one way; measuring it gives figures. Used by all the benchmarks here.

``figures_of`` opens connections, warms up, runs a closed loop and reads the server's CPU time over the same stretch.
Answers are compared with known ones in a sample; a wrong one counts as a failure.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from connections import Connection
from forms import GRPC, GRPC_ECHO, RAW, REST, REST_ECHO, V2, Codec, json_at, list_answer
from load import Check, Tally, closed_loop, cycle, mixed
from models import SINGLE, Model
from servers import WAIT_MS, Absent, Launch, Place, Running, batched, launch_limit, launch_ours, launch_peer

WARM_UP_SECONDS = 0.5
FRESH_WARM_UP_SECONDS = 2.0
"""Of a server that was just started, such as one whose code is compiled while it runs."""
CALLERS = 64
MANY = (64, 1)
"""Connections and callers on each."""
FEW = (8, 8)


@dataclass(frozen=True, slots=True)
class Side:
    """``server``: sides of the same server name share a process. ``launch`` is called once for it."""

    name: str
    server: str
    codec: Codec
    launch: Launch
    layout: tuple[int, int] = FEW
    stays: bool = True
    """Whether it costs nothing while others are measured, and so may run from the first round to the last."""
    echoes: bool = False

    def port(self, running: Running) -> int:
        return running.http_port if running.ours is not None and self.codec.content_type else running.port

    def connect(self, running: Running, model: Model, callers: int = CALLERS) -> tuple[list[Connection], int]:
        """(connections, callers on each). HTTP has one caller per connection."""
        messages = self.codec.messages(model)
        count, each = self.layout if callers == CALLERS else split(callers)
        if self.codec.content_type:
            count, each = callers, 1
        return [self.codec.connect(self.port(running), model, messages) for _ in range(count)], each

    def check(self, model: Model) -> Check:
        """An echo answers with its question."""
        right = replace(model, answers=model.questions) if self.echoes else model

        def check(index: int, body: bytes) -> bool:
            try:
                return right.is_answer(index, self.codec.decode(body))
            except (LookupError, TypeError, ValueError):
                return False

        return check


def split(callers: int) -> tuple[int, int]:
    """As many connections, up to 8, as divide ``callers`` evenly."""
    count = max(size for size in range(1, min(callers, FEW[0]) + 1) if callers % size == 0)
    return count, callers // count


@dataclass(slots=True)
class Figures:
    """Of one measurement; rates a second, times in milliseconds, CPU in microseconds of the server a request."""

    rate: float
    rows_rate: float
    p50: float
    p99: float
    cpu_us: float
    failures: int
    checked: int
    client_share: float
    batch_rows: float = math.nan
    """Mean rows of a run, as the server counts them; ours alone says."""
    codes: dict[int, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summary(tally: Tally, cpu_seconds: float) -> Figures:
    answered = len(tally.served) + tally.codes.total()
    return Figures(
        rate=tally.rate,
        rows_rate=tally.rows / tally.seconds,
        p50=tally.percentile(50) * 1e3,
        p99=tally.percentile(99) * 1e3,
        cpu_us=cpu_seconds / answered * 1e6 if answered else math.nan,
        failures=tally.failures,
        checked=tally.checked,
        client_share=tally.client_share,
        codes=dict(tally.codes),
    )


def picks(model: Model, mixed_sizes: bool) -> Callable[[], int]:
    """Questions of one row in turn, or of 1 to 7 rows at random."""
    if not mixed_sizes:
        return cycle(SINGLE)
    return mixed(range(SINGLE, len(model.questions)), random.Random(1))


def close(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.sock.close()


def figures_of(
    side: Side, running: Running, model: Model, seconds: float, callers: int = CALLERS, mixed_sizes: bool = False
) -> Figures:
    """A closed loop of ``callers``."""
    connections, each = side.connect(running, model, callers)
    pick, check, cpu = picks(model, mixed_sizes), side.check(model), list[float]()
    try:
        warm_up = WARM_UP_SECONDS if side.stays else FRESH_WARM_UP_SECONDS
        warm = closed_loop(connections, each, min(warm_up, seconds), pick, check)
        before = runs(running)
        tally = closed_loop(
            connections, each, seconds, pick, check, model.rows, lambda: cpu.append(running.cpu_seconds())
        )
    finally:
        close(connections)
    tally.wrong += warm.wrong
    tally.checked += warm.checked
    return replace(summary(tally, cpu[1] - cpu[0]), batch_rows=rows_a_run(before, runs(running)))


def runs(running: Running) -> tuple[float, float]:
    """(rows, runs) that our server has counted since its start; zeros of any other."""
    if running.ours is None:
        return 0.0, 0.0
    text, found = running.ours.get("/metrics")[1].decode(), {"sum": 0.0, "count": 0.0}
    for line in text.splitlines():
        for kind in found:
            if line.startswith(f"tfs_lite_batch_size_{kind}{{"):
                found[kind] += float(line.rsplit(" ", 1)[1])
    return found["sum"], found["count"]


def rows_a_run(before: tuple[float, float], after: tuple[float, float]) -> float:
    count = after[1] - before[1]
    return (after[0] - before[0]) / count if count else math.nan


def median_of(rounds: Sequence[Figures], name: str) -> float:
    found: list[float] = [getattr(figures, name) for figures in rounds]
    return statistics.median(found)


class Stable:
    """The servers of a run: started when first needed, some kept. Says which are absent, once, and why."""

    def __init__(self, model: Model, place: Place) -> None:
        self.model, self.place = model, place
        self.absent: dict[str, str] = {}
        self._kept: dict[str, tuple[Any, Running]] = {}

    @contextmanager
    def running(self, side: Side) -> Iterator[Running]:
        """Absent when it cannot run. A side that does not stay is ended afterwards."""
        if side.server in self.absent:
            raise Absent(self.absent[side.server])
        if side.server in self._kept:
            yield self._kept[side.server][1]
            return
        manager = side.launch(self.model, self.place)
        try:
            running = manager.__enter__()
        except Absent as error:
            self.absent[side.server] = str(error)
            raise
        if side.stays:
            self._kept[side.server] = (manager, running)
            yield running
            return
        try:
            yield running
        finally:
            manager.__exit__(None, None, None)

    def close(self) -> None:
        while self._kept:
            _, (manager, _running) = self._kept.popitem()
            manager.__exit__(None, None, None)


def ours(name: str, *flags: str, codec: Codec = GRPC, layout: tuple[int, int] = FEW, server: str = "") -> Side:
    return Side(name, server or name, codec, lambda model, place: launch_ours(model, place, *flags), layout)


GRPC_LIMIT = Side("grpc.aio echo", "grpc-echo", GRPC_ECHO, launch_limit("grpc-echo", GRPC_ECHO), echoes=True)
HTTP_LIMIT = Side("ASGI echo", "asgi-echo", REST_ECHO, launch_limit("asgi-echo", REST_ECHO), echoes=True)
THREAD, PROCESS = "ours, thread", "ours, process"
WORKER = "--worker={}"
POLICIES: dict[str, tuple[float, tuple[str, ...]]] = {
    "greedy": (0.0, ("--send_batches=greedy",)),
    "wait": (WAIT_MS, ()),
    "expect": (0.0, ("--send_batches=expect",)),
}
"""When a batch leaves: the wait in ms and the flags of each. ``expect`` is what a wait of 0 means without a flag."""


def main_sides() -> list[Side]:
    """Ours in its ways and the limits of what it stands on."""
    return [
        GRPC_LIMIT,
        replace(GRPC_LIMIT, name="grpc.aio echo, 64x1", layout=MANY),
        HTTP_LIMIT,
        ours(THREAD, *batched(), WORKER.format("thread")),
        ours("ours, thread, 64x1", *batched(), WORKER.format("thread"), layout=MANY, server=THREAD),
        ours("ours, REST", *batched(), WORKER.format("thread"), codec=REST, server=THREAD),
        ours(PROCESS, *batched(), WORKER.format("process")),
        ours("ours, no batching"),
    ]


def policy_sides() -> list[Side]:
    return [ours(f"ours, {name}", *batched(wait_ms=wait), *flags) for name, (wait, flags) in POLICIES.items()]


PEERS: dict[str, Codec] = {
    "mosec": RAW,
    "pytriton": V2,
    "mlserver": V2,
    "litserve": json_at("/predict"),
    "bentoml": json_at("/predict", list_answer),
    "ray": json_at("/"),
    "torchserve": replace(RAW, path="/predictions/{name}"),
}
"""Each asked in the way that is natural for it and for small tensors."""


def peer_sides(names: Sequence[str]) -> list[Side]:
    return [Side(name, name, PEERS[name], launch_peer(name, PEERS[name]), stays=False) for name in names]
