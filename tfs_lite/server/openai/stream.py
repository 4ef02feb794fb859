"""Texts of one request on their way to a client, as server-sent events: as fast as it reads, and no faster.

    model -> add (the loop) -> [waiting, by choice] -> take -> Printer.chunks -> PieceStream -> the client

A slow reader holds nobody up: what comes for a choice in the meantime leaves as one event. How much that can be is
known from the start, by the length of the texts. A reader that takes nothing for too long is given up: its texts are
cancelled, and the connection ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any

from starlette.responses import Response

from tfs_lite.core.generation import Piece, Usage, join_pieces
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.connection import ABORT, WRITE_TIMEOUT
from tfs_lite.server.http.events import EVENT_TYPE, event
from tfs_lite.server.http.replies import HttpError
from tfs_lite.server.inference.predictor import Inference, PendingRequest
from tfs_lite.server.openai.errors import openai_error_text

logger = logging.getLogger(__name__)

WAITING = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"


class SlowReader(HttpError):
    """CANCELLED: the client has not read any more of its answer for too long. The error itself is not sent."""

    def __init__(self, seconds: float) -> None:
        super().__init__(StatusCode.CANCELLED, f"the client has read nothing for {seconds:g} s", 499)


class Pieces:
    """Order: ``begin``, ``wait`` and ``take`` until ``ended``, ``check``, ``close``. All on the loop; its callbacks may
    call ``add``."""

    def __init__(self, texts: int, eager: bool) -> None:
        """``eager`` means that tokens are sent even when they add no text yet."""
        self.usages: list[Usage | None] = [None] * texts
        self._eager = eager
        self._waiting: dict[int, list[Piece]] = {}
        self._ready: dict[int, None] = {}
        self._changed = asyncio.Event()
        self._pending: PendingRequest | None = None
        self._end: asyncio.Task[Inference] | None = None

    def add(self, servable_id: ServableId, piece: Piece) -> None:
        self._waiting.setdefault(piece.index, []).append(piece)
        if piece.usage is not None:
            self.usages[piece.index] = piece.usage
        if piece.text or piece.finish is not None or (self._eager and (piece.tokens or piece.logprobs)):
            self._ready[piece.index] = None
            self._changed.set()

    def begin(self, pending: PendingRequest) -> None:
        self._pending = pending
        self._end = asyncio.get_running_loop().create_task(pending.answer())
        self._end.add_done_callback(self._over)

    @property
    def ended(self) -> bool:
        """Whether no more will come. What has come may still have to be taken."""
        return self._end is not None and self._end.done()

    async def wait(self, seconds: float) -> bool:
        """Waits for something to take, or the end, and returns True; False after ``seconds`` without either."""
        if self._ready or self.ended:
            return True
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> list[Piece]:
        """One piece for each choice that has something new, in the order in which it came."""
        taken = [join_pieces(self._waiting.pop(index)) for index in self._ready]
        self._ready.clear()
        return taken

    def check(self) -> None:
        """Raises the request's failure, if it has failed."""
        if self._end is not None and self._end.done():
            self._end.result()

    def close(self) -> None:
        """Cancels texts that are not over. May be called more than once."""
        self._waiting.clear()
        self._ready.clear()
        if self._end is not None and not self._end.done():
            self._end.cancel()
            if self._pending is not None:
                self._pending.cancel()

    def _over(self, end: asyncio.Task[Inference]) -> None:
        if not end.cancelled():
            end.exception()  # marks it as retrieved, so that asyncio does not log it
        self._changed.set()


class PieceStream(Response):
    """Sends what ``pieces`` gives, as ``write`` prints it, and then what ``last`` gives. ``inside`` is closed when
    everything is sent or the client has gone. The last event is a failure, or ``[DONE]``.

    ``ping`` is how many seconds may pass without an event, ``idle`` how many without the client reading any.
    """

    media_type = EVENT_TYPE

    def __init__(
        self,
        pieces: Pieces,
        write: Callable[[Sequence[Piece]], Awaitable[list[bytes]]],
        last: Callable[[], list[bytes]],
        inside: ExitStack,
        headers: dict[str, str],
        ping: float,
        idle: float,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._pieces = pieces
        self._write = write
        self._last = last
        self._inside = inside
        self._ping = ping
        self._idle = idle

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        set_write_timeout: Callable[[float], None] | None = (scope.get("extensions") or {}).get(WRITE_TIMEOUT)
        if set_write_timeout is not None:
            set_write_timeout(self._idle)
        try:
            await self._send_events(scope, send)
            await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except SlowReader as error:
            logger.info("%s: %s", scope["path"], error)
            await _cut(scope, receive)

    async def _send_events(self, scope: Any, send: Any) -> None:
        try:
            with self._inside:
                await self._send_inside(send)
        except SlowReader:
            raise
        except ServingError as error:
            await self._send_data(send, events([openai_error_text(error)]))
        except Exception:
            logger.exception("%s failed", scope["path"])
            await self._send_data(
                send, events([openai_error_text(ServingError(StatusCode.INTERNAL, "internal error"))])
            )

    async def _send_inside(self, send: Any) -> None:
        headers = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await self._send(send, headers)
        pieces = self._pieces
        while True:
            if taken := pieces.take():
                await self._send_data(send, events(await self._write(taken)))
            elif pieces.ended:
                break
            elif not await pieces.wait(self._ping):
                await self._send_data(send, WAITING)
        pieces.check()
        await self._send_data(send, events(self._last()) + DONE)

    async def _send_data(self, send: Any, data: bytes) -> None:
        await self._send(send, {"type": "http.response.body", "body": data, "more_body": True})

    async def _send(self, send: Any, message: dict[str, Any]) -> None:
        """Waits while the client has not read what came before. SlowReader when that takes too long."""
        try:
            async with asyncio.timeout(self._idle):
                await send(message)
        except TimeoutError:
            raise SlowReader(self._idle) from None


def events(bodies: Sequence[bytes]) -> bytes:
    return b"".join(map(event, bodies))


async def _cut(scope: Any, receive: Any) -> None:
    """Ends the connection in mid-answer. Without ABORT the server that runs the application ends it, because the answer
    is not complete."""
    abort: Callable[[], None] | None = (scope.get("extensions") or {}).get(ABORT)
    if abort is None:
        return
    abort()
    while (await receive())["type"] != "http.disconnect":
        pass
