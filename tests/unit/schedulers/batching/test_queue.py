"""The order of what waits, and what leaves it by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.model import PredictCall
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.schedulers.batching.queue import EMPTY_LEVELS, BatchJob, JobQueue
from tfs_lite.schedulers.batching.settings import BatchSettings, QueuePolicy, TimeoutAction

PLAIN = BatchSettings(max_batch_size=8)
LEVELS = replace(PLAIN, priority_levels=3, default_priority=2)
UINT64_MAX = 2**64 - 1


def job(
    rows: int = 1, enqueued: float = 0.0, *, priority: int = 0, timeout: float = 0.0, expires: float = inf
) -> BatchJob:
    call = PredictCall("serving_default", {}, (), None, lambda result: None, priority=priority, timeout=timeout)
    return BatchJob(call, rows, rows, enqueued, expires=expires)


def add(queue: JobQueue, *jobs: BatchJob) -> None:
    for each in jobs:
        assert queue.refusal(each) is None
        queue.add(each)


def filled(settings: BatchSettings, *jobs: BatchJob) -> JobQueue:
    queue = JobQueue(settings, "m-1")
    add(queue, *jobs)
    return queue


def check_refused(queue: JobQueue, new: BatchJob, text: str) -> None:
    before = list(queue)
    refusal = queue.refusal(new)
    assert refusal is not None
    assert (refusal.code, refusal.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
    assert text in refusal.message
    assert "try again later" in refusal.message
    assert list(queue) == before


def test_jobs_are_served_in_order_of_arrival() -> None:
    jobs = [job(1), job(2), job(3)]
    queue = filled(PLAIN, *jobs)
    assert (list(queue), len(queue), queue.rows) == (jobs, 3, 6)
    assert queue.head is jobs[0]
    assert queue.take(2) == jobs[:2]
    assert [each.gone for each in jobs] == [True, True, False]
    assert (list(queue), len(queue), queue.rows, queue.head) == (jobs[2:], 1, 3, jobs[2])
    assert queue.take(9) == jobs[2:]
    assert (list(queue), len(queue), queue.rows, queue.head) == ([], 0, 0, None)
    assert queue.take(1) == []


def test_clear_gives_back_what_waits_in_order() -> None:
    late, soon, gone = job(priority=3), job(priority=1), job(priority=1)
    queue = filled(LEVELS, late, soon, gone)
    queue.remove(gone)
    assert queue.clear() == [soon, late]
    assert (len(queue), queue.rows, queue.next_expiry) == (0, 0, inf)


@pytest.mark.parametrize(
    ("levels", "priority", "level"),
    [
        (0, 0, 0),
        (0, 7, 0),
        (3, 1, 1),
        (3, 3, 3),
        (3, 0, 2),
        (3, 4, 2),
        (3, -1, 2),
        (UINT64_MAX, UINT64_MAX, UINT64_MAX),
        (UINT64_MAX, UINT64_MAX + 1, 2),
    ],
)
def test_a_priority_that_is_none_means_the_default(levels: int, priority: int, level: int) -> None:
    new = job(priority=priority)
    add(JobQueue(replace(PLAIN, priority_levels=levels, default_priority=2 if levels else 0)), new)
    assert new.level == level


def test_levels_that_are_empty_are_forgotten() -> None:
    queue = JobQueue(replace(PLAIN, priority_levels=UINT64_MAX, default_priority=1, max_queued_calls=100))
    for start in range(0, 3000, 100):
        jobs = [job(priority=UINT64_MAX - start - index, expires=start) for index in range(100)]
        add(queue, *jobs)
        assert queue.take(40) == jobs[:59:-1]
        assert all(queue.remove(each) for each in jobs[:30])
        assert [each for each, _ in queue.sweep(start)] == jobs[59:29:-1]
        assert len(queue._levels) == len(queue._by_number) <= EMPTY_LEVELS


@pytest.mark.parametrize(
    ("default", "override", "asked", "effective"),
    [
        (5.0, False, 1.0, 5.0),
        (5.0, True, 0.0, 5.0),
        (5.0, True, 1.0, 1.0),
        (5.0, True, 5.0, 5.0),
        (5.0, True, 9.0, 5.0),
        (5.0, True, -1.0, 5.0),
        (0.0, True, 1.0, inf),
        (0.0, False, 1.0, inf),
    ],
)
def test_a_call_can_only_shorten_its_timeout(default: float, override: bool, asked: float, effective: float) -> None:
    policy = QueuePolicy(default_timeout=default, allow_timeout_override=override)
    new = job(enqueued=100.0, timeout=asked)
    queue = filled(replace(PLAIN, default_policy=policy), new)
    assert new.times_out == queue.next_expiry == 100.0 + effective


def test_each_level_has_its_own_policy() -> None:
    policies = {1: QueuePolicy(default_timeout=1.0), 3: QueuePolicy()}
    settings = replace(LEVELS, policies=policies, default_policy=QueuePolicy(default_timeout=2.0))
    jobs = [job(priority=priority) for priority in (1, 2, 3)]
    filled(settings, *jobs)
    assert [each.times_out for each in jobs] == [1.0, 2.0, inf]


def test_a_deadline_that_passes_ends_the_wait() -> None:
    first, second = job(expires=5.0), job(expires=7.0)
    queue = filled(PLAIN, first, second)
    assert queue.next_expiry == 5.0
    assert queue.sweep(4.9) == []
    text = "the deadline passed while the request waited for m-1"
    assert queue.sweep(5.0) == [(first, Status(StatusCode.DEADLINE_EXCEEDED, text))]
    assert (first.gone, list(queue), queue.next_expiry) == (True, [second], 7.0)
    assert not queue.remove(first)
    assert queue.sweep(7.0) == [(second, Status(StatusCode.DEADLINE_EXCEEDED, text))]
    assert (len(queue), queue.rows, queue.next_expiry) == (0, 0, inf)


def test_an_empty_queue_has_no_next_expiry() -> None:
    queue = filled(PLAIN, job(expires=5.0), job(expires=7.0))
    queue.take(1)
    assert queue.next_expiry <= 7.0
    queue.take(1)
    assert queue.next_expiry == inf


def test_a_timeout_rejects() -> None:
    settings = replace(PLAIN, default_policy=QueuePolicy(default_timeout=3.0))
    first, second = job(enqueued=1.0), job(enqueued=2.0)
    queue = filled(settings, first, second)
    ((ended, status),) = queue.sweep(4.0)
    assert ended is first
    assert status.code is StatusCode.UNAVAILABLE
    assert status.message.startswith("Request timeout expired")
    assert "m-1" in status.message
    assert list(queue) == [second]


def test_a_timeout_that_delays_moves_a_job_behind_its_level_once() -> None:
    settings = replace(LEVELS, default_policy=QueuePolicy(TimeoutAction.DELAY, 3.0))
    old, older_still, fresh, low = job(priority=1), job(priority=1), job(enqueued=1.0, priority=1), job(priority=2)
    queue = filled(settings, old, older_still, low, fresh)
    assert queue.sweep(3.0) == []
    assert list(queue) == [fresh, old, older_still, low]
    assert [each.delayed for each in queue] == [False, True, True, True]
    assert queue.next_expiry == 4.0
    newest = job(enqueued=3.5, priority=1)
    add(queue, newest)
    assert queue.sweep(4.0) == []
    assert list(queue) == [newest, old, older_still, fresh, low]
    assert queue.sweep(100.0) == []
    assert list(queue) == [old, older_still, fresh, newest, low]
    assert (queue.next_expiry, queue.rows) == (inf, 5)


def test_a_full_level_refuses_and_others_do_not() -> None:
    policy = QueuePolicy(TimeoutAction.DELAY, 3.0, max_queue_size=2)
    first = job(priority=1)
    queue = filled(replace(LEVELS, policies={1: policy}), first, job(priority=1))
    queue.sweep(3.0)
    check_refused(queue, job(priority=1), "Exceeds maximum queue size")
    assert queue.refusal(job(priority=2)) is None
    queue.take(1)
    assert queue.refusal(job(priority=1)) is None


@pytest.mark.parametrize(
    ("settings", "fits", "too_many"),
    [(replace(PLAIN, max_queued_calls=3), 5, None), (replace(PLAIN, max_queued_rows=10), 6, 7)],
    ids=["calls", "rows"],
)
def test_a_full_queue_refuses(settings: BatchSettings, fits: int, too_many: int | None) -> None:
    queue = filled(settings, job(2), job(2))
    text = "The batch scheduling queue to which this task was submitted is full"
    if too_many:
        check_refused(queue, job(too_many), text)
    add(queue, job(fits))
    check_refused(queue, job(1), text)
    queue.take(1)
    assert queue.refusal(job(1)) is None


@pytest.mark.parametrize("leave", [lambda queue: queue.take(50), lambda queue: queue.sweep(5.0)], ids=["take", "sweep"])
def test_jobs_that_are_gone_do_not_outnumber_those_that_wait(leave: Callable[[JobQueue], object]) -> None:
    jobs = [job(expires=5.0) for _ in range(50)] + [job(expires=6.0) for _ in range(50)]
    queue = filled(replace(PLAIN, max_queued_calls=100), *jobs)
    for each in jobs[60:]:
        queue.remove(each)
    leave(queue)
    assert list(queue) == jobs[50:60]
    assert len(queue._levels[0].fresh._jobs) <= 20


def test_the_queue_knows_how_long_its_jobs_have_waited() -> None:
    queue = JobQueue(LEVELS)
    assert (queue.oldest, queue.youngest) == (inf, -inf)
    first, second = job(enqueued=1.0, priority=3), job(enqueued=2.0, priority=1)
    add(queue, first, second)
    assert (queue.oldest, queue.youngest) == (1.0, 2.0)
    queue.remove(first)
    assert queue.oldest == 2.0


@dataclass
class Reference:
    """The same in lists: every job that waits, sorted anew for each question."""

    settings: BatchSettings
    jobs: list[BatchJob] = field(default_factory=list)
    delayed: dict[BatchJob, int] = field(default_factory=dict)

    def ordered(self) -> list[BatchJob]:
        positions = {each: index for index, each in enumerate(self.jobs)}
        return sorted(self.jobs, key=lambda each: (each.level, self.delayed.get(each, 0), positions[each]))

    def sweep(self, now: float) -> list[BatchJob]:
        out, moved = [], []
        for each in self.ordered():
            timed_out = each not in self.delayed and each.enqueued + self.timeout(each) <= now
            delays = self.settings.policy(each.level).timeout_action is TimeoutAction.DELAY
            if each.expires <= now or (timed_out and not delays):
                out.append(each)
            elif timed_out:
                moved.append(each)
        for each in moved:
            self.delayed[each] = len(self.delayed) + 1
        self.jobs = [each for each in self.jobs if each not in out]
        return out

    def timeout(self, each: BatchJob) -> float:
        policy = self.settings.policy(each.level)
        return min(each.call.timeout or inf, policy.default_timeout) or inf


POLICIES = {
    1: QueuePolicy(TimeoutAction.REJECT, 3.0, allow_timeout_override=True),
    2: QueuePolicy(TimeoutAction.DELAY, 2.0, allow_timeout_override=True),
}
BOTH = [
    replace(PLAIN, default_policy=POLICIES[1]),
    replace(PLAIN, default_policy=POLICIES[2]),
    replace(PLAIN, priority_levels=20, default_priority=3, policies=POLICIES),
]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4), st.integers(0, 14), st.sampled_from([0.0, 0.5, 1.0])),
        st.tuples(st.just("remove"), st.integers(0, 30)),
        st.tuples(st.just("sweep"), st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        st.tuples(st.just("take"), st.integers(0, 5)),
    ),
    max_size=40,
)


@examples(500)
@given(settings=st.sampled_from(BOTH), deadline=st.sampled_from([None, 4.0]), actions=ACTIONS)
def test_whatever_happens_nothing_is_lost_or_comes_twice(
    settings: BatchSettings, deadline: float | None, actions: list[tuple[str, int, int, float]]
) -> None:
    queue, reference, ever, left = JobQueue(settings), Reference(settings), list[BatchJob](), list[BatchJob]()
    now = 0.0
    for name, number, *rest in actions:
        if name == "add":
            expires = now + (deadline or 10.0 * rest[1])
            new = job(number, now, priority=int(rest[0]), timeout=rest[1], expires=expires)
            add(queue, new)
            reference.jobs.append(new)
            ever.append(new)
        elif name == "remove" and ever:
            one = ever[number % len(ever)]
            assert queue.remove(one) == (one in reference.jobs)
            _leave(reference, left, [one])
        elif name == "sweep":
            now += number
            early = queue.next_expiry > now
            order = list(queue)
            out = reference.sweep(now)
            assert [each for each, _ in queue.sweep(now)] == out
            assert not (early and (out or order != reference.ordered()))
            left += out
        elif name == "take":
            taken = queue.take(number)
            assert taken == reference.ordered()[:number]
            _leave(reference, left, taken)
        _compare(queue, reference)
    left += queue.clear()
    assert set(left) == set(ever)
    assert len(left) == len(ever)
    assert all(each.gone for each in ever)


def _leave(reference: Reference, left: list[BatchJob], jobs: list[BatchJob]) -> None:
    left += [each for each in jobs if each in reference.jobs]
    reference.jobs = [each for each in reference.jobs if each not in jobs]


def _compare(queue: JobQueue, reference: Reference) -> None:
    ordered = reference.ordered()
    assert list(queue) == ordered
    assert queue.head is (ordered[0] if ordered else None)
    assert (len(queue), queue.rows) == (len(ordered), sum(each.rows for each in ordered))
    assert not any(each.gone for each in ordered)
    assert queue.next_expiry <= min((min(each.expires, each.times_out) for each in ordered), default=inf)
    stored = sum(len(fifo._jobs) for level in queue._levels for fifo in level.fifos)
    assert stored <= 2 * len(ordered)
