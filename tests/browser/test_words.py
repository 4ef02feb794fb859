"""The pure part of the page's JavaScript, tested by its own language: numbers and times in words, points and lanes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def test_pure_part_of_the_page() -> None:
    driver = pytest.importorskip("playwright._impl._driver", reason="playwright, which brings node, is not installed")
    node, *_ = driver.compute_driver_executable()
    file = Path(__file__).with_name("words.test.mjs")
    done = subprocess.run([node, "--test", str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
