"""Who may manage a real server: every call of every protocol, from this machine, from elsewhere and from a web page.

A proxy's header makes a caller on loopback count as one from elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tfs_lite.client import Client
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.server import endpoints, http_app
from tfs_lite.server.http.router import Api, Route, Router
from tfs_lite.testing.errors import refusal
from tfs_lite.testing.servers.in_process import ServerFixture, config_text, entry, serving
from tfs_lite.testing.servers.models import TaggedArchives
from tfs_lite.testing.servers.process import wait_until
from tfs_lite.transport.table import CallKind, Method, Scope

SECRET, LIMITED, READER = "secret-of-deploy" * 2, "secret-of-team-a" * 2, "secret-of-reader" * 2
ELSEWHERE = {"x-forwarded-for": "10.0.0.7"}
DENIED_CODES = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

MANAGING_METHODS = {
    "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
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
    )
}
OPEN_ROUTES = {
    "/livez",
    "/readyz",
    "/startupz",
    "/openapi.json",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/{model}/ready",
    "/v2/models/{model}/versions/{version}/ready",
}


@dataclass
class Tables:
    """What a server has put on the wire."""

    methods: list[Method]
    apis: list[Api[Any]]

    @property
    def routes(self) -> list[Route[Any, Any]]:
        return [route for api in self.apis for route in api.routes]


@pytest.fixture(scope="module")
def archives() -> TaggedArchives:
    return TaggedArchives()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, archives: TaggedArchives) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in ("m", "a-one"):
        archives.write_version(1, root / name)
    return root


def line(name: str, rights: str, secret: str) -> str:
    return f"{name} {rights} sha256:{sha256(secret.encode()).hexdigest()}"


LINES = [
    line("deploy", "manage,read,predict", SECRET),
    line("team-a", "manage,read,predict,models=a-*", LIMITED),
    line("reader", "read", READER),
]


@dataclass
class Managed:
    served: ServerFixture
    tables: Tables
    file: Path
    http: httpx.Client

    def grpc(self, path: str, data: bytes = b"", token: str = "", local: bool = False) -> tuple[grpc.StatusCode, str]:
        """Code and text of a call that the server takes for one from elsewhere, unless it is ``local``."""
        sent = {**({} if local else ELSEWHERE), **bearer(token)}
        method = next(method for method in self.tables.methods if method.path == path)
        with grpc.insecure_channel(self.served.target) as channel:
            try:
                if method.kind is CallKind.UNARY:
                    channel.unary_unary(path)(data, metadata=tuple(sent.items()), timeout=20)
                else:
                    next(channel.stream_stream(path)(iter([data]), metadata=tuple(sent.items()), timeout=20), None)
            except grpc.RpcError as error:
                return error.code(), error.details()
        return grpc.StatusCode.OK, ""

    def ask(self, method: str, path: str, token: str = "", **headers: str) -> httpx.Response:
        """From elsewhere."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.request(method, path, headers={**ELSEWHERE, **named, **bearer(token)})


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


@pytest.fixture(scope="module")
def start(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Starts servers of both models."""

    @contextlib.contextmanager
    def start(**options: Any) -> Iterator[Managed]:
        file = tmp_path_factory.mktemp("access") / "access"
        file.write_text("\n".join(LINES))
        tables = Tables([], [])
        make_grpc_server = endpoints.make_grpc_server

        def spy_grpc(name: str, methods: Any, *args: Any, **rest: Any) -> Any:
            tables.methods = list(methods)
            return make_grpc_server(name, methods, *args, **rest)

        def spy_http(apis: Any, *args: Any, **rest: Any) -> Any:
            tables.apis = list(apis)
            return Router(apis, *args, **rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(endpoints, "make_grpc_server", spy_grpc)
            patch.setattr(http_app, "Router", spy_http)
            config = root / f"models-{tmp_path_factory.mktemp('c').name}.config"
            config.write_text(config_text(root, entry("m"), entry("a-one")))
            options = {"access_file": str(file), "model_config_file": str(config), **options}
            with serving(root, **options) as served, httpx.Client(base_url=served.url, timeout=20) as http:
                yield Managed(served, tables, file, http)

    return start


@pytest.fixture(scope="module", params=["native", "grpcio"])
def managed(request: pytest.FixtureRequest, start: Callable[..., Any]) -> Iterator[Managed]:
    with start(grpc_server=request.param) as found:
        yield found


def test_every_row_that_manages_or_is_open_is_known(managed: Managed) -> None:
    methods, routes = managed.tables.methods, managed.tables.routes
    assert {method.path for method in methods if method.scope is Scope.MANAGE} == MANAGING_METHODS
    assert {method.path for method in methods if method.scope is Scope.OPEN} == OPEN_METHODS
    found = {f"{method} {route.path}" for route in routes if route.scope is Scope.MANAGE for method in route.methods}
    assert found == MANAGING_ROUTES
    assert {route.path for route in routes if route.scope is Scope.OPEN} == OPEN_ROUTES
    assert all(route.methods for route in routes if route.scope is Scope.MANAGE)


def change(path: str) -> bytes:
    """A request that would change something, and names no model: settings are changed only if there are some."""
    return b"\x0a\x00" if path.endswith(("TraceSetting", "LogSettings")) else b""


@pytest.mark.parametrize("path", sorted(MANAGING_METHODS))
def test_managing_methods_are_denied_without_a_token_and_allowed_with_one(managed: Managed, path: str) -> None:
    code, words = managed.grpc(path, change(path))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "'manage'" in words
    assert "--management_access" in words
    assert managed.grpc(path, change(path), "x" * 32)[0] is grpc.StatusCode.UNAUTHENTICATED
    assert managed.grpc(path, change(path), READER)[0] is grpc.StatusCode.PERMISSION_DENIED
    assert managed.grpc(path, change(path), SECRET)[0] not in DENIED_CODES
    assert managed.grpc(path, change(path), local=True)[0] not in DENIED_CODES


@pytest.mark.parametrize("route", sorted(MANAGING_ROUTES))
def test_managing_routes_are_denied_without_a_token_and_allowed_with_one(managed: Managed, route: str) -> None:
    method, path = route.replace("{model}", "m").replace("{region}", "r").split(" ")
    answer = managed.ask(method, path)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "--management_access" in answer.json()["error"]
    if path == "/v2/logging":  # few wrong tokens, or right ones have to wait
        assert managed.ask(method, path, "x" * 32).status_code == 401
    reader = managed.ask(method, path, READER)
    assert reader.status_code == 403
    assert "www-authenticate" not in reader.headers
    assert managed.ask(method, path, SECRET).status_code not in (401, 403)
    assert managed.http.request(method, path).status_code not in (401, 403), "from this machine"


def test_probes_predictions_and_pages_are_open_to_everybody(managed: Managed) -> None:
    for token in ("", "sk-" + "x" * 40):
        for path in ("/livez", "/readyz", "/v2/health/live", "/metrics", "/v1/models", "/v2/models/m", "/v2/logging"):
            assert managed.ask("GET", path, token).status_code == 200, path
        for service in ("/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/TraceSetting"):
            assert managed.grpc(service, token=token)[0] is grpc.StatusCode.OK
        answer = managed.http.post(
            "/v1/models/m:predict", json={"instances": [[1.0, 2.0, 3.0]]}, headers={**ELSEWHERE, **bearer(token)}
        )
        assert answer.status_code == 200


def test_client_with_a_token_manages_and_one_without_is_told_how(managed: Managed, root: Path) -> None:
    config = parse_model_server_config(config_text(root, entry("m"), entry("a-one")), "reload")
    with Client(managed.served.target, token=SECRET) as client:
        client.reload(config)
    code, _ = managed.grpc("/tensorflow.serving.ModelService/HandleReloadConfigRequest")
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "two words" not in refusal(lambda: Client(managed.served.target, token="two words"))


FORGED: list[dict[str, str]] = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"content-type": "text/plain"},
    {"content-type": "application/x-www-form-urlencoded"},
    {"sec-fetch-site": "cross-site"},
    {"host": "evil.example"},
    {"host": "evil.example:8501", "origin": "http://evil.example:8501", "sec-fetch-site": "same-origin"},
]


@pytest.mark.parametrize("headers", FORGED)
def test_web_page_of_another_origin_cannot_manage(managed: Managed, headers: dict[str, str]) -> None:
    for path in ("/v2/repository/models/m/unload", "/v2/logging", "/v2/trace/setting"):
        answer = managed.http.post(path, content=b"{}", headers=headers)
        assert answer.status_code == 403, answer.text
        assert "'manage'" in answer.json()["error"]
        assert "access-control-allow-origin" not in answer.headers
    assert managed.served.version("m") == 1


def test_own_page_may_manage(managed: Managed) -> None:
    origin = managed.served.url
    headers = {"origin": origin, "sec-fetch-site": "same-origin", "content-type": "application/json"}
    assert managed.http.post("/v2/logging", content=b"{}", headers=headers).status_code == 200


def test_token_for_some_models_sees_no_others(start: Callable[..., Any]) -> None:
    with start(read_access="token", predict_access="token") as managed:
        body = {"instances": [[1.0, 2.0, 3.0]]}

        def predict(model: str, token: str = LIMITED) -> int:
            headers = {**ELSEWHERE, **bearer(token)}
            return int(managed.http.post(f"/v1/models/{model}:predict", json=body, headers=headers).status_code)

        assert (predict("a-one"), predict("m"), predict("nothing"), predict("m", SECRET)) == (200, 404, 404, 200)
        assert predict("m", "") == 401
        assert predict("m", READER) == 403
        listed = managed.ask("GET", "/v1/models", LIMITED).json()["models"]
        assert [model["name"] for model in listed] == ["a-one"]
        assert managed.ask("GET", "/v1/models/m", LIMITED).status_code == 404
        assert managed.ask("GET", "/v1/models/a-one", LIMITED).status_code == 200
        assert managed.ask("GET", "/v2/models/a-one/stats", LIMITED).status_code == 200
        assert managed.ask("GET", "/v2/models/stats", LIMITED).status_code == 403
        assert managed.ask("GET", "/metrics", LIMITED).status_code == 403
        assert managed.ask("GET", "/metrics", READER).status_code == 200
        assert managed.ask("POST", "/v2/models/a-one/trace/setting", LIMITED).status_code == 200
        assert managed.ask("POST", "/v2/models/m/trace/setting", LIMITED).status_code == 404
        assert managed.ask("POST", "/v2/trace/setting", LIMITED).status_code == 403
        assert managed.ask("GET", "/v2", LIMITED).status_code == 200
        assert managed.ask("GET", "/livez").status_code == 200
        openai = managed.http.get("/openai/v1/models")
        assert openai.status_code == 401
        assert openai.json()["error"]["type"] == "invalid_request_error"
        ready = "/inference.GRPCInferenceService/ModelMetadata"
        for name, code in (("a-one", grpc.StatusCode.OK), ("m", grpc.StatusCode.NOT_FOUND)):
            data = v2.ModelMetadataRequest(name=name).SerializeToString()
            assert managed.grpc(ready, data, LIMITED)[0] is code
        twice = v2.ModelMetadataRequest(name="m").SerializeToString() + data.replace(b"m", b"a-one")
        assert managed.grpc(ready, twice, LIMITED)[0] is not grpc.StatusCode.OK, "a field that comes twice hides none"
        with Client(managed.served.target, token=LIMITED) as client:
            assert client.predict("a-one", {"x": [[1.0, 2.0, 3.0]]}).version == 1
            refusal(lambda: client.predict("m", {"x": [[1.0, 2.0, 3.0]]}), code=StatusCode.NOT_FOUND)
        with Client(managed.served.target) as client:
            refusal(lambda: client.metadata("m"), code=StatusCode.UNAUTHENTICATED)


def test_next_call_follows_the_access_file(start: Callable[..., Any]) -> None:
    newer = "secret-of-newer-" * 2
    with start() as managed:
        path = "/v2/logging"
        assert managed.ask("POST", path, SECRET).status_code == 200
        managed.file.write_text(line("newer", "manage", newer))
        wait_until(lambda: managed.ask("POST", path, newer).status_code == 200, "the new token works", 20.0)
        assert managed.ask("POST", path, SECRET).status_code == 401
        managed.file.write_text("broken")
        assert managed.ask("POST", path, newer).status_code == 200


def test_denials_are_counted(start: Callable[..., Any]) -> None:
    with start() as managed:
        managed.ask("POST", "/v2/logging")
        managed.http.post("/v2/logging", headers={"origin": "http://evil.example"})
        page = managed.http.get("/metrics").text
    assert 'tfs_lite_access_denied_total{reason="no_token",scope="manage"} 1.0' in page
    assert 'tfs_lite_access_denied_total{reason="browser",scope="manage"} 1.0' in page
    assert 'tfs_lite_access_denied_total{reason="wrong_token",scope="predict"} 0.0' in page


def test_guessing_is_answered_with_a_pause(start: Callable[..., Any]) -> None:
    with start() as managed:
        for _ in range(20):
            assert managed.ask("POST", "/v2/logging", "x" * 32).status_code == 401
        answer = managed.ask("POST", "/v2/logging", SECRET)
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 10
        assert managed.http.post("/v2/logging").status_code == 200, "from this machine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"management_access": "all"}, "management_access is 'all', expected one of: auto, open, token"),
        ({"read_access": "auto"}, "read_access is 'auto', expected one of: open, token"),
        ({"predict_access": "token"}, "predict_access is token and access_file is not set"),
        ({"access_file": "/nowhere"}, "/nowhere does not exist"),
    ],
)
def test_server_with_wrong_settings_of_access_does_not_start(
    start: Callable[..., Any], options: dict[str, str], words: str
) -> None:
    with pytest.raises(ServingError, match=words), start(**{"access_file": "", **options}):
        pass


def test_server_beyond_loopback_says_that_it_is_managed_from_here(
    start: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with start(host="0.0.0.0", access_file="") as managed:
        answer = managed.ask("POST", "/v2/logging", SECRET)
        assert (answer.status_code, "machine" in answer.json()["error"]) == (403, True)
    assert [record.levelname for record in caplog.records if "--management_access" in record.message] == ["INFO"]


def test_no_token_comes_into_the_log(start: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tokens = (SECRET, LIMITED, READER, "wrong-token-0123" * 2)
    with start() as managed:
        for token in tokens:
            managed.ask("POST", "/v2/logging", token)
            managed.ask("POST", "/v2/models/m/trace/setting", token)
            managed.grpc("/inference.GRPCInferenceService/LogSettings", b"\x0a\x00", token)
            managed.http.post("/v2/logging", content=b"{", headers={**ELSEWHERE, **bearer(token)})
        managed.file.write_text(f"someone manage {tokens[3]} more")
        answers = managed.http.get("/metrics").text
    for token in tokens:
        assert token not in caplog.text
        assert token not in answers


def test_settings_are_read_with_other_methods_of_the_same_path(managed: Managed) -> None:
    assert json.loads(managed.ask("GET", "/v2/logging").text)
    assert managed.ask("HEAD", "/v2/trace/setting").status_code == 200
    assert managed.ask("DELETE", "/v2/logging").headers["allow"] == "GET, HEAD, POST"
