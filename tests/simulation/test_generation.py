"""Whatever the order of events: a plan gives every text its rows, and no slot ever holds what it should not.

Time is virtual. A run is its seed; one that fails prints it:

    python -m pytest tests/simulation/test_generation.py --hypothesis-seed=N
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.language.generation_checker import GenerationChecker
from tests.support.profiles import CountedMachine, SeededRuns
from tfs_lite.schedulers.generation import planner
from tfs_lite.schedulers.generation.cache_slots import CacheSlots, SlotAssignment
from tfs_lite.schedulers.generation.planner import LEVEL_SECONDS
from tfs_lite.schedulers.generation.scheduler_state import SchedulerState
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.text import Phase as TextPhase
from tfs_lite.schedulers.generation.text import ScheduledTokens, Text

STEMS = [[stem * 100 + n % 7 for n in range(80)] for stem in range(2)]

ANY_SETTINGS = st.builds(
    lambda slots, extra, chunk, queue, tokens, timeout, policy, reuse: EngineSettings(
        slots, 128, slots + extra, chunk, queue, tokens, timeout, policy, reuse
    ),
    st.sampled_from([1, 2, 2, 3, 4, 8]),
    st.sampled_from([0, 0, 1, 7, 64]),
    st.sampled_from([1, 5, 16, 32, 1000]),
    st.sampled_from([0, 3, 1000, 1000, 1000, 1000]),
    st.sampled_from([100, 10_000, 10_000, 10_000, 10_000]),
    st.sampled_from([30.0, 3000.0, 3000.0]),
    st.sampled_from(["fifo", "fifo", "longest_first", "shortest_first"]),
    st.sampled_from([True, True, True, False]),
)


class Engine(CountedMachine):
    """One rule per thing that can happen."""

    totals: ClassVar[dict[str, int]] = {}
    checker: GenerationChecker

    @initialize(wanted=ANY_SETTINGS)
    def begin(self, wanted: EngineSettings) -> None:
        self.checker = GenerationChecker(wanted)

    def teardown(self) -> None:
        if hasattr(self, "checker") and sys.exc_info()[0] is None:  # what went wrong before is what is told
            self.checker.finish()
            for name, count in self.checker.counts.items():
                self.totals[name] = self.totals.get(name, 0) + count

    @rule(
        stem=st.sampled_from([0, 0, 0, 1]),
        length=st.sampled_from([2, 16, 17, 30, 31, 80]),
        own=st.sampled_from([0, 0, 1, 5]),
        limit=st.sampled_from([0, 1, 2, 5, 20, 20, 40]),
        priority=st.sampled_from([0, 0, 0, -1, -2, 1, 5]),
        patience=st.sampled_from([None, None, None, None, None, 0.5, 20.0]),
        count=st.sampled_from([1, 1, 2, 3]),
        reusable=st.sampled_from([True, True, True, True, False]),
    )
    def submit(self, stem: int, length: int, own: int, count: int, **rest: Any) -> None:
        self.count_step()
        for _ in range(count):
            self.checker.submit(STEMS[stem][:length] + [1000 + self.checker.number % 3] * own, **rest)

    @precondition(lambda self: self.checker.live)
    @rule(index=st.integers(0, 7), limit=st.sampled_from([1, 3, 20]))
    def go_on_with(self, index: int, limit: int) -> None:
        """A prompt that begins as all of another text, as in a conversation."""
        self.count_step()
        tokens = self.checker.live[index % len(self.checker.live)].tokens
        self.checker.submit([*tokens[:100], 7], limit, 0, None, True)

    @precondition(lambda self: len(self.checker.scheduler.running) == self.checker.settings.slots)
    @rule(levels=st.sampled_from([1, 4]), length=st.sampled_from([3, 17, 40]))
    def submit_urgent(self, levels: int, length: int) -> None:
        """More so than a text that runs."""
        self.count_step()
        most = max(text.wanted.priority for text in self.checker.scheduler.running)
        self.checker.submit(STEMS[0][:length], 5, most - levels, None, True)

    @rule(count=st.sampled_from([1, 1, 2, 3]), mode=st.sampled_from(["together", "alone"]))
    def run(self, count: int, mode: str) -> None:
        for _ in range(count):
            self.count_step()
            self.checker.step(mode=mode)

    @precondition(lambda self: self.checker.live)
    @rule(
        fails=st.sampled_from([None, 0, 1, 2]),
        mode=st.sampled_from(["together", "together", "alone", "alone", "nothing"]),
    )
    def run_badly(self, fails: int | None, mode: str) -> None:
        self.count_step()
        self.checker.step(fails, mode)

    @precondition(lambda self: self.checker.live)
    @rule(index=st.integers(0, 7), valid=st.sampled_from([True, True, False]))
    def cancel(self, index: int, valid: bool) -> None:
        self.count_step()
        self.checker.drop(self.checker.live[index % len(self.checker.live)], valid)

    @rule(seconds=st.sampled_from([0.25, 0.25, 0.25, 1.0, 20.0, 70.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.count_step()
        self.checker.now += seconds


RUNS = SeededRuns(
    Engine, "tests/simulation/test_generation.py", runs=50, steps=60, batches=(2, 8), min_steps=(4_000, 20_000)
)


@pytest.mark.timeout(1200)  # a story that fails is made as short as possible before it is told
def test_plans_do_what_the_reference_expects_whatever_happens(request: pytest.FixtureRequest) -> None:
    Engine.totals = {}
    steps = RUNS.check(request.config.getoption("--hypothesis-seed"))
    assert min(Engine.totals.values()) >= steps // 1000, Engine.totals


# The simulation notices what it is there to notice.

find, admit = CacheSlots.find, planner._Draft._admit


def _reuses_all(self: Any, tokens: Any, kept: Any = ()) -> Any:
    assignment = find(self, tokens, kept)
    return assignment and SlotAssignment(assignment.slot, assignment.count and assignment.count + 1, assignment.source)


def _forgets_to_copy(self: Any, tokens: Any, kept: Any = ()) -> Any:
    assignment = find(self, tokens, kept)
    return assignment and SlotAssignment(assignment.slot, assignment.count)


def _never_gives_way(self: Any, text: Text) -> None:
    return None


def _any_victim(self: Any, text: Text) -> Text | None:
    lower = [other for other in self._now.running if other not in self._preempted and other.number > text.number]
    return lower[0] if lower else None


def _looks_behind(self: Any, before: Any = None) -> None:
    """The first two that wait, the other way round."""
    waiting = self._now.waiting
    if before is None and not self._admitted and len(waiting) > 1:
        self._now = planner.Snapshot(
            self._now.settings, self._now.running, [waiting[1], waiting[0], *waiting[2:]], self._now.slots
        )
    admit(self, before)


def _ignores_rows(self: Any, text: Text, start: int, least: int) -> None:
    self._schedule.append(ScheduledTokens(text, start, len(text.tokens) - start, text.output < text.limit))


def _keeps_ended(self: Any, slot: int, valid: bool = True) -> None:
    """A slot is never free again once it has been used by a text that ended."""


BREAKS = {
    "more is reused than there is": (CacheSlots, "find", _reuses_all),
    "a copy is forgotten": (CacheSlots, "find", _forgets_to_copy),
    "nobody gives way": (planner._Draft, "_victim", _never_gives_way),
    "anybody gives way": (planner._Draft, "_victim", _any_victim),
    "the second one comes first": (planner._Draft, "_admit", _looks_behind),
    "steps have any number of rows": (planner._Draft, "_schedule_rows", _ignores_rows),
    "slots are lost": (CacheSlots, "release", _keeps_ended),
    "nothing is late": (SchedulerState, "late", lambda self, now: []),
    "the queue has no end": (SchedulerState, "refusal", lambda self, lengths: None),
}


@pytest.mark.parametrize("what", BREAKS)
def test_mistake_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BREAKS[what])
    with pytest.raises((AssertionError, LookupError, ValueError, RuntimeError, ExceptionGroup)):
        RUNS.find_failure(range(20))


# Stories.


def plans_of(limits: list[int], policy: str) -> int:
    """That it takes to carry out all of these, with prompts of 7 tokens, in 8 slots."""
    checker = GenerationChecker(EngineSettings(8, 128, 512, 256, 1000, 10_000, 30.0, policy))
    for number, limit in enumerate(limits):
        checker.submit([number] * 7, limit, 0, None, True)
    while checker.step():
        pass
    assert checker.counts["ended"] == len(limits)
    return checker.counts["plans"] - 1


@pytest.mark.parametrize(("policy", "most"), [("fifo", 130), ("longest_first", 100)])
def test_few_long_texts_do_not_hold_up_many_short_ones(policy: str, most: int) -> None:
    assert plans_of([100 if number % 8 == 0 else 10 for number in range(32)], policy) <= most


def test_low_priority_gets_its_turn_while_urgent_texts_never_stop_coming() -> None:
    checker = GenerationChecker(EngineSettings(2, 128, 16, 8, 1000, 10_000, 1e6))
    checker.submit([1] * 20, 10, 2, None, True)
    low = checker.live[0]
    checker.step()
    while low.phase is not TextPhase.ENDED:
        checker.submit([2, 3], 4, 0, None, True)
        checker.submit([4, 5], 4, 0, None, True)
        for _ in range(3):
            checker.step()
        checker.now += 2.0
        assert checker.now < 3 * LEVEL_SECONDS
    assert low.preemptions > 0


def test_long_prompt_is_not_passed_over_by_short_ones_for_ever() -> None:
    checker = GenerationChecker(EngineSettings(1, 128, 4, 4, 1000, 10_000, 1e6))
    for number in range(50):
        checker.submit([number] * (100 if number == 10 else 2), 3, 0, None, True)
    while checker.live[10].slot is None:
        checker.step()
        assert checker.counts["ended"] <= 10
        if len(checker.live) <= 40:
            break
    assert checker.counts["ended"] == 10
