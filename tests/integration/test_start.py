"""The start: ports open first, models load side by side, and readiness comes when every model has answered once."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tfs_lite.cli.main import main
from tfs_lite.client import Client
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.servers.in_process import serving
from tfs_lite.testing.servers.models import waiting_source, write_python_version
from tfs_lite.testing.servers.probe import ROW, Probe, expect_true
from tfs_lite.testing.servers.process import ServerProcess, wait_until

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
        assert main(["status", f"--rest={served.url.removeprefix('http://')}"]) == 0
        assert "1 of 2 models answers; not: bad" in capsys.readouterr().out
        archives.write_version(2, tmp_path / "bad")
        wait_until(lambda: get("/readyz") == (200, b"ok\n", "2/2"), "both answer")
        assert json.loads(get("/v1/overview")[1])["server"]["why"] == ""
        assert main(["status", f"--rest={served.url.removeprefix('http://')}"]) == 0
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
