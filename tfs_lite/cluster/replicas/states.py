"""What a version wants of its replicas, what became of them, and how a status tells it: values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tfs_lite.cluster.replicas.engine import ClusterNode, GpuUse, ReplicaName, VersionKey
from tfs_lite.cluster.replicas.placement import Requirements


class ReplicaState(enum.Enum):
    """What a place is doing."""

    PLACING = "placing"
    """The engine has been asked for a replica, or will be once there is room."""
    OPENING = "opening"
    """There is a process that listens; a near end opens the version in it."""
    READY = "ready"
    """The replica has opened the version and answers requests."""
    DRAINING = "draining"
    """The replica answers requests, and will leave its node when another one has taken over."""
    LOST = "lost"
    """The server cannot ask the replica any more; another one is placed after the back-off, unless a successor takes
    over."""
    ENDED = "ended"
    """The place was closed."""


ARROWS: dict[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.PLACING: frozenset({ReplicaState.OPENING, ReplicaState.LOST, ReplicaState.ENDED}),
    ReplicaState.OPENING: frozenset({ReplicaState.READY, ReplicaState.LOST, ReplicaState.ENDED}),
    ReplicaState.READY: frozenset({ReplicaState.DRAINING, ReplicaState.LOST, ReplicaState.ENDED}),
    ReplicaState.DRAINING: frozenset({ReplicaState.LOST, ReplicaState.ENDED}),
    ReplicaState.LOST: frozenset({ReplicaState.PLACING, ReplicaState.ENDED}),
    ReplicaState.ENDED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class ReplicaEvent:
    """One change of a place's state. ``before`` is None for a place that is new; ``time`` is in seconds since the
    epoch, ``cause`` in words. ``name`` is that of the replica in the place, or of the one that was lost."""

    time: float
    name: ReplicaName
    before: ReplicaState | None
    after: ReplicaState
    cause: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class PlaceStatus:
    """A place as a status shows it. ``since`` is when it came into this state, in seconds since the epoch; ``node`` the
    host's name; ``cause`` why it is in this state; ``waits`` what it waits for; ``restarts`` how many replicas it has
    lost, ``last_loss`` why the last one."""

    name: ReplicaName
    state: ReplicaState
    since: float
    cause: str
    node: str = ""
    pid: int | None = None
    restarts: int = 0
    last_loss: str = ""
    waits: str = ""
    gpu: GpuUse | None = None


@dataclass(frozen=True, slots=True)
class SetStatus:
    """The replicas of one version. ``waits``: for what, and since when in case no node could ever give it."""

    key: VersionKey
    places: tuple[PlaceStatus, ...]
    waits: str = ""

    @property
    def wanted(self) -> int:
        """The number of replicas that the version wants: one that moves to another node counts once."""
        return len({place.name.slot for place in self.places})

    @property
    def up(self) -> int:
        """The number of replicas that can be asked."""
        answering = (ReplicaState.READY, ReplicaState.DRAINING)
        return len({place.name.slot for place in self.places if place.state in answering})

    def __str__(self) -> str:
        """``2/3 up, 1 starting: signal 9``."""
        starting = self.wanted - self.up
        if self.waits:
            return f"{self.up}/{self.wanted} up, {self.waits}"
        if not starting:
            return f"{self.up}/{self.wanted} up"
        moving = (ReplicaState.PLACING, ReplicaState.OPENING, ReplicaState.LOST)
        causes = [place.last_loss for place in self.places if place.state in moving and place.last_loss]
        return f"{self.up}/{self.wanted} up, {starting} starting{': ' * bool(causes)}{(causes or [''])[-1]}"


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """``trouble``: why nothing can be placed now, in words; empty if all is well. ``nodes`` as they were listed last;
    ``gpus`` what the replicas have reserved, by node id and GPU."""

    epoch: int
    trouble: str
    nodes: tuple[ClusterNode, ...]
    gpus: dict[tuple[str, str], GpuUse]


@dataclass(frozen=True, slots=True)
class VersionReplicas:
    """What a version wants. ``generation`` is the digest over its files and settings."""

    model: str
    version: int
    generation: str
    count: int
    requirements: Requirements
