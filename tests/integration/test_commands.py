"""The commands against a live server, as a user chains them: publish, wait, status, predict, reload."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.servers.process import ServerProcess, default_command


def command(*words: str, exit_code: int = 0) -> dict:
    """Runs ``tfs-lite WORDS --json`` and returns what it printed."""
    done = subprocess.run(
        [*default_command(), *words, "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr
    found: dict = json.loads(done.stdout)
    return found


@pytest.fixture
def addresses(served):
    return f"127.0.0.1:{served.server.http_port}", served.server.target


def test_published_model_is_listed_and_answers(served, model, addresses):
    rest, grpc = addresses
    published = command("publish", str(served.archive(1)), "--base", str(served.base(model)))
    assert published["version"] == 1
    served.probe.wait_available(model, 1)
    (listed,) = command("status", model, "--server", rest)["models"]
    assert listed == {"name": model, "versions": [{"version": 1, "state": "AVAILABLE", "error": ""}], "reason": ""}
    answer = command("predict", model, "--input", "x=[[1, 2, 3]]", "--server", grpc)
    assert answer["version"] == 1
    assert answer["outputs"]["y"] == [[2.0, 3.0, 4.0]]


def test_next_publish_takes_the_next_number_and_replaces_the_answers(served, model, addresses):
    for version in (1, 2):
        published = command("publish", str(served.archive(version)), "--base", str(served.base(model)))
        assert published["version"] == version
        served.probe.wait_available(model, version)
    answer = command("predict", model, "--input", "x=[[0, 0, 0]]", "--output", "y", "--server", addresses[1])
    assert answer["outputs"] == {"y": [[2.0, 2.0, 2.0]]}
    error = command("publish", str(served.archive(2)), "--base", str(served.base(model)), "--version", "2", exit_code=1)
    assert error["error"]["code"] == "ALREADY_EXISTS"


def test_failures_have_exit_code_1_and_say_which_model(served, addresses):
    error = command("predict", "nobody", "--input", "x=[[1]]", "--server", addresses[1], exit_code=1)["error"]
    assert error["code"] == "NOT_FOUND"
    assert "nobody" in error["message"]
    assert command("status", "nobody", "--server", addresses[0], exit_code=1)["error"]["code"] == "NOT_FOUND"


def test_reload_replaces_the_config_of_a_running_server(archives, tmp_path):
    for version, name in ((1, "one"), (2, "two")):
        archives.write_version(version, tmp_path / name)

    def config(*names: str) -> str:
        entries = " ".join(f'config {{ name: "{name}" base_path: "{tmp_path}/{name}" }}' for name in names)
        path = tmp_path / f"{'_'.join(names)}.config"
        path.write_text(f"model_config_list {{ {entries} }}")
        return str(path)

    with ServerProcess(f"--model_config_file={config('one')}", "--version_quiet_period_seconds=0.1") as server:
        models = command("reload", config("one", "two"), "--server", server.target)["models"]
        assert {entry["name"] for entry in models} == {"one", "two"}
        answer = command("predict", "two", "--input", "x=[[0, 0, 0]]", "--server", server.target)
        assert answer["version"] == 2


def test_check_tells_what_would_be_served_without_a_server(served, model):
    directory = served.publish(model, 1)
    found = json.dumps(command("check", str(directory.parent)))
    assert "pytorch_export" in found
    error = command("check", str(served.path / "nothing_here"), exit_code=1)
    assert "nothing_here" in json.dumps(error)
