"""The loader contract, with the models of every platform that is served."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tests.support.profiles import is_soak
from tests.support.servers.platforms import (
    SETTINGS,
    WIDTH,
    WRITERS,
    has_onnx,
    write_exported,
    write_onnx,
    write_python,
    write_script,
)
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.adapters.trust import TrustedPaths
from tfs_lite.core.model import PredictCall
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import ServingError
from tfs_lite.testing.lifecycle.servables import run_alone

ID = ServableId("m", 1)
PATIENCE = 60
CYCLES = 10 if is_soak() else 4
BIG = 12_500_000
"""Floats of the big model: 50 MB."""
SLACK = 40 << 20


def make_loader(directory: Path) -> ArtifactLoader:
    settings = AdapterSettings(
        run_alone, "cpu", trusted=TrustedPaths.of([str(directory)]), model_settings=lambda path, model: SETTINGS
    )
    return ArtifactLoader(str(directory), "", settings, PLATFORMS)


@pytest.fixture(params=WRITERS)
def loader(request, tmp_path):
    return make_loader(WRITERS[request.param](tmp_path / "1", 1.0))


def ask(servable, value=1.0):
    done, results = threading.Event(), []

    def on_done(result):
        results.append(result)
        done.set()

    x = np.full((1, WIDTH), value, np.float32)
    servable.submit(PredictCall(DEFAULT_SIGNATURE, {"x": x}, ("y",), None, on_done))
    assert done.wait(PATIENCE)
    return results[0]["y"].tolist()[0][0]


def amount(allocation):
    return sum(allocation.entries.values())


def test_load_serves_and_unload_ends_it(loader):
    before = {*threading.enumerate()}
    assert loader.servable is None
    loader.load(ID)
    assert ask(loader.servable) == 3.0
    loader.unload()
    assert loader.servable is None
    left = {*threading.enumerate()} - before
    assert not [thread for thread in left if thread.name == "tfs-model-m-1"]


def test_estimate_is_bound_and_only_shrinks(loader):
    before = loader.estimate_resources()
    loader.load(ID)
    after = loader.estimate_resources()
    assert before.bound
    assert after.bound
    assert 0 < amount(after) <= amount(before)
    loader.unload()


def test_failed_load_can_be_tried_again(loader, tmp_path):
    (hidden,) = [file for file in (tmp_path / "1").iterdir() if file.name.startswith(("model.p", "model.onnx"))]
    hidden.rename(tmp_path / "hidden")
    for _ in range(2):
        with pytest.raises(ServingError):
            loader.load(ID)
        assert loader.servable is None
    (tmp_path / "hidden").rename(hidden)
    loader.load(ID)
    assert ask(loader.servable) == 3.0
    loader.unload()


def test_two_versions_are_in_memory_at_the_same_time(tmp_path):
    loaders = []
    for version, name in enumerate(WRITERS, 1):
        loaders.append(make_loader(WRITERS[name](tmp_path / str(version), float(version))))
        loaders[-1].load(ServableId("m", version))
    assert [ask(loader.servable) for loader in loaders] == [2.0 + version for version in range(1, len(WRITERS) + 1)]
    for loader in loaders:
        loader.unload()


class Big(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(BIG))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = 2 * x + self.weight[:4]
        return {"y": y, "total": y.sum(1, keepdim=True)}


def write_big_exported(directory: Path) -> Path:
    write_exported(directory)
    batch = torch.export.Dim("batch", max=8)
    program = torch.export.export(Big().eval(), (torch.zeros(3, WIDTH),), dynamic_shapes={"x": {0: batch}})
    torch.export.save(program, directory / "model.pt2")
    return directory


def write_big_module(directory: Path) -> Path:
    source = f"""
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros({BIG}))

    def forward(self, x):
        y = 2 * x + self.weight[:4]
        return {{"y": y, "total": y.sum(1, keepdim=True)}}
"""
    return write_python(directory, source, {"weight": torch.zeros(BIG)})


def write_big_onnx(directory: Path) -> Path:
    if not has_onnx():
        pytest.skip("needs the extra onnx")
    return write_onnx(directory, width=BIG)


@pytest.mark.parametrize(
    "write",
    [write_big_exported, lambda directory: write_script(directory, Big()), write_big_module, write_big_onnx],
    ids=["pytorch_export", "pytorch_libtorch", "python", "onnxruntime_onnx"],
)
def test_memory_of_a_version_comes_back(tmp_path, write):
    directory = write(tmp_path / "1")
    process = psutil.Process()
    resident = []
    for cycle in range(CYCLES):
        loader = make_loader(directory)
        loader.load(ID)
        assert amount(loader.estimate_resources()) == 4 * BIG
        assert ask(loader.servable, float(cycle)) == 2.0 * cycle
        loader.unload()
        resident.append(process.memory_info().rss)
    assert resident[-1] - resident[1] < SLACK
