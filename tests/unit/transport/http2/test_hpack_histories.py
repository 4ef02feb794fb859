"""Whole connections of header blocks, sound ones, damaged ones and garbage: ``hpack.Decoder`` is the reference."""

from __future__ import annotations

from collections.abc import Iterator

import hpack
from hypothesis import given
from hypothesis import strategies as st

from tests.support.grpc.http2_peer import NEWEST, resized, size_of
from tfs_lite.transport.http2.errors import ConnectionFault
from tfs_lite.transport.http2.hpack_reader import BlockReader, Fields
from tfs_lite.transport.http2.hpack_writer import integer

ROOMY = 10**6
FAULT = "fault"
KINDS = {False: hpack.HeaderTuple, True: hpack.NeverIndexedHeaderTuple}

Step = tuple[list[tuple[bytes, bytes, bool]], bool, int | None]
"""Fields (the last: never to be indexed), whether in Huffman code, a new table size."""


def reader(max_header_list: int = ROOMY) -> BlockReader[Fields | None]:
    return BlockReader(lambda fields: fields, max_header_list)


def outcomes(blocks: list[bytes], of: BlockReader[Fields | None]) -> list[Fields | str | None]:
    """Of each block, up to the first that is broken."""
    found: list[Fields | str | None] = []
    for block in blocks:
        try:
            found.append(of.read(block))
        except ConnectionFault:
            return [*found, FAULT]
    return found


def reference(blocks: list[bytes]) -> list[Fields | str]:
    decoder = hpack.Decoder(ROOMY)
    found: list[Fields | str] = []
    try:
        for block in blocks:
            refuse_many_sizes(block)
            found.append(tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)))
    except hpack.HPACKError:
        found.append(FAULT)
    return found


def refuse_many_sizes(block: bytes) -> None:
    """The one thing that the reference lets pass: more than two size updates."""
    updates = at = 0
    while at < len(block) and block[at] >> 5 == 1:
        at += hpack.hpack.decode_integer(block[at:], 5)[1]
        updates += 1
    if updates > 2:
        raise hpack.HPACKError


usual = [b":path", b":method", b"grpc-timeout", b"x", b"content-type", b"n" * 130]
names = st.sampled_from(usual) | st.binary(max_size=9)
values = st.sampled_from([b"", b"POST", b"/p", b"1S", b"v" * 200, b"w" * 1500]) | st.binary(max_size=12)
field_lists = st.lists(st.tuples(names, values, st.booleans()), max_size=6)
new_sizes = st.none() | st.sampled_from([0, 40, 100, 2000, 4096]) | st.integers(0, 4096)
steps = st.lists(st.tuples(field_lists, st.booleans(), new_sizes), max_size=8)


def encoded(history: list[Step]) -> Iterator[tuple[Fields, bytes]]:
    encoder = hpack.Encoder()
    for fields, huffman_coded, size in history:
        if size is not None:
            encoder.header_table_size = size
        headers = [KINDS[secret](name, value) for name, value, secret in fields]
        yield tuple((name, value) for name, value, _ in fields), encoder.encode(headers, huffman=huffman_coded)


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Blocks as an encoder makes them, and some of them again, with the table they were made for or another."""
    blocks: list[bytes] = []
    for _, block in encoded(draw(steps)):
        blocks.append(block)
        again = draw(st.lists(st.integers(0, len(blocks) - 1), max_size=3))
        blocks += [blocks[which] for which in again]
    return blocks


@given(histories())
def test_histories_of_an_encoder_are_read_as_by_the_reference(blocks: list[bytes]) -> None:
    assert outcomes(blocks, reader()) == reference(blocks)


@given(steps)
def test_what_was_encoded_is_what_is_read(history: list[Step]) -> None:
    of = reader()
    for fields, block in encoded(history):
        assert of.read(block) == fields


@given(histories(), st.integers(700, 3000))
def test_bound_of_lists_changes_nothing_but_which_lists_are_given_out(blocks: list[bytes], bound: int) -> None:
    expected = [fields if isinstance(fields, str) or size_of(fields) <= bound else None for fields in reference(blocks)]
    assert outcomes(blocks, reader(bound)) == expected


pieces = st.one_of(
    st.binary(max_size=6),
    st.sampled_from([b"\x82", NEWEST, b"\xbf", b"\xc0", resized(0), resized(100), resized(4096), b"\x40\x01a\x01b"]),
    st.sampled_from([b"\x7e\x01c", b"\x0f\x2f\x01d", b"\x1f\x2f\x81\x1f", b"\x00\x81\x1f\x01e", b"\x04\x82\xff\xff"]),
    st.integers(0, 300).map(lambda index: integer(0x80, 7, index)),
)
garbage = st.lists(pieces, max_size=6).map(b"".join) | st.binary(max_size=40)


@given(st.lists(garbage, max_size=8))
def test_garbage_is_read_or_refused_as_by_the_reference(blocks: list[bytes]) -> None:
    assert outcomes(blocks, reader()) == reference(blocks)


@given(histories(), st.data())
def test_damaged_histories_are_read_or_refused_as_by_the_reference(blocks: list[bytes], data: st.DataObject) -> None:
    damaged = []
    for block in blocks:
        at = data.draw(st.integers(0, len(block)))
        damaged.append(block[:at] + data.draw(st.binary(max_size=2)) + block[at + data.draw(st.integers(0, 2)) :])
    assert outcomes(damaged, reader()) == reference(damaged)
