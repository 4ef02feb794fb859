from __future__ import annotations

import dataclasses
import io

import pytest
import torch

from tests.support.errors import refusal
from tfs_lite.adapters.cuda.graphs import Captured, StreamGraphs, graph_shapes, wants_graphs, why_no_graph
from tfs_lite.adapters.exported.document import read_document
from tfs_lite.adapters.exported.program import build_program
from tfs_lite.adapters.inspect.archive import open_archive
from tfs_lite.adapters.pytorch.tensors import CPU
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.conditions import read_conditions


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
        found = why_no_graph(build_program(archive, read_document(archive, False), CPU).operators)
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


def captured(rows, capture=recorded, reserved=lambda: 0, most_bytes=0):
    graphs = StreamGraphs()
    fits = graphs.capture([[torch.zeros(count)] for count in rows], torch.square, capture, reserved, most_bytes)
    return graphs, fits


def run(graphs, value, rows):
    """The result, and whether a graph was replayed for it."""
    tensor, ordinary = torch.full((rows,), float(value)), []

    def eager():
        ordinary.append(1)
        return torch.square(tensor)

    return graphs.run([tensor], eager).tolist(), not ordinary


def test_replays_answer_for_the_inputs_of_their_own_run_and_other_shapes_run_as_ever():
    graphs, fits = captured([4, 2])
    assert fits
    for value in range(3):
        for rows in (4, 2):
            assert run(graphs, value, rows) == ([value**2] * rows, True)
        for rows in (3, 0):
            assert run(graphs, value, rows) == ([value**2] * rows, False)
    graphs.close()
    assert run(graphs, 2, 4) == ([4.0] * 4, False)


@pytest.mark.parametrize(("most_bytes", "fits"), [(0, True), (7, True), (6, False), (3, False)])
def test_graphs_that_need_more_memory_than_they_may_leave_none_behind(most_bytes, fits):
    held = []

    def capture(host, forward):
        held.append(len(host[0]))
        return dataclasses.replace(recorded(host, forward), forget=lambda: held.remove(len(host[0])))

    graphs, found = captured([4, 2, 1], capture, lambda: sum(held), most_bytes)
    assert (found, len(graphs), held) == ((True, 3, [4, 2, 1]) if fits else (False, 0, []))
    graphs.close()
    assert held == []


def test_a_failed_capture_leaves_nothing_behind():
    forgotten = []

    def capture(host, forward):
        if len(host[0]) == 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return dataclasses.replace(recorded(host, forward), forget=lambda: forgotten.append(len(host[0])))

    graphs = StreamGraphs()
    with pytest.raises(RuntimeError, match="not permitted"):
        graphs.capture([[torch.zeros(rows)] for rows in (4, 2, 1)], torch.square, capture, lambda: 0, 0)
    assert (forgotten, len(graphs)) == ([4, 2], 0)


def signature(**shapes):
    return Signature(tuple(TensorSpec(name, DataType.FLOAT, shape) for name, shape in shapes.items()), ())


def test_inputs_of_the_graphs_are_those_of_the_batches_to_come_the_largest_first():
    rows = SymbolicDim("rows", 16)
    found = graph_shapes(signature(x=(rows, 3), y=(rows,)), (1, 4, 16, 64))
    assert [[shape for shape, _ in inputs] for inputs in found] == [[(16, 3), (16,)], [(4, 3), (4,)], [(1, 3), (1,)]]
    assert {dtype for inputs in found for _, dtype in inputs} == {DataType.FLOAT}
    assert graph_shapes(signature(x=(2, 3)), (1, 4)) == [[((2, 3), DataType.FLOAT)]]


def test_graphs_are_captured_only_for_rows_that_the_model_takes():
    conditions = read_conditions([("x", 0)], ["n0 >= 4"])
    taken = dataclasses.replace(signature(x=(SymbolicDim("rows"), 3)), conditions=conditions)
    assert [shape for ((shape, _),) in graph_shapes(taken, (1, 4, 16))] == [(16, 3), (4, 3)]


@pytest.mark.parametrize("shape", [(SymbolicDim("rows"), SymbolicDim("length")), None])
def test_no_graphs_for_inputs_whose_other_sizes_are_not_known(shape):
    said = refusal(graph_shapes, signature(x=shape), (1,), code=StatusCode.UNIMPLEMENTED)
    assert said == "the sizes of input x differ between requests"
