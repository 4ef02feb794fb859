"""A pool of real gRPC frontends in front of handlers that misbehave on demand, and clients of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import psutil

from tfs_lite.core.status import invalid_argument
from tfs_lite.server.door import HEALTH
from tfs_lite.server.frontend_pool import FrontendPool
from tfs_lite.transport.table import CallContext, Method, server_stream, unary

LIMIT = 8_000_000
PROCESSES = 2


class Service:
    """The table; ``ran`` counts what ``echo`` was asked."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.entered = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.gate = asyncio.Event()
        self.ran = 0

    def methods(self) -> list[Method]:
        handlers = (self.echo, self.refuse, self.crash, self.wait)
        rows = [unary(f"/test.Service/{handler.__name__}", handler) for handler in handlers]
        streams = [
            server_stream("/test.Service/trickle", self.trickle),
            server_stream("/test.Service/count", self.count),
            server_stream(f"{HEALTH}Watch", self.trickle),
        ]
        return [*rows, *streams, unary(f"{HEALTH}Check", self.echo)]

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
        pool = FrontendPool(service.methods(), LIMIT, **{"processes": PROCESSES, **settings})
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
