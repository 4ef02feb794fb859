"""GetModelMetadata and GetModelStatus, unpacked with upstream's own messages."""

from __future__ import annotations

import grpc
import pytest
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

INVALID, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
State = get_model_status_pb2.ModelVersionStatus.State


def signatures(response) -> dict:
    packed = response.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    unpacked = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(unpacked)
    return dict(unpacked.signature_def)


def test_metadata_names_the_version_and_unpacks(stock):
    response = stock.metadata("half_plus", version=1)
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("half_plus", 1, "")
    signature = signatures(response)["serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert {name: info.dtype for name, info in signature.inputs.items()} == {"x": types_pb2.DT_FLOAT}
    for tensor in (signature.inputs["x"], signature.outputs["y"]):
        assert [dim.size for dim in tensor.tensor_shape.dim] == [-1, 3]


def test_metadata_gives_every_dtype(stock):
    inputs = signatures(stock.metadata("numbers"))["serving_default"].inputs
    names = {"bfloat": "BFLOAT16", "single": "FLOAT", "flag": "BOOL"}
    same = ("half", "double", "int8", "uint8", "int16", "int32", "int64", "complex64")
    expected = {**names, **{name: name.upper() for name in same}}
    assert {name: types_pb2.DataType.Name(info.dtype) for name, info in inputs.items()} == {
        name: f"DT_{dtype}" for name, dtype in expected.items()
    }


def test_metadata_fields_are_checked(stock, refused):
    for fields, words in (
        ((), "must specify at least one metadata_field"),
        (("weights",), "Metadata field weights is not supported"),
    ):
        refused(INVALID, words, stock.metadata, "half_plus", fields=fields)
    empty = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    refused(INVALID, "Missing ModelSpec", stock.prediction.GetModelMetadata, empty, timeout=30)


def test_status_lists_the_highest_version_first(stock):
    found = [(entry.version, entry.state, entry.status.error_code) for entry in stock.status("half_plus")]
    assert found == [(2, State.AVAILABLE, 0), (1, State.AVAILABLE, 0)]
    assert all(entry.HasField("status") and not entry.status.error_message for entry in stock.status("half_plus"))


@pytest.mark.parametrize(("spec", "version"), [({"version": 1}, 1), ({"version_label": "stable"}, 1)], ids=str)
def test_status_of_one_version(stock, spec, version):
    assert [entry.version for entry in stock.status("half_plus", **spec)] == [version]


def test_status_shows_why_a_version_failed(stock):
    (entry,) = stock.status("corrupt")
    assert (entry.state, entry.status.error_code != 0, entry.status.error_message != "") == (State.END, True, True)


def test_status_of_what_is_not_there(stock, refused):
    refused(MISSING, "Could not find version 9 of model half_plus", stock.status, "half_plus", version=9)
    for name in ("nobody", "missing"):
        refused(MISSING, f"Could not find any versions of model {name}", stock.status, name)
    empty = get_model_status_pb2.GetModelStatusRequest()
    refused(INVALID, "Missing ModelSpec", stock.models.GetModelStatus, empty, timeout=30)
