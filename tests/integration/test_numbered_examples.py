"""The numbered examples run as they stand, and print what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LINES = 40
PRINTED = {
    "01-save-and-serve": r"version 1: \[\[.*\]\]",
    "02-push-a-version": r"version 1 answered \d+ requests, then version 2 answered 100; none failed",
    "03-labels": r"(?s)stable is version 1\n.*stable is version 2",
    "04-batching": r"640 requests took (\d+) runs of the model",
    "05-python-model": r"\[b'blue', b'red', b'green'\]",
    "06-custom-platform": r"\[2, 1, 0\]",
}


LIGHT = ("05-python-model", "06-custom-platform")
"""Those that need no export; the others are for ``make test-all``."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in LIGHT else pytest.mark.load) for name in PRINTED]
)
def test_a_numbered_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    place = EXAMPLES / name
    if (place / "pyproject.toml").exists():  # what `pip install .` would tell of it
        about = tmp_path / "word_counts-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: word-counts\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[tfs_lite.platforms]\nword_counts = word_counts:PLATFORM\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(place))), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, place / "main.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED[name], done.stdout.strip())
    assert len((place / "main.py").read_text().splitlines()) <= MOST_LINES


def test_every_numbered_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.name[0].isdigit() and path.is_dir()} == PRINTED.keys()
