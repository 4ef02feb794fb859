"""The decision which of the waiting jobs run together next: a pure function of a queue and the time.

The rules are those of Triton's dynamic batcher; TensorFlow Serving's are the same ones with the largest batch as the
only preferred size. The walk takes a few steps per job and allocates nothing, because it runs once per batch while the
queue is locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from tfs_lite.schedulers.batching.batch_delay import NO_DELAY, BatchDelay
from tfs_lite.schedulers.batching.queue import BatchJob
from tfs_lite.schedulers.batching.settings import BatchSettings, SendWhen, TimeoutAction


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """``take`` is how many jobs leave from the head now. With 0, ask again at ``wait_until``, or earlier when
    ``wake_rows`` rows wait in all, when a job with another key arrives, or when one has left the queue or moved."""

    take: int = 0
    wait_until: float = inf
    wake_rows: int = 1


NOTHING = BatchDecision()
ONE = BatchDecision(take=1)


def form_batch(
    queue: Iterable[BatchJob], now: float, settings: BatchSettings, delay: BatchDelay = NO_DELAY
) -> BatchDecision:
    """``queue``: the jobs in order of service, none expired at ``now`` (the queue's ``sweep`` comes first). ``delay``
    counts for settings that send by expectation. Any thread.

    The jobs up to a preferred size are the best batch, later sizes before earlier ones. Without one, a batch leaves
    that cannot grow any more: it is as large as the largest preferred size, or the next job would overflow it or has
    another key. All others wait until the oldest job has waited ``max_delay``; then preferred sizes do not count any
    more, and all that fits leaves.
    """
    if settings.max_batch_size <= 0:
        return ONE if any(True for _ in queue) else NOTHING
    preferred = settings.preferred or (settings.max_batch_size,)
    largest = max(preferred)
    taken, rows, best, closed, oldest = _walk(queue, settings.max_batch_size, preferred, largest)
    if not taken:
        return NOTHING
    max_delay = settings.max_delay
    late = max_delay > 0 and now >= oldest + max_delay
    if best and not late:
        return BatchDecision(best)
    if closed or late or rows >= largest:
        return BatchDecision(taken)
    if max_delay > 0:
        return BatchDecision(0, oldest + max_delay, _next_size(rows, settings))
    if settings.send is SendWhen.EXPECT and rows < delay.rows and now < delay.until:
        return BatchDecision(0, delay.until, min(_next_size(rows, settings), delay.rows))
    return BatchDecision(taken)


def _walk(
    queue: Iterable[BatchJob], maximum: int, preferred: Collection[int], largest: int
) -> tuple[int, int, int, bool, float]:
    """Finds what fits into one batch, from the head: how many jobs, with how many rows; how many of them are the best
    batch (0: none is); whether no more jobs could be added; when the oldest was queued."""
    taken = rows = best = 0
    oldest, key = inf, None
    for job in queue:
        size = job.rows
        if not taken:
            key = job.key
        else:
            if not best and rows + size > largest:
                best = taken
            if rows + size > maximum or job.key != key:
                return taken, rows, best, True, oldest
        taken += 1
        rows += size
        if job.enqueued < oldest:
            oldest = job.enqueued
        if rows in preferred:
            best = taken
        if rows >= maximum:
            return taken, rows, best, True, oldest
    return taken, rows, best, False, oldest


def _next_size(rows: int, settings: BatchSettings) -> int:
    """How many rows make another decision possible, for a queue of ``rows`` that waits as a whole."""
    if settings.priority_levels > 1 or settings.policy(settings.priority_levels).timeout_action is TimeoutAction.DELAY:
        return rows + 1  # jobs may arrive before others, and what is ahead of those has any size then
    return min((size for size in settings.preferred if size > rows), default=settings.max_batch_size)
