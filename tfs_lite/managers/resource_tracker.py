"""Whether one more version fits: pure arithmetic over allocations, with the machine's totals.

The tracker remembers nothing but the totals. Who holds how much is known by the harnesses; the manager passes their
estimates in and decides under its own lock. Inside a control group the total of main memory is what :class:`ModelShare`
leaves for models.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import reduce

from tfs_lite.core.resources import MAIN, NO_RESOURCES, RAM, GroupMemory, Resource, ResourceAllocation, ResourceUtil
from tfs_lite.core.status import invalid_argument

MAIN_MEMORY = Resource(MAIN, RAM, 0)
LEAST_RESERVE, MOST_RESERVE = 32 << 20, 1 << 30


def default_reserve(limit: int) -> int:
    """The bytes of a control group's memory that are kept back for requests and for what a load takes for a moment."""
    return min(max(limit // 10, LEAST_RESERVE), MOST_RESERVE)


class ModelShare:
    """The part of a control group's memory that models may have. Any thread.

        limit = share of the models + what else the group holds + reserve

    The rest that it holds is measured: all that the group holds, less what versions have reserved. While a load or an
    unload runs its memory is there in part only, and the figure of before stays unless the new one is higher.
    """

    def __init__(
        self, measure: Callable[[], GroupMemory | None], reserve: Callable[[int], int] = default_reserve
    ) -> None:
        """``measure`` returns None as long as there is no limit. ``reserve`` gets the limit, in bytes."""
        self._measure = measure
        self._reserve = reserve
        self._lock = threading.Lock()  # guards the following
        self._group: GroupMemory | None = None
        self._others = 0
        self.measure()
        self.settle(0, in_flight=False)

    def measure(self) -> None:
        """Reads some small files."""
        group = self._measure()
        with self._lock:
            self._group = group

    def settle(self, reserved: int, *, in_flight: bool) -> None:
        """Works out the memory that is held outside models, from the last measurement. ``reserved``: the memory that
        versions count for."""
        with self._lock:
            others = self._group.held - reserved if self._group is not None else 0
            self._others = max(others, self._others if in_flight else 0)

    @property
    def total(self) -> int | None:
        """The bytes that models may have together; None without a limit."""
        with self._lock:
            if self._group is None:
                return None
            return max(0, self._group.limit - self._others - self._reserve(self._group.limit))

    def __str__(self) -> str:
        with self._lock:
            if self._group is None:
                return ""
            kept = self._reserve(self._group.limit)
            return (
                f"of the {self._group.limit} bytes of the control group {self._others} are held beside models, and "
                f"{kept} are kept back (--memory_reserve_bytes)"
            )


class ResourceTracker:
    """Totals of a machine. All methods may be called from any thread. Without a ``share`` it is immutable.

    An unbound entry ("8 GB on one of the GPUs") that is already in use counts against every instance until the loader
    names its GPU: accepting is safe, refusing may be too careful for the time of a load.
    """

    def __init__(self, util: ResourceUtil, total: ResourceAllocation, share: ModelShare | None = None) -> None:
        """``share`` may lower the total of main memory. INVALID_ARGUMENT if a total names an unknown device or does not
        name its instance."""
        self._total = util.normalize(total)
        if not self._total.bound:
            raise invalid_argument(f"the total of every resource must name its device instance: {total}")
        self._util = util
        self._share = share

    @property
    def total(self) -> ResourceAllocation:
        """The amount of each resource that models may have, as measured last."""
        share = self._share.total if self._share is not None else None
        if share is None:
            return self._total
        main = min(share, self._total.entries.get(MAIN_MEMORY, share))
        return ResourceAllocation({**self._total.entries, MAIN_MEMORY: main})

    @property
    def is_measured(self) -> bool:
        """Whether the total depends on the memory that is held outside models."""
        return self._share is not None and self._share.total is not None

    @property
    def beside_models(self) -> str:
        """The words of the share about the memory that models do not get; empty if there is none."""
        return str(self._share) if self.is_measured else ""

    def measure(self) -> None:
        """Takes a new measurement of what the control group holds, if there is one. Reads files: without locks."""
        if self._share is not None:
            self._share.measure()

    def settle(self, used: Iterable[ResourceAllocation], *, in_flight: bool) -> None:
        """Works out the total from the last measurement. ``used``: all that versions have reserved. ``in_flight``:
        whether a load or an unload runs."""
        if self._share is not None:
            held = self._util.overbind(self.recompute_used(used)).entries.get(MAIN_MEMORY, 0)
            self._share.settle(held, in_flight=in_flight)

    def verify(self, allocation: ResourceAllocation) -> ResourceAllocation:
        """The allocation, normalised. INVALID_ARGUMENT if it names a device that the machine does not have."""
        return self._util.normalize(allocation)

    def recompute_used(self, allocations: Iterable[ResourceAllocation]) -> ResourceAllocation:
        """Sums up anew what all of them hold together."""
        return reduce(self._util.add, allocations, NO_RESOURCES)

    def reserve(self, used: ResourceAllocation, wanted: ResourceAllocation) -> ResourceAllocation | None:
        """``used`` with ``wanted`` added, or None if it does not fit. Only resources that ``wanted`` names matter."""
        if not self._util.less_than_or_equal(wanted, self._free(used)):
            return None
        return self._util.add(used, wanted)

    def fits(self, used: Iterable[ResourceAllocation], wanted: ResourceAllocation) -> bool:
        return self.reserve(self.recompute_used(used), wanted) is not None

    def explain(self, used: Iterable[ResourceAllocation], wanted: ResourceAllocation) -> str:
        """A text for messages: how much of each resource is wanted, how much is used, and the total."""
        held = self._util.overbind(self.recompute_used(used)).entries
        figures = [
            f"{resource} wanted {quantity}{self._places(resource, held)}"
            for resource, quantity in self._util.normalize(wanted).entries.items()
        ]
        return "; ".join(figures + [self.beside_models] * self.is_measured)

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
