"""The states of a version as a manager reports them, and of its replicas as the server does.

    Start -> Loading -> Available -> Unloading -> End

The chain only moves forward; any state may jump to End. A :class:`ServableState` is a report about the recent
past, not a promise about now. To use a servable, ask the manager for a handle.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import OK, Status


class ManagerState(enum.Enum):
    """The public life of a version."""

    START = "Start"
    """Known, nothing done yet. With a status other than OK: not accepted yet, and why (e.g. files still arriving)."""
    LOADING = "Loading"
    """Its resources are reserved and the loader is about to be called, or is at work."""
    AVAILABLE = "Available"
    """Handles are given out; published after the first handle could be had."""
    UNLOADING = "Unloading"
    """About to be withdrawn; published before handles stop being given out."""
    END = "End"
    """The version is over: unloaded (status OK; the loader's unload has returned) or failed (status is the error)."""


@dataclass(frozen=True, slots=True)
class ServableState:
    """One report: which version, in which state, and in which health."""

    id: ServableId
    state: ManagerState
    health: Status = OK


@dataclass(frozen=True, slots=True)
class TimedState:
    """A state and when it was published, in seconds since the epoch."""

    state: ServableState
    time: float


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One place of a version, and the replica in it. ``name`` is the replica's; ``node`` the host's name, empty while
    it has none; ``since`` is when it came into this state, in seconds since 1970; ``ongoing`` how many batches it had
    when it answered last; ``restarts`` how many replicas the place has lost; ``reason`` why it is not ready, or why the
    last one was lost."""

    name: str
    state: str
    since: float
    node: str = ""
    pid: int | None = None
    ongoing: int | None = None
    restarts: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The replicas of one version. ``summary`` is for people: ``2/3 up, 1 starting: signal 9``."""

    id: ServableId
    summary: str
    replicas: tuple[ReplicaStatus, ...]
