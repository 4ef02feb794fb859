"""The checker of what is promised of replicas. It looks at the pretended cluster, not at what the reconciler knows.

1. A replica with a request inside is never ended, unless its near end has given it up or its node must go.
2. No two near ends of a server are in processes of one name; no server uses a name twice; no process opens a version
   twice.
3. Nothing is placed on a node that drains, is known to be dead, has no room or has as many of the version as it may.
4. Replicas are not placed faster than the back-off allows.
5. Before the end of adoption nothing of versions is ended that the server has not asked for.
6. At rest every place is ready or waits with words and rightly so, and no process runs that is in no place.
7. Every arrow is one that there is, and has a cause.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from tests.support.cluster.pretended_cluster import Life, PretendedCluster, Process
from tests.support.cluster.pretended_server import NearEnd, PretendedServer
from tfs_lite.cluster.replicas.engine import (
    ClusterNode,
    ReplicaName,
    ReplicaSlot,
    Resources,
    Strategy,
    VersionKey,
    Wish,
)
from tfs_lite.cluster.replicas.placement import LEAVE_SECONDS, MAX_PLACING, TOLERANCE, Requirements, fulfils_labels
from tfs_lite.cluster.replicas.states import ARROWS, ReplicaEvent
from tfs_lite.core.clock import Clock

RATE_SECONDS, MAX_PLACED = 25.0, 40
"""So many replicas of a slot may be placed in so many seconds: in three attempts of a load four each are lost, and a
wish that waits is made anew for the room that a lost neighbour leaves."""


class ReplicaChecker:
    """Watches one server after the other on one cluster. ``violations`` are in words."""

    def __init__(self, cluster: PretendedCluster, clock: Clock) -> None:
        self.violations: list[str] = []
        self.events: list[ReplicaEvent] = []
        self._cluster, self._clock = cluster, clock
        self._server: PretendedServer | None = None
        self._adopting = False
        self._asked: set[tuple[str, int]] = set()
        self._requirements: dict[VersionKey, Requirements] = {}
        self._shown: dict[str, ClusterNode] = {}
        self._names: set[ReplicaName] = set()
        self._placed: dict[ReplicaSlot, deque[float]] = defaultdict(deque)

    # What happens.

    def watch(self, server: PretendedServer) -> None:
        """From now on this server decides."""
        self._server, self._adopting, self._asked, self._names = server, True, set(), set()
        self._placed.clear()
        server.engine.on_nodes = self._on_nodes_shown
        server.engine.on_place = self._on_place
        server.engine.on_end = self._on_end

    def on_want(self, key: VersionKey, requirements: Requirements) -> None:
        self._asked.add(key[:2])
        self._requirements[key] = requirements
        self._placed.clear()  # a new place has a back-off of its own

    def on_adoption_finished(self) -> None:
        self._adopting = False

    def on_event(self, event: ReplicaEvent) -> None:
        allowed = event.before is None or event.after in ARROWS[event.before]
        self.expect(allowed and bool(event.cause), f"(7) {event}")
        late = bool(self.events) and event.time < self.events[-1].time
        self.expect(not late, f"(7) {event} comes after a later one")
        self.events.append(event)

    def _on_nodes_shown(self, nodes: Sequence[ClusterNode]) -> None:
        self._shown = {node.id: node for node in nodes}

    def _on_place(self, wish: Wish) -> None:
        now, slot = self._clock.monotonic(), wish.name.slot
        self.expect(wish.name not in self._names, f"(2) the name {wish.name} is used twice")
        self._names.add(wish.name)
        times = self._placed[slot]
        times.append(now)
        while times[0] < now - RATE_SECONDS:
            times.popleft()
        self.expect(len(times) <= MAX_PLACED, f"(4) {len(times)} of {slot} were placed within {RATE_SECONDS} s")
        placing = sum(process.life in (Life.PENDING, Life.STARTING) for process in self._cluster.processes.values())
        self.expect(placing < MAX_PLACING, f"(4) {placing} replicas are being placed")
        if wish.node is None:
            return
        node = self._shown[wish.node]
        usable = node.alive and not node.draining
        self.expect(usable, f"(3) {wish.name} is placed on {node.host}, which drains or is dead")
        fits = fulfils_labels(node.labels, wish.labels) and _has_room(node.free, wish.needs)
        self.expect(fits, f"(3) {wish.name} is placed on {node.host}, where {node.free} is free")

    def _on_end(self, process: Process) -> None:
        slot = process.name.slot
        strange = self._adopting and (slot.model, slot.version) not in self._asked
        self.expect(not strange, f"(5) {process.name} is ended although the server has not asked for the version yet")
        if process.life is not Life.UP or process.stuck or process.node is None:
            return
        left = None if process.node.leaves_at is None else process.node.leaves_at - self._clock.monotonic()
        users = [user for user in process.inside if isinstance(user, NearEnd) and user.version.server is self._server]
        must_go = left is not None and left <= LEAVE_SECONDS + TOLERANCE
        self.expect(not users or must_go, f"(1) {process.name} is ended with a request inside")

    # After each step.

    def check_step(self) -> None:
        server = self._server
        if server is None or server.is_dead:
            return
        connected = [near_end for near_end in server.near_ends if near_end.process is not None]
        names = Counter(near_end.process.name for near_end in connected if near_end.process)
        twice = [str(name) for name, count in names.items() if count > 1]
        self.expect(not twice, f"(2) two near ends are in {twice}")
        for near_end in connected:
            process = near_end.process
            if process is not None:
                self.expect(process.name.slot == near_end.place.slot, f"(2) {process.name} is in {near_end.place}")
                self.expect(process.opens <= 1, f"(2) {process.name} has opened the version {process.opens} times")
        for key, counts in self._on_nodes().items():
            most = self._requirements[key].most if key in self._requirements else float("inf")
            for host, count in counts.items():
                self.expect(count <= most, f"(3) {count} of {key} on {host}")

    def check_rest(self) -> None:
        """Nothing moves any more by itself, the cluster can be reached, and adoption is over."""
        server = self._server
        assert server is not None
        used = {
            near_end.process.id for near_end in server.near_ends if near_end.process is not None and near_end.is_open
        }
        waiting: set[ReplicaName] = set()
        for version in server.versions.values():
            replaced = [near_end.replaces for near_end in version.near_ends]
            for near_end in version.near_ends:
                if near_end.is_open:
                    stays = near_end not in replaced and near_end.process and near_end.process.node
                    moves = not stays or not stays.draining
                    self.expect(moves, f"(6) {near_end.place} is on a draining node, and no other one is to come")
                    continue
                waiting.add(near_end.place.name)
                if near_end not in replaced:
                    self._check_wait(near_end)
        for process in self._cluster.processes.values():
            reachable = process.node is None or not process.node.frozen
            if process.running and reachable:
                self.expect(process.id in used, f"(6) {process.name} ({process.id}) runs on and is in no place")
            elif process.life is Life.PENDING:
                self.expect(process.name in waiting, f"(6) the wish for {process.name} is pending, and in no place")

    def _check_wait(self, near_end: NearEnd) -> None:
        group, requirements = near_end.version.group, near_end.version.wanted.requirements
        status = group.status() if group is not None else None
        if status is None or not status.waits:
            self.violations.append(f"(6) {near_end.place} is not ready and waits for nothing: {status}")
            return
        rooms = [
            node.host
            for node in self._cluster.nodes.values()
            if node.alive and node.known_alive and not node.draining and not node.frozen
            if fulfils_labels(node.labels, requirements.labels)
            if self._on_nodes()[near_end.version.key][node.id] < requirements.most
            if _has_room(self._cluster.free(node), requirements.needs)
        ]
        all_at_once = requirements.strategy is Strategy.STRICT_SPREAD and not near_end.version.is_available
        needed = len({each.place.slot for each in near_end.version.near_ends}) if all_at_once else 1
        enough = len(rooms) >= needed
        self.expect(not enough, f"(6) {near_end.place} waits ({status.waits}), and there is room on {rooms}")

    def _on_nodes(self) -> dict[VersionKey, Counter[str]]:
        """How many replicas of each version are in places, by node."""
        counts: dict[VersionKey, Counter[str]] = defaultdict(Counter)
        for near_end in self._server.near_ends if self._server is not None else []:
            process = near_end.process
            if process is not None and process.node is not None:
                counts[near_end.version.key][process.node.id] += 1
        return counts

    def expect(self, holds: bool, violation: str) -> None:
        if not holds:
            self.violations.append(f"{self._clock.monotonic():.2f} s: {violation}")


def _has_room(free: Resources, needs: Resources) -> bool:
    return all(amount <= free.get(name, 0.0) + TOLERANCE for name, amount in needs.items())
