"""Timeouts of connections: which clients take too long, are silent, or have been connected long enough.

A timer of the server goes over all connections. Each takes a snapshot of itself (:class:`ConnectionActivity` makes it,
a :class:`ConnectionView`), :func:`decide` says what is due, the most urgent first, and the connection does it. Between
a few hundred connections and the next the event loop does other work.
"""

from __future__ import annotations

import asyncio
import enum
import random
import sys
import termios
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from math import inf
from typing import Any, Protocol

from tfs_lite.transport.http2.connection import Http2Connection
from tfs_lite.transport.limits import Limits

MAX_INTERVAL, MIN_INTERVAL = 1.0, 0.01
CHECKS_PER_TIMEOUT = 10
LINGER = 0.5
"""Seconds that a client has for closing its side, after everything was sent and the server has closed its own."""
DRAIN_ECHO = 1.0
"""Seconds that a client has for answering the drain's PING; after that no call can still be on its way."""
SLICE = 500
"""Connections that are checked in one turn of the loop."""
AGE_SPREAD = 0.1
"""The age limit of a connection varies by this part, so that clients do not all reconnect at once."""


class Act(enum.Enum):
    ABORT = "close it at once: it does not listen any more"
    CLOSE = "say GOAWAY and close it"
    FINISH = "take no more calls"
    DRAIN = "ask for no more calls, and close it when those inside are done"
    PING = "ask whether anybody is there"


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """The state of a connection. Times are of one clock; None means that it is not the case."""

    now: float
    created: float
    last_received: float
    """The time when the last byte arrived."""
    busy: bool
    """Whether it has calls."""
    idle_since: float
    partial_since: float | None
    """The time since when a frame, a header block or the preface has been incomplete."""
    unsent: bool
    """Whether output waits for the client."""
    last_progress: float
    """The time when some of that output last left, or none was waiting."""
    buffered: bool
    """Whether bytes are in the socket's buffer."""
    age_limit: float
    """The age, in seconds, at which the connection ends."""
    pinged: float | None = None
    """The time when the last PING was sent, if nothing has arrived since."""
    draining: str = ""
    """Why it drains, as a kind for the metrics; empty if it does not."""
    draining_since: float = 0.0
    finished: bool = False
    """Whether it takes no more calls."""
    ending: bool = False
    """Whether the server's side is closed, or will be when the buffer is empty."""


def bytes_on_their_way(transport: asyncio.Transport) -> int:
    """Bytes that the client's system has not taken yet: those in the transport, and where the system tells (Linux)
    those in the socket. Without the latter, the few megabytes that a socket holds would hide a client that reads
    slowly."""
    waiting = transport.get_write_buffer_size()
    with suppress(OSError, ValueError):  # a socket that is closed, or of a kind that does not say
        socket = transport.get_extra_info("socket")
        waiting += int.from_bytes(ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return waiting


def decide(view: ConnectionView, limits: Limits) -> tuple[Act, str] | None:
    """The action that is due now, and the kind under which it is counted; None: nothing is due."""
    now = view.now
    if view.unsent and now - view.last_progress >= limits.write_timeout:
        return Act.ABORT, "slow_reader"
    if view.ending:
        finished = not view.buffered and now - view.last_progress >= LINGER
        return (Act.ABORT, "lingering") if finished else None
    if view.partial_since is not None and now - view.partial_since >= limits.handshake_timeout:
        return Act.CLOSE, "handshake"
    if view.pinged is not None and now - view.pinged >= limits.keepalive_timeout:
        return Act.ABORT, "keepalive"
    return _check_age(view, limits) or _check_silence(view, limits)


def _check_age(view: ConnectionView, limits: Limits) -> tuple[Act, str] | None:
    if view.draining:
        since = view.now - view.draining_since
        if view.draining == "age" and since >= limits.max_connection_age_grace:
            return Act.CLOSE, "age"
        return (Act.FINISH, view.draining) if since >= DRAIN_ECHO and not view.finished else None
    if view.now - view.created >= view.age_limit:
        return Act.DRAIN, "age"
    if not view.busy and view.now - view.idle_since >= limits.max_connection_idle:
        return Act.DRAIN, "idle"
    return None


def _check_silence(view: ConnectionView, limits: Limits) -> tuple[Act, str] | None:
    silent = view.pinged is None and view.now - view.last_received >= limits.keepalive_time
    return (Act.PING, "keepalive") if silent else None


def check_interval(limits: Limits) -> float:
    """Seconds between two checks of all connections."""
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
    return min(max(shortest / CHECKS_PER_TIMEOUT, MIN_INTERVAL), MAX_INTERVAL)


class Watched(Protocol):
    def check_timeouts(self, now: float) -> None:
        """Takes the action that is due. Must not raise."""


class Watch:
    """Checks the timeouts of all connections: ``start`` -> ``check_timeouts`` every ``interval`` seconds -> ``stop``.
    On the event loop, by its clock."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval: float, connections: Callable[[], Iterable[Watched]]
    ) -> None:
        self._loop = loop
        self._interval = interval
        self._connections = connections
        self._next: asyncio.Handle | None = None

    def start(self) -> None:
        self._next = self._loop.call_later(self._interval, self._check_all)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def shorten(self, interval: float) -> None:
        """Checks at least this often from now on."""
        self.stop()
        self._interval = min(self._interval, interval)
        self.start()

    def _check_all(self) -> None:
        self._check(list(self._connections()))

    def _check(self, connections: Sequence[Watched]) -> None:
        now = self._loop.time()
        for connection in connections[:SLICE]:
            connection.check_timeouts(now)
        if self._next is None:
            return  # stopped meanwhile
        if len(connections) > SLICE:
            self._next = self._loop.call_soon(self._check, connections[SLICE:])
        else:
            self._next = self._loop.call_later(self._interval, self._check_all)


class ConnectionActivity:
    """The times and counts that one connection keeps from one check to the next. On the event loop; the owner sets
    ``pinged`` and the attributes after it."""

    __slots__ = (
        "_age_limit",
        "_created",
        "_idle_since",
        "_last_progress",
        "_last_stream",
        "_sent",
        "draining",
        "draining_since",
        "ending",
        "finished",
        "pinged",
    )

    def __init__(self, limits: Limits, now: float) -> None:
        self._created = self._idle_since = self._last_progress = now
        self._age_limit = limits.max_connection_age * random.uniform(1 - AGE_SPREAD, 1 + AGE_SPREAD)
        self._last_stream = 0
        self._sent = 0
        self.pinged: float | None = None
        self.draining = ""
        self.draining_since = 0.0
        self.finished = False
        self.ending = False

    def view(
        self, now: float, connection: Http2Connection[Any], written: int, transport: asyncio.Transport | None
    ) -> ConnectionView:
        """``written`` counts the bytes so far."""
        buffered = 0 if transport is None else transport.get_write_buffer_size()
        unsent = buffered > 0 or any(stream.queue for stream in connection.streams.values())
        sent = written - bytes_on_their_way(transport) if unsent and transport is not None else written - buffered
        if sent != self._sent or not (unsent or self.ending):
            self._sent, self._last_progress = sent, now
        if connection.busy or connection.last_stream != self._last_stream:
            self._last_stream, self._idle_since = connection.last_stream, now
        if self.pinged is not None and connection.last_received >= self.pinged:
            self.pinged = None
        return ConnectionView(
            now=now,
            created=self._created,
            last_received=connection.last_received,
            busy=connection.busy > 0,
            idle_since=self._idle_since,
            partial_since=connection.partial_since,
            unsent=unsent,
            last_progress=self._last_progress,
            buffered=buffered > 0,
            age_limit=self._age_limit,
            pinged=self.pinged,
            draining=self.draining,
            draining_since=self.draining_since,
            finished=self.finished,
            ending=self.ending,
        )
