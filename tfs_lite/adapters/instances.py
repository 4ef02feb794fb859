"""Which instances of a version have to be opened, and which are too many, when only its instance groups have changed.

    groups of the config -> a place for each instance;  old places, new places -> difference

Places are equal where an instance can be had for another: a group's name and how its instances are counted say nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import InstanceGroup


@dataclass(frozen=True, slots=True)
class Difference:
    """``add``: one group of one instance for each that has to be opened. ``remove``: indices of those that are too
    many, the newest of their kind."""

    add: tuple[InstanceGroup, ...] = ()
    remove: frozenset[int] = frozenset()


def places(settings: ModelSettings) -> list[InstanceGroup]:
    """One for each instance, in the order in which they are opened."""
    groups = settings.instance_group or (InstanceGroup(),)
    return [group.model_copy(update={"name": "", "count": 1}) for group in groups for _ in range(group.count)]


def difference(have: Sequence[InstanceGroup], wanted: Sequence[InstanceGroup]) -> Difference:
    """From the places of what is open to the places that are wanted."""
    missing, remove = Counter(wanted), set[int]()
    for index, place in enumerate(have):
        if missing[place]:
            missing[place] -= 1
        else:
            remove.add(index)
    return Difference(tuple(missing.elements()), frozenset(remove))


def differ_in_instances_only(old: ModelSettings, new: ModelSettings) -> bool:
    """Whether what is loaded with one can be made what the other asks for, by opening and closing instances. Which
    versions are wanted is nothing to each of them."""
    alike = {"instance_group": (), "version_policy": None, "name": ""}
    return old.model_copy(update=alike) == new.model_copy(update=alike)
