"""The texts of one engine: those that wait and those that run, and what the next step does for them.

    add -> plan -> (the step) -> ran -> append for each share that draws -> remove at its end

One thread: the engine's.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from tfs_lite.core.generation import Copy, EngineState
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.schedulers.generation.cache_slots import CacheSlots, SlotAssignment
from tfs_lite.schedulers.generation.planner import Plan, Rank, Snapshot, decide, ranking
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.text import GenerationState, Phase, move

__all__ = ["Plan", "SchedulerState"]


class _Line:
    """Those that wait, in order of rank."""

    __slots__ = ("_rank", "_ranks", "texts", "tokens")

    def __init__(self, policy: str) -> None:
        self._rank = ranking(policy)
        self._ranks: list[Rank] = []
        self.texts: list[GenerationState] = []
        self.tokens = 0
        """Of their prompts."""

    def add(self, text: GenerationState) -> None:
        rank = self._rank(text)
        index = bisect_left(self._ranks, rank)
        self._ranks.insert(index, rank)
        self.texts.insert(index, text)
        self.tokens += text.prompt_length

    def remove(self, text: GenerationState) -> None:
        index = bisect_left(self._ranks, self._rank(text))
        if index < len(self.texts) and self.texts[index] is text:
            del self._ranks[index], self.texts[index]
            self.tokens -= text.prompt_length


class _Alarms:
    """When texts become late: deadlines, and ends of their patience. Entries outlive their text for a while."""

    __slots__ = ("_entries", "_patience")

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._entries: list[tuple[float, int, GenerationState]] = []

    def set(self, text: GenerationState, texts: int) -> None:
        """``texts``: how many there are; entries are not many more."""
        if len(self._entries) > 4 * texts + 64:
            self._entries = [entry for entry in self._entries if self._status(entry[2], entry[0]) is not None]
            heapq.heapify(self._entries)
        heapq.heappush(self._entries, (text.arrived + self._patience, text.number, text))
        if text.deadline is not None:
            heapq.heappush(self._entries, (text.deadline, text.number, text))

    def ring(self, now: float) -> list[tuple[GenerationState, Status]]:
        """Those that are late now; they are late next time too, until they have ended."""
        late: dict[GenerationState, Status] = {}
        again = []
        while self._entries and self._entries[0][0] <= now:
            entry = heapq.heappop(self._entries)
            status = self._status(entry[2], now)
            if status is not None:
                late.setdefault(entry[2], status)
                again.append(entry)
        for entry in again:
            heapq.heappush(self._entries, entry)
        return list(late.items())

    def _status(self, text: GenerationState, now: float) -> Status | None:
        if text.phase is Phase.ENDED:
            return None
        if text.deadline is not None and text.deadline <= now:
            return _past_deadline(text)
        if text.started is None and text.arrived + self._patience <= now:
            return _waited(self._patience)
        return None


def _past_deadline(text: GenerationState) -> Status:
    if text.started is None:
        message = "the deadline passed while the text waited for a place"
    else:
        message = f"the deadline passed after {text.output} of at most {text.limit} tokens"
    return Status(StatusCode.DEADLINE_EXCEEDED, message)


def _waited(seconds: float) -> Status:
    message = f"the text waited {seconds:g} s for a place, as long as it may (queue_timeout)"
    return Status(StatusCode.UNAVAILABLE, message, Reason.QUEUE_TIMEOUT)


class SchedulerState:
    """See the module. Nothing here waits, blocks or calls out."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._places = CacheSlots(settings.places, settings.prefix_reuse)
        self._line = _Line(settings.policy)
        self._running: list[GenerationState] = []
        self._alarms = _Alarms(settings.queue_timeout)

    @property
    def running(self) -> Sequence[GenerationState]:
        """With a place, in the order in which they got it."""
        return self._running

    @property
    def waiting(self) -> Sequence[GenerationState]:
        """The next one first."""
        return self._line.texts

    def refusal(self, lengths: Sequence[int]) -> Status | None:
        """UNAVAILABLE with QUEUE_FULL if so many more texts, with prompts of these lengths, are more than may wait.
        Those for which there are places are not counted."""
        free = len(self._places.free)
        waiting = max(0, len(self._line.texts) + len(lengths) - free)
        if waiting > self._settings.max_queue:
            return _full(f"{waiting} texts would wait, at most {self._settings.max_queue} may (max_queue)")
        tokens = self._line.tokens - sum(text.prompt_length for text in islice(self._line.texts, free))
        tokens += sum(lengths[max(0, free - len(self._line.texts)) :])
        if tokens > self._settings.max_queued_tokens:
            most = self._settings.max_queued_tokens
            return _full(f"texts with {tokens} tokens would wait, at most {most} may (max_queued_tokens)")
        return None

    def add(self, text: GenerationState) -> None:
        """It waits. It was checked that it fits into a place."""
        self._line.add(text)
        self._alarms.set(text, len(self._line.texts) + len(self._running))

    def remove(self, text: GenerationState, sound: bool = True) -> None:
        """It has ended, however; its place is free from now on. Again: nothing happens. ``sound`` False: its rows may
        be wrong, and nobody is to reuse them."""
        if text.phase is Phase.ENDED:
            return
        self._vacate(text, sound)
        move(text, Phase.ENDED)

    def late(self, now: float) -> list[tuple[GenerationState, Status]]:
        """Those that have to end: DEADLINE_EXCEEDED, or UNAVAILABLE with QUEUE_TIMEOUT for one that has waited too
        long for its start. They are not removed."""
        return self._alarms.ring(now)

    def plan(self, now: float, beside: int | None = None) -> Plan:
        """The next step, with at most ``beside`` rows of prompts if texts decode in it.

        Those that it admits or preempts are so from now on, and its copies are told only once; what it computes counts
        when ``ran`` is called. A text that takes no part in the step after all has to be removed, if the plan admits
        it."""
        decision = decide(Snapshot(self._settings, self._running, self._line.texts, self._places, beside))
        if not decision.admitted:
            return Plan(tuple(decision.shares))
        for text in decision.preempted:
            self._preempt(text)
        copies = [copy for text, taking in decision.admitted if (copy := self._admit(text, taking, now))]
        admitted = tuple(text for text, _ in decision.admitted)
        for text in decision.preempted:
            self._line.add(text)
        return Plan(tuple(decision.shares), tuple(copies), admitted, tuple(decision.preempted))

    def ran(self, plan: Plan) -> None:
        """The step was carried out, for those of its texts that have not been removed since."""
        prefill, ended = Phase.PREFILL, Phase.ENDED
        for share in plan.shares:
            text = share.text
            if text.phase is ended:
                continue
            assert text.place is not None
            text.done = share.start + share.count
            self._places.grew(text.place, text.done)
            if text.phase is prefill and share.draws and text.output + 1 < text.limit:
                move(text, Phase.DECODE)

    def append(self, text: GenerationState, token: int) -> None:
        """The token that was drawn for it. RuntimeError if none was wanted."""
        if text.place is None or text.done != len(text.tokens) or text.output >= text.limit:
            raise RuntimeError(f"text {text.number} wants no token")
        text.tokens.append(token)

    def state(self) -> EngineState:
        return EngineState(
            running=len(self._running),
            waiting=len(self._line.texts),
            reserved=sum(text.prompt_length + text.limit for text in self._running),
            written=sum(text.done for text in self._running),
            capacity=self._settings.places * self._settings.length,
        )

    def _admit(self, text: GenerationState, taking: SlotAssignment, now: float) -> Copy | None:
        self._line.remove(text)
        self._places.take(taking, text.tokens)
        self._running.append(text)
        text.place, text.done = taking.place, taking.count
        if text.started is None:
            text.started = now
            text.cached = taking.count
            text.cached_asked = text.prompt_length if self._settings.prefix_reuse and text.reusable else 0
        move(text, Phase.PREFILL)
        return None if taking.source is None else Copy(taking.source, taking.place, taking.count)

    def _preempt(self, text: GenerationState) -> None:
        self._vacate(text, True)
        text.done = 0
        text.preemptions += 1
        move(text, Phase.WAITING)

    def _vacate(self, text: GenerationState, sound: bool) -> None:
        if text.place is None:
            self._line.remove(text)
            return
        self._running.remove(text)
        self._places.release(text.place, sound)
        text.place = None


def _full(what: str) -> Status:
    return Status(StatusCode.UNAVAILABLE, f"the queue is full: {what}", Reason.QUEUE_FULL)
