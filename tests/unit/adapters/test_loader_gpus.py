"""What a loader reserves, holds and gives back on several GPUs. The machine needs none: the tests' own platform says
how many bytes its instances have on which device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.adapters import memory
from tfs_lite.adapters.gpu_placement import GpuReservations
from tfs_lite.adapters.instances import devices_of
from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.measured import MARGIN, Measured, MeasuredVersions
from tfs_lite.adapters.opening import OpenedModel, OpenRequest, Platform
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.resources import GPU, MAIN, RAM, Resource
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType, Signature, TensorSpec
from tfs_lite.core.status import StatusCode, failed_precondition
from tfs_lite.schedulers.batching.batcher import BatchingServable

ID = ServableId("m", 1)
SIGNATURE = Signature((TensorSpec("x", DataType.FLOAT, (1,)),), (TensorSpec("y", DataType.FLOAT, (1,)),))
MAIN_MEMORY = Resource(MAIN, RAM, 0)
FILES = 1000
RESERVED = memory.bytes_to_reserve(FILES)
WEIGHTS, GRAPHS = 700, 100


def gpu(number: int | None) -> Resource:
    return Resource(GPU, RAM, number)


class OnDevice(LoadedModel):
    def __init__(self, request: OpenRequest) -> None:
        super().__init__(request.id, "numbers", {"serving_default": SIGNATURE})
        self.device = request.device

    def compute(self, signature: str, inputs: object, outputs: object) -> dict[str, np.ndarray]:
        return {"y": np.zeros(1, np.float32)}

    def resident_bytes(self) -> int:
        return WEIGHTS

    def measured_bytes(self) -> Measured:
        number = self.device.partition(":")[2]
        return {f"gpu/{number}" if number else "main": {"weights": WEIGHTS, "graphs": GRAPHS, "workspace": 50}}

    def close(self) -> None: ...


class World:
    """Two GPUs of equal size, and loaders for them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings = ModelSettings()
        self.opened: list[str] = []
        self.failure: Exception | None = None
        self.measured = MeasuredVersions()
        self.gpus = GpuReservations(lambda: {0: 10 << 20, 1: 10 << 20})

    def loader(self, groups: str = "", device: str = "auto") -> ArtifactLoader:
        self.settings = self.config(groups)
        adapter = AdapterSettings(
            lambda models, request: BatchingServable(models, request.id, clock=SystemClock()),
            device,
            model_settings=lambda directory, model: self.settings,
            opens=self._open,
            measured=self.measured,
            gpus=self.gpus,
        )
        platform = Platform("numbers", "a number", lambda files: "number" in files.names, OnDevice)
        return ArtifactLoader(str(self.directory), "", adapter, {"numbers": platform})

    def config(self, groups: str) -> ModelSettings:
        found = [dict(group.split("=") for group in text.split()) for text in groups.split(";") if text]
        return ModelSettings.model_validate(
            {
                "instance_group": [
                    {
                        "count": int(group.get("count", 1)),
                        "kind": group.get("kind", "KIND_AUTO"),
                        "gpus": [int(number) for number in group.get("gpus", "") if number != ","],
                    }
                    for group in found
                ]
            }
        )

    def _open(self, platform: Platform, request: OpenRequest) -> Sequence[OpenedModel]:
        if self.failure is not None:
            raise self.failure
        groups = request.settings.instance_group or ModelSettings(instance_group=({},)).instance_group  # type: ignore[arg-type]
        devices = [d for group in groups for d in devices_of(group, request.device) for _ in range(group.count)]
        self.opened += devices
        return [OnDevice(OpenRequest(request.id, request.files, device, False)) for device in devices]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("tfs_lite.adapters.device.gpu_count", lambda: 2)
    (tmp_path / "number").write_bytes(bytes(FILES))
    return World(tmp_path)


def estimate(loader: ArtifactLoader) -> dict[Resource, int]:
    return dict(loader.estimate_resources().entries)


def test_a_version_goes_to_the_gpu_with_most_room_and_holds_what_it_measured(world: World) -> None:
    first, second = world.loader(), world.loader()
    assert estimate(first) == {MAIN_MEMORY: RESERVED, gpu(None): RESERVED}
    first.load(ID)
    second.load(ID)
    assert world.opened == ["cuda:0", "cuda:1"]
    assert estimate(first) == {gpu(0): WEIGHTS + GRAPHS}
    first.unload()
    second.unload()
    third = world.loader()
    third.load(ID)
    assert world.opened[2:] == ["cuda:0"]
    third.unload()


def test_named_gpus_have_count_instances_each(world: World) -> None:
    loader = world.loader("gpus=0,1 count=2; kind=KIND_CPU")
    expected = {gpu(0): 2 * RESERVED, gpu(1): 2 * RESERVED, MAIN_MEMORY: 2 * RESERVED}
    assert estimate(loader) == expected
    loader.load(ID)
    assert world.opened == ["cuda:0", "cuda:0", "cuda:1", "cuda:1", "cpu"]
    held = WEIGHTS + GRAPHS
    assert estimate(loader) == {gpu(0): 2 * held, gpu(1): 2 * held, MAIN_MEMORY: held}
    again = world.loader("gpus=0,1 count=2; kind=KIND_CPU")
    assert estimate(again)[gpu(1)] == 2 * (int(held * MARGIN) + memory.FIXED_BYTES)
    loader.unload()


def test_a_gpu_that_is_not_there_fails_the_version_and_says_which_there_are(world: World) -> None:
    message = "instance_group[0].gpus: there is no GPU 7; this server has: 0, 1"
    loader = world.loader("gpus=0,7")
    assert estimate(loader) == {MAIN_MEMORY: RESERVED, gpu(None): RESERVED}
    assert message in refusal(loader.load, ID)
    assert "this server has: 1" in refusal(world.loader("gpus=0", "cuda:1").load, ID)


def test_on_a_server_without_gpus_they_run_on_the_cpu(world: World) -> None:
    loader = world.loader("gpus=0,1 count=2", "cpu")
    assert estimate(loader) == {MAIN_MEMORY: 2 * RESERVED}
    loader.load(ID)
    assert world.opened == ["cpu", "cpu"]
    loader.unload()


def test_a_load_that_fails_leaves_no_place_behind(world: World) -> None:
    loader = world.loader()
    world.failure = failed_precondition("no")
    refusal(loader.load, ID, code=StatusCode.FAILED_PRECONDITION)
    assert estimate(loader) == {MAIN_MEMORY: RESERVED, gpu(None): RESERVED}
    world.failure = None
    other = world.loader()
    other.load(ID)
    assert world.opened == ["cuda:0"]
    other.unload()


def test_instances_join_where_memory_is_reserved_and_nowhere_else(world: World) -> None:
    loader = world.loader("gpus=0 count=2")
    loader.load(ID)
    assert not loader.resize(world.config("gpus=0,1 count=2"))
    assert not loader.resize(world.config("gpus=0; kind=KIND_CPU"))
    assert loader.resize(world.config("gpus=0 count=1"))
    assert loader.resize(world.config("gpus=0 count=3"))
    assert world.opened == ["cuda:0"] * 4
    assert estimate(loader) == {
        gpu(0): 2 * RESERVED if 3 * (WEIGHTS + GRAPHS) > 2 * RESERVED else 3 * (WEIGHTS + GRAPHS)
    }
    loader.unload()
