"""``tfs-lite publish`` on real directories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.terminal import read_terminal
from tfs_lite.cli.main import main

Captured = pytest.CaptureFixture[str]


def test_a_directory_becomes_the_next_version(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "model.pt2").write_bytes(b"weights")
    (tmp_path / "base" / "4").mkdir(parents=True)
    assert main(["publish", str(tmp_path / "source"), "--base", str(tmp_path / "base")]) == 0
    assert capsys.readouterr().out == f"published version 5: {tmp_path / 'base' / '5'}\n"
    assert (tmp_path / "base" / "5" / "model.pt2").read_bytes() == b"weights"


def test_json_names_version_and_path(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "m.pt2").write_bytes(b"weights")
    assert main(["publish", str(tmp_path / "m.pt2"), "--base", str(tmp_path / "base"), "--version=7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 7, "path": str(tmp_path / "base" / "7")}


def test_a_version_that_is_there_is_not_overwritten(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "m.pt2").write_bytes(b"weights")
    (tmp_path / "base" / "1").mkdir(parents=True)
    assert main(["publish", str(tmp_path / "m.pt2"), "--base", str(tmp_path / "base"), "--version", "1"]) == 1
    assert "version 1" in capsys.readouterr().err


def test_a_base_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "m.pt2").write_bytes(b"weights")
    (tmp_path / "file").write_bytes(b"")
    assert main(["publish", str(tmp_path / "m.pt2"), "--base", str(tmp_path / "file" / "base")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_progress_is_lines_on_standard_error_where_it_is_no_terminal(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "m.pt2").write_bytes(b"weights")
    command = ["publish", str(tmp_path / "m.pt2"), "--base", str(tmp_path / "base")]
    assert main([*command, "--progress"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "copying: 7 of 7 bytes\nhashing: 7 of 7 bytes\n"
    assert captured.out.startswith("published version 1")
    for quiet in ([], ["--no-progress"], ["--progress", "--json"]):
        assert main([*command, *quiet]) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("flags", "shown"), [(["--progress"], True), ([], False), (["--progress", "--json"], False)])
def test_a_terminal_gets_a_bar_for_large_directories_or_when_it_is_asked_for(
    tmp_path: Path, flags: list[str], shown: bool
) -> None:
    (tmp_path / "m.pt2").write_bytes(b"weights")
    command = ["publish", str(tmp_path / "m.pt2"), "--base", str(tmp_path / "base"), *flags]
    own, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-m", "tfs_lite.cli.main", *command], stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        seen = read_terminal(own)
        assert process.stdout is not None
        assert process.stdout.read()
    assert process.returncode == 0
    assert ("copying" in seen) is shown
    assert ("hashing" in seen) is shown
