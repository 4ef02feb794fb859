"""Takes the answers of one request, of which a model may give several, to the client: as they are or as events.

    model -> add (the loop) -> [bounded] -> next -> text -> EventStream -> the client, as fast as it reads

A model that is many answers ahead of its client waits until the client has read some. A language model does not wait,
but the length of a text is known from the start. The bytes that wait are bounded too, for each client and for all
together; beyond that the request is cancelled and the stream ends with an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from starlette.responses import Response

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.v2.json_answer import printed_size
from tfs_lite.protocols.v2.request import InferAnswer
from tfs_lite.server.http.events import EVENT_TYPE, event
from tfs_lite.server.v2.http_replies import error_text, v2_status
from tfs_lite.server.v2.inference import PendingV2Request

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 128 << 20
"""Of one request."""
MAX_ALL_WAITING_BYTES = 512 << 20
EVENT_BYTES = 512
"""What an answer takes beside its values."""


class EventRoom:
    """Counts the bytes that wait for clients. On the event loop."""

    def __init__(self, one: int = MAX_WAITING_BYTES, together: int = MAX_ALL_WAITING_BYTES) -> None:
        self._one = one
        self._together = together
        self.held = 0

    def take(self, size: int, waiting: int) -> bool:
        """Reserves ``size`` more bytes for a client for which ``waiting`` wait already; False means no room. There
        is always room for a client for which nothing waits."""
        if waiting and (waiting + size > self._one or self.held + size > self._together):
            return False
        self.held += size
        return True

    def give(self, size: int) -> None:
        self.held -= size


class Answers:
    """Order: ``begin``, ``next`` until it gives None, ``close``. All on the loop; its callbacks may call ``add``."""

    def __init__(self, room: EventRoom) -> None:
        self._room = room
        self._parts: deque[tuple[InferAnswer, int]] = deque()
        self._waiting = 0
        self._changed = asyncio.Event()
        self._overflown = False
        self._finished = False
        self._taken = False
        self._pending: PendingV2Request | None = None
        self._end: asyncio.Task[InferAnswer] | None = None

    def add(self, answer: InferAnswer) -> None:
        """One of several answers."""
        if self._overflown or self._finished:
            return
        size = EVENT_BYTES + printed_size(answer, True)
        if not self._room.take(size, self._waiting):
            self._overflown = True
            if self._pending is not None:
                self._pending.cancel()
        else:
            self._waiting += size
            self._parts.append((answer, size))
        self._changed.set()

    def begin(self, pending: PendingV2Request) -> None:
        self._pending = pending
        self._end = asyncio.get_running_loop().create_task(pending.answer())
        self._end.add_done_callback(self._ended)

    @property
    def generates(self) -> bool:
        """Whether they are those of a language model. Once it has begun."""
        assert self._pending is not None
        return self._pending.generates

    async def next(self) -> InferAnswer | None:
        """The next answer; None means that there are no more. Called when the one before is sent, which lets the model
        go on. Raises the model's failure; RESOURCE_EXHAUSTED when too much waits."""
        assert self._end is not None
        assert self._pending is not None
        if self._taken:
            self._pending.part_sent()
            self._taken = False
        while not self._parts:
            if self._overflown:
                raise _too_slow()
            if self._end.done():
                return self._last(self._end.result())
            self._changed.clear()
            await self._changed.wait()
        answer, size = self._parts.popleft()
        self._taken = True
        self._waiting -= size
        self._room.give(size)
        return answer

    def close(self) -> None:
        """Drops what waits and cancels the request. May be called at any time, more than once."""
        self._finished = True
        self._parts.clear()
        self._room.give(self._waiting)
        self._waiting = 0
        if self._end is not None:
            self._end.cancel()
        if self._pending is not None:
            self._pending.cancel()

    def _last(self, answer: InferAnswer) -> InferAnswer | None:
        """The final answer; None for one without outputs of a model that gave parts before."""
        assert self._pending is not None
        if self._finished or (self._pending.decoupled and not answer.outputs):
            self._finished = True
            return None
        self._finished = True
        return answer

    def _ended(self, end: asyncio.Task[InferAnswer]) -> None:
        if not end.cancelled():
            end.exception()  # marks it as retrieved, so that asyncio does not log it
        self._changed.set()


class EventStream(Response):
    """Sends ``first``, and then what ``next_text`` gives, until it gives None. ``inside`` is closed when everything is
    sent or the client has gone. A failure becomes the last event."""

    media_type = EVENT_TYPE

    def __init__(
        self, first: bytes | None, next_text: Callable[[], Awaitable[bytes | None]], inside: ExitStack
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._first = first
        self._next_text = next_text
        self._inside = inside
        self._begun = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with self._inside:
                text = self._first
                while text is not None:
                    await self._send(send, text)
                    text = await self._next_text()
        except ServingError as error:
            await self._send(send, error_text(error))
        except Exception:
            logger.exception("%s failed", scope["path"])
            await self._send(send, error_text(ServingError(StatusCode.INTERNAL, "internal error")))
        await self._send(send, b"", more=False)

    async def _send(self, send: Any, text: bytes, more: bool = True) -> None:
        """Waits while the client has not read what came before."""
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": event(text) if text else b"", "more_body": more})


def failed_stream(error: ServingError) -> Response:
    """A stream whose only event is that the model failed."""
    return Response(event(error_text(error)), v2_status(error), media_type=EVENT_TYPE)


def _too_slow() -> ServingError:
    return ServingError(
        StatusCode.RESOURCE_EXHAUSTED,
        "the client reads the answers more slowly than the model makes them, and too many wait for it: "
        "the request is cancelled",
    )
