"""``tfs-lite publish`` on real directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
