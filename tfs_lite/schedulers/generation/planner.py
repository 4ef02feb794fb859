"""Decides which texts get which rows of the next step. It reads a snapshot and changes nothing.

In this order: each decoding text gets its row; prompts that have started get their next chunk; waiting texts are
admitted while there are rows and slots. No text is admitted before the first one that waits, else long texts would
starve. A text of higher priority overtakes prompts that have started, and preempts a running text of lower priority if
no slot is free.

All texts have one fixed order, by priority and arrival together (``rank``). So an old text of low priority gets its
turn, and two texts never preempt each other in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfs_lite.core.generation import Copy
from tfs_lite.schedulers.generation.cache_slots import CacheSlots, SlotAssignment
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.text import Phase, ScheduledTokens, Text

SHORT_ROWS = 64
"""Rows of prompts that end in a step, which any step may have: they delay decoding texts once, and not step after step,
as a long prompt does."""
LEVEL_SECONDS = 60.0
"""Seconds of waiting that one level of priority is worth, with the policy fifo. With the others priority comes
first."""

Rank = tuple[float, ...]
"""The order of texts: a lower rank is sooner, and no two texts have the same."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step; nothing is to be done if ``schedule`` is empty. The ``preempted`` texts wait again.

    Copies come before the rows and read nothing that the step writes, so all or some of them can be repeated.
    """

    schedule: tuple[ScheduledTokens, ...]
    copies: tuple[Copy, ...] = ()
    admitted: tuple[Text, ...] = ()
    preempted: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``waiting`` is in order of rank; ``slots`` is only read. ``prefill_rows``: rows of long prompts in a step with
    decoding texts; None means no such limit."""

    settings: EngineSettings
    running: Sequence[Text]
    waiting: Sequence[Text]
    slots: CacheSlots
    prefill_rows: int | None = None


@dataclass(frozen=True, slots=True)
class SlotDecision:
    """``preempted`` texts give up their slots first, then ``admitted`` texts get theirs, in order. Each admitted text
    is in the schedule."""

    schedule: Sequence[ScheduledTokens]
    preempted: Sequence[Text] = ()
    admitted: Sequence[tuple[Text, SlotAssignment]] = ()


def ranking(policy: str) -> Callable[[Text], Rank]:
    if policy == "longest_first":
        return lambda text: (text.wanted.priority, -text.limit, text.number)
    if policy == "shortest_first":
        return lambda text: (text.wanted.priority, text.limit, text.number)
    return lambda text: (text.arrived + LEVEL_SECONDS * text.wanted.priority, text.number)


def decide(now: Snapshot) -> SlotDecision:
    schedule: list[ScheduledTokens] = []
    prompts: list[Text] = []
    decoding = Phase.DECODE
    for text in now.running:
        if text.phase is decoding:
            schedule.append(ScheduledTokens(text, text.done, 1, True))
        else:
            prompts.append(text)
    if not prompts and not now.waiting:
        return SlotDecision(schedule)
    return _Draft(now, schedule, _prefill_rows(now, len(schedule), len(prompts))).complete(prompts)


def _prefill_rows(now: Snapshot, decoding: int, prompts: int) -> int:
    """Rows of long prompts in the step: more of them where more texts wait to begin than decode."""
    if not decoding or now.prefill_rows is None:
        return now.settings.rows
    beginning = prompts + min(len(now.waiting), len(now.slots.free))
    return now.prefill_rows * max(beginning, decoding) // decoding


class _Draft:
    """A decision in the making, after the decoding texts have got their rows."""

    def __init__(self, now: Snapshot, schedule: list[ScheduledTokens], prefill_rows: int) -> None:
        self._now = now
        self._rank = ranking(now.settings.policy)
        self._schedule = schedule
        self._rows_left = now.settings.rows - len(schedule)
        self._prefill_rows = prefill_rows
        self._short_rows = max(prefill_rows, SHORT_ROWS)
        self._slots: CacheSlots | None = None
        self._copied_from: set[int] = set()
        """Slots that the step copies from; it must not write to them."""
        self._preempted: list[Text] = []
        self._admitted: list[tuple[Text, SlotAssignment]] = []

    def complete(self, prompts: list[Text]) -> SlotDecision:
        if len(prompts) > 1:
            prompts.sort(key=self._rank)
        for text in prompts:
            self._admit(before=text)
            if text not in self._preempted:
                self._schedule_rows(text, text.done, 0)
        self._admit()
        return SlotDecision(self._schedule, self._preempted, self._admitted)

    def _schedule_rows(self, text: Text, start: int, least: int) -> None:
        """``least``: rows that the text gets beyond the limit for long prompts."""
        end = len(text.tokens)
        count = min(end - start, self._now.settings.chunk, self._rows_left)
        if count < end - start or count > self._short_rows:
            count = min(count, max(self._prefill_rows, least))
        if count > 0:
            draws = start + count == end and end - text.prompt_length < text.limit
            self._schedule.append(ScheduledTokens(text, start, count, draws))
            self._rows_left -= count
            self._prefill_rows = max(self._prefill_rows - count, 0)
            self._short_rows = max(self._short_rows - count, 0)

    def _admit(self, before: Text | None = None) -> None:
        """Admits as many texts as there is room for; with ``before``, only those that outrank that text."""
        waiting = self._now.waiting
        while len(self._admitted) < len(waiting):
            text = waiting[len(self._admitted)]
            if before is not None and not self._outranks(text, before):
                return
            assignment = self._assign_slot(text)
            if assignment is None:
                return
            self._trial().assign(assignment, text.tokens)
            if assignment.source is not None:
                self._copied_from.add(assignment.source)
            self._admitted.append((text, assignment))
            self._schedule_rows(text, assignment.count, 1)

    def _assign_slot(self, text: Text) -> SlotAssignment | None:
        """A slot for the text if there is also a row for it; another text may be preempted."""
        slots = self._slots or self._now.slots
        tokens = None if text.wanted.score_prompt else text.tokens
        if slots.free:
            return slots.find(tokens, self._copied_from) if self._rows_left else None
        victim = self._victim(text)
        if victim is None or not self._preempt(victim):
            return None
        return self._trial().find(tokens)

    def _victim(self, text: Text) -> Text | None:
        """The least urgent running text that this text may preempt."""
        lower = [other for other in self._now.running if other.wanted.priority > text.wanted.priority]
        lower = [other for other in lower if other not in self._preempted and self._outranks(text, other)]
        return max(lower, key=self._rank, default=None)

    def _preempt(self, victim: Text) -> bool:
        """False, with nothing done, if that yields no row, or if this step copies from its slot."""
        assert victim.slot is not None
        scheduled = next((scheduled for scheduled in self._schedule if scheduled.text is victim), None)
        if victim.slot in self._copied_from or self._rows_left + (scheduled.count if scheduled else 0) == 0:
            return False
        if scheduled:
            self._schedule.remove(scheduled)
            self._rows_left += scheduled.count
        self._preempted.append(victim)
        self._trial().release(victim.slot)
        return True

    def _trial(self) -> CacheSlots:
        if self._slots is None:
            self._slots = self._now.slots.copy()
        return self._slots

    def _outranks(self, text: Text, other: Text) -> bool:
        return text.wanted.priority < other.wanted.priority and self._rank(text) < self._rank(other)
