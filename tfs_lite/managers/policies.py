"""The version transition policies: which version of one stream goes next.

A policy is a pure function of the versions of one stream. It sees every managed version, aspired or not, and
answers with one action or none; the manager asks again at the next tick. Only ready versions can be unloaded, only
aspired new ones can be loaded, and the highest version loads first.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tfs_lite.core.servable import ServableId
from tfs_lite.managers.harness import FINAL, HarnessState, ServableStateSnapshot


class ActionKind(enum.Enum):
    """The action to take with a version."""

    LOAD = "load"
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True)
class Action:
    """One step."""

    kind: ActionKind
    id: ServableId


class Policy(Protocol):
    """Called by the manager's tick, once per stream, outside its locks. Must be a function of its argument alone."""

    def next_action(self, snapshots: Sequence[ServableStateSnapshot]) -> Action | None:
        """The next step for the stream that ``snapshots`` are all managed versions of; None if there is nothing to do
        now."""


class AvailabilityPreservingPolicy:
    """Never gives up the last ready version while another one is wanted and none that is wanted is ready.

    Loads the new version while the old one is in memory, then unloads the old one. If the new one fails, the old one
    goes on serving. Of several old ones all but one are unloaded before the new one is loaded, so that at most one
    version more than wanted is in memory. The last old one goes when every version that is wanted is ready; those that
    the source has given up do not count. So a new version that fails has taken no other's place: its source, told of
    the failure, wants the old one again.
    """

    def next_action(self, snapshots: Sequence[ServableStateSnapshot]) -> Action | None:
        surplus = _ready(snapshots, aspired=False)
        if surplus and (len(surplus) > 1 or _may_unload_last(snapshots)):
            return Action(ActionKind.UNLOAD, min(surplus))
        return _load_highest(snapshots)


class ResourcePreservingPolicy:
    """Never has a new version in memory together with an old one.

    Unloads every version that is not wanted, waits until they are gone, then loads. In between nothing is served, and
    if the new version fails there is nothing to fall back to. A version that is overdue (its unload hangs, or one of
    its requests does not end) is not waited for: what it holds counts, and the new one is loaded if there is room for
    both.
    """

    def next_action(self, snapshots: Sequence[ServableStateSnapshot]) -> Action | None:
        surplus = _ready(snapshots, aspired=False)
        if surplus:
            return Action(ActionKind.UNLOAD, surplus[0])
        if any(not (s.is_aspired or s.is_overdue) and s.state not in FINAL for s in snapshots):
            return None
        return _load_highest(snapshots)


POLICIES: Mapping[str, Policy] = {
    "availability": AvailabilityPreservingPolicy(),
    "resource": ResourcePreservingPolicy(),
}


def _ready(snapshots: Sequence[ServableStateSnapshot], *, aspired: bool) -> list[ServableId]:
    return [s.id for s in snapshots if s.state is HarnessState.READY and s.is_aspired is aspired]


def _may_unload_last(snapshots: Sequence[ServableStateSnapshot]) -> bool:
    """The only ready version that is not wanted may go when a wanted one is ready and no other is still to come, or
    when none is wanted."""
    wanted = [s for s in snapshots if s.is_aspired]
    to_come = any(s.state is not HarnessState.READY and not s.given_up for s in wanted)
    return not wanted or (bool(_ready(snapshots, aspired=True)) and not to_come)


def _load_highest(snapshots: Sequence[ServableStateSnapshot]) -> Action | None:
    waiting = [s.id for s in snapshots if s.state is HarnessState.NEW and s.is_aspired]
    return Action(ActionKind.LOAD, max(waiting)) if waiting else None
