"""How the fork server comes into being: as a new program, or early, as a fork of the server itself.

A new program imports torch again, which takes seconds and 150 MB that it does not share with the server. Before a
server has started its first thread it can simply be forked, with everything that it has imported; later it cannot,
because only the thread that forks lives on in a fork. So the command line calls :func:`fork_early`, and the first
supervisor gets that process. All others get a new program.

What the fork server and the processes of models write to standard output and error comes back through a pipe, which the
server reads: whoever reads the server's own output, or does not, holds up no model.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn, Protocol

from tfs_lite.workers.fork_server import IGNORED, ForkServer, ignore_signals, import_shared


class ForkServerProcess(Protocol):
    """The process of a fork server, a child of this one."""

    pid: int

    def kill(self) -> None:
        """Kills the process; does nothing once ``wait`` has returned."""

    def wait(self, timeout: float | None = None) -> int:
        """Returns when the process has ended. Raises ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""


class Launched(NamedTuple):
    """A fork server, the socket for requests to it, and the descriptor where all output of it and its children arrives.
    All are the caller's."""

    process: ForkServerProcess
    requests: socket.socket
    output: int


_early: list[Launched] = []
"""The process that was forked early: at most one, from :func:`fork_early` to the first :func:`launch`."""


def fork_early(preload: Sequence[str]) -> None:
    """Imports ``preload`` and forks the fork server from this process, which has nothing open yet that others wait for
    the end of, and uses no GPU. Does nothing if the process has threads, or the system refuses another one."""
    if threading.active_count() > 1:
        return
    import_shared(preload)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, written = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        with theirs:
            pid = os.fork()
            if pid == 0:
                ours.close()
                os.close(output)
                _serve(theirs, written)
    except OSError:
        ours.close()
        os.close(output)
        return
    finally:
        os.close(written)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _early.append(Launched(_Fork(pid), ours, output))


def is_forked() -> bool:
    """Whether the next :func:`launch` returns the fork of this process."""
    return bool(_early)


def launch(preload: Sequence[str], as_program: bool = False) -> Launched:
    """A fork server that has imported ``preload`` or is about to; a new program, if ``as_program`` says so. Raises
    OSError."""
    if _early and not as_program:
        return _early.pop()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, written = os.pipe()
    try:
        with theirs:
            return Launched(_start_program(theirs.fileno(), preload, written), ours, output)
    except BaseException:
        ours.close()
        os.close(output)
        raise
    finally:
        os.close(written)


def _start_program(descriptor: int, preload: Sequence[str], output: int) -> subprocess.Popen[bytes]:
    """Blocks the signals that the fork server is going to ignore, until it does."""
    options = json.dumps({"preload": list(preload), "path": sys.path})
    command = [sys.executable, "-m", "tfs_lite.workers.fork_server", str(descriptor), options]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[descriptor])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(sock: socket.socket, output: int) -> NoReturn:
    """Serves in the forked process. Exit handlers are the server's, and do not run. Neither it nor a model has anything
    open that the server had: a model that wrote to the pipe of the server's signals would stop the server."""
    try:
        ignore_signals()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        _close_all_but(0, 1, 2, sock.fileno())
        ForkServer(sock).serve()
    finally:
        os._exit(0)


def _close_all_but(*kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # that of the list itself
                os.close(int(name))


class _Fork:
    """A process that was forked, with what :class:`ForkServerProcess` asks for. One thread at a time."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = os.pidfd_open(pid)
        self._code: int | None = None

    def kill(self) -> None:
        if self._code is None:
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("the fork server", timeout or 0.0)
            _, status = os.waitpid(self.pid, 0)
            self._code = os.waitstatus_to_exitcode(status)
            os.close(self._ended)
        return self._code
