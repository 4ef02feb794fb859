"""CUDA graphs on a real GPU. Skipped everywhere else."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from tfs_lite.adapters.cuda.account import reserved_bytes
from tfs_lite.adapters.cuda.graphs import StreamGraphs, capture_on
from tfs_lite.adapters.cuda.memory import DEVICE_LOCKS, MemoryPool
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ID = ServableId("m", 1)
ROWS = (1, 4, 8)


def cuda():
    return torch.device("cuda", 0)


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))

    def forward(self, x):
        return self.layers(x).softmax(-1), x.argmax(-1)


class Convnet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(4),
            torch.nn.Flatten(),
            torch.nn.Linear(128, 5),
        )

    def forward(self, x):
        return self.layers(x)


class ReturnsWeights(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(3.0))

    def forward(self, x):
        return x, self.weight, x * self.weight


class Draws(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x) * 0


CASES = [(Mlp, (32,)), (Convnet, (3, 16, 16)), (ReturnsWeights, (3,))]


def opened(directory, module, item, graphs, **parameters):
    directory.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(2, *item)
    program = torch.export.export(module.eval(), (example,), dynamic_shapes=({0: torch.export.Dim("rows", max=64)},))
    torch.export.save(program, directory / "model.pt2")
    settings = ModelSettings(parameters={"cuda_graphs": graphs, **parameters})
    return open_exported(OpenRequest(ID, read_version(str(directory)), str(cuda()), False, settings, batch_rows=ROWS))


def graphs_of(model):
    """How many graphs each of the streams has."""
    return [0 if stream.graphs is None else len(stream.graphs) for stream in model._streams.all()]


@pytest.mark.parametrize(("module", "item"), CASES)
def test_graphs_answer_as_ordinary_runs_do(tmp_path, module, item):
    torch.manual_seed(0)
    network = module()
    eager = opened(tmp_path / "eager", network, item, "false")
    graphed = opened(tmp_path / "graphed", network, item, "true")
    (name,) = eager.signatures["serving_default"].input_names
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(4):
        for rows in (8, 1, 4, 7):
            x = {name: rng.standard_normal((rows, *item)).astype(np.float32)}
            wanted, got = eager.run("", x, ()), graphed.run("", x, ())
            assert list(wanted) == list(got)
            kept.append((wanted, got))
    for wanted, got in kept:
        for output in wanted:
            assert np.allclose(wanted[output], got[output], atol=1e-5)
    assert graphs_of(graphed) == [len(ROWS)] * 2
    assert (graphed.captured_rows, eager.captured_rows) == (ROWS, ())
    assert set(graphs_of(eager)) == {0}
    kinds = graphed.measured_bytes()["gpu/0"]
    assert kinds["graphs"] > 0
    assert kinds["weights"] >= graphed.resident_bytes()
    eager.close()
    graphed.close()


def test_program_with_random_numbers_runs_without_graphs(tmp_path, caplog):
    model = opened(tmp_path / "1", Draws(), (4,), "true")
    for _ in range(3):
        assert model.run("", {"x": np.ones((2, 4), np.float32)}, ())["output_0"].tolist() == [[1] * 4] * 2
    assert set(graphs_of(model)) == {0}
    assert model.captured_rows == ()
    assert "without CUDA graphs" in caplog.text
    model.close()


def test_graphs_keep_to_their_memory(tmp_path, caplog):
    model = opened(tmp_path / "1", Convnet(), (3, 16, 16), "true", graph_memory_bytes="1")
    assert model.captured_rows == ()
    assert "has CUDA graphs for () rows only: 1 bytes" in caplog.text
    x = np.ones((4, 3, 16, 16), np.float32)
    (name,) = model.signatures["serving_default"].input_names
    assert model.run("", {name: x}, ())["output_0"].shape == (4, 5)
    model.close()


def test_failed_capture_leaves_the_device_as_it_was():
    """What cannot be recorded: the host reads a value. Afterwards memory is given back and captures work again."""
    device, stream = cuda(), torch.cuda.Stream()
    x = torch.ones(4)

    def reads(tensor):
        return tensor * tensor.sum().item()

    def plain(tensor):
        return tensor * 3

    with torch.cuda.stream(stream), torch.inference_mode():
        pool, graphs = MemoryPool(device), StreamGraphs()
        with DEVICE_LOCKS.of(device), pytest.raises(RuntimeError):
            graphs.capture([[x]], reads, capture_on(device, pool), lambda: 0, 0)
        assert len(graphs) == 0
        assert pool.uses() == 1
        assert graphs.run([x], lambda: reads(x.to(device))).tolist() == [4.0] * 4
        pool.drop()
        big = torch.ones(64 << 20, device=device)
        del big
        before = torch.cuda.memory_reserved(device)
        torch.cuda.empty_cache()
        assert before - torch.cuda.memory_reserved(device) >= 4 * (64 << 20)
        pool = MemoryPool(device)
        with DEVICE_LOCKS.of(device):
            reserved = lambda: reserved_bytes(pool.segments())  # noqa: E731
            assert graphs.capture([[x]], plain, capture_on(device, pool), reserved, 1 << 30)
        assert 0 < reserved() < 1 << 30
        for _ in range(4):
            assert graphs.run([x], pytest.fail).tolist() == [3.0] * 4
        graphs.close()
        pool.drop()
    assert not DEVICE_LOCKS.of(device).locked()


def test_captures_loads_and_unloads_beside_each_other(tmp_path):
    torch.manual_seed(0)
    network = Mlp()
    serving = opened(tmp_path / "serving", network, (32,), "true")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 32)).astype(np.float32)
    with torch.inference_mode():
        wanted = network(torch.from_numpy(x))[0].numpy()
    stop, wrong, runs = threading.Event(), [], []

    def serve():
        rows = 0
        while not stop.is_set():
            rows = rows % 64 + 1
            (answer,) = serving.run("", {"x": x[:rows].copy()}, ("output_0",)).values()
            runs.append(rows)
            if not np.allclose(answer, wanted[:rows], atol=1e-4):
                wrong.append(rows)

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(6):
            other = opened(tmp_path / str(number), network, (32,), "true")
            for _ in range(3):
                (answer,) = other.run("", {"x": x}, ("output_0",)).values()
                assert np.allclose(answer, wanted, atol=1e-4)
            other.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    serving.close()
    assert runs
    assert not wrong
