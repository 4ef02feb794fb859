"""``tfs-lite status`` against a real HTTP server that answers with the list of models."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tfs_lite.cli.main import main

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
    """Serves ``/v1/models``; what it says may be changed."""

    def __init__(self) -> None:
        self.models = list(MODELS)
        listing = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps({"models": listing.models}).encode()
                self.send_response(200 if self.path == "/v1/models" else 404)
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


def test_the_table_shows_models_versions_states_and_reasons(listing: Listing, capsys: Captured) -> None:
    assert main(["status", "--rest", listing.address]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["digits", "2", "AVAILABLE"] in lines
    assert ["digits", "3", "END", "DATA_LOSS:", "model.pt2", "is", "truncated"] in lines
    assert ["ranker", "-", "-", "its", "base", "path", "does", "not", "exist"] in lines


def test_json_has_the_same_facts(listing: Listing, capsys: Captured) -> None:
    assert main(["status", "digits", "--rest", listing.address, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["name"] == "digits"
    assert model["versions"][0] == {"version": 3, "state": "END", "error": "DATA_LOSS: model.pt2 is truncated"}


def test_an_unknown_model_is_an_error_with_the_nearest_name(listing: Listing, capsys: Captured) -> None:
    assert main(["status", "digit", "--rest", listing.address]) == 1
    assert "no model 'digit' (did you mean digits?)" in capsys.readouterr().err


def test_an_empty_server_says_so(listing: Listing, capsys: Captured) -> None:
    listing.models = []
    assert main(["status", "--rest", listing.address]) == 0
    assert capsys.readouterr().out == "the server has no models\n"


def test_no_server_is_one_line_with_the_next_step(listing: Listing, capsys: Captured) -> None:
    listing.close()
    assert main(["status", "--rest", listing.address]) == 1
    error = capsys.readouterr().err
    assert "no server answers" in error
    assert "tfs-lite serve" in error
    assert error.count("\n") == 1


def test_grpc_needs_the_name_of_a_model(capsys: Captured) -> None:
    assert main(["status", "--server", "127.0.0.1:1"]) == 2
    assert "name it" in capsys.readouterr().err


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
    with subprocess.Popen([*command, "--rest", listing.address], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [model["name"] for model in json.loads(process.stdout.readline())["models"]] == ["digits", "ranker"]
        listing.models = MODELS[:1]
        assert [model["name"] for model in json.loads(process.stdout.readline())["models"]] == ["digits"]
        listing.close()
        assert json.loads(process.stdout.readline())["error"]["code"] == "UNAVAILABLE"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
