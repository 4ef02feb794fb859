"""How sequences wait and run: settings of the slots, of Direct and of Oldest, made from a model's
``sequence_batching``.

Values and pure functions. Times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.sequence import MAX_CANDIDATES, SequenceBatching, StrategyDirect, StrategyOldest
from tfs_lite.schedulers.batching.settings import BatchSettings, SendWhen, seconds_of

MAX_BACKLOG = 1000
MAX_QUEUED = 10_000


@dataclass(frozen=True, slots=True)
class SequenceSettings:
    """The slots of one servable. Everything that waits is bounded: ``max_queued`` counts all requests that wait, in
    slots and in the backlog, ``max_backlog`` those in the backlog alone. What has been taken to run counts nowhere.
    Raises ValueError for sizes below 1 and times that are not positive."""

    slots_per_instance: int = 1
    """How many sequences an instance has at once: Direct, its rows; Oldest, its candidates."""
    max_idle: float = 1.0
    """A sequence in a slot is forgotten when no request of it came for so long."""
    oldest: bool = False
    """Whether requests run together as Oldest has it instead of Direct. Which sequence has which slot is the same for
    both."""
    max_backlog: int = MAX_BACKLOG
    max_queued: int = MAX_QUEUED

    def __post_init__(self) -> None:
        if min(self.slots_per_instance, self.max_backlog, self.max_queued) < 1 or not self.max_idle > 0:
            raise ValueError(f"not a way to keep sequences: {self}")


@dataclass(frozen=True, slots=True)
class DirectSettings:
    """The settings that say when a Direct batch runs that is not full. The delay counts only if both are set; else it
    runs at once."""

    max_delay: float = 0.0
    """How long the oldest request may wait for others."""
    minimum_utilization: float = 0.0
    """The part of the slots, 0 to 1: with requests for so many, the batch does not wait."""


def sequence_settings_of(settings: ModelSettings, max_queued: int = MAX_QUEUED) -> SequenceSettings:
    """The slots. ``max_queued``: the most requests that wait, in all."""
    batching = settings.sequence_batching or SequenceBatching()
    slots = max(settings.max_batch_size, 1)
    if batching.oldest is not None:
        slots = batching.oldest.max_candidate_sequences or min(slots, MAX_CANDIDATES)
    return SequenceSettings(
        slots_per_instance=slots,
        max_idle=seconds_of(batching.max_sequence_idle_microseconds),
        oldest=batching.oldest is not None,
        max_backlog=max_queued,
        max_queued=max_queued,
    )


def direct_settings_of(settings: ModelSettings) -> DirectSettings:
    """The settings for Direct's batches; the defaults if the config does not say."""
    batching = settings.sequence_batching
    direct = (batching.direct if batching else None) or StrategyDirect()
    return DirectSettings(seconds_of(direct.max_queue_delay_microseconds), float(direct.minimum_slot_utilization))


def oldest_settings_of(settings: ModelSettings) -> BatchSettings:
    """The settings of the batcher of an instance. It never refuses for being full: it has at most one request of each
    candidate."""
    batching = settings.sequence_batching
    oldest = (batching.oldest if batching else None) or StrategyOldest()
    largest = settings.max_batch_size
    delay = seconds_of(oldest.max_queue_delay_microseconds) if largest else 0.0
    return BatchSettings(
        max_batch_size=largest,
        max_request_rows=min(largest, 1),
        preferred=tuple(dict.fromkeys(min(size, largest) for size in oldest.preferred_batch_size)) if largest else (),
        max_delay=delay,
        send=SendWhen.WAIT if delay else SendWhen.GREEDY,
        max_queued_calls=sequence_settings_of(settings).slots_per_instance,
        preserve_ordering=oldest.preserve_ordering,
    )
