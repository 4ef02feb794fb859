"""Which jobs run together, and when: the tables of the dynamic batcher, in virtual time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.model import PredictCall
from tfs_lite.schedulers.batching.batch_delay import NO_DELAY, BatchDelay
from tfs_lite.schedulers.batching.forming import BatchDecision, form_batch
from tfs_lite.schedulers.batching.queue import BatchJob, JobQueue
from tfs_lite.schedulers.batching.settings import ALONE, BatchSettings, QueuePolicy, SendWhen, TimeoutAction
from tfs_lite.testing.lifecycle.clock import VirtualClock

DELAYED = BatchSettings(max_batch_size=8, preferred=(2, 6), max_delay=10.0)
AT_ONCE = BatchSettings(max_batch_size=8, preferred=(4, 6))
EXPECTING = BatchSettings(max_batch_size=8, send=SendWhen.EXPECT)


def job(rows: int, enqueued: float = 0.0, key: Hashable = None, priority: int = 0) -> BatchJob:
    call = PredictCall("serving_default", {}, (), None, lambda result: None, priority=priority)
    return BatchJob(call, rows, key, enqueued)


def jobs(*rows: int) -> list[BatchJob]:
    return [job(size) for size in rows]


class Batcher:
    """A queue and an instance that is always free. ``batches``: when each left, with the rows of its jobs.

    It asks only when a decision says so; with ``eager`` after every arrival.
    """

    def __init__(self, settings: BatchSettings, held_until: float = 0.0, eager: bool = False) -> None:
        self.clock = VirtualClock()
        self.batches: list[tuple[float, list[int]]] = []
        self._settings, self._eager, self._held_until = settings, eager, held_until
        self._queue = JobQueue(settings)
        self._waits = BatchDecision()
        self.clock.call_later(held_until, self._ask)

    def arrive(self, new: BatchJob) -> None:
        new.enqueued = self.clock.monotonic()
        assert self._queue.refusal(new) is None
        other = self._queue.head is not None and self._queue.head.key != new.key
        self._queue.add(new)
        self.clock.call_later(self._queue.next_expiry - new.enqueued, self._ask)
        if self._eager or other or self._queue.rows >= self._waits.wake_rows:
            self._ask()

    def _ask(self) -> None:
        now = self.clock.monotonic()
        if now < self._held_until:
            return
        while True:
            assert self._queue.sweep(now) == []
            self._waits = form_batch(self._queue, now, self._settings)
            if not self._waits.take:
                break
            self.batches.append((now, [each.rows for each in self._queue.take(self._waits.take)]))
        if self._waits.wait_until < inf:
            assert self._waits.wait_until > now
            self.clock.call_later(self._waits.wait_until - now, self._ask)


def sent(
    settings: BatchSettings, arrivals: Iterable[tuple[float, BatchJob]], held_until: float = 0.0, eager: bool = False
) -> list[tuple[float, list[int]]]:
    """The batches that leave when jobs arrive, each so many seconds after the one before."""
    batcher = Batcher(settings, held_until, eager)
    for gap, new in arrivals:
        batcher.clock.advance(gap)
        batcher.arrive(new)
    batcher.clock.advance(1000)
    return batcher.batches


@pytest.mark.parametrize(
    ("arrivals", "batches"),
    [
        ([(0, 2), (1, 6)], [(0, [2]), (1, [6])]),
        ([(0, 1)], [(10, [1])]),
        ([(0, 3)], [(10, [3])]),
        ([(0, 7)], [(0, [7])]),
        ([(0, 1), (4, 3)], [(10, [1, 3])]),
        ([(0, 3), (4, 7)], [(4, [3]), (4, [7])]),
        ([(0, 3), (4, 4)], [(4, [3]), (14, [4])]),
        ([(0, 1), (4, 1)], [(4, [1, 1])]),
        ([(0, 5), (1, 1)], [(1, [5, 1])]),
        ([(0, 8)], [(0, [8])]),
        ([(0, 3), (1, 1), (2, 4)], [(3, [3, 1]), (13, [4])]),
    ],
    ids=str,
)
def test_arrivals_with_a_delay(arrivals: Sequence[tuple[float, int]], batches: list[tuple[float, list[int]]]) -> None:
    assert sent(DELAYED, [(gap, job(rows)) for gap, rows in arrivals]) == batches


TOGETHER = {
    "delayed": DELAYED,
    "at once": AT_ONCE,
    "no preferred size": BatchSettings(max_batch_size=8),
    "alone": ALONE,
    "alone, with a delay": replace(ALONE, max_delay=10.0),
}


@pytest.mark.parametrize(
    ("settings", "queued", "batches"),
    [
        ("delayed", [1, 1, 1, 1, 1, 1], [[1, 1, 1, 1, 1, 1]]),
        ("delayed", [2, 6], [[2], [6]]),
        ("at once", [1, 1, 1], [[1, 1, 1]]),
        ("at once", [1, 1, 1, 1], [[1, 1, 1, 1]]),
        ("at once", [1, 1, 1, 1, 1], [[1, 1, 1, 1], [1]]),
        ("at once", [1] * 7, [[1] * 6, [1]]),
        ("at once", [3, 4], [[3], [4]]),
        ("at once", [5, 2], [[5], [2]]),
        ("at once", [7, 1], [[7], [1]]),
        ("at once", [4, 1, 2], [[4], [1, 2]]),
        ("no preferred size", [3, 3, 1, 2], [[3, 3, 1], [2]]),
        ("no preferred size", [8, 1], [[8], [1]]),
        ("alone", [1, 1, 5], [[1], [1], [5]]),
        ("alone, with a delay", [1, 1], [[1], [1]]),
    ],
    ids=str,
)
def test_jobs_that_are_queued_together(settings: str, queued: list[int], batches: list[list[int]]) -> None:
    got = sent(TOGETHER[settings], [(0, job(rows)) for rows in queued], held_until=1.0)
    assert got == [(1.0, rows) for rows in batches]


LEVELS = replace(DELAYED, priority_levels=2, default_priority=2)
URGENT = BatchSettings(max_batch_size=8, preferred=(1, 8), max_delay=10.0, priority_levels=2, default_priority=2)
HISTORIES = {
    "once late, preferred sizes do not matter": (
        (DELAYED, [(0, job(3)), (0, job(4)), (1, job(1))], 10.5),
        [(10.5, [3, 4, 1])],
    ),
    "once late, what does not fit is left": (
        (DELAYED, [(0, job(3)), (0, job(4)), (1, job(2))], 10.5),
        [(10.5, [3, 4]), (10.5, [2])],
    ),
    "another key sends what is before it at once": (
        (DELAYED, [(0, job(1, key="16 wide")), (4, job(1, key="8 wide"))]),
        [(4, [1]), (14, [1])],
    ),
    "a preferred size before another key is kept": (
        (AT_ONCE, [(0, job(4)), (0, job(1)), (0, job(1, key="other"))], 1.0),
        [(1.0, [4]), (1.0, [1]), (1.0, [1])],
    ),
    "what is left of the queue goes on ageing": (
        (DELAYED, [(0, job(5)), (3, job(3)), (8, job(1))]),
        [(3, [5]), (13, [3, 1])],
    ),
    "a batch mixes levels, and the oldest job of any level counts": (
        (LEVELS, [(0, job(3, priority=2)), (4, job(1, priority=1))]),
        [(10, [1, 3])],
    ),
    "a more urgent job may make a batch of its own": (
        (URGENT, [(0, job(3)), (4, job(1, priority=1))]),
        [(4, [1]), (10, [3])],
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_keys_levels_and_late_jobs(name: str) -> None:
    arguments, batches = HISTORIES[name]
    assert sent(*arguments) == batches  # type: ignore[arg-type]


def test_an_empty_queue_waits_for_any_job() -> None:
    for settings in (ALONE, DELAYED, EXPECTING):
        assert form_batch([], 5.0, settings) == BatchDecision(0, inf, 1)


def test_a_decision_to_wait_says_when_and_how_many_rows_end_it() -> None:
    assert form_batch([job(1, 3.0)], 5.0, DELAYED) == BatchDecision(0, 13.0, 2)
    assert form_batch([job(3, 3.0), job(1, 4.0)], 5.0, DELAYED) == BatchDecision(0, 13.0, 6)
    assert form_batch([job(3, 3.0)], 5.0, replace(DELAYED, preferred=())) == BatchDecision(0, 13.0, 8)
    assert form_batch([job(3, 3.0)], 13.0, DELAYED) == BatchDecision(1)


@pytest.mark.parametrize(
    "settings",
    [
        replace(DELAYED, priority_levels=2, default_priority=2),
        replace(DELAYED, default_policy=QueuePolicy(TimeoutAction.DELAY, 1.0)),
    ],
    ids=["levels", "delays"],
)
def test_where_jobs_may_come_in_before_others_every_arrival_is_looked_at(settings: BatchSettings) -> None:
    assert form_batch([job(3, 3.0)], 5.0, settings) == BatchDecision(0, 13.0, 4)


@pytest.mark.parametrize(
    ("queued", "delay", "decision"),
    [
        ([3], BatchDelay(6, 2.0), BatchDecision(0, 2.0, 6)),
        ([3, 3], BatchDelay(6, 2.0), BatchDecision(2)),
        ([3], BatchDelay(6, 1.0), BatchDecision(1)),
        ([3], NO_DELAY, BatchDecision(1)),
        ([3], BatchDelay(100, 2.0), BatchDecision(0, 2.0, 8)),
        ([8], BatchDelay(100, 2.0), BatchDecision(1)),
        ([5, 4], BatchDelay(100, 2.0), BatchDecision(1)),
    ],
    ids=str,
)
def test_delay_holds_back_only_what_could_still_grow(
    queued: list[int], delay: BatchDelay, decision: BatchDecision
) -> None:
    assert form_batch(jobs(*queued), 1.0, EXPECTING, delay) == decision


def test_delay_neither_waits_past_another_key_nor_past_a_preferred_size() -> None:
    delay = BatchDelay(8, 2.0)
    assert form_batch([job(1, key="a"), job(1, key="b")], 1.0, EXPECTING, delay) == BatchDecision(1)
    settings = replace(AT_ONCE, send=SendWhen.EXPECT)
    assert form_batch(jobs(3), 1.0, settings, delay) == BatchDecision(0, 2.0, 4)
    assert form_batch(jobs(3, 1), 1.0, settings, delay) == BatchDecision(2)
    assert form_batch(jobs(5), 1.0, settings, delay) == BatchDecision(0, 2.0, 6)


@pytest.mark.parametrize("send", [SendWhen.GREEDY, SendWhen.WAIT])
def test_only_settings_that_expect_are_delayed(send: SendWhen) -> None:
    assert form_batch(jobs(1), 1.0, replace(EXPECTING, send=send), BatchDelay(8, 2.0)) == BatchDecision(1)


def test_calls_that_run_alone_are_never_held_back() -> None:
    assert form_batch(jobs(1, 1), 1.0, replace(ALONE, send=SendWhen.EXPECT), BatchDelay(8, 2.0)) == BatchDecision(1)


SETTINGS = st.builds(
    BatchSettings,
    max_batch_size=st.just(6),
    preferred=st.lists(st.integers(1, 6), max_size=3).map(tuple),
    max_delay=st.sampled_from([0.0, 1.0, 3.0]),
    priority_levels=st.sampled_from([0, 1, 3]),
    default_priority=st.just(1),
    default_policy=st.sampled_from([QueuePolicy(), QueuePolicy(TimeoutAction.DELAY, 2.0)]),
)
ARRIVALS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 2.0]), st.integers(1, 6), st.sampled_from("aaab"), st.integers(0, 3)),
    max_size=12,
)


@given(settings=SETTINGS, arrivals=ARRIVALS, held_until=st.sampled_from([0.0, 2.5]))
def test_asking_only_when_told_sends_the_same_batches_as_asking_all_the_time(
    settings: BatchSettings, arrivals: list[tuple[float, int, str, int]], held_until: float
) -> None:
    def queued() -> list[tuple[float, BatchJob]]:
        return [(gap, job(rows, key=key, priority=priority)) for gap, rows, key, priority in arrivals]

    lazy = sent(settings, queued(), held_until)
    assert lazy == sent(settings, queued(), held_until, eager=True)
    assert sorted(rows for _, batch in lazy for rows in batch) == sorted(rows for _, rows, _, _ in arrivals)


@examples(1000)
@given(
    settings=SETTINGS,
    arrivals=st.lists(st.tuples(st.integers(1, 6), st.sampled_from("aaab")), max_size=10),
    now=st.sampled_from([0.5, 1.5, 5.0]),
)
def test_a_batch_has_one_key_fits_and_waits_no_longer_than_allowed(
    settings: BatchSettings, arrivals: list[tuple[int, str]], now: float
) -> None:
    queued = [job(rows, 0.1 * index, key) for index, (rows, key) in enumerate(arrivals)]
    decision = form_batch(iter(queued), now, settings)
    batch = queued[: decision.take]
    assert sum(each.rows for each in batch) <= settings.max_batch_size
    assert len({each.key for each in batch}) <= 1
    if queued and not decision.take:
        assert settings.max_delay > 0
        assert decision.wait_until == queued[0].enqueued + settings.max_delay > now
        assert decision.wake_rows > sum(each.rows for each in queued)
