"""One suite over every engine of a cluster, here over those of tests; ``tests/cluster`` has Ray's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster.engine_contract import ZONE, EngineContract, EngineFixture
from tests.support.cluster.pretended_cluster import PretendedCluster, PretendedEngine
from tests.support.cluster.process_cluster import ProcessCluster, RemoteEngine
from tests.support.servers.process import wait_until
from tests.support.servers.replicas import ReplicaHost
from tfs_lite.cluster.replicas.engine import CPUS, ClusterEngine, PlacedReplica
from tfs_lite.testing.lifecycle.clock import VirtualClock

STEP = 0.05
LONGEST = 100.0


class Pretended(EngineFixture):
    def __init__(self) -> None:
        self._clock = VirtualClock()
        self._cluster = PretendedCluster(self._clock)
        self.engine = PretendedEngine(self._cluster)
        for zone in "abc":
            self.add_node(zone)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(int(LONGEST / STEP)):
            if condition():
                return
            self._clock.advance(STEP)
        raise AssertionError("it never came about")

    def let_time_pass(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def add_node(self, zone: str) -> str:
        return self._cluster.add_node(f"host-{zone}", {CPUS: 1}, {ZONE: zone}).id

    def kill_node(self, id: str) -> None:
        self._cluster.kill_node(self._cluster.nodes[id])

    def drain_node(self, id: str, seconds: float) -> None:
        self._cluster.drain_node(self._cluster.nodes[id], seconds)

    def kill_process(self, replica: PlacedReplica) -> None:
        self._cluster.kill_process(self._cluster.processes[replica.id])

    def cut_off(self) -> None:
        self._cluster.cut_off("no head")

    def restore(self) -> None:
        self._cluster.restore()

    def take_over(self) -> ClusterEngine:
        return PretendedEngine(self._cluster)


class TestPretendedEngine(EngineContract):
    @pytest.fixture
    def cluster(self) -> Pretended:
        return Pretended()


class OfProcesses(EngineFixture):
    """Of ``connect``: an engine in the cluster's process, or in another one."""

    def __init__(self, cluster: ProcessCluster, connect: Callable[[], ClusterEngine]) -> None:
        self._cluster = cluster
        self._connect = connect
        self.engine = connect()
        for zone in "abc":
            self.add_node(zone)

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, "it comes about")

    def let_time_pass(self, seconds: float) -> None:
        """Whatever this cluster does, it has done when a call returns."""

    def add_node(self, zone: str) -> str:
        return self._cluster.add_node(f"host-{zone}", {CPUS: 1}, {ZONE: zone}).id

    def kill_node(self, id: str) -> None:
        self._cluster.kill_node(self._cluster.nodes[id])

    def drain_node(self, id: str, seconds: float) -> None:
        self._cluster.drain_node(self._cluster.nodes[id], seconds)

    def kill_process(self, replica: PlacedReplica) -> None:
        process = next(process for process in self._cluster.replicas if process.id == replica.id)
        assert process.replica is not None
        process.replica.kill()

    def cut_off(self) -> None:
        self._cluster.cut_off("no head")

    def restore(self) -> None:
        self._cluster.restore()

    def take_over(self) -> ClusterEngine:
        return self._connect()


@pytest.fixture(scope="module")
def host() -> Iterator[ReplicaHost]:
    with ReplicaHost() as found:
        yield found


class TestEngineOfProcesses(EngineContract):
    @pytest.fixture(params=["in its process", "in another process"])
    def cluster(self, host: ReplicaHost, request: pytest.FixtureRequest) -> Iterator[OfProcesses]:
        with ProcessCluster(host) as cluster:
            remote = request.param == "in another process"
            found = OfProcesses(cluster, (lambda: RemoteEngine(cluster.path)) if remote else cluster.connect)
            yield found
