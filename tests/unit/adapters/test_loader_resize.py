"""A loader whose version gets more or fewer instances while it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tfs_lite.adapters.instances import placements
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.opening import OpenedModel, OpenRequest, Platform
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.adapters.warmup import Warmup
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.model import Model, Servable
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.schedulers.batching.batcher import BatchingServable

ID = ServableId("m", 1)
WARMUP = [{"body": {"inputs": {"x": [[1.0, 1.0, 1.0, 1.0]]}}}]


def settings(count: int, **fields: Any) -> ModelSettings:
    return ModelSettings.model_validate({"instance_group": [{"count": count}], **fields})


class World:
    """What a server would do around the loader, and what it has seen."""

    def __init__(self, directory: Path, clock: SystemClock) -> None:
        self.settings = settings(1)
        self.opened: list[OpenedModel] = []
        self.asked: list[OpenRequest] = []
        self.closed: list[OpenedModel] = []
        self.first_runs: list[int] = []
        self.warmed: list[Sequence[Model]] = []
        self.failure: ServingError | None = None
        self._clock = clock
        self._warmup = Warmup()
        adapter = AdapterSettings(
            lambda models, request: BatchingServable(models, request.id, clock=clock),
            "cpu",
            model_settings=lambda directory, model: self.settings,
            opens=self._open,
            warm_models=lambda models, request: self.first_runs.append(len(models)),
            warm_up=self._warm_up,
        )
        self.loader = ArtifactLoader(str(directory), "", adapter, PLATFORMS)

    def _open(self, platform: Platform, request: OpenRequest) -> list[OpenedModel]:
        assert platform.open is not None
        self.asked.append(request)
        models = [platform.open(request) for _ in placements(request.settings, on_gpu=False)]
        for model in models:
            model.close = self._closing(model, model.close)  # type: ignore[method-assign]
        self.opened += models
        return models

    def _closing(self, model: OpenedModel, close: Callable[[], None]) -> Callable[[], None]:
        def noted() -> None:
            self.closed.append(model)
            close()

        return noted

    def _warm_up(self, servable: Servable, request: OpenRequest) -> None:
        self.warmed.append(servable.models)
        self._warmup(servable, request)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def world(exported_once: Path) -> Iterator[World]:
    clock = SystemClock()
    found = World(exported_once, clock)
    yield found
    found.loader.unload()
    assert sorted(map(id, found.closed)) == sorted(map(id, found.opened))  # each once
    clock.close()


def test_new_instances_are_warmed_up_among_themselves_before_they_join(world: World) -> None:
    world.settings = settings(1, warmup=WARMUP)
    world.loader.load(ID)
    servable = world.loader.servable
    assert world.loader.resize(settings(3, warmup=WARMUP))
    assert world.loader.servable is servable
    assert servable is not None
    assert list(servable.models) == world.opened
    assert [len(models) for models in world.warmed] == [1, 2]
    assert world.first_runs == [1, 2]
    assert [len(request.beside) for request in world.asked] == [0, 1]
    assert world.closed == []
    answer = servable.models[2].run("", {"x": np.ones((1, 4), np.float32)}, ("y",))["y"]
    assert np.asarray(answer).tolist() == [[2, 2, 2, 2]]


def test_instances_that_leave_are_closed_and_the_memory_is_counted(world: World) -> None:
    world.loader.load(ID)
    one = world.loader.estimate_resources()
    assert one == main_ram(16)
    assert world.loader.resize(settings(3))
    assert world.loader.estimate_resources() == main_ram(48)
    assert world.loader.resize(settings(1))
    assert world.loader.estimate_resources() == one
    wait_until(lambda: len(world.closed) == 2, "two are closed", 30)
    assert world.closed[0] is not world.opened[0] is not world.closed[1]


def test_warm_up_that_fails_closes_the_new_instances_only(world: World) -> None:
    world.loader.load(ID)
    world.failure = failed_precondition("too cold")
    assert "model m version 1: too cold" in refusal(
        world.loader.resize, settings(3), code=StatusCode.FAILED_PRECONDITION
    )
    assert world.closed == world.opened[1:]
    assert list(world.loader.servable.models) == world.opened[:1]  # type: ignore[union-attr]
    assert world.loader.estimate_resources() == main_ram(16)
    world.failure = None
    assert world.loader.resize(settings(2))


def test_settings_that_ask_for_more_than_instances_change_nothing(world: World) -> None:
    world.loader.load(ID)
    assert not world.loader.resize(settings(2, max_batch_size=4))
    assert len(world.opened) == 1


def test_loader_that_has_nothing_loaded_resizes_nothing(exported_once: Path) -> None:
    clock = SystemClock()
    loader = World(exported_once, clock).loader
    assert not loader.resize(settings(2))
    clock.close()
