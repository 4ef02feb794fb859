"""Replicas and the cluster as metrics and the pages about models show them; and what is counted of each arrow.

Free resources on nodes that drain or are lost do not count. Causes of losses are sentences; for a label they are made
one of few.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Mapping

from tfs_lite.cluster.metrics import ClusterReport, ReplicaMetrics
from tfs_lite.cluster.replicas.engine import ReplicaName, ReplicaSlot
from tfs_lite.cluster.replicas.states import ClusterStatus, PlaceStatus, ReplicaEvent, ReplicaState, SetStatus
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ReplicaReport, ReplicaStatus

READY, DRAINING, LOST = "ready", "draining", "lost"
"""States of nodes."""
NODE_LOST, NODE_DRAINS, OTHER = "node lost", "node drains", "other"
MAX_STARTING = 10_000
_S = ReplicaState
_SIGNAL = re.compile(r"signal \d+")
_CAUSES = (
    ("refused:", "refused"),
    ("not answering", "not answering"),
    ("its connection was closed", "connection closed"),
    ("it cannot be reached", "unreachable"),
    ("it sent garbage", "garbage"),
    ("it refused the greeting", "greeting refused"),
    ("it did not start", "not started"),
    ("it could not start", "not started"),
    ("its process has ended", "process ended"),
    ("the cluster does not list it", "not listed"),
    ("the cluster has forgotten it", "not listed"),
)
_OF_NODES = re.compile(r"(?:its )?node .*(is lost|drains)(?:, and its time is over)?", re.DOTALL)


def replica_report(status: SetStatus, ongoing: Mapping[ReplicaName, int] | None = None) -> ReplicaReport:
    """The replicas of one version. ``ongoing``: how many batches each had when it answered last."""
    name, version, _ = status.key
    known = ongoing or {}
    replicas = tuple(_replica_status(place, known.get(place.name)) for place in status.places)
    return ReplicaReport(ServableId(name, version), str(status), replicas)


def cluster_report(status: ClusterStatus, leads: bool = True, helper_restarts: int = 0) -> ClusterReport:
    """``leads``: this server decides about the replicas."""
    nodes = dict.fromkeys((READY, DRAINING, LOST), 0)
    free: dict[str, float] = defaultdict(float)
    for node in status.nodes:
        state = (DRAINING if node.draining else READY) if node.alive else LOST
        nodes[state] += 1
        for resource, amount in node.free.items() if state == READY else ():
            free[resource] += amount
    return ClusterReport(not status.trouble, leads, status.epoch, nodes, dict(free), helper_restarts)


def cause_label(cause: str) -> str:
    """A cause of a loss, in words, as one of few."""
    if signal := _SIGNAL.search(cause):
        return signal[0]
    if of_node := _OF_NODES.fullmatch(cause):
        return NODE_LOST if of_node[1] == "is lost" else NODE_DRAINS
    return next((label for words, label in _CAUSES if cause.startswith(words)), OTHER)


class ReplicaCounter:
    """Counts what arrows say: losses, and the seconds from wanted to ready. Called with each event of the reconciler,
    in order; any thread."""

    def __init__(self, metrics: ReplicaMetrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()  # guards _wanted
        self._wanted: dict[ReplicaSlot, float] = {}

    def __call__(self, event: ReplicaEvent) -> None:
        slot = event.name.slot
        servable_id = ServableId(slot.model, slot.version)
        if event.after is _S.PLACING:
            self._note(slot, event.time)
        elif event.after is _S.READY:
            wanted = self._forget(slot)
            if wanted is not None:
                self._metrics.on_start(servable_id, event.time - wanted)
        elif event.after is _S.OPENING and event.cause.startswith("adopted"):
            self._forget(slot)
        elif event.after is _S.LOST and _is_loss(event):
            self._metrics.on_loss(servable_id, cause_label(event.cause))
        elif event.after is _S.ENDED:
            self._forget(slot)

    def _note(self, slot: ReplicaSlot, time: float) -> None:
        with self._lock:
            self._wanted[slot] = time
            while len(self._wanted) > MAX_STARTING:
                del self._wanted[next(iter(self._wanted))]

    def _forget(self, slot: ReplicaSlot) -> float | None:
        with self._lock:
            return self._wanted.pop(slot, None)


def _is_loss(event: ReplicaEvent) -> bool:
    """A wish that is made anew elsewhere has lost nothing."""
    return event.before is not _S.PLACING or (event.node != "" and cause_label(event.cause) != NODE_DRAINS)


def _replica_status(place: PlaceStatus, ongoing: int | None) -> ReplicaStatus:
    return ReplicaStatus(
        name=str(place.name),
        state=place.state.value,
        since=place.since,
        node=place.node,
        pid=place.pid,
        ongoing=ongoing,
        restarts=place.restarts,
        reason=_reason(place),
    )


def _reason(place: PlaceStatus) -> str:
    if place.waits:
        return place.waits
    return place.cause if place.state in (_S.LOST, _S.DRAINING) else place.last_loss
