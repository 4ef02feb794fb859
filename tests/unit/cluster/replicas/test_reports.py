"""Replicas and the cluster as pages show them, and what is counted of each arrow."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.cluster.metrics import ReplicaMetrics
from tfs_lite.cluster.replicas.engine import ClusterNode, ReplicaName, ReplicaSlot
from tfs_lite.cluster.replicas.reports import ReplicaCounter, cause_label, cluster_report, replica_report
from tfs_lite.cluster.replicas.states import ClusterStatus, PlaceStatus, ReplicaEvent, ReplicaState, SetStatus
from tfs_lite.core.servable import ServableId

S = ReplicaState
KEY = ("m", 3, "0a1b2c3d")
WAITS = "num_gpus 1; free 0.5 on gpu-a"


def name(index: int, life: int = 0) -> ReplicaName:
    return ReplicaName(ReplicaSlot(*KEY, index), life)


def test_report_has_every_place_with_the_reason_that_it_is_not_ready() -> None:
    places = (
        PlaceStatus(name(0), S.READY, 10.0, "it has opened the version", "gpu-a", 41, 0),
        PlaceStatus(name(1, 1), S.READY, 11.0, "it has opened the version", "gpu-b", 42, 1, "signal 9"),
        PlaceStatus(name(2), S.PLACING, 12.0, "the version wants it", waits=WAITS),
        PlaceStatus(name(3, 2), S.LOST, 13.0, "not answering for 60 s", "gpu-b", None, 2, "not answering for 60 s"),
        PlaceStatus(name(4), S.DRAINING, 14.0, "node gpu-c drains", "gpu-c", 43),
        PlaceStatus(name(5), S.OPENING, 15.0, "its process listens", "gpu-a", 44),
    )
    status = SetStatus(KEY, places)
    report = replica_report(status, {name(0): 2, name(1, 0): 5})
    assert (report.id, report.summary) == (ServableId("m", 3), str(status))
    assert [(each.name, each.state, each.node, each.pid, each.restarts) for each in report.replicas] == [
        ("m/3/0a1b2c3d/0#0", "ready", "gpu-a", 41, 0),
        ("m/3/0a1b2c3d/1#1", "ready", "gpu-b", 42, 1),
        ("m/3/0a1b2c3d/2#0", "placing", "", None, 0),
        ("m/3/0a1b2c3d/3#2", "lost", "gpu-b", None, 2),
        ("m/3/0a1b2c3d/4#0", "draining", "gpu-c", 43, 0),
        ("m/3/0a1b2c3d/5#0", "opening", "gpu-a", 44, 0),
    ]
    assert [each.reason for each in report.replicas] == [
        "",
        "signal 9",
        WAITS,
        "not answering for 60 s",
        "node gpu-c drains",
        "",
    ]
    assert [each.ongoing for each in report.replicas] == [
        2,
        None,
        None,
        None,
        None,
        None,
    ]  # of an earlier life: unknown
    assert [each.since for each in report.replicas] == [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]


def test_summary_says_why_the_one_that_starts_was_lost() -> None:
    ready = tuple(PlaceStatus(name(index), S.READY, 0.0, "") for index in range(2))
    lost = PlaceStatus(name(2, 1), S.PLACING, 0.0, "another one takes its place", restarts=1, last_loss="signal 9")
    assert replica_report(SetStatus(KEY, (*ready, lost))).summary == "2/3 up, 1 starting: signal 9"


def test_cluster_report_counts_nodes_and_what_those_that_take_replicas_have_left() -> None:
    nodes = (
        ClusterNode("a", "gpu-a", {"num_gpus": 1}, {"num_gpus": 0.5, "num_cpus": 2}),
        ClusterNode("b", "gpu-b", {"num_gpus": 1}, {"num_gpus": 1}),
        ClusterNode("c", "gpu-c", {"num_gpus": 4}, {"num_gpus": 4}, draining=True),
        ClusterNode("d", "gpu-d", {"num_gpus": 4}, {"num_gpus": 4}, alive=False),
    )
    report = cluster_report(ClusterStatus(7, "", nodes, {}), helper_restarts=3)
    assert (report.is_up, report.leads, report.epoch, report.helper_restarts) == (True, True, 7, 3)
    assert report.nodes == {"ready": 2, "draining": 1, "lost": 1}
    assert report.free == {"num_gpus": 1.5, "num_cpus": 2}
    cut_off = cluster_report(ClusterStatus(7, "cluster: head unreachable for 12 s", (), {}), leads=False)
    assert (cut_off.is_up, cut_off.leads, cut_off.nodes["ready"]) == (False, False, 0)


@pytest.mark.parametrize(
    ("cause", "label"),
    [
        ("signal 9", "signal 9"),
        ("it ended: signal 11", "signal 11"),
        ("refused: FAILED_PRECONDITION: node b has other files", "refused"),
        ("not answering for 60 s", "not answering"),
        ("its connection was closed", "connection closed"),
        ("it cannot be reached: Connection refused", "unreachable"),
        ("it sent garbage", "garbage"),
        ("it refused the greeting", "greeting refused"),
        ("it did not start within 60 s", "not started"),
        ("its node is lost", "node lost"),
        ("its node gpu-a is lost", "node lost"),
        ("node gpu-a is lost", "node lost"),
        ("node gpu-a drains", "node drains"),
        ("node gpu-a drains, and its time is over", "node drains"),
        ("the cluster does not list it any more", "not listed"),
        ("the cluster has forgotten it", "not listed"),
        ("its process has ended: it was out of memory", "process ended"),
        ("it could not start: no reason was given", "not started"),
        ("a cause without a label", "other"),
    ],
)
def test_causes_become_one_of_few_labels(cause: str, label: str) -> None:
    assert cause_label(cause) == label


class Arrows:
    """Events of one version, counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._count = ReplicaCounter(ReplicaMetrics(self.registry))

    def tell(
        self, time: float, before: S | None, after: S, cause: str = "", node: str = "gpu-a", life: int = 0
    ) -> None:
        self._count(ReplicaEvent(time, name(0, life), before, after, cause, node))

    def losses(self) -> dict[str, float]:
        return {
            sample.labels["cause"]: sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "tfs_lite_replica_losses_total"
        }

    def starts(self) -> tuple[float, float]:
        """How many, and their seconds together."""
        labels = {"model": "m", "version": "3"}
        value = self.registry.get_sample_value
        prefix = "tfs_lite_replica_start_seconds"
        return value(f"{prefix}_count", labels) or 0, value(f"{prefix}_sum", labels) or 0


@pytest.fixture
def arrows() -> Arrows:
    return Arrows()


def test_a_start_is_timed_from_wanted_to_ready_again_after_each_loss(arrows: Arrows) -> None:
    arrows.tell(100, None, S.PLACING, node="")
    arrows.tell(102, S.PLACING, S.OPENING)
    arrows.tell(103, S.OPENING, S.READY)
    assert arrows.starts() == (1, 3)
    arrows.tell(200, S.READY, S.LOST, "signal 9")
    arrows.tell(201, S.LOST, S.PLACING, life=1)
    arrows.tell(205, S.PLACING, S.OPENING, life=1)
    arrows.tell(206, S.OPENING, S.READY, life=1)
    assert (arrows.starts(), arrows.losses()) == ((2, 8), {"signal 9": 1})


def test_an_adopted_replica_has_not_started_here(arrows: Arrows) -> None:
    arrows.tell(100, None, S.PLACING, node="")
    arrows.tell(101, S.PLACING, S.OPENING, "adopted: an earlier server has placed it")
    arrows.tell(102, S.OPENING, S.READY)
    assert arrows.starts() == (0, 0)


def test_a_place_that_is_closed_before_it_is_ready_counts_for_nothing(arrows: Arrows) -> None:
    arrows.tell(100, None, S.PLACING, node="")
    arrows.tell(101, S.PLACING, S.ENDED, "the place was closed", node="")
    arrows.tell(500, S.OPENING, S.READY)
    assert (arrows.starts(), arrows.losses()) == ((0, 0), {})


@pytest.mark.parametrize(
    ("before", "cause", "node", "counts"),
    [
        (S.PLACING, "there is room on a node that it was to avoid before", "", 0),
        (S.PLACING, "node gpu-a drains", "gpu-a", 0),
        (S.PLACING, "it did not start within 60 s", "gpu-a", 1),
        (S.PLACING, "signal 9", "gpu-a", 1),
        (S.OPENING, "refused: no", "gpu-a", 1),
        (S.DRAINING, "node gpu-a drains, and its time is over", "gpu-a", 1),
    ],
)
def test_a_wish_that_is_made_anew_is_no_loss(arrows: Arrows, before: S, cause: str, node: str, counts: int) -> None:
    arrows.tell(100, before, S.LOST, cause, node)
    assert sum(arrows.losses().values()) == counts
