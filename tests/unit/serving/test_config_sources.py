from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tfs_lite.config.model_server import All, Latest, ModelServerConfig, Specific
from tfs_lite.config.text import QUIET_SECONDS, REMOVAL_SECONDS, read_model_server_config
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.status import Status, StatusCode, invalid_argument
from tfs_lite.serving.config_sources import ConfigFileWatcher, RefusedConfig, RepositoryPolicies, RepositoryWatcher
from tfs_lite.serving.options import ServerOptions
from tfs_lite.testing.lifecycle.clock import VirtualClock

ONE = 'model_config_list { config { name: "one" base_path: "/models/one" } }'
TWO = 'model_config_list { config { name: "two" base_path: "/models/two" } }'


class Target:
    """Takes configs, and refuses them on demand."""

    def __init__(self) -> None:
        self.applied: list[list[str]] = []
        self.configs: list[ModelServerConfig] = []
        self.refuse = ""
        self.unreadable = 0
        self.refused: list[RefusedConfig | None] = []
        self.changed = threading.Condition()

    def apply(self, config: ModelServerConfig) -> None:
        with self.changed:
            self.applied.append([model.name for model in config.models])
            self.configs.append(config)
            self.changed.notify_all()
        if self.refuse:
            raise invalid_argument(self.refuse)

    def on_unreadable(self, status: Status) -> None:
        self.unreadable += 1

    def on_looked(self, refused: RefusedConfig | None) -> None:
        with self.changed:
            self.refused.append(refused)
            self.changed.notify_all()

    def wait_for_refusal(self, message: str | None) -> None:
        """That the last look told so; None: that nothing stands in the way."""
        with self.changed:
            told = self.changed.wait_for(lambda: self.refused and message == _message(self.refused[-1]), 20)
            assert told, self.refused[-3:]

    def wait_for(self, names: list[str]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: names in self.applied, 20), self.applied

    def wait_for_count(self, names: list[str], count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.applied.count(names) >= count, 20), self.applied

    def wait_for_config(self, wanted: Callable[[ModelServerConfig], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: any(map(wanted, self.configs)), 20), self.configs


def _message(refused: RefusedConfig | None) -> str | None:
    return refused.status.message if refused is not None else None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.config"
    path.write_text(ONE)
    return path


@pytest.fixture
def target() -> Target:
    return Target()


class Watched:
    """A watcher whose looks are the test's, ``REMOVAL_SECONDS`` after one another unless it says something else."""

    def __init__(self, file: Path, target: Target) -> None:
        applied = read_model_server_config(str(file), file.parent)
        self.clock = VirtualClock()
        self.watcher = ConfigFileWatcher(
            str(file), file.parent, 3600.0, applied, target.apply, self.clock, target.on_unreadable, target.on_looked
        )

    def poll(self, later: float = REMOVAL_SECONDS) -> None:
        """The first look sees a change, the second one comes when it counts."""
        self.watcher.poll()
        self.look(later)

    def look(self, later: float) -> None:
        self.clock.advance(later)
        self.watcher.poll()


@pytest.fixture
def watcher(file: Path, target: Target) -> Watched:
    return Watched(file, target)


@contextmanager
def watching(file: Path, target: Target, seconds: float) -> Iterator[ConfigFileWatcher]:
    """By the system's clock."""
    applied = read_model_server_config(str(file), file.parent)
    with closing(SystemClock()) as clock:
        watcher = ConfigFileWatcher(str(file), file.parent, seconds, applied, target.apply, clock)
        with closing(watcher):
            watcher.start()
            yield watcher


def test_only_a_changed_file_is_applied_and_only_once(file: Path, target: Target, watcher: Watched) -> None:
    watcher.poll()
    file.write_text("# a comment changes nothing\n" + ONE)
    watcher.poll()
    assert target.applied == []
    file.write_text(TWO)
    watcher.poll()
    watcher.poll()
    assert target.applied == [["two"]]


def model(name: str) -> str:
    return f"  - {{name: {name}, base_path: /models/{name}}}\n"


def test_file_that_is_written_in_place_counts_when_it_is_whole(tmp_path: Path, target: Target) -> None:
    """Its writer empties it, and writes one model after the other, with breaks in between."""
    file, head = tmp_path / "models.yaml", "model_config_list:\n config:\n"
    names = ["a", "b", "c", "d"]
    file.write_text(head + "".join(map(model, names)))
    watcher = Watched(file, target)
    watcher.poll()
    with file.open("w", buffering=1) as writer:
        for text in ("# written anew\n", head, *map(model, names)):
            writer.write(text)
            watcher.poll(0.9 * REMOVAL_SECONDS / 2)
    assert target.applied == []
    watcher.poll()
    assert target.applied == []
    with file.open("a") as writer:
        writer.write(model("e"))
    watcher.poll(QUIET_SECONDS / 2)
    assert target.applied == []
    watcher.look(QUIET_SECONDS)
    assert target.applied == [[*names, "e"]]


def test_model_that_is_left_out_goes_once_the_file_has_not_changed_for_longer(
    file: Path, target: Target, watcher: Watched
) -> None:
    watcher.poll()
    longer = f"# {'much ' * 100}longer\n{TWO}"
    file.write_text(longer)
    watcher.poll(REMOVAL_SECONDS * 0.9)
    assert target.applied == []
    file.write_text(longer + " ")
    watcher.poll(REMOVAL_SECONDS * 0.9)
    assert target.applied == []
    watcher.look(REMOVAL_SECONDS * 0.1)
    assert target.applied == [["two"]]


def test_looks_in_between_come_by_themselves(file: Path, target: Target) -> None:
    """However rare the polls are."""
    with watching(file, target, 3600.0) as watcher:
        file.write_text(TWO)
        watcher._thread.wake()
        target.wait_for(["two"])


def test_file_that_was_not_applied_is_tried_again_and_logged_once(
    file: Path, target: Target, watcher: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    target.refuse = "no"
    file.write_text(TWO)
    watcher.poll()
    for _ in range(2):
        watcher.look(1)
    assert target.applied == [["two"]] * 3
    assert len(caplog.records) == 1
    target.refuse = ""
    watcher.look(1)
    watcher.look(1)
    assert target.applied == [["two"]] * 4


def test_file_that_goes_back_after_a_failure_is_applied(file: Path, target: Target, watcher: Watched) -> None:
    target.refuse = "no"
    file.write_text(TWO)
    watcher.poll()
    target.refuse = ""
    file.write_text(ONE)
    watcher.poll()
    assert target.applied == [["two"], ["one"]]


@pytest.mark.parametrize("text", [None, "model_config_list { config { nome: 1 } }"])
def test_broken_or_missing_file_leaves_everything_as_it_is(
    file: Path, target: Target, watcher: Watched, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file.unlink()
    if text is not None:
        file.write_text(text)
    watcher.watcher.poll()
    for _ in range(3):
        watcher.look(1)
    assert target.applied == []
    assert target.unreadable == 3
    assert len(caplog.records) == 1
    file.write_text(ONE)
    watcher.poll()
    assert target.applied == []


@pytest.mark.timeout(60)
def test_pipe_in_the_place_of_the_file_is_an_error_at_once_and_the_file_after_it_is_read(
    file: Path, target: Target, watcher: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    file.unlink()
    os.mkfifo(file)
    watcher.poll()
    assert target.unreadable == 1
    assert "cannot be read: it is no plain file" in caplog.text
    file.unlink()
    file.write_text(TWO)
    watcher.poll()
    assert target.applied == [["two"]]


def test_file_is_watched_on_a_thread_of_its_own(file: Path, target: Target) -> None:
    with watching(file, target, 0.02):
        file.write_text(TWO)
        target.wait_for(["two"])


def test_file_that_is_read_by_call_counts_at_once_and_again_when_it_goes_back(
    file: Path, target: Target, watcher: Watched
) -> None:
    """The next poll knows of it: what the file said before the call is a change."""
    file.write_text(TWO)
    watcher.watcher.look()
    watcher.watcher.look()
    assert target.applied == [["two"]] * 2, "a call may have applied another config since"
    file.write_text(ONE)
    watcher.poll()
    assert target.applied == [["two"]] * 2 + [["one"]]


def test_file_that_a_call_finds_refused_is_told_until_a_right_one_is_read(
    file: Path, target: Target, watcher: Watched
) -> None:
    file.write_text("no config")
    refused = refusal(watcher.watcher.look)
    assert str(file) in str(refused)
    assert target.refused[-1] is not None
    assert target.refused[-1].status.message == str(refused).replace(str(file), file.name)
    assert target.unreadable == 1
    file.write_text(TWO)
    target.refuse = "no"
    refusal(watcher.watcher.look)
    assert target.refused[-1] is not None
    assert target.refused[-1].named("two") is not None
    target.refuse = ""
    watcher.watcher.look()
    assert target.refused[-1] is None


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    for name in ("a", "b"):
        (path / name / "1").mkdir(parents=True)
    return path


@pytest.fixture
def look(repository: Path, target: Target) -> Iterator[RepositoryWatcher]:
    """Watches the repository for the target; it refuses a model by the name of forbidden."""
    options = ServerOptions(model_repository=str(repository), file_system_poll_wait_seconds=0.02)

    def check(config: ModelServerConfig) -> None:
        if any(model.name == "forbidden" for model in config.models):
            raise invalid_argument("forbidden")

    with closing(SystemClock()) as clock:
        watcher = RepositoryWatcher(options, clock, check, target.apply, on_looked=target.on_looked)
        with closing(watcher):
            yield watcher


def test_models_of_the_repository_come_and_go(repository: Path, look: RepositoryWatcher, target: Target) -> None:
    found = [(model.name, model.base_path) for model in look.first_look().models]
    assert found == [(name, str(repository / name)) for name in ("a", "b")]
    assert target.applied == []
    look.start()
    (repository / "c" / "1").mkdir(parents=True)
    target.wait_for(["a", "b", "c"])
    shutil.rmtree(repository / "a")
    target.wait_for(["b", "c"])


def test_models_that_are_known_are_not_listed_again(
    repository: Path, look: RepositoryWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "a" / "config.pbtxt").write_text("version_policy { all { } }")
    look.first_look()
    listed: list[str] = []
    scandir = os.scandir

    def counting(path: str) -> Iterator[os.DirEntry[str]]:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    look.look()
    assert listed == [str(repository)]


@pytest.mark.parametrize("name", ["forbidden", "with:colon"])
def test_model_that_cannot_be_served_does_not_hide_the_others(
    repository: Path, look: RepositoryWatcher, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (repository / name / "1").mkdir(parents=True)
    assert [model.name for model in look.first_look().models] == ["a", "b"]
    assert f"model {name!r} of the repository is not served" in caplog.text


def test_failed_reload_does_not_end_the_watching(repository: Path, look: RepositoryWatcher, target: Target) -> None:
    target.refuse = "no"
    look.first_look()
    look.start()
    for names in (["a", "b", "c"], ["a", "b", "c", "d"]):
        (repository / names[-1] / "1").mkdir(parents=True)
        target.wait_for(names)


def test_repository_that_is_refused_as_a_whole_is_tried_again_and_told_until_it_is_in_force(
    repository: Path, look: RepositoryWatcher, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    look.first_look()
    target.refuse = "no"
    (repository / "c" / "1").mkdir(parents=True)
    look.start()
    target.wait_for_refusal("no")
    refused = target.refused[-1]
    assert refused is not None
    assert refused.is_repository
    assert refused.named("c") is not None
    target.wait_for_count(["a", "b", "c"], 2)
    assert caplog.text.count("the models of the repository were refused") == 1
    target.refuse = ""
    target.wait_for_refusal(None)


def test_repository_that_cannot_be_read_is_told_until_it_can(
    repository: Path, look: RepositoryWatcher, target: Target
) -> None:
    look.first_look()
    look.start()
    repository.rename(repository.with_name("away"))
    target.wait_for_refusal("the model repository does not exist")
    repository.with_name("away").rename(repository)
    target.wait_for_refusal(None)
    assert target.applied == []


def policies(config: ModelServerConfig) -> dict[str, object]:
    return {model.name: model.model_version_policy.choice for model in config.models}


def test_version_policy_in_the_config_of_a_model_is_followed(
    repository: Path, look: RepositoryWatcher, target: Target
) -> None:
    file = repository / "a" / "config.pbtxt"
    file.write_text("version_policy { all { } }")
    assert policies(look.first_look()) == {"a": All(), "b": Latest()}
    look.start()
    file.write_text("version_policy { specific { versions: [ 1, 3 ] } }")
    target.wait_for_config(lambda config: policies(config)["a"] == Specific(versions=(1, 3)))
    file.write_text("version_policy { latest { num_versions: 2 } } max_batch_size: 8")
    target.wait_for_config(lambda config: policies(config)["a"] == Latest(num_versions=2))


def test_wrong_config_leaves_the_version_policy_as_it_was(
    repository: Path, look: RepositoryWatcher, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    file = repository / "a" / "config.pbtxt"
    file.write_text("version_policy { all { } }")
    look.first_look()
    look.start()
    file.write_text("version_policy { none { } }")
    wait_until(lambda: "its version policy stays as it is" in caplog.text, "the mistake was seen", 30)
    (repository / "c" / "1").mkdir(parents=True)
    target.wait_for_config(lambda config: "c" in policies(config))
    assert policies(target.configs[-1])["a"] == All()
    assert caplog.text.count("its version policy stays as it is") == 1


def test_no_version_is_wanted_of_a_model_whose_config_is_wrong_at_the_start_until_it_is_right(
    repository: Path, look: RepositoryWatcher, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    file = repository / "a" / "config.pbtxt"
    file.write_text("version_policy { specific { versions: 1 } } max_batch_sice: 8")
    assert policies(look.first_look()) == {"a": Specific(versions=()), "b": Latest()}
    assert "model a: no version is wanted, for its config is wrong: config.pbtxt:1:45" in caplog.text
    look.start()
    file.write_text("version_policy { specific { versions: 1 } } max_batch_size: 8")
    target.wait_for_config(lambda config: policies(config)["a"] == Specific(versions=(1,)))
    assert all(policies(config)["a"] != Latest() for config in target.configs)


@pytest.mark.timeout(60)
def test_pipe_in_the_place_of_a_models_config_holds_up_nothing_and_the_file_after_it_is_read(
    repository: Path, look: RepositoryWatcher, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    file = repository / "a" / "config.pbtxt"
    os.mkfifo(file)
    assert policies(look.first_look())["a"] == Specific(versions=())
    assert "it is no plain file" in caplog.text
    look.start()
    file.unlink()
    file.write_text("version_policy { all { } }")
    target.wait_for_config(lambda config: policies(config)["a"] == All())


def test_config_that_is_being_written_is_read_when_it_has_not_changed_for_a_while(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = repository / "a" / "config.pbtxt"
    clock = VirtualClock()
    known = RepositoryPolicies(clock)

    def look(later: float = 0.0) -> object:
        clock.advance(later)
        known.look("a", str(repository / "a"))
        return known.of({"a": str(repository / "a")})["a"].choice

    file.write_text("version_policy { all { } }")
    assert look() == All()
    file.write_text("")
    assert [look(), look()] == [All()] * 2
    file.write_text("version_policy { none { } }")
    assert [look(1), look(), look(1), look(1)] == [All()] * 4
    assert caplog.text.count("its version policy stays as it is") == 1
    assert "none" in known.wrong["a"].message
    file.write_text("version_policy { specific { versions: 2 } }")
    assert [look(), look(QUIET_SECONDS)] == [All(), Specific(versions=(2,))]
    assert known.wrong == {}


def test_repository_that_is_not_there_is_refused(repository: Path, look: RepositoryWatcher) -> None:
    shutil.rmtree(repository)
    assert "--model_repository" in refusal(look.first_look, code=StatusCode.FAILED_PRECONDITION)
