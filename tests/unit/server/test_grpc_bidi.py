"""Calls with messages both ways on gRPC's own server."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from tfs_lite.core.status import invalid_argument
from tfs_lite.server.grpc_server import GrpcServer
from tfs_lite.transport.table import CallContext, Method, bidi_stream


class Service:
    """Talks, or waits for its gate."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.entered = threading.Semaphore(0)
        self.cancelled = threading.Event()
        self.gate = asyncio.Event()

    def methods(self) -> list[Method]:
        return [bidi_stream(f"/test.Service/{handler.__name__}", handler) for handler in (self.converse, self.listen)]

    async def converse(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        self.contexts.append(context)
        async for data in requests:
            if data == b"fail":
                raise invalid_argument("no more")
            yield data + b"!"
        yield b"bye"

    async def listen(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        yield b"go on"
        self.entered.release()
        try:
            await self.gate.wait()
        finally:
            self.cancelled.set()


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(loop_thread: Any, service: Service) -> Iterator[tuple[GrpcServer, int]]:
    async def start() -> tuple[GrpcServer, int]:
        server = GrpcServer(service.methods(), 1000)
        port = await server.start("127.0.0.1", 0, "")
        assert port is not None
        return server, port

    server, port = loop_thread.run(start())
    yield server, port
    loop_thread.run(server.stop(0))


@pytest.fixture
def channel(server: tuple[GrpcServer, int]) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server[1]}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel


class Talk:
    """A call with messages both ways."""

    def __init__(self, channel: grpc.Channel, method: str = "converse", **metadata: str) -> None:
        self.words: queue.Queue[bytes | None] = queue.Queue()
        start = channel.stream_stream(f"/test.Service/{method}")
        self.call = start(iter(self.words.get, None), timeout=20, metadata=tuple(metadata.items()))

    def say(self, word: bytes | None) -> None:
        self.words.put(word)


def test_messages_go_both_ways_until_the_client_has_said_its_last_word(channel: grpc.Channel, service: Service) -> None:
    talk = Talk(channel, mine="yes", other="no")
    for word in (b"a", b"b"):
        talk.say(word)
        assert next(talk.call) == word + b"!"
    talk.say(None)
    assert list(talk.call) == [b"bye"]
    metadata = service.contexts[0].metadata
    assert (metadata["mine"], metadata["other"]) == ("yes", "no")
    assert service.contexts[0].deadline is not None


def test_a_failure_ends_a_call_with_messages_both_ways(channel: grpc.Channel) -> None:
    talk = Talk(channel)
    talk.say(b"fail")
    with pytest.raises(grpc.RpcError) as caught:
        next(talk.call)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "no more")
    talk.say(None)


def test_the_handler_of_a_call_with_messages_both_ways_ends_with_it(channel: grpc.Channel, service: Service) -> None:
    talk = Talk(channel, "listen")
    assert next(talk.call) == b"go on"
    assert service.entered.acquire(timeout=20)
    talk.call.cancel()
    assert service.cancelled.wait(20)
    talk.say(None)


def test_an_idle_call_with_messages_both_ways_does_not_hold_up_a_shutdown(
    loop_thread: Any, service: Service, server: tuple[GrpcServer, int], channel: grpc.Channel
) -> None:
    talk = Talk(channel)
    talk.say(b"a")
    assert next(talk.call) == b"a!"
    loop_thread.run(server[0].stop(3600.0))
    with pytest.raises(grpc.RpcError) as caught:
        list(talk.call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    talk.say(None)
