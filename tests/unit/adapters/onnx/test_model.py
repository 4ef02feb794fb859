from __future__ import annotations

import builtins
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Queue

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.errors import refusal
from tests.support.servers.in_process import serving
from tests.support.servers.process import wait_until
from tfs_lite.adapters.detect import choose_platform, read_version
from tfs_lite.adapters.loader import open_here
from tfs_lite.adapters.onnx.model import PLATFORM
from tfs_lite.adapters.onnx.signature import ELEMENT_TYPES
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.model import PredictCall
from tfs_lite.core.servable import ServableId, VersionState
from tfs_lite.core.signature import DataType, ShapeContract, SymbolicDim
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.dtypes import to_numpy
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import BatchSettings, SendWhen

from .conftest import value


def settings(**fields):
    return ModelSettings.model_validate(fields)


@pytest.mark.parametrize(("number", "dtype"), ELEMENT_TYPES.items(), ids=lambda found: getattr(found, "name", ""))
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_every_element_type_goes_in_and_comes_out(write, opened, number, dtype, rows):
    model = opened(write(inputs=[value("x", number)], outputs=[value("y", number)]))
    if dtype is DataType.STRING:
        x = np.array([[b"a", "é".encode()]] * rows, object).reshape(rows, 2)
    else:
        x = np.arange(2 * rows).reshape(rows, 2).astype(to_numpy(dtype))
    x.flags.writeable = False
    y = model.run("", {"x": x}, ())["y"]
    assert model.signatures["serving_default"].inputs[0].dtype is dtype
    assert (y.dtype, y.shape, y.tolist()) == (x.dtype, x.shape, x.tolist())


def test_texts_and_float8_of_one_model_are_refused_as_inputs_and_good_as_outputs(write, opened, request_for):
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in ("text", "small")]
    kinds = {"text": TensorProto.STRING, "small": TensorProto.FLOAT8E5M2}
    inputs = [value(name, kind) for name, kind in kinds.items()]
    outputs = [value(f"{name}_out", kind) for name, kind in kinds.items()]
    asked = request_for(write(nodes, inputs, outputs))
    assert "float8_e5m2" in refusal(PLATFORM.open, asked, code=StatusCode.FAILED_PRECONDITION)
    label = helper.make_node("Constant", [], ["text_out"], value_strings=[b"one", b"two"])
    outputs[0] = value("text_out", TensorProto.STRING, [2])
    model = opened(write([label, nodes[1]], inputs[1:], outputs))
    answer = model.run("", {"small": np.ones((1, 2), to_numpy(DataType.FLOAT8_E5M2))}, ())
    assert answer["text_out"].tolist() == [b"one", b"two"]
    assert answer["small_out"].tolist() == [[1.0, 1.0]]


def test_bytes_that_are_no_text_are_refused_with_their_place(write, opened):
    model = opened(write(inputs=[value("x", TensorProto.STRING)], outputs=[value("y", TensorProto.STRING)]))
    x = np.array([[b"a", b"b"], [b"c", b"\xff"]], object)
    assert "[1,1]" in refusal(model.run, "", {"x": x}, (), code=StatusCode.INVALID_ARGUMENT)


def test_symbols_of_the_file_are_those_of_the_signature(write, opened):
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    inputs = [value("a", dims=("batch", "rows", 3)), value("b", dims=("batch", 3, None))]
    model = opened(write(nodes, inputs, [value("y", dims=("batch", "rows", None))]))
    signature = model.signatures["serving_default"]
    assert [spec.shape for spec in signature.inputs] == [
        (SymbolicDim("batch"), SymbolicDim("rows"), 3),
        (SymbolicDim("batch"), 3, SymbolicDim("b.2")),
    ]
    sent = {"a": np.ones((2, 1, 3), np.float32), "b": np.ones((2, 3, 4), np.float32)}
    assert model.run("", sent, ())["y"].tolist() == [[[3.0] * 4]] * 2


def test_first_dimensions_that_are_all_open_are_the_batch(write, opened):
    model = opened(write(inputs=[value("x", dims=(None, 2))], outputs=[value("y", dims=(None, 2))]))
    signature = model.signatures["serving_default"]
    assert signature.inputs[0].batch == signature.outputs[0].batch == "batch"


def test_max_batch_size_makes_the_first_dimensions_the_batch(write, opened):
    directory = write(inputs=[value("x", dims=("rows", 2))], outputs=[value("y", dims=(None, 2))])
    signature = opened(directory, settings(max_batch_size=4)).signatures["serving_default"]
    assert signature.inputs[0].shape == signature.outputs[0].shape == (SymbolicDim("batch", 4), 2)


def test_max_batch_size_needs_a_first_dimension_that_is_open(write, request_for):
    directory = write(inputs=[value("x", dims=(1, 2))], outputs=[value("y", dims=(1, 2))])
    asked = request_for(directory, settings(max_batch_size=4))
    assert "is no batch" in refusal(PLATFORM.open, asked, code=StatusCode.INVALID_ARGUMENT)


def test_inputs_with_a_value_in_the_file_are_left_out(write, opened):
    bias = helper.make_tensor("bias", TensorProto.FLOAT, [2], [1.0, 2.0])
    nodes = [helper.make_node("Add", ["x", "bias"], ["y"])]
    model = opened(write(nodes, [value("x"), value("bias", dims=(2,))], initializers=[bias]))
    assert model.signatures["serving_default"].input_names == ("x",)
    assert model.run("", {"x": np.zeros((1, 2), np.float32)}, ())["y"].tolist() == [[1.0, 2.0]]
    assert model.resident_bytes() == 8


def test_config_may_repeat_the_model_and_not_contradict_it(write, opened, request_for):
    directory = write()
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 2]}
    opened(directory, settings(input=[tensor]))
    for wrong, words in (({"name": "z"}, "the model has"), ({"data_type": "TYPE_INT64"}, "the model's is float")):
        asked = request_for(directory, settings(input=[tensor | wrong]))
        assert words in refusal(PLATFORM.open, asked, code=StatusCode.INVALID_ARGUMENT)


def test_size_of_minus_one_as_a_number_is_any_size(write, opened):
    """Some exporters write -1 where the format has no number at all."""
    signature = opened(write(inputs=[value("x", dims=(-1, 2))], outputs=[value("y", dims=(-1, 2))])).signatures
    assert signature["serving_default"].inputs[0].shape == (SymbolicDim("batch"), 2)
    model = opened(write(inputs=[value("x", dims=(1, -1))], outputs=[value("y", dims=(1, -1))], name="2"))
    assert model.run("", {"x": np.ones((1, 5), np.float32)}, ())["y"].shape == (1, 5)


def test_scalar_inputs_take_what_onnxruntime_takes(write, opened):
    """Clients that cannot send a tensor without dimensions send one of size 1."""
    model = opened(write(inputs=[value("x", dims=())], outputs=[value("y", dims=None)]))
    signature = model.signatures["serving_default"]
    for x in (np.full((), 2, np.float32), np.ones(1, np.float32)):
        assert model.run("", call_inputs(signature, Run("", {"x": x})), ())["y"].shape == x.shape


@pytest.mark.parametrize("number", [TensorProto.FLOAT, TensorProto.BFLOAT16])
def test_tensors_without_dimensions_keep_having_none(write, opened, number):
    model = opened(write(inputs=[value("x", number, ())], outputs=[value("y", number, ())]))
    x = np.ones((), to_numpy(ELEMENT_TYPES[number]))
    assert model.run("", {"x": x}, ())["y"].shape == ()


TURNED = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("Unsqueeze", ["t", "axes"], ["y"])]
"""Rows and columns change places: of [batch, n] it makes [n, 1, batch]."""
AXES = helper.make_tensor("axes", TensorProto.INT64, [1], [1])


def test_output_of_another_shape_than_declared_is_given_and_the_log_has_the_field_that_corrects_it(
    write, opened, caplog
):
    model = opened(write(TURNED, [value("x", dims=("batch", 3))], [value("y", dims=(1, 3))], [AXES]))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(2):
        assert model.run("", {"x": x}, ())["y"].tolist() == x.T[:, None].tolist()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "output y" in line
    assert "[1,3]" in line
    assert 'output { name: "y" data_type: TYPE_FP32 dims: [ 3, 1, -1 ] }' in line


def test_config_corrects_the_shape_of_an_output(write, opened, caplog):
    directory = write(TURNED, [value("x", dims=("batch", 3))], [value("y", dims=(1, 3))], [AXES])
    output = {"name": "y", "data_type": "TYPE_FP32", "dims": [3, 1, -1]}
    model = opened(directory, settings(output=[output]))
    assert model.signatures["serving_default"].outputs[0].shape == (3, 1, SymbolicDim("y.2"))
    model.run("", {"x": np.ones((2, 3), np.float32)}, ())
    assert not caplog.records


def test_config_makes_a_batch_of_an_output_that_the_file_says_is_fixed(write, opened, request_for):
    directory = write(inputs=[value("x", dims=("rows", 2))], outputs=[value("y", dims=(1, 2))])
    message = refusal(
        PLATFORM.open, request_for(directory, settings(max_batch_size=4)), code=StatusCode.INVALID_ARGUMENT
    )
    assert "output[].dims" in message
    output = {"name": "y", "data_type": "TYPE_FP32", "dims": [2]}
    signature = opened(directory, settings(max_batch_size=4, output=[output])).signatures["serving_default"]
    assert signature.outputs[0].shape == (SymbolicDim("batch", 4), 2)


def test_names_of_sizes_are_hints_for_inputs_that_have_no_batch(write, opened):
    """onnxruntime does not compare them: a row may stand for all of another input."""
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    model = opened(
        write(nodes, [value("a", dims=("n", "m")), value("b", dims=("n", "m"))], [value("y", dims=(None,) * 2)])
    )
    signature = model.signatures["serving_default"]

    def run(*shapes):
        sent = {name: np.ones(shape, np.float32) for name, shape in zip("ab", shapes, strict=True)}
        return model.run("", call_inputs(signature, Run("", sent)), ())["y"]

    assert run((4, 2), (1, 2)).tolist() == [[2.0, 2.0]] * 4
    message = refusal(run, (4, 2), (3, 2), code=StatusCode.INVALID_ARGUMENT)
    assert "n is 4 in a and 3 in b" in message


def test_outputs_that_are_no_tensors_are_named(write, request_for):
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, _tensor(TensorProto.FLOAT)))
    asked = request_for(write(outputs=[helper.make_value_info("y", maps)]))
    message = refusal(PLATFORM.open, asked, code=StatusCode.FAILED_PRECONDITION)
    assert "output y of model.onnx is a sequence of maps" in message
    assert "zipmap" in message


def _tensor(number):
    return helper.make_tensor_type_proto(number, None)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (helper.make_sequence_type_proto(_tensor(TensorProto.FLOAT)), ("a sequence of tensors", "build the sequence")),
        (helper.make_optional_type_proto(_tensor(TensorProto.FLOAT)), ("an optional value", "always there")),
        (_tensor(TensorProto.INT4), ("a tensor of int4", "Cast")),
        (_tensor(TensorProto.COMPLEX64), ("a tensor of complex64",)),
    ],
    ids=["sequence", "optional", "int4", "complex64"],
)
def test_inputs_that_no_request_has_are_refused_with_what_they_are(write, request_for, kind, words):
    asked = request_for(write(inputs=[helper.make_value_info("x", kind)]))
    message = refusal(PLATFORM.open, asked, code=StatusCode.FAILED_PRECONDITION)
    assert "input x of model.onnx is " in message
    assert "zipmap" not in message
    assert all(word in message for word in words)


def test_folder_of_triton_is_recognised(write, opened):
    flat = write()
    nested = flat.parent / "2"
    nested.mkdir()
    flat.rename(nested / "model.onnx")
    files = read_version(str(nested))
    assert choose_platform(files, "", PLATFORMS) is PLATFORM
    assert opened(nested).run("", {"x": np.ones((1, 2), np.float32)}, ())["y"].tolist() == [[1.0, 1.0]]


def test_many_threads_run_one_session(write, opened):
    model = opened(write([helper.make_node("Neg", ["x"], ["y"])]))
    answers, together = {}, threading.Barrier(4)

    def run(number):
        together.wait()
        for _ in range(20):
            answers[number] = model.run("", {"x": np.full((1, 2), number, np.float32)}, ())["y"].tolist()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.concurrency >= len(threads)
    assert answers == {number: [[-float(number)] * 2] for number in range(4)}


def test_size_or_place_that_an_operator_refuses_is_the_requests_fault(write, opened):
    size = helper.make_tensor("size", TensorProto.INT64, [2], [2, 2])
    nodes = [helper.make_node("Reshape", ["x", "size"], ["y"])]
    model = opened(write(nodes, initializers=[size]))
    assert model.run("", {"x": np.ones((2, 2), np.float32)}, ())["y"].shape == (2, 2)
    assert "{3,2}" in refusal(model.run, "", {"x": np.ones((3, 2), np.float32)}, (), code=StatusCode.INVALID_ARGUMENT)
    table = helper.make_tensor("table", TensorProto.FLOAT, [3, 1], [1.0, 2.0, 3.0])
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    fixed = [value("x", TensorProto.INT64, [2])], [value("y", dims=[2, 1])]
    model = opened(write(nodes, *fixed, initializers=[table], name="2"))
    message = refusal(model.run, "", {"x": np.array([0, 7])}, (), code=StatusCode.INVALID_ARGUMENT)
    assert "idx=7 must be within the inclusive range [-3,2]" in message


def test_failure_of_a_request_with_open_shapes_is_the_requests(write, opened):
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    model = opened(write(nodes, [value("a", dims=None), value("b", dims=None)], [value("y", dims=None)]))
    sent = {"a": np.ones((1, 2), np.float32), "b": np.ones((3, 1), np.float32)}
    message = refusal(model.run, "", sent, (), code=StatusCode.INVALID_ARGUMENT)
    assert "ONNXRuntimeError" not in message
    assert "/" not in message


@pytest.fixture
def without_onnxruntime(monkeypatch):
    """The library cannot be imported, as if the extra were not installed."""
    import_module = builtins.__import__

    def refuse(name, *arguments, **options):
        if name.partition(".")[0] == "onnxruntime":
            raise ModuleNotFoundError(f"No module named {name!r}", name="onnxruntime")
        return import_module(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_missing_extra_is_named_with_its_command(write, request_for, without_onnxruntime):
    files = read_version(str(write()))
    assert choose_platform(files, "", PLATFORMS) is PLATFORM
    message = refusal(open_here, PLATFORM, request_for(write()), code=StatusCode.UNIMPLEMENTED)
    assert "pip install 'tfs-lite[onnx]'" in message


def tensor(name, values, dtype=TensorProto.INT64):
    return helper.make_tensor(name, dtype, [len(values)], values)


NODES = {
    "the input": [helper.make_node("Identity", ["x"], ["y"])],
    "takes no length below 5": [
        helper.make_node("Unsqueeze", ["x", "one"], ["u"]),
        helper.make_node("MaxPool", ["u"], ["p"], kernel_shape=[5]),
        helper.make_node("Squeeze", ["p", "one"], ["y"]),
    ],
    "a sum of all rows": [helper.make_node("ReduceSum", ["x", "zero"], ["y"], keepdims=1)],
    "two of its own": [helper.make_node("ReduceSum", ["x"], ["s"]), helper.make_node("Expand", ["s", "two"], ["y"])],
    "noise": [helper.make_node("RandomUniformLike", ["x"], ["y"])],
    "the distance to the mean row": [
        helper.make_node("ReduceMean", ["x", "zero"], ["m"], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ],
    "rows that are not zero": [
        helper.make_node("ReduceMax", ["x", "one"], ["m"], keepdims=0),
        helper.make_node("NonZero", ["m"], ["n"]),
        helper.make_node("Transpose", ["n"], ["t"]),
        helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT),
    ],
}
CONSTANTS = [tensor("zero", [0]), tensor("one", [1]), tensor("two", [2, 2])]


@pytest.fixture
def opened_for(write, request_for):
    """Opens an ONNX model of these nodes, for batches of so many rows."""

    def make(what, rows):
        directory = write(NODES[what], [value("x", dims=("n", "m"))], [value("y", dims=("n", None))], CONSTANTS)
        return PLATFORM.open(replace(request_for(directory), batch_rows=rows))

    return make


@pytest.mark.parametrize(
    ("what", "rows", "contract"),
    [
        ("the input", (1, 2, 4), ShapeContract.ROWS),
        ("takes no length below 5", (1, 2, 4), ShapeContract.ROWS),
        ("the input", (1,), ShapeContract.INPUTS),
        ("noise", (1, 2, 4), ShapeContract.ROWS),
        ("a sum of all rows", (1, 2, 4), ShapeContract.INPUTS),
        ("two of its own", (1, 2, 4), ShapeContract.INPUTS),
        ("rows that are not zero", (1, 2, 4), ShapeContract.INPUTS),
    ],
)
def test_load_shows_whether_outputs_follow_the_rows_where_calls_may_share_runs(opened_for, what, rows, contract):
    assert opened_for(what, rows).signatures["serving_default"].contract is contract


def test_calls_share_no_run_if_the_load_shows_that_a_row_depends_on_the_one_beside_it(opened_for, caplog):
    (signature,) = opened_for("the distance to the mean row", (1, 2)).signatures.values()
    assert BatchRule.of(signature, BatchSettings(max_batch_size=2)) is None
    assert "its output y for a row depends on the rows beside it" in caplog.text


@pytest.mark.parametrize(("what", "calls"), [("the input", 2), ("two of its own", 1), ("rows that are not zero", 1)])
def test_first_request_after_a_load_waits_for_others_if_the_load_has_shown_that_they_may_share_a_run(
    opened_for, what, calls
):
    """As long as the delay allows: ten minutes."""
    reports, done = [], Queue()
    servable = BatchingServable(
        [opened_for(what, (1, 2))],
        ServableId("m", 1),
        BatchSettings(max_batch_size=2, max_delay=600.0, send=SendWhen.WAIT),
        clock=SystemClock(),
        on_batch=reports.append,
    )
    for _ in range(calls):
        servable.submit(PredictCall("serving_default", {"x": np.ones((1, 2), np.float32)}, (), None, done.put))
    for _ in range(calls):
        assert isinstance(done.get(timeout=30), dict)
    assert [report.rows for report in reports] == [calls]
    servable.close()


def test_first_two_requests_to_a_server_share_a_run(write, tmp_path):
    """Either alone would wait for the other for ten minutes, or leave it waiting."""
    directory = write(inputs=[value("x", dims=(None, 2))], outputs=[value("y", dims=(None, 2))], name="models/m/1")
    batching = "max_batch_size: 2\ndynamic_batching { max_queue_delay_microseconds: 600000000 }\n"
    tensors = 'input { name: "x" data_type: TYPE_FP32 dims: [2] } output { name: "y" data_type: TYPE_FP32 dims: [2] }'
    (directory.parent / "config.pbtxt").write_text(batching + tensors)
    with (
        serving(tmp_path / "models", model_repository=str(tmp_path / "models")) as server,
        ThreadPoolExecutor() as pool,
    ):
        wait_until(
            lambda: 1 in server.status("m") and server.status("m")[1].state is VersionState.AVAILABLE, "it serves"
        )
        calls = [pool.submit(server.client.predict, "m", {"x": np.full((1, 2), row, np.float32)}) for row in (1, 2)]
        assert [call.result(60).outputs["y"].tolist() for call in calls] == [[[1, 1]], [[2, 2]]]
