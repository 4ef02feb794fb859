"""The server's side of the fork server, which is started again if it dies.

It reports the end of a model's process; ``process`` starts the model again.

    supervisor = Supervisor(["package.module"])     # what children will need, imported once
    worker = supervisor.spawn(label, sock)          # a process that talks over the other end of sock
    worker.kill(); worker.ended.wait(...)
    supervisor.close()                              # nothing is left

Only the fork server, their parent, kills processes, under a number that the supervisor has given them: a process id
might have become another process's meanwhile. :class:`Backoff` says how long to wait before a process that has died is
started again.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import ormsgpack

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.core.threads import start_all
from tfs_lite.workers.fork_server import MAX_REQUEST
from tfs_lite.workers.launch import is_forked, launch

END_SECONDS = 10.0
OUTPUT_BYTES = 1 << 16
OUTPUT_SECONDS = 1.0
FORK_SERVER_DIED = "the process that starts models ended"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The fork server with this process id was asked for a process at ``since``, in seconds of ``time.monotonic``, and
    has not answered."""

    pid: int
    since: float


class Worker:
    """One process. ``label`` names its model in messages. Threads: any. ``pid`` is None until ``started`` is set, and
    afterwards if it could not be started; ``cause`` says why it has ended once ``ended`` is set."""

    def __init__(self, label: str, kill: Callable[[], None]) -> None:
        self.label = label
        self.asked = time.monotonic()
        self.pid: int | None = None
        self.cause = ""
        self.started = threading.Event()
        self.ended = threading.Event()
        self._kill = kill
        self._lock = threading.Lock()  # guards _calls against the end
        self._calls: list[Callable[[], None]] = []

    def kill(self) -> None:
        """Has the process and those it has started killed; ``ended`` is set when that is done. May be repeated."""
        if not self.ended.is_set():
            self._kill()

    def on_end(self, call: Callable[[], None]) -> None:
        """Calls ``call`` once when the process has ended, on the supervisor's thread; at once if it has ended. The call
        must be short and must not raise."""
        with self._lock:
            if not self.ended.is_set():
                self._calls.append(call)
                return
        call()

    def report_start(self, pid: int) -> None:
        """Called by the supervisor when the process has started."""
        self.pid = pid
        self.started.set()

    def report_end(self, cause: str) -> None:
        """Called by the supervisor when the process has ended."""
        with self._lock:
            if self.ended.is_set():
                return
            self.cause = cause
            self.ended.set()
            self.started.set()
            calls, self._calls = self._calls, []
        for call in calls:
            try:
                call()
            except Exception:
                logger.exception("%s: one of those who wait for the end of its process was not told", self.label)


class Supervisor:
    """Starts processes by a fork server that has imported the modules ``preload``: by the fork of this process if there
    is one, else by one that is started when it is first needed. With ``as_program`` it is always a program of its own,
    which has imported nothing else. Threads: any may call anything."""

    def __init__(self, preload: Sequence[str] = (), as_program: bool = False) -> None:
        self._preload = tuple(preload)
        self._as_program = as_program
        self._lock = threading.Lock()  # guards the fields below; held while the fork server is started, which is short
        self._fork_server = _ForkServerProcess(self._preload) if is_forked() and not as_program else None
        self._used = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The fork server's process id; None while there is none."""
        with self._lock:
            return self._fork_server.pid if self._fork_server else None

    def spawn(self, label: str, sock: socket.socket, preload: Sequence[str] = ()) -> Worker:
        """Starts a process that talks over ``sock``; the caller closes its own copy. The fork server first imports the
        modules ``preload`` that it has not imported yet, and all later processes have them. Returns before the process
        runs: a failure shows as its end. UNAVAILABLE once closed; RESOURCE_EXHAUSTED if no fork server can be
        started."""
        with self._lock:
            if self._closed:
                raise ServingError(StatusCode.UNAVAILABLE, f"{label} cannot be started: the server is shutting down")
            if self._fork_server is None or self._fork_server.gone.is_set():
                self._fork_server = self._start(label)
            fork_server, self._used = self._fork_server, True
        return fork_server.spawn(label, sock, preload)

    def unanswered(self) -> Mapping[str, Unanswered]:
        """The labels of the processes that were asked for and that the fork server has neither started nor refused; the
        oldest of each label."""
        with self._lock:
            fork_server = self._fork_server
        return {} if fork_server is None else fork_server.unanswered()

    def end_if_unused(self) -> None:
        """Ends the fork server if it was never asked for a process. Another one is started when it is needed."""
        with self._lock:
            if self._used:
                return
            fork_server, self._fork_server = self._fork_server, None
        if fork_server is not None:
            fork_server.close()

    def close(self) -> None:
        """Ends the fork server and with it all processes. May be called again."""
        with self._lock:
            self._closed = True
            fork_server, self._fork_server = self._fork_server, None
        if fork_server is not None:
            fork_server.close()

    def _start(self, label: str) -> _ForkServerProcess:
        try:
            return _ForkServerProcess(self._preload, self._as_program)
        except OSError as error:
            raise ServingError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{label} cannot be started: the system refuses a process ({os.strerror(error.errno or 0)})",
            ) from None


class _ForkServerProcess:
    """One process of the fork server, and the thread that receives its messages."""

    def __init__(self, preload: Sequence[str], as_program: bool = False) -> None:
        self._process, self._sock, self._output = launch(preload, as_program)
        self.pid = self._process.pid
        self.gone = threading.Event()
        self._ending = False
        self._sending = threading.Lock()  # guards closing _sock, and what is sent
        self._lock = threading.Lock()  # guards _workers and _number
        self._workers: dict[int, Worker] = {}
        self._number = 0
        self._thread = threading.Thread(target=self._receive_messages, name="tfs-fork-server", daemon=True)
        self._passing_on = threading.Thread(target=self._pass_on_output, name="tfs-worker-output", daemon=True)
        try:
            start_all([self._thread, self._passing_on])
        except ServingError:
            self._process.kill()
            self._process.wait()
            self._sock.close()
            os.close(self._output)
            raise

    def spawn(self, label: str, sock: socket.socket, preload: Sequence[str]) -> Worker:
        with self._lock:
            self._number += 1
            number = self._number
            worker = Worker(label, lambda: self._send(["kill", number]))
            if not self.gone.is_set():
                self._workers[number] = worker
        self._send(["fork", number, list(preload)], [sock.fileno()])
        if self.gone.is_set():
            worker.report_end(FORK_SERVER_DIED)
        return worker

    def unanswered(self) -> dict[str, Unanswered]:
        with self._lock:
            waiting = [worker for worker in self._workers.values() if not worker.started.is_set()]
        found: dict[str, Unanswered] = {}
        for worker in waiting:  # in the order in which they were asked for
            found.setdefault(worker.label, Unanswered(self.pid, worker.asked))
        return found

    def close(self) -> None:
        """A fork server without children need not finish its imports: it is killed."""
        self._ending = True
        with self._lock:
            childless = not any(worker.started.is_set() for worker in self._workers.values())
        with self._sending:
            if not self.gone.is_set():
                if childless:
                    self._process.kill()
                self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _send(self, message: list[object], descriptors: Sequence[int] = ()) -> None:
        """Sends nothing once the fork server has ended: its children have ended as well."""
        with self._sending:
            if self.gone.is_set():
                return
            try:
                socket.send_fds(self._sock, [ormsgpack.packb(message)], list(descriptors))
            except OSError:
                pass

    def _receive_messages(self) -> None:
        """The thread: runs until the fork server closes its end."""
        try:
            while message := self._sock.recv(MAX_REQUEST):
                self._handle(*ormsgpack.unpackb(message))
        except OSError:
            pass
        self._clean_up()

    def _pass_on_output(self) -> None:
        """The thread: what the processes write goes to this one's standard error, until the last of them has ended."""
        with open(self._output, "rb", buffering=0) as output:
            while data := output.read(OUTPUT_BYTES):
                try:
                    sys.stderr.write(data.decode(errors="replace"))
                    sys.stderr.flush()
                except Exception:
                    pass  # nobody takes it

    def _handle(self, what: str, number: int, detail: object) -> None:
        with self._lock:
            worker = self._workers[number] if what == "forked" else self._workers.pop(number)
        if what == "forked":
            worker.report_start(cast(int, detail))
        elif what == "ended":
            worker.report_end(_cause(cast(int, detail)))
        else:
            worker.report_end(f"it could not be started: {detail}")

    def _clean_up(self) -> None:
        if not self._ending:
            logger.error("%s; it is started again when it is needed", FORK_SERVER_DIED)
            self._process.kill()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._passing_on.join(OUTPUT_SECONDS)  # a program that a model has started may hold the pipe for longer
        with self._sending:
            self.gone.set()
            self._sock.close()
        with self._lock:
            workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.report_end(FORK_SERVER_DIED)


def _cause(status: int) -> str:
    """The wait status as text."""
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.WEXITSTATUS(status)}"


@dataclass(slots=True)
class Backoff:
    """Delays that double from ``first`` to ``most`` seconds; after a process that has run for ``well`` seconds they
    begin again. Not thread-safe: its owner has a lock."""

    first: float = 0.1
    most: float = 30.0
    well: float = 60.0
    failures: int = 0

    def next(self, ran_for: float) -> float:
        """Seconds to wait after the death of a process that had run for ``ran_for`` seconds (0: it never ran)."""
        if ran_for >= self.well:
            self.failures = 0
        delay = min(self.first * 2.0 ** min(self.failures, 64), self.most)
        self.failures += 1
        return delay
