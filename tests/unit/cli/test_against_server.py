"""Commands against a real server, by either of its ports."""

from __future__ import annotations

import json
import socket
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import free_ports
from tfs_lite.cli.arguments import HTTP_PORT, server_address
from tfs_lite.cli.main import main
from tfs_lite.server.server import Server

Captured = pytest.CaptureFixture[str]


def grpc(server: Server) -> str:
    return f"--server=127.0.0.1:{server.port}"


@contextmanager
def served_page(port: int) -> Iterator[None]:
    """A server at that port that answers every GET with 501."""
    server = ThreadingHTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever, 0.01)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()


def test_predict_prints_version_and_outputs(server: Server, capsys: Captured) -> None:
    assert main(["predict", "tagged", "--input", "x=[[1, 2, 3.5]]", grpc(server), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["version"] == 2
    assert answer["outputs"] == {"y": [[3.0, 4.0, 5.5]], "version": [2.0]}


def test_predict_takes_an_array_from_a_file_and_returns_the_outputs_asked_for(
    server: Server, tmp_path: Path, capsys: Captured
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    assert (
        main(["predict", "tagged", f"--input=x=@{tmp_path / 'x.npy'}", "--output=y", "--version=2", grpc(server)]) == 0
    )
    assert capsys.readouterr().out == "model tagged version 2\ny: float32 [2, 3]\n  [[2. 2. 2.]\n   [2. 2. 2.]]\n"


def test_predict_without_inputs_says_what_the_model_takes(server: Server, capsys: Captured) -> None:
    assert main(["predict", "tagged", grpc(server)]) == 2
    assert "--input is missing; tagged version 2 takes x: float [-1,3]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody", "--input=x=[[1,2,3]]"], "nobody"),
        (["tagged", "--input=x=[[1,2,3]]", "--version=9"], "9"),
        (["tagged", "--input=x=[[1,2,3]]", "--label=none"], "none"),
        (["taged", "--input=x=[[1,2,3]]"], "Servable not found for request: Latest(taged); model taged is not served"),
        (["taged"], "did you mean tagged?"),
        (["tagged", "--input=z=[[1,2,3]]"], "input alias: x not found"),
        (["tagged", "--input=x=[[1,2]]"], "input x has size 2 in dimension 1, expected 3"),
        (["tagged", "--input=x=[[1,2,3]]", "--signature=other"], "other"),
        (["tagged", "--input=x=[[1,2,3]]", "--output=other"], "other"),
    ],
)
def test_a_refused_request_is_one_line(server: Server, arguments: list[str], message: str, capsys: Captured) -> None:
    assert main(["predict", *arguments, grpc(server)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_each_command_asks_by_either_port_what_both_answer(server: Server, tmp_path: Path, capsys: Captured) -> None:
    expected = [{"name": "tagged", "versions": [{"version": 2, "state": "AVAILABLE", "error": ""}], "reason": ""}]
    for port in (server.port, server.rest_api_port):
        where = f"--server=127.0.0.1:{port}"
        for model in (["tagged"], []):
            assert main(["status", *model, where, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["models"] == expected
        assert main(["explain", where]) == 0
        assert "SERVING  tagged" in capsys.readouterr().out
        assert main(["guard", "tagged", where]) == 0
        assert "version 2 answers" in capsys.readouterr().out
        assert main(["explain", "--failed", where, "--json"]) == 0
        assert "requests" in json.loads(capsys.readouterr().out)


def test_a_command_that_needs_the_other_port_says_which(
    server: Server, base: Path, tmp_path: Path, capsys: Captured
) -> None:
    for command in (["events"], ["status", "--verbose"]):
        assert main([*command, grpc(server)]) == 1
        told = capsys.readouterr().err
        assert f"127.0.0.1:{server.port} is a gRPC port" in told
        assert "--rest_api_port" in told
    assert main(["predict", "tagged", "--input=x=[[1,2,3]]", f"--server=127.0.0.1:{server.rest_api_port}"]) == 1
    told = capsys.readouterr().err
    assert f"127.0.0.1:{server.rest_api_port} does not speak gRPC" in told
    assert "is this its gRPC port" in told


def test_the_environment_names_the_server_and_the_option_wins(
    server: Server, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFS_LITE_SERVER", f"127.0.0.1:{server.port}")
    assert main(["predict", "tagged", "--input=x=[[1, 2, 3]]"]) == 0
    assert main(["status"]) == 0
    assert main(["status", "--server=127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1/v1/models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("models.example", "models.example:8501"),
        ("10.0.0.1:9", "10.0.0.1:9"),
        ("::1", "[::1]:8501"),
        ("[::1]", "[::1]:8501"),
        ("[::1]:9", "[::1]:9"),
        ("unix:/run/s", "unix:/run/s"),
        (None, "127.0.0.1:8501"),
    ],
)
def test_an_address_without_a_port_gets_the_usual_one(
    given: str | None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TFS_LITE_SERVER", raising=False)
    assert server_address(Namespace(server=given), HTTP_PORT) == address


def test_a_url_is_no_address(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["status", "--server=http://127.0.0.1:8501/"]) == 2
    assert "argument --server: expected HOST or HOST:PORT (and no http://)" in capsys.readouterr().err
    monkeypatch.setenv("TFS_LITE_SERVER", "http://127.0.0.1:8501")
    for command in (["status"], ["predict", "m", "--input=x=1"]):
        assert main(command) == 2
        assert "TFS_LITE_SERVER: expected HOST or HOST:PORT (and no http://)" in capsys.readouterr().err


def test_a_port_of_grpc_that_is_not_ours_is_known_by_its_first_frame(capsys: Captured) -> None:
    def answer() -> None:
        with other.accept()[0] as connection:
            connection.recv(2**16)
            connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))

    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:
        pool.submit(answer)
        assert main(["events", f"--server=127.0.0.1:{other.getsockname()[1]}"]) == 1
    assert "is a gRPC port" in capsys.readouterr().err


def test_reload_sends_the_file_and_shows_the_models(
    server: Server, base: Path, tmp_path: Path, capsys: Captured
) -> None:
    config = tmp_path / "models.yaml"
    config.write_text(f"model_config_list:\n  config:\n    - name: tagged\n      base_path: {base}\n")
    assert main(["reload", str(config), grpc(server), "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["name"], model["versions"][0]["state"]) == ("tagged", "AVAILABLE")
    assert main(["reload", str(config), grpc(server)]) == 0
    assert capsys.readouterr().out.startswith(
        "reloaded: the server has 1 model (added [], removed [], changed [], 1 unchanged)\n"
    )


def test_a_reload_that_changes_a_base_path_waits_for_its_version_and_says_if_it_does_not_come(
    server: Server, base: Path, archives: TaggedArchives, tmp_path: Path, capsys: Captured
) -> None:
    """The first new base path has files that are quiet after 0 s; a version of the second never becomes whole."""
    config = tmp_path / "moved.yaml"

    def reload(path: Path, *flags: str) -> tuple[int, str]:
        config.write_text(f"model_config_list:\n  config:\n    - {{name: tagged, base_path: {path}}}\n")
        code = main(["reload", str(config), grpc(server), *flags])
        return code, capsys.readouterr().err

    archives.write_version(8, tmp_path / "whole")
    (tmp_path / "broken" / "9").mkdir(parents=True)
    (tmp_path / "broken" / "9" / "model.pt2").write_text("no archive")
    try:
        assert reload(tmp_path / "whole") == (0, "")
        assert main(["status", grpc(server), "--json"]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert model["versions"][0] == {"version": 8, "state": "AVAILABLE", "error": ""}
        code, said = reload(tmp_path / "broken", "--timeout=2")
        assert code == 1
        line = "version 9 is still loading; version 8 of the config before answers meanwhile"
        assert said == f"tfs-lite: tagged: {line}\n"
    finally:
        assert reload(base) == (0, "")


def test_each_reload_of_a_config_with_a_model_that_does_not_load_fails(
    server: Server, base: Path, tmp_path: Path, capsys: Captured
) -> None:
    config, alone = tmp_path / "two.yaml", tmp_path / "one.yaml"
    alone.write_text(f"model_config_list:\n  config:\n    - {{name: tagged, base_path: {base}}}\n")
    config.write_text(f"{alone.read_text()}    - {{name: none, base_path: {tmp_path / 'bad'}}}\n")
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.pt2").write_text("no archive")
    try:
        told = []
        for _ in range(2):
            assert main(["reload", str(config), grpc(server), "--timeout=60"]) == 1
            told.append(capsys.readouterr().err)
        assert "tfs-lite: no version answers of: none; the table says why" in told[1]
    finally:
        assert main(["reload", str(alone), grpc(server)]) == 0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.pbtxt", "model_config_list {\n  config { nam: 'x' }\n}", 'm.pbtxt:2:12: unknown field "nam"'),
        (
            "m.yaml",
            "model_config_list:\n  config:\n    - name: x\n",
            "m.yaml:3:7: model_config_list.config[0].base_path",
        ),
        ("m.pbtxt", "model_config_list { config { name: 'a' base_path: '/a' model_platform: 'caffe' } }", "caffe"),
    ],
    ids=["unknown field", "missing field", "refused by the server"],
)
def test_reload_of_a_config_with_a_mistake_names_it_with_line_and_column_where_it_is_in_the_text(
    server: Server, tmp_path: Path, name: str, text: str, message: str, capsys: Captured
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["reload", str(tmp_path / name), grpc(server)]) == 1
    assert message in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_line(capsys: Captured) -> None:
    assert main(["predict", "m", "--input=x=1", "--server=127.0.0.1:1"]) == 1
    told = capsys.readouterr().err
    assert "no gRPC server answered at 127.0.0.1:1; is it running" in told, "at once: no time is named"
    assert len(told.splitlines()) == 1
    for command in ("status", "explain"):
        assert main([command, "m", "--server=127.0.0.1:1"]) == 1
        told = capsys.readouterr().err
        assert "no server answers at http://127.0.0.1:1/v1/models" in told
        assert len(told.splitlines()) == 1


def test_a_server_that_is_not_there_is_waited_for_if_that_is_asked(capsys: Captured) -> None:
    assert main(["predict", "m", "--input=x=1", "--server=127.0.0.1:1", "--wait_for_server=0.3"]) == 1
    assert "no gRPC server answered at 127.0.0.1:1 within 0.3 s; is it running" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "explain", "events"])
def test_an_http_port_that_opens_late_is_waited_for(command: str, capsys: Captured) -> None:
    (port,) = free_ports(1)
    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(main, [command, f"--server=127.0.0.1:{port}", "--wait_for_server=30"])
        with served_page(port):
            assert code.result(30) == 1
    assert "is it the HTTP port of a tfs_lite server?" in capsys.readouterr().err, "it was there, and has answered"
    assert main([command, "--server=127.0.0.1:1", "--wait_for_server=0.2"]) == 1
    assert "no server answers at http://127.0.0.1:1/v1/" in capsys.readouterr().err
