"""The server's end of a connection to a process with a model, which takes one request at a time, and a pool of such."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.workers.channel import ConnectionClosed, ProtocolError
from tfs_lite.workers.tensor_channel import TensorChannel
from tfs_lite.workers.tensors import TensorLocation
from tfs_lite.workers.wire import CLOSE, Message, read_answer


class RequestChannel:
    """A channel for requests over one connection. Threads: any; calls wait for each other. ``shut_down`` ends the call
    in progress with ConnectionClosed. ``ongoing`` is how many requests were in the process when it answered the last
    one, ``detail`` what that answer said besides its tensors, unchecked."""

    def __init__(self, channel: TensorChannel) -> None:
        self._channel = channel
        self._calling = threading.Lock()  # guards _number and the exchange; held while waiting for the answer
        self._closed = False
        self._number = 0
        self.ongoing = 0
        self.detail: object = None

    def call(
        self,
        what: str,
        signature: str,
        tensors: Mapping[str, Tensor],
        wanted: Sequence[str],
        deadline: float | None = None,
    ) -> dict[str, Array]:
        """The answer, copied: the ``wanted`` tensors that there are, or all if none is named. Raises the process's
        ServingError, ConnectionClosed, ProtocolError; RESOURCE_EXHAUSTED if the tensors are too large."""
        with self._calling:
            seconds = None if deadline is None else deadline - time.monotonic()
            self.detail, locations = self._exchange(what, signature, wanted, seconds, tensors)
            return self._channel.read(_in_order(locations, wanted), copy=True)

    def ask(self, what: str, extra: object = None) -> object:
        """Makes a :meth:`call` without tensors, and returns the answer's detail, which the caller has to check."""
        with self._calling:
            detail, _ = self._exchange(what, "", (), extra, {})
            return detail

    def request_close(self, seconds: float) -> None:
        """Asks the process to end after the call in progress. Raises ConnectionClosed if the connection is closed, or
        the call takes longer than ``seconds``."""
        if not self._calling.acquire(timeout=seconds):
            raise ConnectionClosed
        try:
            if self._closed:
                raise ConnectionClosed
            self._channel.send(Message(0, CLOSE), {})
        finally:
            self._calling.release()

    def shut_down(self) -> None:
        self._channel.shut_down()

    def close(self) -> None:
        """Shuts down, waits for the call in progress and frees the connection. May be called again."""
        self._channel.shut_down()
        self.finish()

    def finish(self) -> None:
        """Waits for the call in progress and frees the connection. May be called again."""
        with self._calling:
            if not self._closed:
                self._closed = True
                self._channel.close()

    def _exchange(
        self, what: str, signature: str, wanted: Sequence[str], extra: object, tensors: Mapping[str, Tensor]
    ) -> tuple[object, list[TensorLocation]]:
        if self._closed:
            raise ConnectionClosed(unread=True)
        self._number = (self._number + 1) % (1 << 32)
        self._channel.send(Message(self._number, what, signature, wanted, extra), tensors)
        answer, locations = self._channel.receive()
        detail, self.ongoing = read_answer(answer, self._number)
        return detail, locations


class ChannelPool:
    """Connections that any thread may use."""

    def __init__(self, channels: Sequence[RequestChannel]) -> None:
        self._channels = tuple(channels)
        self._changed = threading.Condition()  # guards _idle and _closed
        self._idle = list(self._channels)
        self._closed = False

    def call(
        self, what: str, signature: str, tensors: Mapping[str, Tensor], deadline: float | None
    ) -> dict[str, Array]:
        """Calls over an idle channel, as :meth:`RequestChannel.call`; DEADLINE_EXCEEDED if no channel is idle in time,
        ConnectionClosed if there is none at all."""
        channel = self._borrow(deadline)
        try:
            return channel.call(what, signature, tensors, (), deadline)
        finally:
            with self._changed:
                self._idle.append(channel)
                self._changed.notify()

    def finish(self) -> None:
        """Closes each channel after the call in it."""
        for channel in self._channels:
            channel.finish()

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

    def _borrow(self, deadline: float | None) -> RequestChannel:
        with self._changed:
            while self._channels and not self._closed and not self._idle:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise ServingError(
                        StatusCode.DEADLINE_EXCEEDED, "the deadline passed while the request waited for its own steps"
                    )
                self._changed.wait(left)
            if self._closed or not self._idle:
                raise ConnectionClosed(unread=True)
            return self._idle.pop()


def _in_order(locations: list[TensorLocation], wanted: Sequence[str]) -> list[TensorLocation]:
    """The locations in the order of the wanted names, of which the model may have left some out. ProtocolError for any
    other name."""
    if not wanted:
        return locations
    found = {location.name: location for location in locations}
    if not found.keys() <= set(wanted):
        raise ProtocolError("other outputs than were asked for")
    return [found[name] for name in wanted if name in found]
