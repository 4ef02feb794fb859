"""The entry point: which command runs, and how failures become one line and an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from tfs_lite import __version__
from tfs_lite.cli.main import COMMANDS, main

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(argv: list[str], capsys: Captured) -> None:
    assert main(argv) == 0
    page = capsys.readouterr().out
    assert all(name in page for name in COMMANDS)


def test_version_prints_the_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert main(["serve", "--version"]) == 0
    own, server = capsys.readouterr().out.split("\n", 1)
    assert own == f"tfs_lite {__version__}"
    assert server.splitlines() == [f"tfs_lite ModelServer: {__version__}", f"PyTorch Library: {version('torch')}"]


def test_no_command_is_wrong_usage(capsys: Captured) -> None:
    assert main([]) == 2
    assert "usage: tfs-lite COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_takes_json(command: str, capsys: Captured) -> None:
    try:
        code: object = main([command, "--help"])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serv"], "unknown command 'serv' (did you mean serve?)"),
        (["--port=1"], "the command comes first: tfs-lite serve --port=1"),
        (["serve", "--prot=1"], "unknown flag --prot (did you mean --port?)"),
        (["status", "--watsh"], "unknown argument '--watsh' (did you mean --watch?)"),
        (["status", "--interval=0"], "argument --interval: expected seconds above 0"),
        (["publish", "src"], "the following arguments are required: --base"),
        (["publish", "src", "--base=b", "--version=x"], "argument --version: expected a whole number from 0 to 2^63-1"),
        (["predict", "m", "--input", "x"], "--input 'x': expected name=JSON"),
        (["demo", "--clients=0"], "argument --clients: expected a whole number above 0"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(argv: list[str], message: str, capsys: Captured) -> None:
    assert main(argv) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.startswith("tfs-lite: ")
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_with_json_the_failure_is_json_too(capsys: Captured) -> None:
    assert main(["publish", "/nowhere", "--base", "/nowhere-either", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "NOT_FOUND"
    assert "/nowhere" in error["message"]


def test_light_commands_load_neither_torch_nor_the_server() -> None:
    code = """
import sys
from tfs_lite.cli import main
from tfs_lite.cli import check, predict, publish, reload, status
from tfs_lite.cli import demo
heavy = {"torch", "grpc", "numpy", "pydantic", "httptools", "rich", "sklearn"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
