"""A server on a pretended cluster: the real reconciler, and near ends and versions that do what the real ones owe it.

Nothing here has a thread: near ends look when something has changed, and what takes time is left to the clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.support.cluster.pretended_cluster import PretendedCluster, PretendedEngine, Process
from tfs_lite.cluster.replicas.engine import ReplicaAddress, VersionKey
from tfs_lite.cluster.replicas.reconciler import Reconciler, ReplicaPlace, ReplicaSet
from tfs_lite.cluster.replicas.states import ReplicaEvent, VersionReplicas
from tfs_lite.core.clock import Clock
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.testing.lifecycle.executor import ManualExecutor

PING_SECONDS, PING_TIMEOUT = 10.0, 60.0
RETRY_LOAD = 10.0
AT_ONCE = threading.Event()
AT_ONCE.set()


class NearEnd:
    """What a near end does with its place, without tensors: connects, opens, pings, reports, and has requests inside.
    ``is_open`` means that requests may go to the replica."""

    def __init__(self, version: PretendedVersion, place: ReplicaPlace, replaces: NearEnd | None = None) -> None:
        self.version, self.place, self.replaces = version, place, replaces
        self.address: ReplicaAddress | None = None
        self.process: Process | None = None
        self.is_open = False
        self.is_closed = False
        self.leaves = False
        self.joined = replaces is None
        self.waits = ""

    @property
    def busy(self) -> bool:
        return self.process is not None and self in self.process.inside

    @property
    def _cluster(self) -> PretendedCluster:
        return self.version.server.cluster

    def look(self) -> None:
        """Asks for a replica unless it has one that is still in the place."""
        if self.is_closed or self.version.server.is_dead:
            return
        if self.address is not None:
            if self.place.holds(self.address):
                return
            self._hang_up(tell=True)
        try:
            self.address = self.place.address(AT_ONCE, wait_for_room=False)
        except ServingError as error:
            self.waits = str(error) if error.status.reason is Reason.WAITS_FOR_PLACE else ""
            if error.code is StatusCode.UNAVAILABLE and not self.waits:
                self.version.on_failure()
            return
        self.waits = ""
        self._connect(self.address)

    def begin_request(self) -> bool:
        """False if there is no replica to ask, or a request is inside already."""
        if not self.is_open or self.process is None or self.busy:
            return False
        self.process.inside.add(self)
        return True

    def finish_request(self) -> None:
        if self.busy and self.process is not None and not self.process.stuck:
            self.process.inside.discard(self)
            if self.leaves:
                self.close()

    def leave(self) -> None:
        """Closes as soon as no request is inside."""
        self.leaves = True
        if not self.busy:
            self.close()

    def close(self) -> None:
        self.is_closed = True
        self._hang_up(tell=False)
        self.place.close()
        self.version.on_closed(self)

    def drop(self) -> None:
        """Its server is gone."""
        self.is_closed = True
        self._hang_up(tell=False)

    def _connect(self, address: ReplicaAddress) -> None:
        process = self._cluster.find(address)
        clock = self._cluster.clock
        epoch = self.version.server.engine.epoch
        if not self._cluster.connect(process, self, epoch, lambda _: self._lost(address, "it closed its connection")):
            clock.call_later(0.01, lambda: self._lost(address, "it refuses connections"))
            return
        self.process = process
        clock.call_later(PING_SECONDS, lambda: self._ping(address, process, 0.0))
        seconds = 0.0 if process.opened else self.version.server.open_seconds
        clock.call_later(seconds, lambda: self._open(address, process))

    def _open(self, address: ReplicaAddress, process: Process) -> None:
        if self.address != address or self.process is not process:
            return
        if process.stuck:
            self._cluster.clock.call_later(1.0, lambda: self._open(address, process))
            return
        status = self._cluster.refuses.get(address.host)
        if status is not None and not process.opened:
            self._hang_up(tell=False)
            self.place.refused(address, status)
            if not self.version.is_available:
                self.version.on_failure()
            return
        process.opens += not process.opened
        process.opened = self.is_open = True
        self.place.opened(address, self._cluster.gpu_of(process))
        self.version.on_open(self)

    def _ping(self, address: ReplicaAddress, process: Process, silent: float) -> None:
        if self.address != address or self.process is not process:
            return
        silent = silent + PING_SECONDS if process.stuck else 0.0
        if silent >= PING_TIMEOUT:
            self._lost(address, f"not answering for {silent:.0f} s")
        else:
            self._cluster.clock.call_later(PING_SECONDS, lambda: self._ping(address, process, silent))

    def _lost(self, address: ReplicaAddress, cause: str) -> None:
        if self.address == address and not self.version.server.is_dead:
            self._hang_up(tell=False)
            self.place.lost(address, cause)
            if self.leaves and not self.is_closed:
                self.close()

    def _hang_up(self, tell: bool) -> None:
        process, self.process, self.address, self.is_open = self.process, None, None, False
        if process is not None:
            self._cluster.hang_up(process, self)
            if tell:
                self._cluster.close(process, self.version.server.engine.epoch)


class PretendedVersion:
    """A version's loader and scheduler: it is available once all places are open, and stays so until it is dropped.
    A load that fails is tried again."""

    def __init__(self, server: PretendedServer, wanted: VersionReplicas) -> None:
        self.server, self.wanted = server, wanted
        self.is_available = False
        self.is_dropped = False
        self.near_ends: list[NearEnd] = []
        self._looks = False
        self.group: ReplicaSet | None = None
        self._load()

    @property
    def key(self) -> VersionKey:
        return self.wanted.model, self.wanted.version, self.wanted.generation

    def grow(self) -> None:
        if self.group is not None:
            self.near_ends += [NearEnd(self, place) for place in self.group.grow(1)]
            self._look_soon()

    def shrink(self, index: int = -1) -> None:
        """One of several that do not move leaves."""
        replaced = [near_end.replaces for near_end in self.near_ends]
        still = [each for each in self.near_ends if not (each.leaves or each.replaces or each in replaced)]
        if len(still) > 1:
            still[index % len(still)].leave()

    def drop(self) -> None:
        self.is_dropped = True
        for near_end in list(self.near_ends):
            near_end.leave()
        self._forget_if_closed()

    def on_open(self, near_end: NearEnd) -> None:
        self.is_available = self.is_available or all(each.is_open for each in self.near_ends)
        if near_end.replaces is not None:
            near_end.replaces.leave()
            near_end.replaces = None

    def on_failure(self) -> None:
        """The load fails, and is tried again; a version that is available just goes on."""
        if self.is_available or self.is_dropped:
            return
        near_ends, self.near_ends = self.near_ends, []
        for near_end in near_ends:
            near_end.close()
        self.group = None
        self.server.cluster.clock.call_later(RETRY_LOAD, self._load)

    def on_closed(self, near_end: NearEnd) -> None:
        if near_end in self.near_ends:
            self.near_ends.remove(near_end)
        self._forget_if_closed()

    def _forget_if_closed(self) -> None:
        if self.is_dropped and not self.near_ends:
            self.server.versions.pop(self.key, None)

    def _load(self) -> None:
        if self.is_dropped or self.server.is_dead or self.group is not None:
            return
        self.group = self.server.reconciler.want(self.wanted, self._look_soon, self._on_move)
        self.near_ends = [NearEnd(self, place) for place in self.group.places]
        self._look_soon()

    def _on_move(self, old: ReplicaPlace, new: ReplicaPlace) -> None:
        replaced = next((near_end for near_end in self.near_ends if near_end.place is old), None)
        if replaced is None or replaced.leaves:
            new.close()
            return
        self.near_ends.append(NearEnd(self, new, replaced))
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._looks:
            self._looks = True
            self.server.cluster.clock.call_later(0.0, self._look)

    def _look(self) -> None:
        self._looks = False
        for near_end in list(self.near_ends):
            near_end.look()


class PretendedServer:
    """One server, from its start to its crash. The caller runs its ``executor``."""

    def __init__(
        self, cluster: PretendedCluster, clock: Clock, on_event: Callable[[ReplicaEvent], None] = lambda event: None
    ) -> None:
        self.cluster = cluster
        self.engine = PretendedEngine(cluster)
        self.executor = ManualExecutor(1)
        self.reconciler = Reconciler(self.engine, clock, self.executor, on_event)
        self.open_seconds = 2.0
        self.is_dead = False
        self.versions: dict[VersionKey, PretendedVersion] = {}
        self.reconciler.start()

    def want(self, wanted: VersionReplicas) -> PretendedVersion:
        version = PretendedVersion(self, wanted)
        self.versions[version.key] = version
        return version

    def drop(self, key: VersionKey) -> None:
        self.versions[key].drop()

    @property
    def near_ends(self) -> list[NearEnd]:
        return [near_end for version in self.versions.values() for near_end in version.near_ends]

    def crash(self) -> None:
        """As ``kill -9``: nothing is closed in order, all its connections break."""
        self.is_dead = True
        self.engine.disconnect()
        for near_end in self.near_ends:
            near_end.drop()
