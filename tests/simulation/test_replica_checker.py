"""The checker of replicas notices what it is there to notice: each promise, broken on purpose, is a violation."""

from __future__ import annotations

import re

import pytest

from tests.support.cluster.pretended_cluster import Process
from tests.support.cluster.replica_simulation import ReplicaSimulation
from tfs_lite.cluster.replicas.engine import ReplicaName, ReplicaSlot, Wish
from tfs_lite.cluster.replicas.placement import Requirements
from tfs_lite.cluster.replicas.states import ReplicaEvent, ReplicaState, VersionReplicas

WANTED = VersionReplicas("m", 1, "aaaa", 1, Requirements({"num_cpus": 1.0}, max_per_node=1))
STRANGER = ReplicaSlot("other", 1, "aaaa", 0)


@pytest.fixture
def simulation() -> ReplicaSimulation:
    """One version with one replica on two nodes, at rest."""
    found = ReplicaSimulation({"a": {"num_cpus": 2.0}, "b": {"num_cpus": 2.0}})
    found.want(WANTED)
    found.settle()
    return found


def the_process(simulation: ReplicaSimulation) -> Process:
    (process,) = simulation.running()
    return process


def expect_violation(simulation: ReplicaSimulation, text: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(text)):
        simulation.go_on()


def test_story_without_a_fault_has_no_violation(simulation: ReplicaSimulation) -> None:
    assert simulation.idle()[0].begin_request()
    simulation.drop(("m", 1, "aaaa"))
    simulation.advance(5.0)
    assert the_process(simulation).inside
    simulation.busy()
    simulation.settle()
    assert simulation.running() == []


def test_ending_a_replica_with_a_request_inside_is_a_violation(simulation: ReplicaSimulation) -> None:
    simulation.idle()[0].begin_request()
    simulation.server.engine.end(the_process(simulation).id)
    expect_violation(simulation, "(1) m/1/aaaa/0#0 is ended with a request inside")


def test_opening_a_version_twice_in_a_process_is_a_violation(simulation: ReplicaSimulation) -> None:
    the_process(simulation).opens += 1
    expect_violation(simulation, "(2) m/1/aaaa/0#0 has opened the version 2 times")


def test_placing_on_a_draining_node_is_a_violation(simulation: ReplicaSimulation) -> None:
    node = next(iter(simulation.cluster.nodes.values()))
    simulation.cluster.drain_node(node, None)
    simulation.go_on()
    simulation.server.engine.place(Wish(ReplicaName(STRANGER, 0), {"num_cpus": 1.0}, node.id))
    expect_violation(simulation, "(3) other/1/aaaa/0#0 is placed on a, which drains or is dead")


def test_placing_without_room_is_a_violation(simulation: ReplicaSimulation) -> None:
    node = next(iter(simulation.cluster.nodes.values()))
    simulation.server.engine.place(Wish(ReplicaName(STRANGER, 0), {"num_cpus": 3.0}, node.id))
    expect_violation(simulation, "(3) other/1/aaaa/0#0 is placed on a, where")


def test_placing_faster_than_the_back_off_is_a_violation(simulation: ReplicaSimulation) -> None:
    for life in range(41):
        simulation.server.engine.place(Wish(ReplicaName(STRANGER, life), {"num_cpus": 3.0}))
    expect_violation(simulation, "(4) 41 of other/1/aaaa/0 were placed within 25.0 s")


def test_ending_what_the_server_has_not_asked_for_during_adoption_is_a_violation(simulation: ReplicaSimulation) -> None:
    simulation.wanted.clear()
    simulation.crash()
    simulation.server.engine.end(the_process(simulation).id)
    expect_violation(simulation, "(5) m/1/aaaa/0#0 is ended although the server has not asked for the version yet")


def test_process_in_no_place_at_rest_is_a_violation(simulation: ReplicaSimulation) -> None:
    simulation.server.reconciler.close()
    simulation.server.near_ends[0].drop()
    simulation.checker.check_rest()
    expect_violation(simulation, "(6) m/1/aaaa/0#0 (p3) runs on and is in no place")


def test_place_that_waits_without_reason_at_rest_is_a_violation(simulation: ReplicaSimulation) -> None:
    simulation.server.reconciler.close()
    simulation.cluster.kill_process(the_process(simulation))
    simulation.advance(5.0)
    simulation.checker.check_rest()
    expect_violation(simulation, "is not ready and waits for nothing")


def test_arrow_that_there_is_not_is_a_violation(simulation: ReplicaSimulation) -> None:
    name = ReplicaName(STRANGER, 0)
    simulation.checker.on_event(ReplicaEvent(2e9, name, ReplicaState.ENDED, ReplicaState.READY, "why not"))
    expect_violation(simulation, "(7) ReplicaEvent(")
