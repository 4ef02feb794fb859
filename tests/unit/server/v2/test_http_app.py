"""Paths of the KServe V2 protocol: which there are, and for which methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.replies import HttpError
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http.router import Router
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.v2.http_app import V2HttpApp
from tfs_lite.server.v2.http_paths import V2Target

KNOWN = [
    ("GET", "/v2", "server_metadata", V2Target()),
    ("HEAD", "/v2/health/live", "live", V2Target()),
    ("GET", "/v2/health/ready", "ready", V2Target()),
    ("GET", "/v2/models/m", "model_metadata", V2Target("m")),
    ("GET", "/v2/models/m/versions/7", "model_metadata", V2Target("m", 7)),
    ("GET", "/v2/models/a%2Fb%20%C3%BC", "model_metadata", V2Target("a/b ü")),
    ("GET", "/v2/models/m/ready", "model_ready", V2Target("m")),
    ("GET", "/v2/models/m/versions/007/ready", "model_ready", V2Target("m", 7)),
    ("GET", "/v2/models/m/config", "model_config", V2Target("m")),
    ("GET", "/v2/models/m/versions/0/config", "model_config", V2Target("m", 0)),
    ("GET", "/v2/models/stats", "all_statistics", V2Target()),
    ("GET", "/v2/models/m/stats", "statistics", V2Target("m")),
    ("GET", "/v2/models/m/versions/1/stats", "statistics", V2Target("m", 1)),
    ("POST", "/v2/models/m/infer", "infer", V2Target("m")),
    ("POST", "/v2/models/stats/infer", "infer", V2Target("stats")),
    ("POST", "/v2/models/m/versions/9223372036854775807/infer", "infer", V2Target("m", 2**63 - 1)),
    ("POST", "/v2/models/m/generate", "generate", V2Target("m")),
    ("POST", "/v2/models/m/versions/2/generate_stream", "generate_stream", V2Target("m", 2)),
    ("GET", "/v2/models/m/trace/setting", "trace", V2Target("m")),
    ("POST", "/v2/trace/setting", "trace", V2Target()),
    ("GET", "/v2/logging", "logging", V2Target()),
    ("POST", "/v2/repository/index", "index", V2Target()),
    ("POST", "/v2/repository/models/m/load", "load", V2Target("m")),
    ("POST", "/v2/repository/models/m/unload", "unload", V2Target("m")),
    ("POST", "/v2/repository/mine/index", "named_repository", V2Target()),
    ("GET", "/v2/repository/mine/models/m/load", "named_repository", V2Target("m")),
    ("GET", "/v2/systemsharedmemory/status", "system_status", V2Target()),
    ("GET", "/v2/systemsharedmemory/region/r%201/status", "system_status", V2Target(region="r 1")),
    ("POST", "/v2/systemsharedmemory/region/r/register", "register_system", V2Target(region="r")),
    ("POST", "/v2/systemsharedmemory/region/r/unregister", "unregister_system", V2Target(region="r")),
    ("POST", "/v2/systemsharedmemory/unregister", "unregister_system", V2Target()),
    ("GET", "/v2/cudasharedmemory/status", "cuda_status", V2Target()),
    ("POST", "/v2/cudasharedmemory/region/r/register", "register_cuda", V2Target(region="r")),
    ("POST", "/v2/cudasharedmemory/unregister", "unregister_cuda", V2Target()),
]


@pytest.fixture(scope="module")
def app() -> Iterator[V2HttpApp]:
    background = BackgroundRunner("test", 1, 1)
    nothing: Any = None
    yield V2HttpApp(nothing, nothing, HttpResources(HttpLimits(), background), nothing)
    background.close()


@pytest.fixture(scope="module")
def find(app: V2HttpApp) -> Callable[[str, str], tuple[str, V2Target]]:
    """The name of the handler of a request, and what its path names."""
    bodies: Any = None
    router = Router([app], bodies)

    def of(method: str, path: str) -> tuple[str, V2Target]:
        found = router.find(method, path)
        handler: Any = found.route.handler
        return handler.__name__, found.target

    return of


@pytest.mark.parametrize(
    ("method", "path", "handler", "target"), KNOWN, ids=[f"{method} {path}" for method, path, _, _ in KNOWN]
)
def test_known_path_tells_what_is_asked(
    app: V2HttpApp, find: Any, method: str, path: str, handler: str, target: V2Target
) -> None:
    assert find(method, path) == (handler, target)
    assert find(method, f"{path}?verbose=1") == (handler, target)
    assert app.owns(path)


UNKNOWN = [
    "/v2/",
    "/v2/models",
    "/v2/models/",
    "/v2/models//infer",
    "/v2/models/m/",
    "/v2/models/m/explain",
    "/v2/models/m/infer/",
    "/v2/models/m/versions",
    "/v2/models/m/versions/1/trace/setting",
    "/v2/models/m/versions/1/versions/2",
    "/v2/health",
    "/v2/health/dead",
    "/v2/repository",
    "/v2/repository/models/m/reload",
    "/v2/systemsharedmemory",
    "/v2/systemsharedmemory/register",
]


@pytest.mark.parametrize("path", UNKNOWN)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_path_is_not_found_whatever_the_method(app: V2HttpApp, find: Any, method: str, path: str) -> None:
    with pytest.raises(HttpError, match="Not Found") as caught:
        find(method, path)
    assert caught.value.http == 404
    assert app.owns(path)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2", "GET, HEAD"),
        ("POST", "/v2/models/m", "GET, HEAD"),
        ("POST", "/v2/models/stats", "GET, HEAD"),
        ("GET", "/v2/models/m/infer", "POST"),
        ("PUT", "/v2/logging", "GET, HEAD, POST"),
        ("DELETE", "/v2/repository/index", "POST"),
        ("GET", "/v2/repository/models/m/load", "POST"),
    ],
)
def test_known_path_has_its_methods_only(find: Any, method: str, path: str, allowed: str) -> None:
    with pytest.raises(HttpError) as caught:
        find(method, path)
    assert (caught.value.http, caught.value.headers) == (405, {"allow": allowed})


@pytest.mark.parametrize("version", ["x", "-1", "1.0", "+1", "9223372036854775808", "9" * 5000, "%D9%A1"])
def test_version_that_is_no_number_is_refused(find: Any, version: str) -> None:
    with pytest.raises(ServingError, match="failed to get model version from specified version string") as caught:
        find("POST", f"/v2/models/m/versions/{version}/infer")
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("path", ["/v20", "/v1/models", "/", "/V2", "/x/v2"])
def test_other_paths_belong_to_somebody_else(app: V2HttpApp, path: str) -> None:
    assert not app.owns(path)
