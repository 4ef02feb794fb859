"""Messages of TensorFlow Serving and the values behind them."""

import json

import numpy as np
import pytest
from google.protobuf.json_format import MessageToJson
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.core.servable import ModelRef, VersionState, VersionStatus
from tfs_lite.core.signature import CLASSIFY_METHOD, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import OK, ServingError, Status, StatusCode
from tfs_lite.protocols import messages
from tfs_lite.protocols.tensorflow.serving import (
    model_spec,
    model_status,
    parse,
    read_model_spec,
    read_model_status,
    read_signature_def_map,
    read_status,
    signature_def_map,
    status_json,
    status_proto,
)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\x0a\xff", b"not a message at all"])
def test_bytes_that_are_no_message_are_an_invalid_argument(data: bytes) -> None:
    assert "are not a tensorflow.serving.PredictRequest" in refusal(parse, messages.PredictRequest, data)


def test_names_that_are_not_utf8_are_an_invalid_argument() -> None:
    with pytest.raises(ServingError):
        parse(messages.ModelSpec, b"\x0a\x01\xff")


@pytest.mark.parametrize(
    "ref",
    [
        ModelRef("m"),
        ModelRef("m", version=0),
        ModelRef("m", version=2**63 - 1, signature="other"),
        ModelRef("m", label="stable"),
        ModelRef("m", label=""),
    ],
)
def test_a_model_spec_is_read_as_it_was_written(ref: ModelRef) -> None:
    request = messages.PredictRequest(model_spec=model_spec(ref))
    assert read_model_spec(parse(messages.PredictRequest, request.SerializeToString())) == ref


def test_a_request_without_model_spec_is_refused_and_one_without_name_where_a_name_is_required() -> None:
    assert "Missing ModelSpec" in refusal(read_model_spec, messages.PredictRequest())
    request = messages.GetModelStatusRequest(model_spec={"signature_name": "s"})
    assert "ModelSpec has no name specified" in refusal(read_model_spec, request)
    assert read_model_spec(request, require_name=False) == ModelRef("", signature="s")


@pytest.mark.parametrize("status", [OK, Status(StatusCode.NOT_FOUND, "gone")])
def test_a_status_is_read_as_it_was_written(status: Status) -> None:
    assert read_status(status_proto(status)) == status


def test_codes_and_states_of_a_later_protocol_count_as_unknown() -> None:
    assert read_status(messages.StatusProto(error_code=99, error_message="?")) == Status(StatusCode.UNKNOWN, "?")
    response = messages.GetModelStatusResponse(model_version_status=[{"version": 1, "state": 45}])
    assert read_model_status(response)[0].state is VersionState.UNKNOWN


VERSIONS = [
    VersionStatus(2, VersionState.END, Status(StatusCode.DATA_LOSS, "torn file")),
    VersionStatus(1, VersionState.AVAILABLE, OK),
]


def test_version_states_are_those_of_the_wire_and_keep_their_order() -> None:
    assert read_model_status(model_status(VERSIONS)) == VERSIONS
    wire = messages.ModelVersionStatus.State.items()
    assert {state.name: state.value for state in VersionState} == dict(wire)


def test_status_json_prints_names_defaults_and_wide_integers_as_rest_clients_expect() -> None:
    text = status_json(VERSIONS)
    assert json.loads(text) == {
        "model_version_status": [
            {"version": "2", "state": "END", "status": {"error_code": "DATA_LOSS", "error_message": "torn file"}},
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}},
        ]
    }
    assert text == MessageToJson(
        model_status(VERSIONS), preserving_proto_field_name=True, always_print_fields_with_no_presence=True, indent=1
    )


def test_a_signature_becomes_a_signature_def_in_tensorflows_conventions() -> None:
    batch = SymbolicDim("batch", maximum=8)
    signature = Signature(
        inputs=(TensorSpec("x", DataType.FLOAT, (batch, 3)), TensorSpec("any")),
        outputs=(TensorSpec("y", DataType.BFLOAT16, ()),),
    )
    definition = signature_def_map({"serving_default": signature}).signature_def["serving_default"]
    x = definition.inputs["x"]
    assert (x.name, x.dtype, [dim.size for dim in x.tensor_shape.dim]) == ("x:0", 1, [-1, 3])
    assert definition.inputs["any"].tensor_shape.unknown_rank
    assert definition.inputs["any"].dtype == 0
    assert definition.outputs["y"].HasField("tensor_shape")
    assert definition.method_name == "tensorflow/serving/predict"


def test_a_tensor_has_the_name_that_it_has_in_the_graph() -> None:
    definition = signature_def_map({"s": Signature((TensorSpec("x", tensor="tf_example:0"),), ())}).signature_def["s"]
    assert definition.inputs["x"].name == "tf_example:0"


DIMS = st.integers(0, 9)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@st.composite
def tensor_specs(draw: st.DrawFn) -> tuple[TensorSpec, ...]:
    """Specs in the order of their names, with the symbols that reading gives to unknown sizes."""
    specs = []
    for name in sorted(draw(st.sets(NAMES, max_size=3))):
        sizes = draw(st.none() | st.lists(st.none() | DIMS, max_size=4))
        shape = sizes and [SymbolicDim(f"{name}_{axis}") if size is None else size for axis, size in enumerate(sizes)]
        specs.append(TensorSpec(name, draw(st.sampled_from(DataType)), None if shape is None else tuple(shape)))
    return tuple(specs)


def signatures() -> st.SearchStrategy[Signature]:
    return st.builds(Signature, tensor_specs(), tensor_specs(), NAMES)


@given(st.dictionaries(NAMES, signatures(), max_size=2))
def test_signatures_are_read_as_they_were_written(expected: dict[str, Signature]) -> None:
    wire = signature_def_map(expected).SerializeToString()
    assert read_signature_def_map(parse(messages.SignatureDefMap, wire)) == expected


def test_types_that_only_tensorflow_has_are_read_as_not_declared() -> None:
    message = messages.SignatureDefMap()
    message.signature_def["s"].inputs["x"].dtype = 20
    assert read_signature_def_map(message)["s"].inputs[0].dtype is DataType.INVALID


WITH_DEFAULTS = Signature(
    inputs=(
        TensorSpec("a", DataType.FLOAT, (SymbolicDim("a_0"), 2)),
        TensorSpec("b", DataType.INT64, (SymbolicDim("b_0"),)),
        TensorSpec("c", DataType.STRING, (2,)),
        TensorSpec("d"),
        TensorSpec("e", DataType.STRING, (SymbolicDim("e_0"),)),
    ),
    outputs=(TensorSpec("scores", DataType.FLOAT, (SymbolicDim("scores_0"), 3)),),
    method_name=CLASSIFY_METHOD,
    defaults={
        "a": np.array([1, 2], np.float32),
        "b": np.array(7),
        "c": np.array([b"x", b"y"], object),
        "d": np.array([[1.5]], np.float32),
        "e": np.array(b"z", object),
    },
)


def test_defaults_and_method_are_read_as_they_were_written() -> None:
    wire = signature_def_map({"s": WITH_DEFAULTS}).SerializeToString()
    found = read_signature_def_map(parse(messages.SignatureDefMap, wire))["s"]
    assert found == WITH_DEFAULTS
    assert found.method_name == "tensorflow/serving/classify"
    assert set(found.defaults) == set(WITH_DEFAULTS.defaults)
    for name, value in WITH_DEFAULTS.defaults.items():
        assert found.defaults[name].dtype == value.dtype
        np.testing.assert_array_equal(np.asarray(found.defaults[name]), np.asarray(value))


def test_a_default_is_shown_as_a_request_of_one_row_would_send_it_and_no_default_is_not_shown() -> None:
    definition = signature_def_map({"s": WITH_DEFAULTS}).signature_def["s"]
    sizes = {name: [dim.size for dim in value.tensor_shape.dim] for name, value in definition.defaults.items()}
    assert sizes == {"a": [1, 2], "b": [1], "c": [2], "d": [1, 1], "e": [1]}
    assert list(definition.defaults["a"].float_val) == [1, 2]
    assert not signature_def_map({"s": Signature((TensorSpec("x"),), ())}).signature_def["s"].defaults


def test_defaults_that_a_signature_cannot_hold_are_left_out() -> None:
    message = signature_def_map({"s": WITH_DEFAULTS})
    defaults = message.signature_def["s"].defaults
    defaults["a"].tensor_shape.dim[0].size = 2
    defaults["b"].dtype = 20
    defaults["nowhere"].dtype = 1
    found = read_signature_def_map(message)["s"]
    assert set(found.defaults) == {"c", "d", "e"}
