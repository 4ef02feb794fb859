"""Calls with many requests: what clients see on both gRPC servers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from tfs_lite.server.grpc.factory import make_grpc_server
from tfs_lite.serving.options import GRPC_SERVERS
from tfs_lite.testing.grpc.echo_service import LIMIT, BidiCall, ClientStreamCall, EchoService, call
from tfs_lite.testing.servers.process import wait_until

START: dict[str, Callable[..., Any]] = {name: partial(make_grpc_server, name) for name in GRPC_SERVERS}


class Served:
    """A server of that kind, its service, and a connection to it."""

    def __init__(self, kind: str, loop_thread: Any, **settings: Any) -> None:
        self.loop = loop_thread
        self.server, self.service, port = loop_thread.run(self._start(kind, settings), timeout=100)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)

    async def _start(self, kind: str, settings: Any) -> tuple[Any, EchoService, int]:
        service = EchoService()
        server = START[kind](service.methods(), LIMIT, **settings)
        return server, service, await server.start("127.0.0.1", 0, "")

    def stop(self, grace: float) -> None:
        self.loop.run(self.server.stop(grace), timeout=60)


@contextmanager
def serving(kind: str, loop_thread: Any, **settings: Any) -> Iterator[Served]:
    served = Served(kind, loop_thread, **settings)
    try:
        yield served
    finally:
        served.stop(0.0)
        served.channel.close()


@pytest.fixture(params=list(START))
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def served(kind: str, loop_thread: Any) -> Iterator[Served]:
    with serving(kind, loop_thread) as served:
        yield served


def end_of(answers: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        list(answers)
    return caught.value.code(), caught.value.details()


def failure_of(future: Any) -> tuple[grpc.StatusCode, str]:
    error = future.exception(timeout=30)
    assert error is not None
    return error.code(), error.details()


# Many requests and many answers.


def test_messages_go_both_ways_until_the_client_has_said_its_last_word(served: Served) -> None:
    talk = BidiCall(served.channel, mine="yes", other="no")
    for word in (b"a", b"b"):
        talk.say(word)
        assert next(talk.call) == word + b"!"
    talk.say(None)
    assert list(talk.call) == [b"bye"]
    (context,) = served.service.contexts
    assert (context.metadata["mine"], context.metadata["other"]) == ("yes", "no")
    assert context.deadline is not None
    assert 10 < context.deadline - time.monotonic() < 30


def test_many_messages_of_any_size_arrive_in_their_order(served: Served) -> None:
    words = [os.urandom(size) for size in (0, 1, 65_536, 65_537, 3_000_000, 5_000_000)] * 3
    words += [b"%d" % number for number in range(500)]
    talk = BidiCall(served.channel)
    talk.say(*words, None)
    assert list(talk.call) == [*(word + b"!" for word in words), b"bye"]


def test_a_failure_ends_a_call_with_messages_both_ways(served: Served) -> None:
    talk = BidiCall(served.channel)
    talk.say(b"a", b"fail", b"b")
    assert next(talk.call) == b"a!"
    assert end_of(talk.call) == (grpc.StatusCode.INVALID_ARGUMENT, "no more")
    talk.say(None)


def test_the_handler_of_a_call_with_messages_both_ways_ends_with_it(served: Served) -> None:
    """It may see a last word before: gRPC says one for a client that is gone."""
    talk = BidiCall(served.channel)
    talk.say(b"a")
    assert next(talk.call) == b"a!"
    talk.call.cancel()
    wait_until(lambda: served.service.cancelled.acquire(blocking=False) or served.service.heard_all == 1, "it ended")
    assert call(served.channel, "echo") == b"x"
    talk.say(None)


def test_an_idle_call_with_messages_both_ways_does_not_hold_up_a_shutdown(served: Served) -> None:
    talk = BidiCall(served.channel)
    talk.say(b"a")
    assert next(talk.call) == b"a!"
    served.stop(3600.0)
    assert next(talk.call) == b"bye", "the handler could say its own last word"
    assert end_of(talk.call)[0] is grpc.StatusCode.UNAVAILABLE
    talk.say(None)


def test_a_call_with_messages_both_ways_has_a_place_until_it_ends(kind: str, loop_thread: Any) -> None:
    with serving(kind, loop_thread, max_concurrent_calls=1) as served:
        talk = BidiCall(served.channel)
        talk.say(b"a")
        assert next(talk.call) == b"a!"
        assert end_of(BidiCall(served.channel).call)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        talk.say(None)
        assert list(talk.call) == [b"bye"]
        words = ClientStreamCall(served.channel)
        words.say(b"a", None)
        assert words.future.result(timeout=30) == b"a"


# Many requests and one answer.


def test_one_answer_comes_to_many_requests_with_its_trailers(served: Served) -> None:
    words = [os.urandom(size) for size in (0, 10, 100_000, 4_500_000)] + [b"%d" % number for number in range(200)]
    joined = ClientStreamCall(served.channel, mine="yes")
    joined.say(*words, None)
    assert joined.future.result(timeout=30) == b"".join(words)
    assert ("words", "204") in joined.future.trailing_metadata()
    (context,) = served.service.contexts
    assert context.metadata["mine"] == "yes"
    assert context.deadline is not None


def test_an_answer_may_come_before_the_last_request(served: Served) -> None:
    joined = ClientStreamCall(served.channel)
    joined.say(b"a", b"enough", b"b")
    assert joined.future.result(timeout=30) == b"aenough"
    assert call(served.channel, "echo") == b"x"
    joined.say(None)


def test_a_call_without_any_request_is_answered(served: Served) -> None:
    joined = ClientStreamCall(served.channel)
    joined.say(None)
    assert joined.future.result(timeout=30) == b""


def test_a_failure_ends_a_call_with_many_requests(served: Served) -> None:
    joined = ClientStreamCall(served.channel)
    joined.say(b"a", b"fail")
    assert failure_of(joined.future) == (grpc.StatusCode.INVALID_ARGUMENT, "no more")
    joined.say(None)


def test_a_message_over_the_limit_ends_a_call_with_many_requests(served: Served) -> None:
    joined = ClientStreamCall(served.channel)
    joined.say(b"a", bytes(LIMIT + 1))
    assert failure_of(joined.future)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert call(served.channel, "echo") == b"x"
    joined.say(None)


def test_the_handler_of_a_call_with_many_requests_ends_with_it(served: Served) -> None:
    """It may see a last word before: gRPC says one for a client that is gone."""
    joined = ClientStreamCall(served.channel)
    joined.say(b"a")
    assert served.service.entered.acquire(timeout=20)
    joined.future.cancel()
    wait_until(lambda: served.service.cancelled.acquire(blocking=False) or served.service.heard_all == 1, "it ended")
    joined.say(None)


def test_a_shutdown_ends_the_requests_and_half_of_them_get_no_answer(served: Served) -> None:
    joined = ClientStreamCall(served.channel)
    joined.say(b"half")
    assert served.service.entered.acquire(timeout=20)
    served.stop(3600.0)
    assert failure_of(joined.future)[0] is grpc.StatusCode.UNAVAILABLE
    assert served.service.heard_all == 1
    joined.say(None)
