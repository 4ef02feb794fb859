"""Paths of the KServe V2 protocol: which there are, and for which methods."""

from __future__ import annotations

import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.replies import HttpError
from tfs_lite.server.v2.http_paths import Action, Target, is_v2, parse_path

KNOWN = [
    ("GET", "/v2", Target(Action.SERVER_METADATA)),
    ("HEAD", "/v2/health/live", Target(Action.LIVE)),
    ("GET", "/v2/health/ready", Target(Action.READY)),
    ("GET", "/v2/models/m", Target(Action.MODEL_METADATA, "m")),
    ("GET", "/v2/models/m/versions/7", Target(Action.MODEL_METADATA, "m", 7)),
    ("GET", "/v2/models/a%2Fb%20%C3%BC", Target(Action.MODEL_METADATA, "a/b ü")),
    ("GET", "/v2/models/m/ready", Target(Action.MODEL_READY, "m")),
    ("GET", "/v2/models/m/versions/007/ready", Target(Action.MODEL_READY, "m", 7)),
    ("GET", "/v2/models/m/config", Target(Action.CONFIG, "m")),
    ("GET", "/v2/models/m/versions/0/config", Target(Action.CONFIG, "m", 0)),
    ("GET", "/v2/models/stats", Target(Action.STATISTICS)),
    ("GET", "/v2/models/m/stats", Target(Action.STATISTICS, "m")),
    ("GET", "/v2/models/m/versions/1/stats", Target(Action.STATISTICS, "m", 1)),
    ("POST", "/v2/models/m/infer", Target(Action.INFER, "m")),
    ("POST", "/v2/models/stats/infer", Target(Action.INFER, "stats")),
    ("POST", "/v2/models/m/versions/9223372036854775807/infer", Target(Action.INFER, "m", 2**63 - 1)),
    ("POST", "/v2/models/m/generate", Target(Action.GENERATE, "m")),
    ("POST", "/v2/models/m/versions/2/generate_stream", Target(Action.GENERATE_STREAM, "m", 2)),
    ("GET", "/v2/models/m/trace/setting", Target(Action.TRACE, "m")),
    ("POST", "/v2/trace/setting", Target(Action.TRACE)),
    ("GET", "/v2/logging", Target(Action.LOGGING)),
    ("POST", "/v2/repository/index", Target(Action.INDEX)),
    ("POST", "/v2/repository/models/m/load", Target(Action.LOAD, "m")),
    ("POST", "/v2/repository/models/m/unload", Target(Action.UNLOAD, "m")),
    ("POST", "/v2/repository/mine/index", Target(Action.NAMED_REPOSITORY)),
    ("GET", "/v2/repository/mine/models/m/load", Target(Action.NAMED_REPOSITORY, "m")),
    ("GET", "/v2/systemsharedmemory/status", Target(Action.SYSTEM_STATUS)),
    ("GET", "/v2/systemsharedmemory/region/r%201/status", Target(Action.SYSTEM_STATUS, region="r 1")),
    ("POST", "/v2/systemsharedmemory/region/r/register", Target(Action.SYSTEM_REGISTER, region="r")),
    ("POST", "/v2/systemsharedmemory/region/r/unregister", Target(Action.SYSTEM_UNREGISTER, region="r")),
    ("POST", "/v2/systemsharedmemory/unregister", Target(Action.SYSTEM_UNREGISTER)),
    ("GET", "/v2/cudasharedmemory/status", Target(Action.CUDA_STATUS)),
    ("POST", "/v2/cudasharedmemory/region/r/register", Target(Action.CUDA_REGISTER, region="r")),
    ("POST", "/v2/cudasharedmemory/unregister", Target(Action.CUDA_UNREGISTER)),
]


@pytest.mark.parametrize(("method", "path", "target"), KNOWN, ids=[f"{row[0]} {row[1]}" for row in KNOWN])
def test_known_path_tells_what_is_asked(method: str, path: str, target: Target) -> None:
    found = parse_path(method, path)
    if target.action is Action.NAMED_REPOSITORY:
        assert found.action is target.action
    else:
        assert found == target
    assert is_v2(path)


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
def test_unknown_path_is_not_found_whatever_the_method(method: str, path: str) -> None:
    with pytest.raises(HttpError, match="Not Found") as caught:
        parse_path(method, path)
    assert caught.value.http == 404
    assert is_v2(path)


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
def test_known_path_has_its_methods_only(method: str, path: str, allowed: str) -> None:
    with pytest.raises(HttpError) as caught:
        parse_path(method, path)
    assert (caught.value.http, caught.value.headers) == (405, {"Allow": allowed})


@pytest.mark.parametrize("version", ["x", "-1", "1.0", "+1", "9223372036854775808", "9" * 5000, "%D9%A1"])
def test_version_that_is_no_number_is_refused(version: str) -> None:
    with pytest.raises(ServingError, match="failed to get model version from specified version string") as caught:
        parse_path("POST", f"/v2/models/m/versions/{version}/infer")
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("path", ["/v20", "/v1/models", "/", "/V2", "/x/v2"])
def test_other_paths_belong_to_somebody_else(path: str) -> None:
    assert not is_v2(path)
