"""What the reconciler relies on, for every engine: a suite over whatever :class:`EngineFixture` stands for.

    class TestPretended(EngineContract): ...      # with a pytest fixture ``cluster`` that is an EngineFixture

Each test has a model of its own, so that a cluster that is dear can serve all of them.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.support.errors import refusal
from tfs_lite.cluster.replicas.engine import (
    CPUS,
    Changed,
    ClusterEngine,
    ClusterNode,
    EngineEvent,
    PlacedReplica,
    ReplicaEnded,
    ReplicaName,
    ReplicaSlot,
    Superseded,
    Unreachable,
    Wish,
)
from tfs_lite.core.status import StatusCode

SHARE = 0.1
"""CPUs of a replica that is not meant to fill a node."""
ZONE = "zone"
_models = itertools.count()


class EngineFixture(ABC):
    """A cluster of three nodes with one CPU each and the labels ``zone: a``, ``b`` and ``c``, and an engine over it."""

    engine: ClusterEngine

    @abstractmethod
    def until(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until it holds; AssertionError if it never does."""

    @abstractmethod
    def let_time_pass(self, seconds: float) -> None:
        """So that something could happen that must not."""

    @abstractmethod
    def add_node(self, zone: str) -> str:
        """The id of one more."""

    @abstractmethod
    def kill_node(self, id: str) -> None:
        """Its processes die with it."""

    @abstractmethod
    def drain_node(self, id: str, seconds: float) -> None:
        """It is to leave within so many seconds."""

    @abstractmethod
    def kill_process(self, replica: PlacedReplica) -> None:
        """Kills the replica's process with signal 9."""

    @abstractmethod
    def cut_off(self) -> None:
        """The engine cannot reach the cluster any more."""

    @abstractmethod
    def restore(self) -> None:
        """It can again."""

    @abstractmethod
    def take_over(self) -> ClusterEngine:
        """The engine of another server, which has waited until it got the lead; the first one does not know yet."""


class Watched:
    """An engine's events."""

    def __init__(self, engine: ClusterEngine) -> None:
        self.events: list[EngineEvent] = []
        self.end = engine.watch(self.events.append)

    def has(self, kind: type[EngineEvent]) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    def cause_of(self, id: str) -> str:
        """Empty if no event has told of its end."""
        ends = (event for event in list(self.events) if isinstance(event, ReplicaEnded) and event.id == id)
        return next((event.cause for event in ends), "")


class Placing:
    """Wishes of one test's model."""

    def __init__(self, cluster: EngineFixture) -> None:
        self._cluster = cluster
        self.model = f"folder/model{next(_models)}"

    def wish(self, index: int = 0, life: int = 0, cpus: float = SHARE, **fields: Any) -> Wish:
        return Wish(ReplicaName(ReplicaSlot(self.model, 1, "0123abcd", index), life), {CPUS: cpus}, **fields)

    def place(self, index: int = 0, life: int = 0, cpus: float = SHARE, **fields: Any) -> str:
        return self._cluster.engine.place(self.wish(index, life, cpus, **fields))

    def listed(self, engine: ClusterEngine | None = None) -> Sequence[PlacedReplica]:
        found = (engine or self._cluster.engine).list()
        return [replica for replica in found if replica.name.slot.model == self.model]

    def find(self, id: str) -> PlacedReplica:
        return next(replica for replica in self.listed() if replica.id == id)

    def until_listening(self, *ids: str) -> list[PlacedReplica]:
        self._cluster.until(lambda: all(self.find(id).address is not None for id in ids))
        return [self.find(id) for id in ids]

    def until_gone(self, *ids: str) -> None:
        self._cluster.until(lambda: not {replica.id for replica in self.listed()} & set(ids))


def nodes_by_zone(engine: ClusterEngine) -> dict[str, ClusterNode]:
    return {node.labels[ZONE]: node for node in engine.nodes() if node.alive and ZONE in node.labels}


class EngineContract:
    """The tests; a subclass gives the fixture ``cluster``."""

    @pytest.fixture
    def placing(self, cluster: EngineFixture) -> Placing:
        return Placing(cluster)

    def test_nodes_say_what_they_have_and_what_of_it_is_free(self, cluster: EngineFixture, placing: Placing) -> None:
        nodes = nodes_by_zone(cluster.engine)
        assert set(nodes) == {"a", "b", "c"}
        assert all(node.total[CPUS] == 1 and node.host and not node.draining for node in nodes.values())
        cluster.until(lambda: nodes_by_zone(cluster.engine)["a"].free.get(CPUS, 0) == 1)
        placing.place(node=nodes["a"].id, cpus=0.25)
        cluster.until(lambda: nodes_by_zone(cluster.engine)["a"].free[CPUS] == 0.75)

    def test_a_replica_is_listed_at_once_and_with_its_address_when_it_listens(
        self, cluster: EngineFixture, placing: Placing
    ) -> None:
        watched = Watched(cluster.engine)
        node = nodes_by_zone(cluster.engine)["b"].id
        id = placing.place(node=node)
        (listed,) = placing.listed()
        assert (listed.id, listed.name) == (id, placing.wish().name)
        cluster.until(lambda: watched.has(Changed))
        (replica,) = placing.until_listening(id)
        assert replica.address is not None
        assert (replica.node, replica.address.name) == (node, str(replica.name))
        assert replica.address.pid

    def test_two_processes_never_have_one_name(self, cluster: EngineFixture, placing: Placing) -> None:
        id = placing.place()
        assert str(placing.wish().name) in refusal(placing.place, code=StatusCode.ALREADY_EXISTS)
        assert [replica.id for replica in placing.listed()] == [id]
        cluster.engine.end(id)
        placing.until_gone(id)
        other = placing.place(life=1)
        assert placing.until_listening(other)[0].name.life == 1

    def test_needs_that_make_no_sense_are_refused(self, cluster: EngineFixture, placing: Placing) -> None:
        wish = Wish(placing.wish().name, {CPUS: SHARE, "licence": -1.0})
        assert placing.model in refusal(cluster.engine.place, wish)
        assert placing.listed() == []

    def test_a_wish_without_room_is_pending_until_it_is_taken_back(
        self, cluster: EngineFixture, placing: Placing
    ) -> None:
        id = placing.place(cpus=7)
        cluster.let_time_pass(1)
        (listed,) = placing.listed()
        assert (listed.id, listed.address) == (id, None)
        cluster.engine.end(id)
        placing.until_gone(id)

    def test_a_pending_wish_starts_as_soon_as_there_is_room(self, cluster: EngineFixture, placing: Placing) -> None:
        node = nodes_by_zone(cluster.engine)["c"].id
        cluster.until(lambda: nodes_by_zone(cluster.engine)["c"].free.get(CPUS, 0) == 1)
        first = placing.place(0, node=node, cpus=0.75)
        placing.until_listening(first)
        second = placing.place(1, node=node, cpus=0.5)
        cluster.let_time_pass(1)
        assert placing.find(second).address is None
        cluster.engine.end(first)
        assert placing.until_listening(second)[0].node == node

    def test_nodes_to_avoid_are_kept_off(self, cluster: EngineFixture, placing: Placing) -> None:
        nodes = nodes_by_zone(cluster.engine)
        id = placing.place(0, avoid=frozenset({nodes["a"].id, nodes["b"].id}))
        nowhere = placing.place(1, avoid=frozenset(node.id for node in cluster.engine.nodes()))
        assert placing.until_listening(id)[0].node == nodes["c"].id
        assert placing.find(nowhere).address is None

    @pytest.mark.parametrize(("demand", "zones"), [("b", "b"), ("!in(a,b)", "c"), ("in(a)", "a"), ("d", "")])
    def test_labels_decide_where_a_replica_may_go(
        self, cluster: EngineFixture, placing: Placing, demand: str, zones: str
    ) -> None:
        id = placing.place(labels={ZONE: demand})
        if zones:
            assert placing.until_listening(id)[0].node == nodes_by_zone(cluster.engine)[zones].id
        else:
            cluster.let_time_pass(1)
            assert placing.find(id).address is None

    def test_ending_what_is_unknown_or_has_ended_is_no_error(self, cluster: EngineFixture, placing: Placing) -> None:
        id = placing.place()
        placing.until_listening(id)
        cluster.engine.end(id)
        cluster.engine.end(id)
        placing.until_gone(id)
        cluster.engine.end(id)
        cluster.engine.end("f" * len(id))

    def test_the_end_of_a_process_is_told_and_it_does_not_start_again(
        self, cluster: EngineFixture, placing: Placing
    ) -> None:
        watched = Watched(cluster.engine)
        id, other = placing.place(0), placing.place(1)
        replica, _ = placing.until_listening(id, other)
        cluster.kill_process(replica)
        cluster.until(lambda: bool(watched.cause_of(id)))
        placing.until_gone(id)
        cluster.let_time_pass(1)
        assert [listed.id for listed in placing.listed()] == [other]

    def test_a_lost_node_takes_its_replicas_along(self, cluster: EngineFixture, placing: Placing) -> None:
        watched = Watched(cluster.engine)
        node = cluster.add_node("doomed")
        cluster.until(lambda: "doomed" in nodes_by_zone(cluster.engine))
        id, other = placing.place(0, node=node), placing.place(1, labels={ZONE: "a"})
        placing.until_listening(id, other)
        cluster.kill_node(node)
        cluster.until(lambda: "its node" in watched.cause_of(id))
        placing.until_gone(id)
        assert [listed.id for listed in placing.listed()] == [other]
        cluster.until(lambda: "doomed" not in nodes_by_zone(cluster.engine))

    def test_a_node_that_drains_says_so_and_gets_nothing_new(self, cluster: EngineFixture, placing: Placing) -> None:
        node = cluster.add_node("leaving")
        cluster.until(lambda: "leaving" in nodes_by_zone(cluster.engine))
        id = placing.place(0, node=node)
        placing.until_listening(id)
        cluster.drain_node(node, 300)
        cluster.until(lambda: nodes_by_zone(cluster.engine)["leaving"].draining)
        assert 200 < (nodes_by_zone(cluster.engine)["leaving"].drain_seconds or 0) <= 300
        late = placing.place(1, labels={ZONE: "leaving"})
        cluster.let_time_pass(1)
        assert placing.find(late).address is None
        assert placing.find(id).node == node
        cluster.kill_node(node)

    def test_while_the_cluster_is_out_of_reach_calls_fail_and_replicas_go_on(
        self, cluster: EngineFixture, placing: Placing
    ) -> None:
        watched = Watched(cluster.engine)
        id = placing.place()
        (before,) = placing.until_listening(id)
        cluster.cut_off()
        calls: Sequence[Callable[[], object]] = (
            cluster.engine.list,
            cluster.engine.nodes,
            partial(cluster.engine.end, id),
            partial(placing.place, 1),
        )
        for call in calls:
            refusal(call, code=StatusCode.UNAVAILABLE)
        cluster.until(lambda: watched.has(Unreachable))
        watched.events.clear()
        cluster.restore()
        cluster.until(lambda: watched.has(Changed))
        placing.until_listening(id)
        assert placing.listed() == [before]

    def test_who_watches_no_more_hears_no_more(self, cluster: EngineFixture, placing: Placing) -> None:
        gone, stays = Watched(cluster.engine), Watched(cluster.engine)
        gone.end()
        gone.end()
        gone.events.clear()
        placing.place()
        cluster.until(lambda: stays.has(Changed))
        assert gone.events == []

    def test_what_an_earlier_server_has_placed_is_there_for_the_next_and_the_earlier_one_decides_nothing(
        self, cluster: EngineFixture, placing: Placing
    ) -> None:
        first = cluster.engine
        id = placing.place(0)
        placing.until_listening(id)
        second = cluster.take_over()
        assert second.epoch > first.epoch
        assert second.secret == first.secret
        (adopted,) = placing.listed(second)
        assert (adopted.id, adopted.name) == (id, placing.wish().name)
        with pytest.raises(Superseded):
            first.place(placing.wish(1))
        with pytest.raises(Superseded):
            first.end(id)
        assert [replica.id for replica in placing.listed(second)] == [id]
        second.end(id)
        placing.until_gone(id)
