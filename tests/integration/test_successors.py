"""A version that answers goes only when what takes its place answers: whatever made it unwanted, while its successor is
copied, and when that turns out to be bad. With the default flags of the product."""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.in_process import TIMEOUT, ServerFixture, entry
from tests.support.servers.models import TaggedArchives, write_python_version
from tests.support.servers.probe import Traffic
from tests.support.servers.process import wait_until
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import ServingError
from tfs_lite.server.server import Server

AVAILABLE, START, END = VersionState.AVAILABLE, VersionState.START, VersionState.END


class Models:
    """Writes versions below ``root``: good ones, half copied ones, and whole ones that no load can open."""

    def __init__(self, root: Path, archives: TaggedArchives) -> None:
        self.root, self._archives = root, archives

    def good(self, base: str, version: int) -> None:
        self._archives.write(version, self.root / "source.pt2")
        publish(str(self.root / "source.pt2"), str(self.root / base), version)

    def half(self, base: str, version: int) -> None:
        artefact = self.root / base / str(version) / "model.pt2"
        artefact.parent.mkdir(parents=True)
        whole = self._archives.write(version, self.root / "source.pt2").read_bytes()
        artefact.write_bytes(whole[: len(whole) // 2])

    def finish(self, base: str, version: int) -> None:
        """The rest, with a manifest: no time has to pass."""
        self.good("finished", version)
        shutil.copytree(self.root / "finished" / str(version), self.root / base / str(version), dirs_exist_ok=True)

    def corrupt(self, base: str, version: int) -> None:
        with zipfile.ZipFile(self.root / "corrupt.pt2", "w") as archive:
            archive.writestr("nothing/of/a/model", b"")
        publish(str(self.root / "corrupt.pt2"), str(self.root / base), version)


@pytest.fixture
def models(tmp_path: Path, archives: TaggedArchives) -> Models:
    return Models(tmp_path, archives)


@contextlib.contextmanager
def default_server(models: Models, **fields: object) -> Iterator[ServerFixture]:
    """With the defaults of every flag but these."""
    server = Server(**fields).start()  # type: ignore[arg-type]
    served = ServerFixture(server, models.root)
    try:
        server.wait_ready(TIMEOUT)
        yield served
    finally:
        served.client.close()
        server.stop()


@contextlib.contextmanager
def one_model(models: Models) -> Iterator[ServerFixture]:
    """A server of model ``m``, asked without a pause: no request fails."""
    with default_server(models, model_name="m", model_base_path=str(models.root / "m")) as served:
        served.wait_states({1: AVAILABLE})
        with Traffic(served.target, "m", threads=1) as traffic:
            wait_until(lambda: traffic.total, "one is answered before anything changes", TIMEOUT)
            yield served
            asked = traffic.total
            wait_until(lambda: traffic.failures or traffic.total > asked, "one is answered at the end", TIMEOUT)
        assert traffic.failures == []
        assert traffic.wrong == []


SPECIFIC_2 = "model_version_policy { specific { versions: 2 } }"


def wait_half(served: ServerFixture) -> None:
    """Version 2 is half there; version 1 answers, and says so."""
    wait_reason(served, 2, "")
    assert served.states() == {1: AVAILABLE, 2: START}
    wait_reason(served, 1, "it stays until version 2 is available")


def wait_reason(served: ServerFixture, version: int, words: str) -> None:
    def said() -> bool:
        found = served.status().get(version)
        return found is not None and words in found.status.message

    wait_until(said, f"the status of version {version} says {words!r}", TIMEOUT)


def test_version_stays_while_the_only_one_that_is_wanted_is_half_there(models: Models) -> None:
    models.good("m", 1)
    with one_model(models) as served:
        models.half("m", 2)
        served.reload(entry("m", SPECIFIC_2))
        wait_half(served)
        wait_reason(served, 1, "truncated")
        models.finish("m", 2)
        served.wait_states({1: END, 2: AVAILABLE})


def test_version_stays_while_its_directory_is_gone_and_the_next_one_arrives(models: Models) -> None:
    models.good("m", 1)
    with one_model(models) as served:
        models.half("m", 2)
        shutil.rmtree(models.root / "m" / "1")
        wait_half(served)
        models.finish("m", 2)
        served.wait_states({1: END, 2: AVAILABLE})


def test_version_stays_when_the_base_path_moves_to_one_that_is_being_filled(models: Models) -> None:
    models.good("m", 1)
    (models.root / "other").mkdir()
    with one_model(models) as served:
        served.reload(entry("m", path="ROOT/other"))
        wait_until(lambda: "another directory" in served.problem(), "it says why nothing happens", TIMEOUT)
        models.half("other", 2)
        wait_half(served)
        models.finish("other", 2)
        served.wait_states({1: END, 2: AVAILABLE})


def test_version_stays_when_the_link_of_the_base_path_is_switched_to_one_that_is_being_filled(models: Models) -> None:
    models.good("first", 1)
    models.half("second", 2)
    os.symlink("first", models.root / "m")
    with one_model(models) as served:
        os.symlink("second", models.root / "link")
        os.replace(models.root / "link", models.root / "m")
        wait_half(served)
        models.finish("second", 2)
        served.wait_states({1: END, 2: AVAILABLE})


def test_emptied_base_path_is_an_order_and_another_empty_directory_is_none(models: Models) -> None:
    models.good("m", 1)
    models.good("n", 1)
    config = models.root / "config"
    config.write_text(f"model_config_list {{ {entry('m')} {entry('n')} }}".replace("ROOT", str(models.root)))
    with default_server(models, model_config_file=str(config)) as served:
        shutil.rmtree(models.root / "m" / "1")
        os.rename(models.root / "n", models.root / "away")
        (models.root / "n").mkdir()
        served.wait_states({1: END}, "m")
        assert served.states("n") == {1: AVAILABLE}
        assert "another directory" in served.problem("n")


def test_version_that_is_removed_and_copied_anew_does_not_stop_answering(models: Models) -> None:
    models.good("m", 1)
    with one_model(models) as served:
        for _ in range(3):
            shutil.rmtree(models.root / "m" / "1")
            wait_until(lambda: 1 not in served.server.core.sources.found("m").versions, "it is seen gone", TIMEOUT)
            models.good("m", 1)
            wait_until(lambda: 1 in served.server.core.sources.found("m").versions, "it is seen again", TIMEOUT)
        assert served.version() == 1


def test_older_version_serves_after_a_restart_when_the_newest_is_corrupt(models: Models) -> None:
    models.good("m", 1)
    models.good("m", 2)
    models.corrupt("m", 3)
    with default_server(models, model_name="m", model_base_path=str(models.root / "m")) as served:
        assert served.version() == 2  # as soon as the server is ready
        assert served.states() == {2: AVAILABLE, 3: END}
        assert "stands in for version 3" in served.status()[2].status.message
        shutil.rmtree(models.root / "m" / "3")
        models.good("m", 3)
        served.wait_states({2: END, 3: AVAILABLE})
        assert served.version() == 3


def test_older_version_serves_after_a_restart_while_the_newest_is_tried_again(models: Models) -> None:
    models.good("m", 1)
    source = write_python_version(models.root / "source", 2, "raise RuntimeError('not today')")
    publish(str(source), str(models.root / "m"), 2)
    fields = {"trusted_model_base_paths": (str(models.root / "m"),)}
    with default_server(models, model_name="m", model_base_path=str(models.root / "m"), **fields) as served:
        assert served.version() == 1  # as soon as the server is ready
        assert served.states() == {1: AVAILABLE, 2: VersionState.LOADING}
        assert "stands in for version 2" in served.status()[1].status.message


def test_corrupt_version_unloads_none_of_the_two_that_are_wanted(models: Models) -> None:
    models.good("m", 1)
    models.good("m", 2)
    config = models.root / "config"
    two = "model_version_policy { latest { num_versions: 2 } }"
    config.write_text(f"model_config_list {{ {entry('m', two)} }}".replace("ROOT", str(models.root)))
    with default_server(models, model_config_file=str(config)) as served:
        served.wait_states({1: AVAILABLE, 2: AVAILABLE})
        models.corrupt("m", 3)
        served.wait_states({1: AVAILABLE, 2: AVAILABLE, 3: END})
        wait_reason(served, 1, "stands in for version 3")
        unloaded = [e for e in served.server.core.history.of_model("m") if e.kind.value == "UNLOAD_BEGUN"]
        assert unloaded == []


def test_base_paths_without_versions_are_refused_where_versions_are_always_present(models: Models) -> None:
    (models.root / "m").mkdir()
    fields = {"model_name": "m", "model_base_path": str(models.root / "m"), "servable_versions_always_present": True}
    with pytest.raises(ServingError, match="model m: its base path holds no version"), default_server(models, **fields):
        pass
    models.good("m", 1)
    with default_server(models, **fields) as served:
        with pytest.raises(ServingError, match="model n: its base path holds no version"):
            served.reload(entry("m"), entry("n"))
        shutil.rmtree(models.root / "m" / "1")
        wait_until(lambda: "holds no version" in served.problem(), "it is seen gone", TIMEOUT)
        assert served.server.core.states.source_report("m").keeps.endswith("--servable_versions_always_present is set")
        assert served.version() == 1


def test_repository_that_is_lost_and_one_whose_models_are_replaced_go_on_serving(models: Models) -> None:
    models.good("models/m", 1)
    (models.root / "models" / "m" / "config.pbtxt").write_text("version_policy { specific { versions: 1 } }")
    with default_server(models, model_repository=str(models.root / "models")) as served:
        served.wait_states({1: AVAILABLE})
        with Traffic(served.target, "m", threads=1) as traffic:
            os.rename(models.root / "models" / "m", models.root / "m")
            wait_until(lambda: "does not exist" in served.problem(), "it is seen gone", TIMEOUT)
            os.rename(models.root / "m", models.root / "models" / "m")
            wait_until(lambda: not served.problem(), "it is seen again", TIMEOUT)
            os.rename(models.root / "models", models.root / "away")
            (models.root / "models").mkdir()
            core = served.server.core
            wait_until(lambda: core.refusals.config is not None, "it says why nothing happens", TIMEOUT)
            assert "has become another directory" in core.refusals.config.config.status.message
            os.rmdir(models.root / "models")
            os.rename(models.root / "away", models.root / "models")
            wait_until(lambda: core.refusals.config is None, "it is fine again", TIMEOUT)
            models.good("models/m", 2)
            assert served.states() == {1: AVAILABLE}
        assert traffic.failures == []


def test_label_that_moves_with_the_policy_to_a_version_that_is_half_there_goes_on_answering(models: Models) -> None:
    def labelled(version: int) -> str:
        policy = f"model_version_policy {{ specific {{ versions: {version} }} }}"
        return entry("m", f'{policy} version_labels {{ key: "stable" value: {version} }}')

    models.good("m", 1)
    config = models.root / "config"
    config.write_text(f"model_config_list {{ {labelled(1)} }}".replace("ROOT", str(models.root)))
    fields = {"model_config_file": str(config), "allow_version_labels_for_unavailable_models": True}
    with default_server(models, **fields) as served:
        models.half("m", 2)
        with pytest.raises(ServingError, match='label "stable" to version 2'):
            served.reload(labelled(2))
        assert served.version(label="stable") == 1


@pytest.mark.parametrize("policy", ["availability", "resource"])
def test_policy_in_the_config_of_a_model_of_the_repository_moves_to_a_version_that_is_half_there(
    models: Models, policy: str
) -> None:
    models.good("m", 1)
    (models.root / "m" / "config.pbtxt").write_text("version_policy { specific { versions: 1 } }")
    repository = models.root
    with default_server(models, model_repository=str(repository), aspired_version_policy=policy) as served:
        served.wait_states({1: AVAILABLE})
        models.half("m", 2)
        (models.root / "m" / "config.pbtxt").write_text("version_policy { specific { versions: 2 } }")
        wait_half(served)
        models.finish("m", 2)
        served.wait_states({1: END, 2: AVAILABLE})


def test_version_that_a_config_file_moves_away_from_stays_while_the_next_one_is_copied(models: Models) -> None:
    models.good("m", 1)
    models.half("n", 2)
    config = models.root / "config"

    def write(base: str) -> None:
        text = f"model_config_list {{ {entry('m', path=f'ROOT/{base}')} }}".replace("ROOT", str(models.root))
        (models.root / "config.new").write_text(text)
        os.replace(models.root / "config.new", config)

    write("m")
    fields = {"model_config_file": str(config), "model_config_file_poll_wait_seconds": 0.2}
    with default_server(models, **fields) as served:
        served.wait_states({1: AVAILABLE})
        write("n")
        wait_half(served)
        shutil.rmtree(models.root / "m")
        models.finish("n", 2)
        served.wait_states({1: END, 2: AVAILABLE})
