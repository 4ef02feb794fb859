"""Whatever the order of events: the slots of a sequence batcher do what a plain description of them does.

No request is lost, answered twice or overtaken within its sequence, and no two of a sequence run at once. Time is
virtual. A run is its seed; one that fails prints it:

    python -m pytest tests/simulation/test_sequences.py --hypothesis-seed=N
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.profiles import CountedMachine, SeededRuns
from tests.support.schedulers import sequence_checker as sequence_checker
from tests.support.schedulers.sequence_checker import Mismatch, SequenceChecker
from tfs_lite.core.model import SequenceFlags
from tfs_lite.schedulers.sequence import direct as direct_forming
from tfs_lite.schedulers.sequence import slots as slots_module
from tfs_lite.schedulers.sequence.backlog import SequenceBacklog
from tfs_lite.schedulers.sequence.deadlines import KeyDeadlines
from tfs_lite.schedulers.sequence.request import SequenceSlot
from tfs_lite.schedulers.sequence.settings import DirectSettings, SequenceSettings
from tfs_lite.schedulers.sequence.slots import SequenceTable

IDS = st.sampled_from([1, 2, 3, 4, 5, 6, "5", "6", "seven", 2**64 - 1])
TIMES = st.sampled_from([0.0625, 0.125, 0.25, 0.5, 1.0])
INDICES = st.integers(0, 15)
SMALL = st.sampled_from([1, 1, 1, 2, 2, 3, 4])
"""Of slots and of instances: with few, sequences have to wait."""
ANY_SETTINGS = st.builds(
    SequenceSettings,
    slots_per_instance=SMALL,
    max_idle=st.sampled_from([0.25, 1.0, 1.0, 4.0]),
    oldest=st.booleans(),
    max_backlog=st.sampled_from([1, 3, 1000, 1000]),
    max_queued=st.sampled_from([2, 8, 1000, 1000, 1000]),
)
ANY_DIRECT = st.builds(
    DirectSettings,
    max_delay=st.sampled_from([0.0, 0.0, 0.25, 1.0]),
    minimum_utilization=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)


class SequenceBatcher(CountedMachine):
    """One rule per thing that can happen."""

    taken = expired = cancelled = 0
    checker: SequenceChecker
    stopped = False

    @initialize(wanted=ANY_SETTINGS, instances=SMALL, direct=ANY_DIRECT)
    def begin(self, wanted: SequenceSettings, instances: int, direct: DirectSettings) -> None:
        self.checker = SequenceChecker(wanted, instances, direct)

    def teardown(self) -> None:
        if hasattr(self, "checker") and sys.exc_info()[0] is None:  # what went wrong before is what is told
            self.checker.finish()
            for item in self.checker.items:
                type(self).taken += item.outcomes == ["taken"]
                type(self).expired += item.outcomes == ["expired"]
                type(self).cancelled += item.outcomes == ["cancelled"]

    @rule(
        id=IDS,
        kind=st.sampled_from(["start"] * 4 + ["next"] * 4 + ["end"] * 3 + ["alone"]),
        timeout=st.sampled_from([0.0, 0.125, 0.125, 0.5, 2.0]),
        key=st.sampled_from([0, 0, 0, 1]),
    )
    def admit(self, id: int | str, kind: str, timeout: float, key: int) -> None:
        self.count_step()
        flags = SequenceFlags(id, start=kind in ("start", "alone"), end=kind in ("end", "alone"))
        self.checker.admit(flags, 1, timeout, key)

    @rule(index=INDICES, end=st.sampled_from([False, False, True]), timeout=st.sampled_from([0.0, 0.25]))
    def go_on(self, index: int, end: bool, timeout: float) -> None:
        """With a sequence whose id is known, if there is one."""
        self.count_step()
        known = [sequence.id for sequence in self.checker.plain.sequences if sequence.known]
        if known:
            self.checker.admit(SequenceFlags(known[index % len(known)], end=end), 1, timeout, 0)

    @rule(id=st.sampled_from([0, "", 1]), rows=st.sampled_from([0, 1, 2, 3]))
    def admit_oddly(self, id: int | str, rows: int) -> None:
        self.count_step()
        self.checker.admit(SequenceFlags(id, start=True), rows, 0.0, 0)

    @rule(seconds=TIMES)
    def let_time_pass(self, seconds: float) -> None:
        self.count_step()
        self.checker.wait(seconds)

    @precondition(lambda self: self.checker.real.next_expiry < 1e9)
    @rule(early=st.booleans())
    def wait_for_the_next_expiry(self, early: bool) -> None:
        self.count_step()
        left = max(0.0, self.checker.real.next_expiry - self.checker.now)
        self.checker.wait(left / 2 if early else left)

    @precondition(lambda self: not self.checker.settings.oldest)
    @rule(instance=st.integers(0, 3))
    def run_direct(self, instance: int) -> None:
        self.count_step()
        self.checker.run_direct(instance % self.checker.instances)

    @precondition(lambda self: self.checker.executing)
    @rule(index=INDICES)
    def finish_direct(self, index: int) -> None:
        self.count_step()
        busy = sorted(self.checker.executing)
        self.checker.finish_direct(busy[index % len(busy)])

    @precondition(lambda self: self.checker.settings.oldest and self.checker.real.pending)
    @rule(index=INDICES)
    def take(self, index: int) -> None:
        self.count_step()
        ready = [
            SequenceSlot(number, instance)
            for instance in range(self.checker.instances)
            for number, request in enumerate(self.checker.real.heads(instance))
            if request is not None
        ]
        if ready:
            self.checker.take(ready[index % len(ready)])

    @precondition(lambda self: self.checker.settings.oldest and self.checker.real.running)
    @rule(index=INDICES)
    def finish(self, index: int) -> None:
        self.count_step()
        busy = sorted(self.checker.plain.running)
        self.checker.done(SequenceSlot(*busy[index % len(busy)]))

    @precondition(lambda self: self.checker.items)
    @rule(index=INDICES)
    def cancel(self, index: int) -> None:
        """One of the last ones; it may run, or be gone."""
        self.count_step()
        self.checker.cancel(self.checker.items[-1 - index % len(self.checker.items)])

    @rule(instance=st.integers(0, 3), sure=st.sampled_from([False] * 5 + [True]))
    def drop_instance(self, instance: int, sure: bool) -> None:
        self.count_step()
        if sure:
            self.checker.drop_instance(instance % self.checker.instances)

    @precondition(lambda self: not self.stopped and len(self.checker.items) > 10)
    @rule(sure=st.sampled_from([False] * 7 + [True]))
    def stop(self, sure: bool) -> None:
        self.count_step()
        if sure:
            self.stopped = True
            self.checker.stop()


RUNS = SeededRuns(
    SequenceBatcher, "tests/simulation/test_sequences.py", runs=50, steps=60, batches=(2, 26), min_steps=(3_000, 50_000)
)


@pytest.mark.timeout(1200)  # a story that fails is made as short as possible before it is told
def test_slots_do_what_the_reference_does_whatever_happens(request: pytest.FixtureRequest) -> None:
    machine = SequenceBatcher
    machine.taken = machine.expired = machine.cancelled = 0
    steps = RUNS.check(request.config.getoption("--hypothesis-seed"))
    assert min(machine.taken, machine.expired, machine.cancelled) >= steps // 1000


# The simulation notices what it is there to notice.

forget, drop, release, expire = (
    SequenceTable._forget,
    SequenceTable._drop,
    SequenceTable._release,
    SequenceTable._expire,
)
form_direct = direct_forming.form_direct


def _ends_at_execution(self: Any, sequence: Any) -> None:
    if not (sequence.waiting and sequence.waiting[-1].end):
        forget(self, sequence)


def _keeps_the_slot(self: Any, slot: SequenceSlot) -> None:
    if self.backlogged:
        release(self, slot)


def _counts_from_its_slot(self: Any, slot: SequenceSlot) -> None:
    release(self, slot)
    sequence = self._in[slot]
    if sequence is not None and self._idle.get(sequence) < 1e9:
        self._idle.set(sequence, self._idle.get(sequence) + 0.125)


def _does_not_wait(self: Any, sequence: Any) -> Any:
    expire(self, sequence)
    return None if sequence.waiting else sequence.slot


def _drops_one(self: Any, sequence: Any, **how: Any) -> Any:
    return drop(self, sequence, **how)[:1]


def _last_first(self: Any) -> Any:
    sequence = next(reversed(self._entries), None)
    if sequence is not None:
        self.remove(sequence)
    return sequence


def _runs_two(self: Any, slot: SequenceSlot) -> Any:
    sequence = self._in[slot]
    return sequence.waiting[0] if sequence is not None and sequence.waiting else None


def _never_due(self: Any, now: float) -> list[Any]:
    return []


def _all_slots_wide(heads: Any, *rest: Any) -> Any:
    decision = form_direct(heads, *rest)
    return direct_forming.DirectDecision(decision.rows[:1], decision.wait_until)


BREAKS = {
    "an id is known until its END runs": (SequenceTable, "_forget", _ends_at_execution),
    "a slot is never free again": (SequenceTable, "_release", _keeps_the_slot),
    "a sequence is younger when it comes from the backlog": (SequenceTable, "_release", _counts_from_its_slot),
    "a slot is free while a request of an expired sequence runs": (SequenceTable, "_expire", _does_not_wait),
    "requests are lost with a cancelled one": (SequenceTable, "_drop", _drops_one),
    "the last sequence of the backlog is served first": (SequenceBacklog, "next", _last_first),
    "two requests of a slot run at once": (SequenceTable, "_head", _runs_two),
    "nothing expires": (KeyDeadlines, "pop_due", _never_due),
    "the queue has no end": (SequenceTable, "_full", lambda self, known: None),
    "slots are taken from behind": (slots_module, "heappop", lambda slots: slots.pop()),
    "batches are too narrow": (sequence_checker, "form_direct", _all_slots_wide),
}
SOONEST = {
    "a slot is free while a request of an expired sequence runs": 2,
    "the last sequence of the backlog is served first": 1,
    "the queue has no end": 3,
    "batches are too narrow": 11,
}
"""The batch that notices the mistake soonest, with today's hypothesis; it is tried before the others."""


@pytest.mark.parametrize("what", BREAKS)
def test_mistake_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BREAKS[what])
    with pytest.raises((Mismatch, LookupError, ExceptionGroup)):
        RUNS.find_failure([SOONEST.get(what, 0), *range(10)])
