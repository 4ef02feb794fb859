"""What a server says of its replicas: in the list of models, on the metrics page, and to ``tfs-lite status``."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster.process_cluster import PRELOAD, ProcessCluster
from tests.support.cluster.replicated_models import PATIENCE, ReplicatedModels
from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.process import wait_until
from tests.support.servers.replicas import HostedReplica, ReplicaHost
from tfs_lite.cli.main import main
from tfs_lite.core.servable import VersionState

REASONS = ("its connection was closed", "its process has ended")
"""What may be said of a killed replica, by the near end or the engine, whichever has noticed first."""
ROOM = {"num_cpus": 1, "memory": 1e12}


@pytest.fixture
def cluster() -> Iterator[ProcessCluster]:
    with ReplicaHost(PRELOAD) as host, ProcessCluster(host) as found:
        yield found


@pytest.fixture
def served(cluster: ProcessCluster, tmp_path: Path) -> Iterator[ServerFixture]:
    """A server with a model that wants two replicas, on one node with room for one."""
    root, scratch = tmp_path / "models", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    ReplicatedModels(root, scratch).publish(1, count=2)
    cluster.add_node("gpu-a", ROOM)
    options: dict[str, Any] = {"model_repository": str(root), "trusted_model_base_paths": (str(root),)}
    with serving(root, features=cluster.features(), cluster="auto", ready=False, **options) as found:
        yield found


def read(served: ServerFixture, path: str) -> bytes:
    with urllib.request.urlopen(f"{served.url}{path}") as answer:
        return bytes(answer.read())


def listed(served: ServerFixture) -> dict[str, Any]:
    """What the list says of the replicas of the only version; empty before it knows any."""
    models = orjson.loads(read(served, "/v1/models"))["models"]
    found: list[dict[str, Any]] = [of_version for model in models for of_version in model.get("replica_status", [])]
    return found[0] if found else {}


def samples(served: ServerFixture, name: str, **labels: str) -> list[float]:
    """The values on the metrics page under this name, with these labels among theirs."""
    families = text_string_to_metric_families(read(served, "/metrics").decode())
    found = [sample for family in families for sample in family.samples if sample.name == f"tfs_lite_{name}"]
    return [sample.value for sample in found if labels.items() <= sample.labels.items()]


def processes(cluster: ProcessCluster) -> dict[int | None, HostedReplica]:
    """By process id."""
    return {each.replica.address.pid: each.replica for each in cluster.replicas if each.replica is not None}


def test_every_page_tells_of_replicas_that_wait_are_ready_and_are_lost(
    served: ServerFixture, cluster: ProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until(lambda: "waits for" in listed(served).get("summary", ""), "one of them waits", PATIENCE)
    found = listed(served)
    assert found["version"] == "1"
    assert found["summary"].endswith("up, waits for 1 of 2 replicas: num_cpus 1; free 0 on gpu-a")
    assert "num_cpus 1; free 0 on gpu-a" in [replica["reason"] for replica in found["replicas"]]
    assert "replica_status" not in orjson.loads(read(served, "/v1/models/m"))  # TensorFlow Serving's own

    cluster.add_node("gpu-b", ROOM)
    wait_until(lambda: listed(served)["summary"] == "2/2 up", "both are up", PATIENCE)
    wait_until(lambda: served.states() == {1: VersionState.AVAILABLE}, "the version is available", PATIENCE)
    served.version()
    replicas = {replica["node"]: replica for replica in listed(served)["replicas"]}
    assert set(replicas) == {"gpu-a", "gpu-b"}
    assert {replica["state"] for replica in replicas.values()} == {"ready"}
    assert {replica["pid"] for replica in replicas.values()} == set(processes(cluster))
    of_version = {"model": "m", "version": "1"}
    assert samples(served, "replicas", state="ready", **of_version) == [2]
    assert samples(served, "replica_start_seconds_count", **of_version) == [2]
    assert samples(served, "remote_seconds_count", **of_version)[0] >= 1
    assert samples(served, "remote_bytes_total", **of_version)[0] >= 24
    assert (samples(served, "cluster_up"), samples(served, "cluster_leader")) == ([1], [1])
    assert samples(served, "cluster_nodes", state="ready") == [2]
    assert samples(served, "cluster_free", resource="num_cpus") == [0]
    for node in ("gpu-a", "gpu-b"):
        assert samples(served, "worker_info", kind="ray", node=node, **of_version) == [1]

    processes(cluster)[replicas["gpu-a"]["pid"]].kill()
    wait_until(lambda: any(each["restarts"] for each in listed(served)["replicas"]), "the loss is seen", PATIENCE)
    wait_until(lambda: listed(served)["summary"] == "2/2 up", "another one is up", PATIENCE)
    (again,) = (replica for replica in listed(served)["replicas"] if replica["restarts"])
    assert (again["state"], again["restarts"]) == ("ready", 1)
    assert again["reason"] in REASONS
    assert samples(served, "replica_losses_total", **of_version) == [1]
    capsys.readouterr()
    assert main(["status", "m", "--verbose", "--server", served.url.removeprefix("http://")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "ray 2/2 up" in shown
    assert f"{again['name']} {again['node']} {again['pid']} ready" in shown
