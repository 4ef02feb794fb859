"""The unit for systemd: valid, and true of the server."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.deploy_files import ROOT
from tfs_lite.cli.flag_parser import parse_flags

UNIT = ROOT / "deploy" / "systemd" / "tfs-lite.service"


def commands(name: str) -> list[list[str]]:
    """The words of each command of this kind."""
    text = UNIT.read_text().replace("\\\n", " ")
    return [line.partition("=")[2].split() for line in text.splitlines() if line.startswith(f"{name}=")]


def test_the_server_takes_its_flags() -> None:
    ((program, command, *flags),) = commands("ExecStart")
    assert (Path(program).name, command) == ("tfs-lite", "serve")
    assert parse_flags(flags, {})["state_directory"] == "/var/lib/tfs-lite"


def test_it_waits_longer_for_the_stop_than_the_server_takes() -> None:
    ((_, _, *flags),) = commands("ExecStart")
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert int(stop) >= parse_flags(flags, {})["drain_timeout_seconds"] + 20


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_it(tmp_path: Path) -> None:
    text = UNIT.read_text()
    for program in {line[0].removeprefix("-") for kind in ("ExecStart", "ExecStartPost") for line in commands(kind)}:
        text = text.replace(program, "/bin/true")
    copy = tmp_path / "tfs-lite.service"
    copy.write_text(text.replace("User=tfs-lite", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "tfs-lite.service" in line]) == (0, [])
