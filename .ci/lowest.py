"""Prints the lowest versions of its dependencies that pyproject.toml allows, as constraints for pip.

Of the test tools only those are here that have to fit them: the companions of grpcio, and the maker of ONNX files.
Of torch only builds for the CPU count: the others pull gigabytes of CUDA. Where the package index has none of the
lowest version, which is then named on standard error, the version of constraints.txt is taken.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("demo", "examples", "generate", "onnx", "otel", "remote")
FITTING = ("grpcio-", "onnx>")
BOUND = re.compile(r"^([A-Za-z0-9_.-]+)>=([0-9.]+)")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(each for extra in EXTRAS for each in extras[extra])]
    wanted += [each for each in extras["dev"] if each.startswith(FITTING)]
    for found in filter(None, map(BOUND.match, wanted)):
        name, version = found.groups()
        print(torch(f"torch=={version}+cpu") if name == "torch" else f"{name}=={version}")


def torch(lowest: str) -> str:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet", lowest]
    if subprocess.run(command, capture_output=True).returncode == 0:
        return lowest
    usual = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    print(f"{lowest} is not available here: {usual} is used", file=sys.stderr)
    return usual


if __name__ == "__main__":
    main()
