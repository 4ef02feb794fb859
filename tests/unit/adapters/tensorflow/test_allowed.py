"""Which SavedModels need trust: those of which an operator that can run is not on the list."""

import pytest

from tests.support.errors import refuses
from tests.support.saved_models import MetaGraphFile, SavedModelFile, bytes_field, function, map_entry, node
from tfs_lite.adapters.tensorflow.allowed import allowed_operators, check_operators
from tfs_lite.adapters.tensorflow.saved_model import read_saved_model
from tfs_lite.core.status import StatusCode

LEAVE_MEMORY = {
    *("ReadFile", "WriteFile", "MatchingFiles", "ImmutableConst", "WholeFileReaderV2", "TextLineReaderV2", "SaveV2"),
    *("RestoreV2", "MergeV2Checkpoints", "SnapshotDatasetReader", "TFRecordDataset", "FixedUnigramCandidateSampler"),
    *("PyFunc", "EagerPyFunc", "PyFuncStateless", "RemoteCall", "RpcCall", "XlaLaunch", "Abort", "PrintV2"),
    *("DebugIdentity", "DecodeProtoV2", "EncodeProto", "GenerateVocabRemapping"),
}
THIEF = node("t", "ReadFile", "path")


def check(**fields: object) -> None:
    file = SavedModelFile([MetaGraphFile(**fields)]).encode()  # type: ignore[arg-type]
    check_operators(read_saved_model(memoryview(file)).tagged(["serve"]))


def in_a_list(name: str) -> bytes:
    """An attribute that is a list of one function."""
    return map_entry(5, "branches", bytes_field(1, bytes_field(9, bytes_field(1, name))))


def test_a_model_that_computes_needs_no_trust() -> None:
    check(nodes=[node("x", "Placeholder"), node("y", "MatMul", "x:0", "w"), node("w", "VarHandleOp")])


def test_functions_of_the_saver_are_not_reached() -> None:
    saver = function("save", node("s", "SaveV2"), node("m", "MergeV2Checkpoints"))
    check(nodes=[node("y", "Relu", "x:0"), node("save", "PartitionedCall", functions=["save"])], functions=[saver])


def test_functions_of_the_tree_of_python_objects_are_not_reached() -> None:
    check(nodes=[node("y", "Relu", "x:0")], functions=[function("f", THIEF)], objects=["f"])


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": [node("y", "Identity", "t"), THIEF]},
        {"nodes": [node("y", "Identity", "x", "^t"), THIEF]},
        {"nodes": [node("x", "ReadFile")]},
        {"nodes": [node("y", "Relu"), node("y", "ReadFile")]},
        {"nodes": [node("y", "If", functions=["g", "f"])], "functions": [function("f", THIEF)]},
        {"nodes": [node("y", "Case", attributes=in_a_list("f"))], "functions": [function("f", THIEF)]},
        {"nodes": [node("y", "f")], "functions": [function("f", THIEF)]},
        {
            "nodes": [node("y", "While", functions=["f"])],
            "functions": [function("f", node("c", "PartitionedCall", functions=["g"])), function("g", THIEF)],
        },
        {
            "nodes": [node("y", "PartitionedCall", functions=["f"])],
            "functions": [function("f", node("c", "Relu"), interface="i"), function("g", THIEF, interface="i")],
        },
        {"nodes": [THIEF], "init": "t"},
        {"nodes": [THIEF], "restore": "t"},
    ],
    ids=[
        "an input",
        "a control input",
        "the tensor of an input",
        "one of two of a name",
        "a function",
        "a list of functions",
        "a function that is an operator",
        "a function of a function",
        "a function that may be exchanged",
        "the operation at the start",
        "the operation that restores",
    ],
)
def test_an_operator_that_reads_files_is_found_wherever_it_can_run(fields: dict[str, object]) -> None:
    with refuses(StatusCode.PERMISSION_DENIED, "uses ReadFile, which .* --trusted_model_base_paths"):
        check(**fields)


def test_weights_are_read_only_by_the_operation_that_restores_them() -> None:
    check(nodes=[node("r", "RestoreV2")], restore="r")
    with refuses(StatusCode.PERMISSION_DENIED, "RestoreV2"):
        check(nodes=[node("y", "RestoreV2")])


def test_an_operator_that_nobody_knows_needs_trust() -> None:
    with refuses(StatusCode.PERMISSION_DENIED, "uses A, B, C, D, E and 1 more"):
        check(nodes=[node("y", "F", "a"), *(node(name.lower(), name, chr(ord(name) + 33)) for name in "ABCDE")])


def test_operators_that_leave_memory_are_not_on_the_list() -> None:
    assert not LEAVE_MEMORY & allowed_operators()


def test_the_list_has_some_hundred_operators() -> None:
    assert {
        "MatMul",
        "CudnnRNNBackpropV3",  # in trained LSTMs of Keras 2
        "ParseExampleV2",
        "InitializeTableFromTextFileV2",
        "StatefulPartitionedCall",
    } <= allowed_operators()
    assert 500 < len(allowed_operators()) < 1000
