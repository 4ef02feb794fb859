"""The state of the replicas of a version, as the server reports it and the command line shows it."""

from __future__ import annotations

from dataclasses import dataclass

from tfs_lite.core.servable import ServableId


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
