"""The instances that a config asks for: how many, on which devices, and with how many copies of the weights.

    instance_group -> placements, one per instance -> difference to those of another config -> open these, close those
                   -> devices_of, copies_of        -> what to reserve on each device

An instance whose group names ``gpus`` is on one of them; all others of a version are together on one device. Numbers of
GPUs are torch's, so ``CUDA_VISIBLE_DEVICES`` decides which cards they are. All functions are pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import InstanceGroup
from tfs_lite.core.resources import GPU, MAIN, RAM, Resource
from tfs_lite.core.status import invalid_argument

CPU = "cpu"
MAIN_MEMORY = Resource(MAIN, RAM, 0)


def devices_of(group: InstanceGroup, default: str) -> tuple[str, ...]:
    """The devices on which the group has ``count`` instances each. ``default`` is for groups that name no GPU: ``cpu``,
    which also means that the server uses no GPU, or ``cuda:N``. INVALID_ARGUMENT if the group wants a GPU and there is
    none."""
    if default == CPU and group.kind == "KIND_GPU":
        raise invalid_argument("instance_group: KIND_GPU, but this server runs models on the CPU")
    if default == CPU or group.kind == "KIND_CPU":
        return (CPU,)
    return tuple(f"cuda:{number}" for number in group.gpus) or (default,)


def check_gpus(groups: Sequence[InstanceGroup], usable: Sequence[int]) -> None:
    """Raises INVALID_ARGUMENT if a group names a GPU that is none of the ``usable`` ones, and there are some: on a
    server without GPUs these groups run on the CPU."""
    for index, group in enumerate(groups):
        for number in group.gpus:
            if usable and number not in usable:
                known = ", ".join(map(str, usable))
                raise invalid_argument(
                    f"instance_group[{index}].gpus: there is no GPU {number}; this server has: {known}"
                )


def resource_of(device: str) -> Resource:
    """The memory of ``cpu``, of ``cuda:N``, or of one of the GPUs: ``cuda``."""
    kind, _, number = device.partition(":")
    return MAIN_MEMORY if kind == CPU else Resource(GPU, RAM, int(number) if number else None)


def copies_of(
    groups: Sequence[InstanceGroup], default: str, shares: Callable[[InstanceGroup], bool]
) -> Mapping[Resource, int]:
    """How many copies of a version's weights each device has. Instances of groups for which ``shares`` is true have
    one together on each device, others have one each. ``default`` as in :func:`devices_of`, or ``cuda`` while the GPU
    is not picked."""
    copies, shared = Counter[Resource](), set[Resource]()
    for group in groups:
        for resource in map(resource_of, devices_of(group, default)):
            if shares(group):
                shared.add(resource)
            else:
                copies[resource] += group.count
    copies.update(shared)
    return copies


@dataclass(frozen=True, slots=True)
class Difference:
    """The instances that a resize adds and removes: ``add`` has one group of one instance for each that has to be
    opened; ``remove`` has the indices of those to close, the newest of their kind."""

    add: tuple[InstanceGroup, ...] = ()
    remove: frozenset[int] = frozenset()


def placements(settings: ModelSettings, on_gpu: bool) -> list[InstanceGroup]:
    """One group of one instance for each instance, in the order in which they are opened; instances with equal ones can
    replace each other. Without GPUs ``gpus`` are
    left out."""
    groups = settings.instance_group or (InstanceGroup(),)
    return [
        _alone(group, gpus)
        for group in groups
        for gpus in ([(gpu,) for gpu in group.gpus] if on_gpu and group.gpus else [()])
        for _ in range(group.count)
    ]


def _alone(group: InstanceGroup, gpus: tuple[int, ...]) -> InstanceGroup:
    """The group of one instance; only groups of replicas may say ``ready_replicas``, be it None."""
    alone: dict[str, object] = {"name": "", "count": 1, "gpus": gpus}
    if group.ready_replicas is not None:
        alone["ready_replicas"] = None
    return group.model_copy(update=alone)


def difference(have: Sequence[InstanceGroup], wanted: Sequence[InstanceGroup]) -> Difference:
    """The change from the placements of open instances to those that are wanted."""
    missing, remove = Counter(wanted), set[int]()
    for index, placement in enumerate(have):
        if missing[placement]:
            missing[placement] -= 1
        else:
            remove.add(index)
    return Difference(tuple(missing.elements()), frozenset(remove))


def differ_in_instances_only(old: ModelSettings, new: ModelSettings) -> bool:
    """Whether opening and closing instances is all that the change needs. The version policy and the guard are not part
    of a version."""
    alike = {"instance_group": (), "version_policy": None, "name": "", "guard": None}
    return old.model_copy(update=alike) == new.model_copy(update=alike)
