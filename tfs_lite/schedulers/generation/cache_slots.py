"""What each slot of the key-value cache holds, and which slot a new text gets.

A slot keeps the tokens of its last text until another text is assigned to it. A text with the same first tokens as some
slot does not compute them again: they are copied, or the text takes over that slot if it is free and little is lost.
Only computed rows are reused. The rows of a step count when the step is over, so no copy reads what another copy or a
row of the same step writes. The slot that was released longest ago is overwritten first.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass

LEAST_REUSE = 16
"""The tokens of the shortest common prefix that is reused."""


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """The slot of a text. Its first ``count`` tokens are in it already, or, with ``source``, are copied from there."""

    slot: int
    count: int = 0
    source: int | None = None


class CacheSlots:
    """The slots of one cache: ``find`` -> ``assign`` -> ``mark_computed`` after every step -> ``release``. One
    thread."""

    __slots__ = ("_clock", "_free", "_held", "_prefix_reuse", "_released_at", "_tokens")

    def __init__(self, count: int, prefix_reuse: bool = True) -> None:
        """Without ``prefix_reuse`` the lowest free slot is assigned."""
        self._prefix_reuse = prefix_reuse
        self._free = list(range(count))
        self._tokens: list[Sequence[int]] = [()] * count
        self._held = [0] * count
        self._released_at = [0] * count
        self._clock = 0

    def copy(self) -> CacheSlots:
        """A copy to try assignments on."""
        other = CacheSlots(0, self._prefix_reuse)
        other._free, other._tokens, other._held = self._free[:], self._tokens[:], self._held[:]
        other._released_at, other._clock = self._released_at[:], self._clock
        return other

    @property
    def free(self) -> Sequence[int]:
        """The free slots, in ascending order."""
        return self._free

    def holds(self, slot: int) -> Sequence[int]:
        """The tokens whose keys and values have been computed, from position 0 on."""
        return self._tokens[slot][: self._held[slot]]

    def find(self, tokens: Sequence[int] | None, kept: Collection[int] = ()) -> SlotAssignment | None:
        """The slot for a text with these tokens, or None if no slot is free. ``tokens`` None means that the text reuses
        nothing. ``kept`` slots may be copied from and not assigned. The last token is always computed, because the
        token after it is wanted."""
        usable = [slot for slot in self._free if slot not in kept] if kept else self._free
        if not usable:
            return None
        if not self._prefix_reuse:
            return SlotAssignment(usable[0])
        evicted = min(usable, key=self._eviction_order)
        hit, count = self._longest(tokens) if tokens and len(tokens) > LEAST_REUSE else (-1, 0)
        if not count:
            return SlotAssignment(evicted)
        if hit == evicted or (hit in usable and self._held[hit] - count < LEAST_REUSE):
            return SlotAssignment(hit, count)
        return SlotAssignment(evicted, count, hit)

    def assign(self, assignment: SlotAssignment, tokens: Sequence[int]) -> None:
        """``tokens`` are those of the text; the list may grow but not change. Copied tokens count after
        ``mark_computed``."""
        self._free.remove(assignment.slot)
        self._tokens[assignment.slot] = tokens
        self._held[assignment.slot] = assignment.count if assignment.source is None else 0

    def mark_computed(self, slot: int, held: int) -> None:
        """Notes after a step that the slot holds the first ``held`` tokens of its text."""
        self._held[slot] = held

    def release(self, slot: int, valid: bool = True) -> None:
        """Frees the slot. ``valid`` False: the contents of the slot are never reused."""
        insort(self._free, slot)
        self._clock += 1
        self._released_at[slot] = self._clock
        if not valid or not self._prefix_reuse:
            self._tokens[slot], self._held[slot] = (), 0

    def _eviction_order(self, slot: int) -> tuple[int, int]:
        return (self._released_at[slot] if self._held[slot] >= LEAST_REUSE else 0, slot)

    def _longest(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The slot with the longest common prefix and its length; of equals the slot that holds the fewest tokens.
        (-1, 0) if no prefix has ``LEAST_REUSE`` tokens."""
        best, found, rest = LEAST_REUSE - 1, -1, 0
        first, last = tokens[:LEAST_REUSE], len(tokens) - 1
        for slot, held in enumerate(self._held):
            other = self._tokens[slot]
            most = min(held, last)
            if most < LEAST_REUSE or most < best or other[:LEAST_REUSE] != first:
                continue
            count = common_prefix(tokens, other, most)
            if (count, -held) > (best, -rest):
                best, found, rest = count, slot, held
        return (found, best) if found >= 0 else (-1, 0)


def common_prefix(one: Sequence[int], other: Sequence[int], most: int) -> int:
    """The length of the common prefix of two lists, up to ``most``; neither list is shorter than that."""
    same, step = 0, LEAST_REUSE
    while same < most:
        end = min(same + step, most)
        if one[same:end] == other[same:end]:
            same, step = end, step * 2
        else:
            most, step = end - 1, max(1, (end - same) // 2)
    return same
