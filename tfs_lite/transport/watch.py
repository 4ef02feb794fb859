"""The look at every connection now and then: who takes too long, says nothing, or has been here long enough.

What is to be done is decided over a snapshot, in order of how bad it is; doing it is the connection's affair. One timer
for a server, and a loop that has other things to do between a few hundred connections and the next.

What a connection remembers about itself from one look of the watch to the next.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from tfs_lite.transport.http2.connection import Connection
from tfs_lite.transport.limits import Limits

MAX_TICK, MIN_TICK = 1.0, 0.01
TICKS_OF_TIMEOUT = 10
LINGER = 0.5
"""Seconds that a client has for closing its side after everything has left and ours is closed."""
DRAIN_ECHO = 1.0
"""Seconds that a client has for the echo after which no call of its can still be on the way."""
SLICE = 500
"""Connections that are looked at before others have their turn."""


class Act(enum.Enum):
    CUT = "close it at once: it does not listen any more"
    CLOSE = "say GOAWAY and close it"
    FINISH = "take no more calls"
    DRAIN = "ask for no more calls, and close it when those inside are done"
    PING = "ask whether anybody is there"


@dataclass(frozen=True, slots=True)
class View:
    """A connection as it is. Times are of one clock; None: not so."""

    now: float
    made: float
    heard: float
    """When a byte came last."""
    busy: bool
    """Whether there are calls inside."""
    idle_since: float
    partial_since: float | None
    """A frame, a header block or the preface is not whole since."""
    waiting: bool
    """Whether there is something to be sent that the client does not take."""
    moved: float
    """When something of that left, or nothing was waiting."""
    buffered: bool
    """Whether bytes are in the socket's buffer."""
    age_limit: float
    """Seconds."""
    pinged: float | None = None
    """The last PING, if nothing came since."""
    draining: str = ""
    """Why it is, as a kind for the metrics."""
    draining_since: float = 0.0
    finished: bool = False
    """Whether no more calls are taken."""
    ending: bool = False
    """Whether our side is closed, or will be when the buffer is empty."""


def decide(view: View, limits: Limits) -> tuple[Act, str] | None:
    """What to do now, and the kind under which it is counted."""
    now = view.now
    if view.waiting and now - view.moved >= limits.write_timeout:
        return Act.CUT, "slow_reader"
    if view.ending:
        over = not view.buffered and now - view.moved >= LINGER
        return (Act.CUT, "lingering") if over else None
    if view.partial_since is not None and now - view.partial_since >= limits.handshake_timeout:
        return Act.CLOSE, "handshake"
    if view.pinged is not None and now - view.pinged >= limits.keepalive_timeout:
        return Act.CUT, "keepalive"
    return _about_age(view, limits) or _about_silence(view, limits)


def _about_age(view: View, limits: Limits) -> tuple[Act, str] | None:
    if view.draining:
        since = view.now - view.draining_since
        if view.draining == "age" and since >= limits.max_connection_age_grace:
            return Act.CLOSE, "age"
        return (Act.FINISH, view.draining) if since >= DRAIN_ECHO and not view.finished else None
    if view.now - view.made >= view.age_limit:
        return Act.DRAIN, "age"
    if not view.busy and view.now - view.idle_since >= limits.max_connection_idle:
        return Act.DRAIN, "idle"
    return None


def _about_silence(view: View, limits: Limits) -> tuple[Act, str] | None:
    silent = view.pinged is None and view.now - view.heard >= limits.keepalive_time
    return (Act.PING, "keepalive") if silent else None


def tick_of(limits: Limits) -> float:
    """Seconds between two looks."""
    shortest = min(
        limits.handshake_timeout,
        limits.write_timeout,
        limits.request_timeout,
        limits.max_connection_idle,
        limits.max_connection_age,
        limits.max_connection_age_grace or inf,
        limits.keepalive_time,
        limits.keepalive_timeout,
    )
    return min(max(shortest / TICKS_OF_TIMEOUT, MIN_TICK), MAX_TICK)


class Watched(Protocol):
    def look(self, now: float) -> None:
        """Decides and acts. Must not raise."""


class Watch:
    """``start`` -> a look every ``tick`` seconds -> ``stop``. On the event loop, whose time it goes by."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tick: float, connections: Callable[[], Iterable[Watched]]
    ) -> None:
        self._loop = loop
        self._tick = tick
        self._connections = connections
        self._next: asyncio.Handle | None = None

    def start(self) -> None:
        self._next = self._loop.call_later(self._tick, self._look)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def hasten(self, tick: float) -> None:
        """From now on."""
        self.stop()
        self._tick = min(self._tick, tick)
        self.start()

    def _look(self) -> None:
        self._look_at(list(self._connections()))

    def _look_at(self, watched: Sequence[Watched]) -> None:
        now = self._loop.time()
        for one in watched[:SLICE]:
            one.look(now)
        if self._next is None:
            return  # stopped meanwhile
        if len(watched) > SLICE:
            self._next = self._loop.call_soon(self._look_at, watched[SLICE:])
        else:
            self._next = self._loop.call_later(self._tick, self._look)


AGE_SPREAD = 0.1
"""Clients that came together are not sent away together."""


class ConnectionActivity:
    """Of one connection, on the event loop. The owner writes ``pinged`` and what follows it."""

    __slots__ = (
        "_age_limit",
        "_idle_since",
        "_last_stream",
        "_left",
        "_made",
        "_moved",
        "draining",
        "draining_since",
        "ending",
        "finished",
        "pinged",
    )

    def __init__(self, limits: Limits, now: float) -> None:
        self._made = self._idle_since = self._moved = now
        self._age_limit = limits.max_connection_age * random.uniform(1 - AGE_SPREAD, 1 + AGE_SPREAD)
        self._last_stream = 0
        self._left = 0
        self.pinged: float | None = None
        self.draining = ""
        self.draining_since = 0.0
        self.finished = False
        self.ending = False

    def view(self, now: float, connection: Connection[Any], written: int, buffered: int) -> View:
        """``written``: bytes so far; ``buffered``: how many of them are still in our socket's buffer."""
        waiting = buffered > 0 or any(stream.queue for stream in connection.streams.values())
        left = written - buffered
        if left != self._left or not (waiting or self.ending):
            self._left, self._moved = left, now
        if connection.busy or connection.last_stream != self._last_stream:
            self._last_stream, self._idle_since = connection.last_stream, now
        if self.pinged is not None and connection.last_received >= self.pinged:
            self.pinged = None
        return View(
            now=now,
            made=self._made,
            heard=connection.last_received,
            busy=connection.busy > 0,
            idle_since=self._idle_since,
            partial_since=connection.partial_since,
            waiting=waiting,
            moved=self._moved,
            buffered=buffered > 0,
            age_limit=self._age_limit,
            pinged=self.pinged,
            draining=self.draining,
            draining_since=self.draining_since,
            finished=self.finished,
            ending=self.ending,
        )
