from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import OK, ServingError, Status, StatusCode, not_found
from tfs_lite.protocols.serving import ModelRef, VersionState, VersionStatus
from tfs_lite.server.background import BackgroundRunner
from tfs_lite.server.health import Health
from tfs_lite.server.http_app import HttpRoutes
from tfs_lite.server.http_server import HttpServer
from tfs_lite.server.model_report import ModelReport
from tfs_lite.server.request_metrics import RequestMetrics

AVAILABLE = VersionStatus(7, VersionState.AVAILABLE, OK)
FAILED = VersionStatus(8, VersionState.END, Status(StatusCode.DATA_LOSS, "model.pt2 is truncated"))


class Servable:
    platform = "test"

    def __init__(self) -> None:
        spec = TensorSpec("x", DataType.FLOAT, (SymbolicDim("batch"), 3))
        self.signatures = {"serving_default": Signature((spec,), (TensorSpec("y", DataType.FLOAT),))}


class House:
    """What the routes need of a server, with one model."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.health = Health(lambda name: None)
        self.handles = 0
        self.pages = BackgroundRunner("page", 1, 4)
        self.routes = HttpRoutes(
            lookup=self.lookup,
            status=self.status,
            models=self.models,
            health=self.health,
            metrics=RequestMetrics(self.registry, lambda name: name == "m"),
            metrics_page=lambda: (generate_latest(self.registry), CONTENT_TYPE_LATEST),
            background=self.pages,
        )

    def lookup(self, ref: ModelRef) -> ServableHandle:
        if ref.name != "m":
            raise not_found(f"Servable not found for request: Latest({ref.name})")
        self.handles += 1
        return ServableHandle(ServableId("m", 7), Servable(), self._release)

    def _release(self) -> None:
        self.handles -= 1

    def status(self, ref: ModelRef) -> list[VersionStatus]:
        if ref.name == "crash":
            raise RuntimeError("the secret is in /etc/secret")
        if ref.name != "m":
            raise not_found(f"Could not find any versions of model {ref.name}")
        return [status for status in (FAILED, AVAILABLE) if ref.version in (None, status.version)]

    def models(self) -> list[ModelReport]:
        missing = Status(StatusCode.NOT_FOUND, "its base path does not exist")
        return [ModelReport("m", (FAILED, AVAILABLE)), ModelReport("n", (), missing)]


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.pages.close()


@pytest.fixture
def client(loop_thread: Any, house: House) -> Iterator[httpx.Client]:
    server = HttpServer(house.routes.app())
    port = loop_thread.run(server.start("127.0.0.1", 0))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        yield client
    loop_thread.run(server.stop(5))


def error(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    text: str = response.json()["error"]
    return text


def test_status_is_upstreams_json(client: httpx.Client) -> None:
    answer = client.get("/v1/models/m")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "model_version_status": [
            {
                "version": "8",
                "state": "END",
                "status": {"error_code": "DATA_LOSS", "error_message": "model.pt2 is truncated"},
            },
            {"version": "7", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}},
        ]
    }


def test_status_of_one_version_leaves_out_the_others(client: httpx.Client) -> None:
    (status,) = client.get("/v1/models/m/versions/7").json()["model_version_status"]
    assert status["version"] == "7"


def test_status_of_an_unknown_model_is_404(client: httpx.Client) -> None:
    answer = client.get("/v1/models/nobody")
    assert (answer.status_code, error(answer)) == (404, "Could not find any versions of model nobody")


def test_list_names_every_model_and_why_one_has_nothing(client: httpx.Client) -> None:
    first, second = client.get("/v1/models").json()["models"]
    assert first["name"] == "m"
    assert first["model_version_status"] == client.get("/v1/models/m").json()["model_version_status"]
    assert "reason" not in first
    assert second == {"name": "n", "model_version_status": [], "reason": "its base path does not exist"}


def test_metadata_is_upstreams_json_and_gives_its_handle_back(client: httpx.Client, house: House) -> None:
    body = client.get("/v1/models/m/metadata").json()
    assert body["model_spec"] == {"name": "m", "signature_name": "", "version": "7"}
    signature = body["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["defaults"] == {}
    assert signature["inputs"]["x"] == {
        "name": "x:0",
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}, {"size": "3", "name": ""}], "unknown_rank": False},
    }
    assert house.handles == 0


@pytest.mark.parametrize("verb", ["predict", "classify", "regress"])
def test_predictions_say_that_they_come_later(client: httpx.Client, verb: str) -> None:
    answer = client.post(f"/v1/models/m:{verb}", json={"instances": [1]})
    assert answer.status_code == 501
    assert "not available in this version" in error(answer)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models/m/"), ("PUT", "/v1/models/m"), ("GET", "/v1/x")])
def test_what_is_not_in_the_grammar_is_malformed(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, error(answer)) == (400, f"Malformed request: {method} {path}")


@pytest.mark.parametrize(("method", "path"), [("GET", "/nothing"), ("GET", "/"), ("POST", "/livez")])
def test_unknown_page_is_a_json_404(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 404
    assert "no such page" in error(answer)


def test_encoded_names_reach_the_server_decoded(client: httpx.Client) -> None:
    assert error(client.get("/v1/models/a%2Fb%3Ac")) == "Could not find any versions of model a/b:c"


def test_unexpected_error_is_500_without_details(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    answer = client.get("/v1/models/crash")
    assert (answer.status_code, error(answer)) == (500, "internal error")
    assert "the secret is in" in caplog.text


def test_probes_follow_the_health(client: httpx.Client, house: House) -> None:
    assert client.get("/livez").status_code == client.get("/startupz").status_code == 200
    assert (client.get("/readyz").status_code, client.get("/readyz").text) == (503, "models are being loaded\n")
    house.health.set_ready()
    assert client.get("/readyz").status_code == 200
    house.health.set_draining()
    assert (client.get("/readyz").status_code, client.get("/readyz").text) == (503, "draining\n")
    assert client.get("/livez").status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/monitoring/prometheus/metrics"])
def test_metrics_are_prometheus_text(client: httpx.Client, path: str) -> None:
    client.get("/v1/models/m")
    answer = client.get(path)
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'tfs_lite_requests_total{code="OK",method="GetModelStatus",model="m",version=""} 1.0' in answer.text


def test_port_in_use_names_port_and_flag(loop_thread: Any, house: House) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServingError, match=rf"port {port} of 127.0.0.1 is already in use \(--rest_api_port\)"):
            loop_thread.run(HttpServer(house.routes.app()).start("127.0.0.1", port))


def test_stop_before_start_does_nothing(loop_thread: Any, house: House) -> None:
    loop_thread.run(HttpServer(house.routes.app()).stop(1))
