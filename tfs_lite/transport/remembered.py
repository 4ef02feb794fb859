"""A bounded memory of results: each was computed from its key, and the oldest one goes first."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(dict[K, V]):
    """A mapping of at most ``most`` values, of which the one that was added first goes when another comes. It is read
    as any dict is. One thread at a time adds."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        self._most = most

    def add(self, key: K, value: V) -> V:
        """Returns the value."""
        if len(self) >= self._most and key not in self:
            del self[next(iter(self))]
        self[key] = value
        return value
