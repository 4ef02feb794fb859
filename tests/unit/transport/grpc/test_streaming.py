"""Calls with many messages, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import message
from tests.support.grpc.transport_fixture import COUNT, FLOW, LOOPS, PATIENCE, TALK, TOTAL, RawClient, TransportFixture
from tests.support.servers.process import wait_until
from tfs_lite.transport.grpc.streaming import WAITING_COST
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

WINDOW = 65_536
LIMITS = Limits(stream_window=WINDOW, large_window=4 * WINDOW, max_receive_message=3_000_000)


@pytest.fixture(params=sorted(LOOPS))
def server(request: pytest.FixtureRequest) -> Iterator[TransportFixture]:
    with TransportFixture(request.param, LIMITS) as made:
        yield made


@pytest.fixture
def channel(server: TransportFixture) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.target) as made:
        yield made


def is_data(frame: h2.Frame) -> bool:
    return frame.kind == h2.DATA


def sent_in_frames(raw: RawClient, stream: int, contents: bytes) -> None:
    raw.send(*(h2.data(stream, contents[at : at + 16_384]) for at in range(0, len(contents), 16_384)))


def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize("count", [0, 1, 3, 5000])
def test_answers_come_in_order(server: TransportFixture, channel: grpc.Channel, count: int) -> None:
    answers = channel.unary_stream(COUNT)(b"%d" % count, timeout=PATIENCE)
    assert list(answers) == [b"%d" % at for at in range(count)]
    assert answers.code() is grpc.StatusCode.OK
    assert server.service.happened["closed"] == 1


@pytest.mark.parametrize("count", [0, 2])
def test_error_of_a_handler_comes_behind_answers(server: TransportFixture, channel: grpc.Channel, count: int) -> None:
    answers = channel.unary_stream(COUNT)(b"%d fail" % count, timeout=PATIENCE)
    assert [next(answers) for _ in range(count)] == [b"%d" % at for at in range(count)]
    assert code_of(answers) == (grpc.StatusCode.FAILED_PRECONDITION, "no more")


def test_first_answers_leave_while_the_handler_works_on(server: TransportFixture, channel: grpc.Channel) -> None:
    answers = channel.unary_stream(COUNT)(b"2 wait", timeout=PATIENCE)
    assert [next(answers), next(answers)] == [b"0", b"1"]
    server.service.open()
    assert list(answers) == []


def test_handler_waits_while_the_clients_window_is_shut(server: TransportFixture) -> None:
    raw = server.dial({h2.INITIAL_WINDOW: 3000})
    raw.request(1, FLOW, message(b"995"))
    wait_until(lambda: server.numbers.unsent > 0, "an answer waits")
    got = sum(len(raw.read_until(is_data).payload) for _ in range(3))
    raw.send(h2.ping())
    raw.read_until(lambda frame: frame.kind == h2.PING and frame.ack)
    assert (got, server.service.happened["yielded"]) == (3000, 3)
    raw.send(h2.window_update(1, 2000))
    wait_until(lambda: server.service.happened["yielded"] == 5, "the handler goes on")
    raw.send(h2.rst_stream(1))
    wait_until(lambda: server.service.happened["closed"], "the handler has ended")


def test_handler_waits_while_the_client_reads_nothing_from_its_socket(server: TransportFixture) -> None:
    raw = server.dial({h2.INITIAL_WINDOW: 2**31 - 1})
    raw.send(h2.window_update(0, 2**30))
    raw.request(1, FLOW, message(b"100000"))
    last = [-1]

    def stands_still() -> bool:
        seen, last[0] = last[0], server.numbers.bytes_sent
        return 0 < seen == last[0] and server.numbers.unsent > 0

    wait_until(stands_still, "nothing more is sent", interval=0.2)
    assert server.numbers.unsent < 200_000
    before = server.service.happened["yielded"]
    for _ in range(2000):
        raw.read_until(is_data)
    wait_until(lambda: server.service.happened["yielded"] > before, "the handler goes on")


def test_two_streams_of_one_connection_have_equal_turns(server: TransportFixture) -> None:
    raw = server.dial({h2.INITIAL_WINDOW: 2**30})
    raw.send(h2.window_update(0, 2**30))
    for stream in (1, 3):
        raw.request(stream, FLOW, message(b"40000"))
    raw.read_until(lambda frame: is_data(frame) and frame.stream == 3)  # the first one has begun earlier
    seen = [raw.read_until(is_data).stream for _ in range(400)]
    assert 130 < sum(stream == 1 for stream in seen) < 270


def test_client_that_cancels_closes_the_handlers_generator(server: TransportFixture, channel: grpc.Channel) -> None:
    answers = channel.unary_stream(COUNT)(b"1 wait", timeout=PATIENCE)
    assert next(answers) == b"0"
    wait_until(lambda: server.service.happened["started"], "the handler waits")
    answers.cancel()
    wait_until(lambda: server.service.happened["closed"], "the generator is closed")
    wait_until(lambda: server.numbers.streams == 0, "its stream no longer counts")


def test_client_that_is_lost_closes_the_handlers_generator(server: TransportFixture) -> None:
    raw = server.dial()
    raw.request(1, FLOW, message(b"100000"))
    wait_until(lambda: server.numbers.unsent > 0, "an answer waits")
    raw.close()
    wait_until(lambda: server.service.happened["closed"], "the generator is closed")


def test_deadline_comes_behind_the_answers(server: TransportFixture, channel: grpc.Channel) -> None:
    raw = server.dial()
    raw.request(1, COUNT, message(b"2 wait"), (b"grpc-timeout", b"100m"))
    assert raw.status(1) == (4, "Deadline Exceeded")
    wait_until(lambda: server.service.happened["closed"], "the generator is closed")


def test_each_request_of_a_stream_is_answered(server: TransportFixture, channel: grpc.Channel) -> None:
    words = [b"", b"a", bytes(WINDOW - 5), bytes(WINDOW * 3), bytes(2_900_000), b"z"]
    assert list(channel.stream_stream(TALK)(iter(words), timeout=PATIENCE)) == [*words, b"bye"]
    assert server.service.happened["ended"] == 1


def test_conversation_goes_message_by_message(server: TransportFixture) -> None:
    async def talk() -> list[bytes]:
        async with grpc.aio.insecure_channel(server.target) as channel:
            call = channel.stream_stream(TALK)(metadata=(("who", "me"),))
            heard = []
            for request in (b"a", b"b", b"c"):
                await call.write(request)
                heard.append(await call.read())
            await call.done_writing()
            return [*heard, await call.read()]

    assert asyncio.run(talk()) == [b"a", b"b", b"c", b"bye"]
    assert server.service.contexts[0].metadata["who"] == "me"


@pytest.mark.parametrize(("path", "answers"), [(TALK, [b"12345"]), (TOTAL, [b"5"])], ids=["many answers", "one answer"])
@pytest.mark.parametrize("window", [0, 65_535])
def test_handler_that_ends_early_ends_the_call_and_the_client_is_told_to_stop_when_its_answers_have_left(
    server: TransportFixture, path: str, answers: list[bytes], window: int
) -> None:
    raw = server.dial({h2.INITIAL_WINDOW: window})
    raw.request(1, path, message(b"12345") + message(b"stop"), end=False)
    if not window:
        wait_until(lambda: server.numbers.unsent > 0, "the answer waits")
        raw.send(h2.window_update(1, 100))
    assert raw.read_until(is_data).payload == b"".join(map(message, answers))
    assert raw.status(1) == (0, "")
    raw.read_until(lambda frame: frame.kind == h2.RST_STREAM and frame.value == ErrorCode.NO_ERROR)
    wait_until(lambda: server.numbers.streams == 0, "its stream no longer counts")


def test_handler_that_fails_ends_a_call_whose_client_goes_on(server: TransportFixture, channel: grpc.Channel) -> None:
    over = threading.Event()

    def words() -> Iterator[bytes]:
        yield b"crash"
        over.wait(PATIENCE)

    crashed = code_of(channel.stream_stream(TALK)(words(), timeout=PATIENCE))
    assert crashed == (grpc.StatusCode.FAILED_PRECONDITION, "crashed")
    over.set()


def test_requests_that_no_handler_takes_get_no_new_window(server: TransportFixture) -> None:
    raw = server.dial()
    raw.request(1, TALK, message(b"wait"), end=False)
    wait_until(lambda: server.service.happened["taken"] == 1, "the handler waits")
    sent_in_frames(raw, 1, message(bytes(995)) * 60)
    raw.send(h2.ping())
    raw.read_until(lambda frame: frame.kind == h2.PING and frame.ack)
    assert not [frame for frame in raw.frames if frame.kind == h2.WINDOW_UPDATE and frame.stream == 1]
    assert server.numbers.unread == 60 * (1000 + WAITING_COST)
    server.service.open()
    raw.read_until(lambda frame: frame.kind == h2.WINDOW_UPDATE and frame.stream == 1)
    wait_until(lambda: server.service.happened["taken"] == 61, "all are taken")
    assert server.numbers.unread == 0


def test_client_that_sends_more_than_its_window_is_reset(server: TransportFixture) -> None:
    raw = server.dial()
    raw.request(1, TALK, message(b"wait"), end=False)
    wait_until(lambda: server.service.happened["taken"] == 1, "the handler waits")
    sent_in_frames(raw, 1, message(bytes(995)) * 66)
    reset = raw.read_until(lambda frame: frame.kind == h2.RST_STREAM)
    assert reset.value == ErrorCode.FLOW_CONTROL_ERROR
    wait_until(lambda: server.numbers.streams == 0, "its stream no longer counts")


def test_windows_lose_nothing_however_messages_are_cut(server: TransportFixture) -> None:
    """After many windows' worth of messages the client may still send."""
    raw = server.dial({h2.INITIAL_WINDOW: 2**30})
    raw.send(h2.window_update(0, 2**30))
    raw.request(1, TOTAL, end=False)
    contents = b"".join(message(bytes(size)) for size in (1, 70_000, 0, 30_000, 5, 200_000)) * 5
    window, at = WINDOW, 0
    while at < len(contents):
        if window:
            piece = contents[at : at + min(window, 9_999)]
            raw.send(h2.data(1, piece))
            window, at = window - len(piece), at + len(piece)
        else:
            window += raw.read_until(lambda frame: frame.kind == h2.WINDOW_UPDATE and frame.stream == 1).value
    raw.send(h2.data(1, ended=True))
    assert raw.read_until(is_data).payload == message(b"%d" % (5 * 300_006))


def test_stream_of_requests_has_one_answer(server: TransportFixture, channel: grpc.Channel) -> None:
    server.service.trailers = [("seen", "all")]
    answer, call = channel.stream_unary(TOTAL).with_call(iter([bytes(10_000)] * 50), timeout=PATIENCE)
    assert answer == b"500000"
    assert [tuple(pair) for pair in call.trailing_metadata()] == [("seen", "all")]


def test_compressed_requests_are_inflated_one_by_one(server: TransportFixture) -> None:
    raw = server.dial()
    bodies = [message(gzip.compress(bytes(size)), 1) for size in (10, 2_500_000)]
    raw.request(1, TOTAL, b"".join(bodies) + message(b"plain"), (b"grpc-encoding", b"gzip"))
    assert raw.read_until(is_data).payload == message(b"2500015")


@pytest.mark.parametrize(
    ("contents", "code"),
    [(message(b"abc")[:-1], 13), (message(b"", flag=2), 13), (message(b"", size=3_000_001), 8), (message(b"x", 1), 13)],
    ids=["cut", "flag", "size", "compressed"],
)
def test_requests_that_cannot_be_read_end_the_call(server: TransportFixture, contents: bytes, code: int) -> None:
    raw = server.dial()
    raw.request(1, TALK, contents)
    assert raw.status(1)[0] == code
    wait_until(lambda: server.numbers.streams == 0, "its stream no longer counts")


def test_streams_of_requests_end_when_the_server_stops(server: TransportFixture) -> None:
    async def converse() -> tuple[bytes, bytes, Any, Any]:
        async with grpc.aio.insecure_channel(server.target) as channel:
            call = channel.stream_stream(TALK)()
            total = channel.stream_unary(TOTAL)()
            await call.write(b"a")
            first = await call.read()
            await total.write(b"a")
            stopped = asyncio.wrap_future(server.spawn(server.transport.stop(PATIENCE)))
            second = await call.read()
            codes = (await call.code(), await total.code())
            await stopped
            return first, second, *codes

    unavailable = grpc.StatusCode.UNAVAILABLE
    assert asyncio.run(converse()) == (b"a", b"bye", unavailable, unavailable)
