"""REST routes over plain HTTP, with TensorFlow Serving's documented requests."""

from __future__ import annotations

import base64
import gzip
import json
import urllib.error
import urllib.request
from email.message import Message

import pytest


def call(server, method: str, path: str, body=None, headers=None) -> tuple[int, Message, object]:
    """(status, headers, body) of one request. Bytes are sent as they are, everything else as JSON."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.http_port}{path}", data, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, read(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, read(error)


def read(answer) -> object:
    data = answer.read()
    if answer.headers.get("Content-Encoding") == "gzip":
        data = gzip.decompress(data)
    return json.loads(data) if answer.headers.get("Content-Type") == "application/json" else data


def post(server, path: str, body, **rest):
    return call(server, "POST", f"/v1/models/{path}", body, **rest)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            "half_plus_two:predict",
            {"instances": [1.0, 2.0, 5.0]},
            {"predictions": [{"y": 2.5, "y2": 3.5}, {"y": 3.0, "y2": 4.0}, {"y": 4.5, "y2": 5.5}]},
        ),
        (
            "half_plus_two:predict",
            {"instances": [{"x": 1.0}, {"x": 2.0}]},
            {"predictions": [{"y": 2.5, "y2": 3.5}, {"y": 3.0, "y2": 4.0}]},
        ),
        ("half_plus_two:predict", {"inputs": [1.0, 2.0]}, {"outputs": {"y": [2.5, 3.0], "y2": [3.5, 4.0]}}),
        ("half_plus_two:predict", {"inputs": {"x": [5.0]}}, {"outputs": {"y": [4.5], "y2": [5.5]}}),
        ("half_plus_two/versions/123:predict", {"inputs": [0]}, {"outputs": {"y": [2.0], "y2": [3.0]}}),
        ("half_plus:predict", {"instances": [[2.0, 4.0, 6.0]]}, {"predictions": [[3.0, 4.0, 5.0]]}),
        ("half_plus/labels/stable:predict", {"instances": [[2, 4, 6]]}, {"predictions": [[2.0, 3.0, 4.0]]}),
        ("half_plus/versions/1:predict", {"inputs": [[2.0, 4.0, 6.0]]}, {"outputs": [[2.0, 3.0, 4.0]]}),
        (
            "half_plus_two:regress",
            {"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}, {"x": 2.0}]},
            {"results": [2.5, 3.0]},
        ),
        (
            "half_plus_two:regress",
            {"signature_name": "regress_x_to_y2", "context": {"x": 4.0}, "examples": [{}, {"x": 2.0}]},
            {"results": [5.0, 4.0]},
        ),
        ("shout:predict", {"instances": [["hi", "ho"]]}, {"predictions": [["HI", "HO"]]}),
        (
            "shout:predict",
            {"instances": [[{"b64": base64.b64encode(b"hi").decode()}]]},
            {"predictions": [["HI"]]},
        ),
    ],
)
def test_a_request_gets_the_documented_answer(server, path: str, body, expected) -> None:
    if path.startswith("shout"):
        body, expected = {"inputs": body["instances"][0]}, {"outputs": expected["predictions"][0]}
    status, headers, answer = post(server, path, body)
    assert (status, answer) == (200, expected)
    assert headers["Content-Type"] == "application/json"


def test_classify_answers_pairs_of_label_and_score(server) -> None:
    status, _, answer = post(server, "digits:classify", {"examples": [{"length": 3.0, "width": 1.0}, {"length": 9}]})
    assert status == 200
    first, second = answer["results"]
    assert [label for label, _ in first] == ["long", "wide", "neither"]
    assert sum(score for _, score in second) == pytest.approx(1.0, abs=1e-5)


def test_numbers_that_json_lacks_go_both_ways(server) -> None:
    status, _, answer = post(server, "half_plus_two:predict", b'{"inputs": [NaN, Infinity, -Infinity, -0.0, 1e-45]}')
    assert status == 200
    y = answer["outputs"]["y"]
    assert (str(y[0]), y[1], y[2], y[3]) == ("nan", float("inf"), float("-inf"), 2.0)


def test_bodies_are_compressed_both_ways(server) -> None:
    body = gzip.compress(json.dumps({"inputs": [float(i) for i in range(2000)]}).encode())
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    status, answered, answer = post(server, "half_plus_two:predict", body, headers=headers)
    assert (status, answered.get("Content-Encoding")) == (200, "gzip")
    assert answer["outputs"]["y"][:3] == [2.0, 2.5, 3.0]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/v1/models/half_plus_two:predict", b"", 400, "The document is empty"),
        ("POST", "/v1/models/half_plus_two:predict", b"{", 400, "JSON Parse error"),
        ("POST", "/v1/models/half_plus_two:predict", b"[]", 400, "Is not object"),
        ("POST", "/v1/models/half_plus_two:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
        ("POST", "/v1/models/half_plus_two:predict", {"instances": []}, 400, "No values in 'instances' array"),
        ("POST", "/v1/models/half_plus_two:predict", {"instances": ["a"]}, 400, "not of expected type"),
        ("POST", "/v1/models/nobody:predict", {"instances": [1.0]}, 404, "Servable not found for request"),
        ("POST", "/v1/models/half_plus_two/versions/9:predict", {"instances": [1.0]}, 404, "Servable not found"),
        (
            "POST",
            "/v1/models/half_plus_two/labels/x:predict",
            {"instances": [1.0]},
            400,
            "Unrecognized servable version",
        ),
        (
            "POST",
            "/v1/models/half_plus_two:predict",
            {"signature_name": "x", "instances": [1.0]},
            400,
            'Serving signature name: "x" not found in signature def',
        ),
        ("POST", "/v1/models/half_plus_two:regress", {"examples": []}, 400, "'examples' value is an empty array"),
        ("GET", "/v1/models/half_plus_two:predict", None, 400, "Malformed request: GET"),
        ("PUT", "/v1/models/half_plus_two", b"", 400, "Malformed request: PUT"),
        ("GET", "/v1/models/half_plus_two/versions/99999999999999999999", None, 400, "Failed to convert version"),
        ("GET", "/v1/models/nobody", None, 404, "Could not find any versions of model nobody"),
    ],
)
def test_bad_requests_get_the_code_and_the_words(server, method, path, body, status: int, words: str) -> None:
    got, headers, answer = call(server, method, path, body)
    assert (got, headers["Content-Type"]) == (status, "application/json")
    assert words in answer["error"]


def test_status_and_metadata_have_upstreams_shape(server) -> None:
    status, _, answer = call(server, "GET", "/v1/models/half_plus_two")
    assert (status, answer) == (
        200,
        {
            "model_version_status": [
                {"version": "123", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
            ]
        },
    )
    status, _, answer = call(server, "GET", "/v1/models/digits/versions/123/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "digits", "signature_name": "", "version": "123"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert signatures["total"]["method_name"] == "tensorflow/serving/regress"
    assert signatures["serving_default"]["inputs"]["length"]["tensor_shape"]["dim"][0]["size"] == "-1"


def test_the_metrics_page_has_upstreams_names(server) -> None:
    post(server, "half_plus_two:predict", {"instances": [1.0]})
    status, headers, page = call(server, "GET", "/monitoring/prometheus/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert b':tensorflow:serving:request_count{model_name="half_plus_two",status="OK"}' in page
    assert (
        b':tensorflow:serving:request_latency_bucket{model_name="half_plus_two",API="predict",entrypoint="REST"' in page
    )
