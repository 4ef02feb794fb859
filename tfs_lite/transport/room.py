"""The open connections of a server, at most so many: beyond the bound, the one that can best be spared makes room.

All servers of a process share the descriptors that the system gives it. A part of them is kept back for what is no
connection: disks, models and their processes, the log.
"""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, Generic, Protocol, TypeVar

SEARCH_INTERVAL = 1.0
"""Seconds between two searches for connections that can be spared."""
KEPT_BACK = 256
"""Descriptors that no connection gets, or a quarter of them if that is more, or half of them if that is less."""
LAST_DESCRIPTORS = 32
"""Connections get none of this many highest descriptors, whatever has taken the others."""


class Evictable(Protocol):
    def evict(self) -> None:
        """Closes the connection at once."""


C = TypeVar("C", bound=Evictable)


class ConnectionShare:
    """The connections of all servers of the process together, those in a handshake too. On the event loop."""

    def __init__(self, files: int | None = None) -> None:
        """``files`` is how many descriptors the process may have; None: as many as the system lets it."""
        if files is None:
            files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unbounded = files == resource.RLIM_INFINITY
        self.most = inf if unbounded else files - max(min(KEPT_BACK, files // 2), files // 4)
        self._first_kept = inf if unbounded else files - LAST_DESCRIPTORS
        self._holders: list[Callable[[], int]] = []
        self._rooms: list[ConnectionRoom[Any]] = []

    def join(self, holder: Callable[[], int], room: ConnectionRoom[Any] | None = None) -> None:
        """``holder`` says how many connections there are in one place; ``room`` is where they can be evicted from."""
        self._holders.append(holder)
        if room is not None:
            self._rooms.append(room)

    @property
    def is_full(self) -> bool:
        return sum(holder() for holder in self._holders) >= self.most

    def may_have(self, descriptor: int) -> bool:
        """Whether a connection may keep the descriptor that the system gave it, which is the lowest one that was free.
        If not, another connection has been evicted for it, where one could be spared."""
        return descriptor < self._first_kept or self.make_room()

    def make_room(self) -> bool:
        """Evicts a connection of the server that has most of them, or of another one: whether there was one."""
        return any(room.evict_one() for room in sorted(self._rooms, key=len, reverse=True))


class ConnectionRoom(Generic[C]):
    """A bounded set of connections, on the event loop. ``rank`` gives the order in which connections can be spared, the
    smallest first, and None for one that cannot; it takes the connection and the time, in seconds of ``clock``. One
    search over all connections serves many evictions: a connection whose rank has changed since is not taken."""

    def __init__(
        self,
        most: int,
        rank: Callable[[C, float], Any],
        clock: Callable[[], float],
        share: ConnectionShare | None = None,
    ) -> None:
        """``share`` is the process-wide bound that the room takes part in; None: the room may fill up whatever others
        hold."""
        self._most = most
        self._share = share
        if share is not None:
            share.join(self.__len__, self)
        self._rank = rank
        self._clock = clock
        self._open: set[C] = set()
        self._found: deque[tuple[C, Any]] = deque()
        self._searched_at = -SEARCH_INTERVAL

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        return iter(self._open)

    def add(self, connection: C) -> bool:
        """Adds a connection; returns False if there is no room and no other connection can be spared."""
        if len(self._open) >= self._most:
            if not self.evict_one():
                return False
        elif self._share is not None and self._share.is_full:
            if not self._share.make_room():
                return False
        elif self._found:
            self._found.clear()
        self._open.add(connection)
        return True

    def evict_one(self) -> bool:
        """Ends the connection that can be spared first; returns False if none can."""
        spared = self._find()
        if spared is None:
            return False
        spared.evict()
        self._open.discard(spared)
        return True

    def discard(self, connection: C) -> None:
        self._open.discard(connection)

    def _find(self) -> C | None:
        now = self._clock()
        spared = self._next_found(now)
        if spared is None and now - self._searched_at >= SEARCH_INTERVAL:
            self._searched_at = now
            ranked = [(one, rank) for one in self._open if (rank := self._rank(one, now)) is not None]
            self._found.extend(sorted(ranked, key=lambda found: found[1]))
            spared = self._next_found(now)
        return spared

    def _next_found(self, now: float) -> C | None:
        while self._found:
            connection, rank = self._found.popleft()
            if connection in self._open and self._rank(connection, now) == rank:
                return connection
        return None
