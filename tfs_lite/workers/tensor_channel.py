"""Messages with tensors over a connection: how the tensors travel is what kinds of connections differ in.

Between processes of one machine a message says where its tensors lie in memory that both share (:class:`ArenaChannel`);
between machines their bytes follow the message (``replicas.connection.FrameChannel``). Whoever asks and whoever answers
is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tfs_lite.core.signature import Tensor
from tfs_lite.protocols.dtypes import Array
from tfs_lite.workers.arena import Arena
from tfs_lite.workers.channel import Channel, ProtocolError
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.tensors import TensorLocation, read_locations
from tfs_lite.workers.wire import Message, read_message


class TensorChannel(Protocol):
    """One end of a connection. One side asks, the other answers: never more than one message is under way.

    Threads: one at a time, but any may call ``shut_down``; a thread that waits in ``receive`` then finds the connection
    closed."""

    def send(self, message: Message, tensors: Mapping[str, Tensor]) -> None:
        """Sends a message with its tensors. Raises RESOURCE_EXHAUSTED if the tensors are too large, INVALID_ARGUMENT
        for a type that no tensor has: then nothing was sent. Raises ConnectionClosed."""

    def receive(self) -> tuple[Message, list[TensorLocation]]:
        """The next message and what tensors it has. Waits without a time limit until it begins. Raises
        ConnectionClosed, ProtocolError."""

    def read(self, locations: Sequence[TensorLocation], copy: bool) -> dict[str, Array]:
        """Tensors of the message received last. Without ``copy`` they may be views, valid until the next message.
        Raises ProtocolError."""

    def shut_down(self) -> None:
        """Ends the connection for both ends."""

    def close(self) -> None:
        """Frees the connection. No other call may be in progress."""


class ArenaChannel:
    """Tensors in shared memory: this end writes to ``written`` and reads from ``read``. With ``owner`` the memory is
    freed with the connection."""

    def __init__(self, channel: Channel, written: Staging, read: Arena, *, owner: bool = False) -> None:
        self._channel = channel
        self._written = written
        self._read = read
        self._owner = owner

    def send(self, message: Message, tensors: Mapping[str, Tensor]) -> None:
        number, what, signature, wanted, extra = message
        locations = [location.plain for location in self._written.locate(tensors)]
        self._channel.send((number, what, signature, wanted, locations, extra))

    def receive(self) -> tuple[Message, list[TensorLocation]]:
        raw = self._channel.receive()
        if not isinstance(raw, list) or len(raw) != 6:
            raise ProtocolError("no message")
        return read_message(raw), read_locations(raw[4])

    def read(self, locations: Sequence[TensorLocation], copy: bool) -> dict[str, Array]:
        read = self._read.read if copy else self._read.read_in_place
        return {location.name: read(location) for location in locations}

    def shut_down(self) -> None:
        self._channel.shut_down()

    def close(self) -> None:
        self._channel.close()
        if self._owner:
            self._written.close()
            self._read.close()
