"""Graphs as the file has them, written by hand: what the builder does with healthy ones, and with those that lie."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.errors import refusal
from tfs_lite.adapters.exported.arguments import Named
from tfs_lite.adapters.exported.function import MAX_DEPTH, PART, GraphFunction
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.core.status import StatusCode
from tfs_lite.core.yielding import Yielder

CPU = torch.device("cpu")


def tensor(name):
    return {"as_tensor": {"name": name}}


def node(target, inputs, outputs, **more):
    """``inputs`` are (name, argument) or (name, argument, kind)."""
    entries = [dict(zip(("name", "arg", "kind"), entry, strict=False)) for entry in inputs]
    return {"target": target, "inputs": entries, "outputs": outputs, "metadata": {}, **more}


def add(left, right, result):
    return node("torch.ops.aten.add.Tensor", [("self", left, 1), ("other", right, 1)], [tensor(result)])


def function_of(inputs, nodes, outputs, weights=None):
    writer = GraphFunction(CPU, "model.pt2", Yielder())
    for name in inputs:
        writer.add_input(name)
    for name in weights or ():
        writer.add_weight(name, name)
    for each in nodes:
        writer.add_node(each)
    writer.set_outputs([Named(name) for name in outputs])
    return writer.make(weights or {})


def test_a_node_calls_its_operator_with_values_weights_and_constants():
    scaled = node(
        "torch.ops.aten.add.Tensor",
        [("self", tensor("x"), 1), ("other", tensor("w"), 1), ("alpha", {"as_int": 3}, 2)],
        [tensor("y")],
    )
    forward = function_of(["x"], [scaled], ["y", "x", "w"], {"w": torch.tensor([2.0])})
    assert [value.tolist() for value in forward(torch.tensor([1.0]))] == [[7.0], [1.0], [2.0]]


def test_arguments_go_by_the_schema_whatever_their_order_in_the_file():
    swapped = node("torch.ops.aten.sub.Tensor", [("other", tensor("b"), 1), ("self", tensor("a"), 1)], [tensor("y")])
    (result,) = function_of(["a", "b"], [swapped], ["y"])(torch.tensor(5), torch.tensor(3))
    assert result == 2


def test_arguments_after_a_gap_and_those_of_older_files_are_given_by_name():
    total = node(
        "torch.ops.aten.sum.dim_IntList",
        [("self", tensor("x")), ("dim", {"as_ints": [1]}), ("dtype", {"as_scalar_type": 8})],
        [tensor("y")],
    )
    (result,) = function_of(["x"], [total], ["y"])(torch.ones(2, 3))
    assert result.dtype is torch.float64
    assert result.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("count", [1, PART - 1, PART, PART + 1, 3 * PART + 7])
def test_graphs_of_any_length_are_one_function(count):
    nodes = [add(tensor(f"v{index}"), tensor("v0"), f"v{index + 1}") for index in range(count)]
    (result, first) = function_of(["v0"], nodes, [f"v{count}", "v0"])(torch.tensor(1))
    assert (result, first) == (count + 1, 1)


class LiveResults(TorchDispatchMode):
    """Counts the results of operators that are alive when the next operator runs."""

    def __init__(self):
        super().__init__()
        self.results = []
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.most = max(self.most, sum(result() is not None for result in self.results))
        result = func(*args, **(kwargs or {}))
        self.results.append(weakref.ref(result))
        return result


def test_a_value_is_freed_after_its_last_use():
    nodes = [add(tensor(f"v{index}"), tensor(f"v{index}"), f"v{index + 1}") for index in range(3 * PART)]
    forward = function_of(["v0"], nodes, [f"v{3 * PART}"])
    x = torch.zeros(2)
    with LiveResults() as live:
        forward(x)
    assert len(live.results) == 3 * PART
    assert live.most == 1


def test_dropping_the_function_frees_the_weights_without_a_garbage_collection():
    weight = torch.ones(3)
    gone = weakref.ref(weight)
    forward = function_of(["x"], [add(tensor("x"), tensor("w"), "y")], ["y"], {"w": weight})
    forward(torch.ones(3))
    gc.disable()
    try:
        del weight, forward
        assert gone() is None
    finally:
        gc.enable()


def test_a_result_with_more_items_than_the_file_names_is_cut():
    split = node(
        "torch.ops.aten.split.Tensor",
        [("self", tensor("x"), 1), ("split_size", {"as_int": 2}, 1)],
        [{"as_tensors": [{"name": "a"}, {"name": "b"}]}],
    )
    results = function_of(["x"], [split], ["a", "b"])(torch.arange(7))
    assert [result.tolist() for result in results] == [[0, 1], [2, 3]]


def test_several_results_are_told_apart():
    top = node(
        "torch.ops.aten.topk.default",
        [("self", tensor("x"), 1), ("k", {"as_sym_int": {"as_name": "n"}}, 1)],
        [tensor("values"), tensor("indices")],
    )
    size = node(
        "torch.ops.aten.sym_size.int",
        [("self", tensor("x"), 1), ("dim", {"as_int": 0}, 1)],
        [{"as_sym_int": {"as_name": "n"}}],
    )
    values, indices = function_of(["x"], [size, top], ["values", "indices"])(torch.tensor([1.0, 3.0]))
    assert (values.tolist(), indices.tolist()) == ([3.0, 1.0], [1, 0])


def test_a_branch_runs_the_graph_that_its_predicate_chooses():
    def graph(target):
        inner = node(target, [("self", tensor("a"), 1)], [tensor("r")])
        return {
            "as_graph": {"name": "g", "graph": {"inputs": [tensor("a")], "nodes": [inner], "outputs": [tensor("r")]}}
        }

    cond = node(
        "torch.ops.higher_order.cond",
        [
            ("", tensor("p"), 1),
            ("", graph("torch.ops.aten.neg.default"), 1),
            ("", graph("torch.ops.aten.abs.default"), 1),
            ("", {"as_tensors": [{"name": "x"}]}, 1),
        ],
        [tensor("y")],
        is_hop_single_tensor_return=False,
    )
    forward = function_of(["p", "x"], [cond], ["y"])
    x = torch.tensor([-2.0])
    assert forward(torch.tensor(True), x)[0] == 2
    assert forward(torch.tensor(False), x)[0] == 2
    assert forward(torch.tensor(True), -x)[0] == -2


LIES = {
    "uses a value that is not there": [add(tensor("x"), tensor("y"), "z")],
    "uses a value before it is made": [add(tensor("x"), tensor("z"), "y"), add(tensor("x"), tensor("x"), "z")],
    "makes a value twice": [add(tensor("x"), tensor("x"), "y"), add(tensor("x"), tensor("x"), "y")],
    "makes an input again": [add(tensor("x"), tensor("x"), "x")],
    "gives an argument twice": [
        node("torch.ops.aten.neg.default", [("self", tensor("x"), 1), ("self", tensor("x"), 1)], [tensor("y")])
    ],
}


@pytest.mark.parametrize("nodes", LIES.values(), ids=LIES)
def test_a_graph_that_contradicts_itself_is_damage(nodes):
    refusal(function_of, ["x"], nodes, [], code=StatusCode.DATA_LOSS)


def nested(depth):
    graph = {"inputs": [], "nodes": [], "outputs": []}
    for _ in range(depth):
        call = node(
            "torch.ops.higher_order.wrap_with_set_grad_enabled",
            [("", {"as_bool": False}, 1), ("", {"as_graph": {"graph": graph}}, 1)],
            [],
        )
        graph = {"inputs": [], "nodes": [call], "outputs": []}
    return graph["nodes"]


UNKNOWN = {
    "operator of a library": [node("torch.ops.mylib.run.default", [], [])],
    "operator that reads files": [
        node("torch.ops.aten.from_file.default", [("filename", {"as_string": "/etc/passwd"}, 1)], [tensor("y")])
    ],
    "operator for scripts": [node("torch.ops.aten.save.default", [], [])],
    "operator that makes a tensor point elsewhere": [
        node("torch.ops.aten.set_.source_Tensor", [("self", tensor("x"), 1), ("source", tensor("x"), 1)], [tensor("y")])
    ],
    "operator that no torch has": [node("torch.ops.aten.does_not_exist.default", [], [])],
    "attribute of an operator": [node("torch.ops.aten.add.__init__", [], [])],
    "attribute of torch": [node("torch.os.system", [("command", {"as_string": "id"}, 1)], [])],
    "argument that the operator lacks": [
        node("torch.ops.aten.neg.default", [("self", tensor("x"), 1), ("mode", {"as_int": 1}, 1)], [tensor("y")])
    ],
    "kind of argument": [node("torch.ops.aten.neg.default", [("self", {"as_magic": 1}, 1)], [tensor("y")])],
    "custom object": [
        node(
            "torch.ops.aten.neg.default",
            [("self", {"as_custom_obj": {"name": "x", "class_fqn": "y"}}, 1)],
            [tensor("y")],
        )
    ],
    "kind of result": [node("torch.ops.aten.neg.default", [("self", tensor("x"), 1)], [{"as_magic": 1}])],
    "device": [
        node(
            "torch.ops.aten.zeros.default",
            [("size", {"as_ints": [1]}, 1), ("device", {"as_device": {"type": "meta"}}, 2)],
            [tensor("y")],
        )
    ],
    "arithmetic on a list": [
        node(
            "_operator.mul",
            [("a", {"as_ints": [0]}, 1), ("b", {"as_int": 10**9}, 1)],
            [{"as_sym_int": {"as_name": "n"}}],
        )
    ],
    "argument by position after one that is missing": [
        node("torch.ops.aten.slice.Tensor", [("self", tensor("x"), 1), ("end", {"as_int": 2}, 1)], [tensor("y")])
    ],
    "flag that is no boolean": [
        node(
            "torch.ops.higher_order.wrap_with_set_grad_enabled",
            [("", {"as_bool": False}, 1), ("", {"as_graph": {"graph": {"inputs": [], "nodes": [], "outputs": []}}}, 1)],
            [tensor("y")],
            is_hop_single_tensor_return="sum",
        )
    ],
    "way in which an argument is given": [
        node("torch.ops.aten.neg.default", [("self", tensor("x"), 3)], [tensor("y")])
    ],
    "graphs inside graphs without end": nested(MAX_DEPTH + 1),
}


@pytest.mark.parametrize("nodes", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_for_torchs_own_loader(nodes):
    with pytest.raises(UnsupportedProgram):
        function_of(["x"], nodes, [])


def test_graphs_inside_graphs_are_built_up_to_a_depth():
    assert function_of([], nested(MAX_DEPTH), [])() == ()


@pytest.mark.parametrize("function", ["mul", "pow", "lshift"])
def test_sizes_cannot_grow_until_the_memory_is_full(function):
    size = {"as_sym_int": {"as_name": "n0"}}
    nodes = [node("torch.ops.aten.sym_size.int", [("self", tensor("x"), 1), ("dim", {"as_int": 0}, 1)], [size])]
    for index in range(40):
        operands = [
            ("a", {"as_sym_int": {"as_name": f"n{index}"}}, 1),
            ("b", {"as_sym_int": {"as_name": f"n{index}"}}, 1),
        ]
        nodes.append(node(f"_operator.{function}", operands, [{"as_sym_int": {"as_name": f"n{index + 1}"}}]))
    forward = function_of(["x"], nodes, [])
    with pytest.raises(OverflowError):
        forward(torch.zeros(9))


def test_the_wrong_number_of_inputs_is_an_error():
    forward = function_of(["x"], [], ["x"])
    with pytest.raises(TypeError, match="takes 1 inputs, got 2"):
        forward(torch.ones(1), torch.ones(1))
