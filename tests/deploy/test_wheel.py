"""The wheels, as users get them: built, installed into empty environments, and used from outside of the clone.

Its dependencies come from where this machine's pip finds them, with the constraints of ``make install``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from deploy_files import ROOT

sys.path.insert(0, str(ROOT / "release"))
from build import stage_client

from tests.support.servers.process import ServerProcess

pytestmark = [pytest.mark.load, pytest.mark.timeout(1800)]

TEST_TOOL = re.compile(r"^\s*(?:import|from) (?:hypothesis|httpx|pytest|tests|benchmarks)\b", re.MULTILINE)
SAVE = """
import sys
import torch, tfs_lite

assert tfs_lite.__file__.startswith(sys.prefix), tfs_lite.__file__
tfs_lite.save(torch.nn.Sequential(torch.nn.Linear(4, 2)), "models/ranker", example_inputs=(torch.randn(3, 4),))
"""
PREDICT = """
import sys
import tfs_lite

with tfs_lite.Client(sys.argv[1]) as client:
    assert "torch" not in sys.modules
    print(client.predict("ranker", {"input": [[1.0, 2.0, 3.0, 4.0]]}).outputs["output_0"].tolist())
"""


def built(project: Path, directory: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={directory}", str(project))
    (found,) = directory.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("client")
    stage_client(project)
    return built(project, tmp_path_factory.mktemp("wheel"))


def installed(wheel: Path, place: Path) -> tuple[str, str]:
    """Python and ``tfs-lite`` of a new environment that has the wheel and what it needs."""
    run(sys.executable, "-m", "venv", str(place))
    python = str(place / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel))
    run(python, "-m", "pip", "check")
    return python, str(place / "bin" / "tfs-lite")


def run(*command: str, directory: Path | None = None) -> str:
    """What it prints. Without what leads Python to this clone."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_it_has_the_package_and_nothing_that_only_tests_need(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert {name.split("/")[0].partition("-")[0] for name in names} == {"tfs_lite"}
        sources = {name: archive.read(name).decode() for name in names if name.endswith(".py")}
    assert [name for name, text in sources.items() if TEST_TOOL.search(text)] == []
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "tfs_lite").rglob("*.py")}
    assert set(sources) == package


def test_it_saves_serves_predicts_and_explains_outside_of_the_clone_and_the_client_alone_asks(
    wheel: Path, client_wheel: Path, tmp_path: Path
) -> None:
    python, command = installed(wheel, tmp_path / "venv")
    alone, _ = installed(client_wheel, tmp_path / "alone")
    assert not list((tmp_path / "alone").rglob("torch"))
    run(python, "-c", SAVE, directory=tmp_path)
    flags = ("--model_name=ranker", f"--model_base_path={tmp_path}/models/ranker")
    with ServerProcess(*flags, command=[command], directory=tmp_path, env={"PYTHONPATH": ""}) as server:
        asked = b'{"instances": [[1.0, 2.0, 3.0, 4.0]]}'
        status, answer = server.get("/v1/models/ranker:predict", body=asked)
        assert status == 200, answer
        over_grpc = json.loads(run(alone, "-c", PREDICT, server.target, directory=tmp_path))
        assert json.loads(answer)["predictions"] == [pytest.approx(row) for row in over_grpc]
        explained = run(command, "explain", "ranker", f"--server=127.0.0.1:{server.http_port}", directory=tmp_path)
        assert explained.startswith("ranker (SERVING): ")
    assert server.exit_code == 0
