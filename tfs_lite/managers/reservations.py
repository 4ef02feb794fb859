"""Reserved memory: how much each version holds, which load may start, and which waits for room.

A harness that holds resources counts with its ``estimate``, taken before the load and again after it. The decision
about a load is :func:`tfs_lite.managers.admission.decide`; this class gathers what it needs and carries it out.
"""

from __future__ import annotations

import logging

from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.managers.admission import Admission, Demand, decide
from tfs_lite.managers.harness import HOLDS_RESOURCES, HarnessState, LoaderHarness
from tfs_lite.managers.registry import Registry
from tfs_lite.managers.resource_tracker import ResourceTracker

logger = logging.getLogger(__name__)


class Reservations:
    """``estimate`` and ``estimate_loaded`` call the loader: without the registry's lock. The rest: with it held."""

    def __init__(self, registry: Registry, tracker: ResourceTracker | None) -> None:
        self._registry = registry
        self._tracker = tracker
        self._parked: list[LoaderHarness] = []  # guarded by the registry's lock; first come, first served

    def estimate(self, loader: Loader) -> ResourceAllocation:
        """What the version will need. Nothing without a tracker. Raises what the loader raises, and INVALID_ARGUMENT
        for a device that the machine does not have."""
        if self._tracker is None:
            return NO_RESOURCES
        return self._tracker.verify(loader.estimate_resources())

    def estimate_loaded(self, loader: Loader, before: ResourceAllocation) -> ResourceAllocation:
        """What the version takes now that it is loaded; the estimate from before the load if the loader cannot say."""
        try:
            return self.estimate(loader)
        except Exception:
            logger.exception("no estimate after loading; the one from before the load stays: %s", before)
            return before

    def decide(self, harness: LoaderHarness) -> Admission:
        """Approves the load, parks it, or ends it with RESOURCE_EXHAUSTED."""
        admission = Admission.ADMIT
        if self._tracker is not None:
            admission = decide(self._tracker, self._demand(), harness.estimate)
        if admission is Admission.ADMIT:
            harness.transition(HarnessState.LOAD_APPROVED)
        elif admission is Admission.PARK:
            self._parked.append(harness)
        else:
            harness.error(self._exhausted(harness))
        return admission

    def hold_beside(self, harness: LoaderHarness) -> None:
        """Keeps a second load of a managed version beside it, with its memory; RESOURCE_EXHAUSTED if there is no room,
        or others wait for it."""
        if self._tracker is not None and decide(self._tracker, self._demand(), harness.estimate) is not Admission.ADMIT:
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

    def is_parked(self, harness: LoaderHarness) -> bool:
        """Whether the load waits for memory."""
        return harness in self._parked

    def _demand(self) -> Demand:
        return Demand(
            staying=self._held(leaving=False),
            leaving=self._held(leaving=True),
            ahead=[harness.estimate for harness in self._parked],
            in_flight=any(harness.in_flight for harness in self._registry.in_memory()),
        )

    def _held(self, *, leaving: bool) -> list[ResourceAllocation]:
        holders = (harness for harness in self._registry.in_memory() if harness.state in HOLDS_RESOURCES)
        return [harness.estimate for harness in holders if harness.is_leaving is leaving]

    def _exhausted(self, harness: LoaderHarness) -> Status:
        assert self._tracker is not None  # without a tracker every load is admitted
        held = [*self._held(leaving=False), *self._held(leaving=True)]
        figures = self._tracker.explain(held, harness.estimate)
        message = f"Insufficient resources to load servable {harness.id}: {figures}"
        return Status(StatusCode.RESOURCE_EXHAUSTED, message)
