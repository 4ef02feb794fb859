"""The waiting and the running texts of one engine, and the plan of its next step.

    add -> plan -> (the step) -> complete -> append, for each text that draws -> remove, at its end

All of it is used by one thread, the engine's.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from tfs_lite.core.generation import Copy, EngineState
from tfs_lite.core.status import Reason, Status, StatusCode, queue_full
from tfs_lite.schedulers.generation.cache_slots import CacheSlots, SlotAssignment
from tfs_lite.schedulers.generation.planner import Rank, Snapshot, StepPlan, decide, ranking
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.text import Phase, Text, change_phase

__all__ = ["SchedulerState", "StepPlan"]


class _WaitingQueue:
    """The waiting texts, in order of rank."""

    __slots__ = ("_rank", "_ranks", "texts", "tokens")

    def __init__(self, policy: str) -> None:
        self._rank = ranking(policy)
        self._ranks: list[Rank] = []
        self.texts: list[Text] = []
        self.tokens = 0
        """The tokens of their prompts."""

    def add(self, text: Text) -> None:
        rank = self._rank(text)
        index = bisect_left(self._ranks, rank)
        self._ranks.insert(index, rank)
        self.texts.insert(index, text)
        self.tokens += text.prompt_length

    def remove(self, text: Text) -> None:
        index = bisect_left(self._ranks, self._rank(text))
        if index < len(self.texts) and self.texts[index] is text:
            del self._ranks[index], self.texts[index]
            self.tokens -= text.prompt_length


class _Timeouts:
    """The moments at which texts become late: deadlines and queue timeouts. Entries outlive their text for a while."""

    __slots__ = ("_entries", "_queue_timeout")

    def __init__(self, queue_timeout: float) -> None:
        self._queue_timeout = queue_timeout
        self._entries: list[tuple[float, int, Text]] = []

    def add(self, text: Text, texts: int) -> None:
        """``texts``: how many texts there are, which bounds the entries."""
        if len(self._entries) > 4 * texts + 64:
            self._entries = [entry for entry in self._entries if self._status(entry[2], entry[0]) is not None]
            heapq.heapify(self._entries)
        heapq.heappush(self._entries, (text.arrived + self._queue_timeout, text.number, text))
        if text.deadline is not None:
            heapq.heappush(self._entries, (text.deadline, text.number, text))

    def due(self, now: float) -> list[tuple[Text, Status]]:
        """The texts that are late now. They are returned again next time, unless they have ended."""
        late: dict[Text, Status] = {}
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

    def _status(self, text: Text, now: float) -> Status | None:
        if text.phase is Phase.ENDED:
            return None
        if text.deadline is not None and text.deadline <= now:
            return _past_deadline(text)
        if text.started is None and text.arrived + self._queue_timeout <= now:
            return _waited(self._queue_timeout)
        return None


def _past_deadline(text: Text) -> Status:
    if text.started is None:
        message = "the deadline passed while the text waited for a slot"
    else:
        message = f"the deadline passed after {text.output} of at most {text.limit} tokens"
    return Status(StatusCode.DEADLINE_EXCEEDED, message)


def _waited(seconds: float) -> Status:
    message = f"the text waited {seconds:g} s for a slot, as long as it may (queue_timeout)"
    return Status(StatusCode.UNAVAILABLE, message, Reason.QUEUE_TIMEOUT)


class SchedulerState:
    """The texts that wait and run, and what they do next. No method blocks or calls back."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._slots = CacheSlots(settings.slots, settings.prefix_reuse)
        self._waiting = _WaitingQueue(settings.policy)
        self._running: list[Text] = []
        self._timeouts = _Timeouts(settings.queue_timeout)

    @property
    def running(self) -> Sequence[Text]:
        """The texts with a slot, in the order in which they got it."""
        return self._running

    @property
    def waiting(self) -> Sequence[Text]:
        """The waiting texts, the next one first."""
        return self._waiting.texts

    def refusal(self, lengths: Sequence[int]) -> Status | None:
        """UNAVAILABLE with QUEUE_FULL if more texts with prompts of these lengths would be more than may wait. Texts
        for which a slot is free do not count as waiting."""
        free = len(self._slots.free)
        waiting = max(0, len(self._waiting.texts) + len(lengths) - free)
        if waiting > self._settings.max_queue:
            return _full(f"{waiting} texts would wait, at most {self._settings.max_queue} may (max_queue)")
        tokens = self._waiting.tokens - sum(text.prompt_length for text in islice(self._waiting.texts, free))
        tokens += sum(lengths[max(0, free - len(self._waiting.texts)) :])
        if tokens > self._settings.max_queued_tokens:
            most = self._settings.max_queued_tokens
            return _full(f"texts with {tokens} tokens would wait, at most {most} may (max_queued_tokens)")
        return None

    def add(self, text: Text) -> None:
        """Adds a waiting text, which must fit into a slot."""
        self._waiting.add(text)
        self._timeouts.add(text, len(self._waiting.texts) + len(self._running))

    def remove(self, text: Text, valid: bool = True) -> None:
        """Ends the text and frees its slot; nothing happens if it has ended. ``valid`` False: its rows may be wrong,
        and are not reused."""
        if text.phase is Phase.ENDED:
            return
        self._release(text, valid)
        change_phase(text, Phase.ENDED)

    def late(self, now: float) -> list[tuple[Text, Status]]:
        """The texts that have to end: with DEADLINE_EXCEEDED, or with UNAVAILABLE and QUEUE_TIMEOUT if they have waited
        too long for their start. They are not removed."""
        return self._timeouts.due(now)

    def plan(self, now: float, prefill_rows: int | None = None) -> StepPlan:
        """Plans the next step, with at most ``prefill_rows`` rows of long prompts if texts decode in it.

        Admissions and preemptions take effect at once; computed rows count after ``complete``. An admitted text that
        takes no part in the step after all has to be removed, because its copies are in no later plan."""
        decision = decide(Snapshot(self._settings, self._running, self._waiting.texts, self._slots, prefill_rows))
        if not decision.admitted:
            return StepPlan(tuple(decision.schedule))
        for text in decision.preempted:
            self._preempt(text)
        copies = [copy for text, assignment in decision.admitted if (copy := self._admit(text, assignment, now))]
        admitted = tuple(text for text, _ in decision.admitted)
        for text in decision.preempted:
            self._waiting.add(text)
        return StepPlan(tuple(decision.schedule), tuple(copies), admitted, tuple(decision.preempted))

    def complete(self, plan: StepPlan) -> None:
        """Notes that the step has run, for those of its texts that have not been removed since."""
        prefill, ended = Phase.PREFILL, Phase.ENDED
        for scheduled in plan.schedule:
            text = scheduled.text
            if text.phase is ended:
                continue
            assert text.slot is not None
            text.done = scheduled.start + scheduled.count
            self._slots.mark_computed(text.slot, text.done)
            if text.phase is prefill and scheduled.draws and text.output + 1 < text.limit:
                change_phase(text, Phase.DECODE)

    def append(self, text: Text, token: int) -> None:
        """Adds the token that was drawn. RuntimeError if none was wanted."""
        if text.slot is None or text.done != len(text.tokens) or text.output >= text.limit:
            raise RuntimeError(f"text {text.number} wants no token")
        text.tokens.append(token)

    def state(self) -> EngineState:
        return EngineState(
            running=len(self._running),
            waiting=len(self._waiting.texts),
            reserved=sum(text.prompt_length + text.limit for text in self._running),
            written=sum(text.done for text in self._running),
            capacity=self._settings.slots * self._settings.length,
        )

    def _admit(self, text: Text, assignment: SlotAssignment, now: float) -> Copy | None:
        self._waiting.remove(text)
        self._slots.assign(assignment, text.tokens)
        self._running.append(text)
        text.slot, text.done = assignment.slot, assignment.count
        if text.started is None:
            text.started = now
            text.cached = assignment.count
            text.cached_asked = 0 if text.wanted.score_prompt or not self._settings.prefix_reuse else text.prompt_length
        change_phase(text, Phase.PREFILL)
        return None if assignment.source is None else Copy(assignment.source, assignment.slot, assignment.count)

    def _preempt(self, text: Text) -> None:
        self._release(text, True)
        text.done = 0
        text.preemptions += 1
        change_phase(text, Phase.WAITING)

    def _release(self, text: Text, valid: bool) -> None:
        if text.slot is None:
            self._waiting.remove(text)
            return
        self._running.remove(text)
        self._slots.release(text.slot, valid)
        text.slot = None


def _full(what: str) -> Status:
    return queue_full(f"the queue is full: {what}")
