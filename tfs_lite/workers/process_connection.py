"""The server's connection to one process of a model: starting it, opening the model in it, ending it."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence

from tfs_lite.core.model import WorkerLost
from tfs_lite.core.status import StatusCode, failed_precondition
from tfs_lite.protocols.log_format import current_format
from tfs_lite.workers.arena import Arena
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.connection import Lane, RemoteModel, WorkerConnection
from tfs_lite.workers.request_channel import RequestChannel
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.supervisor import Supervisor, Worker
from tfs_lite.workers.tensor_channel import ArenaChannel
from tfs_lite.workers.wire import ITEM_CHANNELS, OPEN, Description, read_description, read_refusal

GRACE_SECONDS = 2.0
"""How long a process may take to end once it has closed its connection."""
MEMORY_DIRECTORY = "/dev/shm"
"""The directory in which a process has its own if there is no place for temporary files, as in a container whose root
file system is read-only."""
START_SECONDS = 60.0
"""How long the process that starts models may take to start one: it imports libraries before, in turns."""
OPENING_LOST = "its process ended while the model was opened"
KILL_SECONDS = 10.0
"""How long the kernel may take to end a killed process."""
logger = logging.getLogger(__name__)


class ProcessConnection(WorkerConnection):
    """A process of the fork server."""

    def __init__(
        self,
        remote: RemoteModel,
        worker: Worker,
        main: RequestChannel,
        items: Sequence[RequestChannel],
        description: Description,
        own_directory: str,
    ) -> None:
        super().__init__([main], items, description)
        self._own_directory = own_directory
        self._remote = remote
        self._worker = worker
        self._main = main
        self._verdict = ""

    @property
    def pid(self) -> int | None:
        return self._worker.pid

    @property
    def verdict(self) -> str:
        return self._verdict or self._worker.cause

    def is_same_process(self, other: WorkerConnection) -> bool:
        return False

    def on_end(self, call: Callable[[], None]) -> None:
        self._worker.on_end(call)

    def kill_for(self, garbage: ProtocolError) -> None:
        logger.error("the process of %s sent %s; it is killed", self._remote.label, garbage)
        self._verdict = self._verdict or "it sent garbage"
        self._worker.kill()

    def cause(self) -> str:
        """Kills a process that has not ended after :data:`GRACE_SECONDS`."""
        if not self._worker.ended.wait(GRACE_SECONDS):
            self._verdict = self._verdict or "it closed its connection"
            _kill(self._worker, self._remote.label)
        return self.verdict

    def close(self) -> None:
        """Gives the model ``close_seconds`` to close, then kills its process."""
        seconds = self._remote.close_seconds
        try:
            self._main.request_close(seconds)
            if not self._worker.ended.wait(seconds):
                logger.warning("%s did not close within %g seconds: its process is killed", self._remote.label, seconds)
        except ConnectionClosed:
            pass
        _kill(self._worker, self._remote.label)
        self.free()

    def free(self) -> None:
        super().free()
        _remove(self._own_directory)


def connect(
    supervisor: Supervisor, remote: RemoteModel, lane: Lane, on_start: Callable[[Worker], None]
) -> ProcessConnection:
    """Starts a process, within :data:`START_SECONDS`, and opens the model in it, without a time limit. The caller
    keeps ``lane``. ``on_start`` gets the process as soon as there is one; killing it ends the wait.

    Raises what the opening raised; WorkerLost if the process died meanwhile. A failure leaves nothing behind.
    """
    own_directory = _make_directory(remote)
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    try:
        with theirs:
            worker = supervisor.spawn(remote.label, theirs, remote.preload)
    except BaseException:
        channel.close()
        _remove(own_directory)
        raise
    worker.on_end(channel.shut_down)
    on_start(worker)
    try:
        if not worker.started.wait(START_SECONDS):
            raise WorkerLost(f"{remote.label}: the process that starts models has not answered for {START_SECONDS:g} s")
        description = _open(channel, remote, lane, own_directory)
        items = _open_item_channels(channel, remote) if description.has_item_steps else ()
    except BaseException as error:
        failure = _failure(error, worker, remote)
        _kill(worker, remote.label)
        channel.close()
        _remove(own_directory)
        raise failure from None
    main = RequestChannel(ArenaChannel(channel, lane.inputs, lane.outputs))
    return ProcessConnection(remote, worker, main, items, description, own_directory)


def _make_directory(remote: RemoteModel) -> str:
    """The directory that a process in a sandbox writes to; empty for one that needs none. FAILED_PRECONDITION if it
    cannot be made."""
    if remote.sandbox is None:
        return ""
    reason = ""
    for parent in (None, MEMORY_DIRECTORY):  # None: TMPDIR, or where the system has temporary files
        try:
            return tempfile.mkdtemp(prefix="tfs-lite-", dir=parent)
        except OSError as error:
            reason = reason or os.strerror(error.errno or 0)
    raise failed_precondition(
        f"cannot be loaded: no directory can be made for its process ({reason}): let the server write to /tmp, or name "
        "a directory in TMPDIR"
    )


def _remove(directory: str) -> None:
    if directory:
        shutil.rmtree(directory, ignore_errors=True)


def _open(channel: Channel, remote: RemoteModel, lane: Lane, own_directory: str) -> Description:
    request = {
        "label": remote.label,
        "function": remote.function,
        "arguments": remote.arguments,
        "limit": remote.memory_limit,
        "log_level": logging.getLogger().getEffectiveLevel(),
        "log_format": current_format(),
        "sandbox": None if remote.sandbox is None else remote.sandbox.to_message(own_directory),
    }
    channel.send((OPEN, request), [lane.inputs.arena.descriptor, lane.outputs.descriptor])
    answer = channel.receive()
    if isinstance(answer, list) and len(answer) == 2 and answer[0] == StatusCode.OK:
        return read_description(answer[1])
    raise read_refusal(answer)


def _open_item_channels(channel: Channel, remote: RemoteModel) -> Sequence[RequestChannel]:
    """Connections for the steps of single requests, each with memory of its own."""
    channels: list[RequestChannel] = []
    child_ends: list[socket.socket] = []
    try:
        descriptors: list[int] = []
        for _ in range(remote.item_channels):
            ours, theirs = socket.socketpair()
            child_ends.append(theirs)
            inputs = Arena.create(remote.memory_limit, f"{remote.label}: the tensors of a request")
            outputs = Arena.create(remote.memory_limit, "")
            channels.append(RequestChannel(ArenaChannel(Channel(ours), Staging(inputs), outputs, owner=True)))
            descriptors += [theirs.fileno(), inputs.descriptor, outputs.descriptor]
        channel.send((ITEM_CHANNELS, remote.item_channels), descriptors)
    except BaseException:
        for opened in channels:
            opened.close()
        raise
    finally:
        for end in child_ends:
            end.close()
    return channels


def _failure(error: BaseException, worker: Worker, remote: RemoteModel) -> BaseException:
    """The error that says why the model could not be opened."""
    if isinstance(error, ProtocolError):
        logger.error("the process of %s sent %s; it is killed", remote.label, error)
        return WorkerLost(f"{remote.label}: its process sent garbage while the model was opened")
    if not isinstance(error, ConnectionClosed):
        return error
    ended = worker.ended.wait(GRACE_SECONDS)
    cause = worker.cause if ended else "it closed its connection"
    return WorkerLost(f"{remote.label}: {OPENING_LOST} ({cause})")


def _kill(worker: Worker, label: str) -> None:
    """Kills the process unless it has ended, and waits for its end."""
    worker.kill()
    if not worker.ended.wait(KILL_SECONDS):
        logger.error("the process of %s (%s) was killed and has not ended", label, worker.pid)
