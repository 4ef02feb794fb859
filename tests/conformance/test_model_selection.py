"""Which version answers: none named, a number, a label; and what a request that names nothing servable gets."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from tensorflow_serving.apis import predict_pb2

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
    assert (
        stock.predict("half_plus", X, signature_name="serving_default").model_spec.signature_name == "serving_default"
    )


INVALID, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("model", "spec", "code", "words"),
    [
        ("nobody", {}, MISSING, "Servable not found for request: Latest(nobody)"),
        ("nobody", {"version": 4}, MISSING, "Servable not found for request: Specific(nobody, 4)"),
        ("half_plus", {"version": 3}, MISSING, "Servable not found for request: Specific(half_plus, 3)"),
        ("half_plus", {"version": 0}, MISSING, "Servable not found for request: Specific(half_plus, 0)"),
        ("corrupt", {}, MISSING, "Servable not found for request: Latest(corrupt)"),
        ("half_plus", {"version_label": "best"}, INVALID, "Unrecognized servable version label: best"),
        ("nobody", {"version_label": "best"}, INVALID, "Unrecognized servable version label: best"),
        ("", {}, INVALID, "ModelSpec has no name specified"),
    ],
    ids=str,
)
def test_model_or_version_that_cannot_answer_is_refused(stock, refused, model, spec, code, words):
    refused(lambda: stock.predict(model, X, **spec), code, words)
    refused(lambda: stock.metadata(model, **spec), code, words)


def test_request_without_model_spec_is_refused(stock, refused):
    empty = predict_pb2.PredictRequest()
    refused(lambda: stock.prediction.Predict(empty, timeout=30), INVALID, "Missing ModelSpec")
