"""The near end of one line to a child: a question, its answer. And a few of them, for whoever finds one idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.workers.arena import Arena, Array, Place, read_places
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.wire import CLOSE, read_failure


class ChildChannel:
    """One connection with memory for each direction. Threads: ``ask`` any, one after the other; ``hang_up`` any, at any
    time, and then whoever asks gets Gone. The memory belongs to whoever made it."""

    def __init__(self, channel: Channel, inputs: Staging, outputs: Arena) -> None:
        self.channel = channel
        self.inputs = inputs
        self.outputs = outputs
        self._asking = threading.Lock()  # guards _number and the conversation; held while waiting for the answer
        self._closed = False
        self._number = 0

    def ask(
        self,
        what: str,
        signature: str,
        tensors: Mapping[str, Tensor],
        wanted: Sequence[str],
        deadline: float | None = None,
    ) -> dict[str, Array]:
        """The child's answer, copied. ``wanted`` empty: whatever it returns. Raises what the child answers, Gone,
        Garbage; RESOURCE_EXHAUSTED if the tensors are too large."""
        with self._asking:
            if self._closed:
                raise ConnectionClosed(unread=True)
            places = self.inputs.place(tensors)
            self._number = (self._number + 1) % (1 << 32)
            seconds = None if deadline is None else deadline - time.monotonic()
            plain = [place.plain for place in places]
            self.channel.send((self._number, what, signature, wanted, plain, seconds))
            found = _in_order(_answer(self.channel.receive(), self._number), wanted)
            return {place.name: self.outputs.get(place) for place in found}

    def say_goodbye(self, patience: float) -> None:
        """Asks the process to end, once nobody asks anything else of it. Raises Gone if it is too late for that, or if
        it is still at work after ``patience`` seconds."""
        if not self._asking.acquire(timeout=patience):
            raise ConnectionClosed
        try:
            if self._closed:
                raise ConnectionClosed
            self.channel.send((0, CLOSE, "", (), (), None))
        finally:
            self._asking.release()

    def hang_up(self) -> None:
        self.channel.hang_up()

    def close(self) -> None:
        """Hangs up, and frees the connection when whoever still asks has noticed. May be called again."""
        self.channel.hang_up()
        with self._asking:
            self._closed = True
            self.channel.close()


class LanePool:
    """Lanes that any thread may borrow. Their memory is theirs, and ends with them."""

    def __init__(self, lanes: Sequence[ChildChannel]) -> None:
        self._lanes = tuple(lanes)
        self._changed = threading.Condition()  # guards _idle and _over
        self._idle = list(self._lanes)
        self._over = False

    def ask(self, what: str, signature: str, tensors: Mapping[str, Tensor], deadline: float | None) -> dict[str, Array]:
        """As :meth:`ChildChannel.ask`; DEADLINE_EXCEEDED if no lane is idle in time."""
        lane = self._borrow(deadline)
        try:
            return lane.ask(what, signature, tensors, (), deadline)
        finally:
            with self._changed:
                self._idle.append(lane)
                self._changed.notify()

    def hang_up(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for lane in self._lanes:
            lane.hang_up()

    def close(self) -> None:
        self.hang_up()
        for lane in self._lanes:
            lane.close()
            lane.inputs.close()
            lane.outputs.close()

    def _borrow(self, deadline: float | None) -> ChildChannel:
        with self._changed:
            while not self._over and not self._idle:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise ServingError(
                        StatusCode.DEADLINE_EXCEEDED, "the deadline passed while the request waited for its own steps"
                    )
                self._changed.wait(left)
            if self._over:
                raise ConnectionClosed(unread=True)
            return self._idle.pop()


def _answer(raw: object, number: int) -> list[Place]:
    if not isinstance(raw, list) or len(raw) != 3 or type(raw[0]) is not int or raw[0] != number:
        raise ProtocolError("no answer to the question")
    if type(raw[1]) is int and raw[1] == StatusCode.OK:
        return read_places(raw[2])
    raise read_failure(raw[1], raw[2])


def _in_order(places: list[Place], wanted: Sequence[str]) -> list[Place]:
    """The places of exactly the wanted names, in their order."""
    if not wanted:
        return places
    found = {place.name: place for place in places}
    if len(found) != len(wanted) or not all(name in found for name in wanted):
        raise ProtocolError("other outputs than were asked for")
    return [found[name] for name in wanted]
