"""Who may manage a real server: every call of every protocol, from this machine, from elsewhere and from a web page."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.errors import refusal
from tests.support.servers.access_fixture import ELSEWHERE, READER, SECRET, UNKNOWN, ManagedServer, bearer, managed
from tests.support.servers.in_process import config_text, entry
from tests.support.servers.models import TaggedArchives
from tfs_lite.client import Client
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.protocols.messages import AdminRequest
from tfs_lite.transport.table import Scope

DENIED_CODES = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

MANAGING_METHODS = {
    "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
    "/tfs_lite.AdminService/Guard",
    "/tfs_lite.AdminService/WhatIf",
    *(
        f"/inference.GRPCInferenceService/{name}"
        for name in (
            "RepositoryModelLoad",
            "RepositoryModelUnload",
            "SystemSharedMemoryRegister",
            "SystemSharedMemoryUnregister",
            "CudaSharedMemoryRegister",
            "CudaSharedMemoryUnregister",
            "TraceSetting",
            "LogSettings",
        )
    ),
}
"""A row that forgets to say its scope shows up here, too."""
OPEN_METHODS = {
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/inference.GRPCInferenceService/ModelReady",
}
MANAGING_ROUTES = {
    f"POST {path}"
    for path in (
        "/v2/repository/models/{model}/load",
        "/v2/repository/models/{model}/unload",
        "/v2/systemsharedmemory/region/{region}/register",
        "/v2/systemsharedmemory/region/{region}/unregister",
        "/v2/systemsharedmemory/unregister",
        "/v2/cudasharedmemory/region/{region}/register",
        "/v2/cudasharedmemory/region/{region}/unregister",
        "/v2/cudasharedmemory/unregister",
        "/v2/trace/setting",
        "/v2/models/{model}/trace/setting",
        "/v2/logging",
        "/v1/config:explain",
        "/v1/config:reload",
        "/v1/models/{model}:guard",
    )
}
OPEN_ROUTES = {
    "/",
    "/dashboard/assets/{file}",
    "/livez",
    "/readyz",
    "/startupz",
    "/openapi.json",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/{model}/ready",
    "/v2/models/{model}/versions/{version}/ready",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and their config."""
    root, archives = tmp_path_factory.mktemp("models"), TaggedArchives()
    for name in ("m", "a-one"):
        archives.write_version(1, root / name)
    (root / "models.config").write_text(config_text(root, entry("m"), entry("a-one")))
    return root


@pytest.fixture(scope="module", params=["native", "grpcio"])
def server(request: pytest.FixtureRequest, root: Path) -> Iterator[ManagedServer]:
    with managed(root, model_config_file=str(root / "models.config"), grpc_server=request.param) as found:
        yield found


def test_every_row_that_manages_or_is_open_is_known(server: ManagedServer) -> None:
    methods, routes = server.methods, server.routes
    assert {method.path for method in methods if method.scope is Scope.MANAGE} == MANAGING_METHODS
    assert {method.path for method in methods if method.scope is Scope.OPEN} == OPEN_METHODS
    found = {f"{method} {route.path}" for route in routes if route.scope is Scope.MANAGE for method in route.methods}
    assert found == MANAGING_ROUTES
    assert {route.path for route in routes if route.scope is Scope.OPEN} == OPEN_ROUTES
    assert all(route.methods for route in routes if route.scope is Scope.MANAGE)


def change(path: str) -> bytes:
    """A request that would change something, and names no model: settings are changed only if there are some, and the
    guard does nothing without an action."""
    if path.endswith("/Guard"):
        return bytes(AdminRequest(json=b'{"action": "undo"}').SerializeToString())
    return b"\x0a\x00" if path.endswith(("TraceSetting", "LogSettings")) else b""


@pytest.mark.parametrize("path", sorted(MANAGING_METHODS))
def test_managing_methods_are_denied_without_a_token_and_allowed_with_one(server: ManagedServer, path: str) -> None:
    code, words = server.call(path, change(path))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "'manage'" in words
    assert "--management_access" in words
    assert server.call(path, change(path), UNKNOWN)[0] is grpc.StatusCode.UNAUTHENTICATED
    assert server.call(path, change(path), READER)[0] is grpc.StatusCode.PERMISSION_DENIED
    assert server.call(path, change(path), SECRET)[0] not in DENIED_CODES
    assert server.call(path, change(path), local=True)[0] not in DENIED_CODES


@pytest.mark.parametrize("route", sorted(MANAGING_ROUTES))
def test_managing_routes_are_denied_without_a_token_and_allowed_with_one(server: ManagedServer, route: str) -> None:
    method, path = route.replace("{model}", "m").replace("{region}", "r").split(" ")
    answer = server.ask(method, path)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "--management_access" in answer.json()["error"]
    if path == "/v2/logging":  # few wrong tokens, or right ones have to wait
        assert server.ask(method, path, UNKNOWN).status_code == 401
    reader = server.ask(method, path, READER)
    assert reader.status_code == 403
    assert "www-authenticate" not in reader.headers
    assert server.ask(method, path, SECRET).status_code not in (401, 403)
    assert server.http.request(method, path).status_code not in (401, 403), "from this machine"


def test_probes_predictions_and_pages_are_open_to_everybody(server: ManagedServer) -> None:
    for token in ("", "sk-" + "x" * 40):
        for path in ("/livez", "/readyz", "/v2/health/live", "/metrics", "/v1/models", "/v2/models/m", "/v2/logging"):
            assert server.ask("GET", path, token).status_code == 200, path
        for service in ("/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/TraceSetting"):
            assert server.call(service, token=token)[0] is grpc.StatusCode.OK
        answer = server.http.post(
            "/v1/models/m:predict", json={"instances": [[1.0, 2.0, 3.0]]}, headers={**ELSEWHERE, **bearer(token)}
        )
        assert answer.status_code == 200


def test_client_with_a_token_manages_and_one_without_is_told_how(server: ManagedServer, root: Path) -> None:
    config = parse_model_server_config(config_text(root, entry("m"), entry("a-one")), "reload")
    with Client(server.served.target, token=f"{SECRET}\n") as client:  # as it is read from a file
        client.reload(config)
    code, _ = server.call("/tensorflow.serving.ModelService/HandleReloadConfigRequest")
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "two words" not in refusal(lambda: Client(server.served.target, token="two words"))


OLD_BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"
FORGED: list[dict[str, str]] = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"content-type": "text/plain", "user-agent": OLD_BROWSER},
    {"content-type": "application/x-www-form-urlencoded", "user-agent": OLD_BROWSER},
    {"content-type": "text/plain", "origin": "http://evil.example", "sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "cross-site"},
    {"host": "evil.example"},
    {"host": "evil.example:8501", "origin": "http://evil.example:8501", "sec-fetch-site": "same-origin"},
]


def test_denied_requests_of_both_protocols_have_a_line_in_the_access_log(
    server: ManagedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tfs_lite.access")
    server.ask("POST", "/v2/logging?secret=1", UNKNOWN, headers={"x-request-id": "mine"})
    path = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
    server.call(path)
    first, second = (record.getMessage() for record in caplog.records if record.name == "tfs_lite.access")
    assert first.startswith("POST /v2/logging 127.0.0.1 UNAUTHENTICATED scope=manage caller=127.0.0.1 id=mine access: ")
    assert second.startswith(f"{path} 127.0.0.1 UNAUTHENTICATED scope=manage caller=127.0.0.1 access: ")
    assert UNKNOWN not in first + second


@pytest.mark.parametrize("headers", FORGED)
def test_web_page_of_another_origin_cannot_manage(server: ManagedServer, headers: dict[str, str]) -> None:
    for path in ("/v2/repository/models/m/unload", "/v2/logging", "/v2/trace/setting"):
        answer = server.http.post(path, content=b"{}", headers=headers)
        assert answer.status_code == 403, answer.text
        assert "'manage'" in answer.json()["error"]
        assert "access-control-allow-origin" not in answer.headers
    assert server.served.version("m") == 1


def posted_by_urllib(url: str) -> int:
    """As Python's own library sends it: the content type of a form."""
    with urllib.request.urlopen(url, b"{}") as answer:
        return int(answer.status)


def posted_by_curl(url: str) -> int:
    if not (curl := shutil.which("curl")):
        pytest.skip("there is no curl")
    command = [curl, "-s", "-o", os.devnull, "-w", "%{http_code}", "-d", "{}", url]
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


def posted_as_octets(url: str) -> int:
    """As aiohttp sends bytes, on which Triton's asynchronous client is built."""
    request = urllib.request.Request(url, b"{}", {"content-type": "application/octet-stream"})
    with urllib.request.urlopen(request) as answer:
        return int(answer.status)


@pytest.mark.parametrize("post", [posted_by_urllib, posted_by_curl, posted_as_octets])
def test_tools_that_are_no_browsers_manage_with_the_content_type_that_they_send_by_themselves(
    server: ManagedServer, post: Callable[[str], int]
) -> None:
    for path in ("/v2/logging", "/v2/trace/setting", "/v2/models/m/trace/setting"):
        assert post(f"{server.served.url}{path}") == 200, path


def test_own_page_may_manage(server: ManagedServer) -> None:
    origin = server.served.url
    headers = {"origin": origin, "sec-fetch-site": "same-origin", "content-type": "application/json"}
    assert server.http.post("/v2/logging", content=b"{}", headers=headers).status_code == 200


def test_settings_are_read_with_other_methods_of_the_same_path(server: ManagedServer) -> None:
    assert json.loads(server.ask("GET", "/v2/logging").text)
    assert server.ask("HEAD", "/v2/trace/setting").status_code == 200
    assert server.ask("DELETE", "/v2/logging").headers["allow"] == "GET, HEAD, POST"
