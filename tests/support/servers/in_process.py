"""A whole server in the test's own process, with its clients: real models, real gRPC and HTTP on loopback.

    with serving(root, model_name="m", model_base_path=str(root / "m")) as served:
        assert served.version() == 1

Models are the tagged ones of ``testing.models``. Waits are short, so that a test takes a fraction of a second; when the
block ends the server is stopped, and it is checked that none of its threads is left.
"""

from __future__ import annotations

import contextlib
import gc
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.support.servers.process import wait_until
from tfs_lite.client import Client, Prediction
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.servable import VersionState, VersionStatus
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.server import Server

ROW = np.array([[1.0, 2.0, 3.0]], np.float32)
QUICK = {"version_quiet_period_seconds": 0.0, "file_system_poll_wait_seconds": 0.05, "drain_timeout_seconds": 20.0}
TIMEOUT = 30.0


class ServerFixture:
    """A started server and a gRPC client of it. ``root`` is the directory of its models. One thread."""

    def __init__(self, server: Server, root: Path) -> None:
        self.server = server
        self.root = root
        self.target = f"127.0.0.1:{server.port}"
        self.url = f"http://127.0.0.1:{server.rest_api_port}"
        self.client = Client(self.target, timeout=TIMEOUT)

    def predict(self, model: str = "m", **rest: Any) -> Prediction:
        return self.client.predict(model, {"x": ROW}, **rest)

    def version(self, model: str = "m", **rest: Any) -> int:
        """Which version answers, after checking that the numbers are that version's."""
        answer = self.predict(model, **rest)
        np.testing.assert_array_equal(answer.outputs["y"], ROW + np.float32(answer.version))
        return answer.version

    def status(self, model: str = "m") -> dict[int, VersionStatus]:
        """By version; empty for a model without any."""
        try:
            return {status.version: status for status in self.client.status(model)}
        except ServingError as error:
            if error.code is StatusCode.NOT_FOUND:
                return {}
            raise

    def states(self, model: str = "m") -> dict[int, VersionState]:
        return {version: status.state for version, status in self.status(model).items()}

    def problem(self, model: str = "m") -> str:
        """Why the model has nothing to offer."""
        return self.server.core.states.report(model).problem.message

    def wait_states(self, expected: dict[int, VersionState], model: str = "m") -> None:
        wait_until(lambda: self.states(model) == expected, f"{model} is {expected}", TIMEOUT)

    def reload(self, *models: str) -> None:
        """Sends a config of these entries; see :func:`entry`."""
        self.client.reload(parse_model_server_config(config_text(self.root, *models), "reload"))


def entry(name: str, rest: str = "", path: str = "") -> str:
    """One model of a config, in the directory of its name unless ``path`` says otherwise. ``ROOT`` is the root."""
    return f'config {{ name: "{name}" base_path: "{path or f"ROOT/{name}"}" {rest} }}'


def config_text(root: Path, *models: str) -> str:
    return "model_config_list { %s }" % " ".join(models).replace("ROOT", str(root))  # noqa: UP031 - braces


@contextlib.contextmanager
def serving(root: Path, *, ready: bool = True, **fields: Any) -> Iterator[ServerFixture]:
    """``fields`` are those of ``ServerOptions``. Waits until the server is ready unless told otherwise."""
    before = set(threading.enumerate())
    server = Server(**{**QUICK, **fields}).start()
    served = ServerFixture(server, root)
    try:
        if ready:
            server.wait_ready(TIMEOUT)
        yield served
    finally:
        served.client.close()
        server.stop()
    wait_until(lambda: not _new_threads(before), f"no thread is left of {_new_threads(before)}", TIMEOUT)


def api_description() -> bytes:
    """The OpenAPI document of a server with default flags."""
    with tempfile.TemporaryDirectory() as root:
        options: dict[str, Any] = {
            **QUICK,
            "model_repository": root,
            "model_control_mode": "explicit",
            "rest_api_port": 0,
            "port": 0,
        }
        with Server(**options) as server:
            url = f"http://127.0.0.1:{server.rest_api_port}/openapi.json"
            return httpx.get(url).content


def _new_threads(before: set[threading.Thread]) -> list[str]:
    """Collects garbage while there are any: the thread of gRPC's library ends with the library's server object, and the
    error of a call that ended after the server's own collection may still refer to that."""
    found = [thread for thread in threading.enumerate() if thread not in before]
    if found:
        gc.collect()
    return [thread.name for thread in found if thread.is_alive()]
