"""Directories and files whose names are no UTF-8 text lie in a repository: all that does not concern them works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.models import TaggedArchives
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, default_command, wait_until

NO_TEXT = os.fsdecode(b"bad\xff")


@pytest.fixture(scope="module")
def server(archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    version = archives.write_version(1, root / "good")
    shutil.copytree(version, root / NO_TEXT / "1")
    shutil.copytree(version, root / "good" / os.fsdecode(b"2\xff"))
    (version / os.fsdecode(b"notes\xfe.txt")).write_text("a file beside the model")
    (root / "lost" / "1").mkdir(parents=True)
    (root / "lost" / "1" / os.fsdecode(b"caf\xe9.onnx")).write_bytes(b"x")
    with ServerProcess(f"--model_repository={root}", "--max_num_load_retries=0") as found, Probe(found) as probe:
        wait_until(lambda: probe.states("lost") == {1: "END"}, "what is no model is refused")
        wait_until(lambda: probe.states("good") == {1: "AVAILABLE"}, "the model is available")
        yield found
    assert found.exit_code == 0


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/events", "/v1/models:explain", "/v1/models/lost"])
def test_every_page_answers(server: ServerProcess, path: str) -> None:
    code, body = server.get(path)
    assert code == 200
    body.decode()


def test_the_index_lists_the_models_that_are_there(server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{server.http_port}/v2/repository/index"
    with urllib.request.urlopen(urllib.request.Request(url, b"{}", {"Content-Type": "application/json"})) as answer:
        found = {entry["name"]: entry.get("reason", "") for entry in json.load(answer)}
    assert found.keys() == {"good", "lost"}
    assert "caf\\xe9.onnx" in found["lost"]


def test_the_status_over_grpc_says_which_file_it_is(server: ServerProcess) -> None:
    with Probe(server) as probe:
        assert probe.ask("good") == 1
        assert "caf\\xe9.onnx" in probe.versions("lost")[1].status.message


@pytest.mark.parametrize("command", ["status", "explain", "events"])
def test_commands_print_what_there_is(server: ServerProcess, command: str) -> None:
    (program,) = default_command()
    address = f"--server=127.0.0.1:{server.http_port}"
    done = subprocess.run([program, command, address], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.returncode == (1 if command == "explain" else 0)  # one model does not serve
    assert "good" in done.stdout


def test_the_name_is_said_once_in_the_log_and_in_explain(server: ServerProcess) -> None:
    said = r'"bad\xff" in the model repository is no model: the name of its directory is no UTF-8 text; rename it'
    assert server.log().count(said) == 1
    found = json.loads(server.get("/v1/models:explain")[1])["models"]
    (model,) = [model for model in found if model["model"] == r"bad\xff"]
    assert model["verdict"] == "NOT_CONFIGURED"
    assert "the name of its directory is no UTF-8 text" in model["sentence"]


def test_publish_and_check_take_a_base_path_of_such_a_name(server: ServerProcess, tmp_path: Path) -> None:
    (program,) = default_command()
    (tmp_path / "model.pt2").write_bytes(b"no model")
    base = tmp_path / NO_TEXT
    done = subprocess.run([program, "publish", tmp_path / "model.pt2", "--base", base], capture_output=True, timeout=60)
    assert done.returncode == 0
    assert (base / "1" / "model.pt2").exists()
    done = subprocess.run([program, "check", base], capture_output=True, timeout=60)
    assert rb"bad\xff" in done.stderr
    assert b"no UTF-8 text" in done.stderr
