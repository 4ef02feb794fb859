"""One model without a path, one corrupt, one fine: the fine one serves at once, the others say what is wrong, and
repairing each makes it serve, without a restart."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.core.publish import publish


@pytest.fixture(scope="module")
def root(archives, tmp_path_factory):
    root = tmp_path_factory.mktemp("neighbours")
    archives.write_version(1, root / "fine")
    (root / "corrupt" / "1").mkdir(parents=True)
    (root / "corrupt" / "1" / "model.pt2").write_bytes(b"garbage" * 1000)
    (root / "empty").mkdir()
    return root


@pytest.fixture(scope="module")
def server(root):
    names = ("missing", "corrupt", "fine", "empty")
    config = root / "models.config"
    entries = " ".join(f'config {{ name: "{name}" base_path: "{root}/{name}" }}' for name in names)
    config.write_text(f"model_config_list {{ {entries} }}")
    flags = (f"--model_config_file={config}", "--max_num_load_retries=0", "--version_quiet_period_seconds=0.2")
    with ServerProcess(*flags) as server:
        yield server
    assert server.exit_code == 0


@pytest.fixture(scope="module")
def probe(server):
    with Probe(server) as probe:
        yield probe


def listed(server: ServerProcess, name: str) -> dict:
    status, body = server.get("/v1/models")
    assert status == 200
    return next(model for model in json.loads(body)["models"] if model["name"] == name)


def test_the_fine_model_serves_whatever_the_others_do(probe):
    assert probe.ask("fine") == 1


def test_the_missing_path_is_told_and_healed_by_making_it(server, probe, root, archives, tmp_path):
    reason = wait_until(lambda: listed(server, "missing").get("reason"), "the list says why")
    assert "base path" in reason
    assert listed(server, "missing")["model_version_status"] == []
    archives.write_version(1, root / "missing")
    probe.wait_available("missing", 1)
    assert probe.ask("missing") == 1
    wait_until(lambda: "reason" not in listed(server, "missing"), "the reason is gone")


def test_the_corrupt_model_is_told_and_healed_by_a_good_archive(server, probe, root, archives):
    (entry,) = wait_until(lambda: listed(server, "corrupt")["model_version_status"], "the list knows the version")
    assert entry["state"] in ("START", "END")
    assert entry["status"]["error_code"] != "OK"
    assert entry["status"]["error_message"]
    archives.write(1, root / "corrupt" / "1" / "model.pt2")
    probe.wait_states("corrupt", {1: "AVAILABLE"})
    assert probe.ask("corrupt") == 1


def test_the_empty_model_is_told_and_healed_by_a_version(server, probe, root, archives, tmp_path):
    assert wait_until(lambda: listed(server, "empty").get("reason"), "the list says why")
    publish(str(archives.write(5, tmp_path / "5.pt2")), str(root / "empty"), 5)
    probe.wait_available("empty", 5)
    assert probe.ask("empty") == 5


def test_a_base_path_that_vanishes_unloads_nothing_and_its_return_goes_on(server, probe, root, archives):
    archives.write_version(3, root / "fine")
    probe.wait_available("fine", 3)
    away = root / "fine-away"
    (root / "fine").rename(away)
    wait_until(lambda: listed(server, "fine").get("reason"), "the list says that the path is missing")
    assert probe.ask("fine") == 3
    assert probe.states("fine")[3] == "AVAILABLE"
    away.rename(root / "fine")
    archives.write_version(4, root / "fine")
    probe.wait_available("fine", 4)
    shutil.rmtree(root / "fine" / "4")
    probe.wait_states("fine", {3: "AVAILABLE", 4: "END"})
