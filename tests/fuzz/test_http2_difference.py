"""A short search for differences between our HTTP/2 and that of ``h2``, the same every time; and that it finds any."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import http2_difference
import pytest
from http2_allowed import RULES
from http2_cases import WRONGNESS, Act, load, make, save
from http2_difference import LIMITS, Mismatch, frames_of, held, run

from tests.support.grpc import http2_peer as wire
from tests.support.grpc.http2_peer import ConnectionFixture
from tfs_lite.transport.http2 import connection, framing
from tfs_lite.transport.http2.connection import Http2Connection
from tfs_lite.transport.http2.fields import Fields
from tfs_lite.transport.http2.hpack_reader import BlockReader
from tfs_lite.transport.http2.send_queue import SendQueue

BATCHES, CASES = 10, 30


def batch(number: int) -> list[http2_difference.Result]:
    return [run(make(random.Random(f"{number}-{at}"))) for at in range(CASES)]


@pytest.mark.parametrize("number", range(BATCHES))
def test_both_read_the_same_bytes_in_the_same_way_but_for_known_differences(number: int) -> None:
    results = batch(number)
    assert sum(result.requests for result in results) > CASES
    assert sum(result.steps for result in results) > 5 * CASES


def test_most_cases_are_read_to_their_end() -> None:
    """Else the rest of them would be compared with nothing."""
    results = batch(0) + batch(1) + batch(2)
    reasons = Counter(result.reason for result in results)
    assert reasons[""] > len(results) // 3
    assert set(reasons) <= {"", *RULES}


def test_a_case_survives_being_kept() -> None:
    for seed in range(20 * len(WRONGNESS)):
        case = make(random.Random(seed))
        assert load(save(case)) == case == make(random.Random(seed))


def test_frames_reach_both_sides_one_by_one_however_they_were_cut() -> None:
    peer = wire.Peer()
    frames = [wire.PREFACE, wire.settings(), *[peer.open(1), wire.data(1, b"abc"), wire.data(1)], wire.ping()]
    whole = b"".join(frames)
    assert list(frames_of([whole[:30], whole[30:]])) == [*frames, b""]
    act = Act("end", 0)
    assert list(frames_of([whole[:30], act, whole[30:]])) == [*frames[:1], act, *frames[1:], b""]


def search() -> None:
    for number in range(BATCHES * 3):
        batch(number)


READ = BlockReader.read_fields


def read_and_remember(self: BlockReader[object], block: bytes) -> Fields | None:
    kept, fields = dict(self._remembered), READ(self, block)
    self._remembered.update(kept)
    return fields


BUGS: dict[str, tuple[object, str, object]] = {
    "padding is not taken off": (connection, "strip_padding", lambda flags, payload: payload),
    "continuation is not checked": (framing, "CONTINUATION", 0x77),
    "windows are not resized": (Http2Connection, "_resize_windows", lambda self, size: None),
    "settings are not checked": (connection, "read_settings", lambda payload: [*framing.SETTING.iter_unpack(payload)]),
    "trailers are not checked": (connection, "check_trailers", lambda fields: None),
    "window updates are not counted": (SendQueue, "widen_stream", lambda self, stream, increment: True),
    "old header blocks are remembered": (BlockReader, "read_fields", read_and_remember),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_ours_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, broken = BUGS[bug]
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(Mismatch):
        search()


def floods(peer: wire.Peer) -> dict[str, Callable[[int], bytes]]:
    return {
        "resets": lambda number: peer.open(number) + wire.rst_stream(number),
        "refused": lambda number: peer.open(number),
        "malformed": lambda number: wire.headers(number, peer.block([])),
        "late": lambda number: peer.call(number) + wire.rst_stream(number) + wire.data(number, b"x"),
        "pings": lambda number: wire.ping(),
        "settings": lambda number: wire.settings([(number & 0xFFF0, number)]),
        "windows": lambda number: wire.window_update(0, 1),
        "unknown": lambda number: wire.raw(0x42, 0, number, bytes(100)),
        "fields": lambda number: (
            peer.open(number, [*wire.REQUEST, (b"name", b"%d" % number)]) + wire.rst_stream(number)
        ),
        "blocks": lambda number: wire.headers(number, b"\x83\x86\x00\x01a\x04%04x" % number) + wire.rst_stream(number),
    }


@pytest.mark.parametrize("kind", floods(wire.Peer()))
def test_what_a_connection_holds_does_not_grow_with_what_it_has_read(kind: str) -> None:
    """Also with every budget set to endless."""
    conn = ConnectionFixture(LIMITS)
    make_one = floods(conn.peer)[kind]
    sizes = []
    for number in range(1, 12_001, 2):
        conn.send(make_one(number))
        conn.events.clear()
        conn.frames.clear()
        conn.output.clear()
        conn.calls.clear()
        if number in (4001, 11_999):
            sizes.append(held(conn.connection))
    assert conn.connection.closing is None
    assert sizes[1] <= sizes[0] + 4096
    assert sizes[1] < http2_difference.MAX_HELD


def test_the_search_can_be_run_by_hand() -> None:
    script = Path(http2_difference.__file__)
    command = [sys.executable, str(script), "--seconds", "1", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "cases: " in done.stdout
