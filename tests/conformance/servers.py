"""Server processes, and the models that they serve.

``TFS_LITE_BIN`` names the server to test; without it, the ``.venv`` of this checkout. ``TFS_LITE_PYTHON`` names the
Python that makes the models; without it, the one beside the server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

from tests.support.servers.process import ServerProcess

REPO = Path(__file__).resolve().parents[2]
SERVER = Path(os.environ.get("TFS_LITE_BIN", REPO / ".venv/bin/tfs-lite"))
PYTHON = Path(os.environ.get("TFS_LITE_PYTHON", SERVER.with_name("python")))
PATIENCE = 60.0


def make_models(script: str, root: Path) -> Path:
    """Runs a script of this folder in the server's environment, which has torch; returns ``root``, where it writes."""
    subprocess.run([PYTHON, Path(__file__).with_name(script), root], check=True, cwd=REPO, stdout=sys.stderr)
    return root


def new_server(*flags: str) -> ServerProcess:
    """A server that has not been started; it tries once to load a model."""
    return ServerProcess("--max_num_load_retries=0", *flags, command=[str(SERVER)])


def running(process: ServerProcess) -> Iterator[ServerProcess]:
    """For fixtures: the server while it runs. It has to end with exit code 0."""
    with process:
        yield process
    assert process.exit_code == 0


def post(address: str, path: str, body: object, **how: Any) -> requests.Response:
    """Bytes are sent as they are, everything else as JSON; ``how``: headers and the like."""
    form = {"data": body} if isinstance(body, bytes) else {"json": body}
    return requests.post(f"http://{address}{path}", **form, timeout=PATIENCE, **how)
