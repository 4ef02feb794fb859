"""Both ends of the wire in one process: the frontend's table in front of the server's, without gRPC."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_answerer import Answerer
from tfs_lite.server.frontend_asker import Asker
from tfs_lite.server.frontend_ring import make_memory, map_memory
from tfs_lite.server.frontend_setup import FrontendSetup, rows_of
from tfs_lite.transport.table import CallContext, Method, bidi_stream, client_stream, server_stream, unary

PATIENCE = 30


class Service:
    """Handlers that misbehave on demand; ``log`` says what became of them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.changed = asyncio.Event()
        self.gate = asyncio.Event()
        self.contexts: list[CallContext] = []
        self.refuse_at_once = False

    def methods(self) -> list[Method]:
        handlers = (self.echo, self.refuse, self.crash, self.wait, self.stubborn)
        rows = [unary(f"/test.Service/{handler.__name__}", handler) for handler in handlers]
        streams = [
            server_stream("/test.Service/count", self.count),
            bidi_stream("/test.Service/talk", self.talk),
            client_stream("/test.Service/join", self.join),
        ]
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
        self.contexts.append(context)
        try:
            async for data in requests:
                yield data
            self.note("last word")
        finally:
            self.note("closed")

    async def join(self, requests: AsyncIterator[bytes], context: CallContext) -> bytes:
        """Waits for the gate before it reads."""
        self.contexts.append(context)
        if self.refuse_at_once:
            raise invalid_argument("enough")
        self.note("entered")
        try:
            await self.gate.wait()
            said = [data async for data in requests]
        finally:
            self.note("closed")
        context.trailers.append(("words", str(len(said))))
        return b"".join(said)

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

    def stream(self, name: str, data: Any, context: CallContext | None = None) -> Any:
        """``data``: one request, or many."""
        handler: Any = self._table[name].handler
        return handler(data, context or CallContext(None))

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
    rows, arguments = (("/a/b", "UNARY"),), (("n", 1), ("s", "x"))
    setup = FrontendSetup(rows, 5, arguments, "tls", "::1", None, "path", "grpcio", "/", 20)

    async def test() -> None:
        async with house() as inside:
            inside.answerer.send(wire.SETUP, payload=setup.encode())
            inside.answerer.send(wire.DRAIN, value=1_500_000)
            assert FrontendSetup.decode(await inside.asker.setup) == setup
            await inside.service.saw("drain 1.5")

    run(test())


# Many requests.


class Client:
    """Says words until there are no more; ``said`` counts those that were asked of it."""

    def __init__(self, words: Iterable[bytes], end: Exception | None = None, patient: bool = False) -> None:
        self._words = words
        self._end = end
        self._patient = patient
        self.said = 0
        self.closed = False
        self._asked = asyncio.Event()

    async def has_said(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.said < count:
                self._asked.clear()
                await self._asked.wait()

    async def words(self) -> AsyncIterator[bytes]:
        """With an end raises that, and if patient goes on without one."""
        try:
            for word in self._words:
                self.said += 1
                self._asked.set()
                yield word
            if self._end is not None:
                raise self._end
            if self._patient:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def all_of(items: AsyncIterator[bytes]) -> list[bytes]:
    return [item async for item in items]


def test_messages_go_to_the_handler_and_answers_come_back() -> None:
    async def test() -> None:
        async with house() as inside:
            context = CallContext(time.monotonic() + 50, metadata={"mine": "yes", "other": "\u00e4"})
            words = [os.urandom(size) for size in (0, 1, 65_536, 65_537, 3_000_000, 5_000_000)] * 3
            words += [b"%d" % number for number in range(500)]
            assert await all_of(inside.stream("talk", Client(words).words(), context)) == words
            (seen,) = inside.service.contexts
            assert seen.metadata == {"mine": "yes", "other": "\u00e4"}
            assert seen.deadline is not None
            assert inside.answerer.calls_inside == 0

    run(test())


def test_many_requests_get_one_answer_with_its_trailers() -> None:
    async def test() -> None:
        async with house() as inside:
            inside.service.gate.set()
            words = [b"%d" % number * (number % 7 * 20_000) for number in range(100)]
            context = CallContext(None)
            assert await inside.stream("join", Client(words).words(), context) == b"".join(words)
            assert context.trailers == [("words", "100")]

    run(test())


def test_many_calls_with_many_requests_at_once_get_their_own_answers() -> None:
    async def test() -> None:
        async with house(max_calls=50) as inside:
            inside.service.gate.set()
            said = [[b"%d-%d" % (call, word) * (word % 5 * 10_000) for word in range(40)] for call in range(50)]
            answers = await asyncio.gather(*(inside.stream("join", Client(words).words()) for words in said))
            assert answers == [b"".join(words) for words in said]

    run(test())


@pytest.mark.parametrize(("size", "most"), [(0, wire.WINDOW), (1000, wire.WINDOW), (3_000_000, 2), (5_000_000, 1)])
def test_no_more_is_taken_from_the_client_than_the_window_while_the_handler_reads_nothing(size: int, most: int) -> None:
    async def test() -> None:
        async with house() as inside:
            client = Client(bytes(size) for _ in range(100))
            call = asyncio.ensure_future(inside.stream("join", client.words()))
            await inside.service.saw("entered")
            await client.has_said(most)
            for _ in range(5):
                assert await inside.call("echo", bytes(100_000)) == bytes(100_000)
            assert client.said == most
            inside.service.gate.set()
            assert await call == bytes(100 * size)

    run(test())


def test_who_goes_away_in_the_middle_has_said_no_last_word() -> None:
    async def test() -> None:
        async with house() as inside:
            client = Client([b"a"], patient=True)
            async with aclosing(inside.stream("talk", client.words())) as stream:
                assert await anext(stream) == b"a"
            await inside.service.saw("closed")
            assert inside.service.log == ["closed"]
            await inside.until_answered()
            assert inside.answerer.calls_inside == 0
            assert client.closed, "nobody reads from the client any more"

    run(test())


@pytest.mark.parametrize("name", ["talk", "join"])
def test_what_is_wrong_with_the_clients_messages_fails_the_call(name: str) -> None:
    async def test() -> None:
        async with house() as inside:
            call = inside.stream(name, Client([b"a"], end=invalid_argument("no message")).words())
            with pytest.raises(ServingError, match="no message"):
                await (call if name == "join" else all_of(call))
            await inside.service.saw("closed")
            assert "last word" not in inside.service.log

    run(test())


def test_a_handler_that_does_not_want_more_ends_the_call() -> None:
    async def test() -> None:
        async with house() as inside:
            client = Client(b"x" for _ in range(10**9))
            inside.service.refuse_at_once = True
            async with aclosing(client.words()) as words:
                with pytest.raises(ServingError, match="enough"):
                    await inside.stream("join", words)
            assert client.said <= wire.WINDOW
            assert await inside.call("echo") == b"x"

    run(test())


def test_too_much_metadata_is_refused_and_takes_no_place() -> None:
    async def test() -> None:
        async with house(max_calls=1) as inside:
            for name in ("talk", "join"):
                call = inside.stream(name, Client([]).words(), CallContext(None, metadata={"a": "x" * 70_000}))
                with pytest.raises(ServingError) as caught:
                    await (anext(call) if name == "talk" else call)
                assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
            assert await inside.call("echo") == b"x"

    run(test())


def test_the_end_of_a_frontend_cancels_handlers_of_many_requests() -> None:
    async def test() -> None:
        async with house() as inside:
            stream = inside.stream("talk", Client([b"a"], patient=True).words())
            assert await anext(stream) == b"a"
            inside.asker.abort()
            await inside.answerer.gone
            await inside.service.saw("closed")
            await stream.aclose()
        assert inside.service.log == ["closed"]
        assert inside.answerer.calls_inside == 0

    run(test())
