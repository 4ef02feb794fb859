from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support.errors import refusal
from tfs_lite.core.servable import ModelRef
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.server.http.resources import HttpLimits, HttpResources
from tfs_lite.server.http.router import Router
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.tensorflow.rest_routes import RestApi

LIST, STATUS, METADATA, PREDICT, CLASSIFY, REGRESS = "list", "status", "metadata", "predict", "classify", "regress"
GOOD = [
    ("GET", "/v1/models", LIST, ModelRef("")),
    ("GET", "/V1/Models", LIST, ModelRef("")),
    ("GET", "/v1/models/m", STATUS, ModelRef("m")),
    ("GET", "/v1/models/m?", STATUS, ModelRef("m")),
    ("GET", "/v1/models/m?verbose=1", STATUS, ModelRef("m?verbose=1")),
    ("GET", "/v1/models/m/labels/stable?x", STATUS, ModelRef("m", None, "stable?x")),
    ("GET", "/v1/models/m/versions/7", STATUS, ModelRef("m", 7)),
    ("GET", "/v1/models/m/versions/0007", STATUS, ModelRef("m", 7)),
    ("GET", "/v1/models/m/versions/9223372036854775807", STATUS, ModelRef("m", 2**63 - 1)),
    ("GET", "/v1/models/m/labels/stable", STATUS, ModelRef("m", None, "stable")),
    ("GET", "/v1/models/m/metadata", METADATA, ModelRef("m")),
    ("GET", "/v1/models/m/versions/7/metadata", METADATA, ModelRef("m", 7)),
    ("GET", "/v1/models/metadata", STATUS, ModelRef("metadata")),
    ("GET", "/V1/Models/m", STATUS, ModelRef("m")),
    ("GET", "/v1/models/a%2Fb%3Ac+d", STATUS, ModelRef("a/b:c+d")),
    ("POST", "/v1/models/m:predict", PREDICT, ModelRef("m")),
    ("POST", "/V1/MODELS/m:predict", PREDICT, ModelRef("m")),
    ("POST", "/v1/models/m%21:predict", PREDICT, ModelRef("m!")),
    ("POST", "/v1/models/m/versions/7:classify", CLASSIFY, ModelRef("m", 7)),
    ("POST", "/v1/models/m/labels/a%20b:regress", REGRESS, ModelRef("m", None, "a b")),
]
MALFORMED = {
    "GET": [
        *("/v1/models/m/", "/v1/models/", "/v1/models?x", "/v1/models/m/metadata?x"),
        *("/v1/models/m/versions/7?x", "/v1/models/m/versions/7/", "/v1/models/m/label/x"),
        *("/v1/models/m/labels/", "/v1/models/m:predict", "/v1/models/m/version/5"),
        *("/v1/models/m/versions/five", "/v1/models/m/versions/-1", "/v1/models/m/versions/1/labels/a"),
        "/v1/nothing",
    ],
    "POST": [
        *("/v1/models", "/v1/models/m", "/v1/models/m:PREDICT", "/v1/models/m:predict?x=1"),
        *("/v1/models/m:predict/", "/v1/models/:predict", "/v1/models/m/versions/1/labels/a:predict"),
        *("/v1/models/m/metadata", "/v1/models/m:explain"),
    ],
    **{method: ["/v1/models/m"] for method in ("PUT", "PATCH", "DELETE", "HEAD")},
}


@pytest.fixture(scope="module")
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture(scope="module")
def find(registry: CollectorRegistry) -> Iterator[Callable[[str, str], tuple[Any, ModelRef]]]:
    """The handler of a request, which here is its name, and the model."""
    service: Any = SimpleNamespace(predict=PREDICT, classify=CLASSIFY, regress=REGRESS)
    models: Any = SimpleNamespace(list=LIST, status=STATUS, metadata=METADATA)
    background = BackgroundRunner("test", 1, 1)
    bodies = HttpResources(HttpLimits(), background).bodies
    router = Router([RestApi(service, models, RequestMetrics(registry, lambda name: True))], bodies)

    def of(method: str, target: str) -> tuple[Any, ModelRef]:
        found = router.find(method, target)
        return found.route.handler, found.target

    yield of
    background.close()


@pytest.mark.parametrize(("method", "path", "action", "ref"), GOOD)
def test_path_of_the_grammar_is_read(find: Any, method: str, path: str, action: str, ref: ModelRef) -> None:
    assert find(method, path) == (action, ref)


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, paths in MALFORMED.items() for path in paths])
def test_everything_else_is_malformed_and_counted(
    find: Any, registry: CollectorRegistry, method: str, path: str
) -> None:
    labels = {"model": "", "version": "", "method": "", "code": "INVALID_ARGUMENT"}
    before = registry.get_sample_value("tfs_lite_requests_total", labels) or 0
    assert f"Malformed request: {method} {path}" in refusal(find, method, path)
    assert registry.get_sample_value("tfs_lite_requests_total", labels) == before + 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_clients_of_openais_api_are_told_where_it_is(find: Any, path: str) -> None:
    assert refusal(find, "POST", path) == f"Malformed request: POST {path}; OpenAI's API is at /openai{path}"


@pytest.mark.parametrize("digits", ["9223372036854775808", "9" * 5000])
def test_version_beyond_int64_is_refused(find: Any, digits: str) -> None:
    assert "Failed to convert version" in refusal(find, "GET", f"/v1/models/m/versions/{digits}")


def test_zeros_before_a_version_are_only_zeros(find: Any) -> None:
    assert find("GET", f"/v1/models/m/versions/{'0' * 5000}7") == (STATUS, ModelRef("m", 7))
    assert find("GET", "/v1/models/m/versions/00") == (STATUS, ModelRef("m", 0))
