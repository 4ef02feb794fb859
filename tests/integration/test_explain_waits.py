"""Each cause that lies in what else goes on: a real server in that state names it, and what the fix says leads to
SERVING."""

from __future__ import annotations

import os
import signal
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.process_cluster import PRELOAD, ProcessCluster
from tests.support.cluster.replicated_models import ReplicatedModels
from tests.support.servers.explanations import Explanations, Tree, link_of
from tests.support.servers.in_process import ServerFixture, config_text, entry, serving
from tests.support.servers.models import TaggedArchives, gated_source, waiting_source, write_python_version
from tests.support.servers.process import wait_until
from tests.support.servers.replicas import ReplicaHost
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError

ENSEMBLE = """
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }
ensemble_scheduling {
  step { model_name: "STEP" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
}
"""
OF_ITEMS = """
platform: "ensemble"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
ensemble_scheduling {
  step { model_name: "STEP" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
}
"""
ITEMS = """
class Model:
    def __init__(self, context):
        pass

    def preprocess(self, item):
        raise KeyError("no table")

    def predict(self, inputs):
        return {"y": inputs["x"]}
"""
SLOW_SOURCE = """
import time

class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        time.sleep(0.1)
        return {"y": inputs["x"]}
"""


@contextmanager
def started(root: Path, *models: str, **options: Any) -> Iterator[tuple[ServerFixture, Explanations]]:
    """A server with a config file of these entries, whose code is trusted, and which need not be ready."""
    file = root / "models.config"
    file.write_text(config_text(root, *models))
    fields = {"ready": False, "trusted_model_base_paths": (str(root),), "num_initial_load_threads": 1, **options}
    with serving(root, model_config_file=str(file), **fields) as served:
        yield served, Explanations(served, root)


@contextmanager
def inside(served: ServerFixture, gate: Path, version: int, requests: int = 1) -> Iterator[list[ServingError]]:
    """Requests of a gated model, all answered at the end; gives the errors of those that were refused until now. The
    others come when the first is inside: they would find the queue full of each other, be refused, and leave it
    empty."""
    refused: list[ServingError] = []

    def ask() -> None:
        try:
            served.predict(version=version)
        except ServingError as error:
            refused.append(error)

    with ThreadPoolExecutor(requests) as pool:
        pool.submit(ask)
        wait_until(lambda: (gate / f"entered-{version}").exists(), "a request is inside")
        for _ in range(requests - 1):
            pool.submit(ask)
        try:
            yield refused
        finally:
            (gate / "open").touch()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    path.mkdir()
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


def test_a_load_behind_another_one(root: Path, gate: Path, archives: TaggedArchives) -> None:
    write_python_version(root / "a", 1, waiting_source(1, gate))
    archives.write_version(1, root / "m")
    with started(root, entry("a"), entry("m")) as (_, explain):
        wait_until(lambda: (gate / "loading-1").exists(), "the first load is under way")
        explain.wait("a", "LOADING", "!LOADING", "has been loading for")
        answer = explain.wait("m", "WAITING", "!WAITS_FOR_LOAD_THREAD", "loading now: a@1 for")
        assert "--num_load_threads" in link_of(answer, "WAITS_FOR_LOAD_THREAD")["fix"]
        (gate / "open").touch()
        explain.wait("m", "SERVING")


def test_two_models_where_there_is_room_for_one(root: Path) -> None:
    large = TaggedArchives(megabytes=8)
    large.write_version(1, root / "a")
    with started(root, entry("a"), ready=True) as (served, explain):
        explain.wait("a", "SERVING")
        needs = sum(served.server.core.manager.survey().versions[ServableId("a", 1)].estimate.entries.values())
    large.write_version(1, root / "m")
    limit = {"total_model_memory_limit_bytes": needs + needs // 2, "max_num_load_retries": 0}
    with started(root, entry("a"), **limit) as (served, explain):
        explain.wait("a", "SERVING")
        with pytest.raises(ServingError):
            served.reload(entry("a"), entry("m"))
        answer = explain.wait("m", "FAILED", "!WAITS_FOR_MEMORY", "held by a@1")
        text = link_of(answer, "WAITS_FOR_MEMORY")["text"]
        assert "of main memory" in text
        assert "is free" in text
        served.reload(entry("m"))
        explain.wait("m", "SERVING")
        explain.wait("a", "NOT_CONFIGURED", "!NOT_CONFIGURED")


def test_memory_that_comes_free_with_the_last_request_of_another_version(root: Path, gate: Path) -> None:
    write_python_version(root / "m", 1, gated_source(1, gate))
    (root / "m" / "1" / "weights").write_bytes(bytes(8_000_000))
    with started(root, entry("m"), total_model_memory_limit_bytes=30_000_000) as (served, explain):
        explain.wait("m", "SERVING")
        with inside(served, gate, 1):
            TaggedArchives(megabytes=20).write_version(1, root / "b")
            reload = threading.Thread(target=_reload, args=(served, entry("b")))
            reload.start()
            explain.wait("m/versions/1", "LEAVING", "DRAINING", "1 request inside")
            explain.wait("b", "WAITING", "!WAITS_FOR_MEMORY", "memory comes free when these have gone: m@1")
        explain.wait("b", "SERVING")
        reload.join()


def _reload(served: ServerFixture, *models: str) -> None:
    try:
        served.reload(*models)
    except ServingError:
        pass


def test_an_ensemble_without_one_of_its_steps(root: Path, archives: TaggedArchives) -> None:
    for name, step in (("e", "f"), ("f", "g")):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(ENSEMBLE.replace("STEP", step))
    archives.write_version(1, root / "g")
    with started(root, entry("e"), entry("f")) as (served, explain):
        answer = explain.wait("e", "WAITING", "!WAITS_FOR_MODELS", "f (WAITING)")
        assert answer["waits_for"] == ["f"]
        explain.wait("f", "WAITING", "!WAITS_FOR_MODELS", "g (NOT_CONFIGURED)")
        causes = causes_of(explain.ask("e"))
        assert causes[:2] == ["WAITS_FOR_MODELS", "WAITS_FOR_MODELS"], "the chain goes on with what f waits for"
        answer = explain.wait("e", "WAITING", "NOT_CONFIGURED", "'g'")
        served.reload(entry("e"), entry("f"), entry("g"))
        explain.wait("e", "SERVING")


def test_an_ensemble_whose_step_is_refused_is_told_alike_by_the_list_and_the_model(
    root: Path, archives: TaggedArchives
) -> None:
    (root / "e" / "1").mkdir(parents=True)
    (root / "e" / "config.pbtxt").write_text(ENSEMBLE.replace("STEP", "g"))
    (root / "g" / "1").mkdir(parents=True)
    with zipfile.ZipFile(root / "g" / "1" / "model.pt2", "w") as archive:
        archive.writestr("archive/data/x.pkl", b"x")
    with started(root, entry("e"), entry("g"), max_num_load_retries=0) as (_, explain):
        explain.wait("g", "REFUSED", "!ARTEFACT_REFUSED")
        answer = explain.wait("e", "WAITING", "!WAITS_FOR_MODELS", "g (REFUSED)")
        assert causes_of(answer) == ["WAITS_FOR_MODELS", "ARTEFACT_REFUSED"]
        (line,) = [line for line in explain.get("/v1/models:explain")["models"] if line["model"] == "e"]
        assert "g (REFUSED)" in line["sentence"]
        assert (line["cause"], line["fix"]) == ("WAITS_FOR_MODELS", link_of(answer, "WAITS_FOR_MODELS")["fix"])
        archives.write_version(2, root / "g")
        explain.wait("e", "SERVING")


def test_a_step_that_fails_before_its_run_has_not_ended_in_a_queue(root: Path) -> None:
    (root / "e" / "1").mkdir(parents=True)
    (root / "e" / "config.pbtxt").write_text(OF_ITEMS.replace("STEP", "items"))
    write_python_version(root / "items", 1, ITEMS)
    (root / "items" / "config.pbtxt").write_text(
        OF_ITEMS.partition("ensemble_scheduling")[0].replace("ensemble", "python")
    )
    with started(root, entry("items"), entry("e")) as (served, explain):
        explain.wait("e", "SERVING")
        for model, before in (("items", ""), ("e", "in ensemble 'e', step 0 (model items): ")):
            with pytest.raises(ServingError, match="no table") as failed:
                served.predict(model)
            assert str(failed.value).startswith(before)
            wait_until(lambda name=model: explain.ask(name)["requests"], "the failed request is known")
            request = explain.ask(model)["requests"][0]
            assert (request["stage"], request["code"]) == ("run", "INTERNAL")


def test_a_version_whose_predecessor_has_to_go_first(root: Path, gate: Path, archives: TaggedArchives) -> None:
    write_python_version(root / "m", 1, gated_source(1, gate))
    with started(root, entry("m"), aspired_version_policy="resource") as (served, explain):
        explain.wait("m", "SERVING")
        with inside(served, gate, 1):
            archives.write_version(2, root / "m")
            explain.wait("m", "WAITING", "!WAITS_FOR_TURN", "version 1 has to be gone first")
            explain.wait("m/versions/1", "LEAVING", "!DRAINING", "1 request inside")
        explain.wait("m", "SERVING")


def test_a_withdrawn_version_with_requests_inside(root: Path, gate: Path, archives: TaggedArchives) -> None:
    write_python_version(root / "m", 1, gated_source(1, gate))
    with started(root, entry("m")) as (served, explain):
        explain.wait("m", "SERVING")
        with inside(served, gate, 1):
            archives.write_version(2, root / "m")
            answer = explain.wait("m/versions/1", "LEAVING", "!DRAINING", "1 request inside")
            assert answer["answers_now"][0]["version"] == 2
            assert causes_of(answer) == ["DRAINING", "POLICY_PASSES_OVER"]
        explain.wait("m/versions/1", "NOT_WANTED", "!POLICY_PASSES_OVER")
        served.reload(entry("m", "model_version_policy { all {} }"))
        explain.wait("m/versions/1", "SERVING")


def test_a_load_that_was_replaced_and_whose_request_does_not_end(root: Path, gate: Path) -> None:
    """The version answers by its new load all the while."""
    write_python_version(root / "m", 1, gated_source(1, gate))
    bounds = {"slow_unload_seconds": 0.2, "sequence_drain_seconds": 0.2}
    with started(root, entry("m"), **bounds) as (served, explain):
        explain.wait("m", "SERVING")
        with inside(served, gate, 1):
            (root / "m" / "1" / "model.py").write_text(SLOW_SOURCE)
            answer = explain.wait("m", "SERVING", "DRAIN_HANGS", "1 request inside from before it was loaded anew")
            assert link_of(answer, "DRAIN_HANGS")["since"]
            assert causes_of(explain.ask("m/versions/1")) == ["DRAIN_HANGS"]
            (line,) = explain.get("/v1/models:explain")["models"]
            assert (line["verdict"], line["cause"]) == ("SERVING", "DRAIN_HANGS")
        wait_until(lambda: not causes_of(explain.ask("m")), "the request has ended")


def test_a_full_queue(root: Path, gate: Path) -> None:
    write_python_version(root / "m", 1, gated_source(1, gate))
    with started(root, entry("m"), max_queued_requests=2) as (served, explain):
        explain.wait("m", "SERVING")
        wait_until(lambda: explain.get("/v1/overview")["server"]["tick"] > 0, "its requests are counted")
        with inside(served, gate, 1, requests=8) as refused:
            answer = explain.wait("m", "SERVING", "!QUEUE_FULL", "one more is refused")
            wait_until(lambda: len(refused) == 5, "the queue has refused what it cannot hold")
            assert "--max_queued_requests" in link_of(answer, "QUEUE_FULL")["fix"]
        wait_until(lambda: "QUEUE_FULL" not in causes_of(explain.ask("m")), "the queue is empty again")
        answer = explain.wait("m", "SERVING", "!FAILING", "5 of 8), most of them UNAVAILABLE in queue")
        assert answer["sentence"].startswith(
            "version 1 answers, but 62% of its requests in the last five minutes failed"
        )
        assert "raise instance_group count" in link_of(answer, "FAILING")["fix"]
        assert "62%" in explain.get("/v1/models:explain")["models"][0]["sentence"]


def test_a_model_whose_every_call_runs_for_too_long(root: Path, gate: Path) -> None:
    write_python_version(root / "m", 1, gated_source(1, gate))
    with started(root, entry("m")) as (served, explain):
        explain.wait("m", "SERVING")
        wait_until(lambda: explain.get("/v1/overview")["server"]["tick"] > 0, "its requests are counted")
        with inside(served, gate, 1):
            for _ in range(3):
                with pytest.raises(ServingError, match=r"(?i)deadline"):
                    served.predict(timeout=1.0)
            answer = explain.wait("m", "SERVING", "!FAILING", "(3 of 3), most of them DEADLINE_EXCEEDED")
            assert link_of(answer, "FAILING")["text"].startswith("100% of its requests")


def test_calls_that_wait_longer_than_they_run(root: Path) -> None:
    write_python_version(root / "m", 1, SLOW_SOURCE)
    enough = threading.Event()
    with started(root, entry("m"), ready=True) as (served, explain):
        served.predict()
        assert "SLOW" not in causes_of(explain.ask("m")), "one call alone does not wait"

        def ask() -> None:
            while not enough.is_set():
                served.predict()

        with ThreadPoolExecutor(5) as pool:
            asking = [pool.submit(ask) for _ in range(5)]
            try:
                answer = explain.wait("m", "SERVING", "!SLOW", "wait longer than they run")
            finally:
                enough.set()
        assert all(each.exception() is None for each in asking)
        assert "instance_group" in link_of(answer, "SLOW")["fix"]
        assert answer["sentence"].startswith("version 1 answers, but its calls wait longer than they run: ")


def causes_of(answer: Tree) -> list[str]:
    return [link["cause"] for link in answer["because"]]


def pid_of(served: ServerFixture) -> int:
    workers = [worker for _, burden in served.server.core.view.burdens("m") for worker in burden.workers]
    wait_until(lambda: workers[0].pid is not None, "there is a process")
    return workers[0].pid or 0


def test_a_process_that_is_started_again(root: Path, gate: Path) -> None:
    write_python_version(root / "m", 1, waiting_source(1, gate))
    (gate / "open").touch()
    with started(root, entry("m"), worker="process") as (served, explain):
        explain.wait("m", "SERVING")
        (gate / "open").unlink()
        os.kill(pid_of(served), signal.SIGKILL)
        answer = explain.wait("m", "WAITING", "!WORKER_RESTARTING", "signal 9")
        assert "memory" in link_of(answer, "WORKER_RESTARTING")["fix"]
        (gate / "open").touch()
        explain.wait("m", "SERVING")


def test_a_process_that_is_not_started_because_what_starts_them_is_frozen(
    root: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfs_lite.operations.explain.causes.loading.SILENT_SECONDS", 0.0)
    (gate / "open").touch()
    write_python_version(root / "m", 1, waiting_source(1, gate))
    with started(root, entry("m"), worker="process") as (served, explain):
        explain.wait("m", "SERVING")
        frozen = served.server.core.opener._supervisor.pid
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        try:
            write_python_version(root / "m", 2, waiting_source(2, gate))
            answer = explain.wait("m/versions/2", "LOADING", "PROCESS_NOT_STARTED", f"(pid {frozen}) was asked")
            assert causes_of(answer) == ["LOADING", "PROCESS_NOT_STARTED"]
            assert f"kill -CONT {frozen}" in link_of(answer, "PROCESS_NOT_STARTED")["fix"]
        finally:
            os.kill(frozen, signal.SIGCONT)
        explain.wait("m/versions/2", "SERVING")


def test_a_process_that_cannot_be_started_again(root: Path, gate: Path) -> None:
    away = "if (GATE / 'away').exists():\n    raise ValueError('its disk is away')\n"
    write_python_version(root / "m", 1, waiting_source(1, gate).replace("class Model", f"{away}\nclass Model"))
    (gate / "open").touch()
    with started(root, entry("m"), worker="process") as (served, explain):
        explain.wait("m", "SERVING")
        (gate / "away").touch()
        os.kill(pid_of(served), signal.SIGKILL)
        answer = explain.wait("m", "WAITING", "!WORKER_DOWN", "its disk is away")
        assert "the next attempt is at" in link_of(answer, "WORKER_DOWN")["fix"]
        (gate / "away").unlink()
        explain.wait("m", "SERVING")


def test_a_process_whose_files_have_changed_is_not_started_again_until_they_are_swapped_in(
    root: Path, gate: Path
) -> None:
    model = write_python_version(root / "m", 1, waiting_source(1, gate)) / "model.py"
    (gate / "open").touch()
    with started(root, entry("m"), worker="process") as (served, explain):
        explain.wait("m", "SERVING")
        good = model.read_text()
        model.write_text("raise ValueError('no model')")
        os.kill(pid_of(served), signal.SIGKILL)
        answer = explain.wait("m", "WAITING", "!WORKER_DOWN", "its files have changed since it was loaded (model.py)")
        assert "one version gives the answers of one model" in link_of(answer, "WORKER_DOWN")["fix"]
        answer = explain.wait("m", "WAITING", "FILES_NOT_LOADED", "its new files are not loaded: ")
        assert "no model" in link_of(answer, "FILES_NOT_LOADED")["text"]
        model.write_text(good)
        explain.wait("m", "SERVING")


def test_replicas_without_room_in_the_cluster(root: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ReplicatedModels(root, scratch).publish(1, count=2, cpus=4)
    with ReplicaHost(PRELOAD) as host, ProcessCluster(host) as cluster:
        cluster.add_node("small", {"num_cpus": 1, "memory": 1e12})
        options: dict[str, Any] = {"model_repository": str(root), "trusted_model_base_paths": (str(root),)}
        with serving(root, features=cluster.features(), cluster="auto", ready=False, **options) as served:
            explain = Explanations(served, root)
            answer = explain.wait("m", "WAITING", "!WAITS_FOR_PLACE")
            assert "add a node" in link_of(answer, "WAITS_FOR_PLACE")["fix"]
            cluster.add_node("large", {"num_cpus": 16, "memory": 1e12})
            explain.wait("m", "SERVING")


def test_a_server_that_stops(root: Path, gate: Path) -> None:
    write_python_version(root / "m", 1, gated_source(1, gate))
    with started(root, entry("m")) as (served, explain):
        explain.wait("m", "SERVING")
        with inside(served, gate, 1):
            stopping = threading.Thread(target=served.server.stop)
            stopping.start()
            explain.wait("m", "SERVING", "DRAINING_SERVER", "is being stopped")
        stopping.join()


def test_grpc_answers_what_http_answers(root: Path, archives: TaggedArchives) -> None:
    archives.write_version(1, root / "m")
    with started(root, entry("m", 'version_labels { key: "stable" value: 1 }')) as (served, explain):
        over_http = explain.wait("m", "SERVING")
        assert _plain(served.client.explain("m")) == _plain(over_http)
        assert served.client.explain("m", label="stable")["version"] == 1
        assert served.client.explain("m", version=1)["verdict"] == "SERVING"
        assert served.client.explain()["models"][0]["model"] == "m"


def _plain(answer: Tree) -> Tree:
    return {name: value for name, value in answer.items() if name != "next"}
