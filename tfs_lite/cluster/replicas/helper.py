"""The server's side of the cluster: an engine whose work is done by a helper, a process that is started again.

    Reconciler -> HelperEngine -- messages --> helper (``helper_program``) --> Ray

No server is ever a driver of Ray. While the helper is away nothing can be placed or listed; replicas and requests go
on, because their connections are the server's own.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfs_lite.cluster.replicas.connection import boot_id
from tfs_lite.cluster.replicas.engine import (
    Changed,
    ClusterEngine,
    ClusterNode,
    EngineEvent,
    PlacedReplica,
    ReplicaEnded,
    Superseded,
    Unreachable,
    Watchers,
    Wish,
)
from tfs_lite.cluster.replicas.helper_messages import MessageStream, plain_wish, read_node, read_replica
from tfs_lite.cluster.replicas.registrar import LEASE_SECONDS, Leader
from tfs_lite.config.replicas import ClusterOptions
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.workers.channel import ConnectionClosed, ProtocolError
from tfs_lite.workers.fork_server import IGNORED
from tfs_lite.workers.supervisor import Backoff

CONNECT_SECONDS = 30.0
CALL_SECONDS = 10.0
START_SECONDS = 60.0
"""A helper that has not reached the cluster after so long is killed, and the next one tries."""
SILENT_SECONDS = 60.0
"""So is one that has answered nothing for so long although it was asked."""
END_SECONDS = 5.0
"""How long the helper may take to end by itself."""
RELEASE_SECONDS = 2.0
PROBE_SECONDS = 5.0
_ROOT = Path(__file__).parents[3]
"""The directory that ``tfs_lite`` is imported from: nodes that have it at the same path need no installation of their
own."""
_LEAD = 0
"""The number of the call that a helper is told first."""
logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Call:
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    failure: ServingError | None = None


class HelperEngine(ClusterEngine):
    """One server's engine, from :meth:`connect` to :meth:`close`. Threads: any."""

    def __init__(
        self, options: ClusterOptions, settings: Mapping[str, object], lease_seconds: float, call_seconds: float
    ) -> None:
        """Use :meth:`connect`."""
        self._options, self._settings = options, settings
        self._lease_seconds, self._call_seconds = lease_seconds, call_seconds
        self._watchers = Watchers()
        self._changed = threading.Condition()  # guards what follows
        self._leader = Leader(secrets.token_hex(16), "", 0, boot_id())
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: MessageStream | None = None
        self._heard = 0.0
        self._is_up = False
        self._is_silent = False
        self._up_since = 0.0
        self._trouble = "wrong or missing token? No answer"
        self._has_failed = False  # the last helper has said why it ends
        self._refusal: ServingError | None = None
        self._starts = 0
        self._is_closed = False
        self._calls: dict[int, _Call] = {}
        self._numbers = itertools.count(_LEAD + 1)
        self._thread = threading.Thread(target=self._keep_helper, name="tfs-cluster", daemon=True)

    @classmethod
    def connect(
        cls,
        options: ClusterOptions,
        replica_settings: Mapping[str, object] | None = None,
        *,
        lease_seconds: float = LEASE_SECONDS,
        call_seconds: float = CALL_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> HelperEngine:
        """Reaches the cluster and takes the lead of its name.

        ``replica_settings`` are further arguments of :class:`~tfs_lite.cluster.replicas.replica.Replica`, plain data.
        ``lease_seconds``: after so long without a word of this server, another one may lead. ``call_seconds``: how long
        a call of the engine may take.

        UNAVAILABLE if the cluster cannot be reached within ``connect_seconds``. FAILED_PRECONDITION if Ray is not
        installed, or has another version than the cluster, or Python has, or if another server leads.
        """
        engine = cls(options, replica_settings or {}, lease_seconds, call_seconds)
        engine._thread.start()
        with engine._changed:
            engine._changed.wait_for(lambda: engine._is_up or engine._refusal is not None, connect_seconds)
            if engine._is_up:
                return engine
            failure = engine._refusal or engine._unreachable(f"{engine._trouble} for {connect_seconds:g} s")
        engine.close()
        raise failure

    @property
    def epoch(self) -> int:
        return self._leader.epoch

    @property
    def secret(self) -> bytes:
        """The secret by which replicas and near ends prove themselves."""
        return self._leader.secret

    @property
    def pid(self) -> int | None:
        """The helper's process id; None while there is none."""
        with self._changed:
            return self._process.pid if self._process else None

    @property
    def is_up(self) -> bool:
        """Whether there is a helper that has reached the cluster, and the cluster's head answers it."""
        with self._changed:
            return self._is_up and not self._is_silent

    @property
    def restarts(self) -> int:
        """How many times the helper was started again."""
        with self._changed:
            return max(self._starts - 1, 0)

    # The contract.

    def nodes(self) -> Sequence[ClusterNode]:
        return [read_node(raw) for raw in self._ask("nodes")]

    def list(self) -> Sequence[PlacedReplica]:
        return [read_replica(raw) for raw in self._ask("list")]

    def place(self, wish: Wish) -> str:
        return str(self._ask("place", plain_wish(wish)))

    def end(self, id: str) -> None:
        self._ask("end", id)

    def watch(self, on_event: Callable[[EngineEvent], None]) -> Callable[[], None]:
        return self._watchers.add(on_event)

    def close(self) -> None:
        """Gives the lead back and ends the helper; replicas stay. May be called again."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            is_up, stream = self._is_up, self._stream
            self._changed.notify_all()
        if is_up:
            try:
                self._ask("release", seconds=RELEASE_SECONDS)
            except ServingError:
                pass  # the port is closed in a moment, which says the same
        if stream is not None:
            stream.shut_down()
        self._thread.join()
        if self._listener is not None:
            self._listener.close()

    # Calls.

    def _ask(self, what: str, argument: object = None, seconds: float | None = None) -> Any:
        seconds = self._call_seconds if seconds is None else seconds
        call = _Call()
        with self._changed:
            stream, number, process = self._stream, next(self._numbers), self._process
            if stream is None or process is None or not self._is_up:
                raise self._unreachable(self._trouble)
            if not self._calls:
                self._heard = time.monotonic()
            self._calls[number] = call
        try:
            stream.send(number, what, seconds, argument)
        except ConnectionClosed:
            pass  # the thread that receives is about to answer
        if not call.done.wait(seconds):
            with self._changed:
                self._calls.pop(number, None)
                silent = time.monotonic() - self._heard
            if silent > SILENT_SECONDS:
                process.kill()
            raise self._unreachable(f"no answer within {seconds:g} s")
        if call.failure is not None:
            raise call.failure
        return call.result

    def _unreachable(self, cause: str) -> ServingError:
        message = f"the cluster at {self._options.address} cannot be reached: {cause}"
        return ServingError(StatusCode.UNAVAILABLE, message)

    def _finish(self, number: int, result: object = None, failure: ServingError | None = None) -> None:
        with self._changed:
            call = self._calls.pop(number, None)
        if call is not None:
            call.result, call.failure = result, failure
            call.done.set()

    # The thread.

    def _keep_helper(self) -> None:
        """Keeps a helper until the engine is closed: starts one, does what it says, and waits before the next one."""
        backoff = Backoff()
        while True:
            with self._changed:
                if self._is_closed:
                    return
                self._has_failed = False
            cause = self._run_helper()
            with self._changed:
                was_up, self._is_up = self._is_up, False
                ran_for = time.monotonic() - self._up_since if was_up else 0.0
                if not self._has_failed:
                    self._trouble = cause
                calls, self._calls = self._calls, {}
            for call in calls.values():
                call.failure = self._unreachable(cause)
                call.done.set()
            if was_up and not self._is_closed:
                logger.error("the cluster cannot be reached: %s after %.0f s; it is started again", cause, ran_for)
                self._tell(Unreachable(cause))
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, backoff.next(ran_for))

    def _run_helper(self) -> str:
        """Starts one and receives its messages until it ends; why it has. Starts none if nothing listens at the
        cluster's address, which Ray would take 20 seconds not to say."""
        if cause := _try_address(self._options.address):
            return cause
        ours, theirs = socket.socketpair()
        stream = MessageStream(ours)
        try:
            with theirs:
                process = _start(theirs, self._options.address)
        except OSError as error:
            stream.close()
            return f"the system refuses a process ({os.strerror(error.errno or 0)})"
        with self._changed:
            self._process, self._stream = process, stream
            self._starts += 1
            if self._is_closed:
                stream.shut_down()
        late = threading.Timer(START_SECONDS, self._give_up, [process])
        late.daemon = True
        late.start()
        garbage = ""
        try:
            stream.send("begin", self._begin())
            while True:
                message = stream.receive()
                with self._changed:
                    self._heard = time.monotonic()
                self._handle(stream, *message)
        except ConnectionClosed:
            pass
        except (ProtocolError, TypeError, ValueError, KeyError) as error:
            logger.exception("the cluster's helper sent what cannot be understood")
            garbage = f"its helper sent garbage ({error})"
        late.cancel()
        end = _end(process, kill=bool(garbage) or not self._is_up)
        with self._changed:
            self._process = self._stream = None
        stream.close()
        return garbage or f"its helper has ended ({end})"

    def _give_up(self, process: subprocess.Popen[bytes]) -> None:
        """Kills a helper that has not reached the cluster."""
        with self._changed:
            is_late = self._process is process and not self._is_up
        if is_late:
            process.kill()

    def _begin(self) -> dict[str, object]:
        options = self._options
        return {
            "path": sys.path,
            "log_level": logging.getLogger().getEffectiveLevel(),
            "address": options.address,
            "name": options.name,
            "host": options.host,
            "ports": options.port_range,
            "orphan_seconds": options.orphan_seconds,
            "replica_settings": dict(self._settings),
            "lease_seconds": self._lease_seconds,
        }

    def _handle(self, stream: MessageStream, what: str, *rest: Any) -> None:
        if what == "up":
            self._lead(stream, *rest)
        elif what == "failed":
            self._note_failure(ServingError(StatusCode(rest[0]), rest[1]))
        elif what in ("answer", "error", "superseded"):
            self._handle_answer(what, *rest)
        elif what == "changed":
            self._tell(Changed())
        elif what == "ended":
            self._tell(ReplicaEnded(*rest))
        else:
            self._tell(Unreachable(*rest))

    def _handle_answer(self, what: str, number: int, *rest: Any) -> None:
        failure: ServingError | None = None
        if what == "error":
            unavailable = rest[0] == StatusCode.UNAVAILABLE
            failure = self._unreachable(rest[1]) if unavailable else ServingError(StatusCode(rest[0]), rest[1])
        elif what == "superseded":
            failure = Superseded(rest[0])
        if number != _LEAD:
            self._finish(number, rest[0], failure)
        elif failure is not None:
            self._note_failure(failure)
        else:
            self._come_up(*rest[0])

    def _lead(self, stream: MessageStream, host: str) -> None:
        """Has the helper take the lead for this server, which from its first time on listens on one port."""
        if self._listener is None:
            host = self._options.host or host
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                self._listener = socket.create_server((host, self._options.port), family=family)
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                self._note_failure(failed_precondition(f"cannot listen on {host}:{self._options.port}: {reason}"))
                return
            self._leader = replace(self._leader, host=host, port=self._listener.getsockname()[1])
        stream.send(_LEAD, "lead", START_SECONDS, self._leader.plain)

    def _come_up(self, epoch: int, secret: bytes) -> None:
        with self._changed:
            self._leader = replace(self._leader, epoch=epoch, secret=secret)
            self._is_up, self._up_since, self._trouble = True, time.monotonic(), ""
            self._changed.notify_all()
        logger.info("the cluster at %s is reached, epoch %d", self._options.address, epoch)
        self._tell(Changed())

    def _note_failure(self, failure: ServingError) -> None:
        """The helper cannot reach the cluster, or this server may not lead. What another attempt may mend is tried
        again."""
        with self._changed:
            self._trouble, self._has_failed = failure.status.message, True
            if failure.code is not StatusCode.UNAVAILABLE:
                self._refusal = failure
            stream = self._stream
            self._changed.notify_all()
        logger.warning("%s", failure)
        if stream is not None:
            stream.shut_down()

    def _tell(self, event: EngineEvent) -> None:
        with self._changed:
            self._is_silent = isinstance(event, Unreachable)
        self._watchers.tell(event)


def _try_address(address: str) -> str:
    """Why nothing listens there; empty if something does, or the address does not say."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host:
            socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
    except OSError as error:
        return error.strerror or "no answer"
    return ""


def _start(sock: socket.socket, address: str) -> subprocess.Popen[bytes]:
    """A new program, which is to reach the cluster at ``address``. The signals that a terminal sends to all processes
    of a group stay blocked in it: ignoring them would not do, because Ray has handlers of its own."""
    command = [sys.executable, "-m", "tfs_lite.cluster.replicas.helper_program", str(sock.fileno())]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[sock.fileno()], cwd=_ROOT, env=_environment(address)
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment(address: str) -> dict[str, str]:
    """The environment variables of the helper. A loopback address stays one only if Ray is told to leave it alone, by a
    variable whose name speaks of something else; else Ray puts the machine's address in its place."""
    told = {"RAY_BACKEND_LOG_LEVEL": "error", **os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    if address.startswith(("127.", "localhost:", "ray://127.", "ray://localhost:")):
        told.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    return told


def _end(process: subprocess.Popen[bytes], kill: bool) -> str:
    """Waits for the end of the process; its cause."""
    if kill:
        process.kill()
    try:
        code = process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "it closed its connection"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
