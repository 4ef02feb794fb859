"""Texts of one request on their way to a client, as server-sent events: as fast as it reads, and no faster.

    PendingRequest -> Choices -> Printer.chunks -> PieceStream -> the client

A slow reader holds nobody up: what comes for a choice in the meantime leaves as one event. A reader that takes nothing
for too long is given up: its texts are cancelled, and the connection ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any, cast

from starlette.responses import Response

from tfs_lite.core.generation import Piece, Usage, join_pieces
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.connection import ABORT, WRITE_TIMEOUT
from tfs_lite.server.http.events import EVENT_TYPE, event
from tfs_lite.server.http.replies import HttpError
from tfs_lite.server.inference.pending import PendingRequest
from tfs_lite.server.openai.errors import openai_error_text

logger = logging.getLogger(__name__)

WAITING = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"


class SlowReader(HttpError):
    """CANCELLED: the client has not read any more of its answer for too long. The error itself is not sent."""

    def __init__(self, seconds: float) -> None:
        super().__init__(StatusCode.CANCELLED, f"the client has read nothing for {seconds:g} s", 499)


class Choices:
    """Joins the pieces of several texts, by choice. ``usages`` are those of the texts that are over."""

    def __init__(self, texts: int, eager: bool) -> None:
        """``eager`` means that tokens are sent even when they add no text yet."""
        self.usages: list[Usage | None] = [None] * texts
        self._eager = eager
        self._waiting: dict[int, list[Piece]] = {}
        self._ready: dict[int, None] = {}

    def add(self, piece: Piece) -> None:
        self._waiting.setdefault(piece.index, []).append(piece)
        if piece.usage is not None:
            self.usages[piece.index] = piece.usage
        if piece.text or piece.finish is not None or (self._eager and (piece.tokens or piece.logprobs)):
            self._ready[piece.index] = None

    @property
    def ready(self) -> bool:
        """Whether there is something to take."""
        return bool(self._ready)

    async def wait(self, pending: PendingRequest, seconds: float) -> bool:
        """Adds pieces of the request until there is something to take, or the request has ended, and returns True;
        False after ``seconds`` without either."""
        until = time.monotonic() + seconds
        while True:
            for piece in pending.take():
                self.add(cast("Piece", piece))
            if self._ready or pending.over:
                return True
            if not await pending.wait(until - time.monotonic()):
                return False

    def take(self) -> list[Piece]:
        """One piece for each choice that has something new, in the order in which it came."""
        taken = [join_pieces(self._waiting.pop(index)) for index in self._ready]
        self._ready.clear()
        return taken


class PieceStream(Response):
    """Sends what ``choices`` give, as ``write`` prints it, and then what ``last`` gives. ``inside`` is closed when
    everything is sent or the client has gone. The last event is a failure, or ``[DONE]``.

    ``ping`` is how many seconds may pass without an event, ``idle`` how many without the client reading any.
    """

    media_type = EVENT_TYPE

    def __init__(
        self,
        pending: PendingRequest,
        choices: Choices,
        write: Callable[[Sequence[Piece]], Awaitable[list[bytes]]],
        last: Callable[[], list[bytes]],
        inside: ExitStack,
        headers: dict[str, str],
        ping: float,
        idle: float,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._pending = pending
        self._choices = choices
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
        pending, choices = self._pending, self._choices
        while True:
            if taken := choices.take():
                await self._send_data(send, events(await self._write(taken)))
            elif not await choices.wait(pending, self._ping):
                await self._send_data(send, WAITING)
            elif pending.over and not choices.ready:
                break
        pending.check()
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
