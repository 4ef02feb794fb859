"""A whole server over a real cluster of Ray, under callers. What needs no Ray is in ``integration/test_replicas``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.support.cluster.ray_nodes import RayNodes
    from tests.support.cluster.replicated_models import ReplicatedModels
    from tests.support.servers.in_process import ServerFixture
    from tests.support.servers.process import ServerProcess

    Launch = Callable[..., ServerProcess]
    Serve = Callable[[], AbstractContextManager[ServerFixture]]

CPUS = 0.1
CALLERS = 4
SLEEPS = "import time; time.sleep(0.02)"
"""What a model under callers does with a batch: without it they would leave no processor to the replicas that start."""
ADOPTION_SECONDS = 60.0
"""From the start of the next server to its first answer. It takes 4 s on a quiet machine, 19 on a busy one."""
ORPHAN_SECONDS = 5.0
GONE_SECONDS = 10.0
"""After their time as orphans, replicas have to be gone."""


@pytest.fixture
def launch(ray_nodes: RayNodes, models: ReplicatedModels, request: pytest.FixtureRequest) -> Launch:
    """A server that is a process, and can be killed."""
    from tests.support.servers.process import ServerProcess

    def make(*flags: str) -> ServerProcess:
        return ServerProcess(
            f"--model_repository={models.root}",
            f"--trusted_model_base_paths={models.root}",
            "--version_quiet_period_seconds=0",
            f"--cluster={ray_nodes.address}",
            f"--cluster_name={str(request.node.name)[:40]}",
            "--cluster_host=127.0.0.1",
            "--replica_orphan_seconds=20",
            *flags,
            command=[sys.executable, "-m", "tfs_lite.cli.main"],
        )

    return make


def kill(server: ServerProcess) -> None:
    server.process.kill()
    server.wait()


def left(pids: set[int]) -> set[int]:
    """Those that run."""
    return {pid for pid in pids if psutil.pid_exists(pid)}


def test_swaps_and_losses_of_replicas_and_of_a_node_cost_no_request(
    ray_nodes: RayNodes, models: ReplicatedModels, serve: Serve
) -> None:
    from tests.support.cluster.replicated_models import wait_ready
    from tests.support.servers.probe import Traffic
    from tests.support.servers.process import wait_until
    from tfs_lite.core.servable import VersionState

    def pids() -> set[int]:
        found = [each.pid for report in served.server.core.view.replicas() for each in report.replicas]
        return {pid for pid in found if pid is not None}

    def wait_available(version: int) -> None:
        wait_until(lambda: served.states().get(version) is VersionState.AVAILABLE, f"{version} is available", 120)

    doomed = ray_nodes.add_node(1, {"zone": "serving"})
    models.publish(1, cpus=CPUS, running=SLEEPS)
    with serve() as served:
        wait_available(1)
        with Traffic(served.target, "m", CALLERS) as traffic:
            models.publish(2, cpus=CPUS, running=SLEEPS)
            wait_available(2)
            wait_ready(served, 2)
            for _ in range(2):
                before = pids()
                os.kill(next(iter(before)), signal.SIGKILL)
                wait_until(lambda before=before: pids() != before, "the loss is noticed", 120)
                wait_ready(served, 2)
            ray_nodes.kill_node(doomed)
            wait_ready(served, 2)
            models.publish(3, cpus=CPUS, running=SLEEPS)
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
            assert [psutil.Process(pid).nice() for pid in models.pids] == [psutil.Process().nice()] * 2
    assert models.opened == ["m/1"] * 2


def test_what_ray_has_no_room_for_waits_in_words_and_its_neighbour_loads(
    models: ReplicatedModels, serve: Serve
) -> None:
    from tests.support.servers.process import wait_until
    from tfs_lite.core.servable import VersionState

    models.publish(1, "large", count=1, cpus=7)
    models.publish(1, count=1, cpus=CPUS)
    with serve() as served:
        served.server.wait_ready(120)
        assert served.version() == 1
        wait_until(lambda: "num_cpus 7; no node has more than 1" in str(served.status("large").get(1)), "it waits")
        assert served.states("large") == {1: VersionState.LOADING}


def test_a_node_that_drains_is_left_without_a_failed_request(
    ray_nodes: RayNodes, models: ReplicatedModels, serve: Serve
) -> None:
    from tests.support.cluster.replicated_models import wait_ready
    from tests.support.servers.probe import Traffic
    from tests.support.servers.process import wait_until

    old, new = (ray_nodes.add_node(1, {"serving": name}) for name in ("old", "new"))
    only = 'label_selector { key: "serving" value: "in(old,new)" }'
    models.publish(1, count=2, cpus=0.5, needs=only, running=SLEEPS)
    with serve() as served:
        served.server.wait_ready(120)
        with Traffic(served.target, "m", CALLERS) as traffic:
            before = models.pids
            ray_nodes.drain_node(old, 600)
            wait_until(lambda: len(models.pids) > 2, "others open the version", 120)
            wait_until(lambda: len(left(models.pids)) == 2, "those of the node end", 120)
            wait_ready(served, 2)
            answers = traffic.total
            wait_until(lambda: traffic.total > answers + 20, "requests are answered", 120)
            traffic.stop()
    assert (traffic.failures, traffic.wrong) == ([], [])
    assert len(left(before)) == 1
    for node in (old, new):
        ray_nodes.kill_node(node)


def test_a_server_that_is_killed_and_started_again_answers_without_opening_anything(
    models: ReplicatedModels, launch: Launch
) -> None:
    from tests.support.servers.in_process import ROW
    from tests.support.servers.process import wait_until
    from tfs_lite.client import Client
    from tfs_lite.core.servable import VersionState

    def answers() -> bool:
        states = [status.state for status in client.status("m")]
        return states == [VersionState.AVAILABLE] and client.predict("m", {"x": ROW}).version == 1

    models.publish(1, cpus=CPUS)
    with launch() as first:
        kill(first)
    began = time.monotonic()
    with launch() as second, Client(second.target) as client:
        wait_until(answers, "it answers", 120)
        seconds = time.monotonic() - began
        assert models.opened == ["m/1"] * 2
        assert len(left(models.pids)) == 2
    print(f"answers {seconds:.1f} s after its start")
    assert seconds < ADOPTION_SECONDS


def test_replicas_with_other_files_are_ended_and_those_of_a_server_that_does_not_come_back_end(
    models: ReplicatedModels, launch: Launch
) -> None:
    from tests.support.servers.in_process import ROW
    from tests.support.servers.process import wait_until
    from tfs_lite.client import Client

    models.publish(1, cpus=CPUS)
    with launch() as first:
        kill(first)
    before = models.pids
    models.withdraw(1)
    models.publish(1, cpus=CPUS, running="inputs = dict(inputs)")
    with launch(f"--replica_orphan_seconds={ORPHAN_SECONDS}") as second, Client(second.target) as client:
        assert client.predict("m", {"x": ROW}).version == 1
        assert models.opened == ["m/1"] * 4
        wait_until(lambda: not left(before), "the old ones end", 120)
        assert len(left(models.pids)) == 2
        kill(second)
    began = time.monotonic()
    wait_until(lambda: not left(models.pids), "the new ones end", ORPHAN_SECONDS + GONE_SECONDS)
    print(f"gone {time.monotonic() - began:.1f} s after their server")
