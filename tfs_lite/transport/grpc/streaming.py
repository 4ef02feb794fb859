"""Calls with streams of messages: answers go out no faster than the client takes them, requests come in no faster than
the handler takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from tfs_lite.transport.grpc.call import SHUTTING_DOWN, Call, CallOwner, OneRequestCall, make_room
from tfs_lite.transport.grpc.codes import OK, UNAVAILABLE
from tfs_lite.transport.grpc.head import RequestHead
from tfs_lite.transport.grpc.messages import PREFIX, PREFIX_SIZE, Assembler, MessageFault
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.table import CallContext, CallKind, Method

BREATH = 32
"""Answers that a handler may give without a pause; then others have their turn."""

WAITING_COST = 112
"""Bytes that a message takes beside its own while it waits; those of the shortest are 5 on the wire."""


class Answers:
    """Sends what a handler yields; the handler goes on when everything it said has left for the socket."""

    __slots__ = ("_call", "_room")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._room: asyncio.Future[None] | None = None

    async def send(self, messages: AsyncIterator[bytes]) -> None:
        """All of them. The handler's generator is closed on every way out."""
        count = 0
        try:
            async for message in messages:
                self._send(message)
                if self._call.stream.queue:
                    await self._wait()
                    count = 0
                elif (count := count + 1) == BREATH:
                    await asyncio.sleep(0)
                    count = 0
        finally:
            close = getattr(messages, "aclose", None)
            if close is not None:
                await close()

    def on_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _send(self, message: bytes) -> None:
        call = self._call
        if call.done:
            return
        call.check(message)
        call.open()
        call.common.numbers.messages_sent += 1
        call.connection.data(call.stream, PREFIX.pack(0, len(message)) + message)

    async def _wait(self) -> None:
        self._room = self._call.common.loop.create_future()
        try:
            await self._room
        finally:
            self._room = None


class ServerStreamCall(OneRequestCall):
    """One request, many answers."""

    __slots__ = ("_answers",)

    def __init__(self, home: CallOwner, row: Method, stream: Stream, opening: RequestHead) -> None:
        super().__init__(home, row, stream, opening)
        self._answers = Answers(self)

    def on_room(self) -> None:
        self._answers.on_room()

    async def perform(self, context: CallContext) -> None:
        handler: Any = self.row.handler
        if self.compressed:
            await self.inflate()
        await self._answers.send(handler(self.take(), context))
        self.finish(OK)


class StreamedCall(Call):
    """Many requests; one answer or many. The handler starts at once."""

    __slots__ = ("_answers", "_requests")

    def __init__(self, home: CallOwner, row: Method, stream: Stream, opening: RequestHead) -> None:
        super().__init__(home, row, stream, opening)
        self._answers = Answers(self)
        self._requests = Requests(self)

    def begin(self) -> None:
        super().begin()
        if self.common.draining:
            self.drain()
        self.start()

    def data(self, data: bytes, ended: bool) -> None:
        if self.done:
            return
        try:
            self._requests.feed(data, ended)
        except MessageFault as fault:
            self.abort(fault.code, fault.text)

    def drain(self) -> None:
        self._requests.cut_off()

    def on_room(self) -> None:
        self._answers.on_room()

    def over(self) -> None:
        self._requests.close()
        super().over()

    async def perform(self, context: CallContext) -> None:
        handler: Any = self.row.handler
        if self.row.kind is CallKind.CLIENT_STREAM:
            answer = await handler(self._requests, context)
            self._check_whole()
            self.answer(answer, context)
        else:
            await self._answers.send(handler(self._requests, context))
            self._check_whole()
            self.finish(OK)

    def _check_whole(self) -> None:
        if self._requests.cut:
            raise MessageFault(UNAVAILABLE, SHUTTING_DOWN)


class Requests:
    """The client's messages, as a handler reads them: until the client has said its last word, or no more are read,
    which is ``cut``. One reader at a time.

    What came and was not taken is bounded by the stream's window, and counted with what it costs to keep. A message is
    credited when it is taken; the bytes of an unfinished one at once, but only while no whole one waits.
    """

    __slots__ = ("_assembler", "_call", "_credited", "_ended", "_queue", "_waiter", "cut")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._assembler = Assembler(call.common.limits.max_receive_message)
        self._queue: deque[tuple[bool, bytes, int]] = deque()
        """Compressed or not, the message, and how many of its bytes the client has no credit for yet."""
        self._credited = 0
        """Of the unfinished message."""
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self.cut = False

    def feed(self, data: bytes, ended: bool) -> None:
        """What came on the stream. Raises MessageFault."""
        if self.cut or not self._call.hold(len(data)):
            return
        messages = self._assembler.feed(data)
        if messages and not self._call.hold(len(messages) * WAITING_COST):
            return
        for compressed, message in messages:
            self._queue.append((compressed, message, len(message) + PREFIX_SIZE - self._credited))
            self._credited = 0
        if ended:
            self._assembler.finish()
            self._ended = True
        elif not self._queue:
            self._credit_unfinished()
        self._wake()

    def cut_off(self) -> None:
        """What waits is still read, and nothing after that. Nothing if the client has said its last word."""
        if not self._ended:
            self.cut = True
            self._wake()

    def close(self) -> None:
        """The call is over; whoever still reads finds nothing."""
        self._ended = True
        self._queue.clear()
        self._wake()

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> bytes:
        while not self._queue:
            if self._ended or self.cut:
                raise StopAsyncIteration
            await self._wait()
        call = self._call
        compressed, message, owed = self._queue[0]
        size = len(message) + PREFIX_SIZE
        if compressed:
            message = await call.common.inflater.inflate(message, call.opening.encoding)
        self._queue.popleft()
        call.common.numbers.messages_received += 1
        call.hold(-size - WAITING_COST)
        call.connection.credit(call.stream, owed)
        if not self._queue:
            self._credit_unfinished()
        return message

    def _credit_unfinished(self) -> None:
        call, assembler = self._call, self._assembler
        call.connection.credit(call.stream, assembler.held - self._credited)
        self._credited = assembler.held
        make_room(call, assembler)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("two readers of one stream of requests")
        self._waiter = self._call.common.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
