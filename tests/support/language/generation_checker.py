"""The reference of the scheduler's simulation: checks its plans, and models what the slots hold.

It keeps every slot token by token, carries out each plan in any of the ways that an engine may, and raises
AssertionError for what is wrong. Time is virtual.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.generation import Generation
from tfs_lite.core.status import Reason, StatusCode
from tfs_lite.schedulers.generation.planner import LEVEL_SECONDS, StepPlan
from tfs_lite.schedulers.generation.scheduler_state import SchedulerState
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.text import Phase, ScheduledTokens, Text

GARBAGE = -1


def scheduled_text(
    number: int,
    tokens: list[int],
    limit: int,
    arrived: float,
    *,
    priority: int = 0,
    deadline: float | None = None,
    score_prompt: bool = False,
) -> Text:
    """A text as the scheduler gets it. It has no detokenizer, and cannot be in a step of an engine."""
    wanted = Generation((), priority=priority, score_prompt=score_prompt)
    return Text(wanted, tokens, limit, 0, deadline, 0, ignore, number, arrived)


def behind(text: Text) -> int:
    """The number of tokens that have yet to go through the network."""
    return len(text.tokens) - text.done


class GenerationChecker:
    """A scheduler, and what a plain description of it expects. One thread; ``submit`` and ``step`` in any order,
    ``now`` may grow between them, ``finish`` at the end."""

    def __init__(self, wanted: EngineSettings) -> None:
        self.settings = wanted
        self.scheduler = SchedulerState(wanted)
        self.now = 0.0
        self.number = 0
        self.live: list[Text] = []
        self.contents = [[GARBAGE] * wanted.length for _ in range(wanted.slots)]
        self.took: set[tuple[Text, Text]] = set()
        self.counts = dict.fromkeys(("plans", "ended", "preempted", "copies", "reused", "late", "refused"), 0)

    # Requests.

    def submit(self, prompt: list[int], limit: int, priority: int, patience: float | None, reusable: bool) -> None:
        lengths = [text.prompt_length for text in self.order()] + [len(prompt)]
        over = lengths[self.settings.slots - len(self.scheduler.running) :]
        full = len(over) > self.settings.max_queue or sum(over) > self.settings.max_queued_tokens
        refusal = self.scheduler.refusal([len(prompt)])
        assert (refusal is not None) == full
        if refusal is not None:
            assert (refusal.code, refusal.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
            self.counts["refused"] += 1
            return
        deadline = None if patience is None else self.now + patience
        self.number += 1
        text = scheduled_text(
            self.number, prompt, limit, self.now, priority=priority, deadline=deadline, score_prompt=not reusable
        )
        self.live.append(text)
        self.scheduler.add(text)

    def drop(self, text: Text, valid: bool = True) -> None:
        self.scheduler.remove(text, valid=valid)
        self.scheduler.remove(text)
        assert text.phase is Phase.ENDED
        assert text.slot is None
        self.live.remove(text)
        self.counts["ended"] += 1

    def expire(self) -> None:
        late = dict(self.scheduler.late(self.now))
        assert dict(self.scheduler.late(self.now)) == late
        for text in list(self.live):
            past = text.deadline is not None and text.deadline <= self.now
            waited = text.started is None and text.arrived + self.settings.queue_timeout <= self.now
            assert (text in late) == (past or waited)
            if past or waited:
                assert late[text].code is (StatusCode.DEADLINE_EXCEEDED if past else StatusCode.UNAVAILABLE)
                self.counts["late"] += 1
                self.drop(text)

    # One step.

    def step(self, fails: int | None = None, mode: str = "together") -> bool:
        """Makes one step; False if there was nothing to do. ``fails``: which of its texts fails. ``mode``: all texts go
        together; each is repeated alone after that; or nothing is done, and all texts fail."""
        self.expire()
        running, waiting = list(self.scheduler.running), self.order()
        were = {text: (text.phase, text.done, text.slot) for text in running}
        plan = self.scheduler.plan(self.now)
        self.counts["plans"] += 1
        self.check_shares(plan, were)
        self.check_admissions(plan, running, waiting, were)
        if not plan.schedule:
            assert not self.live
            return False
        if mode == "nothing":
            for copy in plan.copies:
                self.contents[copy.target][:] = [GARBAGE] * self.settings.length
            for scheduled in plan.schedule:
                self.drop(scheduled.text)
        else:
            self.carry_out(plan, plan.schedule)
            if mode == "alone":
                for scheduled in plan.schedule:
                    self.carry_out(plan, [scheduled])
            if fails is not None:
                self.break_one(plan.schedule[fails % len(plan.schedule)])
        self.scheduler.complete(plan)
        self.draw(plan)
        self.check_state()
        return True

    def carry_out(self, plan: StepPlan, schedule: Iterable[ScheduledTokens]) -> None:
        for copy in plan.copies:
            assert copy.count >= 16
            assert copy.source != copy.target
            self.contents[copy.target][: copy.count] = self.contents[copy.source][: copy.count]
        for scheduled in schedule:
            assert scheduled.text.slot is not None
            slot, end = self.contents[scheduled.text.slot], scheduled.start + scheduled.count
            assert slot[: scheduled.start] == scheduled.text.tokens[: scheduled.start], "the slot holds something else"
            slot[scheduled.start : end] = scheduled.text.tokens[scheduled.start : end]

    def break_one(self, scheduled: ScheduledTokens) -> None:
        """Fails a text that has written something."""
        assert scheduled.text.slot is not None
        self.contents[scheduled.text.slot][scheduled.start : scheduled.start + scheduled.count] = [
            GARBAGE
        ] * scheduled.count
        self.drop(scheduled.text)

    def draw(self, plan: StepPlan) -> None:
        for scheduled in plan.schedule:
            text = scheduled.text
            if text.phase is Phase.ENDED:
                continue
            assert text.done == scheduled.start + scheduled.count
            if scheduled.draws:
                self.scheduler.append(text, sum(text.tokens[-5:]) % 11)
            if behind(text) == 0 or (scheduled.draws and text.output == text.limit):
                assert text.output == text.limit
                self.drop(text)
            else:
                assert (text.phase is Phase.DECODE) == (text.output > 0 and behind(text) == 1 and scheduled.draws)

    # Invariants.

    def rank(self, text: Text) -> tuple[float, ...]:
        """Lower is sooner."""
        if self.settings.policy == "fifo":
            return (text.arrived + LEVEL_SECONDS * text.wanted.priority, text.number)
        return (text.wanted.priority, text.limit * (-1 if self.settings.policy == "longest_first" else 1), text.number)

    def order(self) -> list[Text]:
        waiting = sorted((text for text in self.live if text.slot is None), key=self.rank)
        assert list(self.scheduler.waiting) == waiting
        return waiting

    def outranks(self, text: Text, other: Text) -> bool:
        return text.wanted.priority < other.wanted.priority and self.rank(text) < self.rank(other)

    def check_shares(self, plan: StepPlan, were: dict[Text, Any]) -> None:
        assert sum(scheduled.count for scheduled in plan.schedule) <= self.settings.rows
        assert len({scheduled.text for scheduled in plan.schedule}) == len(plan.schedule), "a text has two shares"
        running = self.scheduler.running
        slots = [text.slot for text in running]
        assert len(set(slots)) == len(slots), "a slot is held twice"
        assert set(slots) <= set(range(self.settings.slots))
        schedule = {scheduled.text: scheduled for scheduled in plan.schedule}
        assert set(schedule) <= set(running)
        for text, (phase, done, slot) in were.items():
            if text in plan.preempted:
                assert (text.done, text.slot, text.phase) == (0, None, Phase.WAITING)
            else:
                assert text.slot == slot, "a running text moves"
                assert text not in schedule or schedule[text].start == done
            assert phase is not Phase.DECODE or text in plan.preempted or schedule[text].count == 1, "starved"
        for text, scheduled in schedule.items():
            assert 1 <= scheduled.count <= min(self.settings.chunk, behind(text))
            complete = scheduled.start + scheduled.count == len(text.tokens)
            assert scheduled.draws == (complete and text.output < text.limit)

    def check_admissions(self, plan: StepPlan, running: list[Text], waiting: list[Text], were: dict[Text, Any]) -> None:
        admitted, preempted = list(plan.admitted), list(plan.preempted)
        assert admitted == waiting[: len(admitted)], "a text was passed over"
        free = self.settings.slots - len(running)
        assert len(preempted) == max(0, len(admitted) - free), "a slot was free"
        for number, victim in enumerate(preempted):
            winner = admitted[free + number]
            lower = [text for text in running if self.outranks(winner, text) and text not in preempted[:number]]
            assert victim is max(lower, key=self.rank, default=None), "not the least urgent"
            assert (victim, winner) not in self.took, "they take each other's slot"
            self.took.add((winner, victim))
        schedule = {scheduled.text for scheduled in plan.schedule}
        assert set(admitted) <= schedule, "admitted for nothing"
        for text in admitted:
            self.check_reuse(plan, text)
        self.check_head(plan, running, waiting, schedule)
        self.counts["preempted"] += len(preempted)
        self.counts["copies"] += len(plan.copies)

    def check_reuse(self, plan: StepPlan, text: Text) -> None:
        assert text.done <= len(text.tokens) - 1
        assert text.done == 0 or text.done >= 16
        assert text.done == 0 or (self.settings.prefix_reuse and not text.wanted.score_prompt)
        if text.preemptions == 0:
            assert text.cached == text.done
            assert text.cached_asked == (
                text.prompt_length if self.settings.prefix_reuse and not text.wanted.score_prompt else 0
            )
        self.counts["reused"] += text.done > 0

    def check_head(self, plan: StepPlan, running: list[Text], waiting: list[Text], schedule: set[Text]) -> None:
        """The first waiting text waits for a reason."""
        rest = waiting[len(plan.admitted) :]
        read = {copy.source for copy in plan.copies}
        full = sum(scheduled.count for scheduled in plan.schedule) == self.settings.rows
        free = set(range(self.settings.slots)) - {text.slot for text in self.scheduler.running}
        if not rest or full:
            return
        assert free <= read, "a slot is free"
        lower = [text for text in running if text not in plan.preempted and self.outranks(rest[0], text)]
        assert free or not lower or max(lower, key=self.rank).slot in read, "no text is preempted"

    def check_state(self) -> None:
        state = self.scheduler.state()
        running = [text for text in self.live if text.slot is not None]
        assert (state.running, state.waiting) == (len(running), len(self.live) - len(running))
        assert state.written == sum(text.done for text in running)
        assert state.written <= state.reserved <= state.capacity == self.settings.slots * self.settings.length

    def finish(self) -> None:
        """All texts end, in no more steps than there are rows, and every slot is free then."""
        rows = sum(len(text.tokens) + text.limit for text in self.live)
        for _ in range(rows * (1 + self.counts["plans"]) + 1):
            if not self.step():
                break
        assert not self.live
        for _ in range(self.settings.slots):
            self.number += 1
            self.live.append(scheduled_text(self.number, [1], 1, self.now))
            self.scheduler.add(self.live[-1])
        assert len(self.scheduler.plan(self.now).admitted) == self.settings.slots
