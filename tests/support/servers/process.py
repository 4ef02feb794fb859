"""Runs ``tfs-lite serve`` as a real process, for tests that look at the server from outside.

    with ServerProcess("--model_repository=models") as server:
        client = tfs_lite.Client(server.target)
        ...
    assert server.exit_code == 0

Each server gets free loopback ports and a session of its own, so that :meth:`ServerProcess.leftovers` can say whether
anything of it outlived it. Unless a test names the command, it is a fork of a process that has imported everything
(:mod:`tests.support.servers.fork_server`). Nothing here sleeps for a fixed time: :func:`wait_until` polls a state up
to a bound. Standard library only; it works in an environment that has no torch.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.support.servers.fork_server import ForkedProcess, fork_server_of

T = TypeVar("T")

FIRST_PORT, PORT_SHARES, PORTS_OF_ONE = 15000, 34, 500
"""The ports of tests are those up to 32000; each process takes a share."""
READY_TIMEOUT = 90.0
"""Seconds; generous, because a test machine may be importing torch several times at once."""


def wait_until(predicate: Callable[[], T | None], what: str, timeout: float = 60.0, interval: float = 0.02) -> T:
    """Calls ``predicate`` until it is true and returns that value; TimeoutError names ``what`` and the last value."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not within {timeout:g} s: {what}; last seen: {value!r}")
        pause.wait(interval)


def free_ports(count: int) -> tuple[int, ...]:
    """Free loopback ports, below the range from which the kernel takes ports for outgoing calls. Processes that ask at
    the same time mostly choose among different ones: a port is free until its server listens."""
    chooser = random.SystemRandom()
    first = FIRST_PORT + os.getpid() % PORT_SHARES * PORTS_OF_ONE
    found: dict[int, socket.socket] = {}
    try:
        while len(found) < count:
            port = chooser.randrange(first, first + PORTS_OF_ONE)
            probe = socket.socket()
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                probe.close()
                continue
            found[port] = probe
        return tuple(found)
    finally:
        for probe in found.values():
            probe.close()


_flags_of_all: dict[str, str] = {}


def set_default_flags(**flags: str) -> None:
    """Every server made from now on gets these, unless its own flags say something else."""
    _flags_of_all.update(flags)


def _with_defaults(flags: Sequence[str]) -> list[str]:
    given = {flag.lstrip("-").partition("=")[0].replace("-", "_") for flag in flags}
    return [*(f"--{name}={value}" for name, value in _flags_of_all.items() if name not in given), *flags]


def default_command() -> list[str]:
    """``TFS_LITE_BIN`` when set, else the ``tfs-lite`` beside this interpreter."""
    return [os.environ.get("TFS_LITE_BIN") or str(Path(sys.executable).with_name("tfs-lite"))]


class ServerProcess:
    """One ``tfs-lite serve`` with the given flags. Used by one thread, except ``log`` and ``get``.

    Leaving the ``with`` block ends the process: by SIGTERM when it is still running, by SIGKILL when it has not ended
    within ``stop_timeout`` seconds. ``exit_code`` is None while it runs.
    """

    def __init__(
        self,
        *flags: str,
        command: Sequence[str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stop_timeout: float = 60.0,
    ) -> None:
        self.grpc_port, self.http_port = free_ports(2)
        self._arguments = [
            *(command or default_command()),
            "serve",
            f"--port={self.grpc_port}",
            f"--rest_api_port={self.http_port}",
            *_with_defaults(flags),
        ]
        self._directory = directory
        self._env = {**os.environ, **(env or {})}
        self._stop_timeout = stop_timeout
        self._output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - lives as long as the process
        self._last_log = ""
        self._forked = command is None
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    @property
    def target(self) -> str:
        """The gRPC address."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def process(self) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def start(self) -> ServerProcess:
        """Starts the process and returns at once."""
        program, *arguments = self._arguments
        forks = fork_server_of(program) if self._forked else None
        if forks is not None and forks.can_start(self._env):
            directory = os.fspath(self._directory or Path.cwd())
            self._process = forks.start(arguments, self._output.fileno(), directory, self._env)
            return self
        self._process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            cwd=self._directory,
            env=self._env,
            start_new_session=True,
        )
        return self

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Returns once ``/readyz`` says 200. RuntimeError with the log when the process ends before that."""
        self.wait_status("/readyz", 200, timeout)

    def wait_status(self, path: str, expected: int, timeout: float = READY_TIMEOUT) -> None:
        """Returns once an HTTP GET of ``path`` answers ``expected``."""

        def answered() -> bool:
            if self.exit_code is not None:
                raise RuntimeError(f"the server ended with {self.exit_code} before {path} answered:\n{self.log()}")
            try:
                return self.get(path)[0] == expected
            except OSError:
                return False

        try:
            wait_until(answered, f"{path} answers {expected}", timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log()}") from None

    def get(self, path: str, timeout: float = 10.0, body: bytes | None = None) -> tuple[int, bytes]:
        """(status, body) of an HTTP GET, or of a POST of ``body``. OSError without an answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", body, timeout) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def log(self) -> str:
        """Everything it has written so far, standard output and error together."""
        if self._output.closed:
            return self._last_log
        descriptor = self._output.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def terminate(self) -> None:
        """Sends SIGTERM, to this process only."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = 60.0) -> int:
        """The exit code. TimeoutError with the log when it is still running after ``timeout`` seconds."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the server did not end within {timeout:g} s:\n{self.log()}") from None

    def leftovers(self) -> bool:
        """Whether any process of the server's session group is alive, itself included."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> int:
        """Ends it, kindly first, and returns the exit code (-9 when it had to be killed)."""
        if self.exit_code is None:
            self.terminate()
        try:
            return self.process.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self._close_log()

    def _close_log(self) -> None:
        self._last_log = self.log()
        self._output.close()

    def __enter__(self) -> ServerProcess:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.log())  # pytest shows it beside the failure
        self.stop()
