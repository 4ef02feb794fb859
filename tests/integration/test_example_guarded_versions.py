"""``examples/guarded_versions``: every kind of push is made, and the demo ends without an error at its callers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "guarded_versions"
PATIENCE = 170.0


def run(script: str, *arguments: str, directory: Path) -> str:
    """What a script of the example prints."""
    command = [sys.executable, str(EXAMPLE / script), *arguments]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(directory)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=env, cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pushes_are_numbered_and_only_renamed_changes_an_input(tmp_path: Path) -> None:
    for version, kind in enumerate(("good", "renamed", "shuffled"), 1):
        assert run("push.py", kind, directory=tmp_path) == f"models/ranker/{version}: {kind}\n"
        config = (tmp_path / "models" / "ranker" / str(version) / "config.yaml").read_text()
        assert f"fault: {kind}" in config
        assert ("name: features" in config) == (kind == "renamed")


@pytest.mark.load
def test_the_demo_pushes_bad_versions_and_its_callers_see_no_error(tmp_path: Path) -> None:
    printed = run("demo.py", directory=tmp_path)
    verdicts = re.findall(r"^ *[\d.]+ s  (REJECTED|HELD_BACK|SERVING): ", printed, re.MULTILINE)
    assert verdicts == ["REJECTED", "HELD_BACK", "HELD_BACK", "SERVING"]
    assert re.search(r"^errors: 0 in [\d,]+ requests$", printed, re.MULTILINE)
    assert list(tmp_path.glob("guarded-versions-*")) == []
