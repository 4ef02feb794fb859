from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http import compression
from tfs_lite.server.http.compression import (
    CHUNK_OUT,
    ENCODINGS,
    GZIP,
    answer_encoding,
    body_encoding,
    compress,
    decompress,
)
from tfs_lite.server.http.replies import HttpError

PACKED = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}
ENCODING = st.sampled_from(sorted(PACKED))


def whole(*blocks: bytes, encoding: str = "gzip") -> bytes:
    return b"".join(decompress(blocks, encoding, lambda size: None))


def problem(*blocks: bytes, encoding: str = "gzip") -> str:
    with pytest.raises(ServingError) as caught:
        whole(*blocks, encoding=encoding)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    return str(caught.value)


@given(st.lists(st.binary(max_size=300), max_size=4), st.integers(1, 200))
def test_members_in_any_blocks_unpack_to_what_was_packed(contents: list[bytes], size: int) -> None:
    packed = b"".join(map(gzip.compress, contents))
    blocks = [packed[start : start + size] for start in range(0, len(packed), size)]
    assert whole(*blocks) == b"".join(contents)


@given(st.binary(max_size=300), ENCODING, st.integers(1, 200))
def test_body_in_any_blocks_unpacks_to_what_was_packed(content: bytes, encoding: str, size: int) -> None:
    packed = PACKED[encoding](content)
    blocks = [packed[start : start + size] for start in range(0, len(packed), size)]
    assert whole(*blocks, encoding=encoding) == content


@given(st.binary(max_size=300), ENCODING, st.data())
def test_packed_body_that_ends_anywhere_too_early_is_refused(
    content: bytes, encoding: str, data: st.DataObject
) -> None:
    packed = PACKED[encoding](content)
    end = data.draw(st.integers(1, len(packed) - 1))
    assert f"the {encoding.removeprefix('x-')} body ends too early" in problem(packed[:end], encoding=encoding)


@given(st.binary(max_size=300))
def test_what_follows_a_deflate_body_is_ignored(rest: bytes) -> None:
    assert whole(zlib.compress(b"hello"), rest, encoding="deflate") == b"hello"
    assert whole(zlib.compress(b"hello") + rest, encoding="deflate") == b"hello"


@given(st.binary(max_size=300))
def test_what_we_pack_anybody_unpacks(content: bytes) -> None:
    assert gzip.decompress(compress(content, "gzip")) == content
    assert gzip.decompress(compress(content, "x-gzip")) == content
    assert zlib.decompress(compress(content, "deflate")) == content


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_large_body_comes_in_bounded_pieces(encoding: str) -> None:
    content = bytes(5 * CHUNK_OUT + 17)
    pieces = decompress([PACKED[encoding](content)], encoding, lambda size: None)
    assert max(map(len, pieces)) <= CHUNK_OUT
    assert b"".join(pieces) == content


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bomb_stops_at_the_first_piece_that_is_too_much(encoding: str) -> None:
    bomb = PACKED[encoding](bytes(64 * CHUNK_OUT))
    seen = []

    def at_most_two(size: int) -> None:
        seen.append(size)
        if len(seen) == 3:
            raise ServingError(StatusCode.RESOURCE_EXHAUSTED, "enough")

    with pytest.raises(ServingError, match="enough"):
        decompress([bomb], encoding, at_most_two)
    assert sum(seen) <= 3 * CHUNK_OUT


def test_many_empty_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_MEMBERS", 10)
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


def test_what_is_not_deflate_is_named() -> None:
    assert "not valid deflate" in problem(gzip.compress(b"{}"), encoding="deflate")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_nothing_unpacks_to_nothing(encoding: str) -> None:
    assert whole(encoding=encoding) == b""


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("", None),
        ("identity", None),
        ("gzip", "gzip"),
        ("GZip", "gzip"),
        ("x-gzip", "x-gzip"),
        ("Deflate", "deflate"),
        ("identity, gzip", "gzip"),
    ],
)
def test_content_encoding_is_read(header: str, encoding: str | None) -> None:
    assert body_encoding(header, StatusCode.UNIMPLEMENTED) == encoding


@pytest.mark.parametrize("header", ["br", "gzip, gzip", "gzip, deflate", "gzip, br", "zstd"])
@pytest.mark.parametrize(("refusal", "status"), [(StatusCode.INVALID_ARGUMENT, 415), (StatusCode.UNIMPLEMENTED, 501)])
def test_other_encodings_are_refused_by_name(header: str, refusal: StatusCode, status: int) -> None:
    with pytest.raises(HttpError, match=header) as caught:
        body_encoding(header, refusal)
    assert (caught.value.code, caught.value.http) == (refusal, status)
    assert caught.value.headers == {"accept-encoding": "gzip, deflate, identity"}


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("", None),
        ("gzip", "gzip"),
        ("deflate, GZIP ; q=0.5", "deflate"),
        ("br, gzip;q=0.5, deflate", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip;q=0.000, *", None),
        ("*, gzip;q=0", None),
        ("*", "gzip"),
        ("*;q=0", None),
        ("identity", None),
        ("identity, gzip", None),
        ("identity;q=0, gzip", "gzip"),
        ("br;q=1, x-gzip", "x-gzip"),
        ("gzip;q=strange", "gzip"),
        ("gzip;level=9", "gzip"),
    ],
)
def test_first_known_encoding_that_the_client_names_is_taken(header: str, encoding: str | None) -> None:
    assert answer_encoding(header) == encoding


def test_encoding_that_is_not_offered_is_passed_over() -> None:
    assert answer_encoding("deflate, gzip;q=0.1", GZIP) == "gzip"
    assert answer_encoding("deflate", GZIP) is None
