"""The start: ports open first, models load side by side, and readiness comes when every model has answered once."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from typing import Any

import psutil
import pytest

from tests.support.servers.in_process import serving
from tests.support.servers.models import waiting_source, write_python_version
from tests.support.servers.probe import ROW, Probe, expect_true
from tests.support.servers.process import ServerProcess, default_command, wait_until
from tfs_lite.cli.main import main
from tfs_lite.client import Client
from tfs_lite.core.status import ServingError, StatusCode

MODELS = 24


def test_models_that_load_side_by_side_all_serve_and_the_idle_server_ends_cleanly(archives, tmp_path):
    names = [f"model_{number}" for number in range(1, MODELS + 1)]
    for version, name in enumerate(names, start=1):
        archives.write_version(version, tmp_path / "models" / name)
    flags = (
        f"--model_repository={tmp_path}/models",
        f"--grpc_socket_path={tmp_path}/socket",
        "--num_initial_load_threads=8",
        "--max_num_load_retries=0",
        "--version_quiet_period_seconds=0.1",
        "--ready_requires_all_models",
    )
    with ServerProcess(*flags) as server, Probe(server) as probe:
        assert [probe.ask(name) for name in names] == list(range(1, MODELS + 1))
        with Client(f"unix:{tmp_path}/socket") as client:
            assert expect_true(client.predict("model_7", {"x": ROW})) == 7
        server.terminate()
        assert server.wait(30) == 0
    assert not server.leftovers()
    assert "Traceback" not in server.log()


def test_probes_answer_and_loaded_models_serve_while_another_still_loads(archives, tmp_path):
    models = tmp_path / "models"
    archives.write_version(1, models / "fast")
    write_python_version(models / "slow", 1, waiting_source(1, tmp_path))
    flags = (
        f"--model_repository={models}",
        f"--trusted_model_base_paths={models}/slow",
        "--version_quiet_period_seconds=0.1",
    )
    server = ServerProcess(*flags).start()
    try:
        server.wait_status("/livez", 200)
        wait_until(lambda: (tmp_path / "loading-1").exists(), "the slow model is being loaded")
        assert server.get("/startupz")[0] == 200
        assert server.get("/readyz")[0] == 503
        with Probe(server) as probe:
            probe.wait_available("fast", 1)
            assert probe.ask("fast") == 1
            with pytest.raises(ServingError) as caught:
                probe.ask("slow")
            assert caught.value.code is StatusCode.NOT_FOUND
            assert server.get("/readyz")[0] == 503
            (tmp_path / "open").touch()
            server.wait_ready()
            assert probe.ask("slow") == 1
    finally:
        assert server.stop() == 0


def test_fork_for_the_processes_of_models_ends_once_a_model_answers_without_one_and_a_later_one_has_its_own(
    archives, tmp_path
):
    models = tmp_path / "models"
    archives.write_version(1, models / "m")
    write_python_version(models / "slow", 1, waiting_source(1, tmp_path))
    flags = (f"--model_repository={models}", f"--trusted_model_base_paths={models}")
    server = ServerProcess(*flags, command=default_command()).start()
    try:
        itself = psutil.Process(server.pid)
        wait_until(lambda: (tmp_path / "loading-1").exists(), "the slow model is being loaded")
        (fork,) = itself.children(recursive=True)
        of_fork = fork.name(), fork.cmdline()
        (tmp_path / "open").touch()
        assert of_fork == ("tfs-lite-forks", itself.cmdline())
        server.wait_ready()
        wait_until(lambda: not itself.children(), "the fork has ended, and is no zombie")
        late = write_python_version(tmp_path / "late", 1, waiting_source(1, tmp_path))
        with (late / "config.pbtxt").open("a") as config:
            config.write('instance_group { worker: "process" }')
        late.parent.rename(models / "late")
        with Probe(server) as probe:
            probe.wait_available("late", 1)
            assert probe.ask("late") == 1
        forks, model = itself.children(recursive=True)
        assert [forks.name(), model.name()] == ["tfs-lite-forks", "tfs-lite-model"]
        assert forks.cmdline() != itself.cmdline()
    finally:
        assert server.stop() == 0
    assert not server.leftovers()
    assert "the process that starts models ended" not in server.log()


def test_ready_says_that_a_model_of_the_config_has_no_version(archives, tmp_path, caplog, capsys):
    caplog.set_level("INFO")
    archives.write_version(1, tmp_path / "good")
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.py").write_text("class Model: pass")
    with serving(tmp_path, model_repository=str(tmp_path)) as served:

        def get(path: str, method: str = "GET") -> tuple[int, bytes, str]:
            with urllib.request.urlopen(urllib.request.Request(f"{served.url}{path}", method=method)) as answer:
                return answer.status, answer.read(), answer.headers["x-models-answering"]

        assert get("/readyz") == (200, b"ok, but 1 of 2 models answers\n", "1/2")
        assert get("/readyz", "HEAD") == (200, b"", "1/2")
        status, body, header = get("/v2/health/ready")
        assert (status, b"true" in body, header) == (200, True, "1/2")
        (line,) = [record for record in caplog.records if record.getMessage().startswith("ready: ")]
        assert (line.levelname, line.getMessage()) == ("WARNING", "ready: 1 of 2 models answers; not: bad")
        assert get("/v1/overview")[0] == 200
        overview: dict[str, Any] = json.loads(get("/v1/overview")[1])["server"]
        assert (overview["ready"], overview["why"]) == (True, "1 of 2 models answers")
        assert main(["status", f"--server={served.url.removeprefix('http://')}"]) == 0
        assert "1 of 2 models answers; not: bad" in capsys.readouterr().out
        archives.write_version(2, tmp_path / "bad")
        wait_until(lambda: get("/readyz") == (200, b"ok\n", "2/2"), "both answer")
        assert json.loads(get("/v1/overview")[1])["server"]["why"] == ""
        assert main(["status", f"--server={served.url.removeprefix('http://')}"]) == 0
        assert "models answer" not in capsys.readouterr().out


def test_a_model_that_a_call_has_unloaded_is_not_missed_and_one_that_it_could_not_load_is(archives, tmp_path):
    archives.write_version(1, tmp_path / "good")
    archives.write_version(1, tmp_path / "other")
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.py").write_text("class Model: pass")
    options = {"model_control_mode": "explicit", "load_model": ("good", "other", "bad"), "max_num_load_retries": 0}
    with serving(tmp_path, model_repository=str(tmp_path), **options) as served:

        def ready() -> bytes:
            with urllib.request.urlopen(f"{served.url}/readyz") as answer:
                return answer.read()

        assert ready() == b"ok, but 2 of 3 models answer\n"
        urllib.request.urlopen(f"{served.url}/v2/repository/models/other/unload", b"{}").close()
        wait_until(lambda: ready() == b"ok, but 1 of 2 models answers\n", "the unloaded model is not missed")


def test_a_model_of_the_start_of_which_not_even_the_config_is_right_is_missed(archives, tmp_path):
    archives.write_version(1, tmp_path / "good")
    archives.write_version(1, tmp_path / "bad")
    (tmp_path / "bad" / "config.yaml").write_text("max_batch_size: many")
    options = {"model_control_mode": "explicit", "load_model": ("good", "bad", "no_such_model")}
    with serving(tmp_path, model_repository=str(tmp_path), **options) as served:
        assert readiness(served.url) == (200, b"ok, but 1 of 3 models answers\n", "1/3")


def readiness(url: str) -> tuple[int, bytes, str]:
    with urllib.request.urlopen(f"{url}/readyz") as answer:
        return answer.status, answer.read(), answer.headers["x-models-answering"]


def json_of(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}{path}") as answer:
        return json.load(answer)


def v2_ready(url: str, model: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/v2/models/{model}/ready").close()
    except urllib.error.HTTPError:
        return False
    return True


SOURCE = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"]}
"""
NONE_ANSWERS = (200, b"ok, but 0 of 1 model answers\n", "0/1")


def test_ready_and_the_status_say_that_all_processes_of_a_version_are_dead(tmp_path, capsys):
    model = write_python_version(tmp_path / "m", 1, SOURCE) / "model.py"
    options = {"worker": "process", "trusted_model_base_paths": (f"{tmp_path}/*",)}
    with serving(tmp_path, model_repository=str(tmp_path), **options) as served:
        url, core = served.url, served.server.core
        assert readiness(url) == (200, b"ok\n", "1/1")
        good = model.read_text()
        model.write_text("raise ValueError('no model')")
        (worker,) = core.view.workers()
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: any(each.failure for each in core.view.workers()), "it is not started again")
        wait_until(lambda: readiness(url) == NONE_ANSWERS, "it is not counted")
        assert not v2_ready(url, "m")
        assert served.server.core.view.is_model_available("m") is False  # what gRPC health asks
        (version,) = json_of(url, "/v1/models/m")["model_version_status"]
        assert (version["state"], version["status"]["error_code"]) == ("AVAILABLE", "UNAVAILABLE")
        assert version["status"]["error_message"].startswith("it does not answer: its process ended (signal 9)")
        assert "its files have changed since it was loaded (model.py)" in version["status"]["error_message"]
        assert served.client.status("m")[0].status.message == version["status"]["error_message"]
        causes = [link["cause"] for link in json_of(url, "/v1/models/m:explain")["because"]]
        assert "WORKER_DOWN" in causes
        assert "QUEUE_FULL" not in causes
        assert main(["status", f"--server={url.removeprefix('http://')}"]) == 0
        assert "0 of 1 model answers; not: m" in capsys.readouterr().out
        model.write_text(good)
        wait_until(lambda: readiness(url) == (200, b"ok\n", "1/1"), "it answers again")
        wait_until(lambda: v2_ready(url, "m"), "it is ready again")
        wait_until(lambda: "does not answer" not in str(served.client.status("m")[0].status), "the remark is gone")


PASS = 'input [{ name: "x" data_type: TYPE_FP32 dims: [-1, 3] }]\n'
PASS += 'output [{ name: "y" data_type: TYPE_FP32 dims: [-1, 3] }]\n'


def test_ready_status_and_explain_say_that_the_model_of_a_step_is_gone(tmp_path):
    for name in ("s1", "s2"):
        write_python_version(tmp_path / name, 1, SOURCE)
    (tmp_path / "ens" / "1").mkdir(parents=True)
    first = 'model_name: "s1" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "t" }'
    second = 'model_name: "s2" model_version: -1 input_map { key: "x" value: "t" } output_map { key: "y" value: "y" }'
    steps = f"ensemble_scheduling {{ step [{{ {first} }}, {{ {second} }}] }}\n"
    (tmp_path / "ens" / "config.pbtxt").write_text(f'platform: "ensemble"\n{PASS}{steps}')
    options = {"worker": "process", "trusted_model_base_paths": (f"{tmp_path}/*",)}
    with serving(tmp_path, model_repository=str(tmp_path), **options) as served:
        url, core = served.url, served.server.core
        wait_until(lambda: readiness(url) == (200, b"ok\n", "3/3"), "all answer")
        (tmp_path / "s2").rename(tmp_path / ".s2")
        wait_until(lambda: readiness(url) == (200, b"ok, but 1 of 2 models answers\n", "1/2"), "ens is not counted")
        assert not v2_ready(url, "ens")
        assert served.server.core.view.is_model_available("ens") is False  # what gRPC health asks
        (version,) = json_of(url, "/v1/models/ens")["model_version_status"]
        assert (version["state"], version["status"]["error_code"]) == ("AVAILABLE", "UNAVAILABLE")
        assert version["status"]["error_message"] == "it does not answer: model s2 of its steps is not available"
        answer = json_of(url, "/v1/models/ens:explain")
        assert (answer["verdict"], answer["because"][0]["cause"]) == ("WAITING", "WAITS_FOR_MODELS")
        assert "s2" in answer["because"][0]["text"]
        (tmp_path / ".s2").rename(tmp_path / "s2")
        wait_until(lambda: readiness(url) == (200, b"ok\n", "3/3"), "all answer again")
        assert v2_ready(url, "ens")
        assert json_of(url, "/v1/models/ens:explain")["verdict"] == "SERVING"
        (tmp_path / "s2" / "1" / "model.py").write_text("raise ValueError('no model')")
        os.kill(next(worker.pid for worker in core.view.workers() if worker.id.name == "s2"), signal.SIGKILL)
        wait_until(lambda: any(each.failure for each in core.view.workers()), "the process of s2 is not started again")
        wait_until(lambda: readiness(url)[2] == "1/3", "neither s2 nor ens is counted")
        message = served.client.status("ens")[0].status.message
        assert message.startswith(
            "it does not answer: model s2 of its steps does not answer: its process ended (signal 9)"
        )
        causes = [link["cause"] for link in json_of(url, "/v1/models/ens:explain")["because"]]
        assert causes[:2] == ["WAITS_FOR_MODELS", "WORKER_DOWN"]
        (tmp_path / "s2" / "1" / "model.py").write_text(SOURCE)
        wait_until(lambda: readiness(url) == (200, b"ok\n", "3/3"), "all answer once more")
