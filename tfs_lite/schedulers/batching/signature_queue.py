"""The calls of one signature on their way to a model: they never share a run with those of another signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import Signature
from tfs_lite.core.status import Status, queue_full
from tfs_lite.schedulers.batching.batch_delay import AdaptiveDelay
from tfs_lite.schedulers.batching.forming import NOTHING, ONE, BatchDecision, form_batch
from tfs_lite.schedulers.batching.queue import BatchJob, JobQueue
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import BatchSettings, SendWhen
from tfs_lite.schedulers.batching.sharing import Sharing
from tfs_lite.schedulers.calls import rows_of

NEWEST = 0.2
"""The weight of the newest run in the average."""
MARGIN = 2.0
"""A wait is too long if it would take more than half of the time that is left: estimates are not exact, and a machine
that is asked too much gets slower. A queue that is shorter than it could be still keeps every run full."""

RuleOf = Callable[[Signature, BatchSettings], BatchRule | None]
"""Returns which calls of a signature may share a run; None if every one runs alone."""


class SignatureQueue(JobQueue):
    """The calls of one signature that wait. Its owner locks around everything but ``job``, ``misfit`` and what never
    changes."""

    __slots__ = (
        *("_has_rows", "_run_seconds", "delay", "evidence", "key", "outputs", "rule", "sharing", "usual_rows"),
    )

    def __init__(self, key: str, signature: Signature, settings: BatchSettings, name: str, rule_of: RuleOf) -> None:
        self.rule = rule_of(signature, settings) if settings.merges else None
        super().__init__(self.rule.settings if self.rule is not None else replace(settings, max_batch_size=0), name)
        self.key = key
        self.outputs = signature.output_names
        self.sharing = Sharing(signature, self.rule)
        self.evidence = self.sharing.evidence
        self.delay = AdaptiveDelay()
        self.usual_rows: float = inf
        """A call of at most so many rows is neither refused for what it is nor larger than a run."""
        if self.rule is not None:
            self.usual_rows = -1 if self.rule.too_deep else min(self.rule.max_call_rows, self.settings.max_batch_size)
        self._has_rows = signature.max_rows > 0
        self._run_seconds = 0.0  # of the runs lately, the last ones counting most

    def job(self, call: PredictCall, now: float) -> BatchJob:
        """Makes the job of a call. Adds nothing."""
        expires, rule = call.deadline, self.rule
        if expires is None:
            expires = inf
        if rule is None or (self.sharing.unchecked is not None and self.sharing.is_alone(call.inputs)):
            size, key = rows_of(call.inputs) if self._has_rows else 1, None if rule is None else object()
            return BatchJob(call, 1, key, now, size, expires=expires, alone=True)
        size = rule.rows(call.inputs)
        lengths = self.sharing.lengths
        key = rule.key(call.inputs) if lengths is None else rule.key(call.inputs, exact=not lengths.may_fill)
        return BatchJob(call, size or 1, key, now, size, expires=expires)

    def room(self, call: PredictCall, rows: int, largest: int) -> int:
        """The rows of a call of so many that fill a batch which waits already, if it is split into parts of at most
        ``largest`` rows; 0: it fills none. While it is not known that the outputs follow the rows, parts have two
        numbers of rows: an output of a size of its own may look like rows in one of them and not in the other."""
        if self.evidence is not None and not self.evidence.shows(call.outputs):
            return 0 if rows % largest else largest - 1
        return -self.rows % largest if self.rule is None or self.rule.conditions is None else 0

    def misfit(self, job: BatchJob) -> Status | None:
        """Returns INVALID_ARGUMENT for a call that no batch can take."""
        return None if job.alone or self.rule is None else self.rule.refusal(job.size, self._name)

    def admit(self, job: BatchJob) -> bool:
        """Adds a job. Returns whether a worker should decide again."""
        head = self.head if self.count else None  # jobs that an idle worker has left waiting have one key
        self.add(job)
        return self.rows >= self.wake_rows or (head is not None and head.key != job.key)

    def ended(self, now: float, rows: int, seconds: float, saturated: bool) -> None:
        """A run of ``rows`` has ended after ``seconds``."""
        self._run_seconds += (seconds - self._run_seconds) * (NEWEST if self._run_seconds else 1.0)
        self.delay.ended(now, rows + self.rows, saturated)

    def overload(self, job: BatchJob, workers: int) -> Status | None:
        """UNAVAILABLE for a job that would only be answered after its deadline, judged by the latest run times: to let
        it wait would cost the jobs behind it their time, too. Judged only where full batches wait."""
        if job.expires == inf:
            return None
        ahead = self.rows // max(self.settings.max_batch_size, 1)
        if not ahead:
            return None
        wait = (ahead / workers + 1) * self._run_seconds
        return None if job.enqueued + wait * MARGIN <= job.expires else self._overloaded()

    def shed(self, now: float) -> list[tuple[BatchJob, Status]]:
        """Takes out the jobs at the head that a run would answer after their deadline, with the status UNAVAILABLE,
        while what is left fills a run: their run would be lost, and make those behind them late too."""
        late = list[tuple[BatchJob, Status]]()
        ends, full = now + self._run_seconds, self.settings.max_batch_size
        while full and self.rows > full and (head := self.head) is not None and head.expires < ends:
            self.remove(head)
            late.append((head, self._overloaded()))
        return late

    def _overloaded(self) -> Status:
        return queue_full(
            f"{self._name} is overloaded: {self.rows} rows wait, and the request would not be answered before "
            "its deadline; try again later"
        )

    def decide(self, now: float) -> BatchDecision:
        if self.evidence is not None and not self.evidence.may_share:
            return ONE if self.count else NOTHING
        if self.settings.send is SendWhen.EXPECT:
            return form_batch(self, now, self.settings, self.delay.current(self.youngest))
        return form_batch(self, now, self.settings)
