"""Quantities of memory and other resources, on devices, and their arithmetic.

A :class:`Resource` is a kind (``ram_in_bytes``) on a device type (``main``, ``gpu``), either *bound* to one
instance of the device or *unbound*: "somewhere on one of them, not decided yet". An allocation maps resources to
quantities; what is not mentioned is zero. All functions are pure.

Source of the rules: TensorFlow Serving's ``resources/resource_util``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tfs_lite.core.status import invalid_argument

MAIN = "main"
GPU = "gpu"
RAM = "ram_in_bytes"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of resource on a device; unbound while ``instance`` is None."""

    device: str
    kind: str
    instance: int | None = None

    def __str__(self) -> str:
        where = self.device if self.instance is None else f"{self.device}/{self.instance}"
        return f"{where}/{self.kind}"


class ResourceAllocation:
    """An immutable map of resources to quantities, which are integers of at least 0."""

    __slots__ = ("entries",)

    def __init__(self, entries: Mapping[Resource, int] | Iterable[tuple[Resource, int]] = ()) -> None:
        found: dict[Resource, int] = {}
        for resource, quantity in entries.items() if isinstance(entries, Mapping) else entries:
            if resource in found:
                raise invalid_argument(f"resource {resource} is listed twice")
            if quantity < 0:
                raise invalid_argument(f"the quantity of {resource} is negative: {quantity}")
            found[resource] = quantity
        self.entries: Mapping[Resource, int] = MappingProxyType(found)

    @property
    def bound(self) -> bool:
        return all(resource.instance is not None for resource in self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResourceAllocation) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(frozenset(self.entries.items()))

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{r}: {q}" for r, q in self.entries.items()) + "}"


NO_RESOURCES = ResourceAllocation()


class RunningTotal:
    """The sum of allocations that come and go, entry by entry. Not locked."""

    def __init__(self) -> None:
        self._sums: dict[Resource, int] = {}

    def add(self, allocation: ResourceAllocation) -> None:
        for resource, quantity in allocation.entries.items():
            self._sums[resource] = self._sums.get(resource, 0) + quantity

    def take(self, allocation: ResourceAllocation) -> None:
        """One that was added before."""
        for resource, quantity in allocation.entries.items():
            left = self._sums.pop(resource, 0) - quantity
            if left:
                self._sums[resource] = left

    @property
    def value(self) -> ResourceAllocation:
        return ResourceAllocation(self._sums)


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The main memory of a control group, in bytes: its limit, and what all its processes hold together. Cached files
    that no process has mapped do not count: the system drops them as soon as it needs room."""

    limit: int
    held: int


def main_ram(quantity: int) -> ResourceAllocation:
    """``quantity`` bytes of main memory."""
    return ResourceAllocation({Resource(MAIN, RAM, 0): quantity})


class ResourceUtil:
    """The arithmetic for a machine with the given devices (type -> number of instances; zero means absent).

    Every operation first *normalises* its inputs: zero quantities go, and unbound entries of a device with a single
    instance are bound to it. INVALID_ARGUMENT for a device or an instance that the machine does not have.
    """

    def __init__(self, devices: Mapping[str, int]) -> None:
        self.devices = {device: count for device, count in devices.items() if count > 0}

    def verify(self, allocation: ResourceAllocation) -> None:
        for resource in allocation.entries:
            count = self.devices.get(resource.device)
            if count is None:
                raise invalid_argument(f"{resource}: this machine has no device {resource.device!r}")
            if resource.instance is not None and not 0 <= resource.instance < count:
                raise invalid_argument(f"{resource}: this machine has {count} of {resource.device!r}")

    def normalize(self, allocation: ResourceAllocation) -> ResourceAllocation:
        self.verify(allocation)
        sums: dict[Resource, int] = {}
        for resource, quantity in allocation.entries.items():
            if quantity:
                key = self._bind_if_single(resource)
                sums[key] = sums.get(key, 0) + quantity
        return ResourceAllocation(sums)

    def _bind_if_single(self, resource: Resource) -> Resource:
        if resource.instance is None and self.devices[resource.device] == 1:
            return Resource(resource.device, resource.kind, 0)
        return resource

    def add(self, left: ResourceAllocation, right: ResourceAllocation) -> ResourceAllocation:
        """Sums entry by entry; bound and unbound entries stay apart."""
        sums = dict(self.normalize(left).entries)
        for resource, quantity in self.normalize(right).entries.items():
            sums[resource] = sums.get(resource, 0) + quantity
        return ResourceAllocation(sums)

    def subtract(self, left: ResourceAllocation, right: ResourceAllocation) -> ResourceAllocation | None:
        """``left`` minus ``right``, bound and unbound apart; None if any entry would be negative."""
        rest = dict(self.normalize(left).entries)
        for resource, quantity in self.normalize(right).entries.items():
            rest[resource] = rest.get(resource, 0) - quantity
        if any(quantity < 0 for quantity in rest.values()):
            return None
        return self.normalize(ResourceAllocation(rest))

    def less_than_or_equal(self, left: ResourceAllocation, right: ResourceAllocation) -> bool:
        """Whether ``left`` fits into ``right`` (bound): first the bound entries, then each unbound entry by itself on
        some instance of what is left."""
        left, right = self.normalize(left), self.normalize(right)
        if not right.bound:
            raise invalid_argument(f"the right side must be bound: {right}")
        fixed = ResourceAllocation({r: q for r, q in left.entries.items() if r.instance is not None})
        rest = self.subtract(right, fixed)
        if rest is None:
            return False
        return all(
            any(
                rest.entries.get(Resource(r.device, r.kind, instance), 0) >= q
                for instance in range(self.devices[r.device])
            )
            for r, q in left.entries.items()
            if r.instance is None
        )

    def overbind(self, allocation: ResourceAllocation) -> ResourceAllocation:
        """Counts every unbound quantity on *every* instance: the safe reading of "somewhere"."""
        sums: dict[Resource, int] = {}
        for resource, quantity in self.normalize(allocation).entries.items():
            instances = range(self.devices[resource.device]) if resource.instance is None else (resource.instance,)
            for instance in instances:
                key = Resource(resource.device, resource.kind, instance)
                sums[key] = sums.get(key, 0) + quantity
        return ResourceAllocation(sums)
