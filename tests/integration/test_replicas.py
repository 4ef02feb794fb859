"""A server whose models live in replicas: real processes on pretended nodes, and every promise of the lifecycle.

The models do next to nothing, so that a test takes a second or two. Each leaves a line in a file when it is opened.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tests.support.cluster.process_cluster import PRELOAD, HostedProcess, ProcessCluster
from tests.support.cluster.replicated_models import PATIENCE, ReplicatedModels, states, wait_ready
from tests.support.remote.moto import Moto
from tests.support.remote.served import serving_bucket
from tests.support.servers.in_process import ROW, ServerFixture, serving
from tests.support.servers.models import PYTHON_CONFIG, TaggedArchives
from tests.support.servers.probe import Traffic
from tests.support.servers.process import ServerProcess, wait_until
from tests.support.servers.replicas import ReplicaHost
from tfs_lite.client import Client
from tfs_lite.cluster.replicas.reports import READY
from tfs_lite.core.servable import ModelRef, VersionState
from tfs_lite.core.status import StatusCode

ENSEMBLE = """
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }
ensemble_scheduling {
  step { model_name: "first" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "z" } }
  step { model_name: "second" model_version: -1 input_map { key: "x" value: "z" } output_map { key: "y" value: "y" } }
}
"""
SEQUENCES = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
sequence_batching {
  max_sequence_idle_microseconds: 600000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""
SUM = """out = inputs["x"] * 0
        for row, ready in enumerate(inputs["READY"]):
            if ready:
                key = int(inputs["CORRID"][row])
                before = 0 if inputs["START"][row] else self.sums.get(key, 0)
                out[row] = self.sums[key] = before + float(inputs["x"][row])
        return {"y": out}"""
ROOM = {"num_cpus": 16, "memory": 1e12}
CALLERS = 4


@pytest.fixture(scope="module")
def host() -> Iterator[ReplicaHost]:
    with ReplicaHost(PRELOAD) as found:
        yield found


@pytest.fixture
def cluster(host: ReplicaHost) -> Iterator[ProcessCluster]:
    with ProcessCluster(host) as found:
        yield found


@pytest.fixture
def models(tmp_path: Path) -> ReplicatedModels:
    root, scratch = tmp_path / "models", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    return ReplicatedModels(root, scratch)


@pytest.fixture
def serve(
    cluster: ProcessCluster, models: ReplicatedModels
) -> Callable[..., contextlib.AbstractContextManager[ServerFixture]]:
    """A server of the repository, on the cluster."""

    def start(**fields: Any) -> contextlib.AbstractContextManager[ServerFixture]:
        root = str(models.root)
        fields = {"cluster": "auto", "model_repository": root, "trusted_model_base_paths": (root,), **fields}
        return serving(models.root, features=cluster.features(), **fields)

    return start


Serve = Callable[..., contextlib.AbstractContextManager[ServerFixture]]


def wait_running(cluster: ProcessCluster, count: int) -> None:
    wait_until(lambda: len(cluster.replicas) == count, f"{count} replicas are left", PATIENCE)


def wait_available(served: ServerFixture, version: int) -> None:
    wait_until(lambda: served.states().get(version) is VersionState.AVAILABLE, f"{version} is available", PATIENCE)


def waits(served: ServerFixture, model: str = "m") -> bool:
    """Whether a version of the model says that it waits for replicas."""
    return any("waits for" in status.status.message for status in served.status(model).values())


def worker_pids(served: ServerFixture) -> set[int | None]:
    """Of the processes that requests go to."""
    with served.server.core.handle(ModelRef("m")) as handle:
        return {model.worker.pid for model in handle.servable.models}


def v2_ready(served: ServerFixture) -> int:
    """The HTTP status."""
    try:
        with urllib.request.urlopen(f"{served.url}/v2/models/m/ready") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def kill(process: HostedProcess) -> None:
    assert process.replica is not None
    process.replica.kill()


def ask(served: ServerFixture, sequence: int, start: bool = False) -> Any:
    """The sum of a sequence's ones so far, or the HTTP status and the error."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]
    body = {"parameters": {"sequence_id": sequence, "sequence_start": start}, "inputs": inputs}
    try:
        with urllib.request.urlopen(f"{served.url}/v2/models/sums/infer", orjson.dumps(body)) as answer:
            return orjson.loads(answer.read())["outputs"][0]["data"][0]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, orjson.loads(error.read())["error"]


def test_a_version_is_opened_in_replicas_on_several_nodes_and_its_end_ends_them(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    nodes = [cluster.add_node(host, ROOM) for host in ("a", "b")]
    models.publish(1)
    with serve() as served:
        assert served.version() == 1
        assert [len(cluster.on(node)) for node in nodes] == [1, 1]
        assert models.opened == ["m/1"] * 2
        assert states(served) == [READY] * 2
        shutil.rmtree(models.root / "m")
        wait_running(cluster, 0)


def test_swaps_under_callers_lose_nothing_and_no_older_version_answers_after_a_newer_one(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1)
    with serve() as served, Traffic(served.target, "m", CALLERS) as traffic:
        for version in range(2, 8):
            models.publish(version)
            wait_available(served, version)
            if version > 2:
                models.withdraw(version - 2)
        traffic.stop()
        wait_running(cluster, 2)
    assert (traffic.failures, traffic.wrong, traffic.backwards) == ([], [], 0)


def test_replicas_that_are_killed_again_and_again_are_replaced_and_other_ones_answer(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1, count=3)
    with serve() as served, Traffic(served.target, "m", CALLERS) as traffic:
        for _ in range(5):
            wait_ready(served, 3)
            kill(cluster.replicas[0])
            wait_until(lambda: len(states(served)) == 3 and READY in states(served), "it was noticed")
        wait_ready(served, 3)
        traffic.stop()
    assert (traffic.failures, traffic.wrong) == ([], [])


def test_a_node_that_is_killed_is_replaced_by_others(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    nodes = [cluster.add_node(host, ROOM) for host in ("a", "b")]
    models.publish(1)
    with serve() as served, Traffic(served.target, "m", CALLERS) as traffic:
        cluster.kill_node(nodes[0])
        wait_until(lambda: len(cluster.on(nodes[1])) == 2, "both replicas are on the other node", PATIENCE)
        wait_ready(served, 2)
        traffic.stop()
    assert (traffic.failures, traffic.wrong) == ([], [])


def test_a_node_that_is_frozen_is_given_up_and_replaced_by_others(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    nodes = [cluster.add_node(host, ROOM) for host in ("a", "b")]
    models.publish(1)
    with serve(health_check_timeout_s=1.0) as served, Traffic(served.target, "m", CALLERS) as traffic:
        cluster.freeze_node(nodes[0])
        wait_until(lambda: len(cluster.on(nodes[1])) == 2, "both replicas are on the other node", PATIENCE)
        wait_ready(served, 2)
        before = traffic.total
        wait_until(lambda: traffic.total > before + 20, "requests are answered", PATIENCE)
        traffic.stop()
    assert (traffic.failures, traffic.wrong) == ([], [])


def test_a_version_that_has_lost_all_replicas_stays_available_and_is_not_ready_until_it_has_one(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    node = cluster.add_node("a", ROOM)
    models.publish(1)
    with serve() as served:
        core = served.server.core
        assert core.view.is_model_available("m")
        cluster.kill_node(node)
        wait_until(lambda: not core.view.is_model_available("m"), "it is not ready", PATIENCE)
        assert served.states() == {1: VersionState.AVAILABLE}
        assert v2_ready(served) != 200
        cluster.add_node("b", ROOM)
        wait_until(lambda: core.view.is_model_available("m") and v2_ready(served) == 200, "it is ready again", PATIENCE)
        wait_ready(served, 2)
        assert served.version() == 1


def test_a_node_that_drains_is_left_without_a_failed_request(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    old = cluster.add_node("a", ROOM)
    models.publish(1)
    with serve() as served, Traffic(served.target, "m", CALLERS) as traffic:
        new = cluster.add_node("b", ROOM)
        cluster.drain_node(old)
        wait_until(lambda: (len(cluster.on(old)), len(cluster.on(new))) == (0, 2), "all have moved", PATIENCE)
        wait_ready(served, 2)
        before = traffic.total
        wait_until(lambda: traffic.total > before + 20, "requests are answered", PATIENCE)
        traffic.stop()
    assert (traffic.failures, traffic.wrong) == ([], [])
    assert models.opened == ["m/1"] * 4


def test_a_model_without_room_waits_in_words_while_its_neighbour_loads(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", {"num_cpus": 2, "memory": 1e12})
    models.publish(1, "large", count=3)
    with serve(ready=False, num_load_threads=1, num_initial_load_threads=1) as served:
        words = "waits for 1 of 3 replicas: num_cpus 1; free 0 on a"
        wait_until(lambda: words in str(served.status("large").get(1)), "the model waits", PATIENCE)
        assert served.states("large") == {1: VersionState.LOADING}
        models.publish(1, "in_server", count=1, cpus=0.01)
        models.publish(1, "small", count=1, cpus=0.01)
        cluster.add_node("b", {"num_cpus": 0.5, "memory": 1e12})
        served.wait_states({1: VersionState.AVAILABLE}, "small")
        assert served.version("small") == 1
        assert served.states("large") == {1: VersionState.LOADING}
        cluster.add_node("c", {"num_cpus": 1, "memory": 1e12})
        served.wait_states({1: VersionState.AVAILABLE}, "large")
        assert served.version("large") == 1


def test_what_waits_for_room_is_withdrawn_with_its_model(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", {"num_cpus": 1, "memory": 1e12})
    models.publish(1)
    with serve(ready=False) as served:
        wait_until(lambda: waits(served), "the model waits", PATIENCE)
        wait_running(cluster, 2)
        shutil.rmtree(models.root / "m")
        wait_running(cluster, 0)


def test_a_version_is_available_with_its_ready_replicas_and_the_rest_joins(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", {"num_cpus": 1, "memory": 1e12})
    models.publish(1, count=3, more="ready_replicas: 1")
    with serve() as served, Traffic(served.target, "m", CALLERS) as traffic:
        assert states(served).count(READY) == 1
        cluster.add_node("b", {"num_cpus": 2, "memory": 1e12})
        wait_ready(served, 3)
        pids = {process.replica.pid for process in cluster.replicas if process.replica}
        wait_until(lambda: worker_pids(served) == pids, "all have joined", PATIENCE)
        traffic.stop()
    assert (traffic.failures, traffic.wrong) == ([], [])


def test_a_refusal_fails_the_load_with_its_words_and_ends_the_other_replicas(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1, opening='raise ValueError("weights of another model")')
    with serve(max_num_load_retries=0) as served:
        served.wait_states({1: VersionState.END})
        assert "weights of another model" in served.status()[1].status.message
        wait_running(cluster, 0)


def test_versions_are_fetched_by_nodes_that_do_not_share_the_servers_disk(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve, tmp_path: Path
) -> None:
    cluster.add_node("a", ROOM)
    cluster.settings = {"cache_dir": str(tmp_path / "cache")}
    models.publish(1)
    with serve(model_transfer="fetch") as served:
        assert served.version() == 1
    assert list((tmp_path / "cache").rglob("model.py"))


def test_model_in_a_bucket_is_sent_to_its_replicas_whatever_the_transfer_is(
    cluster: ProcessCluster, models: ReplicatedModels, moto: Moto, archives: TaggedArchives, tmp_path: Path
) -> None:
    cluster.add_node("a", ROOM)
    cluster.settings = {"cache_dir": str(tmp_path / "node")}
    models.publish(1)
    options = {"cluster": "auto", "features": cluster.features(), "trusted_model_base_paths": ("s3://*/*",)}
    with serving_bucket(moto, archives, tmp_path, **options) as place:
        place.upload("m", 1, models.root / "m" / "1")
        place.serve("m")
        assert place.served.version() == 1
        (there,) = (tmp_path / "node").rglob("model.py")
        assert there.parent.name == "1"


def test_the_log_says_once_of_a_node_that_its_replicas_are_nice(
    models: ReplicatedModels, caplog: pytest.LogCaptureFixture
) -> None:
    words = "RAY_worker_niceness=0"
    root = str(models.root)
    models.publish(1)
    with ReplicaHost(PRELOAD) as host, ProcessCluster(host) as cluster:
        niceness = os.getpriority(os.PRIO_PROCESS, host.pid) + 1
        os.setpriority(os.PRIO_PROCESS, host.pid, niceness)
        cluster.add_node("a", ROOM)
        options = {"cluster": "auto", "model_repository": root, "trusted_model_base_paths": (root,)}
        with serving(models.root, features=cluster.features(), **options):
            (line,) = [record.getMessage() for record in caplog.records if words in record.getMessage()]
    assert f"run with niceness {niceness}" in line


def test_replicas_end_by_themselves_when_no_server_comes_back(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    cluster.settings = {"orphan_seconds": 0.2}
    models.publish(1)
    with serve() as served:
        assert served.version() == 1
    wait_running(cluster, 0)


def test_models_that_say_nothing_live_where_the_servers_flag_says_and_take_nothing_of_its_memory(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1)
    config = models.root / "m" / "1" / "config.pbtxt"
    config.write_text(PYTHON_CONFIG)
    (models.root / "both" / "1").mkdir(parents=True)
    (models.root / "both" / "config.pbtxt").write_text(ENSEMBLE.replace("first", "m").replace("second", "m"))
    with serve(worker="ray", total_model_memory_limit_bytes=1) as served:
        assert served.version() == 1
        assert len(cluster.replicas) == 1
        served.wait_states({1: VersionState.AVAILABLE}, "both")
        np.testing.assert_array_equal(served.predict("both").outputs["y"], ROW + 2)


def test_a_decoupled_model_is_refused_before_a_replica_is_placed(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1, config=PYTHON_CONFIG + "model_transaction_policy { decoupled: true }")
    with serve() as served:
        served.wait_states({1: VersionState.END})
        status = served.status()[1].status
    assert status.code is StatusCode.UNIMPLEMENTED
    assert models.opened == []


def test_the_next_server_adopts_the_replicas_that_a_stopped_one_has_left(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1)
    with serve() as served:
        assert served.version() == 1
    pids = [process.replica.pid for process in cluster.replicas if process.replica]
    assert len(pids) == 2
    with serve() as served:
        assert served.version() == 1
        assert worker_pids(served) == set(pids)
        wait_ready(served, 2)
    assert models.opened == ["m/1"] * 2


def test_replicas_of_other_files_under_the_same_number_are_not_adopted_but_ended(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1)
    models.publish(1, "gone")
    with serve():
        pass
    pids = {process.id for process in cluster.replicas}
    assert len(pids) == 4
    models.withdraw(1, "gone")
    models.withdraw(1)
    models.publish(1, running="inputs = dict(inputs)")
    with serve() as served:
        assert served.version() == 1
        wait_until(lambda: pids.isdisjoint(process.id for process in cluster.replicas), "the old ones end", PATIENCE)
        wait_running(cluster, 2)
    assert models.opened.count("m/1") == 4


def test_more_and_fewer_instances_are_more_and_fewer_replicas(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1, count=1)
    with serve() as served, Traffic(served.target, "m", CALLERS) as traffic:
        for count in (3, 1, 2):
            models.reconfigure(1, count=count)
            wait_running(cluster, count)
            wait_ready(served, count)
        traffic.stop()
    assert (traffic.failures, traffic.wrong) == ([], [])
    assert models.opened == ["m/1"] * 4


def test_instances_that_have_no_room_yet_join_when_there_is_some(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", {"num_cpus": 1, "memory": 1e12})
    models.publish(1, count=1)
    with serve() as served, Traffic(served.target, "m", CALLERS) as traffic:
        models.reconfigure(1, count=2)
        wait_running(cluster, 2)
        cluster.add_node("b", {"num_cpus": 1, "memory": 1e12})
        wait_until(lambda: len(worker_pids(served)) == 2 and None not in worker_pids(served), "it joins", PATIENCE)
        traffic.stop()
    assert (traffic.failures, traffic.wrong) == ([], [])
    assert models.opened == ["m/1"] * 2


def test_the_next_server_adopts_replicas_of_a_version_that_wants_more_of_them_now(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1, count=1)
    for count in (1, 2, 3):
        models.reconfigure(1, count=count)
        with serve() as served:
            wait_ready(served, count)
    assert models.opened == ["m/1"] * 3


@pytest.mark.parametrize("count", [1, 3])
def test_a_change_of_what_replicas_need_is_a_load_beside_those_that_serve(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve, count: int
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1, count=count)
    with serve() as served, Traffic(served.target, "m", CALLERS) as traffic:
        before = {process.id for process in cluster.replicas}
        models.reconfigure(1, count=count, cpus=2)
        wait_until(lambda: before.isdisjoint(process.id for process in cluster.replicas), "they were exchanged")
        wait_ready(served, count)
        traffic.stop()
    assert (traffic.failures, traffic.wrong) == ([], [])


def test_a_change_for_which_there_is_no_room_asks_once_and_takes_effect_when_room_comes(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", {"num_cpus": 2, "memory": 1e12})
    models.publish(1, count=1)
    with serve() as served, Traffic(served.target, "m", CALLERS) as traffic:
        (serving_now,) = cluster.replicas
        models.reconfigure(1, count=1, cpus=3)
        wait_until(lambda: len(cluster.replicas) == 2, "it waits for room", PATIENCE)
        (waiting,) = set(cluster.replicas) - {serving_now}
        wait_until(lambda: "for 3 s" in str(served.status()), "it was tried more than once", PATIENCE)
        assert set(cluster.replicas) == {serving_now, waiting}
        cluster.add_node("b", {"num_cpus": 3, "memory": 1e12})
        wait_until(lambda: cluster.replicas == [waiting], "they were exchanged", PATIENCE)
        traffic.stop()
    assert (traffic.failures, traffic.wrong) == ([], [])


@pytest.mark.parametrize("then", ["as before", "wrong"])
def test_a_change_that_waits_for_room_and_is_taken_back_gives_back_what_it_has_asked_for(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve, then: str
) -> None:
    cluster.add_node("a", {"num_cpus": 2, "memory": 1e12})
    models.publish(1, count=1)
    with serve() as served:
        before = cluster.replicas
        models.reconfigure(1, count=1, cpus=3)
        wait_until(lambda: len(cluster.replicas) == 2, "it waits for room", PATIENCE)
        models.reconfigure(1, count=1, more="" if then == "as before" else "no_such_field: 1")
        wait_until(lambda: cluster.replicas == before, "nothing waits any more", PATIENCE)
        assert served.version() == 1


def test_a_cluster_that_cannot_be_reached_is_waited_for_and_what_serves_goes_on(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1)
    with serve() as served, Traffic(served.target, "m", CALLERS) as traffic:
        cluster.cut_off("head unreachable")
        models.publish(2)
        wait_until(lambda: "head unreachable" in str(served.status().get(2)), "version 2 waits", PATIENCE)
        assert served.version() == 1
        cluster.restore()
        served.wait_states({1: VersionState.END, 2: VersionState.AVAILABLE})
        traffic.stop()
    assert (traffic.failures, traffic.wrong, traffic.backwards) == ([], [], 0)


def test_a_server_that_was_killed_and_started_again_adopts_its_replicas_without_opening_anything(
    cluster: ProcessCluster, models: ReplicatedModels
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1)
    models.publish(1, "large", cpus=100)
    root = str(models.root)
    flags = f"--model_repository={root}", f"--trusted_model_base_paths={root}", "--version_quiet_period_seconds=0"
    command = [sys.executable, "-m", "tests.support.cluster.serve", cluster.path]
    with ServerProcess(*flags, command=command) as first:
        with Client(first.target) as client:
            assert client.predict("m", {"x": ROW}).version == 1
        first.process.kill()
        first.wait()
    pids = {process.replica.pid for process in cluster.replicas if process.replica}
    assert len(pids) == 2
    with ServerProcess(*flags, command=command) as second, Client(second.target) as client:
        assert client.predict("m", {"x": ROW}).version == 1
        assert [status.state for status in client.status("large")] == [VersionState.LOADING]
    assert models.opened == ["m/1"] * 2
    assert {process.replica.pid for process in cluster.replicas if process.replica} == pids


def test_an_ensemble_of_models_in_replicas_answers(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    cluster.add_node("a", ROOM)
    models.publish(1, "first")
    models.publish(2, "second")
    (models.root / "both" / "1").mkdir(parents=True)
    (models.root / "both" / "config.pbtxt").write_text(ENSEMBLE)
    with serve() as served:
        served.wait_states({1: VersionState.AVAILABLE}, "both")
        answer = served.predict("both")
    np.testing.assert_array_equal(answer.outputs["y"], ROW + 3)


def test_sequences_live_in_replicas_and_end_with_them(
    cluster: ProcessCluster, models: ReplicatedModels, serve: Serve
) -> None:
    node = cluster.add_node("a", ROOM)
    models.publish(1, "sums", config=SEQUENCES, opening="self.sums = {}", running=SUM)
    with serve() as served:
        sequences = range(1, 5)
        assert [ask(served, sequence, start=True) for sequence in sequences] == [1] * 4
        assert [ask(served, sequence) for sequence in sequences] == [2] * 4
        cluster.add_node("b", ROOM)
        cluster.drain_node(node)
        wait_until(lambda: not cluster.on(node), "the node is left", PATIENCE)
        wait_ready(served, 2)
        code, words = ask(served, 1)
        assert (code, "start it again with sequence_start" in words) == (503, True)
        assert ask(served, 1, start=True) == 1
        assert ask(served, 1) == 2
