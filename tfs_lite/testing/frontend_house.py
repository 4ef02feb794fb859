"""A pool of real gRPC frontends in front of handlers that misbehave on demand, and clients of it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import psutil

from tfs_lite.core.status import invalid_argument
from tfs_lite.server.door import HEALTH
from tfs_lite.server.frontend_pool import FrontendPool
from tfs_lite.server.reflection_service import ReflectionService
from tfs_lite.testing.grpc_choice import chosen
from tfs_lite.transport.table import CallContext, Method, bidi_stream, client_stream, server_stream, unary

LIMIT = 8_000_000
PROCESSES = 2


class Service:
    """The table; ``ran`` counts what ``echo`` was asked, ``heard_all`` the last words that came."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.entered = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.gate = asyncio.Event()
        self.ran = 0
        self.heard_all = 0

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
        self.heard_all += 1
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
                self.heard_all += 1
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        context.trailers.append(("words", str(len(said))))
        return b"".join(said)


class Talk:
    """A call with messages both ways: ``say`` words, None is the last one; read answers from ``call``."""

    def __init__(self, channel: grpc.Channel, method: str = "talk", **metadata: str) -> None:
        self._words: queue.Queue[bytes | None] = queue.Queue()
        start = channel.stream_stream(f"/test.Service/{method}")
        self.call = start(iter(self._words.get, None), timeout=30, metadata=tuple(metadata.items()))

    def say(self, *words: bytes | None) -> None:
        for word in words:
            self._words.put(word)


class Words:
    """A call with many messages and one answer: ``say`` words, None is the last one; the answer is in ``future``."""

    def __init__(self, channel: grpc.Channel, method: str = "join", **metadata: str) -> None:
        self._words: queue.Queue[bytes | None] = queue.Queue()
        start = channel.stream_unary(f"/test.Service/{method}")
        self.future = start.future(iter(self._words.get, None), timeout=30, metadata=tuple(metadata.items()))

    def say(self, *words: bytes | None) -> None:
        for word in words:
            self._words.put(word)


class Served:
    """A pool that runs on a loop of its own, and clients of it."""

    def __init__(self, loop_thread: Any, service: Service, pool: FrontendPool, port: int | None) -> None:
        self.loop, self.service, self.pool, self.port = loop_thread, service, pool, port
        self._channels = ExitStack()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def channel(self, address: str = "") -> grpc.Channel:
        """A connection of its own."""
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
        ]
        return self._channels.enter_context(grpc.insecure_channel(address or self.address, options=options))

    def channel_to_each(self) -> list[grpc.Channel]:
        """Channels until every frontend has at least one."""
        channels = []
        while not all(connections(pid, self.port) for pid in self.pool.process_ids):
            channels.append(self.channel())
            assert call(channels[-1], "echo") == b"x"
            assert len(channels) < 100
        return channels

    def open_gate(self) -> None:
        self.loop.loop.call_soon_threadsafe(self.service.gate.set)

    def stop(self, grace: float = 0.0) -> None:
        self.loop.run(self.pool.stop(grace))

    def close(self) -> None:
        self._channels.close()


@contextmanager
def serving(loop_thread: Any, socket_path: str = "", port: int | None = 0, **settings: Any) -> Iterator[Served]:
    """``loop_thread`` runs coroutines on a loop of its own: ``run(coroutine, timeout)`` and ``loop``. Whatever happens,
    no frontend outlives the block. ``settings`` are those of the pool."""

    async def start() -> Served:
        service = Service()
        pool = FrontendPool(service.methods(), LIMIT, **{"processes": PROCESSES, "server": chosen(), **settings})
        return Served(loop_thread, service, pool, await pool.start("127.0.0.1", port, socket_path))

    served = loop_thread.run(start(), timeout=100)
    pids = served.pool.process_ids
    try:
        yield served
    finally:
        served.stop()
        served.close()
    assert not any(psutil.pid_exists(pid) for pid in (*pids, *served.pool.process_ids))
    assert served.pool.frontends == served.pool.calls_inside == 0


def call(channel: grpc.Channel, method: str, data: bytes = b"x", timeout: float | None = 30.0) -> bytes:
    answer: bytes = channel.unary_unary(f"/test.Service/{method}")(data, timeout=timeout)
    return answer


def connections(pid: int, port: int | None) -> int:
    """How many clients a frontend has."""
    try:
        found = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return 0
    return sum(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port for one in found)
