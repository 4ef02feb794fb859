"""The page over a long time: an hour of its feed at many times its speed."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tfs_lite.operations.dashboard.page import INDEX, PAGE_HEADERS, read_files

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
HOUR = 3600
"""Snapshots."""
SETTLED = 600
MODELS = 20
VERSIONS = 3
GROWTH = 1.1


def _numbers(number: int) -> dict[str, float]:
    wave = number % 37 + 1
    return {"requests": wave * 10.5, "p50": wave / 1e4, "p99": wave / 1e3, "errors": wave % 3, "waiting": wave % 5}


def _snapshot(number: int) -> dict[str, Any]:
    """Everything changes each time; each model has new versions now and then."""
    models = []
    for model in range(MODELS):
        newest = number // 200 + VERSIONS
        versions = [
            {"version": version, "state": "AVAILABLE", "since": 1.0, "wanted": True, "now": _numbers(number + version)}
            for version in range(newest, newest - VERSIONS, -1)
        ]
        models.append(
            {
                "name": f"model {model}",
                "rank": 12,
                "verdict": "SERVING",
                "sentence": "",
                "fix": "",
                "event": 1,
                "versions": versions,
                "now": _numbers(number + model),
                "unanswered": {},
                "answers": newest,
            }
        )
    server = {"version": "1", "started": 1.0, "time": time.time(), "ready": True, "why": "", "control": "poll"}
    server |= {"tick": number // 2 + 1, "now": _numbers(number), "resident": 1e9, "memory": []}
    return {"server": server, "whole": number % 30 == 0, "gone": [], "models": models}


class Replay(http.server.BaseHTTPRequestHandler):
    """The page's own files, and a feed as fast as the page takes it."""

    server: ReplayServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = INDEX if path == "/" else path.rpartition("/")[2]
        if path == "/dashboard/feed":
            self._feed()
        elif path == "/v1/overview":
            self._send("application/json", json.dumps(self._overview()).encode())
        else:
            file = self.server.files[name]
            self._send(file.media_type, file.plain)

    def _overview(self) -> dict[str, Any]:
        now = _snapshot(max(self.server.number, 0))
        series = {"step": 2, "end": time.time(), "versions": {"1": {"requests": [None] * 300}}}
        details = {"explanation": {"sentence": "", "verdict": "SERVING"}, "events": [], "failures": [], "codes": {}}
        details |= {"memory": [], "workers": [], "series": series}
        total = {"step": 2, "end": time.time(), "requests": [None] * 300}
        return {"may": [], **now, "series": total, "sparks": [], "details": details}

    def _feed(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(b'data: {"may":[]}\n\n')
        for number in range(HOUR):
            self.wfile.write(b"data: " + json.dumps(_snapshot(number)).encode() + b"\n\n")
            self.server.number = number
            if number % 10 == 0:
                self.server.ended.wait(0.02)
        self.server.ended.wait()

    def _send(self, media_type: str, body: bytes) -> None:
        self.send_response(200)
        for name, value in PAGE_HEADERS.items():
            self.send_header(name, value)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class ReplayServer(http.server.ThreadingHTTPServer):
    """``number`` is that of the last snapshot that was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Replay)
        self.files = read_files()
        self.number = -1
        self.ended = threading.Event()


@pytest.fixture
def replay() -> Iterator[ReplayServer]:
    with ReplayServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("place", ["", "#model=model+3"])
def test_heap_of_the_page_is_flat_over_an_hour_of_its_feed(place: str, viewer: Open, replay: ReplayServer) -> None:
    with viewer(f"http://127.0.0.1:{replay.server_port}") as seen:
        devtools = seen.page.context.new_cdp_session(seen.page)
        devtools.send("Performance.enable")

        def heap() -> float:
            devtools.send("HeapProfiler.collectGarbage")
            metrics = devtools.send("Performance.getMetrics")["metrics"]
            return float(next(each["value"] for each in metrics if each["name"] == "JSHeapUsedSize"))

        def shown() -> str:
            return str(seen.page.locator(".tile b, .plot b").first.inner_text())

        seen.open(place)
        seen.wait(lambda: replay.number >= SETTLED, "ten minutes of the feed", 120)
        seen.wait(shown, "there are numbers")
        before = heap()
        seen.wait(lambda: replay.number == HOUR - 1, "an hour of the feed", 300)
        after = [heap()]

        def flat() -> bool:
            """Soon: a busy page has parts of the feed that it has not read yet."""
            after.append(heap())
            return after[-1] < before * GROWTH

        seen.wait(
            flat, f"{before / 1e6:.1f} MB after ten minutes, and no more after an hour; at first {after[0] / 1e6:.1f}"
        )
        assert seen.page.evaluate("document.querySelectorAll('*').length") < 2000
