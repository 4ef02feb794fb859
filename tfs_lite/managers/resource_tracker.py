"""Whether one more version fits: pure arithmetic over allocations, with the machine's totals.

The tracker remembers nothing but the totals. Who holds how much is known by the harnesses; the manager passes their
estimates in and decides under its own lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from tfs_lite.core.resources import NO_RESOURCES, Resource, ResourceAllocation, ResourceUtil
from tfs_lite.core.status import invalid_argument


class ResourceTracker:
    """Totals of a machine. Immutable; all methods may be called from any thread.

    An unbound entry ("8 GB on one of the GPUs") that is already in use counts against every instance until the loader
    names its GPU: accepting is safe, refusing may be too careful for the time of a load.
    """

    def __init__(self, util: ResourceUtil, total: ResourceAllocation) -> None:
        """INVALID_ARGUMENT if a total names an unknown device or does not name its instance."""
        self.total = util.normalize(total)
        if not self.total.bound:
            raise invalid_argument(f"the total of every resource must name its device instance: {total}")
        self._util = util

    def verify(self, allocation: ResourceAllocation) -> ResourceAllocation:
        """The allocation, normalised. INVALID_ARGUMENT if it names a device that the machine does not have."""
        return self._util.normalize(allocation)

    def recompute_used(self, allocations: Iterable[ResourceAllocation]) -> ResourceAllocation:
        """What all of them hold together."""
        return reduce(self._util.add, allocations, NO_RESOURCES)

    def reserve(self, used: ResourceAllocation, wanted: ResourceAllocation) -> ResourceAllocation | None:
        """``used`` with ``wanted`` added, or None if it does not fit. Only resources that ``wanted`` names matter."""
        if not self._util.less_than_or_equal(wanted, self._free(used)):
            return None
        return self._util.add(used, wanted)

    def fits(self, used: Iterable[ResourceAllocation], wanted: ResourceAllocation) -> bool:
        return self.reserve(self.recompute_used(used), wanted) is not None

    def explain(self, used: Iterable[ResourceAllocation], wanted: ResourceAllocation) -> str:
        """For every resource wanted: how much, how much is used, and the total. For messages."""
        held = self._util.overbind(self.recompute_used(used)).entries
        return "; ".join(
            f"{resource} wanted {quantity}{self._places(resource, held)}"
            for resource, quantity in self._util.normalize(wanted).entries.items()
        )

    def _free(self, used: ResourceAllocation) -> ResourceAllocation:
        held = self._util.overbind(used)
        return ResourceAllocation(
            {r: max(total - held.entries.get(r, 0), 0) for r, total in self.total.entries.items()}
        )

    def _places(self, resource: Resource, held: Mapping[Resource, int]) -> str:
        def figures(place: Resource) -> str:
            return f"used {held.get(place, 0)}, total {self.total.entries.get(place, 0)}"

        if resource.instance is not None:
            return f", {figures(resource)}"
        places = [Resource(resource.device, resource.kind, i) for i in range(self._util.devices[resource.device])]
        return f" ({'; '.join(f'{place.device}/{place.instance} {figures(place)}' for place in places)})"
