"""Every way back that docs/roll-back.md has, on a server where version 8 is bad and version 7 is on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.support.servers.in_process import ROW, ServerFixture, config_text, entry, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tfs_lite.core.publish import publish

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
