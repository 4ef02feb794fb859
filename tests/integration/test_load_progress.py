"""How far a load is, as the core, the list of models and ``tfs-lite status`` say it while a model takes its time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.servers.in_process import TIMEOUT, ServerFixture, serving
from tests.support.servers.process import wait_until
from tfs_lite.cli.main import main
from tfs_lite.core.loader import LoadPhase
from tfs_lite.core.servable import ServableId, VersionState

SLOW = """
import pathlib
import time


class Model:
    def __init__(self, context):
        while not pathlib.Path({gate!r}).exists():
            time.sleep(0.01)

    def predict(self, inputs):
        return {{"y": inputs["x"]}}
"""
CONFIG = """
platform: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }
"""


def write(root: Path, name: str, version: int, gate: Path) -> None:
    directory = root / name / str(version)
    directory.mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(CONFIG)
    (directory / "model.py").write_text(SLOW.format(gate=str(gate)))


def listed(served: ServerFixture) -> dict[str, dict]:
    models = httpx.get(f"{served.url}/v1/models", timeout=TIMEOUT).json()["models"]
    return {model["name"]: model for model in models}


def metric(served: ServerFixture, line: str) -> str:
    page = httpx.get(f"{served.url}/metrics", timeout=TIMEOUT).text
    return next((found.rpartition(" ")[2] for found in page.splitlines() if found.startswith(line)), "")


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_load_is_told_while_it_goes_on(tmp_path: Path, worker: str, capsys: pytest.CaptureFixture[str]) -> None:
    root, gate, slow = tmp_path / "models", tmp_path / "gate", ServableId("slow", 1)
    write(root, "slow", 1, gate)
    options = {"model_repository": str(root), "trusted_model_base_paths": (str(root),), "worker": worker}
    with serving(root, rest_api_port=0, device="cpu", ready=False, **options) as served:
        try:
            core, address = served.server.core, served.url.removeprefix("http://")
            found = wait_until(lambda: core.view.load_progress(slow), "the load is told of", TIMEOUT)
            assert core.view.loads().keys() == {slow}
            wait_until(lambda: core.view.load_progress(slow).phase is LoadPhase.OPENING, "it is being opened", TIMEOUT)
            assert core.view.load_progress(slow).seconds > found.seconds
            (progress,) = listed(served)["slow"]["load_progress"]
            assert (progress["version"], progress["phase"]) == ("1", "opening the model")
            assert progress["seconds"] >= progress["phase_seconds"] >= 0
            assert "read_bytes" not in progress
            assert metric(served, 'tfs_lite_model_available{model="slow"}') == "0.0"
            assert metric(served, "tfs_lite_ready") == "0.0"
            assert metric(served, 'tfs_lite_version_state_seconds{model="slow",state="LOADING",version="1"}') != ""
            assert main(["status", "--server", address]) == 0
            assert "opening the model for" in capsys.readouterr().out
        finally:
            gate.touch()
        served.wait_states({1: VersionState.AVAILABLE}, "slow")
        served.server.wait_ready(TIMEOUT)
        assert core.view.load_progress(slow) is None
        assert core.view.loads() == {}
        assert "load_progress" not in listed(served)["slow"]
        assert metric(served, 'tfs_lite_model_available{model="slow"}') == "1.0"
        assert metric(served, "tfs_lite_ready") == "1.0"
        assert main(["status", "--json", "--server", address]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert "progress" not in model["versions"][0]


def test_a_version_that_is_loaded_by_a_call_beside_itself_is_told_too(tmp_path: Path) -> None:
    root, gate, slow = tmp_path / "models", tmp_path / "gate", ServableId("slow", 1)
    write(root, "slow", 1, gate)
    options = {"model_repository": str(root), "trusted_model_base_paths": (str(root),)}
    explicit = {"model_control_mode": "explicit", "load_model": ("slow",)}
    with serving(root, rest_api_port=0, device="cpu", ready=False, **options, **explicit) as served:
        core, gate_again = served.server.core, tmp_path / "gate_again"
        gate.touch()
        served.server.wait_ready(TIMEOUT)
        (root / "slow" / "1" / "model.py").write_text(SLOW.format(gate=str(gate_again)))
        with httpx.Client(timeout=TIMEOUT) as client, ThreadPoolExecutor(1) as pool:
            load = pool.submit(client.post, f"{served.url}/v2/repository/models/slow/load", json={})
            try:
                wait_until(lambda: core.view.load_progress(slow), "the load beside it is told of", TIMEOUT)
                (status,) = listed(served)["slow"]["model_version_status"]
                assert status["state"] == "AVAILABLE"
            finally:
                gate_again.touch()
            assert load.result().status_code == 200
        assert core.view.load_progress(slow) is None
