"""What only a machine with a GPU can show. Skipped everywhere else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.servers.platforms import SETTINGS, WIDTH, WRITERS
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.device import machine_resources, usable_gpus
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.onnx.model import open_in_process, open_onnx
from tfs_lite.adapters.opening import NeedsProcess, OpenRequest
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.adapters.pytorch.tensors import TORCH_DTYPES, to_arrays, to_tensor
from tfs_lite.adapters.saving.save import save
from tfs_lite.adapters.trust import TrustedPaths
from tfs_lite.core.resources import GPU, RAM, Resource, ResourceUtil
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import to_numpy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ID = ServableId("m", 1)
ONNX = "onnxruntime_onnx"
BIG = 25_000_000
SLACK = 8 << 20
BLOCK = 2 << 20
"""Bytes: torch's allocator takes multiples of this from the device."""


def on_gpus(allocation):
    return sum(size for resource, size in allocation.entries.items() if resource.device == GPU)


def make_loader(directory, device="auto"):
    settings = AdapterSettings(
        lambda models, request: models[0],
        device,
        trusted=TrustedPaths.of([str(directory)]),
        model_settings=lambda path, model: SETTINGS,
    )
    return ArtifactLoader(str(directory), "", settings, PLATFORMS)


@pytest.mark.parametrize("platform", sorted(set(WRITERS) - {ONNX}))
@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_version_is_served_from_the_gpu(tmp_path, platform, device):
    loader = make_loader(WRITERS[platform](tmp_path / "1", 1.0), device)
    before = loader.estimate_resources()
    loader.load(ID)
    after = loader.estimate_resources()
    assert after.bound
    assert {resource.device for resource in after.entries} == {GPU}
    assert sum(after.entries.values()) <= on_gpus(before)
    for rows in (0, 1, 3):
        x = np.ones((rows, WIDTH), np.float32)
        answer = loader.servable.run("", {"x": x}, ())
        assert answer["y"].tolist() == (2 * x + 1).tolist()
        assert isinstance(answer["total"], np.ndarray)
    loader.unload()


@pytest.mark.skipif(ONNX not in WRITERS, reason="needs onnxruntime")
def test_onnx_model_asks_for_a_process_and_runs_on_the_gpu_or_says_what_is_missing(tmp_path):
    import onnxruntime

    directory = WRITERS[ONNX](tmp_path / "1", 1.0)
    request = OpenRequest(ID, read_version(str(directory)), "cuda:0", False, SETTINGS)
    with pytest.raises(NeedsProcess, match="GPU"):
        open_onnx(request)
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(ServingError, match="install onnxruntime-gpu"):
            open_in_process(request)
        return
    model = open_in_process(request)
    x = np.ones((3, WIDTH), np.float32)
    assert model.run("", {"x": x}, ("y",))["y"].tolist() == (2 * x + 1).tolist()
    model.close()


def test_memory_of_the_gpu_comes_back(tmp_path):
    class Big(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(BIG))

        def forward(self, x):
            return x + self.weight[:WIDTH]

    path = save(Big(), tmp_path, example_inputs=(torch.zeros(2, WIDTH),))
    settings = AdapterSettings(lambda models, request: models[0], "cuda")
    free = []
    for _ in range(5):
        loader = ArtifactLoader(str(path), "", settings, PLATFORMS)
        loader.load(ID)
        loader.servable.run("", {"x": np.zeros((1, WIDTH), np.float32)}, ())
        assert 0 <= on_gpus(loader.estimate_resources()) - 4 * BIG < BLOCK
        loader.unload()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[1] - free[-1] < SLACK


def test_module_on_the_gpu_is_saved_from_there_and_served_on_the_cpu(tmp_path):
    module = torch.nn.Linear(WIDTH, 2).cuda()
    path = save(module, tmp_path, example_inputs=(torch.zeros(2, WIDTH, device="cuda"),))
    loader = ArtifactLoader(str(path), "", AdapterSettings(lambda models, request: models[0], "cpu"), PLATFORMS)
    loader.load(ID)
    (answer,) = loader.servable.run("", {"input": np.ones((1, WIDTH), np.float32)}, ()).values()
    with torch.no_grad():
        expected = module(torch.ones(1, WIDTH, device="cuda")).cpu().numpy()
    assert np.allclose(answer, expected, atol=1e-4)
    loader.unload()


def test_constants_of_a_program_move_with_it(tmp_path):
    class WithConstants(torch.nn.Module):
        def forward(self, x):
            return x + torch.arange(WIDTH, dtype=torch.float32) + torch.ones(x.shape[0], 1)

    path = save(WithConstants(), tmp_path, example_inputs=(torch.zeros(2, WIDTH),))
    loader = ArtifactLoader(str(path), "", AdapterSettings(lambda models, request: models[0], "cuda"), PLATFORMS)
    loader.load(ID)
    answer = loader.servable.run("", {"x": np.zeros((3, WIDTH), np.float32)}, ())["output_0"]
    assert answer.tolist() == [[1, 2, 3, 4]] * 3
    loader.unload()


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_every_type_survives_the_way_to_the_gpu_and_back(dtype):
    array = (np.arange(6) % 2).reshape(2, 3).astype(to_numpy(dtype))
    array.flags.writeable = False
    device = torch.device("cuda", 0)
    back = to_arrays({"y": to_tensor(array, device, share=False)}, device)["y"]
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


def test_machine_counts_its_gpus():
    devices, total = machine_resources()
    assert devices[GPU] == torch.cuda.device_count()
    assert total.entries[Resource(GPU, RAM, 0)] == torch.cuda.get_device_properties(0).total_memory
    ResourceUtil(devices).verify(total)
    assert usable_gpus("auto")
