"""The start: ports open first, models load side by side, and readiness comes when every model has answered once."""

from __future__ import annotations

import pytest

from tfs_lite.client import Client
from tfs_lite.core.status import ServingError, StatusCode
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
