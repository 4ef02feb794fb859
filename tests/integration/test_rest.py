"""Predictions over REST against a real server: answers, bounds, clients that leave, new versions, the end."""

from __future__ import annotations

import gzip
import itertools
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import orjson
import ormsgpack
import pytest

from tests.support.servers.models import TaggedArchives, gated_source, write_python_version
from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.core.publish import publish

LIMIT = 8 << 20
TIMEOUT_MS = 3000
ROW = {"instances": [[1.0, 2.0, 3.0]]}

SCORES = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        x = inputs["x"]
        return {"scores": x, "total": x.sum(1)}
"""
SCORES_CONFIG = """
platform: python
input: [{name: x, data_type: TYPE_FP32, dims: [-1, 3]}]
output: [{name: scores, data_type: TYPE_FP32, dims: [-1, 3]}, {name: total, data_type: TYPE_FP32, dims: [-1]}]
signatures:
  serving_default: {method_name: classify, outputs: {scores: scores}}
  total: {method_name: regress, outputs: {outputs: total}}
"""


class RestFixture:
    """One server and an HTTP client of it."""

    def __init__(self, server: ServerProcess, probe: Probe, root: Path, archives: TaggedArchives) -> None:
        self.server = server
        self.probe = probe
        self._root = root
        self._archives = archives
        self._scratch = root.with_name("scratch")
        self._scratch.mkdir()
        self.url = f"http://127.0.0.1:{server.http_port}"
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def publish(self, model: str, version: int) -> None:
        archive = self._archives.write(version, self._scratch / "model.pt2")
        publish(str(archive), str(self._root / model), version)

    def publish_code(self, model: str, version: int, source: str) -> None:
        publish(str(write_python_version(self._scratch / model, version, source)), str(self._root / model), version)

    def serve(self, model: str, version: int = 1) -> str:
        """The path of a model that is available now."""
        self.publish(model, version)
        self.probe.wait_available(model, version)
        return f"/v1/models/{model}:predict"


@pytest.fixture(scope="module")
def rest(archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestFixture]:
    root = tmp_path_factory.mktemp("rest") / "models"
    scores = root / "code_scores"
    write_python_version(scores, 1, SCORES)
    (scores / "1" / "config.pbtxt").unlink()
    (scores / "1" / "config.yaml").write_text(SCORES_CONFIG)
    flags = (
        f"--model_repository={root}",
        f"--trusted_model_base_paths={root}/code_*",
        "--version_quiet_period_seconds=0.2",
        "--file_system_poll_wait_seconds=1",
        f"--rest_api_timeout_in_ms={TIMEOUT_MS}",
        "--rest_api_enable_cors_support",
        f"--max_message_bytes={LIMIT}",
        "--max_queued_requests=100",
    )
    with ServerProcess(*flags) as server, Probe(server) as probe:
        rest = RestFixture(server, probe, root, archives)
        with rest.client:
            rest.serve("steady")
            yield rest
    assert server.exit_code == 0


STEADY = "/v1/models/steady:predict"


def test_row_column_and_msgpack_say_the_same(rest: RestFixture) -> None:
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    row = rest.client.post(STEADY, json={"instances": rows}).json()["predictions"]
    column = rest.client.post(STEADY, json={"inputs": {"x": rows}}).json()["outputs"]
    headers = {"content-type": "application/msgpack"}
    packed = rest.client.post(STEADY, content=ormsgpack.packb({"inputs": rows}), headers=headers)
    assert row == [{"y": [2.0, 3.0, 4.0], "version": 1.0}, {"y": [5.0, 6.0, 7.0], "version": 1.0}]
    assert column == {"y": [answer["y"] for answer in row], "version": [1.0, 1.0]}
    assert ormsgpack.unpackb(packed.content) == {"outputs": column}


def test_every_answer_allows_other_origins(rest: RestFixture) -> None:
    for answer in (rest.client.post(STEADY, json=ROW), rest.client.post(STEADY, json={}), rest.client.get("/v1/x")):
        assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-origin" not in rest.client.get("/metrics").headers


def test_answers_say_how_long_their_connection_stays(rest: RestFixture) -> None:
    assert rest.client.get("/livez").headers["keep-alive"] == "timeout=75"
    page = rest.client.get("/metrics").text
    assert 'tfs_lite_http_connections_closed_total{kind="slow_body"} 0.0' in page
    assert "tfs_lite_http_connections 1.0" in page


def test_classify_and_regress_answer_by_their_signatures(rest: RestFixture) -> None:
    rest.probe.wait_available("code_scores", 1)
    examples = {"examples": [{"x": [1.0, 2.0, 3.0]}, {"x": [4, 5, 6]}]}
    classes = rest.client.post("/v1/models/code_scores:classify", json=examples).json()
    assert classes == {"results": [[["", 1.0], ["", 2.0], ["", 3.0]], [["", 4.0], ["", 5.0], ["", 6.0]]]}
    totals = rest.client.post("/v1/models/code_scores:regress", json={"signature_name": "total", **examples}).json()
    assert totals == {"results": [6.0, 15.0]}


def test_large_packed_body_gets_its_numbers_back(rest: RestFixture) -> None:
    x = np.random.default_rng(3).normal(size=(50_000, 3)).astype(np.float32)
    body = gzip.compress(orjson.dumps({"inputs": x}, option=orjson.OPT_SERIALIZE_NUMPY), compresslevel=1)
    answer = rest.client.post(STEADY, content=body, headers={"content-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    np.testing.assert_array_equal(np.array(answer.json()["outputs"]["y"], np.float32), x + np.float32(1))


@pytest.mark.parametrize("body", [bytes(LIMIT + 1), gzip.compress(bytes(20 * LIMIT))], ids=["plain", "bomb"])
def test_body_past_the_limit_is_refused(rest: RestFixture, body: bytes) -> None:
    headers = {"content-encoding": "gzip"} if len(body) < LIMIT else {}
    answer = rest.client.post(STEADY, content=body, headers=headers)
    assert answer.status_code == 413
    assert f"larger than {LIMIT} bytes" in answer.json()["error"]


def test_many_clients_at_once_each_get_their_own_answer(rest: RestFixture) -> None:
    def ask(number: int) -> bool:
        x = [[float(number), 0.0, -1.0]] * (1 + number % 3)
        answer = rest.client.post(STEADY, json={"inputs": x})
        return answer.json()["outputs"]["y"] == [[number + 1.0, 1.0, 0.0]] * len(x)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(300)))


def test_deadline_is_told_and_the_server_goes_on(rest: RestFixture, tmp_path: Path) -> None:
    rest.publish_code("code_slow", 1, gated_source(1, tmp_path))
    rest.probe.wait_available("code_slow", 1)
    answer = rest.client.post("/v1/models/code_slow:predict", json=ROW)
    assert answer.status_code == 504
    assert "deadline" in answer.json()["error"]
    (tmp_path / "open").touch()
    assert rest.client.post("/v1/models/code_slow:predict", json=ROW).json() == {"predictions": [[2.0, 3.0, 4.0]]}


def test_client_that_leaves_a_request_inside_does_not_keep_its_version(rest: RestFixture, tmp_path: Path) -> None:
    model, body = "code_left", orjson.dumps(ROW)
    rest.publish_code(model, 1, gated_source(1, tmp_path))
    rest.probe.wait_available(model, 1)
    with socket.create_connection(("127.0.0.1", rest.server.http_port)) as client:
        client.sendall(f"POST /v1/models/{model}:predict HTTP/1.1\r\nHost: x\r\n".encode())
        client.sendall(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: (tmp_path / "entered-1").exists(), "the request is inside the model")
    (tmp_path / "open").touch()
    rest.publish_code(model, 2, gated_source(2, tmp_path))
    rest.probe.wait_states(model, {2: "AVAILABLE", 1: "END"})
    metrics = rest.client.get("/metrics").text
    assert f'tfs_lite_requests_total{{code="CANCELLED",method="Predict",model="{model}",version="1"}} 1.0' in metrics


def test_new_version_takes_over_without_a_failed_request(rest: RestFixture) -> None:
    path = rest.serve("moving")
    answers = []

    def ask() -> float:
        answer = rest.client.post(path, json=ROW)
        assert answer.status_code == 200, answer.text
        version = answer.json()["predictions"][0]["version"]
        assert answer.json()["predictions"][0]["y"] == [version + x for x in ROW["instances"][0]]
        return version

    answers.append(ask())
    rest.publish("moving", 2)
    wait_until(lambda: answers.append(ask()) or answers[-1] == 2.0, "the new version answers", interval=0.0)
    assert [version for version, _ in itertools.groupby(answers)] == [1.0, 2.0]


def test_requests_are_counted_for_us_and_for_upstreams_dashboards(rest: RestFixture) -> None:
    path = rest.serve("counted")
    for _ in range(3):
        rest.client.post(path, json=ROW)
    rest.client.post(path, json={})
    metrics = rest.client.get("/metrics").text
    count = 'tfs_lite_requests_total{{code="{}",method="Predict",model="counted",version="1"}} {}'
    assert count.format("OK", "3.0") in metrics
    assert count.format("INVALID_ARGUMENT", "1.0") in metrics


def test_sigterm_answers_what_is_inside_and_refuses_the_rest(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    write_python_version(tmp_path / "models" / "gated", 1, gated_source(1, gate))
    flags = (
        f"--model_repository={tmp_path}/models",
        f"--trusted_model_base_paths={tmp_path}/models/*",
        "--version_quiet_period_seconds=0.2",
        "--ready_requires_all_models",
    )
    with ServerProcess(*flags) as server, ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{server.http_port}/v1/models/gated:predict"
        inside = pool.submit(httpx.post, url, json=ROW, timeout=60)
        wait_until(lambda: (gate / "entered-1").exists(), "a request is inside the model")
        server.terminate()
        refused = wait_until(lambda: _refusal(url), "predictions are refused")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        (gate / "open").touch()
        assert inside.result().json() == {"predictions": [[2.0, 3.0, 4.0]]}
        assert server.wait() == 0


def _refusal(url: str) -> httpx.Response | None:
    """What a prediction gets that may not come in; one that may waits for the gate, and is given up."""
    try:
        answer = httpx.post(url, json=ROW, timeout=1)
    except httpx.TimeoutException:
        return None
    return answer if answer.status_code == 503 else None


def test_a_length_said_in_two_ways_is_refused_and_the_connection_closed(rest: RestFixture) -> None:
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", rest.server.http_port), timeout=30) as connection:
        connection.sendall(head + b"2\r\n{}\r\n0\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b'{"error":"Invalid HTTP request received."}')
    assert answer.count(b"HTTP/1.1 ") == 1
