"""May this load start now? A pure decision over what is held, what is leaving and who waits.

A load that does not fit is *parked* while anything is in flight that may free memory, and decided again each time
something ended. Parked loads are served in the order of their arrival. A later load goes ahead of them only if it
fits together with all of them once the versions now on their way out are gone: then it cannot take the place of
anybody who waits, and one long request of one model does not hold up the models that have room.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.managers.resource_tracker import ResourceTracker


class Verdict(enum.Enum):
    """The answer to one load."""

    ADMIT = "admit"
    """Reserve its memory and load."""
    PARK = "park"
    """Wait until something ended."""
    REFUSE = "refuse"
    """RESOURCE_EXHAUSTED: it never fits, or nothing is in flight that could make room."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Estimates of everybody else: who stays (ready, approved, loading), who is leaving, who is parked ahead."""

    staying: Sequence[ResourceAllocation]
    leaving: Sequence[ResourceAllocation]
    ahead: Sequence[ResourceAllocation]
    in_flight: bool

    @property
    def used(self) -> list[ResourceAllocation]:
        return [*self.staying, *self.leaving]


def decide(tracker: ResourceTracker, demand: Demand, wanted: ResourceAllocation) -> Verdict:
    """``wanted`` was verified and normalised by the tracker. Wanting nothing is always admitted.

    Whoever finds others parked ahead waits with them: they are about to be decided, in order.
    """
    if not wanted.entries:
        return Verdict.ADMIT
    if not tracker.fits((), wanted):
        return Verdict.REFUSE
    harmless = not demand.ahead or tracker.fits([*demand.staying, *demand.ahead], wanted)
    if harmless and tracker.fits(demand.used, wanted):
        return Verdict.ADMIT
    return Verdict.PARK if demand.in_flight or demand.ahead else Verdict.REFUSE
