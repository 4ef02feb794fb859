"""A table of gRPC methods of every kind whose handlers misbehave on demand, and clients of it.

Both gRPC servers are tested with it: what a client sees of a call must not depend on which of them runs it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator

import grpc

from tfs_lite.core.status import invalid_argument
from tfs_lite.server.grpc.admission import HEALTH
from tfs_lite.server.grpc.reflection_service import ReflectionService
from tfs_lite.transport.table import CallContext, Method, bidi_stream, client_stream, server_stream, unary

LIMIT = 8_000_000


class EchoService:
    """The table; ``ran`` counts the calls of ``echo``, ``half_closed`` the calls that their client has half-closed."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.entered = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.gate = asyncio.Event()
        self.ran = 0
        self.half_closed = 0

    def methods(self) -> list[Method]:
        handlers = (self.echo, self.refuse, self.crash, self.wait)
        rows = [unary(f"/test.Service/{handler.__name__}", handler) for handler in handlers]
        streams = [
            server_stream("/test.Service/trickle", self.trickle),
            server_stream("/test.Service/count", self.count),
            server_stream(f"{HEALTH}Watch", self.trickle),
            bidi_stream("/test.Service/talk", self.talk),
            client_stream("/test.Service/join", self.join),
        ]
        health = unary(f"{HEALTH}Check", self.echo)
        return [*rows, *streams, health, *ReflectionService(["test.Service"]).methods()]

    async def echo(self, data: bytes, context: CallContext) -> bytes:
        self.contexts.append(context)
        self.ran += 1
        context.trailers.append(("size", str(len(data))))
        return data

    async def refuse(self, data: bytes, context: CallContext) -> bytes:
        raise invalid_argument(data.decode())

    async def crash(self, data: bytes, context: CallContext) -> bytes:
        raise RuntimeError("the secret is in /etc/secret")

    async def wait(self, data: bytes, context: CallContext) -> bytes:
        self.entered.release()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        return data

    async def trickle(self, data: bytes, context: CallContext) -> AsyncIterator[bytes]:
        yield b"first"
        await self.gate.wait()
        yield b"last"

    async def count(self, data: bytes, context: CallContext) -> AsyncIterator[bytes]:
        for number in range(1000):
            yield b"%d" % number
        raise invalid_argument("no more")

    async def talk(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        """An answer to each request, and ``bye``."""
        self.contexts.append(context)
        try:
            async for data in requests:
                if data == b"fail":
                    raise invalid_argument("no more")
                yield data + b"!"
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        self.half_closed += 1
        yield b"bye"

    async def join(self, requests: AsyncIterator[bytes], context: CallContext) -> bytes:
        """All requests together; ``enough`` is one behind which no more are read."""
        self.contexts.append(context)
        said = []
        try:
            async for data in requests:
                said.append(data)
                self.entered.release()
                if data == b"fail":
                    raise invalid_argument("no more")
                if data == b"enough":
                    break
            else:
                self.half_closed += 1
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        context.trailers.append(("words", str(len(said))))
        return b"".join(said)


class BidiCall:
    """A call with messages both ways: ``send`` requests, None half-closes it; read answers from ``call``."""

    def __init__(self, channel: grpc.Channel, method: str = "talk", **metadata: str) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        start = channel.stream_stream(f"/test.Service/{method}")
        self.call = start(iter(self._requests.get, None), timeout=30, metadata=tuple(metadata.items()))

    def send(self, *requests: bytes | None) -> None:
        for request in requests:
            self._requests.put(request)


class ClientStreamCall:
    """A call with many messages and one answer: ``send`` requests, None half-closes it; the answer is in ``future``."""

    def __init__(self, channel: grpc.Channel, method: str = "join", **metadata: str) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        start = channel.stream_unary(f"/test.Service/{method}")
        self.future = start.future(iter(self._requests.get, None), timeout=30, metadata=tuple(metadata.items()))

    def send(self, *requests: bytes | None) -> None:
        for request in requests:
            self._requests.put(request)


def call(channel: grpc.Channel, method: str, data: bytes = b"x", timeout: float | None = 30.0) -> bytes:
    answer: bytes = channel.unary_unary(f"/test.Service/{method}")(data, timeout=timeout)
    return answer
