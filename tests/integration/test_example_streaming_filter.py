"""``examples/streaming_filter`` as its README has it: signals in pieces, and a new version half-way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.profiles import is_soak
from tests.support.servers.process import ServerProcess, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "streaming_filter"
PATIENCE = 120.0
LINE = re.compile(
    r"^signal (\d): answered by version (\S+) \((\d+) Hz\), differs from scipy by (\S+) at most$", re.MULTILINE
)
ROUNDING = 1e-5
"""Of float32 at the signals' levels, which are up to about 30, with room."""

pytest.importorskip("scipy", reason="the extra `examples` is not installed")
pytestmark = pytest.mark.slow


def run(script: str, *arguments: str) -> str:
    """What a script of the example prints."""
    command = [sys.executable, str(EXAMPLE / script), *arguments]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stream(server: ServerProcess, *arguments: str) -> dict[int, tuple[str, str, float]]:
    """Signal -> (version, Hz, difference from scipy)."""
    printed = run("client.py", f"--address=127.0.0.1:{server.http_port}", *arguments)
    return {int(found[1]): (found[2], found[3], float(found[4])) for found in LINE.finditer(printed)}


def ready(server: ServerProcess, version: int) -> bool:
    return server.get(f"/v2/models/lowpass/versions/{version}/ready")[0] == 200


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    directory = tmp_path_factory.mktemp("filter") / "models"
    run("make.py", str(directory))
    return directory


@pytest.fixture(scope="module")
def server(repository):
    with ServerProcess(f"--model_repository={repository}") as found:
        yield found


def test_signals_in_pieces_are_filtered_as_scipy_filters_them_whole_across_a_new_version(server, repository):
    """Six signals at once are more than there are slots; then the same with a version that comes half-way."""
    alone = stream(server) if is_soak() else {}
    assert [(version, hertz) for version, hertz, _ in alone.values()] == [("1", "20")] * len(alone)
    assert len(alone) == 6 * is_soak()
    across = stream(server, f"--push={repository}")
    assert [(version, hertz) for version, hertz, _ in across.values()] == [("1", "20")] * 4 + [("2", "60")] * 2
    assert max(difference for _, _, difference in [*alone.values(), *across.values()]) < ROUNDING
    wait_until(lambda: not ready(server, 1), "version 1 is gone, as its signals have ended")
    assert ready(server, 2)
    assert "changed on disk" not in server.log()


def test_clients_see_neither_the_memory_nor_the_control_input(server):
    status, body = server.get("/v2/models/lowpass")
    found = json.loads(body)
    assert status == 200
    assert [tensor["name"] for tensor in found["inputs"]] == ["samples"]
    assert [tensor["name"] for tensor in found["outputs"]] == ["filtered", "cutoff_hz"]
