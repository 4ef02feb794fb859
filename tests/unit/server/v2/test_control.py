"""What the V2 services are told, by a real core with real models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.repository_fixture import BROKEN, CONFIG, RepositoryFixture, serving_repository
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.health import Health
from tfs_lite.server.v2.control import V2Control
from tfs_lite.server.v2.shared_memory import SharedRegions
from tfs_lite.serving.config_sources import ModelLocator

BATCHED = CONFIG.replace('"python"', '"python" max_batch_size: 4')


class Desk:
    """A house, and the control in front of it."""

    def __init__(self, house: RepositoryFixture, by_calls: bool = True) -> None:
        self.house = house
        self.health = Health(house.core.view.is_model_available)
        self.runner = BackgroundRunner("repository", 1, 4)
        repository = house.control if by_calls else None
        self.control = V2Control(
            house.core, self.health, ModelLocator(house.options), repository, self.runner, SharedRegions()
        )


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with serving_repository(tmp_path / "models") as house:
        house.configure("m", text=BATCHED)
        house.write("m", 1, plus=1)
        found = Desk(house)
        yield found
        found.runner.close()


def test_loads_and_unloads_are_awaited(desk: Desk) -> None:
    asyncio.run(desk.control.load("m", {}))
    assert desk.control.model_ready("m", None)
    asyncio.run(desk.control.unload("m"))
    assert not desk.control.model_ready("m", None)


def test_models_do_not_change_by_calls_in_the_other_modes(desk: Desk) -> None:
    polled = Desk(desk.house, by_calls=False)
    for call in (polled.control.load("m", {}), polled.control.unload("nobody")):
        with pytest.raises(ServingError, match="not allowed if polling is enabled") as caught:
            asyncio.run(call)
        assert caught.value.code is StatusCode.UNAVAILABLE
    polled.runner.close()


def test_metadata_has_the_ready_versions_and_the_batch_first(desk: Desk) -> None:
    desk.house.configure("m", "version_policy { all { } }", BATCHED)
    desk.house.write("m", 10, plus=10)
    desk.house.write("m", 9, plus=9)
    desk.house.load("m")
    metadata = desk.control.model_metadata("m", None)
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("m", ["1", "9", "10"], "python")
    assert list(metadata.inputs) == [v2.TensorMetadata(name="x", datatype="FP32", shape=(-1, -1))]
    assert list(metadata.outputs) == [v2.TensorMetadata(name="y", datatype="FP32", shape=(-1, -1))]
    assert desk.control.model_metadata("m", 9).versions == ["9"]


def test_config_is_the_one_that_the_version_was_loaded_with(desk: Desk) -> None:
    desk.house.load("m")
    desk.house.configure("m", "dynamic_batching { }", BATCHED)
    assert not desk.control.model_config("m", None).HasField("dynamic_batching")
    desk.house.load("m")
    assert desk.control.model_config("m", 1).HasField("dynamic_batching")
    found = desk.control.model_config("m", None)
    assert (found.name, found.max_batch_size, found.platform) == ("m", 4, "python")
    assert [tensor.name for tensor in found.input] == ["x"]


def test_failed_change_leaves_the_config_that_is_told_alone(desk: Desk) -> None:
    desk.house.load("m")
    desk.house.configure("m", "dynamic_batching { }", BATCHED)
    desk.house.write("m", 1, 0, BROKEN)
    assert desk.house.failure("m").code is StatusCode.INVALID_ARGUMENT
    assert not desk.control.model_config("m", None).HasField("dynamic_batching")


def test_lookups_of_what_is_not_there_say_why(desk: Desk) -> None:
    for version in (None, 1):
        with pytest.raises(ServingError, match="'m' is not found") as caught:
            desk.control.model_metadata("m", version)
        assert caught.value.code is StatusCode.NOT_FOUND
    desk.house.load("m")
    with pytest.raises(ServingError, match="version 2 is not found") as caught:
        desk.control.model_config("m", 2)
    assert caught.value.code is StatusCode.NOT_FOUND
    with desk.house.core.handle(ModelRef("m")):
        desk.house.control.unload("m")
        with pytest.raises(ServingError, match="version 1 is not at ready state") as caught:
            desk.control.model_metadata("m", 1)
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert not desk.control.model_ready("m", 1)
    with pytest.raises(ServingError, match="has no available versions"):
        desk.control.model_metadata("m", None)


def test_readiness_of_a_model_that_nobody_knows_is_an_error(desk: Desk) -> None:
    with pytest.raises(ServingError) as caught:
        desk.control.model_ready("nobody", None)
    assert caught.value.code is StatusCode.NOT_FOUND


def test_statistics_are_of_versions_that_are_ready(desk: Desk) -> None:
    assert not desk.control.statistics(None, None).model_stats
    with pytest.raises(ServingError, match="requested model 'm' is not available") as caught:
        desk.control.statistics("m", None)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    desk.house.load("m")
    with pytest.raises(ServingError, match="requested model version is not available for model 'm'"):
        desk.control.statistics("m", 2)
    (found,) = desk.control.statistics("m", 1).model_stats
    assert (found.name, found.version, found.inference_stats.success.count) == ("m", "1", 0)
    assert list(desk.control.statistics("", None).model_stats) == [found]


def test_index_has_every_version_and_every_model_that_could_be_loaded(desk: Desk) -> None:
    desk.house.configure("never")
    desk.house.load("m")
    assert desk.control.index(ready=False).models == [
        v2.ModelIndex(name="m", version="1", state="READY"),
        v2.ModelIndex(name="never"),
    ]
    assert desk.control.index(ready=True).models == [v2.ModelIndex(name="m", version="1", state="READY")]
    desk.house.control.unload("m")
    gone = [v2.ModelIndex(name="m", version="1", state="UNAVAILABLE", reason="unloaded"), v2.ModelIndex(name="never")]
    wait_until(lambda: desk.control.index(ready=False).models == gone, "the version has ended", 30)


def test_server_tells_who_it_is_and_how_it_fares(desk: Desk) -> None:
    metadata = desk.control.server_metadata()
    assert metadata.name == "tfs_lite"
    assert {"model_repository(unload_dependents)", "statistics", "system_shared_memory"} <= set(metadata.extensions)
    assert "cuda_shared_memory" not in metadata.extensions
    assert desk.control.server_live()
    assert not desk.control.server_ready()
    desk.health.set_ready()
    assert desk.control.server_ready()
