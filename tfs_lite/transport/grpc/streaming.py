"""Calls with streams of messages: answers are sent no faster than the client reads them, and requests are received no
faster than the handler reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from tfs_lite.transport.condition import OneWaiter
from tfs_lite.transport.grpc.call import SHUTTING_DOWN, Call, CallOwner, OneRequestCall, widen_window
from tfs_lite.transport.grpc.codes import OK, UNAVAILABLE
from tfs_lite.transport.grpc.head import RequestHead
from tfs_lite.transport.grpc.messages import PREFIX, PREFIX_SIZE, Assembler, MessageFault
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.table import CallKind, Method

YIELD_EVERY = 32
"""Answers of a handler after which other tasks of the loop have their turn."""

WAITING_COST = 112
"""Bytes of memory that a waiting message takes in addition to its own; an empty one is only 5 bytes on the wire."""


class ResponseSender(OneWaiter):
    """Sends what a handler yields; the handler continues when all of it has been written to the socket."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    async def send(self, messages: AsyncIterator[bytes]) -> None:
        """Sends all ``messages``. The handler's generator is closed in any case."""
        count = 0
        try:
            async for message in messages:
                self._send(message)
                if self._call.stream.queue:
                    await self.sleep()
                    count = 0
                elif (count := count + 1) == YIELD_EVERY:
                    await asyncio.sleep(0)
                    count = 0
        finally:
            close = getattr(messages, "aclose", None)
            if close is not None:
                await close()

    def _send(self, message: bytes) -> None:
        call = self._call
        if call.done:
            return
        call.check(message)
        call.send_headers()
        call.common.numbers.messages_sent += 1
        call.connection.data(call.stream, PREFIX.pack(0, len(message)) + message)


class ServerStreamCall(OneRequestCall):
    """One request, many answers."""

    __slots__ = ("_answers",)

    def __init__(self, owner: CallOwner, method: Method, stream: Stream, head: RequestHead) -> None:
        super().__init__(owner, method, stream, head)
        self._answers = ResponseSender(self)

    def on_writable(self) -> None:
        self._answers.wake()

    async def call_handler(self) -> None:
        handler: Any = self.method.handler
        if self.compressed:
            await self.inflate()
        await self._answers.send(handler(self.take_message(), self))
        self.finish(OK)


class StreamedCall(Call):
    """A call with a stream of requests, and one answer or many. The handler starts at once."""

    __slots__ = ("_answers", "_requests")

    def __init__(self, owner: CallOwner, method: Method, stream: Stream, head: RequestHead) -> None:
        super().__init__(owner, method, stream, head)
        self._answers = ResponseSender(self)
        self._requests = RequestStream(self)

    def begin(self) -> None:
        super().begin()
        if self.common.draining:
            self.drain()
        self.begin_handler()

    def receive(self, data: bytes, ended: bool) -> None:
        if self.done:
            return
        try:
            self._requests.feed(data, ended)
        except MessageFault as fault:
            self.abort(fault.code, fault.text)

    def drain(self) -> None:
        self._requests.stop()

    def on_writable(self) -> None:
        self._answers.wake()

    def close(self) -> None:
        self._requests.close()
        super().close()

    async def call_handler(self) -> bytes | None:
        handler: Any = self.method.handler
        if self.method.kind is CallKind.CLIENT_STREAM:
            answer: bytes = await handler(self._requests, self)
            self._check_whole()
            return answer
        await self._answers.send(handler(self._requests, self))
        self._check_whole()
        self.finish(OK)
        return None

    def _check_whole(self) -> None:
        if self._requests.stopped:
            raise MessageFault(UNAVAILABLE, SHUTTING_DOWN)


class RequestStream(OneWaiter):
    """The client's messages, as the handler's iterator. It ends when the client half-closes the call, or after ``stop``
    (``stopped``). One reader at a time.

    Messages that wait are bounded by the stream's window, and counted with the memory they take. A message is credited
    to the window when it is taken; the bytes of an unfinished one at once, but only while no whole one waits.
    """

    __slots__ = ("_assembler", "_call", "_credited", "_ended", "_queue", "stopped")

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call
        self._assembler = Assembler(call.common.limits.max_receive_message, call.common.limits.receive_flag)
        self._queue: deque[tuple[bool, bytes, int]] = deque()
        """Whether it is compressed, the message, and how many of its bytes were not credited yet."""
        self._credited = 0
        """Bytes of the unfinished message that were credited."""
        self._ended = False
        self.stopped = False

    def feed(self, data: bytes, ended: bool) -> None:
        """Takes data of the stream. Raises MessageFault."""
        if self.stopped or not self._call.count_unread(len(data)):
            return
        messages = self._assembler.feed(data)
        if messages and not self._call.count_unread(len(messages) * WAITING_COST):
            return
        for compressed, message in messages:
            self._queue.append((compressed, message, len(message) + PREFIX_SIZE - self._credited))
            self._credited = 0
        if ended:
            self._assembler.finish()
            self._ended = True
        elif not self._queue:
            self._credit_unfinished()
        self.wake()

    def stop(self) -> None:
        """Ends the iterator after the messages that wait, unless the client has half-closed the call already."""
        if not self._ended:
            self.stopped = True
            self.wake()

    def close(self) -> None:
        """Ends the iterator at once: the call is over."""
        self._ended = True
        self._queue.clear()
        self.wake()

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> bytes:
        while not self._queue:
            if self._ended or self.stopped:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise RuntimeError("two readers of one stream of requests")
            await self.sleep()
        call = self._call
        compressed, message, uncredited = self._queue[0]
        size = len(message) + PREFIX_SIZE
        if compressed:
            message = await call.common.inflater.inflate(message, call.head.encoding)
        self._queue.popleft()
        call.common.numbers.messages_received += 1
        call.count_unread(-size - WAITING_COST)
        call.connection.credit(call.stream, uncredited)
        if not self._queue:
            self._credit_unfinished()
        return message

    def _credit_unfinished(self) -> None:
        call, assembler = self._call, self._assembler
        call.connection.credit(call.stream, assembler.held - self._credited)
        self._credited = assembler.held
        widen_window(call, assembler)
