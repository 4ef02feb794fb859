"""Bodies as they come from a connection: what is read of them, what they take of the budget, and what is refused."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.server.http import bodies as bodies_module
from tfs_lite.server.http.bodies import BLOCK, SMALLEST_ANSWER, Bodies
from tfs_lite.server.http.compression import decompress
from tfs_lite.server.http.heap_trimmer import HeapTrimmer
from tfs_lite.server.http.message import Headers, HttpHead, IncomingBody, Request, Response
from tfs_lite.server.http.replies import HttpError
from tfs_lite.server.runtime.event_loop import BackgroundRunner

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.fixture(scope="module")
def background() -> Iterator[BackgroundRunner]:
    runner = BackgroundRunner("test", 1, 1)
    yield runner
    runner.close()


@pytest.fixture
def make(background: BackgroundRunner) -> Callable[..., Bodies]:
    """``make(max_bytes, **bounds)``."""
    return lambda max_bytes, **bounds: Bodies(background, HeapTrimmer(background), max_bytes, **bounds)


def request(*pieces: bytes, ends: bool = True, **headers: str) -> Request:
    """A request whose body has come in these pieces. Underscores in names of headers are hyphens."""
    body = IncomingBody()
    for piece in pieces:
        body.feed(piece)
    if ends:
        body.end()
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request(HttpHead("POST", "/", Headers(fields)), body, 0.0)


def whole(data: bytes) -> bytes:
    return data


def refusal(bodies: Bodies, sent: Request, parse: Callable[[bytes], Any] = whole) -> ServingError:
    with pytest.raises(ServingError) as caught:
        asyncio.run(bodies.read(sent, parse))
    assert bodies.numbers.held_bytes == 0
    return caught.value


def test_small_body_that_is_there_is_read_without_waiting(make: Any) -> None:
    bodies = make(100)
    assert bodies.small(request(b"one", b"two")) == b"onetwo"
    assert bodies.small(request(b"one", ends=False)) is None
    assert bodies.small(request(b"one", content_encoding="gzip")) is None
    assert bodies.small(request(bytes(101))) is None
    reading = bodies.read(request(b"one", b"two"), whole)
    with pytest.raises(StopIteration) as caught:
        reading.send(None)
    assert caught.value.value == b"onetwo"
    assert bodies.numbers.held_bytes == 0


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20))
def test_pieces_that_come_one_after_the_other_become_one_body(pieces: list[bytes]) -> None:
    background = BackgroundRunner("test", 1, 1)
    bodies, content = Bodies(background, HeapTrimmer(background), 1000), b"".join(pieces)

    async def main() -> bytes:
        arriving = request(ends=False)
        reading = asyncio.ensure_future(bodies.read(arriving, whole))
        for number, piece in enumerate(pieces):
            await asyncio.sleep(0)
            arriving.body.feed(piece)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert bodies.numbers.held_bytes == sum(map(len, pieces[: number + 1]))
        arriving.body.end()
        return await reading

    assert asyncio.run(main()) == content
    assert (bodies.numbers.held_bytes, bodies.numbers.most_held_bytes) == (0, len(content))


def test_large_body_is_parsed_on_a_thread_and_not_copied(make: Any) -> None:
    piece, bodies = bytes(COMFORTABLE_BYTES + 1), make(BLOCK)
    data, thread = asyncio.run(bodies.read(request(piece), lambda data: (data, threading.current_thread())))
    assert data is piece
    assert thread is not threading.main_thread()


def test_many_small_pieces_become_one_body(make: Any) -> None:
    async def main() -> bytes:
        arriving = request(ends=False)
        reading = asyncio.ensure_future(make(10 * BLOCK).read(arriving, whole))
        for number in range(20):
            arriving.body.feed(bytes([number]) * (BLOCK // 4))
            for _ in range(2):
                await asyncio.sleep(0)
        arriving.body.end()
        return await reading

    assert asyncio.run(main()) == b"".join(bytes([number]) * (BLOCK // 4) for number in range(20))


@pytest.mark.parametrize("ends", [True, False])
def test_body_past_the_bound_is_refused_even_while_it_arrives(make: Any, ends: bool) -> None:
    bodies = make(10)
    error = refusal(bodies, request(bytes(6), bytes(6), ends=ends))
    assert isinstance(error, HttpError)
    assert (error.http, error.code, bodies.numbers.too_large) == (413, StatusCode.RESOURCE_EXHAUSTED, 1)
    assert "larger than 10 bytes" in str(error)
    assert error.headers == {"connection": "close"}


def test_body_that_says_that_it_is_too_large_is_refused_before_it_comes(make: Any) -> None:
    wanted: list[str] = []
    sent = request(ends=False, content_length="11")
    sent.body.on_wanted = lambda: wanted.append("more")
    assert refusal(make(10), sent).code is StatusCode.RESOURCE_EXHAUSTED
    assert not wanted


def test_body_of_exactly_the_bound_is_taken(make: Any) -> None:
    assert asyncio.run(make(10).read(request(bytes(4), bytes(6), content_length="10"), whole)) == bytes(10)


def test_bodies_share_their_budget(make: Any) -> None:
    bodies = make(10, budget_bytes=15)

    async def main() -> None:
        arriving = request(bytes(10), ends=False)
        reading = asyncio.ensure_future(bodies.read(arriving, whole))
        await asyncio.sleep(0)
        with pytest.raises(ServingError, match="request bodies take 10 of the 15 bytes") as caught:
            await bodies.read(request(bytes(6)), whole)
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert (bodies.numbers.held_bytes, bodies.numbers.no_room) == (10, 1)
        assert await bodies.read(request(bytes(5)), whole) == bytes(5)
        arriving.body.end()
        assert await reading == bytes(10)

    asyncio.run(main())
    numbers = bodies.numbers
    assert (numbers.held_bytes, numbers.most_held_bytes, numbers.budget_bytes) == (0, 10, 15)


def test_budget_is_four_of_the_largest_bodies_by_default(make: Any) -> None:
    assert make(10).numbers.budget_bytes == 40


def test_request_that_is_cancelled_gives_its_bytes_back(make: Any) -> None:
    bodies = make(100)

    async def main() -> None:
        reading = asyncio.ensure_future(bodies.read(request(b"half", ends=False), whole))
        await asyncio.sleep(0)
        assert bodies.numbers.held_bytes == 4
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(main())
    assert bodies.numbers.held_bytes == 0


def test_body_that_is_cut_is_refused(make: Any) -> None:
    bodies, sent = make(100), request(b"half", ends=False)
    sent.body.cut("nothing came")
    error = refusal(bodies, sent)
    assert isinstance(error, HttpError)
    assert (error.http, error.code, bodies.numbers.too_slow) == (408, StatusCode.DEADLINE_EXCEEDED, 1)
    assert str(error) == "the request body did not arrive whole, 4 bytes came: nothing came"


@pytest.mark.parametrize(("old_upload", "gives_way"), [(0.0, True), (1000.0, False)])
def test_body_that_arrives_for_long_gives_way_when_there_is_no_room(
    make: Any, old_upload: float, gives_way: bool
) -> None:
    """The oldest one; the body that found no room may come again."""
    bodies = make(100, budget_bytes=100, old_upload=old_upload)

    async def main() -> None:
        first, second = request(bytes(60), ends=False), request(bytes(30), ends=False)
        reading = [asyncio.ensure_future(bodies.read(sent, whole)) for sent in (first, second)]
        await asyncio.sleep(0)
        assert bodies.numbers.held_bytes == 90
        with pytest.raises(ServingError, match="of the 100 bytes") as caught:
            await bodies.read(request(bytes(50), ends=False), whole)
        assert caught.value.code is StatusCode.UNAVAILABLE
        second.body.end()
        assert await reading[1] == bytes(30)
        await asyncio.sleep(0)
        assert reading[0].done() is gives_way
        if gives_way:
            with pytest.raises(HttpError, match="60 bytes came: after 0 s other requests need the memory"):
                await reading[0]
        first.body.end()
        await asyncio.wait(reading)
        assert bodies.numbers.held_bytes == 0

    asyncio.run(main())


def test_error_of_the_parser_is_raised_and_nothing_is_kept(make: Any) -> None:
    def parse(data: bytes) -> None:
        raise invalid_argument("no")

    for size in (1, COMFORTABLE_BYTES + 1):
        assert str(refusal(make(BLOCK), request(bytes(size)), parse)) == "no"


@pytest.mark.parametrize("encoding", PACK)
def test_packed_body_is_unpacked_and_counts_both_ways(make: Any, encoding: str) -> None:
    bodies, packed = make(1000), PACK[encoding](bytes(1000))
    sent = request(packed, content_encoding=encoding)
    data, held = asyncio.run(bodies.read(sent, lambda data: (data, bodies.numbers.held_bytes)))
    assert (data, held) == (bytes(1000), len(packed) + 1000)
    assert bodies.numbers.held_bytes == 0


@pytest.mark.parametrize("encoding", PACK)
def test_body_that_unpacks_past_the_bound_is_refused(make: Any, encoding: str) -> None:
    bodies = make(BLOCK)
    error = refusal(bodies, request(PACK[encoding](bytes(50 * BLOCK)), content_encoding=encoding))
    assert isinstance(error, HttpError)
    assert error.http == 413
    assert "after unpacking" in str(error)
    assert bodies.numbers.most_held_bytes < 2 * BLOCK


@pytest.mark.parametrize("encoding", PACK)
def test_body_that_unpacks_past_the_budget_is_refused(make: Any, encoding: str) -> None:
    bodies = make(8 * BLOCK, budget_bytes=2 * BLOCK)
    sent = request(PACK[encoding](bytes(4 * BLOCK)), content_encoding=encoding)
    assert refusal(bodies, sent).code is StatusCode.UNAVAILABLE


def test_unpacking_for_a_request_that_has_ended_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that works on it takes nothing more of the budget."""
    background = BackgroundRunner("test", 1, 2)
    bodies = Bodies(background, HeapTrimmer(background), 64 * BLOCK)
    begun, gate, failures = threading.Event(), threading.Event(), list[ServingError]()

    def watched(blocks: Any, encoding: str, on_bytes: Callable[[int], None]) -> list[bytes]:
        def grow(size: int) -> None:
            begun.set()
            assert gate.wait(30)
            on_bytes(size)

        try:
            return decompress(blocks, encoding, grow)
        except ServingError as error:
            failures.append(error)
            raise

    async def main() -> None:
        sent = request(gzip.compress(bytes(20 * BLOCK)), content_encoding="gzip")
        reading = asyncio.ensure_future(bodies.read(sent, whole))
        await asyncio.to_thread(begun.wait, 30)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        gate.set()
        await background.run(lambda: None)

    monkeypatch.setattr(bodies_module, "decompress", watched)
    asyncio.run(main())
    background.close()
    assert [error.code for error in failures] == [StatusCode.CANCELLED]
    assert bodies.numbers.held_bytes == 0


def test_unknown_encoding_is_refused_before_anything_is_read(make: Any) -> None:
    sent = request(ends=False, content_encoding="br")
    with pytest.raises(HttpError, match="'br' is not supported") as caught:
        asyncio.run(make(10).read(sent, whole, StatusCode.INVALID_ARGUMENT))
    assert caught.value.http == 415


def packed(bodies: Bodies, size: int, accept: str) -> Response:
    response = Response(bytes(size))
    asyncio.run(bodies.pack(response, accept))
    return response


@pytest.mark.parametrize("size", [SMALLEST_ANSWER + 1, COMFORTABLE_BYTES + 1])
def test_answer_that_is_worth_it_is_packed_as_the_client_prefers(make: Any, size: int) -> None:
    response = packed(make(10), size, "deflate, gzip")
    assert zlib.decompress(response.body) == bytes(size)
    assert response.headers == {"vary": "Accept-Encoding", "content-encoding": "deflate"}
    plain = packed(make(10), size, "br")
    assert (plain.body, plain.headers) == (bytes(size), {"vary": "Accept-Encoding"})


def test_small_answer_is_left_alone(make: Any) -> None:
    response = packed(make(10), SMALLEST_ANSWER, "gzip")
    assert (response.body, response.headers) == (bytes(SMALLEST_ANSWER), {})


def test_large_answer_is_sent_as_it_is_while_the_threads_are_busy(make: Any, background: BackgroundRunner) -> None:
    gate, response = threading.Event(), Response(bytes(COMFORTABLE_BYTES + 1))

    async def main() -> None:
        busy = asyncio.ensure_future(background.run(lambda: gate.wait(30)))
        await asyncio.sleep(0)
        await make(10).pack(response, "gzip")
        gate.set()
        await busy

    asyncio.run(main())
    assert response.body == bytes(COMFORTABLE_BYTES + 1)
    assert "content-encoding" not in response.headers
