"""How requests wait and are put together: one set of settings behind TensorFlow Serving's and Triton's.

Sizes are in rows (the first dimension), times in seconds. The settings are values, made by pure functions from what
configs say: a model's ``dynamic_batching``, or TensorFlow Serving's file. Sizes that a config allows and the model does
not are lowered here, so that the batcher has one number to keep to.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tfs_lite.config.batching import BatchingParameters
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import DynamicBatching, ModelQueuePolicy


class TimeoutAction(enum.Enum):
    """The action for a call that has waited longer than its timeout."""

    REJECT = "it is answered UNAVAILABLE"
    DELAY = "it goes behind the calls of its level that have not waited so long"


class SendWhen(enum.Enum):
    """The moment when a batch leaves that could still grow, while an instance is free."""

    GREEDY = "at once"
    WAIT = "when its oldest call has waited max_delay"
    EXPECT = "when no more calls are to be expected soon, judged by the batches before"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The policy of one priority level. ``default_timeout`` 0 means none, and then a call's own does not count either.
    ``max_queue_size`` counts calls, those that are delayed included; with 0 only the bounds of all levels count."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout: float = 0.0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The settings of a batcher. With ``max_batch_size`` 0 every call runs alone, exactly as it came; priorities and
    policies still count."""

    max_batch_size: int = 0
    """The most rows of one run."""
    max_request_rows: int = 0
    """The most rows of one call; 0: as many as a run may have. Larger ones than a run need ``split_large``."""
    preferred: tuple[int, ...] = ()
    """Sizes worth sending at once; empty: ``max_batch_size`` alone."""
    max_delay: float = 0.0
    send: SendWhen = SendWhen.GREEDY
    allowed_sizes: tuple[int, ...] = ()
    """The batch sizes that may run, ascending. Runs are filled up with copies of a row to the next of these; empty: any
    size is run."""
    pad_variable_length: bool = False
    """Whether dimensions that differ between calls are filled up to the longest."""
    split_large: bool = False
    max_queued_rows: int = 0
    """The most queued rows; 0: no bound but that of calls."""
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


DEFAULT_MAX_BATCH = 1000
"""Rows; TensorFlow Serving's default."""
MAX_SECONDS = 1e9
"""The longest time in seconds: longer ones, which configs may ask for, are lowered to this: clocks and locks do not
take them."""


def settings_of_model(
    settings: ModelSettings, signature_max: int | None, max_queued_calls: int
) -> BatchSettings | None:
    """Returns what the model's config says; None if it says nothing about batching.

    ``signature_max`` is the most rows that the signature takes; None means any number. With neither that nor a
    ``max_batch_size`` in the config, a run has at most ``DEFAULT_MAX_BATCH`` rows. Signatures without a batch dimension
    are not concerned: their calls run alone in any case.
    """
    batching = settings.dynamic_batching
    if batching is None:
        return None
    largest = _least(settings.max_batch_size, signature_max or 0) or DEFAULT_MAX_BATCH
    levels = batching.priority_levels
    delay = seconds_of(batching.max_queue_delay_microseconds)
    return BatchSettings(
        max_batch_size=largest,
        max_request_rows=largest,
        preferred=_preferred(batching, largest),
        max_delay=delay,
        send=SendWhen.WAIT if delay else SendWhen.EXPECT,
        max_queued_calls=max_queued_calls,
        priority_levels=levels,
        default_priority=batching.default_priority_level if levels else 0,
        default_policy=_policy(batching.default_queue_policy),
        policies={level: _policy(policy) for level, policy in batching.priority_queue_policy.items()},
        preserve_ordering=batching.preserve_ordering,
    )


def settings_of_parameters(parameters: BatchingParameters, model_max: int, max_queued_calls: int) -> BatchSettings:
    """Returns what TensorFlow Serving's file says. ``model_max`` is the most rows of one run that the model takes; 0
    means any number. Where that is less than the file's largest batch, it becomes the largest allowed size.
    """
    splits = parameters.enable_large_batch_splitting
    largest = _least(parameters.execution_batch_size, model_max)
    largest_request = parameters.max_batch_size if splits else largest
    delay = seconds_of(parameters.batch_timeout_micros)
    return BatchSettings(
        max_batch_size=largest,
        max_request_rows=largest_request,
        max_delay=delay,
        send=SendWhen.WAIT if delay else SendWhen.EXPECT,
        allowed_sizes=_allowed(parameters.allowed_batch_sizes, largest),
        pad_variable_length=parameters.pad_variable_length_inputs,
        split_large=splits,
        max_queued_rows=max(parameters.enqueued_batches * largest, largest_request),
        max_queued_calls=max_queued_calls,
    )


def filled_up(settings: BatchSettings, rows: tuple[int, ...]) -> BatchSettings:
    """Batches are filled up to the next of these numbers of rows, which the model runs faster than others. Nothing
    changes where the config names the sizes, or the model does not run the largest batch fast."""
    if not settings.merges or settings.allowed_sizes or settings.max_batch_size not in rows:
        return settings
    return replace(settings, allowed_sizes=tuple(size for size in rows if size <= settings.max_batch_size))


def rows_of_runs(settings: BatchSettings, most: int = 16) -> tuple[int, ...]:
    """The numbers of rows that runs will mostly have, ascending, at most so many: the allowed sizes; without any, the
    preferred ones and the powers of two, to the largest. Where calls run alone, 1: the others are not known. If there
    are too many, every second one goes, and so on, from the second largest on."""
    if not settings.merges:
        return (1,)
    largest = settings.max_batch_size
    powers = (1 << power for power in range(largest.bit_length()))
    found = sorted(settings.allowed_sizes or {*powers, *settings.preferred, largest})
    while len(found) > most:
        found = found[::-2][::-1]
    return tuple(found)


def _least(one: int, other: int) -> int:
    """The smaller of two bounds; 0 means no bound."""
    return min(one, other) if one and other else one or other


def _preferred(batching: DynamicBatching, largest: int) -> tuple[int, ...]:
    """A size that is too large for the model is lowered to its largest."""
    return tuple(dict.fromkeys(min(size, largest) for size in batching.preferred_batch_size))


def _allowed(sizes: tuple[int, ...], largest: int) -> tuple[int, ...]:
    return (*(size for size in sizes if size < largest), largest) if sizes else ()


def _policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        TimeoutAction[policy.timeout_action],
        seconds_of(policy.default_timeout_microseconds),
        policy.allow_timeout_override,
        policy.max_queue_size,
    )


def seconds_of(microseconds: int) -> float:
    return min(microseconds / 1e6, MAX_SECONDS)
