"""REST routes over plain HTTP, with TensorFlow Serving's documented requests."""

import base64
import gzip
import json

import pytest
import requests

TWO = "/v1/models/half_plus_two"
ONE = {"instances": [1.0]}
NO_SIGNATURE = 'Serving signature name: "x" not found in signature def'


def call(server, method, path, body=None, **how):
    """(status, headers, body) of a request. Bytes are sent as they are, everything else as JSON."""
    form = {"data": body} if isinstance(body, bytes | None) else {"json": body}
    url = f"http://127.0.0.1:{server.http_port}{path}"
    response = requests.request(method, url, **form, timeout=60, **how)
    as_json = response.headers["Content-Type"] == "application/json"
    return response.status_code, response.headers, response.json() if as_json else response.content


def post(server, path, body, **how):
    return call(server, "POST", f"/v1/models/{path}", body, **how)


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
        ("shout:predict", {"inputs": ["hi", "ho"]}, {"outputs": ["HI", "HO"]}),
        ("shout:predict", {"inputs": [{"b64": base64.b64encode(b"hi").decode()}]}, {"outputs": ["HI"]}),
    ],
)
def test_a_request_gets_the_documented_answer(server, path, body, expected):
    status, headers, answer = post(server, path, body)
    assert (status, answer) == (200, expected)
    assert headers["Content-Type"] == "application/json"


def test_classify_answers_pairs_of_label_and_score(server):
    status, _, answer = post(server, "digits:classify", {"examples": [{"length": 3.0, "width": 1.0}, {"length": 9}]})
    assert status == 200
    first, second = answer["results"]
    assert [label for label, _ in first] == ["long", "wide", "neither"]
    assert sum(score for _, score in second) == pytest.approx(1.0, abs=1e-5)


def test_numbers_that_json_lacks_go_both_ways(server):
    status, _, answer = post(server, "half_plus_two:predict", b'{"inputs": [NaN, Infinity, -Infinity, -0.0, 1e-45]}')
    assert status == 200
    y = answer["outputs"]["y"]
    assert (str(y[0]), y[1], y[2], y[3]) == ("nan", float("inf"), float("-inf"), 2.0)


def test_bodies_are_compressed_both_ways(server):
    body = gzip.compress(json.dumps({"inputs": [float(i) for i in range(2000)]}).encode())
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    status, answered, answer = post(server, "half_plus_two:predict", body, headers=headers)
    assert (status, answered.get("Content-Encoding")) == (200, "gzip")
    assert answer["outputs"]["y"][:3] == [2.0, 2.5, 3.0]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", f"{TWO}:predict", b"", 400, "The document is empty"),
        ("POST", f"{TWO}:predict", b"{", 400, "JSON Parse error"),
        ("POST", f"{TWO}:predict", b"[]", 400, "Is not object"),
        ("POST", f"{TWO}:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
        ("POST", f"{TWO}:predict", {"instances": []}, 400, "No values in 'instances' array"),
        ("POST", f"{TWO}:predict", {"instances": ["a"]}, 400, "not of expected type"),
        ("POST", "/v1/models/nobody:predict", ONE, 404, "Servable not found for request"),
        ("POST", f"{TWO}/versions/9:predict", ONE, 404, "Servable not found"),
        ("POST", f"{TWO}/labels/x:predict", ONE, 400, "Unrecognized servable version"),
        ("POST", f"{TWO}:predict", {**ONE, "signature_name": "x"}, 400, NO_SIGNATURE),
        ("POST", f"{TWO}:regress", {"examples": []}, 400, "'examples' value is an empty array"),
        ("GET", f"{TWO}:predict", None, 400, "Malformed request: GET"),
        ("PUT", TWO, b"", 400, "Malformed request: PUT"),
        ("GET", f"{TWO}/versions/99999999999999999999", None, 400, "Failed to convert version"),
        ("GET", "/v1/models/nobody", None, 404, "Could not find any versions of model nobody"),
    ],
)
def test_bad_requests_get_the_code_and_the_message(server, method, path, body, status, words):
    got, headers, answer = call(server, method, path, body)
    assert (got, headers["Content-Type"]) == (status, "application/json")
    assert words in answer["error"]


def test_status_and_metadata_have_upstreams_shape(server):
    status, _, answer = call(server, "GET", TWO)
    version = {"version": "123", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert (status, answer) == (200, {"model_version_status": [version]})
    status, _, answer = call(server, "GET", "/v1/models/digits/versions/123/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "digits", "signature_name": "", "version": "123"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert signatures["total"]["method_name"] == "tensorflow/serving/regress"
    assert signatures["serving_default"]["inputs"]["length"]["tensor_shape"]["dim"][0]["size"] == "-1"


def test_the_metrics_page_has_upstreams_names(server):
    post(server, "half_plus_two:predict", {"instances": [1.0]})
    status, headers, page = call(server, "GET", "/monitoring/prometheus/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert b':tensorflow:serving:request_count{model_name="half_plus_two",status="OK"}' in page
    latency = b':tensorflow:serving:request_latency_bucket{model_name="half_plus_two",API="predict",entrypoint="REST"'
    assert latency in page
