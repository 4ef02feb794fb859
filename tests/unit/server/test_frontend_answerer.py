"""The server's end of the wire, and what a frontend may not do with it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_answerer import Answerer
from tfs_lite.server.frontend_ring import make_memory, map_memory
from tfs_lite.server.frontend_wire import HEAD
from tfs_lite.transport.table import CallContext, Method, bidi_stream, client_stream, unary

PATIENCE = 30


class Service:
    """``echo``, ``wait`` and two that take many requests; ``ran`` counts calls of the first, ``entered`` is set by the
    second, ``heard`` counts the last words."""

    def __init__(self) -> None:
        self.ran = 0
        self.heard = 0
        self.entered = asyncio.Event()

    def methods(self) -> list[Method]:
        rows = [unary("/test.Service/echo", self.echo), unary("/test.Service/wait", self.wait)]
        many = [bidi_stream("/test.Service/talk", self.talk), client_stream("/test.Service/hold", self.hold)]
        return [*rows, *many]

    async def echo(self, data: bytes, context: CallContext) -> bytes:
        self.ran += 1
        return data

    async def talk(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        async for data in requests:
            yield data
        self.heard += 1

    async def hold(self, requests: AsyncIterator[bytes], context: CallContext) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def wait(self, data: bytes, context: CallContext) -> bytes:
        self.entered.set()
        await asyncio.Event().wait()
        return data


async def settled() -> None:
    """Returns when every other task has ended."""
    async with asyncio.timeout(PATIENCE):
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def head(kind: int, *, code: int = 0, call: int = 0, length: int = 0, value: int = 0) -> bytes:
    return HEAD.pack(kind, 0, code, call, length, value)


def begin(row: int, call: int = 1) -> bytes:
    """A call of a method that takes many requests."""
    return head(wire.CALL, code=row, call=call, length=2) + b"{}"


GARBAGE = {
    "a call with many requests without metadata": (head(wire.CALL, code=2, call=1), "no metadata"),
    "metadata that is too deep": (
        head(wire.CALL, code=2, call=1, length=wire.MAX_INLINE) + b"[" * wire.MAX_INLINE,
        "65536 bytes that are no metadata",
    ),
    "a message of a call with one request": (head(wire.MESSAGE, call=2**31), "call 2147483648, which has one request"),
    "a last word of a call with one request": (head(wire.LAST, call=2**31), "call 2147483648, which has one request"),
    "a message behind the last one": (
        begin(3) + head(wire.LAST, call=1) + head(wire.MESSAGE, call=1),
        "a message behind the last one",
    ),
    "two last words": (begin(3) + head(wire.LAST, call=1) * 2, "a second last word"),
    "more messages than there may be": (
        begin(3) + head(wire.MESSAGE, call=1) * (wire.WINDOW + 1),
        "a message behind 32 others with 0 bytes",
    ),
    "no kind": (head(0), "kind 0"),
    "a kind of the other side": (head(wire.ANSWER), "kind 4"),
    "a row that is not there": (head(wire.CALL, code=4), "row 4, of 4"),
    "one call twice": (head(wire.CALL, code=1) * 2, "a second call 0"),
    "credit for nothing": (head(wire.CREDIT, value=0), "credit for 0"),
    "credit for too much": (head(wire.CREDIT, value=10**9), "credit for 1000000000"),
    "ready twice": (head(wire.READY, value=5) * 2, "kind 10"),
    "a failure that is none": (head(wire.FAILED, code=0), "code 0"),
    "a failure of no code": (head(wire.FAILED, code=99), "code 99"),
    "text": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "bytes"),
    "more calls than there may be": (
        b"".join(head(wire.CALL, code=1, call=call) for call in range(wire.MAX_CALLS + 1)),
        "more than 10000 calls",
    ),
}


class Watched(Answerer):
    """Tells when it has more to send than the frontend takes."""

    paused: asyncio.Event

    def pause_writing(self) -> None:
        super().pause_writing()
        self.paused.set()


@asynccontextmanager
async def raw() -> AsyncIterator[tuple[Service, Watched, Callable[[bytes], Awaitable[None]]]]:
    loop, descriptor, service = asyncio.get_running_loop(), make_memory(1024 * 1024), Service()
    answerer = Watched(map_memory(descriptor), service.methods())
    answerer.paused = asyncio.Event()
    os.close(descriptor)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    await loop.create_unix_connection(lambda: answerer, sock=ours)
    with theirs:
        yield service, answerer, lambda data: loop.sock_sendall(theirs, data)
        answerer.abort()
        await answerer.gone
    await settled()


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_closes_that_frontend_and_cancels_its_calls(name: str) -> None:
    data, words = GARBAGE[name]

    async def test() -> None:
        async with raw() as (_, answerer, send):
            await send(head(wire.CALL, code=1, call=2**31) + data)
            async with asyncio.timeout(PATIENCE):
                await answerer.gone
            assert words in answerer.broken
            await settled()
            assert answerer.calls_inside == 0
            if answerer.ready.done():
                answerer.ready.exception()

    run(test())


def test_cancel_and_credit_for_calls_that_are_over_are_no_garbage() -> None:
    async def test() -> None:
        async with raw() as (service, answerer, send):
            await send(head(wire.CANCEL, call=5) + head(wire.CREDIT, call=5, value=1) + head(wire.CALL, code=1))
            await service.entered.wait()
            assert answerer.broken == ""

    run(test())


def test_messages_of_calls_that_are_over_are_no_garbage() -> None:
    async def test() -> None:
        async with raw() as (service, answerer, send):
            await send(head(wire.MESSAGE, call=5) + head(wire.LAST, call=6) * 2)
            await send(begin(2) + head(wire.CANCEL, call=1) + head(wire.MESSAGE, call=1) + head(wire.CALL, code=1))
            await service.entered.wait()
            assert answerer.broken == ""
            assert service.heard == 0

    run(test())


def test_a_frontend_that_is_gone_has_said_no_last_word() -> None:
    async def test() -> None:
        async with raw() as (service, answerer, send):
            await send(begin(2) + head(wire.MESSAGE, call=1) + head(wire.CALL, code=1))
            await service.entered.wait()
            answerer.abort()
            await answerer.gone
            await settled()
            assert (answerer.calls_inside, service.heard) == (0, 0)

    run(test())


def test_a_frontend_that_does_not_read_gets_no_more_calls_in() -> None:
    async def test() -> None:
        async with raw() as (service, answerer, send):
            payload = b"x" * 60_000

            async def flood() -> None:
                for call in range(10**6):
                    await send(HEAD.pack(wire.CALL, 0, 0, call, len(payload), wire.NO_DEADLINE) + payload)

            flooding = asyncio.ensure_future(flood())
            await answerer.paused.wait()
            assert await _quiet(service) * len(payload) < 20 * wire.HIGH_WATER
            assert not flooding.done()
            flooding.cancel()

    run(test())


async def _quiet(service: Service) -> int:
    """How many calls came in, when no more do for many turns of the loop."""
    count, turns = service.ran, 0
    while turns < 200:
        await asyncio.sleep(0)
        turns = turns + 1 if service.ran == count else 0
        count = service.ran
    return count
