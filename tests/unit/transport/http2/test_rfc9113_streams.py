"""Streams: their states, numbers and how many there may be (RFC 9113, sections 5.1, 5.3 and 6.4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_peer import ConnectionFixture
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

PROTOCOL, CLOSED, SIZE = ErrorCode.PROTOCOL_ERROR, ErrorCode.STREAM_CLOSED, ErrorCode.FRAME_SIZE_ERROR


def idle(conn: ConnectionFixture) -> None:
    """Stream 5 has not begun."""
    conn.send(conn.peer.call(1))


def passed(conn: ConnectionFixture) -> None:
    """Stream 5 was skipped, and so is closed."""
    conn.send(conn.peer.call(7))


def opened(conn: ConnectionFixture) -> None:
    conn.send(conn.peer.open(5))


def half_closed_remote(conn: ConnectionFixture) -> None:
    """The client has ended, the server has not."""
    conn.send(conn.peer.call(5))


def answered_early(conn: ConnectionFixture) -> None:
    """The server has ended, the client has not, and was told that it need not go on: never half-closed (local)."""
    conn.send(conn.peer.open(5))
    assert [frame.kind for frame in conn.answer(5)] == [h2.HEADERS, h2.DATA, h2.HEADERS, h2.RST_STREAM]
    assert conn.resets == [(5, ErrorCode.NO_ERROR)]


def closed(conn: ConnectionFixture) -> None:
    """Both have ended."""
    conn.send(conn.peer.call(5))
    conn.answer(5)


def closed_by_client(conn: ConnectionFixture) -> None:
    conn.send(conn.peer.open(5), h2.rst_stream(5))


def closed_by_server(conn: ConnectionFixture) -> None:
    """What was on its way to it may still come."""
    conn.send(conn.peer.open(5))
    conn.connection.reset(conn.calls[5], ErrorCode.CANCEL)
    conn.take()


STATES: tuple[Callable[[ConnectionFixture], None], ...] = (
    idle,
    passed,
    opened,
    half_closed_remote,
    answered_early,
    closed,
    closed_by_client,
    closed_by_server,
)

FRAMES: dict[str, Callable[[ConnectionFixture], bytes]] = {
    "data": lambda conn: h2.data(5, b"x"),
    "last_data": lambda conn: h2.data(5, b"x", ended=True),
    "headers": lambda conn: conn.peer.open(5),
    "trailers": lambda conn: h2.headers(5, conn.peer.block([(b"a", b"b")]), ended=True),
    "priority": lambda conn: h2.priority(5),
    "rst_stream": lambda conn: h2.rst_stream(5),
    "settings": lambda conn: h2.raw(h2.SETTINGS, 0, 5),
    "push_promise": lambda conn: h2.push_promise(5, 2),
    "ping": lambda conn: h2.raw(h2.PING, 0, 5, bytes(8)),
    "goaway": lambda conn: h2.raw(h2.GOAWAY, 0, 5, bytes(8)),
    "window_update": lambda conn: h2.window_update(5, 1),
    "continuation": lambda conn: h2.continuation(5),
    "unknown": lambda conn: h2.raw(0x42, 0, 5, b"?"),
}

TAKEN, IGNORED = "taken", "ignored"
LATE: dict[str, object] = {"data": (CLOSED,), "last_data": (CLOSED,), "headers": PROTOCOL, "trailers": PROTOCOL}
TABLE: dict[str, dict[str, object]] = {
    "idle": {
        "headers": TAKEN,
        "trailers": (PROTOCOL,),
        **dict.fromkeys(("data", "last_data", "rst_stream", "window_update"), PROTOCOL),
    },
    "passed": LATE,
    "opened": {**dict.fromkeys(("data", "last_data", "trailers", "rst_stream"), TAKEN), "headers": (PROTOCOL,)},
    "half_closed_remote": {**LATE, "headers": (CLOSED,), "trailers": (CLOSED,), "rst_stream": TAKEN},
    "answered_early": {},
    "closed": LATE,
    "closed_by_client": LATE,
    "closed_by_server": {},
}
"""A code: error of the connection; a code in a tuple: of the stream. What is not there: see ``ANYWHERE``, else ignored.
``headers`` on a begun stream are trailers that do not end it, ``trailers`` on an idle one a malformed request."""
ANYWHERE: dict[str, object] = dict.fromkeys(("settings", "push_promise", "ping", "goaway", "continuation"), PROTOCOL)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_every_frame_in_every_state_is_taken_ignored_or_an_error(
    conn: ConnectionFixture, state: Callable[[ConnectionFixture], None], frame: str
) -> None:
    """5.1, and 6.1 to 6.10 on which frames belong to streams."""
    state(conn)
    conn.events.clear()
    conn.frames.clear()
    conn.send(FRAMES[frame](conn))
    expected = TABLE[state.__name__].get(frame, ANYWHERE.get(frame, IGNORED))
    told = [event for event in conn.events if event.stream == 5 and event.name in ("request", "data")]
    reset_by_client = frame == "rst_stream" and [event.value for event in conn.events] == [ErrorCode.CANCEL]
    if isinstance(expected, ErrorCode):
        assert (conn.fault, conn.resets, told) == (expected, [], [])
    elif isinstance(expected, tuple):
        assert (conn.fault, conn.resets, told) == (None, [(5, expected[0])], [])
    else:
        assert (conn.fault, conn.resets) == (None, [])
        assert bool(told or reset_by_client) == (expected == TAKEN)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_streams_do_not_disturb_others(conn: ConnectionFixture, state: Callable[[ConnectionFixture], None]) -> None:
    """5.4.2"""
    state(conn)
    conn.send(conn.peer.call(9, b"next"))
    assert conn.contents(9) == b"next"
    assert [frame.kind for frame in conn.answer(9)] == [h2.HEADERS, h2.DATA, h2.HEADERS]


@pytest.mark.parametrize(
    "state", [closed, answered_early, closed_by_client, closed_by_server], ids=lambda state: state.__name__
)
def test_a_closed_stream_no_longer_counts(state: Callable[[ConnectionFixture], None]) -> None:
    """5.1.2"""
    conn = ConnectionFixture(Limits(max_streams=1))
    state(conn)
    if state is closed_by_server:
        assert conn.connection.busy == 1
        conn.connection.release(conn.calls[5])
    assert (conn.connection.busy, conn.numbers.streams, len(conn.connection.streams)) == (0, 0, 0)
    conn.send(conn.peer.call(7))
    assert 7 in conn.calls


def test_numbers_of_streams_may_be_skipped(conn: ConnectionFixture) -> None:
    """5.1.1"""
    conn.send(conn.peer.call(1), conn.peer.call(101), conn.peer.call(2**31 - 1))
    assert [event.stream for event in conn.events] == [1, 101, 2**31 - 1]
    assert len(conn.answer(2**31 - 1)) == 3


def test_streams_above_the_bound_are_refused() -> None:
    """5.1.2, 8.7"""
    conn = ConnectionFixture(Limits(max_streams=2))
    conn.send(*(conn.peer.call(number, b"x") for number in (1, 3, 5, 7)))
    assert conn.resets == [(5, ErrorCode.REFUSED_STREAM), (7, ErrorCode.REFUSED_STREAM)]
    assert [event.stream for event in conn.events if event.name == "request"] == [1, 3]
    assert (conn.numbers.refused, conn.connection.busy, conn.fault) == (2, 2, None)


def test_header_blocks_of_refused_streams_are_read_all_the_same() -> None:
    """4.3: the table of the two sides stays one."""
    conn = ConnectionFixture(Limits(max_streams=1))
    conn.send(conn.peer.call(1), conn.peer.call(3, fields=[*h2.REQUEST, (b"refused", b"but remembered")]))
    conn.answer(1)
    conn.send(conn.peer.call(5, fields=[*h2.REQUEST, (b"refused", b"but remembered")]))
    assert conn.events[-1].value[-1] == (b"refused", b"but remembered")


def test_a_reset_stream_counts_while_its_owner_is_busy() -> None:
    """5.1.2: the client has its stream back at once; the server still works for it."""
    conn = ConnectionFixture(Limits(max_streams=1))
    conn.on_reset = lambda stream, code: None  # type: ignore[method-assign, misc, assignment]
    conn.send(conn.peer.open(1), h2.rst_stream(1), conn.peer.call(3))
    assert conn.resets == [(3, ErrorCode.REFUSED_STREAM)]
    conn.connection.release(conn.calls[1])
    conn.send(conn.peer.call(5))
    assert 5 in conn.calls


def test_nothing_is_sent_on_a_stream_after_rst_stream(conn: ConnectionFixture) -> None:
    """5.1, 6.4"""
    conn.send(h2.settings([(h2.INITIAL_WINDOW, 10)]), conn.peer.call(1))
    conn.answer(1, b"longer than the window")
    conn.send(h2.rst_stream(1))
    assert conn.send(h2.window_update(1, 1000), h2.window_update(0, 1000)) == []
    assert conn.numbers.unsent == 0


@pytest.mark.parametrize("code", [0, 8, 13, 14, 0xFFFFFFFF])
def test_any_code_may_come_with_rst_stream(conn: ConnectionFixture, code: int) -> None:
    """6.4, 7: unknown codes have no special meaning."""
    conn.send(conn.peer.open(1), h2.rst_stream(1, code))
    assert (conn.events[-1].name, conn.events[-1].value) == ("reset", code)
    assert conn.fault is None


@pytest.mark.parametrize("number", [1, 2, 3, 2**31 - 1])
def test_priority_is_ignored_on_any_stream_and_begins_none(conn: ConnectionFixture, number: int) -> None:
    """5.1.1, 5.3.2, 6.3"""
    assert conn.send(h2.priority(number), h2.priority(number, depends_on=number)) == []
    conn.send(conn.peer.call(1))
    assert [event.stream for event in conn.events] == [1]
    assert len(conn.answer(1)) == 3
