from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_ring import make_memory, map_memory
from tfs_lite.server.frontend_wire import HEAD, Link

RING = 1024 * 1024
Frame = tuple[int, int, int, int, bytes]


class Recorder(Link):
    """Keeps what it gets."""

    def __init__(self, descriptor: int, *, server_side: bool, max_payload: int = wire.MAX_PAYLOAD) -> None:
        super().__init__(map_memory(descriptor), server_side=server_side, max_payload=max_payload)
        self.frames: list[Frame] = []
        self.chunks = 0
        self.gone = asyncio.Event()
        self._came = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.chunks += 1
        super().data_received(data)

    def on_frame(self, kind: int, code: int, call: int, value: int, payload: bytes) -> None:
        self.frames.append((kind, code, call, value, payload))
        self._came.set()

    def on_lost(self) -> None:
        self.gone.set()

    async def got(self, count: int) -> list[Frame]:
        async with asyncio.timeout(30):
            while len(self.frames) < count:
                self._came.clear()
                await self._came.wait()
        return self.frames


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Recorder, Recorder]]:
    descriptor, loop = make_memory(RING), asyncio.get_running_loop()
    ends = Recorder(descriptor, server_side=True), Recorder(descriptor, server_side=False)
    os.close(descriptor)
    for end, sock in zip(ends, socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda end=end: end, sock=sock)
    yield ends
    ends[0].abort()
    for end in ends:
        await end.gone.wait()


@asynccontextmanager
async def raw(
    max_payload: int = wire.MAX_PAYLOAD,
) -> AsyncIterator[tuple[Recorder, Callable[[bytes], Awaitable[None]]]]:
    """A server's end, and a way to send it anything."""
    descriptor, loop = make_memory(RING), asyncio.get_running_loop()
    end = Recorder(descriptor, server_side=True, max_payload=max_payload)
    os.close(descriptor)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    await loop.create_unix_connection(lambda: end, sock=ours)
    with theirs:
        yield end, lambda data: loop.sock_sendall(theirs, data)
        end.abort()
        await end.gone.wait()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def test_frames_arrive_with_everything_in_them() -> None:
    async def test() -> None:
        async with linked() as (server, frontend):
            frontend.send(wire.CALL, 2**32 - 1, b"hello", code=2**16 - 1, value=-1)
            server.send(wire.FAILURE, 7, b"", code=3, value=2**62)
            assert await server.got(1) == [(wire.CALL, 2**16 - 1, 2**32 - 1, -1, b"hello")]
            assert await frontend.got(1) == [(wire.FAILURE, 3, 7, 2**62, b"")]

    run(test())


def test_frames_of_one_turn_leave_in_one_write() -> None:
    async def test() -> None:
        async with linked() as (server, frontend):
            for call in range(100):
                frontend.send(wire.CALL, call, b"x" * 100)
            await server.got(100)
            assert server.chunks == 1

    run(test())


def test_frames_are_put_together_however_they_are_cut() -> None:
    async def test() -> None:
        async with raw() as (end, send):
            frames = [HEAD.pack(wire.CALL, 0, 0, call, call, -1) + b"y" * call for call in range(40)]
            data, chance, at = b"".join(frames), random.Random(1), 0
            while at < len(data):
                size = chance.randrange(1, 30)
                await send(data[at : at + size])
                at += size
                await asyncio.sleep(0)
            assert await end.got(40) == [(wire.CALL, 0, call, -1, b"y" * call) for call in range(40)]
            assert end.chunks > 40

    run(test())


@pytest.mark.parametrize("size", [wire.MAX_INLINE, wire.MAX_INLINE + 1, RING // 4, RING // 4 + 1, 5 * RING + 3])
def test_payloads_of_any_size_arrive_whole(size: int) -> None:
    async def test() -> None:
        data = random.Random(size).randbytes(size)
        async with linked() as (server, frontend):
            for end, other in ((server, frontend), (frontend, server)):
                end.send(wire.ANSWER, 1, data)
                end.send(wire.ANSWER, 2, data)
                assert [frame[4] == data for frame in await other.got(2)] == [True, True]

    run(test())


def test_large_payloads_do_not_go_through_the_socket() -> None:
    async def test() -> None:
        async with linked() as (server, frontend):
            frontend.send(wire.CALL, 1, bytes(10 * RING))
            await server.got(1)
            assert server.chunks < 100, "heads only"

    run(test())


def test_small_frames_overtake_large_ones_but_not_those_of_their_own_call() -> None:
    async def test() -> None:
        async with linked() as (server, frontend):
            server.send(wire.ITEM, 1, bytes(3 * RING))
            server.send(wire.END, 1)
            server.send(wire.ANSWER, 2, b"quick")
            frames = await frontend.got(3)
            assert [(kind, call) for kind, _, call, _, _ in frames] == [(wire.ANSWER, 2), (wire.ITEM, 1), (wire.END, 1)]

    run(test())


def test_nothing_is_kept_for_an_end_that_is_gone() -> None:
    async def test() -> None:
        async with linked() as (server, frontend):
            frontend.abort()
            await server.gone.wait()
            server.send(wire.ANSWER, 1, b"x")
            server.send(wire.ANSWER, 1, bytes(RING))
            server.close()
            assert server.broken == ""

    run(test())


def test_what_was_sent_before_close_arrives() -> None:
    async def test() -> None:
        async with linked() as (server, frontend):
            frontend.send(wire.BYE)
            frontend.close()
            await server.gone.wait()
            assert [frame[0] for frame in server.frames] == [wire.BYE]

    run(test())


def head(kind: int, *, flags: int = 0, call: int = 0, length: int = 0, value: int = 0) -> bytes:
    return HEAD.pack(kind, flags, 0, call, length, value)


GARBAGE = {
    "a frame that is too long": (head(wire.CALL, length=wire.MAX_INLINE + 1), "65537 bytes"),
    "a piece outside": (head(wire.PIECE, length=10, value=RING), "a piece of 10 bytes"),
    "a piece before the others": (head(wire.PIECE, length=10, value=-20), "a piece of 10 bytes"),
    "pieces of two calls at once": (
        head(wire.PIECE, call=1, length=10) + head(wire.PIECE, call=2, length=10, value=10),
        "a piece of call 2 within the payload of call 1",
    ),
    "a payload without pieces": (head(wire.CALL, call=5, flags=1), "call 5 has no pieces"),
    "the pieces of another call": (
        head(wire.PIECE, call=1, length=10) + head(wire.CALL, call=2, flags=1),
        "call 2 has no pieces",
    ),
    "room that was never used": (head(wire.CONSUMED, value=1), "1 was read"),
    "too many pieces": (
        b"".join(head(wire.PIECE, length=1000, value=at * 1000) for at in range(11)),
        "more than 10000 bytes",
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_closes_the_connection_and_says_why(name: str) -> None:
    data, words = GARBAGE[name]

    async def test() -> None:
        async with raw(max_payload=10_000) as (end, send):
            await send(data + head(wire.CALL))
            async with asyncio.timeout(30):
                await end.gone.wait()
            assert words in end.broken
            assert end.frames == [], "nothing behind the garbage counts"

    run(test())
