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
    assert response.model_spec.name == "half_plus"
    assert response.model_spec.version.value == 1
    assert response.model_spec.signature_name == ""
    signature = signatures(response)["serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert {name: info.dtype for name, info in signature.inputs.items()} == {"x": types_pb2.DT_FLOAT}
    assert [dim.size for dim in signature.inputs["x"].tensor_shape.dim] == [-1, 3]
    assert [dim.size for dim in signature.outputs["y"].tensor_shape.dim] == [-1, 3]


def test_metadata_gives_every_dtype(stock):
    inputs = signatures(stock.metadata("numbers"))["serving_default"].inputs
    assert {name: info.dtype for name, info in inputs.items()} == {
        "half": types_pb2.DT_HALF,
        "bfloat": types_pb2.DT_BFLOAT16,
        "single": types_pb2.DT_FLOAT,
        "double": types_pb2.DT_DOUBLE,
        "int8": types_pb2.DT_INT8,
        "uint8": types_pb2.DT_UINT8,
        "int16": types_pb2.DT_INT16,
        "int32": types_pb2.DT_INT32,
        "int64": types_pb2.DT_INT64,
        "flag": types_pb2.DT_BOOL,
        "complex64": types_pb2.DT_COMPLEX64,
    }


def test_metadata_fields_are_checked(stock, refused):
    refused(lambda: stock.metadata("half_plus", fields=()), INVALID, "must specify at least one metadata_field")
    refused(
        lambda: stock.metadata("half_plus", fields=("weights",)), INVALID, "Metadata field weights is not supported"
    )
    empty = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    refused(lambda: stock.prediction.GetModelMetadata(empty, timeout=30), INVALID, "Missing ModelSpec")


def test_status_lists_the_highest_version_first(stock):
    found = [(entry.version, entry.state, entry.status.error_code) for entry in stock.status("half_plus")]
    assert found == [(2, State.AVAILABLE, 0), (1, State.AVAILABLE, 0)]
    assert all(entry.HasField("status") and not entry.status.error_message for entry in stock.status("half_plus"))


@pytest.mark.parametrize(("spec", "version"), [({"version": 1}, 1), ({"version_label": "stable"}, 1)], ids=str)
def test_status_of_one_version(stock, spec, version):
    assert [entry.version for entry in stock.status("half_plus", **spec)] == [version]


def test_status_shows_why_a_version_failed(stock):
    (entry,) = stock.status("corrupt")
    assert entry.state == State.END
    assert entry.status.error_code != 0
    assert entry.status.error_message


def test_status_of_what_is_not_there(stock, refused):
    refused(lambda: stock.status("half_plus", version=9), MISSING, "Could not find version 9 of model half_plus")
    refused(lambda: stock.status("nobody"), MISSING, "Could not find any versions of model nobody")
    refused(lambda: stock.status("missing"), MISSING, "Could not find any versions of model missing")
    empty = get_model_status_pb2.GetModelStatusRequest()
    refused(lambda: stock.models.GetModelStatus(empty, timeout=30), INVALID, "Missing ModelSpec")
