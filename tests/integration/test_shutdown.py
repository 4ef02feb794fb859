"""SIGTERM under load: what was accepted is answered, the exit code is 0, nothing is left. A second signal is final."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.servers.models import gated_source, waiting_source, write_python_version
from tests.support.servers.probe import Probe, Traffic
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.core.status import ServingError, StatusCode

pytestmark = pytest.mark.wire

INSIDE = 4

COUNTING = """
import os

RUNS = os.open({path!r}, os.O_APPEND | os.O_CREAT | os.O_WRONLY)


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        os.write(RUNS, b".")
        return {{"y": inputs["x"] + 1}}
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    gate = tmp_path / "gate"
    gate.mkdir()
    return gate


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def server(tmp_path: Path, gate: Path, runs: Path):
    models = tmp_path / "models"
    write_python_version(models / "gated", 1, gated_source(1, gate))
    write_python_version(models / "counting", 1, COUNTING.format(path=str(runs)))
    flags = (
        f"--model_repository={models}",
        f"--trusted_model_base_paths={models}/*",
        "--version_quiet_period_seconds=0.2",
        "--ready_requires_all_models",
        "--drain_timeout_seconds=100",
    )
    with ServerProcess(*flags) as server:
        yield server


def refuses(server: ServerProcess) -> bool:
    """Whether the readiness probe says no, or nobody answers it any more."""
    try:
        return server.get("/readyz")[0] == 503
    except OSError:
        return True


def test_probes_and_pages_are_answered_until_the_drain_is_over(server, gate):
    with ThreadPoolExecutor(1) as pool, Probe(server) as probe:
        inside = pool.submit(probe.ask, "gated")
        wait_until(lambda: (gate / "entered-1").exists(), "a request is inside the model")
        server.terminate()
        wait_until(lambda: grpc_refuses(probe), "predictions are refused")
        for _ in range(5):
            assert server.get("/livez")[0] == 200
            assert server.get("/readyz") == (503, b"draining\n")
            assert b"tfs_lite_requests_total" in server.get("/metrics")[1]
            assert len(json.loads(server.get("/v1/models")[1])["models"]) == 2
        (gate / "open").touch()
        assert inside.result(60) == 1
        assert server.wait() == 0
    with pytest.raises(OSError):
        server.get("/livez")
    assert "Traceback" not in server.log()


def grpc_refuses(probe: Probe) -> bool:
    try:
        probe.ask("counting")
    except ServingError as error:
        return error.code is StatusCode.UNAVAILABLE
    return False


def test_sigterm_under_load_answers_what_was_accepted_and_leaves_nothing(server, gate, runs):
    family = [process.pid for process in psutil.Process(server.pid).children(recursive=True)]
    with ThreadPoolExecutor(INSIDE) as pool, Probe(server) as probe:
        inside = [pool.submit(probe.ask, "gated") for _ in range(INSIDE)]
        wait_until(lambda: (gate / "entered-1").exists(), "a request is inside the model")
        with Traffic(server.target, "counting", stop_at_failure=True) as traffic:
            wait_until(lambda: traffic.total > 200, "traffic flows")
            server.terminate()
            wait_until(lambda: refuses(server), "the server says that it is not ready")
            assert server.exit_code is None, "it must wait for the requests inside"
            (gate / "open").touch()
            assert [future.result(60) for future in inside] == [1] * INSIDE
            assert server.wait() == 0
    assert traffic.wrong == []
    assert {error.code for error in traffic.failures} <= {StatusCode.UNAVAILABLE}
    assert traffic.total == runs.stat().st_size, "every request that the model ran was answered"
    assert not server.leftovers()
    assert not any(psutil.pid_exists(pid) for pid in family)


def test_second_signal_ends_the_process_at_once(server, gate):
    with ThreadPoolExecutor(1) as pool, Probe(server) as probe:
        inside = pool.submit(probe.ask, "gated")
        wait_until(lambda: (gate / "entered-1").exists(), "a request is inside the model")
        server.terminate()
        wait_until(lambda: refuses(server), "the server drains")
        assert server.exit_code is None
        server.terminate()
        assert server.wait(30) != 0
        assert inside.exception(60) is not None
    wait_until(lambda: not server.leftovers(), "its processes, which nobody waited for, have ended as well")


def test_sigterm_while_a_model_is_still_loading_ends_all_the_same(tmp_path, gate):
    write_python_version(tmp_path / "slow", 1, waiting_source(1, gate))
    flags = (f"--model_base_path={tmp_path}/slow", f"--trusted_model_base_paths={tmp_path}/slow")
    server = ServerProcess(*flags, "--version_quiet_period_seconds=0.1", "--drain_timeout_seconds=1").start()
    try:
        wait_until(lambda: (gate / "loading-1").exists() or server.exit_code is not None, "the model is being loaded")
        server.terminate()
        assert server.wait() == 0, server.log()
        assert "Traceback" not in server.log()
        assert not server.leftovers()
    finally:
        server.stop()
