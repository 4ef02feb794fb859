"""Reserved memory: how much each version holds, which load may start, and which waits for room.

A harness that holds resources counts with its ``estimate``, taken before the load and again after it. The decision
about a load is :func:`tfs_lite.managers.admission.decide`; this class gathers what it needs and carries it out.
"""

from __future__ import annotations

import logging
from collections.abc import Container

from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.managers.admission import Admission, Demand, decide
from tfs_lite.managers.harness import HOLDS_RESOURCES, IN_FLIGHT, LEAVING, HarnessState, LoaderHarness
from tfs_lite.managers.registry import Registry
from tfs_lite.managers.resource_tracker import ResourceTracker

logger = logging.getLogger(__name__)

_STAYING = HOLDS_RESOURCES - LEAVING


class Reservations:
    """``estimate`` and ``estimate_loaded`` call the loader, ``measure`` reads files: without the registry's lock. The
    rest: with it held."""

    def __init__(self, registry: Registry, tracker: ResourceTracker | None) -> None:
        self._registry = registry
        self._tracker = tracker
        self._parked: list[LoaderHarness] = []  # guarded by the registry's lock; first come, first served

    def estimate(self, loader: Loader) -> ResourceAllocation:
        """What the version will need. Nothing without a tracker. Raises what the loader raises, and INVALID_ARGUMENT
        for a device that the machine does not have."""
        if self._tracker is None:
            return NO_RESOURCES
        self._tracker.measure()
        return self._tracker.verify(loader.estimate_resources())

    def estimate_loaded(self, loader: Loader, before: ResourceAllocation) -> ResourceAllocation:
        """What the version takes now that it is loaded; the estimate from before the load if the loader cannot say."""
        try:
            return self.estimate(loader)
        except Exception:
            logger.exception("no estimate after loading; the one from before the load stays: %s", before)
            return before

    def measure(self) -> None:
        """Takes a new measurement of the memory that is held beside models, for the next decisions."""
        if self._tracker is not None:
            self._tracker.measure()

    def decide(self, harness: LoaderHarness) -> Admission:
        """Approves the load, parks it, or ends it with RESOURCE_EXHAUSTED."""
        admission = self._admission(harness)
        if admission is Admission.ADMIT:
            harness.transition(HarnessState.LOAD_APPROVED)
        elif admission is Admission.PARK:
            self._parked.append(harness)
        else:
            harness.error(self._exhausted(harness))
            harness.refused_as_measured = self._tracker is not None and self._tracker.is_measured
        return admission

    def hold_beside(self, harness: LoaderHarness) -> None:
        """Keeps a second load of a managed version beside it, with its memory; RESOURCE_EXHAUSTED if there is no room,
        or others wait for it."""
        if self._admission(harness) is not Admission.ADMIT:
            refusal = self._exhausted(harness)
            raise ServingError(refusal.code, refusal.message)
        self._registry.beside.add(harness)

    def decide_parked(self) -> list[LoaderHarness]:
        """Decides the parked loads again, in order. Returns those that are no longer parked."""
        candidates, self._parked = self._parked, []
        return [harness for harness in candidates if self.decide(harness) is not Admission.PARK]

    def forget(self, harness: LoaderHarness) -> None:
        """Takes a load that is no longer wanted from the parked ones."""
        if harness in self._parked:
            self._parked.remove(harness)

    def fits_again(self, harness: LoaderHarness) -> bool:
        """Whether a load that was refused when more was held beside models fits by the latest measurement."""
        return harness.refused_as_measured and self._admission(harness) is Admission.ADMIT

    @property
    def any_parked(self) -> bool:
        """Whether a load waits for memory."""
        return bool(self._parked)

    def is_parked(self, harness: LoaderHarness) -> bool:
        """Whether the load waits for memory."""
        return harness in self._parked

    def _admission(self, harness: LoaderHarness) -> Admission:
        if self._tracker is None:
            return Admission.ADMIT
        demand, changing = self._demand(), any(other.state in IN_FLIGHT for other in self._registry.in_memory())
        self._tracker.settle(demand.used, in_flight=changing)
        return decide(self._tracker, demand, harness.estimate)

    def _demand(self) -> Demand:
        return Demand(
            staying=self._held(_STAYING),
            leaving=self._held(LEAVING),
            ahead=[harness.estimate for harness in self._parked],
            in_flight=any(harness.in_flight for harness in self._registry.in_memory()),
        )

    def _held(self, states: Container[HarnessState]) -> list[ResourceAllocation]:
        return [harness.estimate for harness in self._registry.in_memory() if harness.state in states]

    def _exhausted(self, harness: LoaderHarness) -> Status:
        assert self._tracker is not None  # without a tracker every load is admitted
        figures = self._tracker.explain(self._held(HOLDS_RESOURCES), harness.estimate)
        message = f"Insufficient resources to load servable {harness.id}: {figures}"
        return Status(StatusCode.RESOURCE_EXHAUSTED, message)
