"""Header blocks that are large, become large, or never end: no call has more than its share, and no connection."""

from __future__ import annotations

from itertools import count, islice, repeat
from typing import Any

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_attacks import Attacker, AttackTest
from tests.support.grpc.http2_peer import NEWEST, indexed_field
from tests.support.grpc.transport_fixture import ECHO, PATIENCE
from tests.support.servers.process import wait_until
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.http2.hpack_writer import integer
from tfs_lite.transport.limits import Limits

LIMITS = Limits()
EXHAUSTED = 8
MESSAGE = b"\0\0\0\0\1x"
LARGE_VALUE = bytes([65]) * 3900
BOMB = (ErrorCode.ENHANCE_YOUR_CALM, "a header list far too large")
ENDLESS = (ErrorCode.ENHANCE_YOUR_CALM, "a header block far too large")


def blocks(attacker: Attacker, block: bytes, first: int = 1) -> Any:
    """A call with that block on one stream after the other, in frames as large as may be."""
    cuts = list(range(16_000, len(block), 16_000))
    return (h2.headers(stream, block, cuts=cuts, ended=True) for stream in count(first, 2))


def test_many_references_to_one_large_field_are_counted_before_they_are_kept(
    attack: AttackTest, attacker: Attacker
) -> None:
    """A thousand bytes that would become four megabytes."""
    attacker.flood(islice(blocks(attacker, indexed_field(b"x", LARGE_VALUE) + NEWEST * 1000), 1))
    assert attacker.end() == BOMB
    attack.expect_closed("header_bomb")


def test_list_a_little_too_large_costs_its_call_only(attacker: Attacker) -> None:
    block = attacker.request_block(ECHO) + indexed_field(b"x", LARGE_VALUE) + NEWEST * 10
    attacker.flood(islice(blocks(attacker, block), 1))
    assert attacker.status(1)[0] == EXHAUSTED
    attacker.request(3, ECHO, MESSAGE)
    assert attacker.status(3)[0] == 0, "the table is still right"


def test_lists_that_are_too_large_again_and_again_cost_their_calls_only(attack: AttackTest, attacker: Attacker) -> None:
    """Each is 32 KB of codes to be undone: what a client makes the server work is in proportion to what it sends."""
    value = integer(0x80, 7, 30_000) + bytes(30_000)
    assert not attacker.flood(islice(blocks(attacker, attacker.request_block(ECHO) + b"\x00\x01x" + value), 100))
    assert attacker.status(199)[0] == EXHAUSTED
    assert attack.numbers.calls["", EXHAUSTED] == 100
    assert attack.numbers.unsent == 0


def test_fields_that_drive_one_another_out_of_the_table_leave_it_small(attack: AttackTest, attacker: Attacker) -> None:
    churn = b"".join(indexed_field(b"x-%d" % at, bytes([65]) * 40) for at in range(150))
    for stream in range(1, 201, 2):
        attacker.send(*islice(blocks(attacker, attacker.request_block(ECHO) + churn, stream), 1))
        attacker.read_until(lambda frame: frame.kind == h2.HEADERS and frame.ended)
    tables = [made._blocks._table for made in attack.connections()]
    assert all(sum(len(name) + len(value) + 32 for name, value in table.entries) <= 4096 for table in tables)
    assert max(len(table.entries) for table in tables) <= 128


def test_huge_huffman_codes_are_bounded_before_they_are_undone(attack: AttackTest, attacker: Attacker) -> None:
    """The shortest codes have five bits: what comes out is at most 8/5 of a block, and that has a bound too."""
    value = integer(0x80, 7, 32_000) + bytes(32_000)
    attacker.flood(islice(blocks(attacker, attacker.request_block(ECHO) + b"\x00\x01x" + value), 1))
    assert attacker.status(1)[0] == EXHAUSTED
    attacker.flood(islice(blocks(attacker, attacker.request_block(ECHO) + b"\x00\x01x" + value + bytes(260_000), 3), 1))
    assert attacker.end() == ENDLESS
    attack.expect_closed("header_bomb")


@pytest.mark.parametrize("size", [0, 1, 1000], ids=["empty", "one-byte", "large"])
def test_block_in_pieces_without_end_is_bounded_in_number_and_size(
    attack: AttackTest, attacker: Attacker, size: int
) -> None:
    attacker.send(h2.raw(h2.HEADERS, 0, 1, attacker.request_block(ECHO)))
    pieces = repeat(h2.continuation(1, bytes(size), last=False) * 10, 100_000)
    attacker.flood(pieces)
    assert attacker.end() == ENDLESS
    attack.expect_closed("header_bomb")


def test_block_that_is_never_ended_is_given_up_in_time() -> None:
    """Pieces that still come do not put it off."""
    with AttackTest(Limits(handshake_timeout=1.0, max_continuations=10**9)) as attack:
        attacker = attack.attacker()
        attacker.send(h2.raw(h2.HEADERS, 0, 1, attacker.request_block(ECHO)))
        held = wait_until(
            lambda: [made for made in attack.connections() if made.partial_since is not None], "the block has begun"
        )
        attacker.send(h2.continuation(1, b"", last=False))
        attacker.end()
        attack.expect_closed("handshake")
        assert all(made.closing == "handshake" for made in held)


def test_what_is_remembered_of_headers_is_small_however_large_they_are(attack: AttackTest, attacker: Attacker) -> None:
    """Short blocks that stand for much: fields out of the table. Kept by connection, and there may be many."""
    attacker.request(1, ECHO, MESSAGE)
    large = [(b"y", LARGE_VALUE)]
    attacker.send(
        h2.headers(3, attacker.request_block(ECHO) + indexed_field(*large[0])), h2.data(3, MESSAGE, ended=True)
    )
    for at in range(5, 405, 2):
        block = attacker.request_block(ECHO, (b"n", b"%d" % at)) + NEWEST * 3
        attacker.send(h2.headers(at, block) + h2.data(at, MESSAGE, ended=True))
        assert attacker.status(at)[0] == 0
    remembered = [made._blocks._remembered for made in attack.connections()]
    sizes = [
        sum(len(value) for opening in known.values() for value in opening.metadata.values()) for known in remembered
    ]
    assert max(sizes) <= 64 * 4096


def test_calls_with_other_headers_each_time_do_not_pile_up_in_the_server(
    attack: AttackTest, attacker: Attacker
) -> None:
    for at in range(1, 3001, 2):
        block = attacker.request_block(ECHO, (b"n", b"%d" % at))
        attacker.send(h2.headers(at, block) + h2.data(at, MESSAGE, ended=True))
    wait_until(lambda: attack.numbers.calls[ECHO, 0] >= 1500, "all are answered", PATIENCE)
    assert len(attack.server.transport.head_parser._known) <= 1024
    assert all(len(made._blocks._remembered) <= 64 for made in attack.connections())
