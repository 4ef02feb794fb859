"""One suite over every engine of a cluster, here over the pretended one; ``tests/cluster`` has Ray's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tfs_lite.testing.cluster.engine_contract import ZONE, EngineContract, EngineFixture
from tfs_lite.testing.cluster.pretended_cluster import PretendedCluster, PretendedEngine
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.workers.replicas.engine import CPUS, ClusterEngine, PlacedReplica

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
