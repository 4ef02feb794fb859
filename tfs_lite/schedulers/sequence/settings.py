"""How sequences wait and run. Values; where they come from is other rooms' business. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BACKLOG = 1000
MAX_QUEUED = 10_000


@dataclass(frozen=True, slots=True)
class SequenceSettings:
    """Of the slots of one servable. Everything that waits is bounded: ``max_queued`` counts all requests that wait, in
    slots and in the backlog, ``max_backlog`` those in the backlog alone. What has been taken to run counts nowhere.
    Raises ValueError for sizes below 1 and times that are not positive."""

    slots_per_instance: int = 1
    """How many sequences an instance has at once: Direct, its rows; Oldest, its candidates."""
    max_idle: float = 1.0
    """A sequence in a slot is forgotten when no request of it came for so long."""
    oldest: bool = False
    """Oldest instead of Direct: who runs together. Which sequence has which slot is the same for both."""
    max_backlog: int = MAX_BACKLOG
    max_queued: int = MAX_QUEUED

    def __post_init__(self) -> None:
        if min(self.slots_per_instance, self.max_backlog, self.max_queued) < 1 or not self.max_idle > 0:
            raise ValueError(f"not a way to keep sequences: {self}")


@dataclass(frozen=True, slots=True)
class DirectSettings:
    """When a Direct batch runs that is not full. The delay counts only if both are set; else it runs at once."""

    max_delay: float = 0.0
    """So long the oldest request may wait for others."""
    minimum_utilization: float = 0.0
    """0 to 1: with requests for this part of the slots, the batch does not wait."""
