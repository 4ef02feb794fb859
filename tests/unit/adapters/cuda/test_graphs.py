from __future__ import annotations

import io

import pytest
import torch

from tfs_lite.adapters.cuda.graphs import (
    Captured,
    GraphPlan,
    GraphSwitch,
    Step,
    StreamGraphs,
    wants_graphs,
    why_no_graph,
)
from tfs_lite.adapters.cuda.memory import DEVICE_LOCKS
from tfs_lite.adapters.exported.program import open_program
from tfs_lite.adapters.inspect.archive import open_archive
from tfs_lite.adapters.pytorch.tensors import CPU
from tfs_lite.core.servable import ServableId

ID = ServableId("m", 1)


def test_a_shape_is_captured_after_its_warm_runs_and_replayed_from_then_on():
    plan = GraphPlan(warm_runs=2)
    assert [plan.step("a", True) for _ in range(4)] == [Step.EAGER, Step.EAGER, Step.CAPTURE, Step.CAPTURE]
    plan.captured("a")
    assert plan.step("a", True) is Step.REPLAY
    assert plan.step("a", False) is Step.REPLAY
    assert plan.step("b", False) is Step.EAGER


def test_graphs_and_what_is_remembered_of_shapes_are_bounded():
    plan = GraphPlan(warm_runs=1, max_graphs=2, max_seen=3)
    for key in ("a", "b"):
        assert [plan.step(key, True) for _ in range(2)] == [Step.EAGER, Step.CAPTURE]
        plan.captured(key)
    assert [plan.step("c", True) for _ in range(5)] == [Step.EAGER] * 5
    plan = GraphPlan(warm_runs=1, max_seen=2)
    assert [plan.step(key, True) for key in ("a", "b", "c", "a", "a")] == [Step.EAGER] * 4 + [Step.CAPTURE]


@pytest.mark.parametrize(("text", "wanted"), [("true", True), ("True", True), ("false", False), ("", False)])
def test_graphs_are_asked_for_by_a_parameter(text, wanted):
    assert wants_graphs({"cuda_graphs": text}) is wanted
    assert not wants_graphs({})


class Square(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.relu(x) * x


class Random(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Picks(torch.nn.Module):
    def forward(self, x):
        return x[x > 0]


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))


@pytest.mark.parametrize(
    ("module", "reason"), [(Square(), ""), (Random(), "rand"), (Picks(), "nonzero|index"), (Branches(), "branches")]
)
def test_programs_that_cannot_be_recorded_are_told_before_anything_is_tried(module, reason):
    data = io.BytesIO()
    torch.export.save(torch.export.export(module, (torch.ones(2, 2),)), data)
    with open_archive(data, "model.pt2") as archive:
        found = why_no_graph(open_program(archive, CPU).operators)
    assert bool(found) is bool(reason)
    if reason:
        assert any(word in found for word in reason.split("|"))


# Graphs: what is done. A record is played here by running the function again on the same tensors.


def recorded(host, forward):
    inputs = [tensor.clone() for tensor in host]
    result = forward(*inputs)

    def replay():
        result.copy_(forward(*inputs))

    return Captured(inputs, result, replay, lambda: None)


def graphs_with(capture, switch=None):
    return StreamGraphs(CPU, switch or GraphSwitch(ID), capture, GraphPlan(warm_runs=1))


def run(graphs, value, rows=2):
    tensor = torch.full((rows,), float(value))
    return graphs.run([tensor], torch.square, lambda: torch.square(tensor)).tolist()


def test_replays_answer_for_the_inputs_of_their_own_run():
    captures = []

    def capture(host, forward):
        captures.append(tuple(host[0].shape))
        return recorded(host, forward)

    graphs = graphs_with(capture)
    for value in range(5):
        assert run(graphs, value) == [value**2] * 2
        assert run(graphs, value, rows=3) == [value**2] * 3
        assert run(graphs, value, rows=0) == []
    assert captures == [(2,), (3,)]
    graphs.close()


def test_after_a_failed_capture_every_stream_runs_as_ever_and_the_log_says_it_once(caplog):
    attempts = []

    def fail(host, forward):
        attempts.append(1)
        raise RuntimeError("operation not permitted when stream is capturing\n  at /opt/secret/place.cpp")

    switch = GraphSwitch(ID)
    streams = [graphs_with(fail, switch), graphs_with(fail, switch)]
    for value in range(4):
        assert [run(stream, value) for stream in streams] == [[value**2] * 2] * 2
    assert len(attempts) == 1
    (record,) = (record for record in caplog.records if "CUDA graphs" in record.message)
    assert "not permitted when stream is capturing" in record.message
    assert "secret" not in record.message


def test_a_capture_never_waits_for_another_one_but_is_tried_again():
    graphs = graphs_with(recorded)
    with DEVICE_LOCKS.of(CPU):
        assert [run(graphs, value) for value in range(3)] == [[0, 0], [1, 1], [4, 4]]
        assert not graphs._captured
    assert run(graphs, 3) == [9, 9]
    assert len(graphs._captured) == 1
    assert not DEVICE_LOCKS.of(CPU).locked()
