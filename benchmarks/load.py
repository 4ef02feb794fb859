"""Load generators: closed loop (callers that ask again once answered) and open loop (requests at times fixed before).

    connections = [GrpcConnection(port, PREDICT, messages) for _ in range(8)]
    tally = closed_loop(connections, streams=8, seconds=3, pick=cycle(len(messages)))
    tally = open_loop(connections, poisson(500, 3, rng), pick)

One thread, one selector; nothing else in the process should be busy. Times are seconds of ``time.perf_counter``. An
open loop counts from when a request was due, not from when it could be sent, and polls without sleeping when the next
one is near, so run it on a core of its own. ``Tally.client_share`` says how much of that core was used: a closed loop
near 1 measures the client.
"""

from __future__ import annotations

import random
import selectors
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from connections import Answer, Connection

Pick = Callable[[], int]
"""The index of the next message."""
Check = Callable[[int, bytes], bool]
"""Whether a body answers the message of that index."""
DRAIN_SECONDS = 20.0
NEAR = 0.002
MOST_OUTSTANDING = 20_000
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@dataclass(slots=True)
class Tally:
    """What became of the requests. ``served`` holds seconds per answer; ``refused`` too, by status."""

    seconds: float = 0.0
    served: array[float] = field(default_factory=lambda: array("d"))
    dues: array[float] = field(default_factory=lambda: array("d"))
    """When each of these was due, in seconds of ``perf_counter``."""
    refused: dict[int, array[float]] = field(default_factory=dict)
    checked: int = 0
    wrong: int = 0
    unanswered: int = 0
    unsent: int = 0
    """Due in an open loop, but too many were outstanding."""
    rows: int = 0
    client_share: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.served) / self.seconds

    @property
    def codes(self) -> Counter[int]:
        """How many answers had each status that does not count as served."""
        return Counter({code: len(times) for code, times in self.refused.items()})

    @property
    def failures(self) -> int:
        return self.codes.total() + self.wrong + self.unanswered

    def percentile(self, percent: float) -> float:
        """Seconds, of the answers that count as served; not a number without any."""
        return float(np.percentile(self.served, percent)) if self.served else float("nan")

    def take(self, answer: Answer, now: float, good: int, check: Check | None, rows: Sequence[int] | None) -> None:
        if answer.code != good:
            self.refused.setdefault(answer.code, array("d")).append(now - answer.due)
            return
        self.served.append(now - answer.due)
        self.dues.append(answer.due)
        self.rows += rows[answer.request] if rows is not None else 1
        if answer.body is not None and check is not None:
            self.checked += 1
            self.wrong += not check(answer.request, answer.body)


class Watch:
    """Connections under one selector; asks for writability only where bytes are left."""

    def __init__(self, connections: Iterable[Connection]) -> None:
        self._selector = selectors.DefaultSelector()
        self._left: dict[int, bool] = {}
        for connection in connections:
            self._selector.register(connection.sock, READ, connection)
            self._left[connection.sock.fileno()] = False

    def ready(self, timeout: float) -> Iterator[tuple[Connection, list[Answer]]]:
        """Connections with something to read, and what it was; the rest of what waits to be written is written."""
        for key, events in self._selector.select(timeout):
            connection: Connection = key.data
            answers = connection.receive() if events & READ else []
            yield connection, answers
            self.flush(connection)

    def flush(self, connection: Connection) -> None:
        left, number = not connection.flush(), connection.sock.fileno()
        if left is not self._left[number]:
            self._left[number] = left
            self._selector.modify(connection.sock, READ | WRITE if left else READ, connection)

    def close(self) -> None:
        self._selector.close()


def cycle(count: int) -> Pick:
    return iter(_cycle(count)).__next__


def _cycle(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


def mixed(indexes: Sequence[int], rng: random.Random) -> Pick:
    """Any of ``indexes``, equally likely."""
    drawn = [rng.choice(indexes) for _ in range(10_007)]
    numbers = cycle(len(drawn))
    return lambda: drawn[numbers()]


def closed_loop(
    connections: Sequence[Connection],
    streams: int,
    seconds: float,
    pick: Pick,
    check: Check | None = None,
    rows: Sequence[int] | None = None,
    marks: Callable[[], object] = lambda: None,
) -> Tally:
    """``streams`` callers on each connection. ``marks`` is called when counting starts and when it ends. Answers after
    the end are waited for and not counted."""
    tally, watch = Tally(), Watch(connections)
    marks()
    started, cpu = time.perf_counter(), time.process_time()
    ends = started + seconds
    for connection in connections:
        for _ in range(streams):
            connection.start(pick(), started)
        watch.flush(connection)
    while (now := time.perf_counter()) < ends:
        for connection, answers in watch.ready(min(ends - now, 0.1)):
            now = time.perf_counter()
            for answer in answers:
                tally.take(answer, now, connection.good, check, rows)
                connection.start(pick(), now)
    tally.seconds = time.perf_counter() - started
    tally.client_share = (time.process_time() - cpu) / tally.seconds
    marks()
    drain(connections, watch)
    tally.unanswered = sum(connection.busy for connection in connections)
    watch.close()
    return tally


def drain(connections: Sequence[Connection], watch: Watch) -> None:
    """Waits for what is under way, up to a bound."""
    gives_up = time.perf_counter() + DRAIN_SECONDS
    while any(connection.busy for connection in connections) and time.perf_counter() < gives_up:
        for _ in watch.ready(0.1):
            pass


def poisson(rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
    """Seconds from the start at which requests are due: independent of one another."""
    at = rng.expovariate(rate)
    while at < seconds:
        yield at
        at += rng.expovariate(rate)


def steady(rate: float, seconds: float) -> Iterator[float]:
    return (number / rate for number in range(int(rate * seconds)))


def bursty(rate: float, seconds: float, rng: random.Random, period: float = 0.2, on: float = 0.25) -> Iterator[float]:
    """``rate`` on average, all of it in the first ``on`` of each period, where arrivals are independent."""
    for at in poisson(rate, seconds, rng):
        whole, part = divmod(at, period)
        yield whole * period + part * on


def open_loop(
    connections: Sequence[Connection],
    arrivals: Iterable[float],
    pick: Pick,
    check: Check | None = None,
    rows: Sequence[int] | None = None,
    each: Callable[[float, Tally], object] | None = None,
) -> Tally:
    """Sends a request at each of the ``arrivals`` (ascending), over the connections in turn; then waits for the rest.
    ``each`` is called about every tenth of a second with the time since the start and what was counted so far."""
    return _OpenLoop(connections, iter(arrivals), pick, check, rows, each).run()


class _OpenLoop:
    def __init__(
        self,
        connections: Sequence[Connection],
        arrivals: Iterator[float],
        pick: Pick,
        check: Check | None,
        rows: Sequence[int] | None,
        each: Callable[[float, Tally], object] | None,
    ) -> None:
        self._connections, self._arrivals, self._pick = connections, arrivals, pick
        self._check, self._rows, self._each = check, rows, each
        self._tally, self._watch = Tally(), Watch(connections)
        self._waiting: deque[float] = deque()
        self._turn = 0
        self._busy = 0
        self._next = next(arrivals, None)

    def run(self) -> Tally:
        tally = self._tally
        self._started, cpu = time.perf_counter(), time.process_time()
        look = 0.1
        while self._next is not None:
            now = self._send_due()
            self._receive(0 if self._near(now) else min(self._next - now - NEAR / 2, 0.1))
            if self._each is not None and now >= look:
                look = now + 0.1
                self._each(now, tally)
        tally.seconds = time.perf_counter() - self._started
        tally.client_share = (time.process_time() - cpu) / tally.seconds
        gives_up = time.perf_counter() + DRAIN_SECONDS
        while self._busy and time.perf_counter() < gives_up:
            self._send_due()
            self._receive(0.05)
        tally.unanswered, tally.unsent = self._busy, tally.unsent + len(self._waiting)
        self._watch.close()
        return tally

    def _near(self, now: float) -> bool:
        return self._next is None or self._next - now < NEAR

    def _send_due(self) -> float:
        """Starts what is due; the time since the start."""
        now = time.perf_counter() - self._started
        while self._next is not None and self._next <= now:
            if len(self._waiting) + self._busy < MOST_OUTSTANDING:
                self._waiting.append(self._next)
            else:
                self._tally.unsent += 1
            self._next = next(self._arrivals, None)
        started = set[Connection]()
        while self._waiting and (connection := self._free()) is not None:
            connection.start(self._pick(), self._started + self._waiting.popleft())
            started.add(connection)
            self._busy += 1
        for connection in started:
            self._watch.flush(connection)
        return now

    def _free(self) -> Connection | None:
        """The next connection in turn that has room."""
        for _ in range(len(self._connections)):
            self._turn = (self._turn + 1) % len(self._connections)
            if self._connections[self._turn].room > 0:
                return self._connections[self._turn]
        return None

    def _receive(self, timeout: float) -> None:
        for connection, answers in self._watch.ready(max(timeout, 0)):
            now = time.perf_counter()
            self._busy -= len(answers)
            for answer in answers:
                self._tally.take(answer, now, connection.good, self._check, self._rows)
