from __future__ import annotations

import io
import threading

import numpy as np
import pytest
import torch

from tfs_lite.adapters.cuda.memory import HostBuffers
from tfs_lite.adapters.cuda.streams import MAX_CONCURRENCY, ExecutionStream, ExecutionStreams, open_pool, open_streams
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.adapters.pytorch.tensors import CPU
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError

FLOAT = np.dtype(np.float32)


def test_a_thread_keeps_its_stream_until_it_releases_it_and_gets_it_again():
    streams = ExecutionStreams(object)
    mine = streams.current()
    assert streams.current() is mine
    streams.release()
    streams.release()
    assert streams.current() is mine
    assert streams.take_all() == [mine]


def test_two_threads_have_two_streams_and_later_threads_take_over_what_is_free():
    streams = ExecutionStreams(object)
    both = threading.Barrier(2, timeout=30)
    seen = []

    def work():
        for _ in range(50):
            stream = streams.current()
            both.wait()
            seen.append(stream)
            assert streams.current() is stream
            both.wait()
            streams.release()
            both.wait()

    for _ in range(3):
        before = len(seen)
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(seen) == before + 100
        assert all(len({id(stream) for stream in seen[i : i + 2]}) == 2 for i in range(before, len(seen), 2))
    assert len(streams.take_all()) == 2


# A whole model with streams, on the CPU's tensors


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))

    def forward(self, x):
        return {"y": self.layers(x), "half": x.bfloat16()}


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))


def program_of(module, *args):
    dynamic = tuple({0: torch.export.Dim("rows", max=64)} for _ in args)
    program = torch.export.export(module.eval(), args, dynamic_shapes=dynamic)
    data = io.BytesIO()
    torch.export.save(program, data)
    return program, data.getvalue()


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return (module := Net()), program_of(module, torch.zeros(2, 4))


@pytest.fixture
def with_streams(net, tmp_path, request_for, monkeypatch):
    """The model with streams as on a GPU, but with memory and streams of the CPU."""
    _, (_, data) = net
    (tmp_path / "model.pt2").write_bytes(data)
    streams = ExecutionStreams(lambda: ExecutionStream(CPU, None, HostBuffers(pinned=False)))
    monkeypatch.setattr("tfs_lite.adapters.pytorch.export.open_streams", lambda device: streams)
    model = open_exported(request_for(tmp_path))
    yield model
    model.close()


def expected(module, x):
    with torch.inference_mode():
        return module(torch.from_numpy(x))["y"].numpy()


def test_staged_inputs_are_read_where_they_are_and_results_do_not_change_afterwards(net, with_streams):
    results = []
    for value in range(4):
        staged = with_streams.stage("", {"x": ((2, 4), FLOAT)})
        staged["x"][...] = value
        results.append((with_streams.run("", staged, ()), staged["x"].copy()))
    for result, x in results:
        assert np.allclose(result["y"], expected(net[0], x), atol=1e-6)
        assert result["half"].tolist() == x.tolist()


def test_threads_beside_each_other_get_their_own_answers(net, with_streams):
    assert (with_streams.concurrency, with_streams.useful_threads) == (MAX_CONCURRENCY, 2)
    wrong, done = [], []
    inside = threading.Barrier(4, timeout=60)

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            rows = int(rng.integers(1, 5))
            staged = with_streams.stage("", {"x": ((rows, 4), FLOAT)})
            staged["x"][...] = x = rng.standard_normal((rows, 4)).astype(np.float32)
            inside.wait()
            if not np.allclose(with_streams.run("", staged, ("y",))["y"], expected(net[0], x), atol=1e-5):
                wrong.append(seed)
        done.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(done) == [0, 1, 2, 3]
    assert not wrong


@pytest.mark.skipif(torch.cuda.is_available(), reason="here a capture works")
def test_after_a_failed_capture_the_model_runs_as_ever_and_the_log_says_why(net, with_streams, caplog):
    with_streams.capture([[((2, 4), DataType.FLOAT)]], lambda x: x, 0)
    assert "runs without CUDA graphs: the capture failed: " in caplog.text
    assert with_streams.captured_rows == ()
    x = np.ones((2, 4), np.float32)
    assert np.allclose(with_streams.run("", {"x": x}, ("y",))["y"], expected(net[0], x), atol=1e-6)


def test_a_run_that_fails_releases_its_stream(with_streams):
    staged = with_streams.stage("", {"x": ((2, 4), FLOAT)})
    with pytest.raises(ServingError):
        with_streams.run("", {"x": np.zeros((2, 5), np.float32)}, ())
    assert with_streams.stage("", {"x": ((2, 4), FLOAT)})["x"] is staged["x"]
    assert not with_streams.stream.kept
    with_streams.run("", staged, ())


def test_on_the_cpu_there_are_no_streams(net, tmp_path, request_for):
    assert open_streams(CPU) is None
    assert open_pool(CPU) is None
    (tmp_path / "model.pt2").write_bytes(net[1][1])
    model = open_exported(request_for(tmp_path, ModelSettings(parameters={"cuda_graphs": "true"})))
    assert model.stage("", {"x": ((2, 4), FLOAT)}) is None
    assert (model.concurrency, model.useful_threads) == (MAX_CONCURRENCY, 1)
    x = np.ones((2, 4), np.float32)
    assert np.allclose(model.run("", {"x": x}, ("y",))["y"], expected(net[0], x), atol=1e-6)
    model.close()


@pytest.mark.parametrize(("module", "alone"), [(Counter(), True), (Branches(), False)])
def test_a_program_that_keeps_state_is_run_by_one_thread_at_a_time(module, alone, tmp_path, request_for):
    program = torch.export.export(module.eval(), (torch.ones(2, 2),))
    torch.export.save(program, tmp_path / "model.pt2")
    model = open_exported(request_for(tmp_path))
    assert (model.concurrency == 1) is alone
    model.close()
