"""What a connection remembers about itself from one look of the watch to the next."""

from __future__ import annotations

import random
from typing import Any

from tfs_lite.transport.connection import Connection
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.watch import View

AGE_SPREAD = 0.1
"""Clients that came together are not sent away together."""


class Vitals:
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
