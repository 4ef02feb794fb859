"""Swaps and losses by the dozen over a real cluster of Ray, under twelve callers. Minutes: `make test-cluster-long`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.support.cluster.ray_nodes import RayNodes
    from tests.support.cluster.replicated_models import ReplicatedModels
    from tests.support.servers.in_process import ServerFixture
    from tests.support.servers.probe import Traffic

    Serve = Callable[[], AbstractContextManager[ServerFixture]]

pytestmark = [pytest.mark.load, pytest.mark.timeout(1800)]
CALLERS, SWAPS = 12, 50
CPUS = 0.1
REPLICAS = 3
KILLING_SECONDS, PAUSE = 60.0, 2.0
AWAY_SECONDS = 20.0
PATIENCE = 120.0
SLEEPS = "import time; time.sleep(0.05)"
"""What a model does with a batch: callers who never wait would leave no processor to the replicas that start."""


@pytest.fixture
def served(models: ReplicatedModels, serve: Serve) -> Iterator[ServerFixture]:
    models.publish(1, count=REPLICAS, cpus=CPUS, running=SLEEPS)
    with serve() as found:
        found.server.wait_ready(PATIENCE)
        yield found


@pytest.fixture
def asked(served: ServerFixture) -> Iterator[Traffic]:
    """Under callers, none of whom fails, or gets an older version after a newer one."""
    from tests.support.servers.probe import Traffic

    with Traffic(served.target, "m", CALLERS) as traffic:
        yield traffic
        traffic.stop()
    print(f"{traffic.total} answers, {len(traffic.failures)} failed, {traffic.backwards} backwards")
    assert (traffic.failures, traffic.wrong, traffic.backwards) == ([], [], 0)


def until(condition: Callable[[], bool], what: str) -> None:
    from tests.support.servers.process import wait_until

    wait_until(condition, what, PATIENCE)


def pids(served: ServerFixture) -> list[int]:
    """Of the replicas that are ready."""
    from tfs_lite.cluster.replicas.reports import READY

    found = [replica for report in served.server.core.view.replicas() for replica in report.replicas]
    return [replica.pid for replica in found if replica.pid is not None and replica.state == READY]


def test_fifty_swaps(served: ServerFixture, asked: Traffic, models: ReplicatedModels) -> None:
    from tfs_lite.core.servable import VersionState

    for version in range(2, SWAPS + 2):
        models.publish(version, count=REPLICAS, cpus=CPUS, running=SLEEPS)
        until(lambda version=version: served.states().get(version) is VersionState.AVAILABLE, f"{version} is available")
    until(lambda: SWAPS + 1 in asked.answers, "the last version answers")


def test_replica_dies_every_two_seconds_for_a_minute(served: ServerFixture, asked: Traffic) -> None:
    ends, killed = time.monotonic() + KILLING_SECONDS, 0
    while time.monotonic() < ends:
        until(lambda: len(pids(served)) > 1, "others can be asked")
        os.kill(pids(served)[0], signal.SIGKILL)
        killed += 1
        time.sleep(PAUSE)  # the interval is what is tried
    print(f"{killed} replicas killed")
    until(lambda: len(pids(served)) == REPLICAS, "all are back")


def test_node_dies(served: ServerFixture, asked: Traffic) -> None:
    before = pids(served)
    raylet = psutil.Process(before[0]).parent()
    assert raylet is not None
    assert raylet.name() == "raylet"
    began = time.monotonic()
    raylet.kill()
    until(lambda: len(pids(served)) == REPLICAS and before[0] not in pids(served), "all are back elsewhere")
    print(f"{REPLICAS} replicas again after {time.monotonic() - began:.1f} s")


def test_helper_and_head_die(ray_nodes: RayNodes, served: ServerFixture, asked: Traffic) -> None:
    """The last test of this file: the cluster ends a minute later."""
    (helper,) = helpers()
    helper.kill()
    until(lambda: helpers() not in ([], [helper]), "another helper")
    before, replicas = asked.total, pids(served)
    os.kill(ray_nodes.gcs_pid, signal.SIGKILL)
    time.sleep(AWAY_SECONDS)  # for so long requests must not notice
    assert asked.total > before
    assert pids(served) == replicas


def helpers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if any("helper_program" in word for word in child.cmdline())]
