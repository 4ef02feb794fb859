"""Thieves in the processes of real models, and what clients and operators are told of their sandboxes."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import numpy as np
import pytest

from tests.support.servers import thief
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess
from tests.support.servers.thief import DONE, REFUSED
from tfs_lite.workers.landlock import probe_kernel
from tfs_lite.workers.sandbox import status_of

STATUS = status_of(probe_kernel())
pytestmark = pytest.mark.skipif(
    not {"files", "programs", "network"}.issubset(STATUS.holds), reason="the kernel has no whole sandbox"
)

THIEF = (
    Path(thief.__file__).read_text()
    + """
import json

import numpy as np


class Model:
    def __init__(self, context):
        options = context.config.parameters
        version, outside, port = options["version"], options["outside"], int(options["port"])
        self.found = {"attempts": outcomes(attempts(version, outside, port)), "needs": outcomes(needs(version))}

    def predict(self, inputs):
        return {"y": np.array([json.dumps(self.found).encode()], object)}
"""
)
CONFIG = """
platform: "python"
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_STRING dims: 1 }
"""


def write_thief(base: Path, own: Path, outside: Path, port: int, more: str) -> None:
    """``base/1`` with the code and the config of a thief that takes ``own`` for its version's directory."""
    directory = base / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(THIEF)
    parameters = {"version": str(own), "outside": str(outside), "port": str(port)}
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in parameters.items()]
    (directory / "config.pbtxt").write_text("\n".join([CONFIG, *lines, more]))


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("outside")
    (found / "secret").write_text("the secret")
    return found


@pytest.fixture(scope="module")
def server(archives, tmp_path_factory: pytest.TempPathFactory, outside: Path):
    root = tmp_path_factory.mktemp("models")
    victim = tmp_path_factory.mktemp("victim")
    (victim / "secret").write_text("a secret")
    archives.write_version(1, root / "program")
    archives.write_version(1, root / "threaded")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        asks = 'parameters { key: "worker_sandbox" value { string_value: "true" } }'
        write_thief(root / "thief", root / "thief" / "1", outside, port, asks)
        write_thief(root / "free", victim, victim, port, 'instance_group { count: 1 worker: "process" }')
        write_thief(root / "wrong", root, outside, port, asks + ' instance_group { count: 1 worker: "thread" }')
        (root / "program" / "1" / "config.pbtxt").write_text('instance_group { count: 1 worker: "process" }')
        names = ("program", "threaded", "thief", "free", "wrong")
        config = root / "models.config"
        entries = " ".join(f'config {{ name: "{name}" base_path: "{root}/{name}" }}' for name in names)
        config.write_text(f"model_config_list {{ {entries} }}")
        flags = (f"--model_config_file={config}", f"--trusted_model_base_paths={root}", "--max_num_load_retries=0")
        with ServerProcess(*flags) as server:
            yield server
    assert server.exit_code == 0


@pytest.fixture(scope="module")
def probe(server):
    with Probe(server) as probe:
        for name in ("program", "threaded", "thief", "free"):
            probe.wait_available(name, 1)
        yield probe


def loot(probe: Probe, name: str) -> dict[str, dict[str, str]]:
    answer = probe.client.predict(name, {"x": np.ones(1, np.float32)})
    found = json.loads(answer.outputs["y"][0])
    assert isinstance(found, dict)
    return found


def listed(server: ServerProcess) -> dict[str, dict]:
    status, body = server.get("/v1/models")
    assert status == 200
    return {model["name"]: model for model in json.loads(body)["models"]}


def test_python_model_that_asked_for_a_sandbox_steals_nothing(server, probe, outside) -> None:
    found = loot(probe, "thief")
    kept = {name: what for name, what in found["attempts"].items() if name != "signal the server"}
    assert kept == dict.fromkeys(kept, REFUSED)
    assert found["needs"] == dict.fromkeys(found["needs"], DONE)


def test_python_model_that_did_not_ask_has_the_rights_of_the_server(server, probe) -> None:
    assert loot(probe, "free")["attempts"]["connect"] == DONE


def test_exported_program_in_a_process_answers_from_a_sandbox(server, probe) -> None:
    assert probe.ask("program") == 1


def test_list_of_models_says_of_each_process_what_holds(server, probe) -> None:
    models = listed(server)
    for name in ("program", "thief"):
        (process,) = models[name]["process_status"]
        assert process["pid"] > 0
        assert (process["version"], process["instance"]) == ("1", 0)
        assert process["sandbox"] == {"holds": list(STATUS.holds), "lacks": list(STATUS.lacks)}
    assert models["free"]["process_status"][0]["sandbox"] is None
    assert "process_status" not in models["threaded"]


def test_metrics_say_what_holds(server, probe) -> None:
    page = server.get("/metrics")[1].decode()
    info = [line for line in page.splitlines() if line.startswith("tfs_lite_worker_info{")]
    holds = f'sandbox="{" ".join(STATUS.holds)}"'
    assert {
        name: any(f'model="{name}"' in line and holds in line for line in info) for name in ("program", "free")
    } == {"program": True, "free": False}


def test_model_that_asks_for_a_sandbox_in_a_thread_is_told_that_there_is_none(server, probe) -> None:
    (version,) = listed(server)["wrong"]["model_version_status"]
    assert "a model in the server's process has none" in version["status"]["error_message"]
