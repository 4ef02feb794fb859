"""A whole server over a real cluster of Ray, under callers. What needs no Ray is in ``integration/test_replicas``."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfs_lite.testing.cluster.ray_nodes import RayNodes
    from tfs_lite.testing.cluster.replicated_models import ReplicatedModels
    from tfs_lite.testing.servers.in_process import ServerFixture

    Serve = Callable[[], AbstractContextManager[ServerFixture]]

CPUS = 0.1
CALLERS = 4


def test_swaps_losses_and_a_drained_node_cost_no_request(
    ray_nodes: RayNodes, models: ReplicatedModels, serve: Serve
) -> None:
    from tfs_lite.core.servable import VersionState
    from tfs_lite.testing.cluster.replicated_models import wait_ready
    from tfs_lite.testing.servers.probe import Traffic
    from tfs_lite.testing.servers.process import wait_until

    def pids() -> set[int]:
        found = [each.pid for report in served.server.core.replicas() for each in report.replicas]
        return {pid for pid in found if pid is not None}

    def wait_available(version: int) -> None:
        wait_until(lambda: served.states().get(version) is VersionState.AVAILABLE, f"{version} is available", 120)

    doomed = ray_nodes.add_node(1, {"zone": "serving"})
    models.publish(1, cpus=CPUS)
    with serve() as served:
        wait_available(1)
        with Traffic(served.target, "m", CALLERS) as traffic:
            models.publish(2, cpus=CPUS)
            wait_available(2)
            wait_ready(served, 2)
            for _ in range(2):
                before = pids()
                os.kill(next(iter(before)), signal.SIGKILL)
                wait_until(lambda before=before: pids() != before, "the loss is noticed", 120)
                wait_ready(served, 2)
            ray_nodes.kill_node(doomed)
            wait_ready(served, 2)
            models.publish(3, cpus=CPUS)
            wait_available(3)
            wait_ready(served, 2)
            traffic.stop()
    assert (traffic.failures, traffic.wrong, traffic.backwards) == ([], [], 0)
    assert set(traffic.answers) == {1, 2, 3}


def test_the_next_server_adopts_the_replicas(models: ReplicatedModels, serve: Serve) -> None:
    from tfs_lite.core.servable import VersionState

    models.publish(1, cpus=CPUS)
    for _ in range(2):
        with serve() as served:
            served.server.wait_ready(120)
            assert served.states() == {1: VersionState.AVAILABLE}
            assert served.version() == 1
    assert models.opened == ["m/1"] * 2


def test_what_ray_has_no_room_for_waits_in_words_and_its_neighbour_loads(
    models: ReplicatedModels, serve: Serve
) -> None:
    from tfs_lite.core.servable import VersionState
    from tfs_lite.testing.servers.process import wait_until

    models.publish(1, "large", count=1, cpus=7)
    models.publish(1, count=1, cpus=CPUS)
    with serve() as served:
        served.server.wait_ready(120)
        assert served.version() == 1
        wait_until(lambda: "num_cpus 7; no node has more than 1" in str(served.status("large").get(1)), "it waits")
        assert served.states("large") == {1: VersionState.LOADING}
