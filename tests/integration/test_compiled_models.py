"""Models compiled by AOTInductor, through a server: answers as eager's, swaps, sizes, and memory over many loads."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

import tfs_lite
from tests.support.errors import refusal
from tests.support.servers.in_process import serving
from tfs_lite.adapters.aoti.model import open_compiled
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.core.servable import ServableId, VersionState
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import StatusCode

pytestmark = [pytest.mark.load, pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")]
CYCLES = 22
MEGABYTE = 1 << 20


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(512, 4096), torch.nn.Linear(4096, 4)
        self.register_buffer("shift", torch.ones(400), persistent=False)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.last(self.first(x).relu()) * scale, "sum": x.sum(1) + self.shift.sum()}


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    return Network().eval()


@pytest.fixture(scope="module")
def version(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    examples = {"x": torch.randn(1, 512), "scale": torch.randn(1, 4)}
    return tfs_lite.save(network, tmp_path_factory.mktemp("compiled"), example_inputs=examples, compile="aoti")


def _inputs(rows: int) -> dict[str, np.ndarray]:
    torch.manual_seed(rows)
    return {"x": torch.randn(rows, 512).numpy(), "scale": torch.randn(rows, 4).numpy()}


def _check(network: Network, rows: int, answer: object) -> None:
    assert isinstance(answer, dict)
    with torch.no_grad():
        expected = network(**{name: torch.from_numpy(array) for name, array in _inputs(rows).items()})
    for name, value in expected.items():
        np.testing.assert_allclose(answer[name], value.numpy(), rtol=1e-4, atol=1e-4)


def test_a_server_answers_refuses_other_sizes_and_swaps(version: Path, network: Network, tmp_path: Path) -> None:
    shutil.copytree(version, tmp_path / "m" / "1")
    base = str(tmp_path / "m")
    with serving(tmp_path, model_name="m", model_base_path=base, trusted_model_base_paths=(base,)) as served:
        (status,) = served.client.status("m")
        assert status.state is VersionState.AVAILABLE
        for rows in (1, 2, 7, 33):
            _check(network, rows, dict(served.client.predict("m", _inputs(rows)).outputs))
        for bad in (
            {"x": np.zeros((2, 511), np.float32)},
            {"x": np.zeros((2, 512), np.float64)},
            {"x": np.zeros((2, 2, 512), np.float32)},
            {"x": np.zeros((3, 512), np.float32)},
        ):
            refusal(served.client.predict, "m", {**_inputs(2), **bad}, code=StatusCode.INVALID_ARGUMENT)
        shutil.copytree(version, tmp_path / "m" / "2")
        served.wait_states({1: VersionState.END, 2: VersionState.AVAILABLE})
        _check(network, 5, dict(served.client.predict("m", _inputs(5)).outputs))


class Blocks(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x.reshape(x.shape[0], -1, 8).sum(-1)}


def test_compiled_code_gets_only_sizes_that_its_program_takes(tmp_path: Path) -> None:
    dims = {"x": {0: torch.export.Dim("batch", min=5), 1: 8 * torch.export.Dim("blocks")}}
    version = tfs_lite.save(
        Blocks(), tmp_path, example_inputs={"x": torch.ones(6, 32)}, dynamic_dims=dims, compile="aoti"
    )
    model = open_compiled(OpenRequest(ServableId("m", 1), read_version(str(version)), "cpu", True))
    for rows, width in ((5, 16), (6, 32), (9, 80)):
        answer = model.run(DEFAULT_SIGNATURE, {"x": np.ones((rows, width), np.float32)}, ())
        np.testing.assert_array_equal(answer["y"], np.full((rows, width // 8), 8, np.float32))
    for rows, width, said in ((4, 16, "at least 5 is needed"), (6, 12, "has to be a multiple of 8")):
        inputs = {"x": np.ones((rows, width), np.float32)}
        assert said in refusal(model.run, DEFAULT_SIGNATURE, inputs, (), code=StatusCode.INVALID_ARGUMENT)
    model.close()


def test_memory_stays_level_over_many_loads(version: Path, network: Network) -> None:
    process, levels = psutil.Process(), []
    for _ in range(CYCLES):
        model = open_compiled(OpenRequest(ServableId("m", 1), read_version(str(version)), "cpu", True))
        for rows in (0, 1, 7):
            _check(network, rows, model.run(DEFAULT_SIGNATURE, _inputs(rows), ()))
        model.close()
        del model
        gc.collect()
        levels.append(process.memory_info().rss)
    assert levels[-1] - levels[1] < 10 * MEGABYTE, [level // MEGABYTE for level in levels]
