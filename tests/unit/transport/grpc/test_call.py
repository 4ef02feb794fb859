"""Single calls over real sockets: with grpcio's clients, and with bytes that no client of grpcio sends."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import time
import zlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import message
from tests.support.grpc.transport_fixture import ECHO, FAIL, LOOPS, PATIENCE, REPLY, WAIT, Refused, TransportFixture
from tests.support.servers.process import wait_until
from tfs_lite.transport.grpc import call as call_module
from tfs_lite.transport.grpc.codes import CANCELLED, DEADLINE_EXCEEDED
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.limits import Limits

LIMITS = Limits(max_receive_message=5_000_000, max_send_message=4_500_000)
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(params=sorted(LOOPS))
def server(request: pytest.FixtureRequest) -> Iterator[TransportFixture]:
    with TransportFixture(request.param, LIMITS) as made:
        yield made


@pytest.fixture
def channel(server: TransportFixture) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.target, LARGE) as made:
        yield made


def call(channel: grpc.Channel, path: str, request: bytes, timeout: float | None = PATIENCE, **more: Any) -> bytes:
    answer: bytes = channel.unary_unary(path)(request, timeout=timeout, **more)
    return answer


def failure(channel: grpc.Channel, path: str, request: bytes, timeout: float | None = PATIENCE, **more: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, path, request, timeout, **more)
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 300_000, 4_000_000])
def test_message_comes_back_as_it_went(server: TransportFixture, channel: grpc.Channel, size: int) -> None:
    data = bytes(at % 251 for at in range(size))
    assert call(channel, ECHO, data) == data
    assert server.numbers.calls == {(ECHO, 0): 1}
    assert (server.numbers.messages_received, server.numbers.messages_sent) == (1, 1)


def test_many_calls_at_once_on_one_connection(server: TransportFixture, channel: grpc.Channel) -> None:
    futures = [channel.unary_unary(ECHO).future(b"%d" % at, timeout=PATIENCE) for at in range(300)]
    assert [future.result() for future in futures] == [b"%d" % at for at in range(300)]
    assert server.numbers.connections_total == 1


def test_client_on_asyncio_is_served(server: TransportFixture) -> None:
    async def ask() -> list[bytes]:
        async with grpc.aio.insecure_channel(server.target) as channel:
            return list(await asyncio.gather(*(channel.unary_unary(ECHO)(b"%d" % at) for at in range(50))))

    assert asyncio.run(ask()) == [b"%d" % at for at in range(50)]


def test_handler_knows_deadline_and_metadata(server: TransportFixture, channel: grpc.Channel) -> None:
    before = time.monotonic()
    call(channel, ECHO, b"", 20, metadata=(("a", "1"), ("b-bin", b"\0")))
    call(channel, ECHO, b"", None)
    first, second = server.service.contexts
    assert first.deadline is not None
    assert before + 10 < first.deadline < time.monotonic() + 20.1
    assert first.metadata["a"] == "1"
    assert "b-bin" not in first.metadata
    assert second.deadline is None


def test_trailers_of_the_handler_reach_the_client(server: TransportFixture, channel: grpc.Channel) -> None:
    server.service.trailers = [("tokens", "17"), ("tokens", "18")]
    _, done = channel.unary_unary(ECHO).with_call(b"x", timeout=PATIENCE)
    assert [tuple(pair) for pair in done.trailing_metadata()] == [("tokens", "17"), ("tokens", "18")]


def test_trailers_that_are_no_headers_are_the_handlers_error(server: TransportFixture, channel: grpc.Channel) -> None:
    server.service.trailers = [("tokens", "a\r\nb")]
    error = failure(channel, ECHO, b"x")
    assert (error.code(), error.details()) == (grpc.StatusCode.UNKNOWN, f"{ECHO}: ValueError")


@pytest.mark.parametrize(
    ("request_", "code", "details"),
    [
        (b"3 no such field", grpc.StatusCode.INVALID_ARGUMENT, "no such field"),
        ("5 größer als 100 % \n".encode(), grpc.StatusCode.NOT_FOUND, "größer als 100 % \n"),
        (b"crash it", grpc.StatusCode.UNKNOWN, f"{FAIL}: RuntimeError"),
        (b"none", grpc.StatusCode.UNKNOWN, f"{FAIL}: TypeError"),
        (b"cancel", grpc.StatusCode.CANCELLED, "the call was cancelled by the server"),
    ],
)
def test_error_of_a_handler_is_explained(
    server: TransportFixture, channel: grpc.Channel, request_: bytes, code: grpc.StatusCode, details: str
) -> None:
    error = failure(channel, FAIL, request_)
    assert (error.code(), error.details()) == (code, details)
    assert server.numbers.calls == {(FAIL, code.value[0]): 1}


def test_call_that_is_not_let_in_does_not_reach_its_handler(server: TransportFixture, channel: grpc.Channel) -> None:
    server.service.refusing = Refused(8, "full")
    error = failure(channel, ECHO, b"x")
    assert (error.code(), error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    assert server.service.contexts == []
    assert server.service.happened["released"] == 0


def test_unknown_method_is_unimplemented(server: TransportFixture, channel: grpc.Channel) -> None:
    assert failure(channel, "/test.Service/nothing", b"x" * 100_000).code() is grpc.StatusCode.UNIMPLEMENTED
    assert call(channel, ECHO, b"x") == b"x"
    assert server.numbers.calls[("", 12)] == 1


def test_deadline_ends_the_call_and_cancels_the_handler(server: TransportFixture) -> None:
    raw = server.dial()
    raw.request(1, WAIT, message(b"x"), (b"grpc-timeout", b"100m"))
    assert raw.status(1) == (4, "Deadline Exceeded")
    wait_until(lambda: server.service.happened["cancelled"], "the handler is cancelled")
    wait_until(lambda: server.numbers.streams == 0, "its stream no longer counts")


def test_deadline_counts_while_the_request_comes_in(server: TransportFixture) -> None:
    raw = server.dial()
    raw.request(1, WAIT, message(b"x", size=100), (b"grpc-timeout", b"50m"), end=False)
    assert raw.status(1)[0] == 4
    reset = raw.read_until(lambda frame: frame.kind == h2.RST_STREAM)
    assert (reset.stream, reset.value) == (1, ErrorCode.NO_ERROR)


def end_replies(server: TransportFixture, result: bytes | Exception, count: int = 1) -> None:
    wait_until(lambda: server.service.happened["started"] == count, "the handlers have replied")
    for reply in server.service.replies:
        server.loop.call_soon_threadsafe(reply.end, result)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_reply_is_answered_when_it_ends(
    server: TransportFixture, channel: grpc.Channel, compression: grpc.Compression
) -> None:
    ask = channel.unary_unary(REPLY)
    futures = [ask.future(b"x" * 1000, timeout=PATIENCE, compression=compression) for _ in range(3)]
    end_replies(server, b"answer", 3)
    assert [future.result() for future in futures] == [b"answer"] * 3
    assert [reply.request for reply in server.service.replies] == [b"x" * 1000] * 3
    assert server.numbers.calls == {(REPLY, 0): 3}
    assert not server.service.happened["cancelled"]


@pytest.mark.parametrize(
    ("result", "code", "text"),
    [
        (Refused(5, "gone"), grpc.StatusCode.NOT_FOUND, "gone"),
        (RuntimeError("a bug"), grpc.StatusCode.UNKNOWN, f"{REPLY}: RuntimeError"),
        ("no bytes", grpc.StatusCode.UNKNOWN, f"{REPLY}: TypeError"),
    ],
)
def test_reply_that_fails_is_answered_with_its_status(
    server: TransportFixture, channel: grpc.Channel, result: Any, code: grpc.StatusCode, text: str
) -> None:
    future = channel.unary_unary(REPLY).future(b"x", timeout=PATIENCE)
    end_replies(server, result)
    assert (future.code(), future.details()) == (code, text)


def test_reply_is_cancelled_with_its_call_and_then_has_no_effect(
    server: TransportFixture, channel: grpc.Channel
) -> None:
    future = channel.unary_unary(REPLY).future(b"x", timeout=PATIENCE)
    wait_until(lambda: server.service.happened["started"], "the handler has replied")
    future.cancel()
    wait_until(lambda: server.numbers.calls == {(REPLY, 1): 1}, "the call has ended")
    raw = server.dial()
    raw.request(1, REPLY, message(b"x"), (b"grpc-timeout", b"1S"))
    assert raw.status(1)[0] == 4
    wait_until(lambda: server.service.happened["cancelled"] == 2, "both replies are cancelled")
    wait_until(lambda: server.numbers.streams == 0, "their streams no longer count")
    end_replies(server, b"too late", 2)
    assert call(channel, ECHO, b"next") == b"next"
    assert server.numbers.calls == {(REPLY, 1): 1, (REPLY, 4): 1, (ECHO, 0): 1}


def test_client_that_cancels_cancels_the_handler(server: TransportFixture, channel: grpc.Channel) -> None:
    future = channel.unary_unary(WAIT).future(b"x", timeout=PATIENCE)
    wait_until(lambda: server.service.happened["started"], "the handler runs")
    future.cancel()
    wait_until(lambda: server.service.happened["cancelled"], "the handler is cancelled")
    assert server.numbers.calls == {(WAIT, 1): 1}


@pytest.mark.parametrize("whole", [True, False])
def test_call_that_is_cancelled_before_its_handler_is_told_to_the_owner(server: TransportFixture, whole: bool) -> None:
    raw = server.dial()
    fields = [(name, ECHO.encode() if name == b":path" else value) for name, value in h2.REQUEST]
    for stream in (1, 3):
        raw.send(raw.peer.open(stream, fields), h2.data(stream, message(b"x"), ended=whole), h2.rst_stream(stream))
    wait_until(lambda: server.numbers.calls == {(ECHO, 1): 2}, "the calls have ended")
    assert server.service.unread == {(ECHO, CANCELLED): 2}
    assert server.service.contexts == []


def test_call_whose_task_has_not_run_yet_is_told_as_well(server: TransportFixture) -> None:
    server.dial().request(1, ECHO, end=False)
    wait_until(lambda: server.numbers.streams == 1, "the call waits for its message")

    async def cancel_at_once() -> None:
        (call,) = server.transport.common.calls
        call.receive(message(b"x"), True)
        call.start()
        call.reset()

    server.run(cancel_at_once())
    wait_until(lambda: server.numbers.streams == 0, "its stream no longer counts")
    assert server.service.unread == {(ECHO, CANCELLED): 1}
    assert server.service.contexts == []


def test_call_whose_message_does_not_come_in_time_is_told_with_its_code(server: TransportFixture) -> None:
    fields = [(name, ECHO.encode() if name == b":path" else value) for name, value in h2.REQUEST]
    raw = server.dial()
    raw.send(raw.peer.open(1, [*fields, (b"grpc-timeout", b"20m")]), h2.data(1, message(b"xyz")[:-1]))
    wait_until(lambda: server.service.unread == {(ECHO, DEADLINE_EXCEEDED): 1}, "the owner was told")
    assert server.service.contexts == []


@pytest.mark.parametrize("path", [WAIT, REPLY])
def test_call_whose_handler_has_begun_is_not_told(server: TransportFixture, path: str) -> None:
    raw = server.dial()
    raw.request(1, path, message(b"x"))
    wait_until(lambda: server.service.happened["started"], "the handler runs")
    raw.send(h2.rst_stream(1))
    wait_until(lambda: server.numbers.calls == {(path, 1): 1}, "the call has ended")
    assert not server.service.unread


def test_connection_that_is_lost_cancels_its_handlers(server: TransportFixture) -> None:
    raw = server.dial()
    for stream in (1, 3, 5):
        raw.request(stream, WAIT, message(b"x"))
    wait_until(lambda: server.service.happened["started"] == 3, "the handlers run")
    raw.close()
    wait_until(lambda: server.service.happened["cancelled"] == 3, "the handlers are cancelled")
    wait_until(lambda: server.numbers.streams == 0, "their streams no longer count")
    assert server.numbers.closed == {"client": 1}


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_stream_counts_until_the_handler_has_really_ended(loop: str) -> None:
    with TransportFixture(loop, Limits(max_streams=1)) as server:
        server.service.stubborn = True
        raw = server.dial()
        raw.request(1, WAIT, message(b"x"))
        wait_until(lambda: server.service.happened["started"], "the handler runs")
        raw.send(h2.rst_stream(1))
        wait_until(lambda: server.service.happened["cancelled"], "the handler is cancelled")
        raw.request(3, ECHO, message(b"x"))
        refused = raw.read_until(lambda frame: frame.kind == h2.RST_STREAM)
        assert (refused.stream, refused.value) == (3, ErrorCode.REFUSED_STREAM)
        server.service.open()
        wait_until(lambda: server.numbers.streams == 0, "the place is free")
        raw.request(5, ECHO, message(b"x"))
        assert raw.status(5) == (0, "")


def test_request_larger_than_the_bound_is_refused_before_it_has_come(server: TransportFixture) -> None:
    raw = server.dial()
    raw.request(1, ECHO, message(b"x", size=5_000_001), end=False)
    assert raw.status(1) == (8, "Received message larger than max (5000001 vs. 5000000 bytes)")
    raw.read_until(lambda frame: frame.kind == h2.RST_STREAM and frame.value == ErrorCode.NO_ERROR)
    assert server.service.unread == {(ECHO, 8): 1}
    assert server.service.unread_texts == ["Received message larger than max (5000001 vs. 5000000 bytes)"]


@pytest.mark.parametrize(
    ("field", "code", "text"),
    [
        ((b"grpc-timeout", b"5Z"), 13, "grpc-timeout is 1 to 8 digits"),
        ((b"grpc-encoding", b"snappy"), 12, "grpc-encoding is one of"),
    ],
)
def test_call_that_is_refused_by_its_head_is_told_to_the_owner(
    server: TransportFixture, field: tuple[bytes, bytes], code: int, text: str
) -> None:
    raw = server.dial()
    raw.request(1, ECHO, message(b"x"), field)
    assert raw.status(1)[0] == code
    assert server.service.unread == {(ECHO, code): 1}
    assert server.service.unread_texts[0].startswith(text)


def test_call_that_the_owner_does_not_take_is_told_to_it(server: TransportFixture) -> None:
    server.service.refusing = Refused(8, "full")
    raw = server.dial()
    raw.request(1, ECHO, message(b"x"))
    assert raw.status(1) == (8, "full")
    assert (server.service.unread, server.service.unread_texts) == ({(ECHO, 8): 1}, ["full"])


def test_answer_larger_than_the_bound_is_not_sent(server: TransportFixture, channel: grpc.Channel) -> None:
    error = failure(channel, ECHO, bytes(4_600_000))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "4600000 vs. 4500000" in error.details()


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [10, 200_000, 4_400_000])
def test_compressed_request_is_inflated(server: TransportFixture, channel: grpc.Channel, kind: str, size: int) -> None:
    compression = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}[kind]
    assert call(channel, ECHO, b"ab" * (size // 2), compression=compression) == b"ab" * (size // 2)


@pytest.mark.parametrize(
    ("encoding", "contents", "code", "text"),
    [
        pytest.param(b"gzip", message(gzip.compress(bytes(5_000_001)), 1), 8, "larger than max", id="a bomb"),
        pytest.param(b"deflate", message(zlib.compress(bytes(900))[:-4], 1), 13, "", id="compressed and cut"),
        pytest.param(b"gzip", message(b"no gzip", 1), 13, "", id="garbage"),
        pytest.param(b"identity", message(b"abc", 1), 13, "", id="compressed without an encoding"),
        pytest.param(b"identity", b"", 12, "takes one message, and none came", id="nothing"),
        pytest.param(b"identity", message(b"a") + message(b"b"), 12, "takes one message, and more came", id="two"),
        pytest.param(b"identity", message(b"abc")[:-1], 13, "1 bytes did not come", id="cut"),
        pytest.param(b"identity", b"\0\0", 13, "prefix did not come", id="cut in the prefix"),
        pytest.param(b"identity", message(b"abc", flag=7), 13, "0 or 1, not 7", id="a bad flag"),
    ],
)
def test_request_that_is_not_one_message_fails(
    server: TransportFixture, encoding: bytes, contents: bytes, code: int, text: str
) -> None:
    raw = server.dial()
    raw.request(1, ECHO, contents, (b"grpc-encoding", encoding))
    status = raw.status(1)
    assert status[0] == code
    assert text in status[1]
    assert server.service.contexts == []
    assert server.service.unread == {(ECHO, code): 1}
    assert server.service.unread_texts == [status[1]]


def test_request_in_single_bytes_is_understood(server: TransportFixture) -> None:
    raw = server.dial(preface=False)
    whole = (
        h2.PREFACE
        + raw.peer.settings()
        + raw.peer.open(1, [*h2.REQUEST[:2], (b":path", ECHO.encode()), *h2.REQUEST[3:]])
    )
    for at in range(len(whole)):
        raw.send(whole[at : at + 1])
    for byte in message(b"hello"):
        raw.send(h2.data(1, bytes([byte])))
    raw.send(h2.data(1, b"", ended=True))
    answer = raw.read_until(lambda frame: frame.kind == h2.DATA)
    assert answer.payload == message(b"hello")
    assert raw.status(1) == (0, "")


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_half_received_requests_are_bounded_together(loop: str) -> None:
    with TransportFixture(loop, Limits(max_unread=20_000, max_receive_message=20_000)) as server:
        first, second = server.dial(), server.dial()
        first.request(1, ECHO, message(bytes(12_000), size=15_000), end=False)
        wait_until(lambda: server.numbers.unread == 12_005, "the half is kept")
        second.request(1, ECHO, message(bytes(12_000), size=15_000), end=False)
        assert second.status(1)[0] == 8
        first.send(h2.data(1, bytes(3_000), ended=True))
        assert first.status(1) == (0, "")


def test_request_of_a_caller_who_is_not_admitted_is_not_received(server: TransportFixture) -> None:
    raw = server.dial()
    raw.request(1, ECHO, message(bytes(16_000), size=4_000_000), (b"stranger", b"1"), end=False)
    assert raw.status(1) == (7, "not you")
    assert server.numbers.unread == 0
    assert not server.service.unread, "who has refused it knows that"
    raw.request(3, ECHO, message(b"a"), end=True)
    assert raw.status(3) == (0, "")


def test_bug_in_the_transport_is_logged_and_costs_its_connection_only(
    server: TransportFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other, raw = server.dial(), server.dial()
    monkeypatch.setattr(call_module, "RESPONSE_HEADERS", None)
    with caplog.at_level(logging.ERROR):
        raw.request(1, ECHO, message(b"x"))
        end = raw.read_until(lambda frame: frame.kind == h2.GOAWAY)
    assert end.value == ErrorCode.INTERNAL_ERROR
    assert "failed in the server itself" in caplog.text
    monkeypatch.undo()
    other.request(1, ECHO, message(b"x"))
    assert other.status(1) == (0, "")
    wait_until(lambda: server.numbers.closed["internal"] == 1, "the connection is closed")


def calls_and_streams() -> int:
    """By their types: some objects of torch do things when they are asked for their class."""
    return sum(issubclass(type(found), call_module.Call | Stream) for found in gc.get_objects())


def test_call_that_has_ended_leaves_nothing_for_the_collector(server: TransportFixture, channel: grpc.Channel) -> None:
    call(channel, ECHO, b"warm")
    gc.collect()
    gc.disable()
    before = calls_and_streams()
    try:
        for number in range(50):
            call(channel, ECHO, b"x")
            failure(channel, FAIL, b"5 gone")
            future = channel.unary_unary(REPLY).future(b"x", timeout=PATIENCE)
            end_replies(server, b"answer", number + 1)
            assert future.result() == b"answer"
            server.service.replies.clear()
        wait_until(lambda: server.numbers.streams == 0, "every stream is gone")
        server.service.contexts.clear()
        left = calls_and_streams() - before
    finally:
        gc.enable()
    assert left <= 2  # the last one may still be on some stack
