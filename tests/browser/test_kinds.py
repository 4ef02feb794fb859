"""What the page shows of models of every kind under load: a language model whose texts are streamed, processes of
workers, sequences, an ensemble."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.language.tiny_version import BYTES_OF_TEXT, write_version
from tests.support.schedulers.sum_repository import SumRepository
from tests.support.servers.in_process import ServerFixture, serving
from tfs_lite.workers.landlock import probe_kernel
from tfs_lite.workers.sandbox import status_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="language models need the extra `generate`"
    ),
]

Open = Callable[..., Any]
Publish = Callable[..., Path]
WRITERS = 3
WORKERS = "[aria-label=Workers]"
PLOTS = {
    "writer": ("Tokens/s", "Texts", "Cache in use", "Latency"),
    "sums": ("Requests/s", "Run and queue", "Rows of a batch"),
    "pipeline": ("Requests/s", "Latency"),
    "ranker": ("Requests/s", "Run and queue", "Memory"),
}
PIPELINE = """
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }
ensemble_scheduling {
  step { model_name: "ranker" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
}
"""


def post(served: ServerFixture, path: str, **body: Any) -> bytes:
    """The whole answer, the parts of a stream one after the other."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(served.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def write(served: ServerFixture) -> None:
    text = post(served, "/v2/models/writer/generate_stream", text_input="Once", parameters={"max_tokens": 200})
    assert text.count(b"data:") > 1, text


def add_up(served: ServerFixture) -> None:
    for number in range(1, 11):
        parameters = {"sequence_id": 7, "sequence_start": number == 1, "sequence_end": number == 10}
        tensor = {"name": "INPUT", "datatype": "INT64", "shape": [1, 1], "data": [number]}
        answer = json.loads(post(served, "/v2/models/sums/infer", inputs=[tensor], parameters=parameters))
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        assert outputs["OUTPUT"] == [number * (number + 1) // 2]


@contextlib.contextmanager
def traffic(*work: Callable[[], Any]) -> Iterator[None]:
    """Each on a thread of its own, again and again until the block ends."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def run(each: Callable[[], Any]) -> None:
        try:
            while not ended.wait(0.005):
                each()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_models_of_every_kind_show_what_they_do(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    sums = SumRepository(tmp_path)
    sums.add("sums", 1, batch=4)
    root = sums.path
    publish(root, "ranker", 1)
    write_version(root / "writer" / "1", BYTES_OF_TEXT)
    (root / "pipeline" / "1").mkdir(parents=True)
    (root / "pipeline" / "config.pbtxt").write_text(PIPELINE)
    options: dict[str, Any] = {"model_repository": str(root), "trusted_model_base_paths": (f"{root}/*",)}
    with (
        serving(root, worker="process", ready_requires_all_models=True, **options) as served,
        viewer(served.url) as seen,
    ):
        asked = (*[write] * WRITERS, add_up, lambda served: served.version("ranker"), pipeline)
        with traffic(*(functools.partial(ask, served) for ask in asked)):
            seen.open()
            seen.wait_text(f"{WRITERS} texts run", "section.tiles")
            seen.wait(lambda: "Tokens/s" in seen.text("section.tiles"), "the tokens of all models are counted")
            for model, titles in PLOTS.items():
                seen.page.goto(f"{served.url}/#{urlencode({'model': model})}")
                seen.wait_text(model, ".title")
                for title in titles:
                    drawn = seen.page.get_by_role("img", name=f"{title}: v1")
                    seen.wait(lambda drawn=drawn: drawn.count(), f"{model} has a plot of {title}")
        seen.page.goto(f"{served.url}/#model=ranker")
        seen.wait_text("process 0", WORKERS)
        _, name, state, _, pid, _, lost, sandbox, _ = worker(seen)
        assert (name, state, lost) == ("process 0", "up", "0")
        assert sandbox == (", ".join(status_of(probe_kernel()).holds) or "none")
        assert "MiB" in seen.text("[aria-label=Versions] td:last-child")
        os.kill(int(pid), signal.SIGKILL)
        seen.wait(lambda: worker(seen)[2::4] == ["up", "1"], "another process has taken over")
        assert worker(seen)[4] != pid
        assert served.version("ranker") == 1


def pipeline(served: ServerFixture) -> None:
    assert served.version("pipeline") == 1


def worker(seen: Any) -> list[str]:
    """The cells of the first row."""
    return list(seen.page.locator(f"{WORKERS} tbody tr").first.locator("td").all_inner_texts())
