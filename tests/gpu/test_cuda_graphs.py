"""CUDA graphs on a real GPU. Skipped everywhere else."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from tfs_lite.adapters.cuda.graphs import WARM_RUNS, GraphSwitch, StreamGraphs, capture_on
from tfs_lite.adapters.cuda.graphs import GraphPlan as Plan
from tfs_lite.adapters.cuda.memory import DEVICE_LOCKS, Pool
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ID = ServableId("m", 1)


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


def opened(directory, module, item, graphs):
    directory.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(2, *item)
    program = torch.export.export(module.eval(), (example,), dynamic_shapes=({0: torch.export.Dim("rows", max=64)},))
    torch.export.save(program, directory / "model.pt2")
    settings = ModelSettings(parameters={"cuda_graphs": graphs})
    return open_exported(OpenRequest(ID, read_version(str(directory)), str(cuda()), False, settings))


def graphs_of(model):
    """The shapes that the stream of this thread has recorded."""
    with model._streams.for_run() as stream:
        return [] if stream.graphs is None else list(stream.graphs._captured)


@pytest.mark.parametrize(("module", "item"), CASES)
def test_graphs_answer_as_ordinary_runs_do(tmp_path, module, item):
    torch.manual_seed(0)
    network = module()
    eager = opened(tmp_path / "eager", network, item, "false")
    graphed = opened(tmp_path / "graphed", network, item, "true")
    (name,) = eager.signatures["serving_default"].input_names
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(WARM_RUNS + 4):
        for rows in (1, 4, 7):
            x = {name: rng.standard_normal((rows, *item)).astype(np.float32)}
            wanted, got = eager.run("", x, ()), graphed.run("", x, ())
            assert list(wanted) == list(got)
            kept.append((wanted, got))
    for wanted, got in kept:
        for output in wanted:
            assert np.allclose(wanted[output], got[output], atol=1e-5)
    assert len(graphs_of(graphed)) == 3
    assert graphs_of(eager) == []
    eager.close()
    graphed.close()


def test_program_with_random_numbers_runs_without_graphs(tmp_path, caplog):
    model = opened(tmp_path / "1", Draws(), (4,), "true")
    for _ in range(WARM_RUNS + 2):
        assert model.run("", {"x": np.ones((2, 4), np.float32)}, ())["output_0"].tolist() == [[1] * 4] * 2
    assert graphs_of(model) == []
    assert "without CUDA graphs" in caplog.text
    model.close()


def test_failed_capture_leaves_the_device_as_it_was(caplog):
    """What cannot be recorded: the host reads a value. Afterwards memory is given back and captures work again."""
    device, stream = cuda(), torch.cuda.Stream()
    x = torch.ones(4)

    def reads(tensor):
        return tensor * tensor.sum().item()

    def plain(tensor):
        return tensor * 3

    with torch.cuda.stream(stream), torch.inference_mode():
        pool, switch = Pool(device), GraphSwitch(ID)
        graphs = StreamGraphs(device, switch, capture_on(device, pool), Plan(warm_runs=1))
        for _ in range(4):
            answer = graphs.run([x], reads, lambda: reads(x.to(device)))
            assert answer.tolist() == [4.0] * 4
        assert not switch.on
        assert pool.uses() == 1
        assert "without CUDA graphs" in caplog.text
        graphs.close()
        pool.drop()
        big = torch.ones(64 << 20, device=device)
        del big
        before = torch.cuda.memory_reserved(device)
        torch.cuda.empty_cache()
        assert before - torch.cuda.memory_reserved(device) >= 4 * (64 << 20)
        pool = Pool(device)
        graphs = StreamGraphs(device, GraphSwitch(ID), capture_on(device, pool), Plan(warm_runs=1))
        for _ in range(4):
            assert graphs.run([x], plain, lambda: plain(x.to(device))).tolist() == [3.0] * 4
        assert len(graphs._captured) == 1
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
            for _ in range(WARM_RUNS + 2):
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
