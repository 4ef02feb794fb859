"""Versions of the platform ``ensemble``: nothing is opened, the factory makes the servable of other models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.errors import refusal
from tests.support.schedulers.ensembles import EnsembleFixture, adder, ask
from tfs_lite.adapters import memory
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.opening import OpenedModel, OpenRequest, Platform
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.text import load_model_settings
from tfs_lite.core.model import Servable
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.schedulers.ensemble.servable import EnsembleServable
from tfs_lite.testing.lifecycle.servables import run_alone

ID = ServableId("e", 1)
CONFIG = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
ensemble_scheduling {
  step { model_name: "a" input_map { key: "x" value: "IN" } output_map { key: "y" value: "OUT" } }
}
"""


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """An empty version directory with the config of an ensemble beside it."""
    directory = tmp_path / "e" / "1"
    directory.mkdir(parents=True)
    (tmp_path / "e" / "config.pbtxt").write_text(CONFIG)
    return directory


def nothing_is_opened(platform: Platform, request: OpenRequest) -> Sequence[OpenedModel]:
    raise AssertionError("an ensemble has no model to open")


def loader_of(directory: Path, fixture: EnsembleFixture, platform: str = "", **options: Any) -> ArtifactLoader:
    def factory(models: Sequence[OpenedModel], request: OpenRequest) -> Servable:
        assert models == []
        return EnsembleServable(request.id, request.settings, fixture.resolve)

    def settings_of(path: str, model: str) -> ModelSettings:
        return load_model_settings(Path(path), model)

    settings = AdapterSettings(factory, opens=nothing_is_opened, device="cpu", model_settings=settings_of, **options)
    return ArtifactLoader(str(directory), platform, settings, PLATFORMS)


@pytest.mark.parametrize("platform", ["", "ensemble"], ids=["by its config", "by the server's config"])
def test_empty_version_is_loaded_and_answers(version: Path, platform: str) -> None:
    fixture = EnsembleFixture()
    fixture.serve("a", adder(1))
    loader = loader_of(version, fixture, platform)
    assert loader.estimate_resources() == main_ram(memory.bytes_to_reserve(0))
    loader.load(ID)
    assert loader.estimate_resources() == main_ram(0)
    servable = loader.servable
    assert servable is not None
    assert (servable.traits.platform, list(servable.signatures)) == ("ensemble", [DEFAULT_SIGNATURE])
    assert ask(servable, {"IN": [1, 2]}).outputs["OUT"].tolist() == [2, 3]
    loader.unload()
    assert loader.servable is None
    fixture.close()


def test_version_whose_models_are_missing_waits_and_is_loaded_later(version: Path) -> None:
    fixture = EnsembleFixture()
    loader = loader_of(version, fixture)
    with pytest.raises(ServingError) as caught:
        loader.load(ID)
    status = caught.value.status
    assert (status.code, status.reason) == (StatusCode.UNAVAILABLE, Reason.WAITS_FOR_MODELS)
    assert status.message == (
        "model e version 1: it contains models that are not available: waits for step 0 (model a)"
    )
    fixture.serve("a", adder(1))
    loader.load(ID)
    loader.unload()
    fixture.close()


def test_ensemble_that_does_not_fit_fails_for_good(version: Path) -> None:
    fixture = EnsembleFixture()
    fixture.serve("a", adder(1, dims=(3,)))
    with pytest.raises(ServingError, match="inconsistent shape") as caught:
        loader_of(version, fixture).load(ID)
    assert (caught.value.code, caught.value.status.reason) == (StatusCode.INVALID_ARGUMENT, None)
    fixture.close()


def test_warm_up_asks_the_ensemble(version: Path) -> None:
    fixture, asked = EnsembleFixture(), []
    fixture.serve("a", adder(1))

    def warm_up(servable: Servable, request: OpenRequest) -> None:
        asked.append(ask(servable, {"IN": [1, 2]}).outputs["OUT"].tolist())

    loader = loader_of(version, fixture, warm_up=warm_up)
    loader.load(ID)
    assert asked == [[2, 3]]
    loader.unload()
    fixture.close()


def test_platform_without_the_pipeline_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "1"
    directory.mkdir()
    settings = AdapterSettings(run_alone, device="cpu")
    assert "platform ensemble needs ensemble_scheduling in the config" in refusal(
        ArtifactLoader(str(directory), "ensemble", settings, PLATFORMS).load, ID
    )


def test_pipeline_on_another_platform_is_refused(version: Path, exported_once: Path) -> None:
    found = load_model_settings(version, "e")
    settings = AdapterSettings(run_alone, device="cpu", model_settings=lambda path, model: found)
    loader = ArtifactLoader(str(exported_once), "pytorch_export", settings, PLATFORMS)
    with pytest.raises(ServingError, match="platform pytorch_export has no ensemble_scheduling"):
        loader.load(ID)


def test_platforms_say_whether_they_are_served() -> None:
    assert PLATFORMS["ensemble"].is_served
    assert not Platform("none", "none", lambda files: True, None).is_served
    assert ModelSettings().ensemble_scheduling is None
