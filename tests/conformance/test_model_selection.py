"""The version that answers: none is named, a number, a label; and requests that name nothing servable."""

import grpc
import numpy as np
import pytest
from tensorflow_serving.apis import predict_pb2

INVALID, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
NOT_FOUND = "Servable not found for request: "
X = {"x": np.array([[0.0, 0.0, 0.0]], np.float32)}


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        ({}, 2),
        ({"version": 1}, 1),
        ({"version": 2}, 2),
        ({"version_label": "stable"}, 1),
        ({"version_label": "canary"}, 2),
    ],
    ids=str,
)
def test_the_version_asked_for_answers_and_is_named(stock, spec, version):
    response = stock.predict("half_plus", X, **spec)
    assert response.model_spec.version.value == version
    assert response.model_spec.WhichOneof("version_choice") == "version"
    assert response.outputs["y"].float_val[0] == version


def test_signature_may_be_named(stock):
    response = stock.predict("half_plus", X, signature_name="serving_default")
    assert response.model_spec.signature_name == "serving_default"


@pytest.mark.parametrize(
    ("model", "spec", "code", "words"),
    [
        ("nobody", {}, MISSING, NOT_FOUND + "Latest(nobody)"),
        ("nobody", {"version": 4}, MISSING, NOT_FOUND + "Specific(nobody, 4)"),
        ("half_plus", {"version": 3}, MISSING, NOT_FOUND + "Specific(half_plus, 3)"),
        ("half_plus", {"version": 0}, MISSING, NOT_FOUND + "Specific(half_plus, 0)"),
        ("corrupt", {}, MISSING, NOT_FOUND + "Latest(corrupt)"),
        ("half_plus", {"version_label": "best"}, INVALID, "Unrecognized servable version label: best"),
        ("nobody", {"version_label": "best"}, INVALID, "Unrecognized servable version label: best"),
        ("", {}, INVALID, "ModelSpec has no name specified"),
    ],
    ids=str,
)
def test_model_or_version_that_cannot_answer_is_refused(stock, refused, model, spec, code, words):
    refused(code, words, stock.predict, model, X, **spec)
    refused(code, words, stock.metadata, model, **spec)


def test_request_without_model_spec_is_refused(stock, refused):
    refused(INVALID, "Missing ModelSpec", stock.prediction.Predict, predict_pb2.PredictRequest(), timeout=30)
