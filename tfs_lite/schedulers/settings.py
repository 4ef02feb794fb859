"""How requests wait and are put together: one set of settings behind TensorFlow Serving's and Triton's.

Sizes are in rows (the first dimension), times in seconds. A settings object is a value; where it comes from, files or
flags, is other rooms' business.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class TimeoutAction(enum.Enum):
    """What becomes of a call that has waited longer than its timeout."""

    REJECT = "it is answered UNAVAILABLE"
    DELAY = "it goes behind the calls of its level that have not waited so long"


class SendWhen(enum.Enum):
    """When a batch leaves that could still grow, while an instance is free."""

    GREEDY = "at once"
    WAIT = "when its oldest call has waited max_delay"
    EXPECT = "when no more calls are to be expected soon, judged by the batches before"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Of one priority level. ``default_timeout`` 0: none, and then a call's own does not count either.
    ``max_queue_size`` counts calls, those that are delayed included; 0: no bound but those of all levels together."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout: float = 0.0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """``max_batch_size`` 0: every call runs alone, exactly as it came; priorities and policies still count."""

    max_batch_size: int = 0
    """The most rows of one run."""
    max_request_rows: int = 0
    """The most rows of one call; 0: as many as a run may have. Larger ones than a run need ``split_large``."""
    preferred: tuple[int, ...] = ()
    """Sizes worth sending at once; empty: ``max_batch_size`` alone."""
    max_delay: float = 0.0
    send: SendWhen = SendWhen.GREEDY
    allowed_sizes: tuple[int, ...] = ()
    """Ascending. Runs are filled up with copies of a row to the next of these; empty: any size is run."""
    pad_variable_length: bool = False
    """Whether dimensions that differ between calls are filled up to the longest."""
    split_large: bool = False
    max_queued_rows: int = 0
    """0: no bound but that of calls."""
    max_queued_calls: int = 1000
    priority_levels: int = 0
    default_priority: int = 0
    default_policy: QueuePolicy = field(default_factory=QueuePolicy)
    policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    preserve_ordering: bool = False

    @property
    def merges(self) -> bool:
        """Whether calls may share a run."""
        return self.max_batch_size > 0

    def policy(self, level: int) -> QueuePolicy:
        return self.policies.get(level, self.default_policy)


ALONE = BatchSettings()
"""The default scheduler: every call runs alone, in order of arrival."""
