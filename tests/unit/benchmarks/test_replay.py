"""Header blocks as the C core writes them, and connections that know an answer at a glance."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import connections
import grpc
import pytest
from hpack import Decoder
from load import Tally, closed_loop, cycle
from replay import WRONG_SIZE, CoreHeaders, ReplayConnection, timeout_text, timeouts_of
from stock_client import stock_loop

PATH = "/test.Echo/Call"
SIZE = 9


class Echo(grpc.GenericRpcHandler):
    """Answers with the request; one byte is missing of what begins with "short", and "no" is refused."""

    def __init__(self) -> None:
        self.remaining: list[float | None] = []
        self._lock = threading.Lock()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._call)

    def _call(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            self.remaining.append(context.time_remaining())
        if request.startswith(b"no"):
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return request[:-1] if request.startswith(b"short") else request


@pytest.fixture
def echo() -> Iterator[tuple[Echo, int]]:
    handler = Echo()
    server = grpc.server(ThreadPoolExecutor(4), handlers=(handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, port
    server.stop(None).wait()


@pytest.fixture(autouse=True)
def every_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SAMPLE", 1)


def run(port: int, messages: list[bytes], kind: str = "none") -> Tally:
    sizes = [len(message) for message in messages]
    made = [ReplayConnection(port, PATH, messages, sizes, timeouts_of(kind, seed)) for seed in range(2)]
    try:
        return closed_loop(made, 4, 0.2, cycle(len(messages)), lambda index, body: body == messages[index])
    finally:
        for connection in made:
            connection.sock.close()


def test_blocks_are_what_an_hpack_decoder_reads_however_the_table_turns_over() -> None:
    headers, decoder, choose = CoreHeaders(PATH, "127.0.0.1:1"), Decoder(), random.Random(1)
    for _ in range(3000):
        seconds = choose.choice([None, 60.0, choose.uniform(0.001, 60)])
        fields = decoder.decode(headers.block(seconds))
        assert [name for name, _ in fields][:4] == [":path", ":authority", ":method", ":scheme"]
        found = dict(fields)
        assert (found[":path"], found["te"]) == (PATH, "trailers")
        assert ("grpc-timeout" in found) is (seconds is not None)


def test_a_timeout_much_like_the_last_one_is_sent_by_its_number() -> None:
    headers = CoreHeaders(PATH, "127.0.0.1:1")
    first, near, longer = headers.block(10.0), headers.block(9.9), headers.block(10.1)
    assert len(near) == 9 < len(longer) < len(first)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0151, "16m"), (5.123, "5130m"), (7.0, "7S"), (23.456, "23500m"), (60.0, "1M")]
)
def test_timeouts_are_rounded_up_as_the_core_does(seconds: float, text: str) -> None:
    assert timeout_text(seconds) == text


@pytest.mark.parametrize("kind", ["none", "fixed", "varying"])
def test_every_answer_belongs_to_its_request(echo: tuple[Echo, int], kind: str) -> None:
    handler, port = echo
    tally = run(port, [b"message %d" % number for number in range(7)], kind)
    assert tally.checked == len(tally.served) >= 8
    assert tally.failures == 0
    remaining = {value is not None and value < 3600 for value in handler.remaining}
    assert remaining == {kind != "none"}


def test_answers_that_are_too_short_or_refused_are_counted(echo: tuple[Echo, int]) -> None:
    tally = run(echo[1], [b"message 1", b"short one", b"no answer"])
    assert set(tally.codes) == {WRONG_SIZE, grpc.StatusCode.UNAVAILABLE.value[0]}
    assert len(tally.served) > 0
    assert tally.failures == tally.codes.total()


def test_a_stock_client_counts_in_the_same_way(echo: tuple[Echo, int]) -> None:
    messages, marks = [b"message 1", b"short one", b"no answer"], []
    tally = stock_loop(
        echo[1], PATH, messages, [SIZE] * 3, (2, 2), 0.2, cycle(3), lambda index, body: body == messages[index],
        timeouts_of("fixed"), lambda: marks.append(1),
    )  # fmt: skip
    assert set(tally.codes) == {WRONG_SIZE, grpc.StatusCode.UNAVAILABLE.value[0]}
    assert tally.wrong == 0
    assert len(tally.served) > 0
    assert len(marks) == 2
