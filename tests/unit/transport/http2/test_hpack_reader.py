"""Header blocks: what may be short-cut must not be wrong, and what breaks RFC 7541 ends the connection.

The Huffman code is checked against the table of codes, bit by bit.
"""

from __future__ import annotations

import pytest
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from tests.support.grpc.http2_peer import NEWEST, indexed_field, resized, size_of, string
from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode
from tfs_lite.transport.http2.hpack_reader import BOMB, MAX_REMEMBERED, MAX_REMEMBERED_BLOCK, BlockReader, Fields
from tfs_lite.transport.http2.hpack_writer import integer, literal

ROOMY = 10**6
GET: Fields = ((b":method", b"GET"),)
EOS = 256


class Parser:
    """Gives the fields back, and counts."""

    def __init__(self) -> None:
        self.parsed = 0

    def __call__(self, fields: Fields | None) -> Fields | None:
        self.parsed += 1
        return fields


def reader(max_header_list: int = ROOMY) -> BlockReader[Fields | None]:
    return BlockReader(Parser(), max_header_list)


def fault_of(block: bytes, of: BlockReader[Fields | None] | None = None) -> ConnectionFault:
    with pytest.raises(ConnectionFault) as caught:
        (of or reader()).read(block)
    assert caught.value.why.isascii()
    return caught.value


def assert_broken(block: bytes, of: BlockReader[Fields | None] | None = None) -> None:
    assert fault_of(block, of).code is ErrorCode.COMPRESSION_ERROR


# What a block may look like


EVERY_FORM: list[tuple[bytes, tuple[bytes, bytes]]] = [
    (b"\x82", (b":method", b"GET")),
    (b"\x40" + string(b"long-name") + string(b"v" * 300), (b"long-name", b"v" * 300)),
    (NEWEST, (b"long-name", b"v" * 300)),
    (b"\x44" + string(b"/a"), (b":path", b"/a")),
    (integer(0x40, 6, 63) + string(b"w"), (b"long-name", b"w")),
    (b"\x04" + string(b"/b"), (b":path", b"/b")),
    (integer(0x00, 4, 62) + string(b"x"), (b"long-name", b"x")),
    (b"\x00" + string(b"") + string(b""), (b"", b"")),
    (b"\x10" + string(b"authorization") + string(b"secret"), (b"authorization", b"secret")),
    (integer(0x10, 4, 23) + string(b"secret"), (b"authorization", b"secret")),
    (integer(0x00, 4, 31) + bytes.fromhex("8cf1e3c2e5f23a6ba0ab90f4ff"), (b"content-type", b"www.example.com")),
    (b"\x00" + bytes.fromhex("8825a849e95ba97d7f80"), (b"custom-key", b"")),
]


def test_every_representation_is_read() -> None:
    block = b"".join(form for form, _ in EVERY_FORM)
    assert reader().read(block) == tuple(field for _, field in EVERY_FORM)


def test_block_cut_anywhere_but_between_two_fields_is_broken() -> None:
    block = resized(4096) + b"".join(form for form, _ in EVERY_FORM)
    whole = {0: 0, len(resized(4096)): 0}
    for form, _ in EVERY_FORM:
        whole[max(whole) + len(form)] = max(whole.values()) + 1
    expected = tuple(field for _, field in EVERY_FORM)
    for cut in range(len(block)):
        if cut in whole:
            assert reader().read(block[:cut]) == expected[: whole[cut]]
        else:
            assert_broken(block[:cut])


def test_name_may_be_that_of_a_field_which_the_new_one_drives_out() -> None:
    of = reader()
    of.read(indexed_field(b"old", b"o" * 4000))
    of.read(integer(0x40, 6, 62) + string(b"n" * 4000))
    assert of.read(NEWEST) == ((b"old", b"n" * 4000),)
    assert_broken(b"\xbf", of)


def test_field_larger_than_the_table_is_read_and_empties_the_table() -> None:
    of = reader()
    of.read(indexed_field(b"a", b"b"))
    assert of.read(indexed_field(b"c", b"d" * 4096)) == ((b"c", b"d" * 4096),)
    assert_broken(NEWEST, of)


# Errors of RFC 7541


BROKEN = {
    "index 0": b"\x80",
    "index of an empty table": NEWEST,
    "index of two octets": integer(0x80, 7, 127),
    "huge index": integer(0x80, 7, 2**32),
    "index of the name of a field that is added": integer(0x40, 6, 62) + b"\x00",
    "index of a name": integer(0x00, 4, 62) + b"\x00",
    "index of the name of a field that is never added": integer(0x10, 4, 62) + b"\x00",
    "name longer than the block": b"\x00\x05abcd",
    "value longer than the block": b"\x04\x05abcd",
    "value of a huge length": b"\x04" + integer(0, 7, 2**31) + b"abcd",
    "integer with six octets behind the prefix": b"\x3f\x80\x80\x80\x80\x80\x00\x82",
    "table larger than 4096": resized(4097),
    "second size larger than 4096": resized(0) + resized(2**20),
    "three sizes": resized(0) + resized(1) + resized(2) + b"\x82",
    "size behind a field": b"\x82" + resized(0),
    "second size behind a field": resized(0) + b"\x82" + resized(4096),
    **{f"size {first:#x} behind a field": b"\x82" + bytes([first]) + b"\x01a\x01b" for first in range(0x20, 0x40)},
}


@pytest.mark.parametrize("name", BROKEN)
def test_block_that_breaks_a_rule_is_broken(name: str) -> None:
    assert_broken(BROKEN[name])


def test_block_just_within_the_rules_is_read() -> None:
    """A size may have five octets behind its prefix; the table may have 4096 octets, and two sizes in a block."""
    assert reader().read(b"\x3f\x80\x80\x80\x80\x00\x82") == GET
    assert reader().read(resized(4096)) == ()
    assert reader().read(resized(0) + resized(4096) + b"\x82") == GET


PREFIXES = pytest.mark.parametrize(
    "prefix",
    [b"\xff", b"\x7f", b"\x3f", b"\x0f", b"\x1f", b"\x00\x7f", b"\x00\xff", b"\x04\x7f", b"\x04\xff"],
    ids=["index", "added", "size", "plain", "never", "name", "name_huffman", "value", "value_huffman"],
)


@PREFIXES
@pytest.mark.parametrize("octet", [b"\x80", b"\xff"], ids=["zeros", "ones"])
@pytest.mark.parametrize("octets", [1, 4, 5, 6, 100, 10_000])
def test_integer_that_is_too_large_or_never_ends_is_broken(prefix: bytes, octet: bytes, octets: int) -> None:
    assert_broken(prefix + octet * octets)
    assert_broken(prefix + octet * octets + b"\x7f")


# The Huffman code


CODES = {
    f"{code:0{length}b}": symbol
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True))
}
BITS = {symbol: bits for bits, symbol in CODES.items()}


def huffman(bits: str) -> bytes:
    """A block with one field, whose value is these bits: whole octets."""
    octets = bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))
    return b"\x04" + integer(0x80, 7, len(octets)) + octets


def decoded_bit_by_bit(bits: str) -> bytes | None:
    """As section 5.2 says it; None: broken."""
    text, code = bytearray(), ""
    for bit in bits:
        code += bit
        symbol = CODES.get(code)
        if symbol == EOS:
            return None
        if symbol is not None:
            text.append(symbol)
            code = ""
    return bytes(text) if len(code) < 8 and "0" not in code else None


def pindexed_field(bits: str, pad: str = "1") -> str:
    return bits + pad * (-len(bits) % 8)


@pytest.mark.parametrize("symbol", range(256))
def test_huffman_code_of_every_octet_with_right_and_wrong_padding(symbol: int) -> None:
    bits = BITS[symbol]
    assert reader().read(huffman(pindexed_field(bits))) == ((b":path", bytes([symbol])),)
    assert_broken(huffman(pindexed_field(bits) + "1" * 8))
    assert_broken(huffman(pindexed_field(bits) + BITS[EOS] + "11"))
    assert_broken(huffman(pindexed_field(bits + BITS[EOS])))
    if len(bits) % 8:
        zeros = pindexed_field(bits, "0")
        expected = decoded_bit_by_bit(zeros)
        if expected is None:
            assert_broken(huffman(zeros))
        else:
            assert reader().read(huffman(zeros)) == ((b":path", expected),)


@pytest.mark.parametrize("octets", [1, 2, 3, 4, 5])
def test_huffman_string_of_padding_alone_is_broken(octets: int) -> None:
    assert_broken(huffman("1" * 8 * octets))


def test_huffman_code_that_is_cut_short_is_broken() -> None:
    for bits in CODES:
        for cut in range(8, len(bits), 8):
            assert_broken(huffman(bits[:cut]))


symbols = st.sampled_from([*range(256), EOS, *b"0123456789abcdefghijklmnopqrstuvwxyz/.-" * 8])
huffman_bits = st.one_of(
    st.binary(max_size=20).map(lambda data: "".join(f"{octet:08b}" for octet in data)),
    st.tuples(st.lists(symbols, max_size=12), st.sampled_from("01"), st.sampled_from(["", "1" * 8])).map(
        lambda parts: pindexed_field("".join(BITS[symbol] for symbol in parts[0]), parts[1]) + parts[2]
    ),
)


@given(huffman_bits)
def test_huffman_strings_are_read_as_bit_by_bit(bits: str) -> None:
    expected = decoded_bit_by_bit(bits)
    if expected is None:
        assert_broken(huffman(bits))
    else:
        assert reader().read(huffman(bits)) == ((b":path", expected),)


# Lists that are too large


def test_list_of_just_the_largest_size_is_taken() -> None:
    block = literal(b"a", b"1") + literal(b"b", b"2")
    assert reader(68).read(block) == ((b"a", b"1"), (b"b", b"2"))
    assert reader(67).read(block) is None


def test_table_is_right_after_a_list_that_was_too_large() -> None:
    of = reader(100)
    assert of.read(indexed_field(b"a", b"1") + literal(b"b", b"2" * 100) + indexed_field(b"c", b"3")) is None
    assert of.read(NEWEST + b"\xbf") == ((b"c", b"3"), (b"a", b"1"))


def test_error_behind_the_largest_size_is_still_one() -> None:
    assert_broken(literal(b"b", b"2" * 100) + b"\x80", reader(100))


def test_list_may_be_16_times_too_large_and_no_more() -> None:
    assert reader(100).read(literal(b"a", b"1" * (1600 - 33))) is None
    assert fault_of(literal(b"a", b"1" * (1601 - 33)), reader(100)).code is ErrorCode.ENHANCE_YOUR_CALM


def test_block_that_grows_beyond_all_measure_ends_the_connection() -> None:
    of = reader(4096)
    assert of.read(indexed_field(b"a", b"1" * 4000)) is not None
    size = size_of(((b"a", b"1" * 4000),))
    within = 4096 * BOMB // size
    assert of.read(NEWEST * within) is None
    fault = fault_of(NEWEST * (within + 1), of)
    assert (fault.code, fault.kind) == (ErrorCode.ENHANCE_YOUR_CALM, "header_bomb")


# Blocks that are remembered


@pytest.mark.parametrize(("largest", "fields"), [(ROOMY, GET), (10, None)], ids=["fields", "a list that is too large"])
def test_block_that_comes_again_is_parsed_once(largest: int, fields: Fields | None) -> None:
    parse = Parser()
    of = BlockReader(parse, largest)
    first = of.read(b"\x82")
    assert of.read(bytes(bytearray(b"\x82"))) is first
    assert (first, parse.parsed) == (fields, 1)


def test_block_that_changes_the_table_is_read_each_time() -> None:
    parse = Parser()
    of = BlockReader(parse, ROOMY)
    for _ in range(3):
        of.read(indexed_field(b"a", b"1"))
    assert parse.parsed == 3
    assert of.read(NEWEST + b"\xbf\xc0") == ((b"a", b"1"),) * 3


@pytest.mark.parametrize("trailers", [False, True])
def test_same_index_means_another_field_after_the_table_has_changed(trailers: bool) -> None:
    of = reader()
    of.read(indexed_field(b"a", b"1"))
    assert of.read(NEWEST) == ((b"a", b"1"),)
    assert (of.read_fields if trailers else of.read)(indexed_field(b"b", b"2")) == ((b"b", b"2"),)
    assert of.read(NEWEST) == ((b"b", b"2"),)


def test_trailers_are_neither_parsed_nor_remembered() -> None:
    parse = Parser()
    of = BlockReader(parse, ROOMY)
    assert of.read_fields(b"\x82") == GET
    assert parse.parsed == 0
    of.read(b"\x82")
    assert parse.parsed == 1


def test_block_of_an_index_that_a_smaller_table_has_lost_is_broken() -> None:
    of = reader()
    of.read(indexed_field(b"a", b"1"))
    assert of.read(NEWEST) == ((b"a", b"1"),)
    of.read(resized(0))
    assert_broken(NEWEST, of)


def test_long_blocks_are_not_remembered() -> None:
    parse = Parser()
    of = BlockReader(parse, ROOMY)
    longest = literal(b"a", b"1" * (MAX_REMEMBERED_BLOCK - len(literal(b"a", b"1" * 500)) + 500))
    assert len(longest) == MAX_REMEMBERED_BLOCK
    for block, parsed in (longest, 1), (longest, 1), (longest + b"\x82", 2), (longest + b"\x82", 3):
        of.read(block)
        assert parse.parsed == parsed


def test_oldest_of_too_many_blocks_is_forgotten() -> None:
    parse = Parser()
    of = BlockReader(parse, ROOMY)
    blocks = [literal(b"a", b"%d" % number) for number in range(MAX_REMEMBERED + 1)]
    for block in blocks:
        of.read(block)
    for block in blocks[1:]:
        of.read(block)
    assert parse.parsed == len(blocks)
    of.read(blocks[0])
    assert parse.parsed == len(blocks) + 1
