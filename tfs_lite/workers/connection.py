"""The server's connection to one process of a model: starting it, opening the model in it, ending it."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfs_lite.core.model import WorkerLost
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.workers.arena import DEFAULT_LIMIT, Arena
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.child_channel import ChannelPool, ChildChannel
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.supervisor import Supervisor, Worker
from tfs_lite.workers.wire import ITEM_CHANNELS, OPEN, Description, read_description, read_failure

GRACE_SECONDS = 2.0
"""How long a process may take to end once it has closed its connection."""
KILL_SECONDS = 10.0
"""How long the kernel may take to end a killed process."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What to open in a process of its own, and how.

    ``label`` names it in messages, e.g. ``model m version 1``. ``function``, as ``module:function``, is called in the
    process with ``arguments`` (JSON) and returns the model. ``memory_limit``, in bytes, bounds the inputs and the
    outputs of one run each; ``close_seconds`` is how long the model may take to close. ``item_channels`` is how many
    requests may be in ``preprocess`` and ``postprocess`` at once. ``preload`` are modules that the fork server imports
    before it forks the process.
    """

    label: str
    function: str
    arguments: str
    memory_limit: int = DEFAULT_LIMIT
    close_seconds: float = 10.0
    item_channels: int = 2
    preload: tuple[str, ...] = ()


class Connection:
    """A process with an open model. Threads: ``main`` and ``items`` as their classes say; the rest by any thread."""

    def __init__(
        self,
        remote: RemoteModel,
        worker: Worker,
        main: ChildChannel,
        items: ChannelPool | None,
        description: Description,
    ) -> None:
        self.remote = remote
        self.worker = worker
        self.main = main
        self.items = items
        self.description = description
        self.opened = time.monotonic()
        self._verdict = ""

    @property
    def verdict(self) -> str:
        """Why the process has ended, as far as that is known already."""
        return self._verdict or self.worker.cause

    def call_step(
        self, what: str, signature: str, tensors: Mapping[str, Tensor], deadline: float | None
    ) -> dict[str, Array]:
        """Runs a step of a request. Raises as :meth:`ChannelPool.call`; ConnectionClosed if the model has no steps."""
        if self.items is None:
            raise ConnectionClosed
        return self.items.call(what, signature, tensors, deadline)

    def shut_down(self) -> None:
        """Threads that wait for an answer find the connection closed."""
        self.main.shut_down()
        if self.items is not None:
            self.items.shut_down()

    def kill_for(self, garbage: ProtocolError) -> None:
        """Kills the process because it has broken the protocol."""
        logger.error("the process of %s sent %s; it is killed", self.remote.label, garbage)
        self._verdict = self._verdict or "it sent garbage"
        self.worker.kill()

    def cause(self) -> str:
        """Why the process has ended. Waits for its end, and kills it after :data:`GRACE_SECONDS`."""
        if not self.worker.ended.wait(GRACE_SECONDS):
            self._verdict = self._verdict or "it closed its connection"
            _kill(self.worker, self.remote.label)
        return self.verdict

    def free(self) -> None:
        """Frees the connection of a process that has ended."""
        self.shut_down()
        self.main.close()
        if self.items is not None:
            self.items.close()

    def close(self) -> None:
        """Gives the model ``close_seconds`` to close, then kills its process."""
        seconds = self.remote.close_seconds
        try:
            self.main.request_close(seconds)
            if not self.worker.ended.wait(seconds):
                logger.warning("%s did not close within %g seconds: its process is killed", self.remote.label, seconds)
        except ConnectionClosed:
            pass
        _kill(self.worker, self.remote.label)
        self.free()


def connect(
    supervisor: Supervisor, remote: RemoteModel, inputs: Staging, outputs: Arena, on_start: Callable[[Worker], None]
) -> Connection:
    """Starts a process and opens the model in it, without a time limit. The caller keeps ``inputs`` and ``outputs``.
    ``on_start`` gets the process as soon as there is one; killing it ends the wait.

    Raises what the opening raised; WorkerLost if the process died meanwhile. A failure leaves nothing behind.
    """
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    try:
        with theirs:
            worker = supervisor.spawn(remote.label, theirs, remote.preload)
    except BaseException:
        channel.close()
        raise
    worker.on_end(channel.shut_down)
    on_start(worker)
    try:
        description = _open(channel, remote, inputs, outputs)
        items = _open_item_channels(channel, remote) if description.has_item_steps else None
    except BaseException as error:
        failure = _failure(error, worker, remote)
        _kill(worker, remote.label)
        channel.close()
        raise failure from None
    worker.started.wait(KILL_SECONDS)
    return Connection(remote, worker, ChildChannel(channel, inputs, outputs), items, description)


def _open(channel: Channel, remote: RemoteModel, inputs: Staging, outputs: Arena) -> Description:
    request = {
        "label": remote.label,
        "function": remote.function,
        "arguments": remote.arguments,
        "limit": remote.memory_limit,
        "log_level": logging.getLogger().getEffectiveLevel(),
    }
    channel.send((OPEN, request), [inputs.arena.descriptor, outputs.descriptor])
    answer = channel.receive()
    if not isinstance(answer, list) or len(answer) != 2:
        raise ProtocolError("no description of a model")
    if answer[0] == StatusCode.OK:
        return read_description(answer[1])
    raise read_failure(answer[0], answer[1])


def _open_item_channels(channel: Channel, remote: RemoteModel) -> ChannelPool:
    """Connections for the steps of single requests, each with memory of its own."""
    channels: list[ChildChannel] = []
    child_ends: list[socket.socket] = []
    try:
        descriptors: list[int] = []
        for _ in range(remote.item_channels):
            ours, theirs = socket.socketpair()
            child_ends.append(theirs)
            channels.append(_item_channel(ours, remote))
            descriptors += [theirs.fileno(), channels[-1].inputs.arena.descriptor, channels[-1].outputs.descriptor]
        channel.send((ITEM_CHANNELS, remote.item_channels), descriptors)
    except BaseException:
        ChannelPool(channels).close()
        raise
    finally:
        for end in child_ends:
            end.close()
    return ChannelPool(channels)


def _item_channel(ours: socket.socket, remote: RemoteModel) -> ChildChannel:
    inputs = Staging(Arena.create(remote.memory_limit, f"{remote.label}: the tensors of a request"))
    return ChildChannel(Channel(ours), inputs, Arena.create(remote.memory_limit, ""))


def _failure(error: BaseException, worker: Worker, remote: RemoteModel) -> BaseException:
    """The error that says why the model could not be opened."""
    if isinstance(error, ProtocolError):
        logger.error("the process of %s sent %s; it is killed", remote.label, error)
        return WorkerLost(f"{remote.label}: its process sent garbage while the model was opened")
    if not isinstance(error, ConnectionClosed):
        return error
    ended = worker.ended.wait(GRACE_SECONDS)
    cause = worker.cause if ended else "it closed its connection"
    return WorkerLost(f"{remote.label}: its process ended while the model was opened ({cause})")


def _kill(worker: Worker, label: str) -> None:
    """Kills the process unless it has ended, and waits for its end."""
    worker.kill()
    if not worker.ended.wait(KILL_SECONDS):
        logger.error("the process of %s (%s) was killed and has not ended", label, worker.pid)
