"""Calls with many requests: what clients see on both gRPC servers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.support.grpc.echo_service import LIMIT, BidiCall, ClientStreamCall, EchoService, call
from tests.support.servers.grpc_fixture import GrpcFixture
from tests.support.servers.process import wait_until


class EchoFixture(GrpcFixture):
    """A server of an :class:`EchoService`."""

    def __init__(self, loop_thread: Any, kind: str, **settings: Any) -> None:
        self.service = loop_thread.run(make_service())
        super().__init__(loop_thread, kind, self.service.methods(), LIMIT, **settings)


async def make_service() -> EchoService:
    return EchoService()


@pytest.fixture
def server(each_server: str, loop_thread: Any) -> Iterator[EchoFixture]:
    with EchoFixture(loop_thread, each_server) as server:
        yield server


def end_of(answers: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        list(answers)
    return caught.value.code(), caught.value.details()


def failure_of(future: Any) -> tuple[grpc.StatusCode, str]:
    error = future.exception(timeout=30)
    assert error is not None
    return error.code(), error.details()


# Many requests and many answers.


def test_messages_go_both_ways_until_the_half_close_of_the_client(server: EchoFixture) -> None:
    bidi = BidiCall(server.channel, mine="yes", other="no")
    for word in (b"a", b"b"):
        bidi.send(word)
        assert next(bidi.call) == word + b"!"
    bidi.send(None)
    assert list(bidi.call) == [b"bye"]
    (context,) = server.service.contexts
    assert (context.metadata["mine"], context.metadata["other"]) == ("yes", "no")
    assert context.deadline is not None
    assert 10 < context.deadline - time.monotonic() <= 31  # the client rounds up what it sends


def test_many_messages_of_any_size_arrive_in_their_order(server: EchoFixture) -> None:
    words = [os.urandom(size) for size in (0, 1, 65_536, 65_537, 3_000_000, 5_000_000)] * 3
    words += [b"%d" % number for number in range(500)]
    bidi = BidiCall(server.channel)
    bidi.send(*words, None)
    assert list(bidi.call) == [*(word + b"!" for word in words), b"bye"]


def test_a_failure_ends_a_call_with_messages_both_ways(server: EchoFixture) -> None:
    bidi = BidiCall(server.channel)
    bidi.send(b"a", b"fail", b"b")
    assert next(bidi.call) == b"a!"
    assert end_of(bidi.call) == (grpc.StatusCode.INVALID_ARGUMENT, "no more")
    bidi.send(None)


def test_the_handler_of_a_call_with_messages_both_ways_ends_with_it(server: EchoFixture) -> None:
    """It may see a half-close first: gRPC reports one for a client that has disconnected."""
    bidi = BidiCall(server.channel)
    bidi.send(b"a")
    assert next(bidi.call) == b"a!"
    bidi.call.cancel()
    wait_until(lambda: server.service.cancelled.acquire(blocking=False) or server.service.half_closed == 1, "it ended")
    assert call(server.channel, "echo") == b"x"
    bidi.send(None)


def test_an_idle_call_with_messages_both_ways_does_not_hold_up_a_shutdown(server: EchoFixture) -> None:
    bidi = BidiCall(server.channel)
    bidi.send(b"a")
    assert next(bidi.call) == b"a!"
    server.stop(3600.0)
    assert next(bidi.call) == b"bye", "the handler could send its own last message"
    assert end_of(bidi.call)[0] is grpc.StatusCode.UNAVAILABLE
    bidi.send(None)


def test_a_call_with_messages_both_ways_has_a_place_until_it_ends(each_server: str, loop_thread: Any) -> None:
    with EchoFixture(loop_thread, each_server, max_concurrent_calls=1) as server:
        bidi = BidiCall(server.channel)
        bidi.send(b"a")
        assert next(bidi.call) == b"a!"
        assert end_of(BidiCall(server.channel).call)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        bidi.send(None)
        assert list(bidi.call) == [b"bye"]
        words = ClientStreamCall(server.channel)
        words.send(b"a", None)
        assert words.future.result(timeout=30) == b"a"


# Many requests and one answer.


def test_one_answer_comes_to_many_requests_with_its_trailers(server: EchoFixture) -> None:
    words = [os.urandom(size) for size in (0, 10, 100_000, 4_500_000)] + [b"%d" % number for number in range(200)]
    joined = ClientStreamCall(server.channel, mine="yes")
    joined.send(*words, None)
    assert joined.future.result(timeout=30) == b"".join(words)
    assert ("words", "204") in joined.future.trailing_metadata()
    (context,) = server.service.contexts
    assert context.metadata["mine"] == "yes"
    assert context.deadline is not None


def test_an_answer_may_come_before_the_last_request(server: EchoFixture) -> None:
    joined = ClientStreamCall(server.channel)
    joined.send(b"a", b"enough", b"b")
    assert joined.future.result(timeout=30) == b"aenough"
    assert call(server.channel, "echo") == b"x"
    joined.send(None)


def test_a_call_without_any_request_is_answered(server: EchoFixture) -> None:
    joined = ClientStreamCall(server.channel)
    joined.send(None)
    assert joined.future.result(timeout=30) == b""


def test_a_failure_ends_a_call_with_many_requests(server: EchoFixture) -> None:
    joined = ClientStreamCall(server.channel)
    joined.send(b"a", b"fail")
    assert failure_of(joined.future) == (grpc.StatusCode.INVALID_ARGUMENT, "no more")
    joined.send(None)


def test_a_message_over_the_limit_ends_a_call_with_many_requests(server: EchoFixture) -> None:
    joined = ClientStreamCall(server.channel)
    joined.send(b"a", bytes(LIMIT + 1))
    assert failure_of(joined.future)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert call(server.channel, "echo") == b"x"
    joined.send(None)


def test_the_handler_of_a_call_with_many_requests_ends_with_it(server: EchoFixture) -> None:
    """It may see a half-close first: gRPC reports one for a client that has disconnected."""
    joined = ClientStreamCall(server.channel)
    joined.send(b"a")
    assert server.service.entered.acquire(timeout=20)
    joined.future.cancel()
    wait_until(lambda: server.service.cancelled.acquire(blocking=False) or server.service.half_closed == 1, "it ended")
    joined.send(None)


def test_a_shutdown_ends_the_requests_and_half_of_them_get_no_answer(server: EchoFixture) -> None:
    joined = ClientStreamCall(server.channel)
    joined.send(b"half")
    assert server.service.entered.acquire(timeout=20)
    server.stop(3600.0)
    assert failure_of(joined.future)[0] is grpc.StatusCode.UNAVAILABLE
    assert server.service.half_closed == 1
    joined.send(None)
