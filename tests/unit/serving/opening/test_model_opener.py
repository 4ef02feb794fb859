"""Where instances live: what a platform says comes before the server's flag, and what it cannot open goes to a process
that can."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tests.support.language.language_models import Size, publish_language
from tests.support.servers.platforms import write_exported
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenRequest, Platform
from tfs_lite.adapters.platforms import GROUP, PLATFORMS
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import InstanceGroup
from tfs_lite.core.generation import LanguageModel
from tfs_lite.core.servable import ServableId
from tfs_lite.serving.opening.model_opener import ModelOpener

NUMBERS = '''
"""A platform whose usual way knows no version with a file "unusual"."""

import os

import numpy as np

from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.opening import NeedsProcess, Platform
from tfs_lite.core.signature import DataType, Signature, TensorSpec

SIGNATURE = Signature((TensorSpec("x", DataType.FLOAT, (1,)),), (TensorSpec("pid", DataType.INT64, (1,)),))


class Number(LoadedModel):
    def __init__(self, request):
        super().__init__(request.id, "numbers", {"serving_default": SIGNATURE})

    def compute(self, signature, inputs, outputs):
        return {"pid": np.array([os.getpid()])}

    def resident_bytes(self):
        return 0

    def close(self): ...


def open_number(request):
    if "unusual" in request.files.names:
        raise NeedsProcess("loaded by torch's loader in a process: operator odd.number is not known")
    return Number(request)


def recognises(files):
    return "number" in files.names


def apart(request):
    return "opened in a process: it is large" if "large" in request.files.names else ""


PLATFORM = Platform("numbers", "a number", recognises, open_number, open_in_process=Number, apart=apart)
'''
X = np.zeros(1, np.float32)
Worker = Literal["", "thread", "process", "ray"]
REASON = "loaded by torch's loader in a process: operator odd.number is not known"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform as another distribution registers it, for this process and those of models."""
    installed = tmp_path_factory.mktemp("installed")
    description = installed / "odd_numbers-1.0.dist-info"
    description.mkdir(parents=True)
    (installed / "odd_numbers.py").write_text(NUMBERS)
    (description / "METADATA").write_text("Metadata-Version: 2.1\nName: odd_numbers\nVersion: 1.0\n")
    (description / "entry_points.txt").write_text(f"[{GROUP}]\nnumbers = odd_numbers:PLATFORM\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed))
        patch.delitem(sys.modules, "odd_numbers", raising=False)
        (entry,) = entry_points(group=GROUP)
        platform = entry.load()
        assert isinstance(platform, Platform)
        yield platform


@pytest.fixture(scope="module", params=["thread", "process"])
def worker(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def opener(worker: str, numbers: Platform) -> Iterator[ModelOpener]:
    """Starting the processes of one takes seconds."""
    found = ModelOpener(worker)
    yield found
    found.close()


def number(directory: Path, *more: str, instances: int = 1, worker: Worker = "") -> OpenRequest:
    directory.mkdir()
    for name in ("number", *more):
        (directory / name).touch()
    settings = ModelSettings(instance_group=(InstanceGroup(count=instances, worker=worker),))
    files = read_version(str(directory))
    return OpenRequest(ServableId("m", 1), files, "cpu", False, settings)


@pytest.mark.parametrize("worker", ["process"], indirect=True)
def test_language_model_is_opened_here_although_workers_are_processes(tmp_path: Path, opener: ModelOpener) -> None:
    directory = publish_language(tmp_path / "base", 1, Size())
    request = OpenRequest(ServableId("m", 1), read_version(str(directory)), "cpu", False)
    (model,) = opener(PLATFORMS["transformers"], request)
    assert isinstance(model, LanguageModel)
    assert model.worker.kind == "thread"
    model.close()


def test_version_is_opened_where_the_flag_says(
    tmp_path: Path, numbers: Platform, opener: ModelOpener, worker: str
) -> None:
    (model,) = opener(numbers, number(tmp_path / "1"))
    assert (model.worker.kind, model.worker.reason) == (worker, "")
    model.close()


@pytest.mark.parametrize("worker", ["auto"], indirect=True)
def test_version_whose_load_others_would_feel_gets_a_process_where_nobody_asks_for_a_thread(
    tmp_path: Path, numbers: Platform, opener: ModelOpener
) -> None:
    asked = (
        number(tmp_path / "1"),
        number(tmp_path / "2", "large"),
        number(tmp_path / "3", "large", worker="thread"),
        number(tmp_path / "4", worker="process"),
    )
    models = [model for request in asked for model in opener(numbers, request)]
    homes = [(model.worker.kind, model.worker.reason) for model in models]
    large = "opened in a process: it is large"
    assert homes == [("thread", ""), ("process", large), ("thread", ""), ("process", "")]
    for model in models:
        model.close()


def test_version_that_needs_a_process_gets_one_and_says_why(
    tmp_path: Path, numbers: Platform, opener: ModelOpener, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        models = opener(numbers, number(tmp_path / "1", "unusual", instances=2))
    assert [(model.worker.kind, model.worker.reason) for model in models] == [("process", REASON)] * 2
    pids = [model.run("", {"x": X}, ("pid",))["pid"].tolist() for model in models]
    assert pids == [[model.worker.pid] for model in models]
    assert [record.message for record in caplog.records] == [f"model m version 1 was {REASON}"] * 2
    for model in models:
        model.close()


def exported(directory: Path, instances: int, **rest: object) -> OpenRequest:
    version = write_exported(directory)
    settings = ModelSettings(instance_group=(InstanceGroup(count=instances),))
    return OpenRequest(ServableId("m", 1), read_version(str(version)), "cpu", False, settings, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize("worker", ["thread"], indirect=True)
def test_instances_of_one_process_share_their_weights_also_those_that_are_added(
    tmp_path: Path, opener: ModelOpener
) -> None:
    platform = PLATFORMS["pytorch_export"]
    models = [*opener(platform, exported(tmp_path, 3))]
    (alone,) = opener(platform, exported(tmp_path, 1))
    models += opener(platform, exported(tmp_path, 2, beside=tuple(models)))
    sizes = [model.resident_bytes() for model in (*models, alone)]
    assert sizes == [sizes[0], 0, 0, 0, 0, sizes[0]]
    assert sizes[0]
    for model in (*models, alone):
        model.close()


@pytest.mark.parametrize("worker", ["process"], indirect=True)
def test_instances_in_processes_have_weights_of_their_own(tmp_path: Path, opener: ModelOpener) -> None:
    models = opener(PLATFORMS["pytorch_export"], exported(tmp_path, 2))
    first, second = (model.resident_bytes() for model in models)
    assert first == second
    assert first
    for model in models:
        model.close()
