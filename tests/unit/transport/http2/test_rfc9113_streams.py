"""Streams: their states, numbers and how many there may be (RFC 9113, sections 5.1, 5.3 and 6.4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tfs_lite.testing.grpc import http2_peer as h2
from tfs_lite.testing.grpc.http2_peer import Desk
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import Limits

PROTOCOL, CLOSED, SIZE = ErrorCode.PROTOCOL_ERROR, ErrorCode.STREAM_CLOSED, ErrorCode.FRAME_SIZE_ERROR


def idle(desk: Desk) -> None:
    """Stream 5 has not begun."""
    desk.send(desk.peer.call(1))


def passed(desk: Desk) -> None:
    """Stream 5 was skipped, and so is closed."""
    desk.send(desk.peer.call(7))


def opened(desk: Desk) -> None:
    desk.send(desk.peer.open(5))


def half_closed_remote(desk: Desk) -> None:
    """The client has ended, the server has not."""
    desk.send(desk.peer.call(5))


def answered_early(desk: Desk) -> None:
    """The server has ended, the client has not, and was told that it need not go on: never half-closed (local)."""
    desk.send(desk.peer.open(5))
    assert [frame.kind for frame in desk.answer(5)] == [h2.HEADERS, h2.DATA, h2.HEADERS, h2.RST_STREAM]
    assert desk.resets == [(5, ErrorCode.NO_ERROR)]


def closed(desk: Desk) -> None:
    """Both have ended."""
    desk.send(desk.peer.call(5))
    desk.answer(5)


def closed_by_client(desk: Desk) -> None:
    desk.send(desk.peer.open(5), h2.rst_stream(5))


def closed_by_server(desk: Desk) -> None:
    """What was on its way to it may still come."""
    desk.send(desk.peer.open(5))
    desk.connection.reset(desk.calls[5], ErrorCode.CANCEL)
    desk.take()


STATES: tuple[Callable[[Desk], None], ...] = (
    idle,
    passed,
    opened,
    half_closed_remote,
    answered_early,
    closed,
    closed_by_client,
    closed_by_server,
)

FRAMES: dict[str, Callable[[Desk], bytes]] = {
    "data": lambda desk: h2.data(5, b"x"),
    "last_data": lambda desk: h2.data(5, b"x", ended=True),
    "headers": lambda desk: desk.peer.open(5),
    "trailers": lambda desk: h2.headers(5, desk.peer.block([(b"a", b"b")]), ended=True),
    "priority": lambda desk: h2.priority(5),
    "rst_stream": lambda desk: h2.rst_stream(5),
    "settings": lambda desk: h2.raw(h2.SETTINGS, 0, 5),
    "push_promise": lambda desk: h2.push_promise(5, 2),
    "ping": lambda desk: h2.raw(h2.PING, 0, 5, bytes(8)),
    "goaway": lambda desk: h2.raw(h2.GOAWAY, 0, 5, bytes(8)),
    "window_update": lambda desk: h2.window_update(5, 1),
    "continuation": lambda desk: h2.continuation(5),
    "unknown": lambda desk: h2.raw(0x42, 0, 5, b"?"),
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
def test_every_frame_in_every_state_is_taken_ignored_or_an_error(state: Callable[[Desk], None], frame: str) -> None:
    """5.1, and 6.1 to 6.10 on which frames belong to streams."""
    desk = Desk()
    state(desk)
    desk.events.clear()
    desk.frames.clear()
    desk.send(FRAMES[frame](desk))
    expected = TABLE[state.__name__].get(frame, ANYWHERE.get(frame, IGNORED))
    told = [event for event in desk.events if event.stream == 5 and event.name in ("request", "data")]
    reset_by_client = frame == "rst_stream" and [event.value for event in desk.events] == [ErrorCode.CANCEL]
    if isinstance(expected, ErrorCode):
        assert (desk.fault, desk.resets, told) == (expected, [], [])
    elif isinstance(expected, tuple):
        assert (desk.fault, desk.resets, told) == (None, [(5, expected[0])], [])
    else:
        assert (desk.fault, desk.resets) == (None, [])
        assert bool(told or reset_by_client) == (expected == TAKEN)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_other_streams_go_on_whatever_became_of_one(state: Callable[[Desk], None]) -> None:
    """5.4.2"""
    desk = Desk()
    state(desk)
    desk.send(desk.peer.call(9, b"next"))
    assert desk.contents(9) == b"next"
    assert [frame.kind for frame in desk.answer(9)] == [h2.HEADERS, h2.DATA, h2.HEADERS]


@pytest.mark.parametrize(
    "state", [closed, answered_early, closed_by_client, closed_by_server], ids=lambda state: state.__name__
)
def test_a_closed_stream_gives_its_place_back(state: Callable[[Desk], None]) -> None:
    """5.1.2"""
    desk = Desk(Limits(max_streams=1))
    state(desk)
    if state is closed_by_server:
        assert desk.connection.busy == 1
        desk.connection.release(desk.calls[5])
    assert (desk.connection.busy, desk.numbers.streams, len(desk.connection.streams)) == (0, 0, 0)


@pytest.mark.parametrize("number", [0, 2, 4, 2**31 - 2])
def test_a_client_cannot_begin_streams_of_even_numbers(number: int) -> None:
    """5.1.1"""
    desk = Desk()
    desk.send(desk.peer.open(number))
    assert desk.fault is PROTOCOL
    assert not desk.events


@pytest.mark.parametrize("kind", ["data", "rst_stream", "window_update"])
@pytest.mark.parametrize("number", [2, 4])
def test_streams_of_even_numbers_are_idle_for_ever(kind: str, number: int) -> None:
    """5.1.1: this server begins none."""
    desk = Desk()
    frames = {"data": h2.data(number, b"x"), "rst_stream": h2.rst_stream(number)}
    desk.send(desk.peer.call(9), frames.get(kind, h2.window_update(number, 1)))
    assert desk.fault is PROTOCOL


def test_numbers_of_streams_must_go_up() -> None:
    """5.1.1"""
    desk = Desk()
    desk.send(desk.peer.call(5), desk.peer.call(3))
    assert desk.fault is PROTOCOL
    assert desk.frames[-1].last == 5


def test_numbers_of_streams_may_be_skipped() -> None:
    """5.1.1"""
    desk = Desk()
    desk.send(desk.peer.call(1), desk.peer.call(101), desk.peer.call(2**31 - 1))
    assert [event.stream for event in desk.events] == [1, 101, 2**31 - 1]
    assert len(desk.answer(2**31 - 1)) == 3


def test_a_number_is_not_used_twice() -> None:
    """5.1.1"""
    desk = Desk()
    desk.send(desk.peer.call(1))
    desk.answer(1)
    desk.send(desk.peer.call(1))
    assert desk.fault is PROTOCOL


def test_streams_above_the_bound_are_refused() -> None:
    """5.1.2, 8.7"""
    desk = Desk(Limits(max_streams=2))
    desk.send(*(desk.peer.call(number, b"x") for number in (1, 3, 5, 7)))
    assert desk.resets == [(5, ErrorCode.REFUSED_STREAM), (7, ErrorCode.REFUSED_STREAM)]
    assert [event.stream for event in desk.events if event.name == "request"] == [1, 3]
    assert (desk.numbers.refused, desk.connection.busy, desk.fault) == (2, 2, None)


def test_header_blocks_of_refused_streams_are_read_all_the_same() -> None:
    """4.3: the table of the two sides stays one."""
    desk = Desk(Limits(max_streams=1))
    desk.send(desk.peer.call(1), desk.peer.call(3, fields=[*h2.REQUEST, (b"refused", b"but remembered")]))
    desk.answer(1)
    desk.send(desk.peer.call(5, fields=[*h2.REQUEST, (b"refused", b"but remembered")]))
    assert desk.events[-1].value[-1] == (b"refused", b"but remembered")


def test_a_place_is_free_again_when_the_answer_has_left() -> None:
    """5.1.2"""
    desk = Desk(Limits(max_streams=1))
    desk.send(desk.peer.call(1))
    desk.answer(1)
    desk.send(desk.peer.call(3))
    assert desk.resets == []
    assert desk.names() == ["request", "request"]


def test_a_place_stays_taken_while_the_owner_of_a_reset_stream_is_busy() -> None:
    """5.1.2: the client has its stream back at once; the server still works for it."""
    desk = Desk(Limits(max_streams=1))
    desk.on_reset = lambda stream, code: None  # type: ignore[method-assign, misc, assignment]
    desk.send(desk.peer.open(1), h2.rst_stream(1), desk.peer.call(3))
    assert desk.resets == [(3, ErrorCode.REFUSED_STREAM)]
    desk.connection.release(desk.calls[1])
    desk.send(desk.peer.call(5))
    assert 5 in desk.calls


def test_nothing_is_sent_on_a_stream_after_rst_stream() -> None:
    """5.1, 6.4"""
    desk = Desk()
    desk.send(h2.settings([(h2.INITIAL_WINDOW, 10)]), desk.peer.call(1))
    desk.answer(1, b"longer than the window")
    desk.send(h2.rst_stream(1))
    assert desk.send(h2.window_update(1, 1000), h2.window_update(0, 1000)) == []
    assert desk.numbers.unsent == 0


@pytest.mark.parametrize("code", [0, 8, 13, 14, 0xFFFFFFFF])
def test_any_code_may_come_with_rst_stream(code: int) -> None:
    """6.4, 7: unknown codes have no special meaning."""
    desk = Desk()
    desk.send(desk.peer.open(1), h2.rst_stream(1, code))
    assert (desk.events[-1].name, desk.events[-1].value) == ("reset", code)
    assert desk.fault is None


def test_rst_stream_on_the_connection_is_a_protocol_error() -> None:
    """6.4"""
    desk = Desk()
    desk.send(h2.rst_stream(0))
    assert desk.fault is PROTOCOL


@pytest.mark.parametrize("number", [1, 2, 3, 2**31 - 1])
def test_priority_is_ignored_on_any_stream(number: int) -> None:
    """5.3.2, 6.3"""
    desk = Desk()
    desk.send(desk.peer.call(1))
    assert desk.send(h2.priority(number), h2.priority(number, depends_on=number)) == []
    assert len(desk.answer(1)) == 3


def test_priority_on_the_connection_is_a_protocol_error() -> None:
    """6.3"""
    desk = Desk()
    desk.send(h2.priority(0))
    assert desk.fault is PROTOCOL


def test_priority_does_not_begin_a_stream() -> None:
    """5.1.1"""
    desk = Desk()
    desk.send(h2.priority(9), desk.peer.call(1))
    assert [event.stream for event in desk.events] == [1]
