"""The two ends of the client's messages, without a wire: their bounds, and that neither waits for ever."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server import frontend_wire as wire
from tfs_lite.server.frontend_requests import MAX_METADATA, Requests, Window, pack_metadata, unpack_metadata
from tfs_lite.server.frontend_wire import WireError

SIZES = [0, 1, 1000, wire.WINDOW_BYTES // 3, wire.WINDOW_BYTES, 2 * wire.WINDOW_BYTES]
BLOCK = memoryview(bytes(max(SIZES)))


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def ignore(messages: int) -> None:
    pass


class Line:
    """Both ends, and frames that take their time. Every move is one that is possible now."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self._left, self._wire, self._credits = deque(sizes), deque[int](), deque[int]()
        self._window, self._requests = Window(), Requests(self._credits.append)
        self._waiting = 0
        self.came: list[int] = []

    def moves(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        possible = {
            self._send: self._left and self._window.open.is_set(),
            self._arrive: self._wire,
            self._take: self._waiting,
            self._credit: self._credits,
        }
        return [move for move, can in possible.items() if can]

    def check(self) -> None:
        outstanding = self.sizes[len(self.came) : len(self.sizes) - len(self._left)]
        assert len(outstanding) <= wire.WINDOW
        assert sum(outstanding[:-1]) < wire.WINDOW_BYTES

    async def _send(self) -> None:
        self._wire.append(self._left.popleft())
        self._window.sent(self._wire[-1])

    async def _arrive(self) -> None:
        self._requests.put(BLOCK[: self._wire.popleft()])  # type: ignore[arg-type]  # a view: no copies
        self._waiting += 1

    async def _take(self) -> None:
        self.came.append(len(await anext(self._requests)))
        self._waiting -= 1

    async def _credit(self) -> None:
        self._window.credit(self._credits.popleft())


@given(st.lists(st.sampled_from(SIZES), max_size=200), st.randoms(use_true_random=False))
def test_whatever_their_sizes_all_messages_arrive_within_the_bounds(sizes: list[int], chance: Random) -> None:
    async def test() -> None:
        line = Line(sizes)
        while len(line.came) < len(sizes):
            moves = line.moves()
            assert moves, "both ends wait for the other one"
            await chance.choice(moves)()
            line.check()
        assert line.came == sizes

    run(test())


def test_the_iterator_ends_behind_the_last_message() -> None:
    async def test() -> None:
        requests = Requests(ignore)
        requests.put(b"a")
        requests.last()
        assert [message async for message in requests] == [b"a"]
        with pytest.raises(StopAsyncIteration):
            await anext(requests)

    run(test())


def test_the_iterator_waits_for_the_next_message() -> None:
    async def test() -> None:
        requests = Requests(ignore)
        waiting = asyncio.ensure_future(anext(requests))
        await asyncio.sleep(0)
        assert not waiting.done()
        requests.put(b"a")
        assert await waiting == b"a"

    run(test())


def test_no_credit_is_given_when_the_call_is_over() -> None:
    async def test() -> None:
        given: list[int] = []
        requests = Requests(given.append)
        for _ in range(wire.WINDOW):
            requests.put(b"a")
        requests.end()
        assert [message async for message in requests] == [b"a"] * wire.WINDOW
        assert given == []

    run(test())


def test_more_than_the_bounds_is_refused() -> None:
    async def test() -> None:
        many, large = Requests(ignore), Requests(ignore)
        for _ in range(wire.WINDOW):
            many.put(b"")
        with pytest.raises(WireError, match="behind 32 others with 0 bytes"):
            many.put(b"")
        large.put(bytes(wire.WINDOW_BYTES))
        with pytest.raises(WireError, match=f"behind 1 others with {wire.WINDOW_BYTES} bytes"):
            large.put(b"")

    run(test())


@pytest.mark.parametrize("messages", [0, -1, 3, 2**40])
def test_credit_for_what_was_not_sent_is_refused(messages: int) -> None:
    async def test() -> None:
        window = Window()
        window.sent(1)
        window.sent(1)
        with pytest.raises(WireError, match=f"credit for {messages} messages, of 2"):
            window.credit(messages)

    run(test())


def test_metadata_comes_back() -> None:
    metadata = {"mine": "yes", "other": "ä\n\U0001f600", "empty": ""}
    assert unpack_metadata(pack_metadata(metadata)) == metadata


def test_metadata_is_bounded() -> None:
    with pytest.raises(ServingError) as caught:
        pack_metadata({"a": "x" * MAX_METADATA})
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert str(MAX_METADATA) in str(caught.value)


@pytest.mark.parametrize(
    "packed",
    [b"", b"\xff", b"[]", b"null", b'{"a": 1}', b'{"a": {"b": "c"}}', b"[" * MAX_METADATA, b'{"a": "'],
    ids=["nothing", "no-text", "list", "null", "number", "nested", "deep", "cut"],
)
def test_what_is_no_metadata_is_refused(packed: bytes) -> None:
    with pytest.raises(WireError, match=f"{len(packed)} bytes that are no metadata"):
        unpack_metadata(packed)


def test_too_much_metadata_is_refused() -> None:
    with pytest.raises(WireError, match="no metadata"):
        unpack_metadata(json.dumps({"a": "x" * MAX_METADATA}).encode())
