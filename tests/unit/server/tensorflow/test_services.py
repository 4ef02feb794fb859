"""Every service of one running server, called with raw gRPC: messages, codes and words as clients know them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import Peer
from tests.support.servers.examples import rows
from tests.support.servers.in_process import ROW, ServerFixture, config_text, entry, serving
from tests.support.servers.models import TaggedArchives, write_python_version
from tests.support.servers.process import wait_until
from tfs_lite.core.signature import REGRESS_METHOD
from tfs_lite.protocols import messages
from tfs_lite.protocols.tensorflow.tensor_proto import encode

PREDICTION, MODEL = "/tensorflow.serving.PredictionService", "/tensorflow.serving.ModelService"
INVALID, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
LIMIT = 1_000_000
EXAMPLES = rows({"x": [1.0, 2.0, 3.0]}, {"x": [4, 5, 6]})

GRADED = """
import numpy as np


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        x = inputs["x"]
        labels = np.array([[b"low", b"mid", b"high"]] * len(x), object)
        return {"classes": labels, "scores": x, "outputs": x.sum(1)}
"""
GRADED_CONFIG = """
platform: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "classes" data_type: TYPE_STRING dims: [ -1, 3 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "outputs" data_type: TYPE_FP32 dims: [ -1 ] }
"""


@pytest.fixture(scope="module")
def served(archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("services")
    archives.write_version(1, root / "m")
    archives.write_version(2, root / "m")
    (write_python_version(root / "graded", 1, GRADED) / "config.pbtxt").write_text(GRADED_CONFIG)
    file = root / "models.config"
    policy = 'model_version_policy { specific { versions: 2 } } version_labels { key: "stable" value: 2 }'
    file.write_text(config_text(root, entry("m", policy), entry("missing"), entry("graded")))
    trusted = (str(root / "graded"),)
    with serving(
        root, model_config_file=str(file), max_message_bytes=LIMIT, trusted_model_base_paths=trusted
    ) as served:
        yield served


@pytest.fixture(scope="module")
def channel(served: ServerFixture) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.target, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield channel


def call(channel: grpc.Channel, path: str, request: Any, answer: Any = None) -> Any:
    data = request if isinstance(request, bytes) else request.SerializeToString()
    response = channel.unary_unary(path)(data, timeout=30)
    return answer.FromString(response) if answer else response


def refusal(channel: grpc.Channel, path: str, request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, path, request)
    return caught.value.code(), caught.value.details()


def predict_request(value: np.ndarray[Any, Any] = ROW, **spec: Any) -> Any:
    request = messages.PredictRequest(model_spec={"name": "m", **spec})
    request.inputs["x"].CopyFrom(encode(value))
    return request


def test_predict_answers_with_name_version_and_signature(channel: grpc.Channel) -> None:
    answer = call(channel, f"{PREDICTION}/Predict", predict_request(), messages.PredictResponse)
    assert answer.model_spec.name == "m"
    assert answer.model_spec.version.value == 2
    assert answer.model_spec.WhichOneof("version_choice") == "version"
    assert answer.model_spec.signature_name == "serving_default"
    assert set(answer.outputs) == {"y", "version"}
    assert list(answer.outputs["y"].float_val) == [3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ({"version": {"value": 1}}, MISSING, "Servable not found for request: Specific(m, 1)"),
        ({"version": {"value": 0}}, MISSING, "Servable not found for request: Specific(m, 0)"),
        ({"name": "nobody"}, MISSING, "Servable not found for request: Latest(nobody)"),
        ({"name": "missing"}, MISSING, "Servable not found for request: Latest(missing)"),
        ({"name": ""}, INVALID, "ModelSpec has no name specified"),
        ({"version_label": "best"}, INVALID, "Unrecognized servable version label: best"),
        ({"signature_name": "no"}, grpc.StatusCode.FAILED_PRECONDITION, 'Serving signature key "no" not found'),
    ],
)
def test_predict_refuses_what_nobody_can_answer(
    channel: grpc.Channel, spec: dict[str, Any], code: grpc.StatusCode, words: str
) -> None:
    found, details = refusal(channel, f"{PREDICTION}/Predict", predict_request(**spec))
    assert (found, words in details) == (code, True), details


def test_predict_checks_the_tensors(channel: grpc.Channel) -> None:
    path = f"{PREDICTION}/Predict"
    assert "to be float but int64 is provided" in refusal(channel, path, predict_request(ROW.astype(np.int64)))[1]
    assert "expected 3" in refusal(channel, path, predict_request(np.ones((1, 4), np.float32)))[1]
    broken = predict_request()
    broken.inputs["x"].tensor_shape.dim[0].size = -1
    assert refusal(channel, path, broken)[1].startswith("tensor parsing error: x")


# What PredictionService says to these two is in test_prediction_service.py.


def test_status_request_without_model_spec_is_refused(channel: grpc.Channel) -> None:
    assert refusal(channel, f"{MODEL}/GetModelStatus", b"") == (INVALID, "Missing ModelSpec")


@pytest.mark.parametrize(
    "path", [f"{MODEL}/GetModelStatus", f"{MODEL}/HandleReloadConfigRequest", "/grpc.health.v1.Health/Check"]
)
def test_bytes_that_are_no_message_are_invalid(channel: grpc.Channel, path: str) -> None:
    code, details = refusal(channel, path, b"\xff\xff garbage")
    assert (code, "are not a" in details) == (INVALID, True), details


def test_message_over_the_limit_is_refused_and_the_next_is_served(channel: grpc.Channel) -> None:
    large = predict_request(np.zeros((LIMIT // 12 + 1, 3), np.float32))
    assert refusal(channel, f"{PREDICTION}/Predict", large)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    call(channel, f"{PREDICTION}/Predict", predict_request())


def test_classify_answers_examples_with_labels_and_scores(channel: grpc.Channel) -> None:
    request = messages.ClassificationRequest(model_spec={"name": "graded"}, input=EXAMPLES)
    answer = call(channel, f"{PREDICTION}/Classify", request, messages.ClassificationResponse)
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("graded", 1, "serving_default")
    assert [[(item.label, item.score) for item in row.classes] for row in answer.result.classifications] == [
        [("low", 1), ("mid", 2), ("high", 3)],
        [("low", 4), ("mid", 5), ("high", 6)],
    ]


def test_regress_answers_examples_with_values(channel: grpc.Channel) -> None:
    request = messages.RegressionRequest(model_spec={"name": "graded"}, input=EXAMPLES)
    answer = call(channel, f"{PREDICTION}/Regress", request, messages.RegressionResponse)
    assert [item.value for item in answer.result.regressions] == [6, 15]


def test_multi_inference_answers_its_tasks(channel: grpc.Channel) -> None:
    request = messages.MultiInferenceRequest(input=EXAMPLES)
    request.tasks.add(model_spec={"name": "graded"}, method_name=REGRESS_METHOD)
    answer = call(channel, f"{PREDICTION}/MultiInference", request, messages.MultiInferenceResponse)
    (result,) = answer.results
    assert (result.model_spec.version.value, result.model_spec.signature_name) == (1, "serving_default")
    assert [item.value for item in result.regression_result.regressions] == [6, 15]


@pytest.mark.parametrize(
    ("method", "request_type"), [("Classify", messages.ClassificationRequest), ("Regress", messages.RegressionRequest)]
)
@pytest.mark.parametrize(
    ("spec", "sent", "code", "words"),
    [
        ({"name": "nobody"}, rows({}), MISSING, "Servable not found for request: Latest(nobody)"),
        ({"name": ""}, rows({}), INVALID, "ModelSpec has no name specified"),
        ({"name": "m", "signature_name": "no"}, rows({}), INVALID, "No signature was found with the name: no"),
        ({"name": "m"}, rows({}), INVALID, "outputs"),
        ({"name": "graded"}, messages.Input(), INVALID, "Input is empty"),
        ({"name": "graded"}, rows({"x": [1.0] * 3}, {}), INVALID, "feature x is missing in example 1"),
        ({"name": "graded"}, rows({"x": [1.0] * 4}), INVALID, "feature x of example 0 has 4 values, expected 3"),
    ],
)
def test_examples_that_nobody_can_answer_are_refused(
    channel: grpc.Channel, method: str, request_type: Any, spec: Any, sent: Any, code: grpc.StatusCode, words: str
) -> None:
    found, details = refusal(channel, f"{PREDICTION}/{method}", request_type(model_spec=spec, input=sent))
    assert found is code
    assert words in details


def test_tasks_of_unknown_methods_are_not_implemented(channel: grpc.Channel) -> None:
    request = messages.MultiInferenceRequest(tasks=[{"model_spec": {"name": "graded"}, "method_name": "predict"}])
    code, details = refusal(channel, f"{PREDICTION}/MultiInference", request)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "Unsupported signature method_name: predict" in details
    assert refusal(channel, f"{PREDICTION}/MultiInference", b"") == (INVALID, "ModelSpec has no name specified")


def test_metadata_names_the_version_and_packs_the_signatures(channel: grpc.Channel) -> None:
    request = messages.GetModelMetadataRequest(model_spec={"name": "m"}, metadata_field=["signature_def"])
    answer = call(channel, f"{PREDICTION}/GetModelMetadata", request, messages.GetModelMetadataResponse)
    assert (answer.model_spec.name, answer.model_spec.version.value, answer.model_spec.signature_name) == ("m", 2, "")
    packed = answer.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    found = messages.SignatureDefMap.FromString(packed.value).signature_def["serving_default"]
    assert [dim.size for dim in found.inputs["x"].tensor_shape.dim] == [-1, 3]


@pytest.mark.parametrize(
    ("fields", "words"),
    [([], "must specify at least one metadata_field"), (["weights"], "Metadata field weights is not supported")],
)
def test_metadata_fields_are_checked(channel: grpc.Channel, fields: list[str], words: str) -> None:
    request = messages.GetModelMetadataRequest(model_spec={"name": "m"}, metadata_field=fields)
    code, details = refusal(channel, f"{PREDICTION}/GetModelMetadata", request)
    assert code is INVALID
    assert words in details


@pytest.mark.parametrize("spec", [{}, {"version": {"value": 2}}, {"version_label": "stable"}])
def test_status_of_a_model_a_version_or_a_label(channel: grpc.Channel, spec: dict[str, Any]) -> None:
    request = messages.GetModelStatusRequest(model_spec={"name": "m", **spec})
    answer = call(channel, f"{MODEL}/GetModelStatus", request, messages.GetModelStatusResponse)
    assert [(item.version, item.state) for item in answer.model_version_status] == [(2, 30)]
    assert answer.model_version_status[0].HasField("status")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "m", "version": {"value": 9}}, "Could not find version 9 of model m"),
        ({"name": "nobody"}, "Could not find any versions of model nobody"),
        ({"name": ""}, "Could not find any versions of model "),
        ({"name": "missing"}, "Could not find any versions of model missing: its base path does not exist"),
    ],
)
def test_status_of_what_is_not_there(channel: grpc.Channel, spec: dict[str, Any], words: str) -> None:
    code, details = refusal(channel, f"{MODEL}/GetModelStatus", messages.GetModelStatusRequest(model_spec=spec))
    assert (code, details) == (MISSING, words)


@pytest.mark.parametrize("request_bytes", [b"", b"\x0a\x00"])
def test_reload_takes_a_list_only(channel: grpc.Channel, request_bytes: bytes) -> None:
    code, details = refusal(channel, f"{MODEL}/HandleReloadConfigRequest", request_bytes)
    assert (code, details) == (INVALID, "Only ModelConfigList is currently supported")


def test_health_is_watched_over_the_wire(channel: grpc.Channel) -> None:
    watch = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=messages.HealthCheckRequest.SerializeToString,
        response_deserializer=messages.HealthCheckResponse.FromString,
    )
    stream = watch(messages.HealthCheckRequest(service="m"), timeout=30)
    assert next(stream).status == 1
    stream.cancel()


def test_metrics_tell_of_versions_requests_and_memory(served: ServerFixture, channel: grpc.Channel) -> None:
    call(channel, f"{PREDICTION}/Predict", predict_request())
    refusal(channel, f"{PREDICTION}/Predict", predict_request(name="nobody"))
    page = httpx.get(served.url + "/metrics").text
    assert 'tfs_lite_model_version_state{model="m",state="AVAILABLE",version="2"} 1.0' in page
    assert 'tfs_lite_model_loads_total{model="m"} 1.0' in page
    assert 'tfs_lite_request_seconds_count{model="m",version="2"}' in page
    assert 'tfs_lite_requests_total{code="NOT_FOUND",method="Predict",model="unknown",version=""}' in page
    assert 'tfs_lite_requests_in_flight{model="m",version="2"} 0.0' in page
    assert 'tfs_lite_queue_depth{model="m",version="2"} 0.0' in page
    assert "tfs_lite_memory_total_bytes" in page
    assert "nobody" not in page


def test_calls_that_are_cancelled_before_they_are_read_are_requests_too(served: ServerFixture) -> None:
    def counts() -> list[float]:
        names = "tfs_lite_requests_total", "tfs_lite_grpc_calls_total"
        families = text_string_to_metric_families(httpx.get(served.url + "/metrics").text)
        samples = [each for family in families for each in family.samples if each.labels.get("code") == "CANCELLED"]
        return [sum(each.value for each in samples if each.name == name) for name in names]

    path = f"{PREDICTION}/Predict".encode()
    peer, asked = Peer(), h2.message(predict_request().SerializeToString())
    fields = [(name, path if name == b":path" else value) for name, value in h2.REQUEST]
    before = counts()
    with socket.create_connection(served.target.rsplit(":", 1)) as client:
        client.sendall(h2.PREFACE + peer.settings())
        for stream in (1, 3, 5):
            client.sendall(peer.open(stream, fields) + h2.data(stream, asked, ended=True) + h2.rst_stream(stream))
        wait_until(lambda: counts()[1] == before[1] + 3, "the transport has counted them")
    assert counts()[0] == before[0] + 3


def test_http_shows_the_same_states(served: ServerFixture) -> None:
    (version,) = httpx.get(served.url + "/v1/models/m").json()["model_version_status"]
    assert (version["version"], version["state"]) == ("2", "AVAILABLE")
    models = httpx.get(served.url + "/v1/models").json()["models"]
    assert [model["name"] for model in models] == ["m", "missing", "graded"]
    assert "does not exist" in models[1]["reason"]
    assert httpx.get(served.url + "/v1/models/m/labels/stable/metadata").json()["model_spec"]["version"] == "2"
