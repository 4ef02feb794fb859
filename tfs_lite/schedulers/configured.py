"""What configs say, as the settings of a batcher: a model's ``dynamic_batching``, or TensorFlow Serving's file.

Pure functions. Sizes that a config allows and the model does not bear are lowered here, so that the batcher has one
number to keep to.
"""

from __future__ import annotations

from tfs_lite.config.batching import BatchingParameters
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import DynamicBatching, ModelQueuePolicy
from tfs_lite.schedulers.settings import BatchSettings, QueuePolicy, SendWhen, TimeoutAction

DEFAULT_MAX_BATCH = 1000
"""Rows; TensorFlow Serving's default."""
MAX_SECONDS = 1e9
"""Longer times, which configs may ask for, are not told from one another; clocks and locks do not bear them."""


def settings_of_model(
    settings: ModelSettings, signature_max: int | None, max_queued_calls: int
) -> BatchSettings | None:
    """What the model's config says; None: nothing about batching.

    ``signature_max``: the most rows that the signature takes; None: any number. With neither that nor a
    ``max_batch_size`` in the config, a run has at most ``DEFAULT_MAX_BATCH`` rows. Signatures without a batch dimension
    are no business of these settings: their calls run alone in any case.
    """
    batching = settings.dynamic_batching
    if batching is None:
        return None
    largest = _least(settings.max_batch_size, signature_max or 0) or DEFAULT_MAX_BATCH
    levels = batching.priority_levels
    delay = _seconds(batching.max_queue_delay_microseconds)
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
    """What TensorFlow Serving's file says. ``model_max``: the most rows of one run that the model bears; 0: any number.

    Where that is less than the file's largest batch, it becomes the largest allowed size.
    """
    splits = parameters.enable_large_batch_splitting
    largest = _least(parameters.execution_batch_size, model_max)
    largest_request = parameters.max_batch_size if splits else largest
    delay = _seconds(parameters.batch_timeout_micros)
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


def _least(one: int, other: int) -> int:
    """The smaller of two bounds of which 0 is none."""
    return min(one, other) if one and other else one or other


def _preferred(batching: DynamicBatching, largest: int) -> tuple[int, ...]:
    """A size that the model does not bear means its largest."""
    return tuple(dict.fromkeys(min(size, largest) for size in batching.preferred_batch_size))


def _allowed(sizes: tuple[int, ...], largest: int) -> tuple[int, ...]:
    return (*(size for size in sizes if size < largest), largest) if sizes else ()


def _policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        TimeoutAction[policy.timeout_action],
        _seconds(policy.default_timeout_microseconds),
        policy.allow_timeout_override,
        policy.max_queue_size,
    )


def _seconds(microseconds: int) -> float:
    return min(microseconds / 1e6, MAX_SECONDS)
