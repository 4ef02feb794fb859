"""``tfs-lite status`` against a real HTTP server that answers with the list of models."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.terminal import read_terminal
from tfs_lite.cli import status
from tfs_lite.cli.main import main
from tfs_lite.core.model import BatchReport
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.batches import BatchMetrics, BatchStateCollector, WorkerState
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.serving.metrics import StateCollector

Captured = pytest.CaptureFixture[str]

OK = {"error_code": "OK", "error_message": ""}
LOST = {"error_code": "DATA_LOSS", "error_message": "model.pt2 is truncated"}


def entry(version: int, state: str, status: dict[str, str] = OK) -> dict[str, Any]:
    return {"version": str(version), "state": state, "status": status}


MODELS: list[dict[str, Any]] = [
    {"name": "digits", "model_version_status": [entry(3, "END", LOST), entry(2, "AVAILABLE"), entry(1, "END")]},
    {"name": "ranker", "model_version_status": [], "reason": "its base path does not exist"},
]


class Listing:
    """Serves ``/v1/models``, and ``/metrics`` once there are some; what they say may be changed."""

    def __init__(self) -> None:
        self.models = list(MODELS)
        self.metrics: bytes | None = None
        listing = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages = {"/v1/models": json.dumps({"models": listing.models}).encode(), "/metrics": listing.metrics}
                page = pages.get(self.path)
                body = b"" if page is None else page
                self.send_response(404 if page is None else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def listing() -> Iterator[Listing]:
    listing = Listing()
    yield listing
    listing.close()


def test_the_table_and_json_show_models_versions_states_and_reasons(listing: Listing, capsys: Captured) -> None:
    assert main(["status", "--server", listing.address]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["digits", "2", "AVAILABLE"] in lines
    assert not any(line[:2] == ["digits", "1"] for line in lines)
    assert ["digits", "3", "END", "DATA_LOSS:", "model.pt2", "is", "truncated"] in lines
    assert ["ranker", "-", "-", "its", "base", "path", "does", "not", "exist"] in lines
    assert main(["status", "digits", "--server", listing.address, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["name"] == "digits"
    assert model["versions"][0] == {"version": 3, "state": "END", "error": "DATA_LOSS: model.pt2 is truncated"}


LOADING = {
    "version": "3",
    "phase": "reading the weights",
    "seconds": 2.5,
    "phase_seconds": 2.0,
    "read_bytes": 1_200_000_000,
    "expected_bytes": 6_000_000_000,
    "seconds_left": 8.0,
}


def test_a_load_shows_how_far_it_is_and_what_its_last_attempt_said(listing: Listing, capsys: Captured) -> None:
    warming = {"version": "4", "phase": "warming up", "seconds": 9.0, "phase_seconds": 4.0}
    unknown = {**warming, "version": "5", "phase": "of a later release"}
    statuses = [entry(5, "LOADING"), entry(4, "LOADING"), entry(3, "LOADING", LOST)]
    listing.models = [
        {"name": "digits", "model_version_status": statuses, "load_progress": [LOADING, warming, unknown]}
    ]
    for flags in ([], ["--verbose"]):
        listing.metrics = metrics_page()
        assert main(["status", *flags, "--server", listing.address]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "reading the weights: 1.1 of 5.6 GiB, 8 s left; DATA_LOSS: model.pt2 is truncated" in shown
        assert "warming up for 4 s" in shown
        assert "later release" not in shown
        assert main(["status", *flags, "--json", "--server", listing.address]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert "progress" not in model["versions"][0]
        assert model["versions"][1]["progress"] == {name: warming[name] for name in warming if name != "version"}
        assert model["versions"][2]["progress"] == {name: LOADING[name] for name in LOADING if name != "version"}


def test_a_version_that_answers_has_no_code_before_what_is_said_of_it(listing: Listing, capsys: Captured) -> None:
    stays = {"error_code": "UNAVAILABLE", "error_message": "it stays until version 2 is available"}
    silent = {"error_code": "UNAVAILABLE", "error_message": "it does not answer: its process has ended"}
    versions = [entry(2, "AVAILABLE", silent), entry(1, "AVAILABLE", stays)]
    listing.models = [{"name": "digits", "model_version_status": versions}]
    listing.metrics = metrics_page()
    for flags in ([], ["--verbose"]):
        assert main(["status", *flags, "--server", listing.address]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "UNAVAILABLE: it stays" not in shown
        assert "it stays until version 2 is available" in shown
        assert "UNAVAILABLE: it does not answer" in shown
        assert main(["status", *flags, "--json", "--server", listing.address]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert model["versions"][1]["error"] == "UNAVAILABLE: it stays until version 2 is available"


def test_versions_that_have_ended_before_one_that_answers_are_shown_on_demand(
    listing: Listing, capsys: Captured
) -> None:
    """A newer one that has failed is no history, and neither is the last one of a model that has nothing else."""
    pushed = [entry(5, "END", LOST), entry(4, "AVAILABLE"), entry(3, "END"), entry(2, "END", LOST), entry(1, "END")]
    listing.models = [
        {"name": "digits", "model_version_status": pushed},
        {"name": "ranker", "model_version_status": [entry(2, "END", LOST), entry(1, "END")]},
    ]
    listing.metrics = metrics_page()

    def shown(*flags: str) -> list[tuple[str, str]]:
        assert main(["status", *flags, "--server", listing.address]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        return [(line[0], line[1]) for line in lines if line and line[0] in ("digits", "ranker", "not")]

    for flags in ((), ("--verbose",)):
        whole = [("digits", number) for number in "54321"] + [("ranker", number) for number in "21"]
        few = [line for line in whole if line[0] == "ranker" or line[1] in "54"]
        assert shown(*flags) == [*few, ("not", "shown:")]
        assert shown(*flags, "--all") == whole
    assert main(["status", "--server", listing.address]) == 0
    note = "not shown: 3 older versions that have ended, 1 of them with an error (--all shows them)"
    assert note in capsys.readouterr().out
    assert main(["status", "--json", "--server", listing.address]) == 0
    assert len(json.loads(capsys.readouterr().out)["models"][0]["versions"]) == 5


def test_an_unknown_model_is_an_error_with_the_nearest_name(listing: Listing, capsys: Captured) -> None:
    assert main(["status", "digit", "--server", listing.address]) == 1
    assert "no model 'digit' (did you mean digits?)" in capsys.readouterr().err


def test_an_empty_server_says_so(listing: Listing, capsys: Captured) -> None:
    listing.models = []
    assert main(["status", "--server", listing.address]) == 0
    assert capsys.readouterr().out == "the server has no models\n"


def test_no_server_is_one_line_with_the_next_step(listing: Listing, capsys: Captured) -> None:
    listing.close()
    assert main(["status", "--server", listing.address]) == 1
    error = capsys.readouterr().err
    assert "no server answers" in error
    assert "tfs-lite serve" in error
    assert error.count("\n") == 1


def metrics_page() -> bytes:
    """As a server writes it after two requests to version 2 of digits, one of them refused, and one run for four
    calls."""
    registry, digits = CollectorRegistry(), ServableId("digits", 2)
    requests = RequestMetrics(registry, lambda name: True)
    with requests.record("Predict", "digits") as record:
        record.version = 2
    with contextlib.suppress(ServingError), requests.record("Predict", "digits") as record:
        record.version = 2
        raise ServingError(StatusCode.INVALID_ARGUMENT, "no")
    with requests.record("GetModelMetadata", "digits") as record:
        record.version = 2
    BatchMetrics(registry, requests.tensorflow).on_batch(BatchReport(digits, 6, 2, 0.003, (0.002,) * 4, True))
    worker = WorkerState(digits, 0, "process", True, 4321, 1)
    registry.register(BatchStateCollector(lambda: [(digits, 9)], lambda: [worker]))
    registry.register(StateCollector(list, list, lambda: [(digits, 3)], lambda version: True, lambda name: {}))
    page = generate_latest(registry)
    return page + b"".join(
        b'%s{device="%s",kind="%s",model="digits",version="2"} %d\n' % figure
        for figure in (
            (b"tfs_lite_version_memory_bytes", b"main", b"measured", 2**20),
            (b"tfs_lite_memory_measured_bytes", b"main", b"weights", 2**20),
            (b"tfs_lite_memory_measured_bytes", b"main", b"process", 2**21),
            (b"tfs_lite_memory_measured_bytes", b"cuda:0", b"weights", 2**30),
        )
    )


def test_verbose_joins_the_numbers_of_the_metrics_page(listing: Listing, capsys: Captured) -> None:
    listing.metrics = metrics_page()
    assert main(["status", "digits", "--verbose", "--server", listing.address, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    broken, serving, _ = model["versions"]
    assert broken["state"] == "END"
    assert [value for value in broken["numbers"].values() if value not in (None, [])] == []
    assert serving["numbers"] == {
        "ok": 1,
        "failed": 1,
        "rows_per_run": 6,
        "padding": 0.25,
        "queue_p50": {"seconds": pytest.approx(0.00175), "bound": ""},
        "queue_p99": {"seconds": pytest.approx(0.002485), "bound": ""},
        "run_p50": {"seconds": pytest.approx(0.00375), "bound": ""},
        "run_p99": {"seconds": pytest.approx(0.004975), "bound": ""},
        "waiting": 3,
        "draining": None,
        "memory": {"main": 3 * 2**20, "cuda:0": 2**30},
        "workers": [
            {"instance": "0", "kind": "process", "pid": "4321", "up": True, "restarts": 1, "reason": "", "sandbox": ""}
        ],
    }


def test_verbose_shows_a_row_with_the_numbers_and_dashes_where_there_are_none(
    listing: Listing, capsys: Captured
) -> None:
    assert main(["status", "digits", "--verbose", "--server", listing.address]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "digits 2 AVAILABLE - - - - - - - - -" in lines
    listing.metrics = metrics_page()
    assert main(["status", "--verbose", "--all", "--server", listing.address]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert (
        "digits 2 AVAILABLE 1 1 6.0 25.0% 1.75 ms, 2.49 ms 3.75 ms, 4.98 ms 3 M pid 4321 (1 restart)".replace(
            "M", "3.0 MiB, 1.0 GiB on cuda:0"
        )
        in lines
    )
    assert "digits 1 END - - - - - - - - -" in lines
    assert any(line.startswith("ranker - - - - - - - - - - - its base path") for line in lines)


def test_verbose_shows_requests_inside_what_was_replaced_or_withdrawn(listing: Listing, capsys: Captured) -> None:
    page = metrics_page().decode()
    drains = "".join(f'tfs_lite_draining_requests{{model="digits",version="{v}"}} {v}\n' for v in (1, 2))
    listing.metrics = f"{page}# TYPE tfs_lite_draining_requests gauge\n{drains}".encode()
    assert main(["status", "--verbose", "--all", "--server", listing.address]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 requests inside the load before are waited for" in shown
    assert "1 request inside is waited for" in shown


def test_verbose_shows_replicas_and_sums_them_up_in_place_of_workers(
    listing: Listing, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = {"name": "digits/2/0a1b2c3d/0#0", "state": "ready", "since": 1000.0, "node": "gpu-a", "pid": 41}
    lost = {"name": "digits/2/0a1b2c3d/1#3", "state": "placing", "since": 1090.0, "node": "", "pid": None}
    ready |= {"ongoing": 1, "restarts": 0, "reason": ""}
    lost |= {"ongoing": None, "restarts": 2, "reason": "signal 9"}
    replicas = [{"version": "2", "summary": "1/2 up, 1 starting", "replicas": [ready, lost]}]
    listing.models[0] = {**listing.models[0], "replica_status": replicas}
    monkeypatch.setattr(status.time, "time", lambda: 1100.0)
    assert main(["status", "--verbose", "--server", listing.address]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "digits 2 AVAILABLE - - - - - - - - ray 1/2 up, 1 starting" in lines
    assert "digits/2/0a1b2c3d/0#0 gpu-a 41 ready 100 s 1 0" in lines
    assert "digits/2/0a1b2c3d/1#3 - - placing 10 s - 2 signal 9" in lines
    assert main(["status", "--verbose", "--json", "digits", "--server", listing.address]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert "replicas" not in model["versions"][0]
    assert model["versions"][1]["replicas"] == {"summary": replicas[0]["summary"], "replicas": [ready, lost]}
    assert main(["status", "--json", "--server", listing.address]) == 0
    assert "replica" not in capsys.readouterr().out


def test_a_page_that_holds_no_metrics_or_is_too_large_is_an_error(
    listing: Listing, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing.metrics = b"<html>hello</html>"
    assert main(["status", "--verbose", "--server", listing.address]) == 1
    assert "/metrics is no page of metrics" in capsys.readouterr().err
    monkeypatch.setattr(status, "_LARGEST_PAGE", 1000)
    listing.metrics = metrics_page()
    assert main(["status", "--verbose", "--server", listing.address]) == 1
    assert "larger than 1000 bytes" in capsys.readouterr().err


def test_the_numbers_need_the_http_port(capsys: Captured) -> None:
    assert main(["status", "digits", "--verbose", "--server", "unix:/nowhere"]) == 2
    assert "status --verbose goes over HTTP" in capsys.readouterr().err


INTERRUPTIBLE = [
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
    sys.executable,
]
"""Runs Python with the arguments that follow. What is started in the background ignores interrupts, and so do its
children, unless they say otherwise."""


def test_watching_prints_every_change_until_it_is_interrupted(listing: Listing) -> None:
    command = [*INTERRUPTIBLE, "-m", "tfs_lite.cli.main", "status", "--watch", "--json", "--interval=0.02"]
    with subprocess.Popen([*command, "--server", listing.address], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [model["name"] for model in json.loads(process.stdout.readline())["models"]] == ["digits", "ranker"]
        listing.models = MODELS[:1]
        assert [model["name"] for model in json.loads(process.stdout.readline())["models"]] == ["digits"]
        listing.close()
        assert json.loads(process.stdout.readline())["error"]["code"] == "UNAVAILABLE"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_watching_on_a_terminal_draws_over_what_it_has_drawn_and_gives_the_terminal_back(listing: Listing) -> None:
    own, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [*INTERRUPTIBLE, "-m", "tfs_lite.cli.main", "status", "--watch", "--interval=0.02"]
    with subprocess.Popen(
        [*command, "--server", listing.address], stdout=theirs, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(theirs)
        before = read_terminal(own, lambda seen: "ranker" in seen)
        listing.models = [{"name": "digits", "model_version_status": [entry(3, "LOADING")], "load_progress": [LOADING]}]
        during = read_terminal(own, lambda seen: "8 s left" in seen)
        process.send_signal(signal.SIGINT)
        after = read_terminal(own)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert HIDE_CURSOR in before
    assert LINE_UP in during
    assert SHOW_CURSOR in after


HIDE_CURSOR, SHOW_CURSOR, LINE_UP = "\x1b[?25l", "\x1b[?25h", "\x1b[1A"


def test_watching_without_a_terminal_prints_plain_lines_for_each_change(listing: Listing) -> None:
    command = [*INTERRUPTIBLE, "-m", "tfs_lite.cli.main", "status", "--watch", "--interval=0.02"]
    with subprocess.Popen([*command, "--server", listing.address], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("ranker" in line for line in lines)
        listing.models = [{"name": "digits", "model_version_status": [entry(3, "LOADING")], "load_progress": [LOADING]}]
        found = next(line for line in lines if "LOADING" in line)
        assert found.split("LOADING")[1].strip() == "reading the weights: 1.1 of 5.6 GiB, 8 s left"
        assert "\x1b" not in found
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
