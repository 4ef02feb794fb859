from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http import compression as http_gzip
from tfs_lite.server.http.compression import CHUNK_OUT, accepts_gzip, is_gzip, pack, unpack
from tfs_lite.server.http.replies import HttpError


def whole(*blocks: bytes) -> bytes:
    return b"".join(unpack(blocks, lambda size: None))


def problem(*blocks: bytes) -> str:
    with pytest.raises(ServingError) as caught:
        whole(*blocks)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    return str(caught.value)


@given(st.lists(st.binary(max_size=300), max_size=4), st.integers(1, 200))
def test_members_in_any_blocks_unpack_to_what_was_packed(contents: list[bytes], size: int) -> None:
    packed = b"".join(map(gzip.compress, contents))
    blocks = [packed[start : start + size] for start in range(0, len(packed), size)]
    assert whole(*blocks) == b"".join(contents)


@given(st.binary(max_size=300), st.data())
def test_packed_body_that_ends_anywhere_too_early_is_refused(content: bytes, data: st.DataObject) -> None:
    packed = gzip.compress(content)
    end = data.draw(st.integers(1, len(packed) - 1))
    assert "the gzip body ends too early" in problem(packed[:end])


@given(st.binary(max_size=300))
def test_what_we_pack_anybody_unpacks(content: bytes) -> None:
    assert gzip.decompress(pack(content)) == content


def test_large_body_comes_in_bounded_pieces() -> None:
    content = bytes(5 * CHUNK_OUT + 17)
    pieces = unpack([gzip.compress(content)], lambda size: None)
    assert max(map(len, pieces)) <= CHUNK_OUT
    assert b"".join(pieces) == content


def test_bomb_stops_at_the_first_piece_that_is_too_much() -> None:
    bomb = gzip.compress(bytes(64 * CHUNK_OUT))
    seen = []

    def at_most_two(size: int) -> None:
        seen.append(size)
        if len(seen) == 3:
            raise ServingError(StatusCode.RESOURCE_EXHAUSTED, "enough")

    with pytest.raises(ServingError, match="enough"):
        unpack([bomb], at_most_two)
    assert sum(seen) <= 3 * CHUNK_OUT


def test_many_empty_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_gzip, "MAX_MEMBERS", 10)
    empty = gzip.compress(b"")
    assert whole(empty * 10) == b""
    assert "more than 10 members" in problem(empty * 11)


def damaged() -> bytes:
    packed = bytearray(gzip.compress(b"hello"))
    packed[-5] ^= 1
    return bytes(packed)


@pytest.mark.parametrize(
    "packed",
    [b"{}", zlib.compress(b"{}"), gzip.compress(b"{}") + b"more", damaged()],
    ids=["json", "deflate", "trailing", "checksum"],
)
def test_what_is_not_gzip_is_named(packed: bytes) -> None:
    assert "not valid gzip" in problem(packed)


def test_nothing_unpacks_to_nothing() -> None:
    assert whole() == b""


@pytest.mark.parametrize(
    ("header", "packed"),
    [("", False), ("identity", False), ("gzip", True), ("GZip", True), ("x-gzip", True), ("identity, gzip", True)],
)
def test_content_encoding_is_read(header: str, packed: bool) -> None:
    assert is_gzip(header) is packed


@pytest.mark.parametrize("header", ["deflate", "br", "gzip, gzip", "gzip, br", "zstd"])
def test_other_encodings_are_refused_by_name(header: str) -> None:
    with pytest.raises(HttpError, match=header) as caught:
        is_gzip(header)
    assert caught.value.http == 415
    assert caught.value.headers == {"Accept-Encoding": "gzip, identity"}


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, GZIP ; q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("*", True),
        ("*;q=0", False),
        ("identity", False),
        ("br;q=1, x-gzip", True),
        ("gzip;q=strange", True),
        ("gzip;level=9", True),
    ],
)
def test_accept_encoding_is_read(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted
