"""The demo, as a user runs it: a process that starts a server of its own, and ends by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.profiles import scaled

DEMO = [sys.executable, "-m", "tfs_lite.cli.main", "demo"]
LONGEST = 240.0
REQUESTS = scaled(40)
"""Of each client and each version."""


def run_demo(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the demo with its temporary files below ``directory``."""
    return subprocess.run(
        [*DEMO, *arguments],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        env={"TMPDIR": str(directory), "PATH": "/usr/bin:/bin", "HOME": str(directory), "OMP_NUM_THREADS": "1"},
        check=False,
    )


def by_version(summary: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {entry["version"]: entry for entry in summary["versions"]}


@pytest.mark.slow
def test_the_demo_swaps_versions_without_a_failed_request(tmp_path: Path) -> None:
    finished = run_demo(tmp_path, "--json", f"--requests={REQUESTS}")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    summary = json.loads(finished.stdout)
    versions = by_version(summary)
    assert summary["ok"] is True
    assert summary["failed_requests"] == 0
    assert summary["requests"] >= 3 * 4 * REQUESTS
    assert versions[2]["accuracy"] > versions[1]["accuracy"] + 0.1
    assert (versions[1]["state"], versions[2]["state"], versions[3]["state"]) == ("END", "AVAILABLE", "END")
    assert versions[3]["error"]
    assert versions[3]["requests"] == 0
    assert summary["server_exit_code"] == 0
    assert not list(tmp_path.glob("tfs-lite-demo-*"))


@pytest.mark.load
def test_without_a_terminal_the_demo_prints_a_line_for_each_step(tmp_path: Path) -> None:
    finished = run_demo(tmp_path, "--requests=5", "--clients=2")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    steps = [line.split(" s  ")[1] for line in finished.stdout.splitlines() if " s  " in line]
    assert [step.split()[0] for step in steps] == ["training", "starting", "2", "publishing", "publishing", "stopping"]
    assert "none failed; accuracy rose from" in finished.stdout
    assert "\x1b" not in finished.stdout


@pytest.mark.load
def test_a_step_that_takes_too_long_ends_the_demo_with_exit_code_1(tmp_path: Path) -> None:
    finished = run_demo(tmp_path, "--json", "--seconds=0.001")
    summary = json.loads(finished.stdout)
    assert finished.returncode == 1
    assert summary["ok"] is False
    assert any("not within 0.001 s: version 1 is available" in problem for problem in summary["problems"])
    assert not list(tmp_path.glob("tfs-lite-demo-*"))
