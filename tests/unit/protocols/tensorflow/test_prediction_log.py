"""Logged requests: which method was called, and with what."""

from __future__ import annotations

import pytest

from tests.support.errors import refusal
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import (
    ClassificationRequest,
    ClassificationResponse,
    Message,
    MultiInferenceRequest,
    MultiInferenceResponse,
    PredictionLog,
    PredictRequest,
    PredictResponse,
    RegressionRequest,
    RegressionResponse,
)
from tfs_lite.protocols.tensorflow.prediction_log import LoggedMethod, logged_request, make_log, parse_log

SPEC = {"name": "m", "signature_name": "s"}
LOGS = {
    LoggedMethod.PREDICT: (
        PredictRequest(model_spec=SPEC, output_filter=["y"]),
        PredictResponse(model_spec=SPEC, outputs={"y": {"dtype": 1}}),
    ),
    LoggedMethod.CLASSIFY: (
        ClassificationRequest(model_spec=SPEC, input={"example_list": {"examples": [{}]}}),
        ClassificationResponse(model_spec=SPEC, result={"classifications": [{}]}),
    ),
    LoggedMethod.REGRESS: (
        RegressionRequest(model_spec=SPEC, input={"example_list": {"examples": [{}]}}),
        RegressionResponse(model_spec=SPEC, result={"regressions": [{"value": 2}]}),
    ),
    LoggedMethod.MULTI_INFERENCE: (
        MultiInferenceRequest(tasks=[{"model_spec": SPEC, "method_name": "tensorflow/serving/regress"}]),
        MultiInferenceResponse(results=[{"model_spec": SPEC}]),
    ),
}


@pytest.mark.parametrize("method", LoggedMethod)
def test_a_log_keeps_method_request_and_answer(method: LoggedMethod) -> None:
    request, response = LOGS[method]
    log = parse_log(make_log(method, request, response).SerializeToString())
    found = logged_request(log)
    assert found is not None
    assert (found.method, found.message) == (method, request)
    assert found.model_names == {"m"}
    assert getattr(log, method.value).response == response


def test_a_log_without_a_type_holds_no_request() -> None:
    assert logged_request(PredictionLog(log_metadata={"model_spec": SPEC})) is None


@pytest.mark.parametrize("log", [PredictionLog(session_run_log={}), PredictionLog(predict_streamed_log={})])
def test_sessions_and_streams_are_not_supported(log: Message) -> None:
    with pytest.raises(ServingError, match=r"Unsupported log_type for warmup: .*predict_log, classify_log") as caught:
        logged_request(log)
    assert caught.value.code is StatusCode.UNIMPLEMENTED


def test_a_log_of_a_session_keeps_what_it_held() -> None:
    data = bytes([5 << 3 | 2, 4, 2 << 3 | 2, 2, 97, 98])
    assert parse_log(data).SerializeToString() == data


def test_bytes_that_are_no_log_are_refused() -> None:
    assert "Failed to parse warmup record: its 3 bytes are not a tensorflow" in refusal(parse_log, b"\xff\xff\xff")


def test_a_request_may_name_no_model_or_several() -> None:
    nameless = logged_request(PredictionLog(predict_log={}))
    assert nameless is not None
    assert nameless.model_names == frozenset()
    tasks = [{"model_spec": {"name": name}} for name in ("a", "b", "")]
    several = logged_request(PredictionLog(multi_inference_log={"request": {"tasks": tasks}}))
    assert several is not None
    assert several.model_names == {"a", "b"}
