"""What is served follows the config file, the reload call and the model repository, without a restart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from google.protobuf import text_format

from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import ModelServerConfig


class ReloadFixture:
    """A server that rereads its config file every second, and three models to choose from."""

    def __init__(self, root: Path, config: Path) -> None:
        self.root, self.config = root, config
        self.server: ServerProcess
        self.probe: Probe

    def text(self, *names: str, more: str = "") -> str:
        entries = [f'config {{ name: "{name}" base_path: "{self.root}/{name}" {more} }}' for name in names]
        return f"model_config_list {{ {' '.join(entries)} }}"

    def write(self, text: str) -> None:
        """Replaces the file in one step, as a careful operator does."""
        fresh = self.config.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self.config)

    def reload(self, text: str) -> None:
        self.probe.client.reload(text_format.Parse(text, ModelServerConfig()))

    def unserved(self, name: str) -> bool:
        return "AVAILABLE" not in self.probe.states(name).values()


@pytest.fixture(scope="module")
def fixture(archives, tmp_path_factory):
    root = tmp_path_factory.mktemp("reload")
    for number, name in enumerate(("one", "two", "three"), start=1):
        for version in (number, number + 10):
            archives.write_version(version, root / name)
    fixture = ReloadFixture(root, root / "models.config")
    fixture.write(fixture.text("one"))
    flags = (f"--model_config_file={fixture.config}", "--model_config_file_poll_wait_seconds=1")
    allowed = f"--allowed_model_base_paths={root}"
    loading = (allowed, "--version_quiet_period_seconds=0.2", "--max_num_load_retries=0")
    with ServerProcess(*flags, *loading) as server, Probe(server) as probe:
        fixture.server, fixture.probe = server, probe
        yield fixture
    assert server.exit_code == 0


@pytest.fixture(autouse=True)
def only_one(fixture):
    """Each test starts with model ``one``. The file is left alone: each test that changes it waits for the effect, and
    no two leave the same text, which would be no change."""
    fixture.reload(fixture.text("one"))
    fixture.probe.wait_states("one", {11: "AVAILABLE"})
    wait_until(lambda: fixture.unserved("two") and fixture.unserved("three"), "only one is served")
    yield
    assert fixture.server.exit_code is None, fixture.server.log()


def test_changed_config_file_is_followed(fixture):
    fixture.write(fixture.text("one", "two"))
    fixture.probe.wait_available("two", 12)
    assert fixture.probe.ask("two") == 12
    fixture.write(fixture.text("two", "three"))
    fixture.probe.wait_available("three", 13)
    fixture.probe.wait_states("one", {11: "END"})
    assert fixture.probe.ask("two") == 12


def test_unreadable_config_file_changes_nothing_and_is_logged_with_its_place(fixture):
    fixture.write(fixture.text("one") + "\n  model_config_lost { }")
    wait_until(lambda: "models.config:2:3" in fixture.server.log(), "the log names line and column")
    assert fixture.probe.ask("one") == 11
    fixture.write(fixture.text("one", "two", "three"))
    fixture.probe.wait_available("two", 12)


def test_missing_config_file_changes_nothing(fixture):
    seen = fixture.server.log().count("models.config")
    fixture.config.unlink()
    wait_until(lambda: fixture.server.log().count("models.config") > seen, "the log tells of the missing file")
    assert fixture.probe.ask("one") == 11
    fixture.write(fixture.text("one", "three"))
    fixture.probe.wait_available("three", 13)


def test_reload_call_returns_when_the_new_model_serves(fixture):
    fixture.reload(fixture.text("one", "three"))
    assert fixture.probe.ask("three") == 13


def test_reload_leaves_unchanged_models_alone(fixture):
    before = fixture.server.get("/v1/models/one")[1]
    fixture.reload(fixture.text("one", "two"))
    fixture.reload(fixture.text("one"))
    assert fixture.server.get("/v1/models/one")[1] == before
    assert fixture.probe.ask("one") == 11


def test_reload_changes_the_version_policy(fixture):
    fixture.reload(fixture.text("one", more="model_version_policy { all {} }"))
    fixture.probe.wait_states("one", {1: "AVAILABLE", 11: "AVAILABLE"})
    assert fixture.probe.ask("one", version=1) == 1
    fixture.reload(fixture.text("one", more="model_version_policy { specific { versions: 1 } }"))
    fixture.probe.wait_states("one", {1: "AVAILABLE", 11: "END"})
    assert fixture.probe.ask("one") == 1


def test_labels_name_versions_and_move(fixture):
    policy = "model_version_policy { all {} }"
    fixture.reload(fixture.text("one", more=policy))
    fixture.probe.wait_states("one", {1: "AVAILABLE", 11: "AVAILABLE"})
    for version in (1, 11):
        fixture.reload(fixture.text("one", more=f'{policy} version_labels {{ key: "stable" value: {version} }}'))
        assert fixture.probe.ask("one", label="stable") == version


def test_refused_reload_changes_nothing(fixture):
    with pytest.raises(ServingError) as caught:
        fixture.reload(fixture.text("two", "two"))
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert "two multiple times" in str(caught.value)
    assert fixture.probe.ask("one") == 11
    assert fixture.unserved("two")


def test_model_outside_the_allowed_roots_is_refused_and_changes_nothing(fixture, archives, tmp_path):
    archives.write_version(1, tmp_path / "outside")
    entry = f'config {{ name: "outside" base_path: "{tmp_path}/outside" }}'
    with pytest.raises(ServingError, match="outside") as caught:
        fixture.reload(fixture.text("one", "two").replace("model_config_list {", f"model_config_list {{ {entry}"))
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert fixture.probe.ask("one") == 11
    assert fixture.unserved("two")


def test_reload_with_a_broken_model_says_which_and_the_others_serve(fixture):
    (fixture.root / "broken" / "1").mkdir(parents=True, exist_ok=True)
    (fixture.root / "broken" / "1" / "model.pt2").write_bytes(b"no archive")
    with pytest.raises(ServingError, match="broken"):
        fixture.reload(fixture.text("one", "broken", "two"))
    fixture.probe.wait_available("two", 12)
    assert fixture.probe.ask("one") == 11


def test_repository_serves_models_that_appear_and_drops_those_that_go(served, model):
    served.publish(model, 4)
    served.probe.wait_available(model, 4)
    assert served.probe.ask(model) == 4
    shutil.rmtree(served.base(model))
    served.probe.wait_states(model, {4: "END"})


def test_repository_takes_no_notice_of_files_and_hidden_directories(served, model, archives):
    (served.path / f"{model}.txt").write_text("not a model")
    archives.write_version(1, served.path / f".{model}")
    served.publish(model, 1)
    served.probe.wait_available(model, 1)
    assert served.probe.versions(f".{model}") == {}
    assert served.probe.versions(f"{model}.txt") == {}
