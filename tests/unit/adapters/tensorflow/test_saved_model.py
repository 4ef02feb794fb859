"""What is read of ``saved_model.pb`` without TensorFlow. Its own files are read in ``tests/tensorflow``."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refuses
from tests.support.saved_models import (
    SIMPLE,
    MetaGraphFile,
    SavedModelFile,
    bytes_field,
    function,
    node,
    signature,
    tensor,
)
from tfs_lite.adapters.tensorflow.allowed import check_operators
from tfs_lite.adapters.tensorflow.saved_model import MetaGraph, open_saved_model, read_saved_model
from tfs_lite.core.signature import CLASSIFY_METHOD, DataType, ShapeContract, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode

BATCH = SymbolicDim("batch")
FULL = SavedModelFile(
    [
        MetaGraphFile(
            nodes=[node("x", "Placeholder"), node("y", "PartitionedCall", "x:0", functions=["f"])],
            functions=[function("f", node("m", "MatMul", "a", "b"), interface="i")],
            objects=["f"],
            restore="y",
            init="y",
        )
    ]
).encode()


def graph_of(file: SavedModelFile, *tags: str) -> MetaGraph:
    return read_saved_model(memoryview(file.encode())).tagged(tags or ("serve",))


def signatures_of(**definitions: bytes) -> dict[str, Signature]:
    return graph_of(SavedModelFile([MetaGraphFile(definitions)])).signatures()


def only(inputs: dict[str, bytes], outputs: dict[str, bytes]) -> Signature:
    return signatures_of(s=signature(inputs, outputs))["s"]


def test_signatures_have_names_types_shapes_tensors_and_methods() -> None:
    text = signature({"inputs": tensor(DataType.STRING, (-1,))}, {"scores": tensor(1, (-1, 3))}, CLASSIFY_METHOD)
    assert signatures_of(serving_default=SIMPLE, classify=text) == {
        "serving_default": Signature(
            (TensorSpec("x", DataType.FLOAT, (BATCH, 2), "x:0"),),
            (TensorSpec("y", DataType.FLOAT, (BATCH, 3), "y:0"),),
            contract=ShapeContract.NONE,
        ),
        "classify": Signature(
            (TensorSpec("inputs", DataType.STRING, (BATCH,), "Identity:0"),),
            (TensorSpec("scores", DataType.FLOAT, (BATCH, 3), "Identity:0"),),
            CLASSIFY_METHOD,
            contract=ShapeContract.NONE,
        ),
    }


def test_keys_that_tensorflow_keeps_for_itself_are_not_served() -> None:
    assert set(signatures_of(serving_default=SIMPLE, __saved_model_init_op=b"")) == {"serving_default"}


def test_tensors_are_in_the_order_of_their_names() -> None:
    found = only({name: tensor(1, (-1,)) for name in "cab"}, {name: tensor(1, (-1,)) for name in "zx"})
    assert (found.input_names, found.output_names) == (("a", "b", "c"), ("x", "z"))


def test_there_is_a_batch_only_where_every_tensor_begins_with_an_open_dimension() -> None:
    found = only({"x": tensor(1, (-1, -1))}, {"y": tensor(1, ())})
    assert found.inputs[0].shape == (SymbolicDim("x.0"), SymbolicDim("x.1"))
    assert found.outputs[0].shape == ()


def test_an_unknown_rank_is_no_shape() -> None:
    assert only({"x": tensor(1, None)}, {"y": tensor(1, (-1,))}).inputs[0].shape is None


def test_a_type_of_references_is_the_type() -> None:
    assert only({"x": tensor(101, (-1,))}, {"y": tensor(1, (-1,))}).inputs[0].dtype is DataType.FLOAT


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (bytes_field(4, bytes_field(1, "a:0")) + tensor(1, (-1,)), "sparse or composite"),
        (bytes_field(5, b"") + tensor(1, (-1,)), "sparse or composite"),
        (tensor(20, (-1,)), "element type 20"),
        (tensor(0, (-1,)), "no element type"),
        (tensor(1, (-2,)), "impossible shape"),
        (tensor(1, [1] * 256), "impossible shape"),
    ],
)
def test_tensors_that_cannot_be_served_are_refused_by_name(info: bytes, words: str) -> None:
    with refuses(StatusCode.FAILED_PRECONDITION, f'input "x" of signature "s".*{words}'):
        only({"x": info}, {})


def test_the_graph_with_exactly_the_tags_is_chosen() -> None:
    file = SavedModelFile([MetaGraphFile(tags=["serve"]), MetaGraphFile({"g": SIMPLE}, tags=["serve", "gpu"])])
    assert set(graph_of(file, "gpu", "serve").signatures()) == {"g"}
    assert set(graph_of(file, "serve").signatures()) == {"serving_default"}
    with refuses(StatusCode.FAILED_PRECONDITION, "no graph with the tags tpu; it has graphs with: serve; gpu,serve"):
        graph_of(file, "tpu")


def test_a_schema_of_the_future_is_refused() -> None:
    with refuses(StatusCode.FAILED_PRECONDITION, "schema has version 2"):
        graph_of(SavedModelFile(schema_version=2))


@pytest.mark.parametrize("content", [b"\xff\xff", b"\x0b", b"\x12\x05ab", b"\x08\x01"])
def test_bytes_that_are_no_saved_model_are_a_loss_of_data(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "saved_model.pb").write_bytes(content)
    with refuses(StatusCode.DATA_LOSS, r"saved_model\.pb: the file is damaged"), open_saved_model(str(tmp_path)):
        pass


def test_an_empty_file_and_a_missing_one_are_told_apart(tmp_path: Path) -> None:
    with refuses(StatusCode.NOT_FOUND, "is gone"), open_saved_model(str(tmp_path)):
        pass
    (tmp_path / "saved_model.pb").touch()
    with refuses(StatusCode.DATA_LOSS, "is empty"), open_saved_model(str(tmp_path)):
        pass


def test_a_file_that_is_truncated_after_it_was_read_changes_nothing(tmp_path: Path) -> None:
    """A mapped file would end the process."""
    path = tmp_path / "saved_model.pb"
    path.write_bytes(SavedModelFile([MetaGraphFile({"g": SIMPLE})]).encode())
    with open_saved_model(str(tmp_path)) as saved:
        os.truncate(path, 0)
        assert set(saved.tagged(["serve"]).signatures()) == {"g"}


EXPECTED = (
    StatusCode.DATA_LOSS,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.PERMISSION_DENIED,
    StatusCode.RESOURCE_EXHAUSTED,
)


def read_everything(data: bytes) -> None:
    """Refuses what it refuses with a status."""
    try:
        for graph in read_saved_model(memoryview(data)).meta_graphs:
            graph.signatures()
            check_operators(graph)
    except ServingError as error:
        if error.code not in EXPECTED:
            raise


def test_every_cut_of_a_file_is_refused_or_read() -> None:
    for end in range(len(FULL)):
        read_everything(FULL[:end])


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    read_everything(data)


@given(st.integers(0, len(FULL) - 1), st.integers(0, 255), st.integers(0, len(FULL) - 1), st.integers(0, 255))
def test_changed_bytes_are_refused_or_read(one: int, value: int, other: int, another: int) -> None:
    data = bytearray(FULL)
    data[one], data[other] = value, another
    read_everything(bytes(data))


def test_functions_within_functions_without_end_are_refused() -> None:
    call = bytes_field(1, "f")
    for _ in range(2000):
        entry = bytes_field(1, "a") + bytes_field(2, bytes_field(10, call))
        call = bytes_field(1, "f") + bytes_field(2, entry)
    attribute = bytes_field(5, bytes_field(1, "a") + bytes_field(2, bytes_field(10, call)))
    graph = graph_of(SavedModelFile([MetaGraphFile(nodes=[node("y", "Identity", attributes=attribute)])]))
    with refuses(StatusCode.DATA_LOSS, "damaged"):
        check_operators(graph)


def test_operators_of_a_signature_are_those_that_its_outputs_need() -> None:
    """In functions too; neither those of the initialiser nor those of another signature."""
    outputs = {"ends": "call:0", "counts": "count:0"}
    graph = MetaGraphFile(
        signatures={
            key: signature({"x": tensor(1, (-1,), "x:0")}, {"y": tensor(1, (-1,), name)})
            for key, name in outputs.items()
        },
        nodes=[
            node("x", "Placeholder"),
            node("call", "StatefulPartitionedCall", "x", functions=["body"]),
            node("count", "AssignAddVariableOp", "x"),
            node("start", "LookupTableImportV2"),
        ],
        functions=[function("body", node("mean", "Mean"))],
        init="start",
    )
    found = read_saved_model(memoryview(SavedModelFile([graph]).encode())).tagged(["serve"])
    assert found.operators_of(found.signatures()) == {
        "ends": {"Placeholder", "StatefulPartitionedCall", "Mean"},
        "counts": {"Placeholder", "AssignAddVariableOp"},
    }
