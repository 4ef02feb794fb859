"""The demo's server: a real ``tfs-lite serve`` process on loopback ports of its own."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tfs_lite.cli.flag_parser import ENVIRONMENT_PREFIX

_STOP_TIMEOUT = 60.0
_LOG_TAIL_BYTES = 2000
_PORTS = range(15000, 32000)
"""Below the kernel's ports for outgoing connections, so that no connection takes ours while the server starts."""


class DemoServer:
    """Starts with the ``with`` block. ``stop`` ends it gracefully; leaving the block ends it in any case."""

    def __init__(self, name: str, base: Path, log: Path) -> None:
        port, rest_port = _free_port(), _free_port()
        self.target = f"127.0.0.1:{port}"
        self._log = log
        self._command = [
            *(sys.executable, "-m", "tfs_lite.cli.main", "serve"),
            *(f"--port={port}", f"--rest_api_port={rest_port}"),
            *(f"--model_name={name}", f"--model_base_path={base}"),
            "--max_num_load_retries=0",
        ]

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return self._process.poll()

    def stop(self) -> int:
        """SIGTERM, then the exit code; -9 when it had to be killed."""
        if self.exit_code is None:
            self._process.terminate()
        try:
            return self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def last_log_line(self) -> str:
        """The last line of its log."""
        lines = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def __enter__(self) -> DemoServer:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _free_port() -> int:
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0 and _can_bind(port):
                return port
    raise OSError("no free port found on 127.0.0.1")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
