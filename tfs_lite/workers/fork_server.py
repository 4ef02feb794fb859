"""The process that all processes of models are forked from; as a program, ``python -m`` this module ``FD OPTIONS``.

Importing torch costs seconds of CPU. This process has done it once; forking it makes a new process in milliseconds that
shares the memory of what was imported. It has one thread, runs no code of models and never touches a GPU, because
neither survives a fork. Its requests come over FD, a socket of the server, one msgpack message each:

    ["fork", number, modules] + a socket for the child    answer: ["forked", number, pid] or ["failed", number, reason]
    ["kill", number]                                      no answer
    (when a child has ended, for any reason)              ["ended", number, wait status]

When the server's end closes, for any reason, this process kills its children and ends; when it is killed itself, the
kernel kills them. A child is killed with the processes that it has started itself (its process group).
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import ormsgpack

from tfs_lite.workers.child import main as child_main
from tfs_lite.workers.child import name_process
from tfs_lite.workers.priorities import offer_memory_first

MAX_REQUEST = 1 << 12
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A terminal sends them to all processes of a group, but the server decides when a model ends."""
_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    ignore_signals()
    options = json.loads(arguments[1])
    sys.path[:] = options["path"]
    import_shared(options["preload"])
    ForkServer(socket.socket(fileno=int(arguments[0]))).serve()


def ignore_signals() -> None:
    """Ignores :data:`IGNORED`, which the caller of this process has blocked until now."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)


def import_shared(names: Sequence[str]) -> None:
    """Imports modules for the children to share. Frozen objects are not visited by their garbage collection, which
    would copy the memory that it visits. A module that cannot be imported is reported, and left out."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            traceback.print_exc()
    gc.collect()
    gc.freeze()


class ForkServer:
    """Forks and kills children for the server, and reports their ends."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._server.set_inheritable(False)
        self._pids: dict[int, int] = {}
        self._wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._pid = os.getpid()
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Returns when the server has closed its end."""
        name_process("tfs-lite-forks")
        try:
            while self._wait_and_handle():
                pass
        except OSError:
            pass
        for pid in self._pids.values():
            _kill(pid)
        for pid in self._pids.values():
            os.waitpid(pid, 0)

    def _wait_and_handle(self) -> bool:
        ready, _, _ = select.select([self._server, self._wakeup], [], [])
        if self._wakeup in ready:
            self._wakeup.recv(MAX_REQUEST)
            self._reap()
        return self._server not in ready or self._handle_request()

    def _handle_request(self) -> bool:
        request, descriptors, _, _ = socket.recv_fds(self._server, MAX_REQUEST, 1)
        if not request:
            return False
        what, number, *modules = cast(list[Any], ormsgpack.unpackb(request))
        if what == "fork":
            self._fork(number, descriptors[0], *modules)
        elif number in self._pids:
            _kill(self._pids[number])
        return True

    def _fork(self, number: int, descriptor: int, modules: Sequence[str]) -> None:
        if missing := [name for name in modules if name not in sys.modules]:
            import_shared(missing)
        try:
            pid = os.fork()
        except OSError as error:
            os.close(descriptor)
            self._send("failed", number, os.strerror(error.errno or 0))
            return
        if pid == 0:
            os.set_inheritable(descriptor, False)
            self._become_child(descriptor)
        os.close(descriptor)
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # the child has done so itself, and may have ended
        self._pids[number] = pid
        self._send("forked", number, pid)

    def _become_child(self, descriptor: int) -> None:
        """Serves as the child; never returns."""
        try:
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._pid:
                os._exit(1)
            os.setpgid(0, 0)
            offer_memory_first()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._server, self._wakeup, self._wakeup_writer):
                end.close()
            child_main(socket.socket(fileno=descriptor))
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Kills the process groups of the children that have ended, before their process ids can be used again."""
        for number, pid in list(self._pids.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                _kill(pid)
                _, status = os.waitpid(pid, 0)
                del self._pids[number]
                self._send("ended", number, status)

    def _send(self, *message: Any) -> None:
        self._server.send(ormsgpack.packb(message))


def _kill(pid: int) -> None:
    """Kills a child that was not reaped yet, and the process group that it leads, if it has one already."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
