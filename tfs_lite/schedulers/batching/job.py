"""One call while it waits: what the queue and the forming of batches have to know about it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf

from tfs_lite.core.model import PredictCall


@dataclass(slots=True, eq=False)
class Job:
    """``key``: jobs share a run only if their keys are equal. ``rows`` is what the job adds to a batch, at least 1 also
    for a call without rows. Times are those of the servable's clock.

    ``expires`` ends the wait by the deadline of the call; ``times_out`` by the queue's timeout, which a level with the
    action DELAY answers by moving the job, once. ``gone``: it has left the queue, whatever for.
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
