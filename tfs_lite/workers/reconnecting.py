"""A model behind a connection that may be lost, and is then made again: what its callers see of that.

    batching servable -> ReconnectingModel (here) -> WorkerConnection -> process with the model

A lost connection is made again by a thread that exists as long as that takes: at once, then with growing delays.
Requests that were in the process get WorkerLost. Those that arrive during the first attempt wait for it where that is
short; a request that the lost process cannot have read is sent to the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from typing import Protocol

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.model import Model, Shapes, WorkerLost, WorkerStatus
from tfs_lite.core.signature import Signature, Tensor, find_signature
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, status_of
from tfs_lite.core.threads import start
from tfs_lite.workers.channel import ConnectionClosed, ProtocolError
from tfs_lite.workers.connection import Lane, RemoteModel, WorkerConnection
from tfs_lite.workers.request_channel import RequestChannel
from tfs_lite.workers.supervisor import Backoff
from tfs_lite.workers.wire import POSTPROCESS, PREPROCESS, RUN, Description

POLL_SECONDS = 0.05
"""How often ``give_up`` is checked."""
JOIN_SECONDS = 30.0
"""How long ``close`` waits for the thread that connects: it looks at the model's files, and their disk may hang."""
WAIT_SECONDS = 10.0
"""How long after the loss of a process requests wait for the next one; later ones are refused at once."""
MOVE_SECONDS = 1.0
"""The time between two attempts to connect elsewhere."""
logger = logging.getLogger(__name__)


class Connector(Protocol):
    """Makes connections to processes with the model open, one after the other."""

    def connect(self, lanes: tuple[Lane, ...], check: Callable[[Description], None]) -> WorkerConnection:
        """Blocks until the model is open there. Raises what the opening raised, or ``check`` when it got the model's
        description; WorkerLost if the process was lost meanwhile. A failure leaves nothing behind."""

    def give_up(self) -> None:
        """Ends a ``connect`` that is in progress, and all later ones, with an error. Any thread; may be repeated."""


@dataclass(frozen=True, slots=True)
class Words:
    """How messages speak of such a process. ``kind``: see WorkerStatus."""

    kind: str
    process: str
    started_again: str


class ReconnectingModel(Model):
    """A model behind a connection. The constructor opens it, and raises what the opening raises; with ``in_background``
    it returns at once, and ``opening`` tells what became of the first attempt. Until there is a description, which
    another instance of the same model may give (:meth:`expect`), the model must not be asked for anything.

    Threads: as :class:`~tfs_lite.core.model.Model`, with ``lanes`` threads inside ``run``. The process is not trusted:
    it is given up if it breaks the protocol. ``restarts`` counts how often the model was opened again after its process
    was lost, ``ongoing`` is how many requests were in the process when it answered last. Requests wait for a connection
    that is being made again within ``max_wait`` seconds.
    """

    def __init__(
        self,
        remote: RemoteModel,
        connector: Connector,
        words: Words,
        backoff: Backoff | None = None,
        lanes: int = 1,
        max_wait: float = 1.0,
        in_background: bool = False,
        on_worker: Callable[[str | None], None] = ignore,
    ) -> None:
        """``on_worker`` is told why a process was lost, and is told None when the model is open again; it is called on
        a thread of the model, outside its lock."""
        self._connector = connector
        self._words = words
        self._label = remote.label
        self._sandbox = None if remote.sandbox is None else remote.sandbox.status
        self._max_wait = max_wait
        self._on_worker = on_worker
        self.ongoing = 0
        self._changed = threading.Condition()  # guards what follows
        self._connection: WorkerConnection | None = None
        self._restarter: threading.Thread | None = None
        self._backoff = backoff or Backoff()
        self._delay = 0.0
        self._lost_at = 0.0
        self._failed_starts = 0
        self._cause = ""
        self._failure = ""
        self._retry_at: float | None = None
        self._restarts = 0
        self._closing = threading.Event()
        self._known: Description | None = None
        self._moves: Connector | None = None
        self._mover: threading.Thread | None = None
        self._lanes = _Lanes(tuple(Lane(remote) for _ in range(lanes)))
        self.opening: Future[Description] = Future()
        if in_background:
            self._delay = inf  # nobody waits for the first connection
            self._start_thread(None, 0.0)
            return
        try:
            connection = connector.connect(self._lanes.all, self._check_same)
        except BaseException:
            self._lanes.close()
            raise
        self._resume(connector, connection, None)

    @property
    def _description(self) -> Description:
        assert self._known is not None
        return self._known

    def expect(self, description: Description) -> None:
        """The description of another instance, which this one has to have, too. FAILED_PRECONDITION if it has another
        one already."""
        with self._changed:
            known, self._known = self._known, self._known or description
        if known is not None and known.signatures != description.signatures:
            raise self._differs()

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    @property
    def platform(self) -> str:
        return self._description.platform

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._description.signatures

    @property
    def has_item_steps(self) -> bool:
        return self._description.has_item_steps

    @property
    def concurrency(self) -> int:
        return len(self._lanes.all)

    @property
    def useful_threads(self) -> int:
        return len(self._lanes.all)

    def resident_bytes(self) -> int | None:
        """Bytes of the model's tensors, as its process said when it was first opened; None if unknown."""
        return self._description.resident_bytes

    def measured_bytes(self) -> Mapping[str, Mapping[str, int]]:
        """Bytes that the model holds of this machine, by device and kind; empty where that cannot be told."""
        return {}

    def another(self, device: str) -> None:
        """Returns None: nothing is shared with another process."""
        return

    @property
    def alive(self) -> bool:
        """Whether there is a process that can be called."""
        with self._changed:
            return self._connection is not None

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        with self._changed:
            return self._connection.pid if self._connection else None

    @property
    def restarts(self) -> int:
        with self._changed:
            return self._restarts

    @property
    def worker(self) -> WorkerStatus:
        with self._changed:
            up, known = self._connection is not None, self._known
            lost = ("", "", None) if up else (self._cause, self._failure, self._retry_at)
            pid = self._connection.pid if self._connection else None
            reason = known.reason if known is not None else ""
            return WorkerStatus(self._words.kind, up, pid, self._restarts, reason, "", *lost, self._sandbox)

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor]:
        """Gives memory that needs no copy on its way to the process. RESOURCE_EXHAUSTED beyond the memory limit."""
        return self._lanes.stage(shapes)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """Runs the model as every model does. When the process was lost before it read the request, the next process
        runs it."""
        declared = find_signature(self.signatures, signature)
        wanted = outputs or (() if self.has_item_steps else declared.output_names)
        lane = self._lanes.enter()

        def call(connection: WorkerConnection) -> Mapping[str, Tensor]:
            channel = connection.runs[lane]
            try:
                return self._call_run(channel, signature, inputs, wanted)
            finally:
                self.ongoing = channel.ongoing

        try:
            return self._call(call)
        finally:
            self._lanes.leave(lane)

    def _call_run(
        self, channel: RequestChannel, signature: str, inputs: Mapping[str, Tensor], wanted: tuple[str, ...]
    ) -> Mapping[str, Tensor]:
        return channel.call(RUN, signature, inputs, wanted)

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        return self._step(PREPROCESS, signature, inputs, deadline)

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        return self._step(POSTPROCESS, signature, outputs, deadline)

    def recover(self, give_up: threading.Event) -> bool:
        with self._changed:
            while not (give_up.is_set() or self._closing.is_set()):
                if self._connection is not None:
                    return True
                self._changed.wait(POLL_SECONDS)
        return False

    def close(self) -> None:
        """Closes the connection in its own way, and frees everything."""
        with self._changed:
            self._closing.set()
            connection, self._connection = self._connection, None
            threads = self._restarter, self._mover
            connectors = self._connector, self._moves
            self._changed.notify_all()
        for connector in connectors:
            if connector is not None:
                connector.give_up()
        for thread in threads:
            if thread is not None:
                thread.join(JOIN_SECONDS)
                if thread.is_alive():
                    logger.warning("%s: not waiting any longer for what was starting it again", self._label)
        if connection is not None:
            connection.close()
        self._lanes.close()

    def _step(
        self, what: str, signature: str, tensors: Mapping[str, Tensor], deadline: float | None
    ) -> dict[str, Tensor]:
        if not self.has_item_steps:
            return dict(tensors)
        return self._call(lambda connection: connection.call_step(what, signature, tensors, deadline), deadline)

    def _call(
        self, call: Callable[[WorkerConnection], Mapping[str, Tensor]], deadline: float | None = None
    ) -> dict[str, Tensor]:
        """Calls the process; calls the next one, once, if the process was lost before it read the request."""
        second_chance = True
        while True:
            connection = self._wait_for_connection(deadline)
            unread = False
            try:
                return dict(call(connection))
            except ConnectionClosed as gone:
                unread = gone.unread
            except ProtocolError as error:
                connection.kill_for(error)
            failure = self._worker_lost(connection, unread)
            if not (unread and second_chance):
                raise failure
            second_chance = False

    def _wait_for_connection(self, deadline: float | None) -> WorkerConnection:
        """The connection; waits for the next process while there is none. WorkerLost if that has failed to start,
        will not be started soon, or has not been started within :data:`WAIT_SECONDS`."""
        with self._changed:
            while self._connection is None:
                now = time.monotonic()
                patience = self._lost_at + WAIT_SECONDS - now
                if self._closing.is_set() or self._failed_starts or self._delay > self._max_wait or patience <= 0:
                    raise WorkerLost(self._message(self._cause), unread=True)
                left = patience if deadline is None else min(deadline - now, patience)
                if left <= 0:
                    again = self._words.started_again
                    message = f"{self._label}: the deadline passed while its {self._words.process} was {again}"
                    raise ServingError(StatusCode.DEADLINE_EXCEEDED, message)
                self._changed.wait(left)
            return self._connection

    def _worker_lost(self, connection: WorkerConnection, unread: bool) -> WorkerLost:
        """Connects again; the error says why the process was lost."""
        cause = connection.cause()
        self._start_again(connection)
        return WorkerLost(self._message(cause), unread)

    def _message(self, cause: str) -> str:
        ended = f"{self._label}: its {self._words.process} ended{f' ({cause})' if cause else ''}"
        if self._closing.is_set():
            return f"{ended}; it is being unloaded"
        return f"{ended}; it is being {self._words.started_again}, try again later"

    def _on_end(self, connection: WorkerConnection) -> None:
        """The connection's thread calls this when the process has ended."""
        connection.shut_down()
        self._start_again(connection)

    def _start_again(self, connection: WorkerConnection) -> None:
        """Starts the thread that connects again, unless it runs or the model is closed. Any thread."""
        with self._changed:
            if self._connection is not connection or self._closing.is_set():
                return
            self._connection = None
            self._cause = connection.verdict
            self._failed_starts, self._failure = 0, ""
            now = time.monotonic()
            self._lost_at = now
            self._delay = self._backoff.next(now - connection.opened)
            self._retry_at = now + self._delay
            try:
                self._start_thread(connection, self._delay)
            except ServingError as error:  # the next call finds the same connection and tries again
                self._connection = connection
                logger.warning("%s: %s", self._label, error)

    def _start_thread(self, old: WorkerConnection | None, delay: float) -> None:
        """Starts the thread that connects, again or for the first time. UNAVAILABLE if the system refuses it."""
        thread = threading.Thread(target=self._restart, args=(old, delay), name="tfs-restart", daemon=True)
        start(thread)
        self._restarter = thread

    def _restart(self, old: WorkerConnection | None, delay: float) -> None:
        """The thread: runs until the model can run, is closed, or is connected elsewhere."""
        connector = self._connector
        if old is not None:
            cause = self._cause = old.cause()
            old.free()
            process, again = self._words.process, self._words.started_again
            logger.error("%s: its %s ended (%s); it is %s in %.1f s", self._label, process, cause, again, delay)
            self._on_worker(cause)
        while not self._closing.wait(delay) and connector is self._connector:
            try:
                connection = connector.connect(self._lanes.all, self._check_same)
            except Exception as error:
                delay = self._start_failed(error)
            else:
                self._resume(connector, connection, old)
                return

    def _check_same(self, description: Description) -> None:
        """Raises FAILED_PRECONDITION if the model's signatures have changed."""
        if self._known is not None and description.signatures != self._known.signatures:
            raise self._differs()

    def _differs(self) -> ServingError:
        return failed_precondition(f"{self._label}: its files were changed, it has other signatures than before")

    def _start_failed(self, error: Exception) -> float:
        """Seconds until the next attempt."""
        with self._changed:
            self._failed_starts += 1
            delay = self._delay = self._backoff.next(0.0)
            self._failure, self._retry_at = status_of(error).message, time.monotonic() + delay
            self._changed.notify_all()
        status = status_of(error)
        if self._closing.is_set() or status.waits:
            return delay
        if not self.opening.done():
            self.opening.set_exception(error)
        elif status.code is not StatusCode.CANCELLED:  # nobody wants it any more, and it will be closed
            again = self._words.started_again
            logger.error("%s cannot be %s (%s); next attempt in %.1f s", self._label, again, error, delay)
        return delay

    def _resume(self, connector: Connector, connection: WorkerConnection, old: WorkerConnection | None) -> None:
        """Requests may go over the connection, unless it comes too late."""
        with self._changed:
            unwanted = self._closing.is_set() or connector is not self._connector
            if not unwanted:
                self._known = self._known or connection.description
                self._connection = connection
                self._restarts += old is not None and not connection.is_same_process(old)
                self._changed.notify_all()
        if unwanted:
            connection.close()
            return
        if old is not None:
            logger.info("%s: its %s runs again (%s)", self._label, self._words.process, connection.pid)
            self._on_worker(None)
        connection.on_end(lambda: self._on_end(connection))
        if not self.opening.done():
            self.opening.set_result(connection.description)

    def connect_elsewhere(self, connector: Connector) -> bool:
        """Moves requests to the first connection that ``connector`` makes, waits for those that run over the previous
        connection, and closes that. Blocks until then; False if the model was closed first. One thread at a time."""
        with self._changed:
            if self._closing.is_set():
                return False
            self._moves, self._mover = connector, threading.current_thread()
        connection, delay = None, 0.0
        while connection is None and not self._closing.wait(delay):
            try:
                connection = connector.connect(self._lanes.all, self._check_same)
            except Exception as error:
                delay = MOVE_SECONDS
                if not self._closing.is_set():
                    logger.error("%s cannot be moved (%s); next attempt in %.1f s", self._label, error, delay)
        return connection is not None and self._change_connection(connector, connection)

    def _change_connection(self, connector: Connector, connection: WorkerConnection) -> bool:
        with self._changed:
            self._moves = None
            unwanted = self._closing.is_set()
            before, old = self._connector, self._connection
            if not unwanted:
                self._connector, self._connection = connector, connection
                self._restarts += 1
                self._changed.notify_all()
        if unwanted:
            connection.close()
            return False
        connection.on_end(lambda: self._on_end(connection))
        if old is not None:
            old.finish()
            old.close()
        before.give_up()
        return True


class _Lanes:
    """Gives each thread a lane of its own from ``stage``, or ``run``, to the end of ``run``. What was staged for a run
    that never came may be given to another thread."""

    def __init__(self, lanes: tuple[Lane, ...]) -> None:
        self.all = lanes
        self._lock = threading.Lock()  # guards what follows
        self._idle = list(range(len(lanes)))
        self._staged: dict[int, int] = {}

    def stage(self, shapes: Shapes) -> dict[str, Tensor]:
        thread = threading.get_ident()
        with self._lock:
            lane = self._staged.pop(thread, None)
            if lane is None:
                lane = self._take()
            self._staged[thread] = lane
        return self.all[lane].inputs.stage(shapes)

    def enter(self) -> int:
        """The number of the thread's lane, for a run."""
        with self._lock:
            lane = self._staged.pop(threading.get_ident(), None)
            return self._take() if lane is None else lane

    def leave(self, lane: int) -> None:
        """Ends the run, and what was staged for it."""
        self.all[lane].inputs.forget()
        with self._lock:
            self._idle.append(lane)

    def close(self) -> None:
        for lane in self.all:
            lane.close()

    def _take(self) -> int:
        """A lane that is idle, or the one that was staged first. Holds the lock."""
        if self._idle:
            return self._idle.pop()
        lane = self._staged.pop(next(iter(self._staged)))
        self.all[lane].inputs.forget()
        return lane
