"""Execution streams on a real GPU. Skipped everywhere else."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from tests.support.servers.platforms import WIDTH, write_exported, write_script
from tfs_lite.adapters.cuda.memory import DEVICE_LOCKS, HostBuffers, MemoryPool, empty_caches
from tfs_lite.adapters.cuda.streams import MAX_CONCURRENCY
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.adapters.pytorch.libtorch import open_script
from tfs_lite.adapters.pytorch.tensors import CPU, TORCH_DTYPES, to_arrays, to_tensor
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import to_numpy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ID = ServableId("m", 1)
FLOAT = np.dtype(np.float32)
TEXT = np.dtype(object)
SLACK = 8 << 20


def cuda():
    return torch.device("cuda", 0)


def request(directory, **parameters):
    settings = ModelSettings(parameters=parameters)
    return OpenRequest(ID, read_version(str(directory)), str(cuda()), False, settings, batch_rows=(2, 8))


def export(directory, module, example, dynamic=True):
    directory.mkdir(parents=True, exist_ok=True)
    rows = ({0: torch.export.Dim("rows", max=256)},) if dynamic else None
    torch.export.save(torch.export.export(module.eval(), (example,), dynamic_shapes=rows), directory / "model.pt2")
    return directory


class Net(torch.nn.Module):
    """Deep enough that two runs overlap on the device."""

    def __init__(self, width=64, depth=24):
        super().__init__()
        layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x):
        return {"y": self.layers(x), "sum": x.sum(1)}


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_every_type_survives_the_way_from_pinned_memory_to_the_gpu_and_back(dtype):
    buffers = HostBuffers(pinned=True)
    for shape in ((2, 3), (), (0, 3)):
        array = buffers.get({"x": (shape, to_numpy(dtype))})["x"]
        array[...] = (np.arange(array.size) % 2).reshape(shape).astype(array.dtype)
        host = to_tensor(array, CPU, share=True)
        assert array.size == 0 or (host.data_ptr() == array.ctypes.data and host.is_pinned())
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            back = to_arrays({"y": host.to(cuda(), non_blocking=True)}, cuda())["y"]
        assert back.dtype == array.dtype
        assert back.tobytes() == array.tobytes()
        assert not np.shares_memory(back, array)


def test_model_stages_pinned_memory_and_leaves_texts_out(tmp_path):
    model = open_exported(request(write_exported(tmp_path / "1")))
    staged = model.stage("", {"x": ((3, WIDTH), FLOAT), "t": ((3,), TEXT)})
    assert list(staged) == ["x"]
    assert torch.from_numpy(staged["x"]).is_pinned()
    for value in range(5):
        staged = model.stage("", {"x": ((3, WIDTH), FLOAT)})
        staged["x"][...] = value
        answer = model.run("", staged, ("y",))["y"]
        staged["x"][...] = -1
        assert answer.tolist() == [[2 * value] * WIDTH] * 3
    assert (model.concurrency, model.useful_threads) == (MAX_CONCURRENCY, 2)
    model.close()


def test_arrays_that_were_not_staged_are_as_good(tmp_path):
    model = open_exported(request(write_exported(tmp_path / "1")))
    array = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    array.flags.writeable = False
    for x in (array, np.asfortranarray(array), array.astype(">f4")):
        assert model.run("", {"x": x}, ("y",))["y"].tolist() == (2 * array).tolist()
    model.close()


def test_script_has_one_stream(tmp_path):
    class Doubles(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    model = open_script(request(write_script(tmp_path / "1", Doubles())))
    assert (model.concurrency, model.useful_threads) == (1, 1)
    for value in range(4):
        staged = model.stage("", {"x": ((2, WIDTH), FLOAT)})
        staged["x"][...] = value
        (answer,) = model.run("", staged, ()).values()
        assert answer.tolist() == [[2 * value] * WIDTH] * 2
    model.close()


@pytest.mark.parametrize("graphs", ["false", "true"])
@pytest.mark.parametrize("models", [1, 2])
def test_streams_beside_each_other_give_right_answers(tmp_path, graphs, models):
    torch.manual_seed(0)
    modules = [Net() for _ in range(models)]
    opened = [
        open_exported(request(export(tmp_path / str(i), module, torch.zeros(2, 64)), cuda_graphs=graphs))
        for i, module in enumerate(modules)
    ]
    rng = np.random.default_rng(0)
    samples = [rng.standard_normal((rows, 64)).astype(np.float32) for rows in (1, 4, 16, 64, 256) for _ in range(3)]
    with torch.inference_mode():
        wanted = [[module(torch.from_numpy(x))["y"].numpy() for x in samples] for module in modules]
    wrong, done = [], []
    together = threading.Barrier(4, timeout=120)

    def work(thread):
        order = np.random.default_rng(thread)
        model = thread % models
        for step in range(200):
            index = int(order.integers(len(samples)))
            x = samples[index]
            staged = opened[model].stage("", {"x": (x.shape, x.dtype)})
            staged["x"][...] = x
            if step % 20 == 0:
                together.wait()
            answer = opened[model].run("", staged, ("y", "sum"))
            staged["x"][...] = np.nan
            if not np.allclose(answer["y"], wanted[model][index], atol=1e-3):
                wrong.append((thread, step))
            if not np.allclose(answer["sum"], x.sum(1), atol=1e-3):
                wrong.append((thread, step))
        done.append(thread)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    for model in opened:
        model.close()
    assert sorted(done) == [0, 1, 2, 3]
    assert not wrong


def test_a_run_does_not_wait_for_what_other_streams_do(tmp_path):
    """The other stream waits for an event that comes only after the run: waiting for all streams would never end."""
    model = open_exported(request(write_exported(tmp_path / "1")))
    x = {"x": np.ones((1, WIDTH), np.float32)}
    model.run("", x, ())
    with model._streams.for_run() as stream:
        taken = stream.cuda_stream
    busy = next(stream for stream in iter(torch.cuda.Stream, None) if stream != taken)
    answers, finished = [], threading.Event()

    def work():
        answers.append(model.run("", x, ("y",))["y"].tolist())
        finished.set()

    thread = threading.Thread(target=work)
    with torch.cuda.stream(busy):
        torch.cuda._sleep(20_000_000_000)  # cycles of the device: some ten seconds
    thread.start()
    assert finished.wait(60)
    still_busy = not busy.query()
    thread.join(60)
    busy.synchronize()
    model.close()
    assert answers == [[[2.0] * WIDTH]]
    assert still_busy


def test_a_failed_run_leaves_the_stream_usable(tmp_path):
    model = open_exported(request(export(tmp_path / "1", Net(), torch.zeros(2, 64))))
    for _ in range(3):
        with pytest.raises(ServingError):
            model.run("", {"x": np.zeros((2, 65), np.float32)}, ())
        assert model.run("", {"x": np.zeros((2, 64), np.float32)}, ("sum",))["sum"].tolist() == [0, 0]
    model.close()


def reserved():
    gc.collect()
    empty_caches()
    return torch.cuda.memory_reserved(0)


@pytest.mark.parametrize("graphs", ["false", "true"])
def test_what_a_version_took_goes_back_while_others_stay(tmp_path, graphs):
    class Many(torch.nn.Module):
        """Many tensors that share segments with one another."""

        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.zeros(300_000) for _ in range(60))

        def forward(self, x):
            for weight in self.weights:
                x = x + weight[:WIDTH]
            return x

    directory = export(tmp_path / "1", Many(), torch.zeros(2, WIDTH))

    def opened():
        model = open_exported(request(directory, cuda_graphs=graphs))
        for _ in range(5):
            assert model.run("", {"x": np.zeros((2, WIDTH), np.float32)}, ())["output_0"].tolist() == [[0] * WIDTH] * 2
        return model

    opened().close()
    start = reserved()
    models = [opened() for _ in range(4)]
    assert reserved() - start > 4 * 60 * 300_000 * 4 * 0.95
    kept = models.pop(1)
    for model in models:
        model.close()
    models.clear()
    del model
    with_one = reserved()
    assert with_one - start < 60 * 300_000 * 4 + 4 * SLACK
    assert kept.run("", {"x": np.ones((2, WIDTH), np.float32)}, ())["output_0"].tolist() == [[1] * WIDTH] * 2
    kept.close()
    del kept
    assert reserved() - start <= SLACK


def test_memory_stays_level_over_many_swaps(tmp_path):
    directory = export(tmp_path / "1", Net(256), torch.zeros(2, 256))
    levels = []
    for _ in range(12):
        model = open_exported(request(directory, cuda_graphs="true"))
        for _ in range(4):
            model.run("", {"x": np.zeros((8, 256), np.float32)}, ())
        model.close()
        del model
        levels.append(reserved())
    assert max(levels[2:]) - levels[1] <= SLACK


def test_pool_is_dropped_while_another_thread_allocates_in_its_own():
    mine, other = MemoryPool(cuda()), MemoryPool(cuda())
    tensor = mine.allocate(lambda: torch.ones(1 << 20, device=cuda()))
    assert tensor.sum().item() == 1 << 20
    with torch.cuda.use_mem_pool(other._pool, cuda()):
        del tensor
        mine.drop()
    other.drop()
    assert not DEVICE_LOCKS.of(cuda()).locked()


def test_what_outlives_its_pool_is_given_back_later():
    before = reserved()
    pool = MemoryPool(cuda())
    tensor = pool.allocate(lambda: torch.ones(16 << 20, device=cuda()))
    pool.drop()
    assert tensor.sum().item() == 16 << 20
    del tensor
    assert reserved() <= before
