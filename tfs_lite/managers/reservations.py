"""Reserved memory: how much each version holds, which load may start, and which waits for room.

A harness that holds resources counts with its ``estimate``, taken before the load and again after it. The decision
about a load is :func:`tfs_lite.managers.admission.decide`; this class gathers what it needs and carries it out.
"""

from __future__ import annotations

import logging

from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation, RunningTotal
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.managers.admission import Admission, Demand, decide
from tfs_lite.managers.harness import HarnessState, LoaderHarness
from tfs_lite.managers.registry import Registry
from tfs_lite.managers.resource_tracker import ResourceTracker

logger = logging.getLogger(__name__)


class Reservations:
    """``estimate`` and ``estimate_loaded`` call the loader, ``measure`` reads files: without the registry's lock. The
    rest: with it held."""

    def __init__(self, registry: Registry, tracker: ResourceTracker | None) -> None:
        self._registry = registry
        self._tracker = tracker
        # Guarded by the registry's lock:
        self._parked: dict[LoaderHarness, None] = {}  # first come, first served
        self._ahead = RunningTotal()  # the memory of the parked loads
        self._decided_at = -1  # the registry's ``room_changes`` when the parked loads were decided last

    def estimate(self, loader: Loader) -> ResourceAllocation:
        """The resources that the version will need; none without a tracker. Raises the loader's error, and
        INVALID_ARGUMENT for a device that the machine does not have."""
        if self._tracker is None:
            return NO_RESOURCES
        self._tracker.measure()
        return self._tracker.verify(loader.estimate_resources())

    def estimate_loaded(
        self, servable_id: ServableId, loader: Loader, before: ResourceAllocation
    ) -> ResourceAllocation:
        """The resources that the version takes now that it is loaded; the estimate from before the load if the loader
        cannot say."""
        try:
            return self.estimate(loader)
        except BaseException:
            logger.exception(
                "%s: its memory is not known; the estimate from before the load stays: %s", servable_id, before
            )
            return before

    def measure(self) -> None:
        """Measures the memory that is held outside models, for the next decisions."""
        if self._tracker is not None:
            self._tracker.measure()

    def decide(self, harness: LoaderHarness) -> Admission:
        """Approves the load, parks it, or ends it with RESOURCE_EXHAUSTED."""
        admission = self._admission(harness)
        if admission is Admission.ADMIT:
            harness.transition(HarnessState.LOAD_APPROVED)
        elif admission is Admission.PARK:
            self._parked[harness] = None
            self._ahead.add(harness.estimate)
        else:
            harness.error(self._exhausted(harness))
            harness.refused_as_measured = self._tracker is not None and self._tracker.is_measured
        return admission

    def hold_beside(self, harness: LoaderHarness) -> None:
        """Keeps a second load of a managed version, with its memory, beside the first; RESOURCE_EXHAUSTED if there is
        no room, or others wait for it."""
        if self._admission(harness) is not Admission.ADMIT:
            refusal = self._exhausted(harness)
            raise ServingError(refusal.code, refusal.message)
        self._registry.keep_beside(harness)

    def decide_parked(self) -> list[LoaderHarness]:
        """Decides the parked loads again, in order, if anything has changed that they may wait for. Returns those that
        are no longer parked."""
        if not self._parked or self._decided_at == self._registry.room_changes:
            return []
        self._decided_at = self._registry.room_changes
        candidates, self._parked, self._ahead = list(self._parked), {}, RunningTotal()
        return [harness for harness in candidates if self.decide(harness) is not Admission.PARK]

    def forget(self, harness: LoaderHarness) -> None:
        """Takes a load that is no longer wanted from the parked ones."""
        if harness in self._parked:
            del self._parked[harness]
            self._ahead.take(harness.estimate)
            self._decided_at = -1

    def fits_again(self, harness: LoaderHarness) -> bool:
        """Whether a load that was refused when more was held outside models fits by the latest measurement."""
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
        demand, changing = self._demand(), bool(self._registry.moving)
        self._tracker.settle(demand.used, in_flight=changing)
        return decide(self._tracker, demand, harness.estimate)

    def _demand(self) -> Demand:
        return Demand(
            staying=[self._registry.staying.value],
            leaving=[self._registry.leaving.value],
            ahead=[self._ahead.value] if self._parked else [],
            in_flight=self._registry.in_flight,
        )

    def _exhausted(self, harness: LoaderHarness) -> Status:
        assert self._tracker is not None  # without a tracker every load is admitted
        figures = self._tracker.explain(self._demand().used, harness.estimate)
        message = f"Insufficient resources to load servable {harness.id}: {figures}"
        return Status(StatusCode.RESOURCE_EXHAUSTED, message)
