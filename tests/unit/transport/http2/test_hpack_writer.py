"""Fields as bytes that any decoder reads, and that leave nothing behind in it."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.transport.http2.hpack_writer import integer, literal, status

NAMES = st.sampled_from([b"content-type", b"grpc-status", b":path", b"x-name"]) | st.binary(min_size=1, max_size=200)


def decoded(block: bytes) -> list[tuple[bytes, bytes]]:
    decoder = hpack.Decoder()
    fields = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    assert not decoder.header_table.dynamic_entries
    return fields


@given(st.lists(st.tuples(NAMES, st.binary(max_size=500)), max_size=5))
def test_literals_are_read_back_and_change_no_table(fields: list[tuple[bytes, bytes]]) -> None:
    assert decoded(b"".join(literal(name, value) for name, value in fields)) == fields


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 256, 16_383, 20_000])
def test_strings_of_every_length_are_read_back(length: int) -> None:
    assert decoded(literal(b"n", b"v" * length)) == [(b"n", b"v" * length)]


def test_names_of_the_static_table_are_written_as_their_index() -> None:
    assert literal(b"content-type", b"x") == b"\x0f\x10\x01x"
    assert literal(b"grpc-status", b"0") == b"\x00\x0bgrpc-status\x010"


def test_every_status_is_read_back() -> None:
    for code in range(100, 1000):
        assert decoded(status(code)) == [(b":status", b"%d" % code)]


def test_usual_statuses_are_one_octet() -> None:
    assert [status(code) for code in (200, 204, 206, 304, 400, 404, 500)] == [bytes([0x88 + at]) for at in range(7)]


@given(st.integers(1, 8), st.integers(0, 2**31))
def test_integers_are_read_back_and_leave_the_bits_beside_them(bits: int, value: int) -> None:
    pattern = 0xFF >> bits << bits
    octets = integer(pattern, bits, value)
    assert hpack.hpack.decode_integer(octets, bits) == (value, len(octets))
    assert octets[0] & pattern == pattern
