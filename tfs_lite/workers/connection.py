"""One life of a model's process, seen from the server: from its start to the last trace of it."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfs_lite.core.model import WorkerLost
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import StatusCode
from tfs_lite.workers.arena import DEFAULT_LIMIT, Arena, Array
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.child_channel import ChildChannel, LanePool
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.supervisor import Supervisor, Worker
from tfs_lite.workers.wire import LANES, OPEN, Description, read_description, read_failure

GRACE_SECONDS = 2.0
"""How long a process may take to end once it has closed its connection."""
KILL_SECONDS = 10.0
"""How long the kernel may take to end a process that was killed."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What to open in a process of its own, and how.

    ``label`` names it in messages, e.g. ``model m version 1``. ``function``, as ``module:function``, is called in the
    process with ``arguments`` (JSON) and returns the model. ``memory_limit`` is in bytes and counts for the inputs and
    for the outputs of one run; ``close_seconds`` is what the model gets to end by itself. ``item_lanes``: how many
    requests may be in ``preprocess`` and ``postprocess`` at once.
    """

    label: str
    function: str
    arguments: str
    memory_limit: int = DEFAULT_LIMIT
    close_seconds: float = 10.0
    item_lanes: int = 2


class Connection:
    """A process with an open model. Threads: ``main`` and ``items`` as they say, the rest by any."""

    def __init__(
        self, remote: RemoteModel, worker: Worker, main: ChildChannel, items: LanePool | None, description: Description
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
        """Why the process has ended, as far as is known already."""
        return self._verdict or self.worker.cause

    def ask_beside(
        self, what: str, signature: str, tensors: Mapping[str, Tensor], deadline: float | None
    ) -> dict[str, Array]:
        """A step of one request. Raises as :meth:`LanePool.ask`; Gone from a process that has no such steps."""
        if self.items is None:
            raise ConnectionClosed
        return self.items.ask(what, signature, tensors, deadline)

    def hang_up(self) -> None:
        """Whoever waits for an answer finds the connection closed."""
        self.main.hang_up()
        if self.items is not None:
            self.items.hang_up()

    def condemn(self, garbage: ProtocolError) -> None:
        """The process has sent what it must not send: kills it."""
        logger.error("the process of %s sent %s; it is killed", self.remote.label, garbage)
        self._verdict = self._verdict or "it sent garbage"
        self.worker.kill()

    def cause(self) -> str:
        """Why the process has ended. Waits for its end, and brings it about if it does not come by itself."""
        if not self.worker.ended.wait(GRACE_SECONDS):
            self._verdict = self._verdict or "it closed its connection"
            _kill(self.worker, self.remote.label)
        return self.verdict

    def clear_away(self) -> None:
        """Frees the connection. The process has ended."""
        self.hang_up()
        self.main.close()
        if self.items is not None:
            self.items.close()

    def close(self) -> None:
        """Lets the model end by itself, but not for long."""
        patience = self.remote.close_seconds
        try:
            self.main.say_goodbye(patience)
            if not self.worker.ended.wait(patience):
                logger.warning("%s did not close within %g seconds: its process is killed", self.remote.label, patience)
        except ConnectionClosed:
            pass
        _kill(self.worker, self.remote.label)
        self.clear_away()


def connect(
    supervisor: Supervisor, remote: RemoteModel, inputs: Staging, outputs: Arena, seen: Callable[[Worker], None]
) -> Connection:
    """Starts a process and opens the model in it, however long that takes. ``inputs`` and ``outputs`` stay the
    caller's. ``seen`` gets the process as soon as there is one; killing it ends the wait.

    Raises what the opening raised; WorkerLost if the process did not survive it. Then nothing is left of it.
    """
    near, far = socket.socketpair()
    channel = Channel(near)
    try:
        with far:
            worker = supervisor.spawn(remote.label, far)
    except BaseException:
        channel.close()
        raise
    worker.on_end(channel.hang_up)
    seen(worker)
    try:
        description = _open(channel, remote, inputs, outputs)
        items = _open_lanes(channel, remote) if description.has_item_steps else None
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


def _open_lanes(channel: Channel, remote: RemoteModel) -> LanePool:
    """Lines for the steps of single requests, each with memory of its own."""
    lanes: list[ChildChannel] = []
    theirs: list[socket.socket] = []
    try:
        descriptors: list[int] = []
        for _ in range(remote.item_lanes):
            near, far = socket.socketpair()
            theirs.append(far)
            lanes.append(_lane(near, remote))
            descriptors += [far.fileno(), lanes[-1].inputs.arena.descriptor, lanes[-1].outputs.descriptor]
        channel.send((LANES, remote.item_lanes), descriptors)
    except BaseException:
        LanePool(lanes).close()
        raise
    finally:
        for far in theirs:
            far.close()
    return LanePool(lanes)


def _lane(near: socket.socket, remote: RemoteModel) -> ChildChannel:
    inputs = Staging(Arena.create(remote.memory_limit, f"{remote.label}: the tensors of a request"))
    return ChildChannel(Channel(near), inputs, Arena.create(remote.memory_limit, ""))


def _failure(error: BaseException, worker: Worker, remote: RemoteModel) -> BaseException:
    """Why the model could not be opened."""
    if isinstance(error, ProtocolError):
        logger.error("the process of %s sent %s; it is killed", remote.label, error)
        return WorkerLost(f"{remote.label}: its process sent garbage while the model was opened")
    if not isinstance(error, ConnectionClosed):
        return error
    ended = worker.ended.wait(GRACE_SECONDS)
    cause = worker.cause if ended else "it closed its connection"
    return WorkerLost(f"{remote.label}: its process ended while the model was opened ({cause})")


def _kill(worker: Worker, label: str) -> None:
    """Kills the process if it lives, and waits until it does not."""
    worker.kill()
    if not worker.ended.wait(KILL_SECONDS):
        logger.error("the process of %s (%s) was killed and has not ended", label, worker.pid)
