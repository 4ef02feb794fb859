"""Real processes on pretended nodes, and an engine over them: what a server does with replicas, without Ray.

    with ReplicaHost(PRELOAD) as host, ProcessCluster(host) as cluster:
        node = cluster.add_node("a", {"num_cpus": 2})
        server = Server(options, features=cluster.features())
        cluster.kill_node(node)

Nodes are names with amounts; a replica "on" one is a process of this machine. The processes live as long as the
cluster, whatever becomes of the servers. A server in a process of its own connects over a UNIX socket.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from tests.support.servers.replicas import SECRET, HostedReplica, ReplicaHost
from tfs_lite.cluster.feature import Cluster
from tfs_lite.cluster.replicas.engine import (
    TOLD_TO_END,
    Changed,
    ClusterEngine,
    ClusterNode,
    EngineEvent,
    PlacedReplica,
    ReplicaEnded,
    Resources,
    Superseded,
    Unreachable,
    Watchers,
    Wish,
)
from tfs_lite.cluster.replicas.placement import TOLERANCE, fulfils_labels
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.server.features import FEATURES
from tfs_lite.serving.server_core import MakeFeature, ServerCore

PRELOAD = ("tfs_lite.adapters.remote",)
"""What the host of replicas imports before it forks them."""
CALLS = ("nodes", "list", "place", "end")
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class ProcessNode:
    """A pretended node. ``drain_seconds`` counts when it is ``draining``."""

    id: str
    host: str
    total: Resources
    labels: Mapping[str, str]
    alive: bool = True
    draining: bool = False
    drain_seconds: float | None = None
    frozen: bool = False


@dataclass(eq=False)
class HostedProcess:
    """A wish, and its process once there is room. ``cause``: why it has ended, if this cluster did it."""

    id: str
    wish: Wish
    node: ProcessNode | None = None
    replica: HostedReplica | None = None
    cause: str = ""

    @property
    def placed(self) -> PlacedReplica:
        address = self.replica.address if self.replica else None
        return PlacedReplica(self.id, self.wish.name, self.node.id if self.node else None, address)


@dataclass(eq=False)
class ProcessCluster:
    """Threads: any. Replicas are forks of ``host``, which outlives the cluster.

    ``settings`` are further arguments of each :class:`~tfs_lite.cluster.replicas.replica.Replica`. While ``trouble`` is
    set, it is why no call of an engine succeeds.
    """

    host: ReplicaHost
    settings: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""
    epoch: int = 0
    nodes: dict[str, ProcessNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()  # guards the fields, and what follows
        self._processes: dict[str, HostedProcess] = {}
        self._numbers = itertools.count(1)
        self._watchers = Watchers()
        self._ends = select.epoll()
        self._closed = os.eventfd(0)
        self._ends.register(self._closed, select.EPOLLIN)
        self._by_descriptor: dict[int, HostedProcess] = {}
        self._directory = tempfile.TemporaryDirectory()
        self.path = str(Path(self._directory.name) / "cluster")
        self._listener = Listener(self.path, "AF_UNIX")
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._watch_ends, self._accept)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> ProcessCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes."""
        with self._lock:
            self._watchers = Watchers()
            processes, self._processes = list(self._processes.values()), {}
        os.eventfd_write(self._closed, 1)
        with contextlib.suppress(OSError):
            Client(self.path, "AF_UNIX").close()  # wakes the thread that accepts
        for thread in self._threads:
            thread.join()
        self._listener.close()
        for process in processes:
            if process.replica is not None:
                process.replica.kill()
        self._ends.close()
        os.close(self._closed)
        self._directory.cleanup()

    # What a test does to it.

    def add_node(self, host: str, total: Resources, labels: Mapping[str, str] | None = None) -> ProcessNode:
        with self._lock:
            node = ProcessNode(f"n{next(self._numbers)}", host, total, labels or {})
            self.nodes[node.id] = node
        self.changed()
        return node

    def kill_node(self, node: ProcessNode) -> None:
        with self._lock:
            node.alive = False
            for process in self.on(node):
                self._kill(process, f"its node {node.host} is lost")
        self.changed()

    def drain_node(self, node: ProcessNode, seconds: float | None = None) -> None:
        """It gets nothing new; it does not go by itself."""
        node.draining, node.drain_seconds = True, seconds
        self.changed()

    def freeze_node(self, node: ProcessNode) -> None:
        """Its kernel still answers: connections stay, and nothing else happens."""
        node.frozen = True
        for process in self.on(node):
            if process.replica is not None:
                process.replica.signal(signal.SIGSTOP)

    def cut_off(self, cause: str) -> None:
        """No call of an engine succeeds."""
        self.trouble = cause
        self._send(Unreachable(cause))

    def restore(self) -> None:
        self.trouble = ""
        self.changed()

    def on(self, node: ProcessNode) -> list[HostedProcess]:
        """Its processes."""
        with self._lock:
            return [process for process in self._processes.values() if process.node is node]

    @property
    def replicas(self) -> list[HostedProcess]:
        """All that were placed and have not ended, the pending ones too."""
        with self._lock:
            return list(self._processes.values())

    def changed(self) -> None:
        """Gives pending wishes to nodes, and tells the servers."""
        self._schedule()
        self._send(Changed())

    # What the engine does.

    def connect(self) -> ProcessEngine:
        """A server's connection, which is the one in charge from now on."""
        with self._lock:
            self.epoch += 1
            return ProcessEngine(self, self.epoch)

    def features(self) -> tuple[MakeFeature, ...]:
        """Those of a server of this cluster, connected now."""
        engine = self.connect()

        def cluster(core: ServerCore) -> Cluster:
            assert core.options.cluster_options is not None
            return Cluster(core, core.options.cluster_options, engine)

        return (*FEATURES, cluster)

    def list_nodes(self) -> list[ClusterNode]:
        with self._lock:
            return [
                ClusterNode(
                    node.id,
                    node.host,
                    node.total,
                    self._free(node),
                    node.labels,
                    node.alive,
                    node.draining,
                    node.drain_seconds if node.draining else None,
                )
                for node in self.nodes.values()
            ]

    def list_replicas(self) -> list[PlacedReplica]:
        with self._lock:
            return [process.placed for process in self._processes.values()]

    def place(self, wish: Wish) -> str:
        if any(amount < 0 for amount in wish.needs.values()):
            raise invalid_argument(f"{wish.name} needs less than nothing")
        with self._lock:
            if any(process.wish.name == wish.name for process in self._processes.values()):
                raise ServingError(StatusCode.ALREADY_EXISTS, f"there is a replica {wish.name}")
            process = HostedProcess(f"p{next(self._numbers)}", wish)
            self._processes[process.id] = process
        self.changed()
        return process.id

    def end(self, id: str) -> None:
        with self._lock:
            process = self._processes.get(id)
            if process is None or (process.node is not None and process.node.frozen):
                return  # the node's own process hears nothing
            if process.replica is None:
                del self._processes[id]
            else:
                self._kill(process, TOLD_TO_END)

    def watch(self, on_event: Callable[[EngineEvent], None]) -> Callable[[], None]:
        return self._watchers.add(on_event)

    def _send(self, event: EngineEvent) -> None:
        self._watchers.tell(event)

    def _kill(self, process: HostedProcess, cause: str) -> None:
        process.cause = cause
        if process.replica is not None:
            with contextlib.suppress(ProcessLookupError):
                process.replica.signal(signal.SIGKILL)

    def _free(self, node: ProcessNode) -> dict[str, float]:
        left = dict(node.total)
        for process in self.on(node):
            for name, amount in process.wish.needs.items():
                left[name] = left.get(name, 0.0) - amount
        return left

    def _schedule(self) -> None:
        """As they came."""
        with self._lock:
            for process in self._processes.values():
                if process.node is None:
                    process.node = next((node for node in self.nodes.values() if self._fits(process.wish, node)), None)
                    if process.node is not None:
                        self._start(process)

    def _fits(self, wish: Wish, node: ProcessNode) -> bool:
        if not node.alive or node.draining or node.frozen:
            return False
        if node.id in wish.avoid or wish.node not in (None, node.id) or not fulfils_labels(node.labels, wish.labels):
            return False
        free = self._free(node)
        return all(amount <= free.get(name, 0.0) + TOLERANCE for name, amount in wish.needs.items())

    def _start(self, process: HostedProcess) -> None:
        """With the lock held: a fork, which listens when this returns."""
        facts = {"host": process.node.host} if process.node else {}
        replica = self.host.start(str(process.wish.name), facts=facts, **self.settings)
        process.replica = replica
        self._by_descriptor[replica.fileno()] = process
        self._ends.register(replica.fileno(), select.EPOLLIN)

    def _watch_ends(self) -> None:
        """The thread that notices the ends of processes."""
        while True:
            for descriptor, _ in self._ends.poll():
                if descriptor == self._closed:
                    return
                self._ends.unregister(descriptor)
                with self._lock:
                    process = self._by_descriptor.pop(descriptor)
                    self._processes.pop(process.id, None)
                self._send(ReplicaEnded(process.id, process.cause or "its process has ended"))
                self.changed()

    # Servers in processes of their own.

    def _accept(self) -> None:
        """The thread that waits for :class:`RemoteEngine`."""
        while not select.select([self._closed], [], [], 0)[0]:
            connection = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError), connection:
            if connection.recv() == "watch":
                self._tell(connection)
                return
            engine = self.connect()
            connection.send(engine.epoch)
            while True:
                name, arguments = connection.recv()
                assert name in CALLS
                try:
                    connection.send(getattr(engine, name)(*arguments))
                except ServingError as error:
                    connection.send(error)

    def _tell(self, connection: Connection) -> None:
        """Until the server has gone."""
        sending = threading.Lock()

        def send(event: EngineEvent) -> None:
            with sending, contextlib.suppress(OSError):
                connection.send(event)

        unwatch = self.watch(send)
        try:
            connection.send(None)
            connection.recv()
        finally:
            unwatch()


class ProcessEngine(ClusterEngine):
    """A server's connection to a cluster of its own process."""

    secret = SECRET
    restarts = 0

    def __init__(self, cluster: ProcessCluster, epoch: int) -> None:
        self._cluster = cluster
        self._epoch = epoch

    @property
    def epoch(self) -> int:
        return self._epoch

    def nodes(self) -> Sequence[ClusterNode]:
        self._check()
        return self._cluster.list_nodes()

    def list(self) -> Sequence[PlacedReplica]:
        self._check()
        return self._cluster.list_replicas()

    def place(self, wish: Wish) -> str:
        self._check_epoch()
        return self._cluster.place(wish)

    def end(self, id: str) -> None:
        self._check_epoch()
        self._cluster.end(id)

    def watch(self, on_event: Callable[[EngineEvent], None]) -> Callable[[], None]:
        return self._cluster.watch(on_event)

    def close(self) -> None:
        """The server has gone; the replicas stay."""

    def _check(self) -> None:
        if self._cluster.trouble:
            raise ServingError(StatusCode.UNAVAILABLE, self._cluster.trouble)

    def _check_epoch(self) -> None:
        self._check()
        if self._epoch < self._cluster.epoch:
            raise Superseded(self._cluster.epoch)


class RemoteEngine(ClusterEngine):
    """A server's connection to the cluster that listens at ``path``, in another process."""

    secret = SECRET
    restarts = 0

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()  # held for one call after the other
        self._calls = Client(path, "AF_UNIX")
        self._calls.send("calls")
        self._epoch = int(self._calls.recv())

    @property
    def epoch(self) -> int:
        return self._epoch

    def nodes(self) -> Sequence[ClusterNode]:
        return cast(Sequence[ClusterNode], self._ask("nodes"))

    def list(self) -> Sequence[PlacedReplica]:
        return cast(Sequence[PlacedReplica], self._ask("list"))

    def place(self, wish: Wish) -> str:
        return str(self._ask("place", wish))

    def end(self, id: str) -> None:
        self._ask("end", id)

    def watch(self, on_event: Callable[[EngineEvent], None]) -> Callable[[], None]:
        events = Client(self._path, "AF_UNIX")
        events.send("watch")
        events.recv()

        def read() -> None:
            with contextlib.suppress(EOFError, OSError, TypeError):
                while True:
                    on_event(events.recv())

        threading.Thread(target=read, name="tfs-cluster-events", daemon=True).start()
        return events.close

    def close(self) -> None:
        self._calls.close()

    def _ask(self, name: str, *arguments: object) -> Any:
        with self._lock:
            self._calls.send((name, arguments))
            answer = self._calls.recv()
        if isinstance(answer, ServingError):
            raise answer
        return answer
