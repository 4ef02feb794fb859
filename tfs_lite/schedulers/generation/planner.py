"""Who gets which rows of the next step. Pure: it looks at a snapshot and changes nothing.

In this order: each decoding text gets its row; prompts that have started get their next chunk; texts that wait are let
in, as long as there are rows and places. Nobody looks behind the first one that waits: else long texts would never
get in. A text of higher priority overtakes prompts that have started, and takes the place of a running text of lower
priority if there is no other.

Urgency is one fixed order of all texts, by priority and arrival together (``rank``). That is what makes an old text of
low priority get its turn, and what keeps two texts from taking each other's place in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfs_lite.core.generation import Copy
from tfs_lite.schedulers.generation.cache_slots import CacheSlots, SlotAssignment
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.text import GenerationState, Phase

SHORT_ROWS = 64
"""So many rows of prompts that are read to their end are in any step: they slow texts that decode down once, and not
for step after step, as a long prompt does."""
LEVEL_SECONDS = 60.0
"""One level of priority is worth so much waiting, with the policy fifo. With the others priority comes before all."""

Rank = tuple[float, ...]
"""Lower is sooner; no two texts have the same."""


@dataclass(frozen=True, slots=True)
class ScheduledTokens:
    """Rows of one text in a step: its tokens from ``start`` on. ``draws``: the last row completes its tokens, and the
    next one is wanted."""

    text: GenerationState
    start: int
    count: int
    draws: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. No ``shares``: there is nothing to do.

    Copies come before the rows. They read nothing that the step writes, so that copies, or all of the step, may be
    done again, with any part of the shares, and are still right. ``preempted`` wait again.
    """

    shares: tuple[ScheduledTokens, ...]
    copies: tuple[Copy, ...] = ()
    admitted: tuple[GenerationState, ...] = ()
    preempted: tuple[GenerationState, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``waiting`` is in order of rank; ``places`` is only looked at. ``beside``: rows of prompts in a step with
    decoding texts, but for short ones; None: as many as in any."""

    settings: EngineSettings
    running: Sequence[GenerationState]
    waiting: Sequence[GenerationState]
    places: CacheSlots
    beside: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """``preempted`` give up their places first, then those ``admitted`` take theirs, in order. Each of them has a
    share."""

    shares: Sequence[ScheduledTokens]
    preempted: Sequence[GenerationState] = ()
    admitted: Sequence[tuple[GenerationState, SlotAssignment]] = ()


def ranking(policy: str) -> Callable[[GenerationState], Rank]:
    if policy == "longest_first":
        return lambda text: (text.priority, -text.limit, text.number)
    if policy == "shortest_first":
        return lambda text: (text.priority, text.limit, text.number)
    return lambda text: (text.arrived + LEVEL_SECONDS * text.priority, text.number)


def decide(now: Snapshot) -> Decision:
    shares: list[ScheduledTokens] = []
    prompts: list[GenerationState] = []
    decoding = Phase.DECODE
    for text in now.running:
        if text.phase is decoding:
            shares.append(ScheduledTokens(text, text.done, 1, True))
        else:
            prompts.append(text)
    if not prompts and not now.waiting:
        return Decision(shares)
    return _Draft(now, shares, _beside(now, len(shares), len(prompts))).complete(prompts)


def _beside(now: Snapshot, decoding: int, prompts: int) -> int:
    """Rows of long prompts in the step. Where more texts want to begin than go on, it is they who would wait."""
    if not decoding or now.beside is None:
        return now.settings.rows
    beginning = prompts + min(len(now.waiting), len(now.places.free))
    return now.beside * max(beginning, decoding) // decoding


class _Draft:
    """A decision in the making, once the decoding texts have their rows."""

    def __init__(self, now: Snapshot, shares: list[ScheduledTokens], beside: int) -> None:
        self._now = now
        self._rank = ranking(now.settings.policy)
        self._shares = shares
        self._left = now.settings.rows - len(shares)
        self._beside = beside
        self._short = max(beside, SHORT_ROWS)
        self._places: CacheSlots | None = None
        self._read: set[int] = set()
        """Places that the step copies from; they are left as they are in it."""
        self._preempted: list[GenerationState] = []
        self._admitted: list[tuple[GenerationState, SlotAssignment]] = []

    def complete(self, prompts: list[GenerationState]) -> Decision:
        if len(prompts) > 1:
            prompts.sort(key=self._rank)
        for text in prompts:
            self._admit(before=text)
            if text not in self._preempted:
                self._share(text, text.done, 0)
        self._admit()
        return Decision(self._shares, self._preempted, self._admitted)

    def _share(self, text: GenerationState, start: int, least: int) -> None:
        """``least``: rows that it gets however many others have."""
        end = len(text.tokens)
        count = min(end - start, self._now.settings.chunk, self._left)
        if count < end - start or count > self._short:
            count = min(count, max(self._beside, least))
        if count > 0:
            draws = start + count == end and end - text.prompt_length < text.limit
            self._shares.append(ScheduledTokens(text, start, count, draws))
            self._left -= count
            self._beside = max(self._beside - count, 0)
            self._short = max(self._short - count, 0)

    def _admit(self, before: GenerationState | None = None) -> None:
        """As many as there is room for; only such as may overtake that one."""
        waiting = self._now.waiting
        while len(self._admitted) < len(waiting):
            text = waiting[len(self._admitted)]
            if before is not None and not self._outranks(text, before):
                return
            taking = self._room(text)
            if taking is None:
                return
            self._trial().take(taking, text.tokens)
            if taking.source is not None:
                self._read.add(taking.source)
            self._admitted.append((text, taking))
            self._share(text, taking.count, 1)

    def _room(self, text: GenerationState) -> SlotAssignment | None:
        """A place, which may be that of another text from now on, and a row."""
        places = self._places or self._now.places
        tokens = text.tokens if text.reusable else None
        if places.free:
            return places.find(tokens, self._read) if self._left else None
        victim = self._victim(text)
        if victim is None or not self._preempt(victim):
            return None
        return self._trial().find(tokens)

    def _victim(self, text: GenerationState) -> GenerationState | None:
        """The least urgent of those that have to give way."""
        lower = [other for other in self._now.running if other.priority > text.priority]
        lower = [other for other in lower if other not in self._preempted and self._outranks(text, other)]
        return max(lower, key=self._rank, default=None)

    def _preempt(self, victim: GenerationState) -> bool:
        """Not if that yields no row, and not while somebody copies from it: then it is for the next step."""
        assert victim.place is not None
        share = next((share for share in self._shares if share.text is victim), None)
        if victim.place in self._read or self._left + (share.count if share else 0) == 0:
            return False
        if share:
            self._shares.remove(share)
            self._left += share.count
        self._preempted.append(victim)
        self._trial().release(victim.place)
        return True

    def _trial(self) -> CacheSlots:
        if self._places is None:
            self._places = self._now.places.copy()
        return self._places

    def _outranks(self, text: GenerationState, other: GenerationState) -> bool:
        return text.priority < other.priority and self._rank(text) < self._rank(other)
