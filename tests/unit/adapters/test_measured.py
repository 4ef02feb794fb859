"""Admission by what was measured of the version before."""

from __future__ import annotations

import pytest

from tests.support.errors import refusal
from tfs_lite.adapters import memory
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.measured import MeasuredVersions, on_device, total, workspace_of
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import InstanceGroup
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode

ID = ServableId("m", 1)


def test_a_version_like_the_one_before_is_expected_to_take_what_that_one_took_and_a_fiftieth() -> None:
    known = MeasuredVersions()
    assert known.bound("m", 1000, "settings") is None
    known.learn("m", 1000, "settings", 800)
    assert [known.bound("m", size, "settings") for size in (1000, 1010, 990)] == [816] * 3
    known.learn("m", 1000, "settings", 700)
    assert known.bound("m", 1000, "settings") == 714


@pytest.mark.parametrize(
    ("model", "size", "settings"), [("m", 1011, "a"), ("m", 989, "a"), ("m", 1000, "b"), ("n", 1000, "a")]
)
def test_nothing_is_known_of_another_model_other_files_or_another_config(model: str, size: int, settings: str) -> None:
    known = MeasuredVersions()
    known.learn("m", 1000, "a", 800)
    assert known.bound(model, size, settings) is None


def test_of_more_models_than_the_bound_the_ones_measured_longest_ago_are_forgotten() -> None:
    known = MeasuredVersions(most=2)
    for model in ("a", "b", "a", "c"):
        known.learn(model, 1000, "settings", 800)
    assert [known.bound(model, 1000, "settings") for model in "abc"] == [816, None, 816]


def test_instances_add_up_and_what_comes_and_goes_is_not_reserved() -> None:
    one = {"gpu/0": {"weights": 10, "graphs": 2, "workspace": 5}, "main": {"staging": 3}}
    found = total([one, one, {"main": {"process": 4}}])
    assert found == {"gpu/0": {"weights": 20, "graphs": 4, "workspace": 10}, "main": {"staging": 6, "process": 4}}
    assert [on_device(found, device) for device in ("gpu/0", "gpu/1", "main")] == [24, 0, 4]


def test_workspace_is_a_number_of_bytes() -> None:
    assert workspace_of({}) == 0
    assert workspace_of({"gpu_workspace_bytes": "1000"}) == 1000
    for text in ("1e9", "-1", "many", ""):
        said = refusal(workspace_of, {"gpu_workspace_bytes": text}, code=StatusCode.INVALID_ARGUMENT)
        assert said == f'parameters: gpu_workspace_bytes: expected a number of bytes, got "{text}"'


def test_the_second_version_reserves_what_the_first_took(exported_once) -> None:
    configs = [ModelSettings()]
    settings = AdapterSettings(lambda models, request: models[0], "cpu", model_settings=lambda path, model: configs[-1])

    def loader(name: str = "m") -> ArtifactLoader:
        return ArtifactLoader(str(exported_once), "", settings, PLATFORMS, name)

    first = loader()
    by_files = first.estimate_resources()
    assert by_files == main_ram(memory.bytes_to_reserve((exported_once / "model.pt2").stat().st_size))
    first.load(ID)
    assert first.estimate_resources() == main_ram(16)
    second = loader()
    assert second.estimate_resources() == main_ram(16 + memory.FIXED_BYTES)
    assert loader("other").estimate_resources() == by_files
    configs.append(ModelSettings(instance_group=(InstanceGroup(count=2),)))
    assert loader().estimate_resources() == by_files
    assert second.estimate_resources() == main_ram(16 + memory.FIXED_BYTES)
    second.load(ID)
    first.unload()
    second.unload()
