from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.bodies import BLOCK, Body, BodyReader, ClientDisconnected
from tfs_lite.server.http.replies import HttpError

GONE = None
"""Among the pieces of a body: the client goes."""


def request(pieces: Sequence[bytes | None], headers: dict[str, str] | None = None, endless: bool = False) -> Request:
    """A request whose body comes in these pieces; ``endless``: then nothing more comes, and no end either."""
    left = list(pieces)

    async def receive() -> dict[str, Any]:
        if not left and endless:
            await asyncio.Event().wait()
        piece = left.pop(0) if left else b""
        if piece is GONE:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(left) or endless}

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return Request({"type": "http", "headers": raw}, receive)


def read(reader: BodyReader, *pieces: bytes | None, **rest: Any) -> Body:
    return asyncio.run(reader.read(request(pieces, **rest)))


def refusal(reader: BodyReader, *pieces: bytes | None, **rest: Any) -> ServingError:
    with pytest.raises(ServingError) as caught:
        read(reader, *pieces, **rest)
    assert reader.numbers.held_bytes == 0
    return caught.value


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_pieces_become_one_body_and_its_room_comes_back(pieces: list[bytes]) -> None:
    reader, content = BodyReader(1000), b"".join(pieces)
    with read(reader, *pieces) as body:
        assert body.size == reader.numbers.held_bytes == len(content)
        assert body.take() == content
    assert reader.numbers.held_bytes == 0
    assert reader.numbers.most_held_bytes == len(content)


def test_body_in_one_piece_is_not_copied() -> None:
    piece = bytes(1000)
    with read(BodyReader(1000), piece) as body:
        assert body.take() is piece


def test_small_pieces_are_put_together_in_large_blocks() -> None:
    with read(BodyReader(10 * BLOCK), *[bytes(BLOCK // 4)] * 20) as body:
        assert len(body._blocks) < 8
        assert body.take() == bytes(5 * BLOCK)


def test_body_past_the_bound_is_refused_while_it_arrives() -> None:
    reader = BodyReader(10)
    error = refusal(reader, bytes(6), bytes(6), endless=True)
    assert isinstance(error, HttpError)
    assert (error.http, error.code, reader.numbers.too_large) == (413, StatusCode.RESOURCE_EXHAUSTED, 1)
    assert "larger than 10 bytes" in str(error)


def test_body_of_exactly_the_bound_is_taken() -> None:
    with read(BodyReader(10), bytes(4), bytes(6), headers={"content-length": "10"}) as body:
        assert body.take() == bytes(10)


def test_bodies_share_their_room() -> None:
    reader = BodyReader(10, budget_bytes=15)
    with read(reader, bytes(10)):
        with pytest.raises(ServingError, match="request bodies take 14 of the 15 bytes") as caught:
            read(reader, bytes(4), bytes(4))
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert (reader.numbers.held_bytes, reader.numbers.no_room) == (10, 1)
        with read(reader, bytes(5)):
            assert reader.numbers.held_bytes == 15
    assert (reader.numbers.held_bytes, reader.numbers.most_held_bytes, reader.numbers.budget_bytes) == (0, 15, 15)


def test_room_is_four_of_the_largest_bodies_by_default() -> None:
    assert BodyReader(10).numbers.budget_bytes == 40


def packed(content: bytes, reader: BodyReader) -> Body:
    return read(reader, gzip.compress(content), headers={"content-encoding": "gzip"})


def test_packed_body_is_unpacked_and_counts_both_ways() -> None:
    reader = BodyReader(1000)
    with packed(bytes(1000), reader) as body:
        assert body.gzipped
        assert body.take() == bytes(1000)
        assert reader.numbers.held_bytes == body.received + 1000
    assert reader.numbers.held_bytes == 0


def test_body_that_unpacks_past_the_bound_is_refused() -> None:
    reader = BodyReader(BLOCK)
    with packed(bytes(50 * BLOCK), reader) as body, pytest.raises(HttpError, match="after unpacking") as caught:
        body.take()
    assert caught.value.http == 413
    assert reader.numbers.most_held_bytes < 2 * BLOCK
    assert reader.numbers.held_bytes == 0


def test_body_that_unpacks_past_the_room_is_refused() -> None:
    reader = BodyReader(8 * BLOCK, budget_bytes=2 * BLOCK)
    with packed(bytes(4 * BLOCK), reader) as body, pytest.raises(ServingError) as caught:
        body.take()
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert reader.numbers.held_bytes == 0


def test_unpacking_for_a_client_that_has_gone_stops() -> None:
    reader = BodyReader(1000)
    body = packed(bytes(1000), reader)
    body.close()
    assert body.take() == b""
    with pytest.raises(ClientDisconnected):
        body._grow(1)
    assert reader.numbers.held_bytes == 0


def test_unknown_encoding_is_refused_before_anything_is_read() -> None:
    error = refusal(BodyReader(10), headers={"content-encoding": "br"}, endless=True)
    assert isinstance(error, HttpError)
    assert error.http == 415
