"""Starts ``tfs-lite`` in forks of a process that has imported the server already, which saves seconds for each start.

A test process asks with one message: the arguments, the environment and the directory of a child as JSON, and with it
the descriptors of the child's output and of a pipe. The child says its process id on the pipe, and at its end its
monitor says its exit code there. Both are 32-bit integers, signed, in the machine's byte order.

    tests -- socket --> fork server -- fork --> monitor -- fork --> tfs-lite serve ...
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

NUMBER = struct.Struct("=i")
LONGEST_REQUEST = 1 << 20
FATES_AT_IMPORT = ("OMP_", "MKL_", "KMP_", "MALLOC_", "LD_", "PYTHON", "CUDA", "TORCH")
"""How variables begin that are read before ``main`` runs. With others than its own the fork server cannot serve."""


class ForkedProcess:
    """One child, with the methods of ``subprocess.Popen`` that tests use. Used by one thread at a time."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self.returncode: int | None = None
        pid = self._read(None)
        if pid is None:
            raise RuntimeError("the fork server ended before it had started a process")
        self.pid = pid

    def poll(self) -> int | None:
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("tfs-lite", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._pipe], [], [], timeout)[0]:
            code = self._read(timeout)
            self.returncode = -signal.SIGKILL if code is None else code  # without a word: its monitor was killed
            os.close(self._pipe)
        return self.returncode

    def _read(self, timeout: float | None) -> int | None:
        data = os.read(self._pipe, NUMBER.size)
        return int(NUMBER.unpack(data)[0]) if len(data) == NUMBER.size else None


class ForkServer:
    """The client of one fork server, which it starts, and which ends with this process."""

    def __init__(self, python: str) -> None:
        self._environment = dict(os.environ)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [python, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
            )

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork would be what a new process is; not where variables differ that are read too early."""
        names = {*environment, *self._environment}
        early = [name for name in names if name.startswith(FATES_AT_IMPORT)]
        return all(environment.get(name) == self._environment.get(name) for name in early)

    def start(self, argv: Sequence[str], output: int, directory: str, environment: Mapping[str, str]) -> ForkedProcess:
        """Runs ``tfs-lite`` with these arguments; both of its outputs are written to the descriptor ``output``."""
        reader, writer = os.pipe()
        try:
            request = json.dumps({"argv": list(argv), "directory": directory, "environment": dict(environment)})
            socket.send_fds(self._socket, [request.encode()], [output, writer])
        finally:
            os.close(writer)
        return ForkedProcess(reader)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_servers: dict[str, ForkServer] = {}


def fork_server_of(program: str) -> ForkServer | None:
    """The fork server of this process for the ``tfs-lite`` of an environment; ``None`` if it has no Python beside."""
    python = str(Path(program).with_name("python"))
    if python not in _servers:
        if not os.access(python, os.X_OK):
            return None
        _servers[python] = ForkServer(python)
        atexit.register(_servers[python].close)
    return _servers[python]


def main() -> None:
    """Serves until the other end of the socket is closed. A child returns from here with its exit code."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    import torch.export  # noqa: F401

    import tfs_lite.cli.serve
    import tfs_lite.server.server  # noqa: F401

    with contextlib.suppress(ImportError):  # for language models, if the extra is there
        from transformers import LlamaForCausalLM  # noqa: F401
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # monitors need not be waited for
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, 2)
        if not data:
            return
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _monitor(json.loads(data), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _monitor(request: dict[str, object], output: int, pipe: int) -> None:
    """Forks the child and returns in it only."""
    pid = os.fork()
    if pid == 0:
        _run(request, output, pipe)
    os.close(output)
    _, status = os.waitpid(pid, 0)
    os.write(pipe, NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _run(request: dict[str, object], output: int, pipe: int) -> NoReturn:
    from tfs_lite.cli.main import main as run

    os.setsid()
    os.write(pipe, NUMBER.pack(os.getpid()))
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(pipe)
    os.close(output)
    argv, environment = request["argv"], request["environment"]
    assert isinstance(argv, list)
    assert isinstance(environment, dict)
    os.chdir(str(request["directory"]))
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = ["tfs-lite", *argv]
    sys.exit(run(argv))


if __name__ == "__main__":
    main()
