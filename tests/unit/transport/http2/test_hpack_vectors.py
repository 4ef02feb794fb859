"""Every example of RFC 7541, appendix C: the bytes as printed there, the fields, and the dynamic table after each."""

from __future__ import annotations

from itertools import count

import pytest

from tests.support.grpc.http2_peer import size_of
from tfs_lite.transport.http2.errors import ConnectionFault
from tfs_lite.transport.http2.hpack_reader import BlockReader, Fields
from tfs_lite.transport.http2.hpack_writer import integer, literal, status

Step = tuple[str, Fields, Fields, int]
"""The block in hex, its fields, the dynamic table from the newest field on, the size of the table."""


def reader(table_size: int = 4096) -> BlockReader[Fields | None]:
    return BlockReader(lambda fields: fields, 16384, table_size)


def table_of(of: BlockReader[Fields | None]) -> Fields:
    """Read by its indices, as a client would use it."""
    found: Fields = ()
    for index in count(62):
        try:
            found += of.read_fields(integer(0x80, 7, index)) or ()
        except ConnectionFault:
            return found
    raise AssertionError("a table without end")


GET: Fields = ((b":method", b"GET"),)
AUTHORITY: Fields = ((b":authority", b"www.example.com"),)
NO_CACHE: Fields = ((b"cache-control", b"no-cache"),)
CUSTOM: Fields = ((b"custom-key", b"custom-value"),)
CUSTOM_HEADER: Fields = ((b"custom-key", b"custom-header"),)
FIRST_REQUEST: Fields = (*GET, (b":scheme", b"http"), (b":path", b"/"), *AUTHORITY)
SECOND_REQUEST: Fields = (*FIRST_REQUEST, *NO_CACHE)
THIRD_REQUEST: Fields = (*GET, (b":scheme", b"https"), (b":path", b"/index.html"), *AUTHORITY, *CUSTOM)

S302: Fields = ((b":status", b"302"),)
S307: Fields = ((b":status", b"307"),)
PRIVATE: Fields = ((b"cache-control", b"private"),)
DATE_21: Fields = ((b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),)
DATE_22: Fields = ((b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),)
LOCATION: Fields = ((b"location", b"https://www.example.com"),)
GZIP: Fields = ((b"content-encoding", b"gzip"),)
COOKIE: Fields = ((b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),)
FIRST_RESPONSE: Fields = S302 + PRIVATE + DATE_21 + LOCATION
SECOND_RESPONSE: Fields = S307 + PRIVATE + DATE_21 + LOCATION
THIRD_RESPONSE: Fields = ((b":status", b"200"), *PRIVATE, *DATE_22, *LOCATION, *GZIP, *COOKIE)
FIRST_TABLE: Fields = LOCATION + DATE_21 + PRIVATE + S302
SECOND_TABLE: Fields = S307 + LOCATION + DATE_21 + PRIVATE
THIRD_TABLE: Fields = COOKIE + GZIP + DATE_22

C_2: dict[str, list[Step]] = {
    "C.2.1": [("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", CUSTOM_HEADER, CUSTOM_HEADER, 55)],
    "C.2.2": [("040c 2f73 616d 706c 652f 7061 7468", ((b":path", b"/sample/path"),), (), 0)],
    "C.2.3": [("1008 7061 7373 776f 7264 0673 6563 7265 74", ((b"password", b"secret"),), (), 0)],
    "C.2.4": [("82", GET, (), 0)],
}

C_3: list[Step] = [
    ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", FIRST_REQUEST, AUTHORITY, 57),
    ("8286 84be 5808 6e6f 2d63 6163 6865", SECOND_REQUEST, NO_CACHE + AUTHORITY, 110),
    (
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        THIRD_REQUEST,
        CUSTOM + NO_CACHE + AUTHORITY,
        164,
    ),
]
C_4: list[Step] = [
    ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", FIRST_REQUEST, AUTHORITY, 57),
    ("8286 84be 5886 a8eb 1064 9cbf", SECOND_REQUEST, NO_CACHE + AUTHORITY, 110),
    ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", THIRD_REQUEST, CUSTOM + NO_CACHE + AUTHORITY, 164),
]
C_5: list[Step] = [
    (
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d"
        "546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        FIRST_RESPONSE,
        FIRST_TABLE,
        222,
    ),
    ("4803 3330 37c1 c0bf", SECOND_RESPONSE, SECOND_TABLE, 222),
    (
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f"
        "6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b"
        "2076 6572 7369 6f6e 3d31",
        THIRD_RESPONSE,
        THIRD_TABLE,
        215,
    ),
]
C_6: list[Step] = [
    (
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7"
        "8f0b 97c8 e9ae 82ae 43d3",
        FIRST_RESPONSE,
        FIRST_TABLE,
        222,
    ),
    ("4883 640e ffc1 c0bf", SECOND_RESPONSE, SECOND_TABLE, 222),
    (
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335"
        "dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        THIRD_RESPONSE,
        THIRD_TABLE,
        215,
    ),
]


@pytest.mark.parametrize(
    ("value", "bits", "octets"), [(10, 5, "0a"), (1337, 5, "1f9a0a"), (42, 8, "2a")], ids=["C.1.1", "C.1.2", "C.1.3"]
)
def test_integers_of_c_1_are_written_as_printed(value: int, bits: int, octets: str) -> None:
    assert integer(0, bits, value).hex() == octets


@pytest.mark.parametrize(("value", "octets"), [(10, "2a"), (1337, "3f9a0a")], ids=["C.1.1", "C.1.2"])
def test_integers_of_c_1_are_read_as_printed(value: int, octets: str) -> None:
    """A size update is an integer with a prefix of five bits: a field that just fits tells which one it was."""
    of = reader()
    assert of.read_fields(bytes.fromhex(octets)) == ()
    if value < 32:
        of.read_fields(b"\x40\x00\x00")
        assert table_of(of) == ()
    else:
        of.read_fields(b"\x40\x00" + integer(0, 7, value - 32) + b"a" * (value - 32))
        assert size_of(table_of(of)) == value
        of.read_fields(b"\x40\x00" + integer(0, 7, value - 31) + b"a" * (value - 31))
        assert table_of(of) == ()


def test_integer_of_c_1_3_is_read_as_printed() -> None:
    """No field of HPACK has a prefix of eight bits; 42 is a length in one octet all the same."""
    assert reader().read_fields(b"\x00\x01a" + bytes.fromhex("2a") + b"v" * 42) == ((b"a", b"v" * 42),)


EXAMPLES = {**C_2, "C.3": C_3, "C.4": C_4, "C.5": C_5, "C.6": C_6}


@pytest.mark.parametrize("name", EXAMPLES)
def test_blocks_are_read_as_printed(name: str) -> None:
    """Requests in C.3 and C.4; responses with evictions in C.5 and C.6."""
    of = reader(table_size=256 if name in ("C.5", "C.6") else 4096)
    for block, fields, table, size in EXAMPLES[name]:
        assert of.read(bytes.fromhex(block)) == fields
        assert table_of(of) == table
        assert size_of(table) == size


def test_writer_writes_what_of_the_examples_needs_no_table() -> None:
    assert literal(b":path", b"/sample/path") == bytes.fromhex(C_2["C.2.2"][0][0])
    assert status(200) == bytes.fromhex("88")
