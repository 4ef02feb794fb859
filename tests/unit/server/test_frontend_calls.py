"""Both ends of the wire in one process: the frontend's table in front of the server's, without gRPC."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_answerer import Answerer
from tfs_lite.server.frontend_asker import Asker
from tfs_lite.server.frontend_ring import make_memory, map_memory
from tfs_lite.server.frontend_setup import FrontendSetup, rows_of
from tfs_lite.transport.table import CallContext, Method, bidi_stream, server_stream, unary

PATIENCE = 30


class Service:
    """Handlers that misbehave on demand; ``log`` says what became of them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.changed = asyncio.Event()
        self.gate = asyncio.Event()
        self.contexts: list[CallContext] = []

    def methods(self) -> list[Method]:
        handlers = (self.echo, self.refuse, self.crash, self.wait, self.stubborn)
        rows = [unary(f"/test.Service/{handler.__name__}", handler) for handler in handlers]
        streams = [server_stream("/test.Service/count", self.count), bidi_stream("/test.Service/talk", self.talk)]
        return [*rows, *streams]

    def note(self, word: str) -> None:
        self.log.append(word)
        self.changed.set()

    async def saw(self, word: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while word not in self.log:
                self.changed.clear()
                await self.changed.wait()

    async def echo(self, data: bytes, context: CallContext) -> bytes:
        self.contexts.append(context)
        context.trailers.append(("size", str(len(data))))
        return data

    async def refuse(self, data: bytes, context: CallContext) -> bytes:
        raise invalid_argument(data.decode())

    async def crash(self, data: bytes, context: CallContext) -> bytes:
        raise RuntimeError("the secret is in /etc/secret")

    async def wait(self, data: bytes, context: CallContext) -> bytes:
        self.note("entered")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.note("cancelled")
            raise
        return data

    async def stubborn(self, data: bytes, context: CallContext) -> bytes:
        self.note("entered")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            await self.gate.wait()
        return data

    async def talk(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        async for data in requests:
            yield data

    async def count(self, data: bytes, context: CallContext) -> AsyncIterator[bytes]:
        try:
            for number in range(int(data)):
                self.note(f"item {number}")
                yield b"%d" % number
            raise invalid_argument("no more")
        finally:
            self.note("closed")


class House:
    """The two ends, and the frontend's table by name."""

    def __init__(self, service: Service, answerer: Answerer, asker: Asker) -> None:
        self.service, self.answerer, self.asker = service, answerer, asker
        self._table = {method.name: method for method in asker.table(rows_of(service.methods()))}

    async def call(self, name: str, data: bytes = b"x", context: CallContext | None = None) -> bytes:
        handler: Any = self._table[name].handler
        async with asyncio.timeout(PATIENCE):
            answer: bytes = await handler(data, context or CallContext(None))
        return answer

    async def until_answered(self) -> None:
        """Asks again as long as there is no place."""
        while True:
            try:
                assert await self.call("echo") == b"x"
                return
            except ServingError as error:
                assert error.code is StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017
                await asyncio.sleep(0)

    def stream(self, name: str, data: bytes) -> Any:
        handler: Any = self._table[name].handler
        return handler(data, CallContext(None))

    async def refusal(self, name: str, data: bytes = b"x") -> tuple[StatusCode, str]:
        with pytest.raises(ServingError) as caught:
            await self.call(name, data)
        return caught.value.code, str(caught.value)


@asynccontextmanager
async def house(max_calls: int = 10) -> AsyncIterator[House]:
    loop, descriptor, service = asyncio.get_running_loop(), make_memory(1024 * 1024), Service()
    gone = asyncio.Event()
    answerer = Answerer(map_memory(descriptor), service.methods())
    asker = Asker(map_memory(descriptor), lambda grace: service.note(f"drain {grace:g}"), gone.set, max_calls)
    os.close(descriptor)
    for end, sock in zip((answerer, asker), socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda end=end: end, sock=sock)
    yield House(service, answerer, asker)
    assert answerer.broken == asker.broken == ""
    asker.abort()
    await answerer.gone
    await gone.wait()
    await settled()


async def settled() -> None:
    """Returns when every other task has ended."""
    async with asyncio.timeout(PATIENCE):
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


@pytest.mark.parametrize("size", [0, 10, 100_000, 3_000_000])
def test_bytes_and_trailers_come_back(size: int) -> None:
    async def test() -> None:
        async with house() as inside:
            data, context = os.urandom(size), CallContext(None)
            assert await inside.call("echo", data, context) == data
            assert context.trailers == [("size", str(size))]

    run(test())


def test_many_calls_at_once_get_their_own_answers() -> None:
    async def test() -> None:
        async with house(max_calls=500) as inside:
            words = [b"%d" % number * (number % 7 * 20_000) for number in range(500)]
            assert await asyncio.gather(*(inside.call("echo", word) for word in words)) == words
            assert inside.answerer.calls_inside == 0

    run(test())


def test_the_deadline_travels_and_no_deadline_stays_none() -> None:
    async def test() -> None:
        async with house() as inside:
            deadline = time.monotonic() + 50
            await inside.call("echo", context=CallContext(deadline))
            await inside.call("echo", context=CallContext(None))
            some, none = inside.service.contexts
            assert none.deadline is None
            assert some.deadline is not None
            assert deadline - 20 < some.deadline < deadline + 20

    run(test())


def test_a_deadline_that_has_passed_is_still_a_deadline() -> None:
    async def test() -> None:
        async with house() as inside:
            await inside.call("echo", context=CallContext(time.monotonic() - 5))
            assert inside.service.contexts[0].deadline is not None
            assert inside.service.contexts[0].deadline <= time.monotonic()

    run(test())


def test_errors_come_back_with_code_and_message() -> None:
    async def test() -> None:
        async with house() as inside:
            assert await inside.refusal("refuse", "sö nicht".encode()) == (StatusCode.INVALID_ARGUMENT, "sö nicht")
            code, message = await inside.refusal("refuse", b"a" * 200_000)
            assert code is StatusCode.INVALID_ARGUMENT
            assert set(message) == {"a"}
            assert 1024 < len(message) < 2000, "so long that the frontend sees that it must be cut"

    run(test())


def test_an_unexpected_error_is_internal_and_its_text_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with house() as inside:
            assert await inside.refusal("crash") == (StatusCode.INTERNAL, "internal error")

    run(test())
    assert "/test.Service/crash failed" in caplog.text
    assert "the secret is in" in caplog.text


def test_who_goes_away_cancels_the_handler() -> None:
    async def test() -> None:
        async with house() as inside:
            call = asyncio.ensure_future(inside.call("wait"))
            await inside.service.saw("entered")
            call.cancel()
            await inside.service.saw("cancelled")
            assert await inside.call("echo") == b"x"
            assert inside.answerer.calls_inside == 0

    run(test())


def test_a_call_that_is_cancelled_before_its_handler_began_ends_too() -> None:
    async def test() -> None:
        async with house(max_calls=1) as inside:
            call = asyncio.ensure_future(inside.call("wait"))
            await asyncio.sleep(0)  # both frames leave in one write
            call.cancel()
            await inside.until_answered()
            assert inside.answerer.calls_inside == 0
            assert inside.service.log == []

    run(test())


def test_a_cancelled_call_keeps_its_place_until_the_handler_has_ended() -> None:
    async def test() -> None:
        async with house(max_calls=1) as inside:
            call = asyncio.ensure_future(inside.call("stubborn"))
            await inside.service.saw("entered")
            call.cancel()
            code, message = await inside.refusal("echo")
            assert code is StatusCode.RESOURCE_EXHAUSTED
            assert "1 calls inside, the most it takes" in message
            inside.service.gate.set()
            await inside.until_answered()

    run(test())


def test_a_stream_sends_its_items_and_then_its_error() -> None:
    async def test() -> None:
        async with house() as inside:
            stream = inside.stream("count", b"100")
            assert [await anext(stream) for _ in range(100)] == [b"%d" % number for number in range(100)]
            with pytest.raises(ServingError, match="no more"):
                await anext(stream)
            assert inside.service.log[-1] == "closed"

    run(test())


def test_a_stream_that_nobody_reads_is_not_run_ahead_and_is_closed_with_its_reader() -> None:
    async def test() -> None:
        async with house() as inside:
            async with aclosing(inside.stream("count", b"1000000")) as stream:
                assert await anext(stream) == b"0"
                await inside.service.saw(f"item {wire.WINDOW}")
                for _ in range(3):
                    assert await inside.call("echo") == b"x"
                assert inside.service.log[-1] == f"item {wire.WINDOW}"
            await inside.service.saw("closed")
            assert await inside.call("echo") == b"x"

    run(test())


def test_the_end_of_a_frontend_cancels_what_is_inside() -> None:
    async def test() -> None:
        async with house() as inside:
            calls = [asyncio.ensure_future(inside.call("wait")) for _ in range(3)]
            await inside.service.saw("entered")
            inside.asker.abort()
            await inside.answerer.gone
            await inside.service.saw("cancelled")
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        assert inside.service.log == ["entered"] * 3 + ["cancelled"] * 3
        assert inside.answerer.calls_inside == 0

    run(test())


def test_setup_and_drain_are_told() -> None:
    setup = FrontendSetup((("/a/b", "UNARY"),), 5, (("n", 1), ("s", "x")), "tls", "::1", None, "path", "/", 20)

    async def test() -> None:
        async with house() as inside:
            inside.answerer.send(wire.SETUP, payload=setup.encode())
            inside.answerer.send(wire.DRAIN, value=1_500_000)
            assert FrontendSetup.decode(await inside.asker.setup) == setup
            await inside.service.saw("drain 1.5")

    run(test())


def test_streams_of_requests_are_not_served_by_frontends() -> None:
    async def scenario() -> None:
        async with house() as inside:
            with pytest.raises(ServingError) as caught:
                await anext(inside.stream("talk", b""))
            assert caught.value.code is StatusCode.UNIMPLEMENTED
            assert "--grpc_frontends" in str(caught.value)

    run(scenario())
