"""What both gRPC servers promise: the library's and ours."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from tests.support.errors import refusal
from tests.support.servers.grpc_fixture import GrpcFixture, connect
from tests.support.servers.process import wait_until
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.server.grpc.admission import HEALTH
from tfs_lite.server.grpc.status import truncate
from tfs_lite.transport.table import CallContext, server_stream, unary

LIMIT = 100_000


class Service:
    """Handlers that misbehave on demand."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.entered = threading.Semaphore(0)
        self.cancelled = threading.Event()
        self.gate = asyncio.Event()

    def methods(self) -> list[Any]:
        handlers = (self.echo, self.refuse, self.crash, self.wait)
        rows = [unary(f"/test.Service/{handler.__name__}", handler) for handler in handlers]
        streams = [
            server_stream(f"/test.Service/{handler.__name__}", handler) for handler in (self.count, self.trickle)
        ]
        return [*rows, *streams, unary(f"{HEALTH}Check", self.echo)]

    async def echo(self, data: bytes, context: CallContext) -> bytes:
        self.contexts.append(context)
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
            self.cancelled.set()
            raise
        return data

    async def count(self, data: bytes, context: CallContext) -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number
        if data == b"fail":
            raise invalid_argument("no more")

    async def trickle(self, data: bytes, context: CallContext) -> AsyncIterator[bytes]:
        yield b"first"
        await self.gate.wait()


@pytest.fixture
def service() -> Service:
    return Service()


Serve = Callable[..., GrpcFixture]


@pytest.fixture
def serve(loop_thread: Any, service: Service, each_server: str) -> Iterator[Serve]:
    """``serve(**settings)`` starts another server of the service."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            GrpcFixture(loop_thread, each_server, service.methods(), LIMIT, **settings)
        )


@pytest.fixture
def server(serve: Serve) -> GrpcFixture:
    return serve()


@pytest.fixture
def channel(server: GrpcFixture) -> grpc.Channel:
    return server.channel


def call(channel: grpc.Channel, method: str, data: bytes = b"x", timeout: float | None = 20.0) -> bytes:
    answer: bytes = channel.unary_unary(f"/test.Service/{method}")(data, timeout=timeout)
    return answer


def refused(channel: grpc.Channel, method: str, data: bytes = b"x") -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, method, data)
    return caught.value.code(), caught.value.details()


def test_deadline_of_the_client_reaches_the_handler(channel: grpc.Channel, service: Service) -> None:
    call(channel, "echo", timeout=None)
    call(channel, "echo", timeout=50.0)
    none, some = service.contexts
    assert none.deadline is None
    assert some.deadline is not None
    assert 20 < some.deadline - time.monotonic() < 60


def test_serving_error_becomes_its_code_and_message(channel: grpc.Channel) -> None:
    assert refused(channel, "refuse", b"wrong") == (grpc.StatusCode.INVALID_ARGUMENT, "wrong")


def test_message_over_the_limit_only_is_cut(channel: grpc.Channel) -> None:
    _, details = refused(channel, "refuse", b"a" * 2000)
    assert details == "a" * 1024 + "...TRUNCATED"
    assert truncate("a" * 1024) == "a" * 1024


def test_unexpected_error_is_internal_and_its_text_stays_in_the_log(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    assert refused(channel, "crash") == (grpc.StatusCode.INTERNAL, "internal error")
    assert "the secret is in" in caplog.text


def test_message_over_the_limit_is_refused_and_the_server_goes_on(channel: grpc.Channel) -> None:
    code, _ = refused(channel, "echo", b"x" * (LIMIT + 1))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert call(channel, "echo") == b"x"


def test_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    assert refused(channel, "nothing")[0] is grpc.StatusCode.UNIMPLEMENTED


def test_stream_sends_its_messages_and_then_its_error(channel: grpc.Channel) -> None:
    assert list(channel.unary_stream("/test.Service/count")(b"", timeout=20)) == [b"0", b"1", b"2"]
    stream = channel.unary_stream("/test.Service/count")(b"fail", timeout=20)
    assert [next(stream), next(stream), next(stream)] == [b"0", b"1", b"2"]
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_handler_is_cancelled_when_the_client_goes(channel: grpc.Channel, service: Service) -> None:
    future = channel.unary_unary("/test.Service/wait").future(b"x")
    assert service.entered.acquire(timeout=20)
    future.cancel()
    assert service.cancelled.wait(20)


def test_stop_answers_what_is_inside_and_refuses_the_rest(
    loop_thread: Any, server: GrpcFixture, channel: grpc.Channel, service: Service
) -> None:
    inside = channel.unary_unary("/test.Service/wait").future(b"inside")
    assert service.entered.acquire(timeout=20)
    stopping = asyncio.run_coroutine_threadsafe(server.server.stop(20), loop_thread.loop)
    codes = Counter[str]()
    while not codes["UNAVAILABLE"]:
        try:
            call(channel, "echo")
        except grpc.RpcError as error:
            codes[error.code().name] += 1
    loop_thread.loop.call_soon_threadsafe(service.gate.set)
    assert inside.result(timeout=20) == b"inside"
    stopping.result(20)
    assert set(codes) == {"UNAVAILABLE"}


def test_stop_under_load_breaks_no_call_that_got_in(loop_thread: Any, server: GrpcFixture, service: Service) -> None:
    answered = threading.Semaphore(0)

    def client(_: int) -> str:
        with connect(server.target) as channel:
            while True:
                try:
                    call(channel, "echo")
                    answered.release()
                except grpc.RpcError as error:
                    return error.code().name

    with ThreadPoolExecutor(8) as pool:
        codes = pool.map(client, range(8))
        for _ in range(200):
            assert answered.acquire(timeout=20)
        loop_thread.run(server.server.stop(20))
        assert list(codes) == ["UNAVAILABLE"] * 8


def test_call_that_outlives_the_grace_is_cancelled(
    loop_thread: Any, server: GrpcFixture, channel: grpc.Channel, service: Service
) -> None:
    inside = channel.unary_unary("/test.Service/wait").future(b"inside")
    assert service.entered.acquire(timeout=20)
    loop_thread.run(server.server.stop(0.2))
    assert service.cancelled.wait(20)
    assert inside.exception(timeout=20) is not None


def test_port_in_use_is_one_clear_line(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refusal(serve, port=port, code=StatusCode.FAILED_PRECONDITION)
    assert f"port {port} of 127.0.0.1 is already in use (--port)" in message


def test_address_of_another_machine_is_refused(serve: Serve) -> None:
    with pytest.raises(ServingError, match="--host"):
        serve(host="203.0.113.7")


def test_unix_socket_serves_too_and_is_gone_afterwards(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "a socket"
    server = serve(port=None, path=str(path))
    with connect(f"unix:{tmp_path}/a%20socket") as channel:
        assert call(channel, "echo") == b"x"
    assert path.is_socket()
    server.stop()
    assert not path.exists()


def test_the_socket_of_a_server_that_died_is_taken_over(serve: Serve, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
    assert call(serve(port=None, path=path).channel, "echo") == b"x"


def test_the_socket_of_a_server_that_lives_is_not_taken_away(serve: Serve, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    server = serve(port=None, path=path)
    with pytest.raises(ServingError, match="another server listens there"):
        serve(port=None, path=path)
    assert call(server.channel, "echo") == b"x"


def test_arguments_win_over_our_own(serve: Serve) -> None:
    channel = serve(arguments=[("grpc.max_receive_message_length", 10), ("grpc.primary_user_agent", "me")]).channel
    assert refused(channel, "echo", b"x" * 11)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert call(channel, "echo", b"x" * 10) == b"x" * 10


def test_a_port_is_shared_only_if_the_arguments_say_so(serve: Serve, server: GrpcFixture) -> None:
    sharing = [("grpc.so_reuseport", 1)]
    first = serve(arguments=sharing)
    assert serve(arguments=sharing, port=first.port).port == first.port
    for arguments in (sharing, []):
        with pytest.raises(ServingError, match=r"in use \(--port\)"):
            serve(arguments=arguments, port=server.port)


def test_calls_beyond_the_limit_are_refused_at_once(loop_thread: Any, serve: Serve, service: Service) -> None:
    with serve(max_concurrent_calls=2).channel as channel:
        waiting = channel.unary_unary("/test.Service/wait").future(b"inside")
        assert service.entered.acquire(timeout=20)
        stream = channel.unary_stream("/test.Service/trickle")(b"", timeout=20)
        assert next(stream) == b"first"
        code, details = refused(channel, "echo")
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 calls inside" in details
        assert channel.unary_unary(f"{HEALTH}Check")(b"x", timeout=20) == b"x"
        stream.cancel()
        wait_until(lambda: answers(channel), "the place of a stream that was cancelled is free")
        loop_thread.loop.call_soon_threadsafe(service.gate.set)
        assert waiting.result(timeout=20) == b"inside"


def answers(channel: grpc.Channel) -> bool:
    try:
        return call(channel, "echo") == b"x"
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017
        return False


@pytest.mark.parametrize("character", ["x", "ä", "\U0001f600", "%", "\n"])
def test_an_error_text_fits_into_a_header_however_it_is_encoded(character: str) -> None:
    text = truncate(character * 5000)
    assert text.endswith("...TRUNCATED")
    assert len(quote(text, safe="".join(map(chr, range(0x20, 0x7F))).replace("%", ""))) < 5000
    assert truncate(character * 100) == character * 100
