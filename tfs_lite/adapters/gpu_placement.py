"""The choice of a GPU for a version whose config names none: the one with the most memory that is not reserved.

    the load begins -> GpuReservations.place -> ... -> release, after the unload

What the driver calls free does not yet show the loads that have just begun.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping

from tfs_lite.core.resources import GPU, RAM, Resource, ResourceAllocation


def pick_gpu(free: Mapping[int, int]) -> int:
    """The GPU with the most bytes that are not reserved; of equal ones the one with the lowest number."""
    return min(free, key=lambda number: (-free[number], number))


class GpuReservations:
    """How many bytes of each GPU are reserved for which version. Any thread.

    ``totals`` tells the bytes of each GPU that may be picked. It has an entry for each loader that loads or has loaded.
    """

    def __init__(self, totals: Callable[[], Mapping[int, int]]) -> None:
        self._totals = totals
        self._lock = threading.Lock()  # guards _held
        self._held: dict[Hashable, ResourceAllocation] = {}

    def place(self, holder: Hashable, wanted: ResourceAllocation) -> tuple[ResourceAllocation, int | None]:
        """Places ``wanted``, keeping a GPU for what is on any of them, for ``holder`` in place of what it had before;
        returns it, and which GPU that is, None if nothing was open."""
        totals = {} if wanted.bound else self._totals()
        with self._lock:
            self._held.pop(holder, None)
            picked = None if wanted.bound else pick_gpu(self._free(totals))
            placed = wanted if picked is None else _bound(wanted, picked)
            self._held[holder] = placed
        return placed, picked

    def release(self, holder: Hashable) -> None:
        with self._lock:
            self._held.pop(holder, None)

    def _free(self, totals: Mapping[int, int]) -> dict[int, int]:
        """The caller has the lock."""
        free = dict(totals)
        for held in self._held.values():
            for resource, quantity in held.entries.items():
                if resource.device == GPU and resource.instance in free:
                    free[resource.instance] -= quantity
        return free


def _bound(wanted: ResourceAllocation, gpu: int) -> ResourceAllocation:
    found = Counter[Resource]()
    for resource, quantity in wanted.entries.items():
        found[Resource(GPU, RAM, gpu) if resource.instance is None else resource] += quantity
    return ResourceAllocation(found)
