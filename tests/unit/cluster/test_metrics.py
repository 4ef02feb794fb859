"""What the metrics page says of replicas and of the cluster."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tfs_lite.cluster.metrics import ClusterCollector, ClusterReport, ReplicaMetrics
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ReplicaReport, ReplicaStatus

M1, M2 = ServableId("m", 1), ServableId("m", 2)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_losses_are_counted_by_cause(registry: CollectorRegistry) -> None:
    metrics = ReplicaMetrics(registry)
    for cause in ("signal 9", "signal 9", "node lost"):
        metrics.on_loss(M1, cause)
    labels = {"model": "m", "version": "1"}
    value = registry.get_sample_value
    assert value("tfs_lite_replica_losses_total", {**labels, "cause": "signal 9"}) == 2
    assert value("tfs_lite_replica_losses_total", {**labels, "cause": "node lost"}) == 1


def test_starts_and_ways_are_timed_and_bytes_added_up(registry: CollectorRegistry) -> None:
    metrics = ReplicaMetrics(registry)
    metrics.on_start(M1, 2.5)
    metrics.on_remote(M1, 0.0002, 4096)
    metrics.on_remote(M1, -0.0001, 1000)  # clocks of two processes may disagree
    labels = {"model": "m", "version": "1"}
    value = registry.get_sample_value
    assert value("tfs_lite_replica_start_seconds_bucket", {**labels, "le": "2.0"}) == 0
    assert value("tfs_lite_replica_start_seconds_bucket", {**labels, "le": "3.0"}) == 1
    assert value("tfs_lite_remote_seconds_count", labels) == 2
    assert value("tfs_lite_remote_seconds_sum", labels) == pytest.approx(0.0002)
    assert value("tfs_lite_remote_bytes_total", labels) == 5096


def test_series_of_a_version_that_is_loaded_again_stay(registry: CollectorRegistry) -> None:
    metrics = ReplicaMetrics(registry)
    for version in range(1, 12):
        metrics.on_loss(ServableId("m", version), "signal 9")
        metrics.version_gone(ServableId("m", version))
        metrics.version_back(ServableId("m", 1))
    for version, lost in ((1, 1), (2, None), (3, None)):
        labels = {"model": "m", "version": str(version), "cause": "signal 9"}
        assert registry.get_sample_value("tfs_lite_replica_losses_total", labels) == lost


def test_series_of_unloaded_versions_are_bounded_and_those_of_a_model_go_with_it(registry: CollectorRegistry) -> None:
    metrics = ReplicaMetrics(registry)
    for version in range(1, 11):
        metrics.on_loss(ServableId("m", version), "signal 9")
        metrics.version_gone(ServableId("m", version))
    metrics.on_loss(ServableId("n", 1), "signal 9")

    def known(model: str) -> list[str]:
        return [
            sample.labels["version"]
            for family in registry.collect()
            for sample in family.samples
            if sample.name == "tfs_lite_replica_losses_total" and sample.labels["model"] == model
        ]

    assert known("m") == [str(version) for version in range(3, 11)]
    metrics.model_gone("m")
    assert (known("m"), known("n")) == ([], ["1"])


def test_replicas_are_counted_in_every_state_and_those_beside_themselves_together(registry: CollectorRegistry) -> None:
    def report(servable_id: ServableId, *states: str) -> ReplicaReport:
        replicas = tuple(ReplicaStatus(f"m/1/00000000/{i}#0", state, 0.0) for i, state in enumerate(states))
        return ReplicaReport(servable_id, "", replicas)

    reports = [report(M1, "ready", "ready", "lost"), report(M1, "opening"), report(M2, "placing")]
    registry.register(ClusterCollector(lambda: reports, lambda: ClusterReport(True, True, 7)))

    def counts(version: str) -> dict[str, float]:
        families = {family.name: family for family in registry.collect()}
        samples = families["tfs_lite_replicas"].samples
        return {s.labels["state"]: s.value for s in samples if s.labels["version"] == version}

    assert counts("1") == {"placing": 0, "opening": 1, "ready": 2, "lost": 1, "draining": 0}
    assert counts("2") == {"placing": 1, "opening": 0, "ready": 0, "lost": 0, "draining": 0}


def test_cluster_is_read_when_the_page_is_made(registry: CollectorRegistry) -> None:
    reports = [ClusterReport(True, True, 1_700_000_000_000, {"ready": 3, "lost": 1}, {"num_gpus": 0.5}, 2)]
    registry.register(ClusterCollector(list, lambda: reports[-1]))
    value = registry.get_sample_value
    assert value("tfs_lite_cluster_up") == 1
    assert value("tfs_lite_cluster_leader") == 1
    assert value("tfs_lite_cluster_epoch") == 1_700_000_000_000
    assert value("tfs_lite_cluster_nodes", {"state": "ready"}) == 3
    assert value("tfs_lite_cluster_nodes", {"state": "lost"}) == 1
    assert value("tfs_lite_cluster_free", {"resource": "num_gpus"}) == 0.5
    assert value("tfs_lite_helper_restarts_total") == 2
    reports.append(ClusterReport(False, False, 0))
    assert (value("tfs_lite_cluster_up"), value("tfs_lite_cluster_leader")) == (0, 0)
