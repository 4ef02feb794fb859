"""The calls of one signature on their way to a model: they never share a run with those of another signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import Signature
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.batching.batch_delay import Expectation
from tfs_lite.schedulers.batching.forming import Decision, form_batch
from tfs_lite.schedulers.batching.job import Job
from tfs_lite.schedulers.batching.queue import JobQueue
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import BatchSettings, SendWhen

NEWEST = 0.2
"""What the newest run counts in the average."""
MARGIN = 1.25
"""Waits differ; one that would hardly end in time is too long."""

RuleOf = Callable[[Signature, BatchSettings], BatchRule | None]
"""Which calls of a signature may share a run; None: every one runs alone."""


class SignatureQueue:
    """One signature. Its owner locks around everything but ``job``, ``refusal`` and what never changes.

    ``wake_rows``: with fewer waiting, the last decision stands.
    """

    __slots__ = ("_name", "_run_seconds", "expectation", "key", "queue", "rule", "settings", "wake_rows")

    def __init__(self, key: str, signature: Signature, settings: BatchSettings, name: str, rule_of: RuleOf) -> None:
        self.key = key
        self.rule = rule_of(signature, settings) if settings.merges else None
        self.settings = self.rule.settings if self.rule is not None else replace(settings, max_batch_size=0)
        self.queue = JobQueue(self.settings, name)
        self.expectation = Expectation()
        self.wake_rows = 1
        self._name = name
        self._run_seconds = 0.0  # of the runs lately, the last ones counting most

    def job(self, call: PredictCall, now: float) -> Job:
        """The call as it waits."""
        expires, rule = call.deadline, self.rule
        if expires is None:
            expires = inf
        if rule is None:
            return Job(call, 1, None, now, expires=expires)
        size = rule.rows(call.inputs)
        return Job(call, size or 1, rule.key(call.inputs), now, size, expires=expires)

    def refusal(self, job: Job) -> Status | None:
        """INVALID_ARGUMENT for a call that no batch can take."""
        return None if self.rule is None else self.rule.refusal(job.size, self._name)

    def is_large(self, job: Job) -> bool:
        """Whether the call has more rows than a run."""
        return self.rule is not None and job.size > self.settings.max_batch_size

    def add(self, job: Job) -> bool:
        """Whether a lane should decide anew."""
        queue = self.queue
        head = queue.head  # a queue that an idle lane has left waiting has one key
        changed = head is not None and head.key != job.key
        queue.add(job)
        return changed or queue.rows >= self.wake_rows

    def remove(self, job: Job) -> bool:
        """Whether the job was waiting still."""
        removed = self.queue.remove(job)
        if removed:
            self.wake_rows = 1  # the last decision was made about another queue
        return removed

    def clear(self) -> list[Job]:
        """All jobs."""
        self.wake_rows = 1
        return self.queue.clear()

    def sweep(self, now: float) -> list[tuple[Job, Status]]:
        """The jobs that have waited too long, with what they are answered."""
        self.wake_rows = 1  # the last decision was made about another queue
        return self.queue.sweep(now)

    def ended(self, now: float, rows: int, seconds: float, strained: bool) -> None:
        """A run has ended, with so many rows, after so many seconds."""
        self._run_seconds += (seconds - self._run_seconds) * (NEWEST if self._run_seconds else 1.0)
        self.expectation.ended(now, rows + self.queue.rows, strained)

    def lateness(self, job: Job, lanes: int) -> Status | None:
        """UNAVAILABLE for a job that would only be answered when its deadline has passed, by what runs have taken
        lately: to let it wait would cost those behind it their time, too. Judged only where full batches wait."""
        ahead = self.queue.rows // max(self.settings.max_batch_size, 1)
        if not ahead or job.expires == inf:
            return None
        wait = (ahead / lanes + 1) * self._run_seconds
        if job.enqueued + wait * MARGIN <= job.expires:
            return None
        return Status(
            StatusCode.UNAVAILABLE,
            f"{self._name} is overloaded: {self.queue.rows} rows wait, and the request would not be answered before "
            "its deadline; try again later",
        )

    def decide(self, now: float) -> Decision:
        queue, settings = self.queue, self.settings
        if settings.send is SendWhen.EXPECT:
            return form_batch(queue, now, settings, self.expectation.patience(queue.youngest))
        return form_batch(queue, now, settings)

    def take(self, decision: Decision) -> list[Job]:
        """The jobs of a decision to send."""
        self.wake_rows = 1
        return self.queue.take(decision.take)
