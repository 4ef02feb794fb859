"""Nodes and processes that exist in virtual time only, and an engine over them that fails on demand.

    cluster = PretendedCluster(clock)
    cluster.add_node("a", {"num_cpus": 4})
    engine = PretendedEngine(cluster)            # a server's connection to it; its epoch is the highest so far
    cluster.kill_process(id); cluster.freeze_node(id); cluster.cut_off("no head") ...

Times are those measured of Ray: a process listens 0.7 s after it was given a node; those connected to it notice its
death within 10 ms (of a node's within 0.4 s), the engine after 1.8 s (14 s); a frozen node counts as dead after 64 s.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tfs_lite.cluster.replicas.engine import (
    GPU_BYTES_LABEL,
    GPUS,
    Changed,
    ClusterEngine,
    ClusterNode,
    EngineEvent,
    GpuUse,
    PlacedReplica,
    ReplicaAddress,
    ReplicaEnded,
    ReplicaName,
    Resources,
    Superseded,
    Unreachable,
    Wish,
)
from tfs_lite.cluster.replicas.placement import TOLERANCE, fulfils_labels
from tfs_lite.core.clock import Clock
from tfs_lite.core.status import ServingError, Status, StatusCode, invalid_argument

NOTICE_PROCESS, NOTICE_NODE = 0.01, 0.4
LIST_PROCESS, LIST_NODE, LIST_FROZEN = 1.8, 14.3, 64.4


class Life(enum.Enum):
    PENDING = "pending"
    STARTING = "starting"
    UP = "up"
    DEAD = "dead"


@dataclass(eq=False)
class Process:
    """One wish and its process. ``gone``: the engine knows that it is dead. ``hangs``: it does nothing, and its
    connections stay. ``listed`` is off while the engine has forgotten it. ``inside``: who has a request in it.
    ``connected``: the near ends, as they were given to :meth:`PretendedCluster.connect`, and ``epoch`` the highest of
    theirs."""

    id: str
    name: ReplicaName
    wish: Wish
    life: Life = Life.PENDING
    node: PretendedNode | None = None
    address: ReplicaAddress | None = None
    cause: str = ""
    gone: bool = False
    hangs: bool = False
    listed: bool = True
    opened: bool = False
    opens: int = 0
    epoch: int = 0
    inside: set[object] = field(default_factory=set)
    connected: dict[object, Callable[[str], None]] = field(default_factory=dict)
    alone_since: float = 0.0

    @property
    def running(self) -> bool:
        return self.life in (Life.STARTING, Life.UP)

    @property
    def stuck(self) -> bool:
        return self.hangs or (self.node is not None and self.node.frozen)


@dataclass(eq=False)
class PretendedNode:
    """``alive`` is the truth, ``known_alive`` what the engine believes."""

    id: str
    host: str
    total: Resources
    labels: Mapping[str, str]
    alive: bool = True
    known_alive: bool = True
    frozen: bool = False
    leaves_at: float | None = None
    draining: bool = False


class PretendedCluster:
    """All methods on one thread, with a clock that is moved by hand. ``refuses``: by host, the status with which
    replicas there answer the opening of a version. ``start_seconds`` is how long a process takes to listen, and
    ``dies_after``, if it is not None, how long it lives from then on. ``loses_events``: no engine hears of anything."""

    def __init__(self, clock: Clock, orphan_seconds: float = 600.0) -> None:
        self.clock = clock
        self.orphan_seconds = orphan_seconds
        self.start_seconds = 0.7
        self.dies_after: float | None = None
        self.refuses: dict[str, Status] = {}
        self.secret = bytes(range(32))
        self.epoch = 0
        self.trouble = ""
        self.loses_events = False
        self.nodes: dict[str, PretendedNode] = {}
        self.processes: dict[str, Process] = {}
        self._numbers = itertools.count(1)
        self._watchers: list[Callable[[EngineEvent], None]] = []

    # What a test does to it.

    def add_node(self, host: str, total: Resources, labels: Mapping[str, str] | None = None) -> PretendedNode:
        node = PretendedNode(f"n{next(self._numbers)}", host, total, labels or {})
        self.nodes[node.id] = node
        self.changed()
        return node

    def kill_node(self, node: PretendedNode) -> None:
        if node.alive:
            node.alive = False
            for process in self._on(node):
                self._die(process, f"its node {node.host} is lost", NOTICE_NODE, LIST_NODE)
            self.clock.call_later(LIST_NODE, lambda: self._believe_dead(node))

    def freeze_node(self, node: PretendedNode) -> None:
        """Its kernel still answers: connections stay, and nothing else happens."""
        if node.alive and not node.frozen:
            node.frozen = True
            self.clock.call_later(LIST_FROZEN, lambda: self._believe_dead(node) if node.frozen else None)

    def thaw_node(self, node: PretendedNode) -> None:
        """It comes back with all its processes, whatever the engine believed meanwhile."""
        if node.alive and node.frozen:
            node.frozen, node.known_alive = False, True
            for process in self._on(node):
                process.alone_since = self.clock.monotonic()
                self._watch_orphan(process)
            self.changed()

    def drain_node(self, node: PretendedNode, seconds: float | None) -> None:
        """It gets nothing new, and is gone after ``seconds``."""
        if node.draining:
            return
        node.draining = True
        if seconds is not None:
            node.leaves_at = self.clock.monotonic() + seconds
            self.clock.call_later(seconds, lambda: self.kill_node(node))
        self.changed()

    def kill_process(self, process: Process, cause: str = "signal 9") -> None:
        if process.running:
            self._die(process, cause, NOTICE_PROCESS, LIST_PROCESS)

    def forget(self, process: Process) -> None:
        """The engine does not list it any more, and it runs on."""
        process.listed = False
        self.changed()

    def remember(self, process: Process) -> None:
        process.listed = True
        self.changed()

    def duplicate(self, process: Process, node: PretendedNode) -> Process:
        """A second process under the same name, as after a split of the cluster."""
        twin = Process(f"p{next(self._numbers)}", process.name, process.wish)
        self.processes[twin.id] = twin
        self._start(twin, node)
        return twin

    def cut_off(self, cause: str) -> None:
        """The head cannot be reached; events do not come through either."""
        if not self.trouble:
            self.trouble = cause
            self._send(Unreachable(cause))

    def restore(self) -> None:
        self.trouble = ""
        self.changed()

    # What near ends do to a process.

    def find(self, address: ReplicaAddress) -> Process:
        return self.processes[f"p{address.port}"]

    def connect(self, process: Process, who: object, epoch: int, on_death: Callable[[str], None]) -> bool:
        """False if no replica listens there. ``on_death`` is called with the cause when the connection breaks."""
        if process.life is not Life.UP:
            return False
        process.connected[who] = on_death
        process.epoch = max(process.epoch, epoch)
        return True

    def hang_up(self, process: Process, who: object) -> None:
        process.inside.discard(who)
        process.connected.pop(who, None)
        process.alone_since = self.clock.monotonic()
        self._watch_orphan(process)

    def close(self, process: Process, epoch: int) -> None:
        """A near end tells the replica to end. One that is stuck does not hear it, and a lower epoch is refused."""
        if process.running and not process.stuck and epoch >= process.epoch:
            self._die(process, "it was told to end", NOTICE_PROCESS, LIST_PROCESS)

    def gpu_of(self, process: Process) -> GpuUse | None:
        """What the replica says of its GPU."""
        if process.node is None or not process.wish.needs.get(GPUS):
            return None
        size = int(process.node.labels.get(GPU_BYTES_LABEL, "0"))
        return GpuUse(f"{process.node.id}-gpu", size, int(size * process.wish.needs[GPUS])) if size else None

    # What the engine does.

    def free(self, node: PretendedNode) -> dict[str, float]:
        """What the engine has not given to a process that it takes to be running."""
        left = dict(node.total)
        for process in self.processes.values():
            if process.node is not node or process.gone:
                continue
            for name, amount in process.wish.needs.items():
                left[name] = left.get(name, 0.0) - amount
        return left

    def list_nodes(self) -> list[ClusterNode]:
        now = self.clock.monotonic()
        return [
            ClusterNode(
                node.id,
                node.host,
                node.total,
                self.free(node),
                node.labels,
                node.known_alive,
                node.draining,
                None if node.leaves_at is None else max(node.leaves_at - now, 0.0),
            )
            for node in self.nodes.values()
        ]

    def list_replicas(self) -> list[PlacedReplica]:
        """Those that have died a moment ago are still in it."""
        return [
            PlacedReplica(process.id, process.name, process.node.id if process.node else None, process.address)
            for process in self.processes.values()
            if process.listed and not process.gone and (process.node is None or process.node.known_alive)
        ]

    def place(self, wish: Wish) -> str:
        for process in self.processes.values():
            if process.name == wish.name and process.listed and not process.gone:
                raise ServingError(StatusCode.ALREADY_EXISTS, f"there is a replica {wish.name}")
        if any(amount < 0 for amount in wish.needs.values()):
            raise invalid_argument(f"{wish.name}: less than nothing is needed")
        process = Process(f"p{next(self._numbers)}", wish.name, wish)
        self.processes[process.id] = process
        self.clock.call_later(0.0, self._schedule)
        return process.id

    def end(self, id: str) -> None:
        process = self.processes.get(id)
        if process is None or process.life is Life.DEAD:
            return
        if process.life is Life.PENDING:
            process.life, process.gone = Life.DEAD, True
        elif process.node is not None and not process.node.frozen:  # a frozen node's raylet hears nothing
            self._die(process, "signal 9", NOTICE_PROCESS, NOTICE_PROCESS)

    def watch(self, on_event: Callable[[EngineEvent], None]) -> Callable[[], None]:
        self._watchers.append(on_event)
        return lambda: self._watchers.remove(on_event) if on_event in self._watchers else None

    def changed(self) -> None:
        self._schedule()
        self._send(Changed())

    def _send(self, event: EngineEvent) -> None:
        if self.loses_events or (self.trouble and not isinstance(event, Unreachable)):
            return
        for watcher in list(self._watchers):
            watcher(event)

    def _on(self, node: PretendedNode) -> list[Process]:
        return [process for process in self.processes.values() if process.node is node and process.running]

    def _schedule(self) -> None:
        """Gives pending wishes to nodes, as they came."""
        for process in self.processes.values():
            if process.life is Life.PENDING:
                node = next((node for node in self.nodes.values() if self._fits(process.wish, node)), None)
                if node is not None:
                    self._start(process, node)

    def _fits(self, wish: Wish, node: PretendedNode) -> bool:
        if not (node.alive and node.known_alive and not node.draining and not node.frozen):
            return False
        if node.id in wish.avoid or wish.node not in (None, node.id) or not fulfils_labels(node.labels, wish.labels):
            return False
        free = self.free(node)
        return all(amount <= free.get(name, 0.0) + TOLERANCE for name, amount in wish.needs.items())

    def _start(self, process: Process, node: PretendedNode) -> None:
        process.life, process.node = Life.STARTING, node
        self.clock.call_later(self.start_seconds, lambda: self._listen(process))

    def _listen(self, process: Process) -> None:
        if process.life is not Life.STARTING:
            return
        if process.stuck:
            self.clock.call_later(1.0, lambda: self._listen(process))
            return
        assert process.node is not None
        process.life, process.alone_since = Life.UP, self.clock.monotonic()
        host, number = process.node.host, int(process.id[1:])
        process.address = ReplicaAddress(str(process.name), host, number, "boot", None, number)
        self._watch_orphan(process)
        if self.dies_after is not None:
            self.clock.call_later(self.dies_after, lambda: self.kill_process(process, "signal 11"))
        self.changed()

    def _watch_orphan(self, process: Process) -> None:
        since = process.alone_since

        def end_if_alone() -> None:
            alone = not process.connected and process.alone_since == since
            if alone and process.life is Life.UP and not process.stuck:
                self._die(process, "no server was connected", NOTICE_PROCESS, LIST_PROCESS)

        self.clock.call_later(self.orphan_seconds, end_if_alone)

    def _die(self, process: Process, cause: str, noticed_after: float, listed_for: float) -> None:
        """It is dead at once, for those connected soon, and for the engine later."""
        connected = list(process.connected.values())
        process.life, process.cause = Life.DEAD, cause
        process.connected.clear()
        process.inside.clear()
        for on_death in connected:
            self.clock.call_later(noticed_after, partial(on_death, cause))
        self.clock.call_later(listed_for, lambda: self._believe_ended(process))

    def _believe_ended(self, process: Process) -> None:
        if not process.gone:
            process.gone = True
            self._send(ReplicaEnded(process.id, process.cause))
            self.changed()

    def _believe_dead(self, node: PretendedNode) -> None:
        node.known_alive = False
        for process in self._on(node):
            self._send(ReplicaEnded(process.id, f"its node {node.host} is lost"))
        self.changed()


class PretendedEngine(ClusterEngine):
    """A server's connection to the cluster. ``before`` and ``after`` are called with the name of each call, and may
    raise: what ``before`` raises keeps the call from having any effect, what ``after`` raises only loses the answer.
    ``on_nodes`` sees what is listed, ``on_place`` and ``on_end`` what is about to have an effect."""

    def __init__(self, cluster: PretendedCluster) -> None:
        self.cluster = cluster
        cluster.epoch += 1
        self._epoch = cluster.epoch
        self.before: Callable[[str], None] = lambda name: None
        self.after: Callable[[str], None] = lambda name: None
        self.on_nodes: Callable[[Sequence[ClusterNode]], None] = lambda nodes: None
        self.on_place: Callable[[Wish], None] = lambda wish: None
        self.on_end: Callable[[Process], None] = lambda process: None
        self._unwatch: list[Callable[[], None]] = []

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def secret(self) -> bytes:
        return self.cluster.secret

    def nodes(self) -> Sequence[ClusterNode]:
        self._enter("nodes")
        found = self.cluster.list_nodes()
        self.on_nodes(found)
        self.after("nodes")
        return found

    def list(self) -> Sequence[PlacedReplica]:
        self._enter("list")
        found = self.cluster.list_replicas()
        self.after("list")
        return found

    def place(self, wish: Wish) -> str:
        self._enter("place")
        self._check_epoch()
        self.on_place(wish)
        id = self.cluster.place(wish)
        self.after("place")
        return id

    def end(self, id: str) -> None:
        self._enter("end")
        self._check_epoch()
        if id in self.cluster.processes:
            self.on_end(self.cluster.processes[id])
        self.cluster.end(id)
        self.after("end")

    def watch(self, on_event: Callable[[EngineEvent], None]) -> Callable[[], None]:
        self._unwatch.append(self.cluster.watch(on_event))
        return self._unwatch[-1]

    def disconnect(self) -> None:
        """The server is gone."""
        for unwatch in self._unwatch:
            unwatch()

    def _enter(self, name: str) -> None:
        self.before(name)
        if self.cluster.trouble:
            raise ServingError(StatusCode.UNAVAILABLE, self.cluster.trouble)

    def _check_epoch(self) -> None:
        if self.epoch < self.cluster.epoch:
            raise Superseded(self.cluster.epoch)
