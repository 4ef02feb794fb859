"""``tfs-lite explain``: what it takes, shows and answers scripts with."""

from __future__ import annotations

import argparse
import json
import re

import pytest

from tfs_lite.cli.explain import Question, duration, read_question
from tfs_lite.cli.main import main
from tfs_lite.cli.output import UsageError
from tfs_lite.server.server import Server

Captured = pytest.CaptureFixture[str]


def rest(server: Server) -> str:
    return f"--server=127.0.0.1:{server.rest_api_port}"


def test_a_reference_has_a_model_and_a_version_or_label() -> None:
    assert read_question("m") == Question("m")
    assert read_question("m@8") == Question("m", 8)
    assert read_question("m@stable") == Question("m", None, "stable")
    assert read_question("a b@x/y").path == "/v1/models/a%20b/labels/x%2Fy:explain"
    for text in ("m@", "@8"):
        with pytest.raises(UsageError, match="MODEL@VERSION"):
            read_question(text)


def test_times_have_units() -> None:
    assert [duration(text) for text in ("90", "90s", "1.5m", "1h", "2d")] == [90, 90, 90, 3600, 172800]
    with pytest.raises(argparse.ArgumentTypeError):
        duration("soon")


def test_what_serves_is_0_and_anything_else_is_1(server: Server, capsys: Captured) -> None:
    assert main(["explain", "tagged@2", rest(server)]) == 0
    assert capsys.readouterr().out.startswith("tagged@2 (SERVING): version 2 answers")
    assert main(["explain", "tagged@9", rest(server)]) == 1
    out = capsys.readouterr().out
    assert "NOT_ON_DISK: there is no directory 9" in out
    assert "    do: publish it" in out
    assert "  meanwhile: version 2 answers requests that name no version" in out
    assert main(["explain", "tagged@", rest(server)]) == 2


def test_json_is_the_answer_over_http_and_grpc(server: Server, capsys: Captured) -> None:
    assert main(["explain", "tagged", "--json", rest(server)]) == 0
    over_http = json.loads(capsys.readouterr().out)
    assert main(["explain", "tagged", "--json", f"--server=127.0.0.1:{server.port}"]) == 0
    over_grpc = json.loads(capsys.readouterr().out)
    for answer in (over_http, over_grpc):  # other tests' failed requests are older in the second one
        for link in answer["because"]:
            link["text"] = re.sub(r"the last .* ago", "", link["text"])
    assert over_grpc == over_http
    assert over_http["verdict"] == "SERVING"


def test_without_a_model_every_model_has_a_line(server: Server, capsys: Captured) -> None:
    code = main(["explain", rest(server)])
    out = capsys.readouterr().out
    assert "tagged: version 2 answers" in out
    assert code == int(any(not line.startswith(("SERVING ", " ")) for line in out.splitlines()))


def test_no_server_is_one_line(capsys: Captured) -> None:
    assert main(["explain", "m", "--server=127.0.0.1:1"]) == 1
    assert "no server answers at http://127.0.0.1:1/v1/models/m:explain" in capsys.readouterr().err
