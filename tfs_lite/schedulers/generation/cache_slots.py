"""What each place of a cache holds, and which one a new text should get.

A place keeps what its last text left in it until another one takes it. A text that begins as the tokens of some place
need not compute those again: it has them copied, or it takes that very place, if that is free and little is lost.
Only rows that have certainly been computed are offered: those of a step count when it is over, and so no copy of a
step reads what another copy or a row of the same step writes. What was left longest ago is overwritten first.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass

LEAST_REUSE = 16
"""Tokens in common from which on reuse is worth it."""


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """The place for a text, of which ``count`` first tokens are there already, or, with ``source``, are to be copied
    from that place."""

    place: int
    count: int = 0
    source: int | None = None


class CacheSlots:
    """Of one cache; one thread. ``find`` -> ``take`` -> ``grew`` after every step -> ``release``."""

    __slots__ = ("_clock", "_free", "_held", "_left", "_remembers", "_tokens")

    def __init__(self, count: int, remembers: bool = True) -> None:
        """``remembers`` False: nothing is ever reused, and the lowest free place is taken."""
        self._remembers = remembers
        self._free = list(range(count))
        self._tokens: list[Sequence[int]] = [()] * count
        self._held = [0] * count
        self._left = [0] * count
        self._clock = 0

    def copy(self) -> CacheSlots:
        """For trying out."""
        other = CacheSlots(0, self._remembers)
        other._free, other._tokens, other._held = self._free[:], self._tokens[:], self._held[:]
        other._left, other._clock = self._left[:], self._clock
        return other

    @property
    def free(self) -> Sequence[int]:
        """Ascending."""
        return self._free

    def holds(self, place: int) -> Sequence[int]:
        """The tokens whose keys and values are certainly in the place, from its beginning on."""
        return self._tokens[place][: self._held[place]]

    def find(self, tokens: Sequence[int] | None, kept: Collection[int] = ()) -> SlotAssignment | None:
        """The place for a text with these tokens; None: there is none. ``tokens`` None: it reuses nothing. ``kept``
        places are not taken, only read. The last token is always left to be computed, for what comes after it is
        wanted."""
        usable = [place for place in self._free if place not in kept] if kept else self._free
        if not usable:
            return None
        if not self._remembers:
            return SlotAssignment(usable[0])
        spare = min(usable, key=self._worth)
        hit, count = self._longest(tokens) if tokens and len(tokens) > LEAST_REUSE else (-1, 0)
        if not count:
            return SlotAssignment(spare)
        if hit == spare or (hit in usable and self._held[hit] - count < LEAST_REUSE):
            return SlotAssignment(hit, count)
        return SlotAssignment(spare, count, hit)

    def take(self, taking: SlotAssignment, tokens: Sequence[int]) -> None:
        """``tokens`` are those of the text, which may grow but not change. What is copied into the place counts once
        ``grew`` says so."""
        self._free.remove(taking.place)
        self._tokens[taking.place] = tokens
        self._held[taking.place] = taking.count if taking.source is None else 0

    def grew(self, place: int, held: int) -> None:
        """A step is over, and the place holds so many of its text's tokens."""
        self._held[place] = held

    def release(self, place: int, sound: bool = True) -> None:
        """``sound`` False: what it holds is not to be used again."""
        insort(self._free, place)
        self._clock += 1
        self._left[place] = self._clock
        if not sound or not self._remembers:
            self._tokens[place], self._held[place] = (), 0

    def _worth(self, place: int) -> tuple[int, int]:
        return (self._left[place] if self._held[place] >= LEAST_REUSE else 0, place)

    def _longest(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The place with the most first tokens in common, the one with the least besides if several have them; and how
        many. Less than ``LEAST_REUSE`` are none, and then no place is (-1)."""
        best, found, rest = LEAST_REUSE - 1, -1, 0
        first, last = tokens[:LEAST_REUSE], len(tokens) - 1
        for place, held in enumerate(self._held):
            other = self._tokens[place]
            most = min(held, last)
            if most < LEAST_REUSE or most < best or other[:LEAST_REUSE] != first:
                continue
            count = common(tokens, other, most)
            if (count, -held) > (best, -rest):
                best, found, rest = count, place, held
        return (found, best) if found >= 0 else (-1, 0)


def common(one: Sequence[int], other: Sequence[int], most: int) -> int:
    """How many first elements two lists share, up to ``most``, which neither is shorter than."""
    same, step = 0, LEAST_REUSE
    while same < most:
        end = min(same + step, most)
        if one[same:end] == other[same:end]:
            same, step = end, step * 2
        else:
            most, step = end - 1, max(1, (end - same) // 2)
    return same
