"""The routes of a real server: what their headers keep a browser from, and what is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.servers.in_process import serving
from tests.support.servers.models import TaggedArchives
from tfs_lite.operations.dashboard.feed import MAX_VIEWERS

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
SAFE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
FEED = "/dashboard/feed"


@contextmanager
def asked(root: Path, archives: TaggedArchives, **options: bool) -> Iterator[httpx.Client]:
    archives.write_version(1, root / "m")
    with (
        serving(root, model_repository=str(root), **options) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def http(archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with asked(tmp_path_factory.mktemp("models"), archives, rest_api_enable_cors_support=True) as client:
        yield client


def assert_headers(found: httpx.Headers, **more: str) -> None:
    wanted = SAFE | {name.replace("_", "-"): value for name, value in more.items()}
    assert {name: found.get(name) for name in wanted} == wanted
    assert "set-cookie" not in found
    assert "access-control-allow-origin" not in found


@pytest.mark.parametrize("path", ["/", "/dashboard/assets/app.js", "/dashboard/assets/style.css"])
def test_page_lets_a_browser_run_and_load_its_own_files_only(http: httpx.Client, path: str) -> None:
    answer = http.get(path, headers={"origin": "http://elsewhere.example"})
    assert answer.status_code == 200
    assert_headers(answer.headers, content_security_policy=POLICY)


@pytest.mark.parametrize("path", ["/v1/overview", "/v1/overview?model=m&range=4h"])
def test_data_is_kept_nowhere(http: httpx.Client, path: str) -> None:
    answer = http.get(path, headers={"origin": "http://elsewhere.example"})
    assert answer.status_code == 200
    assert_headers(answer.headers, cache_control="no-store")


def test_feed_is_neither_kept_nor_held_back_by_a_proxy(http: httpx.Client) -> None:
    with http.stream("GET", FEED, headers={"accept-encoding": "gzip"}) as answer:
        assert answer.status_code == 200
        assert_headers(answer.headers, cache_control="no-store", x_accel_buffering="no")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers


def test_one_viewer_more_than_may_watch_is_refused(tmp_path: Path, archives: TaggedArchives) -> None:
    with asked(tmp_path, archives) as http, ExitStack() as stack:
        told = []
        for _ in range(MAX_VIEWERS):
            answer = stack.enter_context(http.stream("GET", FEED))
            assert answer.status_code == 200
            told.append(answer.iter_raw())
            assert next(told[-1]), "the server has begun to tell"
        refused = stack.enter_context(http.stream("GET", FEED))
        assert refused.status_code == 503
        assert "dashboards are open" in refused.read().decode()


@pytest.mark.parametrize(("path", "words"), [("?modle=m", "this page knows: model, range"), ("?range=9h", "10m, 4h")])
def test_wrong_questions_are_refused_with_what_is_right(http: httpx.Client, path: str, words: str) -> None:
    refused = http.get(f"/v1/overview{path}")
    assert refused.status_code == 400
    assert words in refused.json()["error"]


def test_dashboard_that_is_off_is_not_there(tmp_path: Path, archives: TaggedArchives) -> None:
    with asked(tmp_path, archives, dashboard=False) as http:
        for path in ("/", "/dashboard/assets/app.js", FEED):
            assert http.get(path).status_code == 404
        assert http.get("/v1/overview").json()["error"].startswith("Malformed request"), "as TF Serving answers"
        assert http.get("/v1/models/m:explain").json()["verdict"] == "SERVING"
