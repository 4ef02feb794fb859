"""Which request is answered by whom, with which code, form and headers; against a real HTTP server."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable
from typing import Any

import orjson
import ormsgpack
import pytest

from tests.support.servers.rest_fixture import ROW, RestFixture, error
from tfs_lite.core.model import SandboxStatus
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ReplicaReport, ReplicaStatus
from tfs_lite.core.status import ServingError
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.server.http.server import HttpServer

CORS = {
    f"access-control-{name}" for name in ("allow-origin", "allow-methods", "allow-headers", "expose-headers", "max-age")
}

Serve = Callable[..., RestFixture]

MALFORMED = "Malformed request: {method} {path}"
REFUSED = [  # test_rest_routes.py has the whole grammar
    ("GET", "/v1/models/", 400, MALFORMED),
    ("GET", "/v1/anything", 400, MALFORMED),
    ("POST", "/v1/models/m:explain", 400, MALFORMED),
    ("PUT", "/v1/models/m", 400, MALFORMED),
    ("GET", "/v1/models/m/versions/9223372036854775808", 400, "Failed to convert version"),
    ("POST", "/v1/models/m/versions/99999999999999999999:predict", 400, "Failed to convert version"),
    ("GET", "/v1/models/m?x=1", 404, "Could not find any versions of model m?x=1"),
    ("GET", "/v1/models/metadata", 404, "Could not find any versions of model metadata"),
    ("GET", "/v1/models/a%2Fb%3Ac+%21", 404, "Could not find any versions of model a/b:c+!"),
    ("GET", "/v1/models/nobody/metadata", 404, "Latest(nobody)"),
    ("GET", "/v1/models/m/versions/8/metadata", 404, "Specific(m, 8)"),
    ("POST", "/v1/models/nobody:predict", 404, "Latest(nobody)"),
    ("GET", "/", 404, "no such page: /"),
    ("GET", "/v1", 404, "no such page: /v1"),
    ("GET", "/v2/models/m", 404, "no such page: /v2/models/m"),
    ("GET", "/livez/", 404, "no such page: /livez/"),
    ("POST", "/livez", 405, "/livez answers GET only, not POST"),
    ("DELETE", "/metrics", 405, "/metrics answers GET only, not DELETE"),
]


@pytest.mark.parametrize(("method", "path", "status", "words"), REFUSED)
def test_request_that_nobody_answers_is_refused_in_json(
    shared: RestFixture, method: str, path: str, status: int, words: str
) -> None:
    answer = shared.client.request(method, path, json=ROW if method == "POST" else None)
    assert answer.status_code == status
    assert words.format(method=method, path=path) in error(answer)


ANSWERED = [
    *(("GET", f"/v1/models{rest}") for rest in ("", "/m", "/%6D", "/m/versions/7", "/m/labels/x")),
    *(("GET", f"/v1/models/m{rest}") for rest in ("/metadata", "/labels/x/metadata")),
    *(("POST", path) for path in ("/v1/models/m:predict", "/v1/models/m/labels/x:predict", "/V1/models/%6d:predict")),
    ("GET", "/openapi.json"),
]


@pytest.mark.parametrize(("method", "path"), ANSWERED)
def test_request_of_the_grammar_is_answered_in_json(shared: RestFixture, method: str, path: str) -> None:
    answer = shared.client.request(method, path, json=ROW if method == "POST" else None)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/models/m", 400), ("/v1/models", 400), ("/livez", 200), ("/openapi.json", 200), ("/nothing", 404)],
)
def test_head_has_the_status_and_no_body(shared: RestFixture, path: str, status: int) -> None:
    answer = shared.client.head(path)
    assert (answer.status_code, answer.content) == (status, b"")


@pytest.mark.parametrize("path", ["/v1/models/m:predict", "/v1/models", "/v1/anything"])
@pytest.mark.parametrize(("origin", "status"), [("http://a.example", 200), ("", 400), ("null", 400)])
def test_options_have_neither_body_nor_type(shared: RestFixture, path: str, origin: str, status: int) -> None:
    answer = shared.client.options(path, headers={"origin": origin} if origin else {})
    assert (answer.status_code, answer.content) == (status, b"")
    assert "content-type" not in answer.headers
    assert not CORS & set(answer.headers)


def test_cors_headers_are_on_every_answer_about_predictions_and_on_no_other(serve: Serve) -> None:
    server = serve(enable_cors=True)
    predict = "/v1/models/m:predict"
    answers = [
        server.client.get("/v1/models/m/metadata"),
        server.client.get("/v1/models/nobody/metadata"),
        server.client.put(predict),
        server.client.post(predict, json=ROW),
        server.client.options(predict, headers={"origin": "https://a.example"}),
        server.client.options(predict),
        server.client.get("/v1/anything"),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 400, 200, 200, 400, 400]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-methods"] == "POST, GET"
        assert answer.headers["access-control-allow-headers"] == "Content-Type"
        assert "X-Model-Version" in answer.headers["access-control-expose-headers"]
    for path in ("/metrics", "/livez", "/nothing", "/v1/models", "/v1/models/m", "/v1/models/nobody"):
        assert not CORS & set(server.client.get(path).headers)


ABSOLUTE = [
    ("GET", "http://a.example:8501/v1/models/m", 200),
    ("GET", "HTTP://a.example/V1/models/%6D/metadata", 200),
    ("GET", "http://a.example/v1/models/m?x=1", 404),
    ("GET", "http://a.example/livez", 200),
    ("GET", "http://a.example/nothing", 404),
    ("GET", "http://a.example", 404),
    ("OPTIONS", "http://a.example/v1/models/m", 400),
    ("POST", "http://a.example/v1/models/m:predict", 200),
]


@pytest.mark.parametrize(("method", "target", "status"), ABSOLUTE, ids=[f"{row[0]} {row[1]}" for row in ABSOLUTE])
def test_target_in_absolute_form_means_its_path(shared: RestFixture, method: str, target: str, status: int) -> None:
    """As clients of a proxy send it (RFC 9112, 3.2.2)."""
    body = orjson.dumps(ROW) if method == "POST" else b""
    lines = f"{method} {target} HTTP/1.1\r\nHost: b.example\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with shared.raw(lines.encode(), body) as connection:
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_status_is_upstreams_json_of_all_versions_or_one(shared: RestFixture) -> None:
    ended = {"error_code": "DATA_LOSS", "error_message": "model.pt2 is truncated"}
    available = {"version": "7", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert shared.client.get("/v1/models/m").json() == {
        "model_version_status": [{"version": "8", "state": "END", "status": ended}, available]
    }
    assert shared.client.get("/v1/models/m/versions/7").json() == {"model_version_status": [available]}


def test_list_names_every_model_and_why_one_has_nothing(shared: RestFixture) -> None:
    first, second = shared.client.get("/v1/models").json()["models"]
    assert first["name"] == "m"
    assert first["model_version_status"] == shared.client.get("/v1/models/m").json()["model_version_status"]
    assert "reason" not in first
    assert second == {"name": "n", "model_version_status": [], "reason": "its base path does not exist"}


def test_list_has_the_replicas_of_models_that_live_in_a_cluster(server: RestFixture) -> None:
    lost = ReplicaStatus("m/7/00000000/1#2", "lost", 1.7e9, "gpu-b", None, None, 2, "signal 9")
    ready = ReplicaStatus("m/7/00000000/0#0", "ready", 1.7e9, "gpu-a", 41, 1)
    server.replica_reports.append(ReplicaReport(ServableId("m", 7), "1/2 up, 1 starting: signal 9", (ready, lost)))
    first, second = server.client.get("/v1/models").json()["models"]
    (of_version,) = first["replica_status"]
    assert (of_version["version"], of_version["summary"]) == ("7", "1/2 up, 1 starting: signal 9")
    assert of_version["replicas"][1] == {
        "name": "m/7/00000000/1#2",
        "state": "lost",
        "since": 1.7e9,
        "node": "gpu-b",
        "pid": None,
        "ongoing": None,
        "restarts": 2,
        "reason": "signal 9",
    }
    assert "replica_status" not in second
    assert "replica_status" not in server.client.get("/v1/models/m").json()  # TensorFlow Serving's own


def test_list_has_the_processes_of_models_and_what_their_sandboxes_hold(server: RestFixture) -> None:
    version, held = ServableId("m", 7), SandboxStatus(("files", "programs", "network"), ("signals",))
    server.worker_states += [
        WorkerState(version, 0, "process", True, 41, sandbox=held),
        WorkerState(version, 1, "process", False),
        WorkerState(version, 2, "thread", True),
    ]
    first, second = server.client.get("/v1/models").json()["models"]
    assert first["process_status"] == [
        {
            "version": "7",
            "instance": 0,
            "pid": 41,
            "drains": False,
            "sandbox": {"holds": ["files", "programs", "network"], "lacks": ["signals"]},
        },
        {"version": "7", "instance": 1, "pid": None, "drains": False, "sandbox": None},
    ]
    assert "process_status" not in second
    assert "process_status" not in server.client.get("/v1/models/m").json()  # TensorFlow Serving's own


def test_metadata_is_upstreams_json_and_gives_its_handle_back(server: RestFixture) -> None:
    body = server.client.get("/v1/models/m/metadata").json()
    assert body["model_spec"] == {"name": "m", "signature_name": "", "version": "7"}
    signature = body["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["defaults"] == {}
    assert signature["inputs"]["x"] == {
        "name": "x:0",
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}, {"size": "3", "name": ""}], "unknown_rank": False},
    }
    assert server.handles == 0


def test_requests_are_counted_by_method_malformed_ones_without_a_name(server: RestFixture) -> None:
    for path in ("/v1/models", "/v1/models/m", "/v1/models/m/metadata", "/v1/nothing"):
        server.client.get(path)
    server.client.post("/v1/models/m:predict", json=ROW)
    for counted in (
        ("OK", "ListModels", "", ""),
        ("OK", "GetModelStatus", "m", ""),
        ("OK", "GetModelMetadata"),
        ("INVALID_ARGUMENT", "", "", ""),
        ("OK", "Predict"),
    ):
        assert server.count(*counted) == 1, counted


def test_unexpected_error_is_500_without_details(server: RestFixture, caplog: pytest.LogCaptureFixture) -> None:
    answer = server.client.get("/v1/models/crash")
    assert (answer.status_code, error(answer)) == (500, "internal error")
    assert "the secret is in" in caplog.text


def test_answer_that_asks_to_try_again_says_when(shared: RestFixture) -> None:
    answer = shared.client.post("/v1/models/m:predict", json={"signature_name": "broken", "instances": [1.0]})
    assert (answer.status_code, error(answer)) == (503, "the queue is full")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "headers",
    [{"content-type": "application/msgpack"}, {"content-type": "application/x-msgpack; v=1", "accept": "*/*"}],
)
def test_msgpack_is_answered_in_msgpack_errors_too(shared: RestFixture, headers: dict[str, str]) -> None:
    for body, status, expected in (
        (ROW, 200, {"predictions": [[8.0, 9.0, 10.0]]}),
        ({"signature_name": "broken", "instances": [1.0]}, 503, {"error": "the queue is full"}),
    ):
        answer = shared.client.post("/v1/models/m:predict", content=ormsgpack.packb(body), headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/msgpack")
        assert ormsgpack.unpackb(answer.content) == expected


def test_form_of_the_answer_is_what_the_client_accepts_by_name(shared: RestFixture) -> None:
    wants_msgpack = shared.post(ROW, accept="text/html, application/msgpack")
    assert ormsgpack.unpackb(wants_msgpack.content) == {"predictions": [[8.0, 9.0, 10.0]]}
    headers = {"content-type": "application/msgpack", "accept": "application/json"}
    wants_json = shared.client.post("/v1/models/m:predict", content=ormsgpack.packb(ROW), headers=headers)
    assert wants_json.json() == {"predictions": [[8.0, 9.0, 10.0]]}
    assert "Malformed" in error(shared.client.get("/v1/models/m:explain", headers={"accept": "application/msgpack"}))


@pytest.mark.parametrize(
    ("rows", "accepted", "packed"),
    [(1000, "gzip", True), (10_000, "deflate, gzip;q=0.1", True), (1000, "identity", False), (1, "gzip", False)],
)
def test_large_answers_are_packed_for_clients_that_unpack(
    shared: RestFixture, rows: int, accepted: str, packed: bool
) -> None:
    body = {"instances": [[1.0, 2.0, 3.0]] * rows}
    with shared.client.stream(
        "POST", "/v1/models/m:predict", json=body, headers={"accept-encoding": accepted}
    ) as answer:
        data = b"".join(answer.iter_raw())
    assert answer.headers.get("content-encoding") == ("gzip" if packed else None)
    assert int(answer.headers["content-length"]) == len(data)
    assert ("vary" in answer.headers) is (rows > 1)
    assert len(orjson.loads(gzip.decompress(data) if packed else data)["predictions"]) == rows


def test_probes_follow_the_health(server: RestFixture) -> None:
    def page(path: str) -> tuple[int, str]:
        answer = server.client.get(path)
        return answer.status_code, answer.text

    assert page("/livez") == page("/startupz") == (200, "ok\n")
    assert page("/readyz") == (503, "models are being loaded\n")
    server.health.set_ready()
    assert page("/readyz") == (200, "ok\n")
    server.health.set_draining()
    assert page("/readyz") == (503, "draining\n")
    assert page("/livez") == (200, "ok\n")


def test_metrics_are_prometheus_text_and_upstreams_page_is_nowhere_when_it_is_turned_off(server: RestFixture) -> None:
    server.client.get("/v1/models/m")
    answer = server.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'tfs_lite_requests_total{code="OK",method="GetModelStatus",model="m",version=""} 1.0' in answer.text
    assert server.client.get("/monitoring/prometheus/metrics").status_code == 404


@pytest.mark.parametrize("path", ["/monitoring/prometheus/metrics", "/v1/metrics", "/metrics"])
def test_upstreams_page_is_where_it_is_told_to_be(serve: Serve, path: str) -> None:
    server = serve(metrics_path=path, enable_cors=True)
    server.request_metrics.tensorflow.on_logged("m", "OK")
    page = ':tensorflow:serving:request_log_count{model_name="m",status_code="OK"} 1\n'
    for method in ("GET", "POST"):
        answer = server.client.request(method, path)
        assert answer.status_code == 200
        assert page in answer.text
        assert ("tfs_lite_" in answer.text) is (path == "/metrics"), "our names follow where the page replaces ours"
        assert answer.headers["content-type"].startswith("text/plain")
        assert not CORS & set(answer.headers)
    refused = server.client.get(f"{path}?x=1")
    assert (refused.status_code, error(refused)) == (400, f"Unexpected path: {path}?x=1")


def test_port_in_use_names_port_and_flag(loop_thread: Any, server: RestFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServingError, match=rf"port {port} of 127.0.0.1 is already in use \(--rest_api_port\)"):
            loop_thread.run(HttpServer(server.app).start("127.0.0.1", port))


def test_stop_before_start_does_nothing(loop_thread: Any, server: RestFixture) -> None:
    loop_thread.run(HttpServer(server.app).stop(1))
