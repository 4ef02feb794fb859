"""Clients inside a page of another origin: the stock client of OpenAI, and V2 with binary tensors by ``fetch``."""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.language.language_models import publish_language
from tests.support.servers.in_process import ServerFixture, serving

pytestmark = pytest.mark.slow

Publish = Callable[..., Path]

PAGE = "<!doctype html><link rel=icon href=data:,><title>elsewhere</title>"
OPENAI = Path(sys.prefix) / "node" / "node_modules" / "openai"
"""Where ``npm install --prefix`` puts the package; ``make browser`` does so where there is npm."""

COMPLETE = """async ([url]) => {
  const { OpenAI } = await import("/openai/index.mjs");
  const client = new OpenAI({
    baseURL: url + "/openai/v1", apiKey: "secret", dangerouslyAllowBrowser: true, maxRetries: 0,
    defaultHeaders: { "x-request-id": "page-1", "X-Title": "a page" },
  });
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  const asked = { model: "lm", prompt: "abc", max_tokens: 5, temperature: 0 };
  const { data, response } = await client.completions.create(asked).withResponse();
  let streamed = "";
  for await (const part of await client.completions.create({ ...asked, stream: true })) {
    streamed += part.choices[0]?.text ?? "";
  }
  const failed = await client.completions.create({ ...asked, model: "nobody" }).catch((error) => error.status);
  const read = (name) => response.headers.get(name);
  return [names, data.choices[0].text, streamed, failed, read("x-model-version"), read("x-request-id")];
}"""

INFER = """async ([url]) => {
  const head = JSON.stringify({
    inputs: [{ name: "x", shape: [1, 3], datatype: "FP32", parameters: { binary_data_size: 12 } }],
    outputs: [{ name: "y", parameters: { binary_data: true } }],
  });
  const body = new Blob([head, new Float32Array([1, 2, 3])]);
  const answer = await fetch(url + "/v2/models/m/infer", {
    method: "POST", body,
    headers: {
      "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": String(head.length),
      "traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", "x-request-id": "page-2",
      "x-server-timing": "1",
    },
  });
  const bytes = await answer.arrayBuffer();
  const start = Number(answer.headers.get("inference-header-content-length"));
  const read = ["content-length", "x-request-id", "server-timing"].map((name) => answer.headers.get(name));
  return [answer.status, Array.from(new Float32Array(bytes.slice(start))), bytes.byteLength, ...read];
}"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """The address of another origin with an empty page, and the client of OpenAI where there is one."""
    root = tmp_path / "pages"
    root.mkdir()
    (root / "index.html").write_text(PAGE)
    if OPENAI.is_dir():
        shutil.copytree(OPENAI, root / "openai", ignore=shutil.ignore_patterns("*.ts", "*.map", "*.js", "src"))

    class Pages(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Pages, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run(browser: Any, page_url: str, script: str, served: ServerFixture) -> Any:
    """What the script comes to in a page of that address."""
    tab = browser.new_context()
    try:
        page = tab.new_page()
        page.goto(page_url)
        return page.evaluate(script, [served.url])
    finally:
        tab.close()


def options(root: Path) -> dict[str, Any]:
    return {"model_repository": str(root), "rest_api_enable_cors_support": True}


def test_openais_client_in_a_page_of_another_origin_completes_streams_and_reads_version_and_request_id(
    browser: Any, elsewhere: str, tmp_path: Path
) -> None:
    if not OPENAI.is_dir():
        pytest.skip(f"the npm package openai is not at {OPENAI}: npm install --prefix {OPENAI.parents[1]} openai")
    root = tmp_path / "models"
    publish_language(root / "lm", 1)
    with serving(root, **options(root), ready_requires_all_models=True) as served:
        names, text, streamed, failed, version, request_id = run(browser, elsewhere, COMPLETE, served)
    assert names == ["lm"]
    assert text == streamed != ""
    assert (failed, version, request_id) == (404, "1", "page-1")


def test_binary_tensors_of_v2_in_a_page_of_another_origin_come_and_go_with_their_lengths(
    browser: Any, elsewhere: str, publish: Publish, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    publish(root, "m", 1)
    with serving(root, **options(root), ready_requires_all_models=True) as served:
        status, values, size, length, request_id, timing = run(browser, elsewhere, INFER, served)
    assert (status, values) == (200, [2.0, 3.0, 4.0])
    assert (length, request_id) == (str(size), "page-2")
    assert "total;dur=" in timing


@pytest.mark.parametrize("place", ["file", "sandbox"])
def test_a_page_without_an_origin_of_its_own_may_predict(
    browser: Any, elsewhere: str, publish: Publish, tmp_path: Path, place: str
) -> None:
    """A file, or a frame in a sandbox: the origin is ``null``."""
    root = tmp_path / "models"
    publish(root, "m", 1)
    page = tmp_path / "page.html"
    page.write_text(PAGE)
    frame = f'<iframe sandbox="allow-scripts" srcdoc="{PAGE.replace(chr(34), "")}"></iframe>'
    with serving(root, **options(root), ready_requires_all_models=True) as served:
        tab = browser.new_context()
        try:
            opened = tab.new_page()
            if place == "file":
                opened.goto(page.as_uri())
                where = opened.main_frame
            else:
                opened.goto(elsewhere)
                opened.set_content(frame)
                where = opened.locator("iframe").element_handle().content_frame()
            assert where.evaluate("() => self.origin") == "null"
            assert where.evaluate(INFER, [served.url])[:2] == [200, [2.0, 3.0, 4.0]]
        finally:
            tab.close()
