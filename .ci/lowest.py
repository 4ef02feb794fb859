"""Prints the lowest versions of its dependencies that pyproject.toml allows, as constraints for pip.

A version of torch that the package index does not have is named on standard error and left out: the newest one is taken
then.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
EXTRAS = ("demo", "examples", "generate")
BOUND = re.compile(r"^([A-Za-z0-9_.-]+)>=([0-9.]+)")


def main() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(each for extra in EXTRAS for each in extras[extra])]
    for found in filter(None, map(BOUND.match, wanted)):
        name, version = found.groups()
        if name != "torch" or is_available(name, version):
            print(f"{name}=={version}")
        else:
            print(f"{name} {version} is not available here: the newest one is used", file=sys.stderr)


def is_available(name: str, version: str) -> bool:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet", f"{name}=={version}"]
    return subprocess.run(command, capture_output=True).returncode == 0


if __name__ == "__main__":
    main()
