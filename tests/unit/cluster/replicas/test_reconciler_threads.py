"""The reconciler with real time and real threads: an executor's, the clock's, and those of near ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import pytest

from tests.support.cluster.pretended_cluster import PretendedCluster, PretendedEngine
from tests.support.servers.process import wait_until
from tfs_lite.cluster.replicas.engine import ClusterNode, PlacedReplica, Wish
from tfs_lite.cluster.replicas.placement import Requirements
from tfs_lite.cluster.replicas.reconciler import Reconciler, ReplicaPlace
from tfs_lite.cluster.replicas.states import VersionReplicas
from tfs_lite.core.clock import SystemClock, Timer
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.status import ServingError

ONE_CPU = Requirements({"num_cpus": 1.0})


class LockedClock(SystemClock):
    """Delayed calls have the lock of the cluster, which is made for one thread."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        super().__init__()
        self._cluster_lock = lock

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        def locked() -> None:
            with self._cluster_lock:
                call()

        return super().call_later(delay, locked)


class LockedEngine(PretendedEngine):
    def __init__(self, cluster: PretendedCluster, lock: AbstractContextManager[object]) -> None:
        super().__init__(cluster)
        self.lock = lock

    def nodes(self) -> Sequence[ClusterNode]:
        with self.lock:
            return super().nodes()

    def list(self) -> Sequence[PlacedReplica]:
        with self.lock:
            return super().list()

    def place(self, wish: Wish) -> str:
        with self.lock:
            return super().place(wish)

    def end(self, id: str) -> None:
        with self.lock:
            super().end(id)


class NearThread:
    """A near end that opens whatever comes into its place, and loses it now and then."""

    def __init__(self, place: ReplicaPlace, seed: int) -> None:
        self._place, self._random = place, random.Random(seed)
        self._give_up = threading.Event()
        self.seen: list[str] = []
        self.calm = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._give_up.is_set():
            try:
                address = self._place.address(self._give_up)
            except ServingError:
                continue
            if not self.seen or self.seen[-1] != address.name:
                self.seen.append(address.name)
            self._place.opened(address)
            if not self.calm.is_set():
                self._place.lost(address, "signal 9")
            elif self._give_up.wait(0.01):
                return

    def close(self) -> None:
        self._give_up.set()
        self._thread.join(60)
        self._place.close()


@pytest.fixture
def reconciler() -> Iterator[tuple[Reconciler, LockedEngine]]:
    lock = threading.RLock()
    clock, executor = LockedClock(lock), PoolExecutor("replicas", 1)
    cluster = PretendedCluster(clock)
    cluster.start_seconds = 0.001
    engine = LockedEngine(cluster, lock)
    with lock:
        for host in ("a", "b"):
            cluster.add_node(host, {"num_cpus": 100.0})
    found = Reconciler(engine, clock, executor)
    found.start()
    found.finish_adoption()
    yield found, engine
    found.close()
    executor.shutdown()
    clock.close()


def test_replicas_that_are_lost_on_many_threads_all_come_back_and_none_stays_behind(
    reconciler: tuple[Reconciler, LockedEngine],
) -> None:
    keeper, engine = reconciler
    sets = [keeper.want(VersionReplicas("m", number, "aaaa", 4, ONE_CPU)) for number in range(3)]
    near_ends = [NearThread(place, number) for number, each in enumerate(sets) for place in each.places]
    wait_until(lambda: all(len(near_end.seen) > 4 for near_end in near_ends), "every replica has been seen")
    for near_end in near_ends:
        near_end.calm.set()
    wait_until(lambda: [str(each.status()) for each in sets] == ["4/4 up"] * 3, "all replicas are up")
    names = [name for near_end in near_ends for name in near_end.seen]
    assert len(names) == len(set(names))
    wait_until(lambda: len(engine.list()) == 12, "twelve replicas are there")
    for near_end in near_ends:
        near_end.close()
    wait_until(lambda: not engine.list(), "no replica is left")
