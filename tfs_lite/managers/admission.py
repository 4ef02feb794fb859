"""Whether a load may start now: a pure decision over what is held, what is being freed and which loads wait.

A load that does not fit is *parked* while anything is in flight that may free memory, and decided again each time
something ended. Parked loads are served in the order of their arrival. A later load goes ahead of them only if it
fits together with all of them once the versions now on their way out are gone. Then it takes no memory that a parked
load waits for, and one long request of one model does not hold up the models that have room.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.managers.resource_tracker import ResourceTracker


class Admission(enum.Enum):
    """The decision about one load."""

    ADMIT = "admit"
    """Reserve its memory and load."""
    PARK = "park"
    """Wait until something ended."""
    REFUSE = "refuse"
    """RESOURCE_EXHAUSTED: it never fits, or nothing is in flight that could make room."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Estimates of all other versions, or sums of them: those that stay (ready, approved, loading), those that are
    leaving, and the loads parked ahead. ``in_flight``: whether anything may still free memory."""

    staying: Sequence[ResourceAllocation]
    leaving: Sequence[ResourceAllocation]
    ahead: Sequence[ResourceAllocation]
    in_flight: bool

    @property
    def used(self) -> list[ResourceAllocation]:
        return [*self.staying, *self.leaving]


def decide(tracker: ResourceTracker, demand: Demand, wanted: ResourceAllocation) -> Admission:
    """``wanted`` was verified and normalised by the tracker. Wanting nothing is always admitted.

    A load that does not fit and finds others parked ahead is parked too: they are decided again in order.
    """
    if not wanted.entries:
        return Admission.ADMIT
    if not tracker.fits((), wanted):
        return Admission.REFUSE
    harmless = not demand.ahead or tracker.fits([*demand.staying, *demand.ahead], wanted)
    if harmless and tracker.fits(demand.used, wanted):
        return Admission.ADMIT
    return Admission.PARK if demand.in_flight or demand.ahead else Admission.REFUSE
