"""The choice of calls of a lost batch that run once more: those for which that is safe, and never a call that ends
processes.

    Execution.run -> Loss -> Retries.choose: the jobs that are queued again; the owner answers the others UNAVAILABLE

A batch that nobody has read is safe. Of one that may have run, a call is safe that was in no lost process before, whose
deadline has not passed, and that belongs to no sequence, unless the model's config says that runs have effects
elsewhere (``retry_lost_batches: false``). A call that ends the process it is in so costs two processes; when two
batches have cost their second one within a minute, calls of the version are not run again for a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tfs_lite.core.model import WorkerBusy, WorkerLost
from tfs_lite.schedulers.batching.queue import BatchJob

POISON_SECONDS = 60.0
"""Seconds: two batches that were lost twice within this time switch retries off for as long."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A batch that came to no end, because its worker's process was lost or took no more requests. None of these jobs
    is answered. ``inside`` were in the run; ``behind`` were to run after it."""

    error: WorkerLost | WorkerBusy
    inside: Sequence[BatchJob]
    behind: Sequence[BatchJob] = ()

    @property
    def unread(self) -> bool:
        """Whether nobody can have run the batch."""
        return isinstance(self.error, WorkerBusy) or self.error.unread


class Retries:
    """Decides for one version. Its owner locks. ``allowed``: a batch that may have run may run again."""

    def __init__(self, allowed: bool = True) -> None:
        self._allowed = allowed
        self._poisoned = -inf  # when a batch was last lost for the second time
        self._off_until = -inf

    def choose(self, loss: Loss, now: float) -> list[BatchJob]:
        """The jobs that are to be queued again, in order. ``now`` and the deadlines are of one clock."""
        if loss.unread:
            return [*loss.inside, *loss.behind]
        if any(job.lost for job in loss.inside):
            if now - self._poisoned <= POISON_SECONDS:
                self._off_until = now + POISON_SECONDS
            self._poisoned = now
        again = [job for job in loss.inside if self._is_safe(job, now)]
        for job in again:
            job.lost = True
        return [*again, *loss.behind]

    def _is_safe(self, job: BatchJob, now: float) -> bool:
        if job.lost or job.call.sequence is not None or job.expires <= now:
            return False
        return self._allowed and now >= self._off_until
