"""A model in a process of its own: it may crash, leak or hold Python's lock, and the server goes on.

    batching servable -> ProcessModel (here) -> shared memory, a socket -> child process -> OpenedModel

A process that dies is started again by a thread that exists as long as that takes: at once, then with growing delays.
Requests that were in the process get WorkerLost; requests that arrive during the first restart wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from tfs_lite.core.model import Model, Shapes, WorkerLost, WorkerStatus
from tfs_lite.core.signature import Signature, Tensor, find_signature
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.workers.arena import DEFAULT_LIMIT, Arena
from tfs_lite.workers.channel import ConnectionClosed, ProtocolError
from tfs_lite.workers.connection import Connection, RemoteModel, connect
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.supervisor import Backoff, Supervisor, Worker
from tfs_lite.workers.wire import POSTPROCESS, PREPROCESS, RUN

MAX_RESTART_WAIT = 1.0
"""Requests wait for a process that is started again within so many seconds."""
POLL_SECONDS = 0.05
"""How often ``give_up`` is checked."""
logger = logging.getLogger(__name__)


class ProcessModel(Model):
    """A model in a child process. The constructor opens it, and raises what the opening raises.

    Threads: as :class:`~tfs_lite.core.model.Model`. The process is not trusted: it is killed if it breaks the protocol.
    ``restarts`` counts how often the model was opened again after its process had ended.
    """

    def __init__(self, supervisor: Supervisor, remote: RemoteModel, backoff: Backoff | None = None) -> None:
        self._supervisor = supervisor
        self._remote = remote
        self._label = remote.label
        self._changed = threading.Condition()  # guards what follows
        self._connection: Connection | None = None
        self._opening: Worker | None = None
        self._restarter: threading.Thread | None = None
        self._backoff = backoff or Backoff()
        self._delay = 0.0
        self._failed_starts = 0
        self._cause = ""
        self._restarts = 0
        self._closing = threading.Event()
        self._inputs = Staging(Arena.create(remote.memory_limit, f"{remote.label}: the inputs of a run"))
        self._outputs = Arena.create(remote.memory_limit, f"{remote.label}: the outputs of a run")
        try:
            connection = self._connect()
        except BaseException:
            self._free()
            raise
        self._description = connection.description
        self._connection = connection
        connection.worker.on_end(lambda: self._on_end(connection))

    @property
    def platform(self) -> str:
        return self._description.platform

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._description.signatures

    @property
    def has_item_steps(self) -> bool:
        return self._description.has_item_steps

    def resident_bytes(self) -> int | None:
        """Bytes of the model's tensors, as its process said when it was first opened; None if unknown."""
        return self._description.resident_bytes

    @property
    def alive(self) -> bool:
        """Whether there is a process that can be called."""
        with self._changed:
            return self._connection is not None

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        with self._changed:
            return self._connection.worker.pid if self._connection else None

    @property
    def restarts(self) -> int:
        with self._changed:
            return self._restarts

    @property
    def worker(self) -> WorkerStatus:
        return WorkerStatus("process", self.alive, self.pid, self.restarts, self._description.reason)

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor]:
        """Shared memory. RESOURCE_EXHAUSTED beyond the memory limit."""
        return self._inputs.stage(shapes)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """As every model. When the process had ended before it read the request, the next process runs it."""
        declared = find_signature(self.signatures, signature)
        wanted = outputs or (() if self.has_item_steps else declared.output_names)
        try:
            return self._call(lambda connection: connection.main.call(RUN, signature, inputs, wanted))
        finally:
            self._inputs.forget()

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
        """Asks the process to end, and kills it after ``close_seconds``. Frees everything."""
        with self._changed:
            self._closing.set()
            connection, self._connection = self._connection, None
            opening, restarter = self._opening, self._restarter
            self._changed.notify_all()
        if opening is not None:
            opening.kill()
        if restarter is not None:
            restarter.join()
        if connection is not None:
            connection.close()
        self._free()

    def _step(
        self, what: str, signature: str, tensors: Mapping[str, Tensor], deadline: float | None
    ) -> dict[str, Tensor]:
        if not self.has_item_steps:
            return dict(tensors)
        return self._call(lambda connection: connection.call_step(what, signature, tensors, deadline), deadline)

    def _call(
        self, call: Callable[[Connection], Mapping[str, Tensor]], deadline: float | None = None
    ) -> dict[str, Tensor]:
        """Calls the process; calls the next one, once, if the process had ended before it read the request."""
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
            failure = self._worker_lost(connection)
            if not (unread and second_chance):
                raise failure
            second_chance = False

    def _wait_for_connection(self, deadline: float | None) -> Connection:
        """The connection; waits for the next process while there is none. WorkerLost if that has failed to start, or
        will not be started soon."""
        with self._changed:
            while self._connection is None:
                if self._closing.is_set() or self._failed_starts or self._delay > MAX_RESTART_WAIT:
                    raise WorkerLost(self._message(self._cause))
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    message = f"{self._label}: the deadline passed while its process was started again"
                    raise ServingError(StatusCode.DEADLINE_EXCEEDED, message)
                self._changed.wait(left)
            return self._connection

    def _worker_lost(self, connection: Connection) -> WorkerLost:
        """Starts the process again; the error says why it has ended."""
        cause = connection.cause()
        self._start_again(connection)
        return WorkerLost(self._message(cause))

    def _message(self, cause: str) -> str:
        because = f" ({cause})" if cause else ""
        if self._closing.is_set():
            return f"{self._label}: its process ended{because}; it is being unloaded"
        return f"{self._label}: its process ended{because}; it is being started again, try again later"

    def _on_end(self, connection: Connection) -> None:
        """The supervisor's thread calls this when the process has ended."""
        connection.shut_down()
        self._start_again(connection)

    def _start_again(self, connection: Connection) -> None:
        """Starts the thread that restarts the process, unless it runs or the model is closed. Any thread."""
        with self._changed:
            if self._connection is not connection or self._closing.is_set():
                return
            self._connection = None
            self._cause = connection.verdict
            self._failed_starts = 0
            self._delay = self._backoff.next(time.monotonic() - connection.opened)
            self._restarter = threading.Thread(
                target=self._restart, args=(connection, self._delay), name="tfs-restart", daemon=True
            )
            self._restarter.start()

    def _restart(self, old: Connection, delay: float) -> None:
        """The thread: runs until the model can run again, or is closed."""
        cause = old.cause()
        old.free()
        logger.error("%s: its process ended (%s); it is started again in %.1f s", self._label, cause, delay)
        while not self._closing.wait(delay):
            try:
                connection = self._reconnect()
            except Exception as error:
                delay = self._start_failed(error)
            else:
                self._resume(connection)
                return

    def _connect(self) -> Connection:
        try:
            return connect(self._supervisor, self._remote, self._inputs, self._outputs, self._set_opening)
        finally:
            self._set_opening(None)

    def _reconnect(self) -> Connection:
        """A new process with the same model. FAILED_PRECONDITION if the model's signatures have changed."""
        connection = self._connect()
        if connection.description.signatures == self.signatures:
            return connection
        connection.close()
        raise failed_precondition(f"{self._label}: its files were changed, it has other signatures than before")

    def _set_opening(self, worker: Worker | None) -> None:
        """Remembers the process that is opening the model, so that :meth:`close` can kill it."""
        with self._changed:
            self._opening = worker
            unwanted = self._closing.is_set()
        if unwanted and worker is not None:
            worker.kill()

    def _start_failed(self, error: Exception) -> float:
        """Seconds until the next attempt."""
        with self._changed:
            self._failed_starts += 1
            delay = self._delay = self._backoff.next(0.0)
            self._changed.notify_all()
        if not self._closing.is_set():
            logger.error("%s cannot be started again (%s); next attempt in %.1f s", self._label, error, delay)
        return delay

    def _resume(self, connection: Connection) -> None:
        with self._changed:
            unwanted = self._closing.is_set()
            if not unwanted:
                self._connection = connection
                self._restarts += 1
                self._changed.notify_all()
        if unwanted:
            connection.close()
            return
        logger.info("%s: its process runs again (%s)", self._label, connection.worker.pid)
        connection.worker.on_end(lambda: self._on_end(connection))

    def _free(self) -> None:
        self._inputs.close()
        self._outputs.close()


def open_in_process(
    supervisor: Supervisor,
    label: str,
    function: str,
    arguments: str,
    memory_limit: int = DEFAULT_LIMIT,
    preload: tuple[str, ...] = (),
) -> ProcessModel:
    """Opens a model in a process of its own, by calling ``function`` (``module:function``) there with ``arguments``.

    ``label`` names the model in messages, e.g. ``model m version 1``; ``preload`` are modules that it needs beside
    those of the supervisor. Any thread; several may be opened at once. Raises what the function raises, as a
    ServingError of the same code and message; WorkerLost if the process died meanwhile.
    """
    return ProcessModel(supervisor, RemoteModel(label, function, arguments, memory_limit, preload=preload))
