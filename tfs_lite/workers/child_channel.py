"""The server's end of a connection to a child, which takes one request at a time, and a pool of such connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.workers.arena import Arena, TensorLocation, read_locations
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.wire import CLOSE, read_failure


class ChildChannel:
    """One connection with memory for each direction, which stays the caller's. Threads: any; calls wait for each other.
    ``shut_down`` ends the call in progress with ConnectionClosed."""

    def __init__(self, channel: Channel, inputs: Staging, outputs: Arena) -> None:
        self.channel = channel
        self.inputs = inputs
        self.outputs = outputs
        self._calling = threading.Lock()  # guards _number and the exchange; held while waiting for the answer
        self._closed = False
        self._number = 0

    def call(
        self,
        what: str,
        signature: str,
        tensors: Mapping[str, Tensor],
        wanted: Sequence[str],
        deadline: float | None = None,
    ) -> dict[str, Array]:
        """The child's answer, copied: the ``wanted`` tensors, or all if that is empty. Raises the child's ServingError,
        ConnectionClosed, ProtocolError; RESOURCE_EXHAUSTED if the tensors are too large."""
        with self._calling:
            if self._closed:
                raise ConnectionClosed(unread=True)
            locations = self.inputs.locate(tensors)
            self._number = (self._number + 1) % (1 << 32)
            seconds = None if deadline is None else deadline - time.monotonic()
            plain = [location.plain for location in locations]
            self.channel.send((self._number, what, signature, wanted, plain, seconds))
            found = _in_order(_answer(self.channel.receive(), self._number), wanted)
            return {location.name: self.outputs.read(location) for location in found}

    def request_close(self, seconds: float) -> None:
        """Asks the process to end after the call in progress. Raises ConnectionClosed if the connection is closed, or
        the call takes longer than ``seconds``."""
        if not self._calling.acquire(timeout=seconds):
            raise ConnectionClosed
        try:
            if self._closed:
                raise ConnectionClosed
            self.channel.send((0, CLOSE, "", (), (), None))
        finally:
            self._calling.release()

    def shut_down(self) -> None:
        self.channel.shut_down()

    def close(self) -> None:
        """Shuts down, waits for the call in progress and frees the connection. May be called again."""
        self.channel.shut_down()
        with self._calling:
            self._closed = True
            self.channel.close()


class ChannelPool:
    """Connections that any thread may use. The pool owns their memory."""

    def __init__(self, channels: Sequence[ChildChannel]) -> None:
        self._channels = tuple(channels)
        self._changed = threading.Condition()  # guards _idle and _closed
        self._idle = list(self._channels)
        self._closed = False

    def call(
        self, what: str, signature: str, tensors: Mapping[str, Tensor], deadline: float | None
    ) -> dict[str, Array]:
        """As :meth:`ChildChannel.call`; DEADLINE_EXCEEDED if no channel is idle in time."""
        channel = self._borrow(deadline)
        try:
            return channel.call(what, signature, tensors, (), deadline)
        finally:
            with self._changed:
                self._idle.append(channel)
                self._changed.notify()

    def shut_down(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for channel in self._channels:
            channel.shut_down()

    def close(self) -> None:
        self.shut_down()
        for channel in self._channels:
            channel.close()
            channel.inputs.close()
            channel.outputs.close()

    def _borrow(self, deadline: float | None) -> ChildChannel:
        with self._changed:
            while not self._closed and not self._idle:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise ServingError(
                        StatusCode.DEADLINE_EXCEEDED, "the deadline passed while the request waited for its own steps"
                    )
                self._changed.wait(left)
            if self._closed:
                raise ConnectionClosed(unread=True)
            return self._idle.pop()


def _answer(raw: object, number: int) -> list[TensorLocation]:
    if not isinstance(raw, list) or len(raw) != 3 or type(raw[0]) is not int or raw[0] != number:
        raise ProtocolError("no answer to the question")
    if type(raw[1]) is int and raw[1] == StatusCode.OK:
        return read_locations(raw[2])
    raise read_failure(raw[1], raw[2])


def _in_order(locations: list[TensorLocation], wanted: Sequence[str]) -> list[TensorLocation]:
    """The locations in the order of the wanted names. ProtocolError unless the names are exactly these."""
    if not wanted:
        return locations
    found = {location.name: location for location in locations}
    if len(found) != len(wanted) or not all(name in found for name in wanted):
        raise ProtocolError("other outputs than were asked for")
    return [found[name] for name in wanted]
