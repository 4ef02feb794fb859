from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.errors import refusal
from tfs_lite.adapters.onnx.model import PLATFORM, open_in_process, open_onnx
from tfs_lite.adapters.opening import NeedsProcess
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.status import ServingError, StatusCode

from .conftest import value

DENIED, REFUSED, LOST = StatusCode.PERMISSION_DENIED, StatusCode.FAILED_PRECONDITION, StatusCode.DATA_LOSS


def ints(name, *numbers):
    return helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def external(location, **fields):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, content in {"location": location, **fields}.items():
        if content is not None:
            tensor.external_data.add(key=key, value=content)
    return tensor


@pytest.fixture
def with_weights(write):
    """A version whose weights are in the file that ``location`` names; ``weights.bin`` is there."""

    def make(location, **fields):
        directory = write([node("Add", "x w", "y")], initializers=[external(location, **fields)])
        (directory / "weights.bin").write_bytes(np.array([1.0, 2.0], np.float32).tobytes())
        return directory

    return make


def test_weights_in_another_file_of_the_version_are_read(with_weights, opened):
    model = opened(with_weights("weights.bin"))
    assert model.run("", {"x": np.zeros((1, 2), np.float32)}, ())["y"].tolist() == [[1.0, 2.0]]


def test_weights_that_stay_mapped_need_a_process_and_answer_as_loaded_ones(with_weights, request_for):
    """A mapped file that is truncated ends the process that has it."""
    request = request_for(with_weights("weights.bin"), ModelSettings(parameters={"memory": "mapped"}))
    with pytest.raises(NeedsProcess, match="mapped"):
        open_onnx(request)
    model = open_in_process(request)
    assert model.run("", {"x": np.zeros((1, 2), np.float32)}, ())["y"].tolist() == [[1.0, 2.0]]
    model.close()


def test_model_on_a_gpu_that_onnxruntime_does_not_know_says_what_to_install(write, request_for):
    request = replace(request_for(write()), device="cuda:0")
    with pytest.raises(NeedsProcess, match="GPU"):
        open_onnx(request)
    with pytest.raises(ServingError, match=r"install onnxruntime-gpu .* or have the model on the CPU") as error:
        open_in_process(request)
    assert error.value.code is StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("../secret", DENIED),
        ("a/../../secret", DENIED),
        ("/etc/passwd", DENIED),
        ("..\\secret", DENIED),
        ("", DENIED),
        ("link", DENIED),
        (".", DENIED),
        ("pipe", DENIED),
        ("missing.bin", LOST),
        ("*/_ORT_MEM_ADDR_/*", LOST),
        (None, DENIED),
    ],
)
def test_weights_elsewhere_are_refused_with_and_without_trust(with_weights, request_for, location, code):
    directory = with_weights(location)
    (directory.parent / "secret").write_bytes(bytes(8))
    (directory / "link").symlink_to("../secret")
    os.mkfifo(directory / "pipe")
    for trusted in (False, True):
        assert "w" in refusal(PLATFORM.open, request_for(directory, None, trusted), code=code)


@pytest.mark.parametrize("fields", [{"offset": "8"}, {"length": "4096"}, {"offset": "-4"}, {"length": "x"}])
def test_wrong_places_within_a_file_are_refused(with_weights, request_for, fields):
    refusal(PLATFORM.open, request_for(with_weights("weights.bin", **fields)), code=REFUSED)


BIG = 1 << 30
BOMBS = {
    "shape": [node("ConstantOfShape", "size", "y")],
    "expand": [node("Constant", "", "one", value_float=1.0), node("Expand", "one size", "y")],
    "tile": [node("Constant", "", "one", value_floats=[1.0]), node("Tile", "one size", "y")],
    "doubling": [
        node("Constant", "", "column", value=helper.make_tensor("", 1, [1], [1.0])),
        node("Constant", "", "k", value_ints=[1 << 15, 1]),
        node("Constant", "", "l", value_ints=[1, 1 << 15]),
        node("Expand", "column k", "tall"),
        node("Expand", "column l", "wide"),
        node("Add", "tall wide", "y"),
    ],
    "literal": [
        node("Constant", "", "s", value_ints=[BIG]),
        node("Identity", "s", "t"),
        node("ConstantOfShape", "t", "y"),
    ],
    "range": [
        node("Constant", "", "a", value=helper.make_tensor("", 7, [], [0])),
        node("Constant", "", "b", value=helper.make_tensor("", 7, [], [BIG])),
        node("Constant", "", "c", value=helper.make_tensor("", 7, [], [1])),
        node("Range", "a b c", "y"),
    ],
}


@pytest.mark.parametrize("nodes", BOMBS.values(), ids=BOMBS)
def test_constants_that_fill_the_memory_need_trust(write, request_for, nodes):
    directory = write(nodes, [], [value("y", dims=None)], [ints("size", BIG)])
    assert "256 MiB" in refusal(PLATFORM.open, request_for(directory), code=DENIED)


def test_sparse_weights_count_as_the_dense_ones_that_they_become(write, request_for):
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    sparse = helper.make_sparse_tensor(values, ints("i", 0), [BIG])
    directory = write([node("Constant", "", "y", sparse_value=sparse)], [], [value("y", dims=None)])
    assert "256 MiB" in refusal(PLATFORM.open, request_for(directory), code=DENIED)


def test_bomb_in_a_branch_is_found(write, request_for):
    branch = helper.make_graph([node("ConstantOfShape", "size", "z")], "b", [], [value("z", dims=None)])
    nodes = [node("If", "c", "y", then_branch=branch, else_branch=branch)]
    directory = write(nodes, [value("c", TensorProto.BOOL, [])], [value("y", dims=None)], [ints("size", BIG)])
    refusal(PLATFORM.open, request_for(directory), code=DENIED)


def test_large_tensors_that_requests_ask_for_are_no_constants(write, opened):
    sizes = [value("size", TensorProto.INT64, [1])]
    model = opened(write([node("ConstantOfShape", "size", "y")], sizes, [value("y", dims=["k"])]))
    assert model.run("", {"size": np.array([3])}, ())["y"].tolist() == [0.0] * 3


def test_compiled_code_needs_trust(write, request_for):
    context = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context=b"\x7fELF")
    directory = write([context], domains=["com.microsoft"])
    assert "EPContext" in refusal(PLATFORM.open, request_for(directory), code=DENIED)


def test_operators_of_a_library_are_named(write, request_for):
    directory = write([helper.make_node("Steal", ["x"], ["y"], domain="evil")], domains=["evil"])
    message = refusal(PLATFORM.open, request_for(directory), code=REFUSED)
    assert "operator Steal of the domain evil" in message
    assert "custom_ops" in message


def test_library_of_operators_needs_trust_and_is_a_file_of_the_version(write, request_for):
    directory = write()
    (directory.parent / "lib.so").write_bytes(b"")

    def asked(library, trusted):
        return request_for(directory, ModelSettings(parameters={"custom_ops": library}), trusted)

    refusal(PLATFORM.open, asked("lib.so", False), code=DENIED)
    refusal(PLATFORM.open, asked("../lib.so", True), code=DENIED)
    refusal(PLATFORM.open, asked("lib.so", True), code=LOST)


def function(name, nodes):
    return helper.make_function("local", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 21), LOCAL])


LOCAL = helper.make_opsetid("local", 1)


def call(name, inputs, outputs):
    return helper.make_node(name, [inputs], [outputs], domain="local")


def zeros(name, size):
    return helper.make_tensor(name, TensorProto.FLOAT, [size], bytes(4 * size), raw=True)


def test_weights_that_many_nodes_share_by_identity_are_one(write, opened):
    """An exporter writes one Identity for each layer that has the same weights. onnxruntime leaves them out."""
    size, layers = 2 << 20, 40  # 8 MiB, 320 MiB
    nodes = [node("Identity", "w", f"w{at}") for at in range(layers)]
    nodes += [node("Add", f"w{at - 1 if at else 0} w{at}", f"s{at}") for at in range(1, layers)]
    nodes += [node("Add", "x w0", "y")]
    opened(
        write(
            nodes[:layers] + nodes[-1:],
            [value("x", dims=["n", size])],
            [value("y", dims=["n", size])],
            [zeros("w", size)],
        )
    )


def test_weights_that_are_outputs_by_identity_are_copies(write, request_for):
    """onnxruntime makes a copy for each output."""
    size, outputs = 2 << 20, 40
    nodes = [node("Identity", "w", f"w{at}") for at in range(outputs)]
    directory = write(nodes, [], [value(f"w{at}", dims=[size]) for at in range(outputs)], [zeros("w", size)])
    assert "256 MiB" in refusal(PLATFORM.open, request_for(directory), code=DENIED)


def test_weights_may_be_rearranged_once_while_they_are_loaded(write, opened):
    """A file that was exported without folding transposes its weights at each load, and they may be large."""
    sides = [(4 << 20, 2)] * 9  # 9 of 32 MiB
    names = [f"w{at}" for at in range(len(sides))]
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, side, bytes(4 * side[0] * side[1]), raw=True)
        for name, side in zip(names, sides, strict=True)
    ]
    nodes = [node("Transpose", name, f"{name}t") for name in names]
    nodes += [node("MatMul", f"x {name}t", f"{name}y") for name in names]
    nodes += [helper.make_node("Sum", [f"{name}y" for name in names], ["y"])]
    opened(write(nodes, [value("x", dims=["n", 2])], [value("y", dims=["n", sides[0][0]])], weights))


def test_functions_of_the_file_are_operators(write, opened):
    twice = function("Twice", [node("Add", "a a", "b")])
    model = opened(write([call("Twice", "x", "y")], functions=[twice], domains=["local"]))
    assert model.run("", {"x": np.ones((1, 2), np.float32)}, ())["y"].tolist() == [[2.0, 2.0]]


def test_bomb_in_a_function_is_found_with_the_size_that_its_call_gives(write, request_for):
    fill = function("Fill", [node("ConstantOfShape", "a", "b")])
    directory = write(
        [call("Fill", "size", "y")],
        [],
        [value("y", dims=None)],
        [ints("size", BIG)],
        functions=[fill],
        domains=["local"],
    )
    assert "256 MiB" in refusal(PLATFORM.open, request_for(directory), code=DENIED)


def test_functions_that_multiply_or_call_themselves_are_refused(write, request_for):
    loop = function("Loop0", [call("Loop0", "a", "b")])
    directory = write([call("Loop0", "x", "y")], functions=[loop], domains=["local"])
    assert "call one another" in refusal(PLATFORM.open, request_for(directory), code=REFUSED)
    layers = [function("F0", [node("Neg", "a", "b")])]
    layers += [
        function(f"F{level}", [call(f"F{level - 1}", "a", "m"), call(f"F{level - 1}", "m", "b")])
        for level in range(1, 30)
    ]
    directory = write([call("F29", "x", "y")], functions=layers, domains=["local"])
    assert "more than 1000000 operators" in refusal(PLATFORM.open, request_for(directory), code=REFUSED)


def test_future_versions_are_refused_with_both_numbers(write, request_for):
    message = refusal(PLATFORM.open, request_for(write(opset=99)), code=REFUSED)
    assert "99" in message
    assert "till opset" in message
    message = refusal(PLATFORM.open, request_for(write(ir_version=99)), code=REFUSED)
    assert "Unsupported model IR version: 99, max supported IR version: " in message


def test_unknown_operator_is_named(write, request_for):
    message = refusal(PLATFORM.open, request_for(write([node("Magic", "x", "y")])), code=REFUSED)
    assert "Magic" in message


def test_cut_off_files_are_damaged_or_refused(write, request_for):
    directory = write([node("Add", "x w", "y")], initializers=[helper.make_tensor("w", 1, [2], [1.0, 2.0])])
    whole = (directory / "model.onnx").read_bytes()
    for size in range(0, len(whole) - 1, 7):
        (directory / "model.onnx").write_bytes(whole[:size])
        with pytest.raises(ServingError) as caught:
            PLATFORM.open(request_for(directory))
        assert caught.value.code in (LOST, REFUSED)


def test_other_files_under_the_name_are_damaged(write, request_for):
    directory = write()
    for content in (b"PK\x03\x04 an archive", b"\xff" * 100, b"<html></html>"):
        (directory / "model.onnx").write_bytes(content)
        refusal(PLATFORM.open, request_for(directory), code=LOST)


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("intra_op_thread_count", "many", StatusCode.INVALID_ARGUMENT),
        ("execution_mode", "2", StatusCode.INVALID_ARGUMENT),
        ("graph_optimization_level", "9", StatusCode.INVALID_ARGUMENT),
        ("memory", "shared", StatusCode.INVALID_ARGUMENT),
        ("session.model_external_initializers_file_folder_path", "/etc", DENIED),
    ],
)
def test_parameters_are_checked(write, request_for, name, text, code):
    asked = request_for(write(), ModelSettings(parameters={name: text}))
    assert name in refusal(PLATFORM.open, asked, code=code)


def test_parameters_with_tritons_names_open_the_model(write, opened):
    parameters = {
        "intra_op_thread_count": "1",
        "inter_op_thread_count": "1",
        "execution_mode": "1",
        "graph_optimization_level": "-1",
        "enable_mem_arena": "0",
        "session.set_denormal_as_zero": "1",
    }
    model = opened(write(), ModelSettings(parameters=parameters))
    assert model.run("", {"x": np.ones((1, 2), np.float32)}, ())["y"].tolist() == [[1.0, 1.0]]
