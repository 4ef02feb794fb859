"""A model in a process of its own: it may crash, leak or hold Python's lock, and the server goes on.

    batching servable -> ProcessModel (here) -> shared memory, a socket -> child process -> OpenedModel

A process that ends without being told to is started again, by a thread that lives as long as that takes: at once, then
with growing pauses. Whoever was being answered gets WorkerLost; whoever comes while the first new start is under way
waits for it.
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

PATIENCE = 1.0
"""A request does not wait for a process that is to be started later than in so many seconds."""
GLANCE = 0.05
"""Seconds from one look at ``give_up`` to the next."""
logger = logging.getLogger(__name__)


class ProcessModel(Model):
    """The near end of a model in a child process. Opens it when constructed: raises what the opening raises.

    Threads: as :class:`~tfs_lite.core.model.Model`. The process is believed nothing: one that sends what it must not
    send is killed. ``restarts`` counts how often the model was opened again after its process had ended.
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
        """Bytes of the model's tensors, as its process said when it was first opened; None if nobody can tell."""
        return self._description.resident_bytes

    @property
    def alive(self) -> bool:
        """Whether a process is there that can be asked."""
        with self._changed:
            return self._connection is not None

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        with self._changed:
            return self._connection.worker.pid if self._connection else None

    @property
    def restarts(self) -> int:
        with self._changed:
            return self._restarts

    @property
    def worker(self) -> WorkerStatus:
        return WorkerStatus("process", self.alive, self.pid, self.restarts)

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor]:
        """Shared memory. RESOURCE_EXHAUSTED if it would be more than is allowed."""
        return self._inputs.stage(shapes)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """As every model. A process that had ended before it saw the request is started again, and the request is run
        by its successor."""
        declared = find_signature(self.signatures, signature)
        wanted = outputs or (() if self.has_item_steps else declared.output_names)
        try:
            return self._ask(lambda connection: connection.main.ask(RUN, signature, inputs, wanted))
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
                self._changed.wait(GLANCE)
        return False

    def close(self) -> None:
        """Ends the process: politely, and after ``close_seconds`` by force. Nothing of it is left."""
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
        return self._ask(lambda connection: connection.ask_beside(what, signature, tensors, deadline), deadline)

    def _ask(
        self, ask: Callable[[Connection], Mapping[str, Tensor]], deadline: float | None = None
    ) -> dict[str, Tensor]:
        """Asks the process; if it had ended before it was asked, its successor, once."""
        second_chance = True
        while True:
            connection = self._living(deadline)
            unread = False
            try:
                return dict(ask(connection))
            except ConnectionClosed as gone:
                unread = gone.unread
            except ProtocolError as garbage:
                connection.condemn(garbage)
            failure = self._lost(connection)
            if not (unread and second_chance):
                raise failure
            second_chance = False

    def _living(self, deadline: float | None) -> Connection:
        """The connection; while there is none, that of the next process, unless it failed to start or is not to be
        expected soon: WorkerLost."""
        with self._changed:
            while self._connection is None:
                if self._closing.is_set() or self._failed_starts or self._delay > PATIENCE:
                    raise WorkerLost(self._message(self._cause))
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    message = f"{self._label}: the deadline passed while its process was started again"
                    raise ServingError(StatusCode.DEADLINE_EXCEEDED, message)
                self._changed.wait(left)
            return self._connection

    def _lost(self, connection: Connection) -> WorkerLost:
        """The process of this connection has ended, or is about to."""
        cause = connection.cause()
        self._mourn(connection)
        return WorkerLost(self._message(cause))

    def _message(self, cause: str) -> str:
        because = f" ({cause})" if cause else ""
        if self._closing.is_set():
            return f"{self._label}: its process ended{because}; it is being unloaded"
        return f"{self._label}: its process ended{because}; it is being started again, try again later"

    def _on_end(self, connection: Connection) -> None:
        """The supervisor's thread: the process has ended, whether or not somebody waits for it."""
        connection.hang_up()
        self._mourn(connection)

    def _mourn(self, connection: Connection) -> None:
        """Has the process started again, unless that is under way, or not wanted. Any thread, any number of times."""
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
        """The thread: until the model can run again, or is closed."""
        cause = old.cause()
        old.clear_away()
        logger.error("%s: its process ended (%s); it is started again in %.1f s", self._label, cause, delay)
        while not self._closing.wait(delay):
            try:
                connection = self._reconnect()
            except Exception as error:
                delay = self._start_failed(error)
            else:
                self._return_to_work(connection)
                return

    def _connect(self) -> Connection:
        try:
            return connect(self._supervisor, self._remote, self._inputs, self._outputs, self._see)
        finally:
            self._see(None)

    def _reconnect(self) -> Connection:
        """A process with the same model. FAILED_PRECONDITION if it has become another one meanwhile."""
        connection = self._connect()
        if connection.description.signatures == self.signatures:
            return connection
        connection.close()
        raise failed_precondition(f"{self._label}: its files were changed, it has other signatures than before")

    def _see(self, worker: Worker | None) -> None:
        """Which process is being waited for while it opens the model."""
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

    def _return_to_work(self, connection: Connection) -> None:
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
    supervisor: Supervisor, label: str, function: str, arguments: str, memory_limit: int = DEFAULT_LIMIT
) -> ProcessModel:
    """Opens a model in a process of its own, by calling ``function`` (``module:function``) there with ``arguments``.

    ``label`` names it for people, e.g. ``model m version 1``. Any thread; several may be opened at once. Raises what
    the function raises, as a ServingError of the same code and message; WorkerLost if the process did not survive it.
    """
    return ProcessModel(supervisor, RemoteModel(label, function, arguments, memory_limit))
