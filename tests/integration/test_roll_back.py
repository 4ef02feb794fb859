"""Every way back that docs/roll-back.md has, on a server where version 8 is bad and version 7 is on disk."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.support.servers.in_process import ROW, ServerFixture, config_text, entry, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tfs_lite.cli.main import main
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState

OLD, BAD, NEXT = 7, 8, 9
SPECIFIC = "version_policy { specific { versions: 7 } }"
POLICY = f"model_{SPECIFIC}"


@pytest.fixture
def base(tmp_path: Path, archives: TaggedArchives) -> Path:
    """The base path of the model ``ranker`` with both versions, in a repository of its own."""
    for version in (OLD, BAD):
        archives.write_version(version, tmp_path / "ranker")
    return tmp_path / "ranker"


@contextmanager
def configured(base: Path, rest: str = "") -> Iterator[ServerFixture]:
    """A server with a config file of this model."""
    file = base.parent / "models.config"
    file.write_text(config_text(base.parent, entry("ranker", rest)))
    with serving(base.parent, model_config_file=str(file)) as served:
        yield served


def wait_answers(served: ServerFixture, version: int, **how: str) -> None:
    wait_until(lambda: served.version("ranker", **how) == version, f"version {version} answers")


def test_the_label_moves_to_a_version_that_one_config_also_loads(base: Path) -> None:
    label = 'version_labels { key: "stable" value: %d }'
    with configured(base, label % BAD) as served:
        wait_answers(served, BAD, label="stable")
        both = f"model_version_policy {{ specific {{ versions: [{OLD}, {BAD}] }} }}"
        served.reload(entry("ranker", both + label % OLD))
        assert served.version("ranker", label="stable") == OLD


def test_the_config_file_names_the_version(base: Path, archives: TaggedArchives) -> None:
    with configured(base) as served:
        wait_answers(served, BAD)
        served.reload(entry("ranker", POLICY))
        wait_answers(served, OLD)
        archives.write_version(NEXT, base)
        explained = httpx.get(f"{served.url}/v1/models/ranker/versions/{NEXT}:explain").json()
        assert explained["verdict"] == "NOT_WANTED"
        served.reload(entry("ranker"))
        wait_answers(served, NEXT)


def test_the_config_beside_the_versions_names_the_version(base: Path) -> None:
    with serving(base.parent, model_repository=str(base.parent)) as served:
        assert served.version("ranker") == BAD
        (base / "config.pbtxt").write_text(SPECIFIC)
        wait_answers(served, OLD)


def test_a_load_call_follows_the_config_beside_the_versions(base: Path) -> None:
    how = {"model_control_mode": "explicit", "load_model": ("ranker",)}
    with serving(base.parent, model_repository=str(base.parent), **how) as served:
        assert served.version("ranker") == BAD
        (base / "config.pbtxt").write_text(SPECIFIC)
        loaded = httpx.post(f"{served.url}/v2/repository/models/ranker/load", timeout=30)
        assert loaded.status_code == 200, loaded.text
        assert served.version("ranker") == OLD


def by_publishing(base: Path) -> int:
    return publish(str(base / str(OLD)), str(base)).version


def by_taking_away(base: Path) -> int:
    shutil.move(base / str(BAD), base.parent.parent / "ranker-8")
    return OLD


@pytest.mark.parametrize("way", [by_publishing, by_taking_away])
def test_files_alone_bring_the_old_version_back(base: Path, way: Callable[[Path], int]) -> None:
    with serving(base.parent, model_name="ranker", model_base_path=str(base)) as served:
        assert served.version("ranker") == BAD
        answers = way(base)
        wait_until(lambda: served.predict("ranker").version == answers, f"version {answers} answers")
        np.testing.assert_array_equal(served.predict("ranker").outputs["y"], ROW + np.float32(OLD))


SITUATIONS = {
    "latest_1": "",
    "latest_2": "model_version_policy { latest { num_versions: 2 } }",
    "label": f'version_labels {{ key: "stable" value: {BAD} }}',
}


def roll_back(served: ServerFixture, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What ``tfs-lite rollback`` prints where it succeeds."""
    code = main(["rollback", *words, f"--server={served.target}"])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    return said.out


def test_one_command_goes_back_whatever_the_policy_and_a_restart_does_not_undo_it(
    tmp_path: Path, archives: TaggedArchives, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest version of the model with ``latest 2`` is corrupt; clients of ``label`` ask for one."""
    for name in SITUATIONS:
        for version in (OLD, BAD):
            archives.write_version(version, tmp_path / name)
    with zipfile.ZipFile(tmp_path / "latest_2" / str(BAD) / "model.pt2", "w") as archive:
        archive.writestr("weights", b"not those")
    file = tmp_path / "models.config"
    file.write_text(config_text(tmp_path, *(entry(name, rest) for name, rest in SITUATIONS.items())))
    how = {"model_config_file": str(file), "state_directory": str(tmp_path / "state"), "max_num_load_retries": 0}
    with serving(tmp_path, ready=False, **how) as served:
        served.wait_states({OLD: VersionState.AVAILABLE, BAD: VersionState.END}, "latest_2")
        for name in ("latest_1", "label"):
            served.wait_states({BAD: VersionState.AVAILABLE}, name)
            assert served.version(name) == BAD
        for name in SITUATIONS:
            said = roll_back(served, capsys, name)
            assert said.startswith(f"model {name}: version {OLD} answers now, after ")
            assert f"; version {BAD} must not, until the next push or tfs-lite rollback {name} --undo" in said
            assert "no --state_directory" not in said
            assert served.version(name) == OLD
        assert served.version("label", label="stable") == OLD
    with serving(tmp_path, ready=False, **how) as served:
        for name in SITUATIONS:
            wait_until(lambda name=name: OLD in served.states(name), f"{name} is loaded")
            served.wait_states({OLD: VersionState.AVAILABLE, BAD: VersionState.END}, name)
            assert served.version(name) == OLD
            assert served.status(name)[BAD].status.message.startswith(f"rolled back to version {OLD} by 127.0.0.1")
        assert served.version("label", label="stable") == OLD
        assert "version 8 answers now" in roll_back(served, capsys, "latest_1", "--undo")
        archives.write_version(NEXT, tmp_path / "label")
        wait_until(lambda: served.version("label") == NEXT, "the next push ends the rollback")


def test_one_command_goes_back_where_versions_come_by_calls(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = {"model_control_mode": "explicit", "load_model": ("ranker",), "state_directory": str(base.parent / "state")}
    with serving(base.parent, model_repository=str(base.parent), **how) as served:
        assert served.version("ranker") == BAD
        assert f"version {OLD} answers now" in roll_back(served, capsys, "ranker")
        assert served.version("ranker") == OLD
    with serving(base.parent, model_repository=str(base.parent), **how) as served:
        assert served.version("ranker") == OLD
        assert f"version {BAD} answers now" in roll_back(served, capsys, "ranker", "--undo")
