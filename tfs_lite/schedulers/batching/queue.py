"""The jobs that wait for one signature of a model, in order of service. Bookkeeping only: its owner has lock and clock.

    refusal -> add -> take (they run) | remove (cancelled) | sweep (they waited too long) | clear (the model goes)
                 put_back (they have not run to the end) -> the same

Levels come strictly one after the other, the lowest number first. Within a level, jobs that the level's policy has
delayed come after the others; else the order is that of arrival. Level numbers may be anything, so levels are made when
jobs come, and all but a few go when they are empty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from tfs_lite.core.model import PredictCall
from tfs_lite.core.status import Reason, Status, StatusCode, queue_full
from tfs_lite.schedulers.batching.settings import BatchSettings, TimeoutAction

EMPTY_LEVELS = 8
"""How many levels are kept although no job waits in them."""


@dataclass(slots=True, eq=False)
class BatchJob:
    """One call while it waits. Jobs share a run only if their ``key`` is equal. ``rows`` is what the job adds to a
    batch, at least 1 also for a call without rows. Times are those of the servable's clock.

    ``expires`` ends the wait by the deadline of the call; ``times_out`` by the queue's timeout, which a level with the
    action DELAY answers by moving the job, once. ``gone`` is set when the job has left the queue, for any reason.
    ``again``: it has been put back; ``lost``: it was in a worker's process that was lost. ``alone``: its inputs are not
    as the signature says, so that they run as they are, neither padded nor split.
    """

    call: PredictCall
    rows: int
    key: Hashable
    enqueued: float
    size: int = 1
    """The rows that the call really has."""
    level: int = 0
    expires: float = inf
    times_out: float = inf
    delayed: bool = field(default=False)
    gone: bool = field(default=False)
    again: bool = field(default=False)
    lost: bool = field(default=False)
    alone: bool = field(default=False)


class JobQueue:
    """The waiting jobs of one signature, not for several threads at once. A job is added to at most one queue, at most
    once; ``add``, ``remove``, ``take`` and ``put_back`` are amortised O(1) per job. What has left the queue is marked
    ``gone``."""

    __slots__ = ("_by_number", "_levels", "_name", "count", "next_expiry", "rows", "settings", "wake_rows", "youngest")

    def __init__(self, settings: BatchSettings, name: str = "the model") -> None:
        """``name`` is the model that the jobs wait for, for messages."""
        self.settings = settings
        self._name = name
        self._levels: list[_Level] = []
        self._by_number: dict[int, _Level] = {}
        self.count = 0
        """The jobs that wait."""
        self.rows = 0
        """The rows of all jobs that wait."""
        self.next_expiry = inf
        """The time before which ``sweep`` finds nothing."""
        self.youngest = -inf
        """The time when the job that was added last was queued."""
        self.wake_rows = 1
        """The last decision about the queue stands while fewer rows wait. Whatever takes jobs out, moves them or puts
        them back makes it 1: that decision was about others."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[BatchJob]:
        """Yields the jobs in order of service. The queue must not change meanwhile."""
        if len(self._levels) == 1 and not self._levels[0].delayed.live:
            return iter(self._levels[0].fresh)
        return chain.from_iterable(fifo for level in self._levels for fifo in level.fifos)

    @property
    def head(self) -> BatchJob | None:
        """The job to be served next."""
        for level in self._levels:
            for fifo in level.fifos:
                if (job := fifo.head) is not None:
                    return job
        return None

    @property
    def oldest(self) -> float:
        """The time when the next job was queued: of the levels' next jobs, the first; inf if none waits. Without
        priorities and delays, none has waited longer."""
        heads = (fifo.head for level in self._levels for fifo in level.fifos)
        return min((job.enqueued for job in heads if job), default=inf)

    def refusal(self, job: BatchJob) -> Status | None:
        """Returns UNAVAILABLE if the job cannot wait here. Adds nothing. Sets ``level`` and ``times_out`` of the job by
        its call and the settings; ``enqueued`` and ``rows`` have to be right."""
        settings = self.settings
        priority = job.call.priority
        job.level = priority if 0 < priority <= settings.priority_levels else settings.default_priority
        policy, asked = settings.policy(job.level), job.call.timeout
        timeout = policy.default_timeout
        if policy.allow_timeout_override and 0 < asked < timeout:  # calls can only shorten it
            timeout = asked
        job.times_out = job.enqueued + timeout if timeout > 0 else inf
        if policy.max_queue_size:
            level = self._by_number.get(job.level)
            if level is not None and level.live >= policy.max_queue_size:
                return self._full(f"Exceeds maximum queue size: {level.live} requests wait for {self._name}")
        if self.count >= settings.max_queued_calls or (
            settings.max_queued_rows and self.rows + job.rows > settings.max_queued_rows
        ):
            text = "The batch scheduling queue to which this task was submitted is full"
            return self._full(f"{text}: {self.count} requests with {self.rows} rows wait for {self._name}")
        return None

    def add(self, job: BatchJob) -> None:
        """Appends the job to its level; one that is ``delayed`` to those that are delayed too."""
        level = self._by_number.get(job.level)
        if level is None:
            level = self._new_level(job.level)
        end = (level.delayed if job.delayed else level.fresh).append(job)
        if end < self.next_expiry:
            self.next_expiry = end
        self.count += 1
        self.rows += job.rows
        self.youngest = job.enqueued

    def put_back(self, jobs: Sequence[BatchJob]) -> None:
        """Puts jobs that were taken before all others of their levels, in this order. Only their deadlines end their
        wait now: the queue's timeout is for the wait before the first run."""
        for job in reversed(jobs):
            level = self._by_number.get(job.level) or self._new_level(job.level)
            job.gone, job.again, job.times_out = False, True, inf
            end = (level.delayed if job.delayed else level.fresh).prepend(job)
            self.next_expiry = min(self.next_expiry, end)
            self.count += 1
            self.rows += job.rows
            self.wake_rows = 1

    def remove(self, job: BatchJob) -> bool:
        """Takes out a job that was added. Returns False if it had left already."""
        if job.gone:
            return False
        job.gone = True
        level = self._by_number[job.level]
        (level.delayed if job.delayed else level.fresh).left(1)
        self._left(level, 1, job.rows)
        return True

    def sweep(self, now: float) -> list[tuple[BatchJob, Status]]:
        """Takes out the jobs whose deadline has passed (DEADLINE_EXCEEDED) or that have timed out where the policy says
        REJECT (UNAVAILABLE). Moves those that have timed out where it says DELAY; those do not time out again. In order
        of service."""
        if now < self.next_expiry:
            return []
        out: list[tuple[BatchJob, Status]] = []
        for level in self._levels[:]:
            before = len(out)
            for fifo in level.fifos:
                for job in fifo.pop_ended(now):
                    status = self._end(job, level, now)
                    if status is None:
                        job.delayed, job.times_out = True, inf
                        level.delayed.append(job)
                    else:
                        job.gone = True
                        out.append((job, status))
            self._left(level, len(out) - before, sum(job.rows for job, _ in out[before:]))
        self.next_expiry = min((fifo.bound for level in self._levels for fifo in level.fifos), default=inf)
        return out

    def take(self, count: int) -> list[BatchJob]:
        """Takes out the next ``count`` jobs, or all, in order of service."""
        taken: list[BatchJob] = []
        index = 0
        while len(taken) < count and index < len(self._levels):
            level = self._levels[index]
            before = len(taken)
            rows = sum(fifo.take(count - len(taken), taken) for fifo in level.fifos)
            if not self._left(level, len(taken) - before, rows):
                index += 1
        return taken

    def clear(self) -> list[BatchJob]:
        """Takes out all jobs, in order of service."""
        return self.take(self.count)

    def _left(self, level: _Level, jobs: int, rows: int) -> bool:
        """Records that ``jobs`` with ``rows`` have left a level. Returns whether the level is gone with them."""
        self.count -= jobs
        self.rows -= rows
        self.wake_rows = 1
        if not self.count:
            self.next_expiry = inf
        if level.live or len(self._levels) <= EMPTY_LEVELS:
            return False
        del self._by_number[level.number]
        del self._levels[bisect_left(self._levels, level.number, key=_number)]
        return True

    def _new_level(self, number: int) -> _Level:
        level = self._by_number[number] = _Level(number, self.settings.policy(number).timeout_action)
        self._levels.insert(bisect_left(self._levels, number, key=_number), level)
        return level

    def _end(self, job: BatchJob, level: _Level, now: float) -> Status | None:
        """The status of a job that has waited too long; None if it is to be delayed."""
        if job.expires <= now:
            return Status(
                StatusCode.DEADLINE_EXCEEDED, f"the deadline passed while the request waited for {self._name}"
            )
        if level.action is TimeoutAction.DELAY:
            return None
        message = f"Request timeout expired: the request has waited too long for {self._name}"
        return Status(StatusCode.UNAVAILABLE, message, Reason.QUEUE_TIMEOUT)

    def _full(self, reason: str) -> Status:
        return queue_full(f"{reason}, the most allowed; try again later")


class _Level:
    """The jobs of one priority."""

    __slots__ = ("action", "delayed", "fifos", "fresh", "number")

    def __init__(self, number: int, action: TimeoutAction) -> None:
        self.number = number
        self.action = action
        self.fresh = _Fifo()
        self.delayed = _Fifo()
        self.fifos = (self.fresh, self.delayed)

    @property
    def live(self) -> int:
        return self.fresh.live + self.delayed.live


class _Fifo:
    """Jobs in order of arrival. Those that are gone stay until they come to the head, or are more than the others.

    ``live`` is how many wait; none of them ends before ``bound``.
    """

    __slots__ = ("_ascending", "_jobs", "_last", "bound", "live")

    def __init__(self) -> None:
        self._jobs: deque[BatchJob] = deque()
        self._last = -inf  # when the job added last ends
        self._ascending = True  # no job ends before one that came earlier
        self.bound = inf
        self.live = 0

    def __iter__(self) -> Iterator[BatchJob]:
        if len(self._jobs) == self.live:
            return iter(self._jobs)
        return (job for job in self._jobs if not job.gone)

    @property
    def head(self) -> BatchJob | None:
        jobs = self._jobs
        while jobs and jobs[0].gone:
            jobs.popleft()
        return jobs[0] if jobs else None

    def append(self, job: BatchJob) -> float:
        """Returns when the job ends."""
        end = _end(job)
        if end < self._last:
            self._ascending = False
        if end < self.bound:
            self.bound = end
        self._last = end
        self._jobs.append(job)
        self.live += 1
        return end

    def prepend(self, job: BatchJob) -> float:
        """Returns when the job ends."""
        end, head = _end(job), self.head
        if head is None:
            return self.append(job)
        if end > _end(head):
            self._ascending = False
        self.bound = min(self.bound, end)
        self._jobs.appendleft(job)
        self.live += 1
        return end

    def take(self, count: int, into: list[BatchJob]) -> int:
        """Appends the next ``count`` jobs, or all, to ``into``; returns their rows."""
        jobs, rows, left = self._jobs, 0, count
        while left and jobs:
            job = jobs.popleft()
            if not job.gone:
                job.gone = True
                into.append(job)
                rows += job.rows
                left -= 1
        self.left(count - left)
        return rows

    def pop_ended(self, now: float) -> list[BatchJob]:
        """Takes out, in order, the jobs that end by ``now``. As long as jobs end in the order in which they came, it
        looks at no others."""
        if now < self.bound:
            return []
        ended: list[BatchJob] = []
        if not self._ascending:
            ended = [job for job in self if _end(job) <= now]
            self._refill([job for job in self if _end(job) > now])
            return ended
        while (job := self.head) and _end(job) <= now:
            ended.append(self._jobs.popleft())
        if job is not None:
            self.bound = _end(job)
        self.left(len(ended))
        return ended

    def left(self, jobs: int) -> None:
        """Records that ``jobs`` were taken out or marked gone."""
        self.live -= jobs
        if len(self._jobs) > 2 * self.live:
            self._refill(list(self))
        elif not self.live:
            self._reset()

    def _refill(self, jobs: list[BatchJob]) -> None:
        self._reset()
        for job in jobs:
            self.append(job)

    def _reset(self) -> None:
        self._jobs.clear()
        self._last = -inf
        self._ascending = True
        self.bound = inf
        self.live = 0


def _end(job: BatchJob) -> float:
    return job.expires if job.expires < job.times_out else job.times_out


def _number(level: _Level) -> int:
    return level.number
