"""The contract suite of engines over Ray's."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster.engine_contract import EngineContract, EngineFixture
from tests.support.cluster.ray_nodes import RayNodes
from tfs_lite.cluster.replicas.engine import ClusterEngine, PlacedReplica
from tfs_lite.cluster.replicas.helper import HelperEngine
from tfs_lite.config.replicas import ClusterOptions
from tfs_lite.core.status import ServingError

PATIENCE = 60.0
STEP = 0.05


class OverRay(EngineFixture):
    """Calls may take 2 seconds, and the lead is lost after 2: tests wait for both."""

    def __init__(self, cluster: RayNodes) -> None:
        self._cluster = cluster
        self._options = ClusterOptions(cluster.address, name="contract")
        self.engine = self._connect()
        self._engines = [self.engine]

    def _connect(self) -> HelperEngine:
        return HelperEngine.connect(self._options, lease_seconds=2.0, call_seconds=2.0)

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                if condition():
                    return
            except ServingError:
                pass  # it was restored a moment ago
            threading.Event().wait(STEP)
        raise AssertionError("it never came about")

    def let_time_pass(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def add_node(self, zone: str) -> str:
        return self._cluster.add_node(1, {"zone": zone})

    def kill_node(self, id: str) -> None:
        self._cluster.kill_node(id)

    def drain_node(self, id: str, seconds: float) -> None:
        self._cluster.drain_node(id, seconds)

    def kill_process(self, replica: PlacedReplica) -> None:
        assert replica.address is not None
        os.kill(replica.address.pid or 0, signal.SIGKILL)

    def cut_off(self) -> None:
        os.kill(self._cluster.gcs_pid, signal.SIGSTOP)

    def restore(self) -> None:
        os.kill(self._cluster.gcs_pid, signal.SIGCONT)

    def take_over(self) -> ClusterEngine:
        """The first server's helper stands still until its lease is over and another server leads."""
        helper = self.engine.pid
        assert helper is not None
        os.kill(helper, signal.SIGSTOP)
        found: list[HelperEngine] = []

        def connect() -> bool:
            found.append(self._connect())
            return True

        self.until(connect)
        os.kill(helper, signal.SIGCONT)
        self._engines += found
        return found[0]

    def end_replicas(self) -> None:
        for replica in self.engine.list():
            self._engines[-1].end(replica.id)

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


@pytest.fixture(scope="module")
def shared(ray_nodes: RayNodes) -> Iterator[OverRay]:
    found = OverRay(ray_nodes)
    yield found
    found.close()


class TestRayEngine(EngineContract):
    @pytest.fixture
    def cluster(self, shared: OverRay) -> Iterator[OverRay]:
        yield shared
        shared.restore()
        shared.until(lambda: shared.end_replicas() is None)
        shared.until(lambda: not shared.engine.list())
