"""The writer that turns the responses of one HTTP/1.1 connection into bytes, no faster than the client reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, cast

from tfs_lite.server.http.message import Request, Response, StreamResponse
from tfs_lite.server.http.response_head import CHUNKED, CLOSE, DateLine, header_lines, status_line
from tfs_lite.transport.condition import OneWaiter
from tfs_lite.transport.watch import bytes_on_their_way

JOINED_BYTES = 64 * 1024
"""A body up to this size leaves in one write with its head; a larger one is not copied."""
_MALFORMED = b'{"error":"Invalid HTTP request received."}'
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class AnsweringServer(Protocol):
    """The facts about their server that answers tell. ``closes_connections``: every answer is the last on its
    connection; ``kept``: the lines of every other answer, which say how long it stays."""

    closes_connections: bool
    kept: bytes
    date: DateLine


class ResponseWriter(OneWaiter):
    """``begun``: a part of the current answer was sent; ``keep_alive``: the connection stays after the last one.
    ``paused``: the client has not read enough for more to be sent; the task that sends an answer waits meanwhile.
    ``timeout``: seconds for which the client may read nothing of a stream; 0 for as long as of every answer."""

    __slots__ = (
        "_server",
        "_taken",
        "_taken_since",
        "_transport",
        "_written",
        "begun",
        "keep_alive",
        "paused",
        "timeout",
    )

    def __init__(self, server: AnsweringServer, transport: asyncio.Transport) -> None:
        super().__init__()
        self._server = server
        self._transport = transport
        self.begun = False
        self.keep_alive = True
        self.paused = False
        self.timeout = 0.0
        self._written = 0  # bytes of answers
        self._taken = -1  # how many of them the client's system had at the last check; -1: nothing waited for it
        self._taken_since = 0.0

    def send(self, request: Request, response: Response, is_last: bool = False) -> None:
        """The whole answer; ``is_last``: it ends the connection. ValueError, with nothing sent, for its headers."""
        body = response.body
        empty = response.status in (204, 304)
        length = b"" if empty else b"content-length: %d\r\n" % len(body)
        head = self._head(request, response.status, response.headers, length, is_last)
        self._written += len(head) + len(body)
        if empty or request.head.method == "HEAD":
            self._transport.write(head)
        elif len(body) <= JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    async def send_stream(self, request: Request, stream: StreamResponse) -> None:
        """CancelledError when the client has gone."""
        chunked = not request.head.old
        self.timeout = stream.write_timeout or 0.0
        async with aclosing(cast("AsyncGenerator[bytes, None]", stream.chunks)) as chunks:
            data = self._head(request, stream.status, stream.headers, CHUNKED if chunked else b"")
            while True:
                try:
                    await self._write(data)
                    if request.head.method == "HEAD":
                        return
                    chunk = await anext(chunks, None)
                except asyncio.CancelledError as error:
                    chunk = await _throw(chunks, error)  # a deadline, say, which the stream makes its last chunk
                if chunk is None:
                    break
                data = b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked and chunk else chunk
        if chunked:
            await self._write(b"0\r\n\r\n")

    def send_continue(self) -> None:
        self._transport.write(_CONTINUE)

    def send_malformed(self, request: Request | None) -> None:
        """The answer to bytes that are no request; ``request`` is the one that they belong to, as far as it was
        read."""
        head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(_MALFORMED)
        body = b"" if request is not None and request.head.method == "HEAD" else _MALFORMED
        self._transport.write(b"".join((status_line(400), head, CLOSE, b"\r\n", body)))

    def resume(self) -> None:
        self.paused = False
        self.wake()

    async def until_resumed(self) -> None:
        while self.paused:
            await self.sleep()

    def is_stuck(self, now: float, limit: float) -> bool:
        """Called periodically while something waits to be sent: whether the client has read nothing for ``limit``
        seconds."""
        taken = self._written - bytes_on_their_way(self._transport)
        if taken != self._taken:
            self._taken, self._taken_since = taken, now
        return now - self._taken_since >= limit

    def nothing_waits(self) -> None:
        """Called periodically while nothing waits to be sent."""
        self._taken = -1

    async def _write(self, data: bytes) -> None:
        """Returns when the client has read enough for more. CancelledError when it has gone."""
        if self._transport.is_closing():
            raise asyncio.CancelledError
        if data:
            self._written += len(data)
            self._transport.write(data)
        await self.until_resumed()

    def _head(
        self, request: Request, status: int, headers: dict[str, str], framing: bytes, is_last: bool = False
    ) -> bytes:
        lines, closes = header_lines(headers)
        server = self._server
        self.keep_alive = request.head.keep_alive and not (closes or is_last or server.closes_connections)
        self.begun = True
        close = server.kept if self.keep_alive else b"" if closes else CLOSE
        return b"".join((status_line(status), server.date.get(), framing, lines, request.marks, close, b"\r\n"))


async def _throw(chunks: AsyncGenerator[bytes, None], error: BaseException) -> bytes | None:
    """The chunk that answers the error; None means that there are no more."""
    try:
        return await chunks.athrow(error)
    except StopAsyncIteration:
        return None
