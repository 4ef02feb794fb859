"""A model in a process of its own: it may crash, leak or hold Python's lock, and the server goes on.

ReconnectingModel -> ProcessModel (here) -> shared memory, a socket -> child process -> OpenedModel
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tfs_lite.core.callbacks import ignore
from tfs_lite.workers.arena import DEFAULT_LIMIT
from tfs_lite.workers.connection import Lane, RemoteModel, WorkerConnection
from tfs_lite.workers.process_connection import connect
from tfs_lite.workers.reconnecting import ReconnectingModel, Words
from tfs_lite.workers.sandbox import Sandbox
from tfs_lite.workers.supervisor import Backoff, Supervisor, Worker
from tfs_lite.workers.wire import Description


class ProcessModel(ReconnectingModel):
    """A model in a child process, which is killed when it breaks the protocol or does not close in time."""

    def __init__(
        self,
        supervisor: Supervisor,
        remote: RemoteModel,
        backoff: Backoff | None = None,
        on_worker: Callable[[str | None], None] = ignore,
    ) -> None:
        words = Words("process", "process", "started again")
        super().__init__(remote, _ProcessConnector(supervisor, remote), words, backoff, on_worker=on_worker)

    def measured_bytes(self) -> Mapping[str, Mapping[str, int]]:
        """The main memory that ends with the process, as the process said when it had first opened the model."""
        private = self._description.private_bytes
        return {} if private is None or self.pid is None else {"main": {"process": private}}


class _ProcessConnector:
    """Starts processes of a fork server."""

    def __init__(self, supervisor: Supervisor, remote: RemoteModel) -> None:
        self._supervisor = supervisor
        self._remote = remote
        self._lock = threading.Lock()  # guards what follows
        self._opening: Worker | None = None
        self._given_up = False

    def connect(self, lanes: tuple[Lane, ...], check: Callable[[Description], None]) -> WorkerConnection:
        self._remote.require_files()
        try:
            connection = connect(self._supervisor, self._remote, lanes[0], self._set_opening)
        finally:
            self._set_opening(None)
        try:
            self._remote.require_files()
            check(connection.description)
        except BaseException:
            connection.close()
            raise
        return connection

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            opening = self._opening
        if opening is not None:
            opening.kill()

    def _set_opening(self, worker: Worker | None) -> None:
        """Remembers the process that is opening the model, so that it can be killed."""
        with self._lock:
            self._opening = worker
            unwanted = self._given_up
        if unwanted and worker is not None:
            worker.kill()


def open_in_process(
    supervisor: Supervisor,
    label: str,
    function: str,
    arguments: str,
    memory_limit: int = DEFAULT_LIMIT,
    preload: tuple[str, ...] = (),
    on_worker: Callable[[str | None], None] = ignore,
    sandbox: Sandbox | None = None,
    require_files: Callable[[], None] = ignore,
) -> ProcessModel:
    """Opens a model in a process of its own, by calling ``function`` (``module:function``) there with ``arguments``.

    ``label`` names the model in messages, e.g. ``model m version 1``; ``preload`` are modules that it needs besides
    those of the supervisor; for ``on_worker`` see :class:`ReconnectingModel`, for ``require_files``
    :class:`RemoteModel`; the process enters ``sandbox``, if there is one, before it calls the function. Any thread;
    several may be opened at once. Raises what the function raises, as a ServingError of the same code and message;
    WorkerLost if the process died meanwhile.
    """
    remote = RemoteModel(
        label, function, arguments, memory_limit, preload=preload, sandbox=sandbox, require_files=require_files
    )
    return ProcessModel(supervisor, remote, on_worker=on_worker)
