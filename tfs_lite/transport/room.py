"""The open connections of a server, at most so many: beyond the bound, the one that can best be spared makes room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

SEARCH_INTERVAL = 1.0
"""Seconds between two searches for connections that can be spared."""


class Evictable(Protocol):
    def evict(self) -> None:
        """Closes the connection at once."""


C = TypeVar("C", bound=Evictable)


class ConnectionRoom(Generic[C]):
    """On the event loop. ``rank`` gives the order in which connections can be spared, the smallest first, and None for
    one that cannot; it takes the connection and the time, in seconds of ``clock``. One search over all connections
    serves many evictions: a connection whose rank has changed since is not taken."""

    def __init__(self, most: int, rank: Callable[[C, float], Any], clock: Callable[[], float]) -> None:
        self._most = most
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
        """False means that there is no room, and that no other connection can be spared."""
        if len(self._open) >= self._most:
            spared = self._find()
            if spared is None:
                return False
            spared.evict()
            self._open.discard(spared)
        elif self._found:
            self._found.clear()
        self._open.add(connection)
        return True

    def discard(self, connection: C) -> None:
        self._open.discard(connection)

    def _find(self) -> C | None:
        now = self._clock()
        if not self._found and now - self._searched_at >= SEARCH_INTERVAL:
            self._searched_at = now
            ranked = [(one, rank) for one in self._open if (rank := self._rank(one, now)) is not None]
            self._found.extend(sorted(ranked, key=lambda found: found[1]))
        while self._found:
            connection, rank = self._found.popleft()
            if connection in self._open and self._rank(connection, now) == rank:
                return connection
        return None
