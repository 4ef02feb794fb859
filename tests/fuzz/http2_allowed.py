"""Where our reading of HTTP/2 and that of the ``h2`` package may differ, and why (see :mod:`http2_difference`).

Sections are those of RFC 9113. A rule looks at both sides: what ours did must be what the reason says.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.grpc import http2_peer as wire
from tfs_lite.transport.http2.errors import ErrorCode

if TYPE_CHECKING:
    from http2_cases import Act
    from http2_difference import Ours, Outcome, Theirs

PROTOCOL, FLOW, SIZE = ErrorCode.PROTOCOL_ERROR, ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.FRAME_SIZE_ERROR
CLOSED, REFUSED, COMPRESSION = ErrorCode.STREAM_CLOSED, ErrorCode.REFUSED_STREAM, ErrorCode.COMPRESSION_ERROR
ALTSVC = 0x0A
MAX_FRAME, MAX_CONTINUATIONS = 16_384, 16


@dataclass
class Difference:
    """``step`` is what both sides have just read, ``past`` all pieces so far, with this one."""

    step: bytes | Act
    past: list[bytes]
    mine: Outcome
    other: Outcome
    ours: Ours
    theirs: Theirs

    @property
    def head(self) -> tuple[int, int, int, int]:
        """Length, type, flags and stream of the frame; of HEADERS where it is the last CONTINUATION."""
        last = _head(self.step)
        if last[1] == wire.CONTINUATION:
            return next((_head(piece) for piece in reversed(self.past[1:]) if _head(piece)[1] == wire.HEADERS), last)
        return last

    def is_of(self, *kinds: int) -> bool:
        """The frame is of one of these types."""
        return self.head[1] in kinds

    @property
    def payload(self) -> bytes:
        return self.step[wire.FRAME_HEAD :] if isinstance(self.step, bytes) else b""

    def we_reset(self, *codes: int) -> bool:
        """All that ours did was to reset the frame's stream."""
        return self.mine.fault is None and [f[:2] + f[4:] for f in self.mine.frames] in (
            [(wire.RST_STREAM, self.head[3], code)] for code in codes
        )

    def faults(self, mine: int | None, other: int | None, *words: str) -> bool:
        """Both ended with these codes (None: did not), h2 with one of these texts."""
        matches = not words or any(word in self.other.why for word in words)
        return (self.mine.fault, self.other.fault) == (mine, other) and matches

    @property
    def we_ignored(self) -> bool:
        return self.mine.fault is None and not self.mine.frames and not self.mine.events

    @property
    def h2_reset_closed(self) -> bool:
        """h2 reset a stream because it is closed."""
        return any(frame[0] == wire.RST_STREAM and frame[4] == CLOSED for frame in self.other.frames)


def _head(step: bytes | Act) -> tuple[int, int, int, int]:
    if not isinstance(step, bytes) or len(step) < wire.FRAME_HEAD:
        return (0, -1, 0, 0)
    high, low, kind, flags, stream = struct.unpack_from(">BHBBI", step)
    return (high << 16 | low, kind, flags, stream & 0x7FFFFFFF)


def _no_contents(d: Difference) -> bool:
    promised = [event for event in d.other.events if event[0] == "request" and event[3]]
    lengths = [value for event in promised for name, value in event[2] if name == b"content-length"]
    return d.we_reset(PROTOCOL) and any(length != b"0" for length in lengths)


def _user(d: Difference) -> bool:
    fields = [field for event in d.other.events if event[0] == "request" for field in event[2]]
    return d.we_reset(PROTOCOL) and any(name == b":authority" and b"@" in value for name, value in fields)


def _passed_headers(d: Difference) -> bool:
    return d.is_of(wire.HEADERS) and d.mine.fault == PROTOCOL and (d.other.fault == CLOSED or d.h2_reset_closed)


def _reset_once(d: Difference) -> bool:
    reset = d.head[3] in [number for number, _ in d.ours.conn.resets]
    return d.is_of(wire.HEADERS) and reset and d.we_ignored and d.faults(None, PROTOCOL, "StreamIDTooLow")


def _setting_twice(d: Difference) -> bool:
    keys = [d.payload[at : at + 2] for at in range(0, len(d.payload), 6)]
    return d.is_of(wire.SETTINGS) and len(set(keys)) < len(keys) and d.mine.fault is not None and d.other.fault is None


def _update_by_0(d: Difference) -> bool:
    same_stream = d.we_reset(PROTOCOL) or d.we_ignored
    return d.is_of(wire.WINDOW_UPDATE) and same_stream and int.from_bytes(d.payload, "big") & 0x7FFFFFFF == 0


def _codes(d: Difference) -> bool:
    pair = (d.mine.fault, d.other.fault)
    return pair in ((SIZE, PROTOCOL), (PROTOCOL, SIZE), (PROTOCOL, CLOSED))


def _unfinished(d: Difference) -> bool:
    """Of the two only h2 looks at stream 0 at once, and only ours at PUSH_PROMISE."""
    if d.head[2] & wire.END_HEADERS:
        return False
    no_stream = d.is_of(wire.HEADERS) and d.head[3] == 0 and d.we_ignored and d.other.fault == PROTOCOL
    return no_stream or (d.is_of(wire.PUSH_PROMISE) and d.faults(PROTOCOL, None))


def _partial(d: Difference) -> bool:
    partial = isinstance(d.step, bytes) and len(d.step) < wire.FRAME_HEAD + _head(d.step)[0]
    return partial and d.we_ignored and d.faults(None, PROTOCOL, "invalid header: Stream ID")


def _many_and_late(d: Difference) -> bool:
    late = d.head[3] <= d.ours.conn.connection.last_stream
    return d.is_of(wire.HEADERS) and late and d.we_ignored and d.faults(None, PROTOCOL, "TooManyStreams")


def _after_goaway(d: Difference) -> bool:
    gone = any(_head(piece)[1] == wire.GOAWAY for piece in d.past[1:])
    return gone and d.faults(d.mine.fault, PROTOCOL, "ConnectionState.CLOSED")


def _continuations(d: Difference) -> bool:
    pieces = [piece for piece in d.past[-MAX_CONTINUATIONS - 1 :] if _head(piece)[1] == wire.CONTINUATION]
    return d.mine.fault == ErrorCode.ENHANCE_YOUR_CALM and len(pieces) > MAX_CONTINUATIONS


def _too_large_a_list(d: Difference) -> bool:
    asked = [event for event in d.mine.events if event[0] == "request"]
    return (
        d.is_of(wire.HEADERS)
        and d.faults(None, ErrorCode.ENHANCE_YOUR_CALM, "Oversized header block")
        and [e[2] for e in asked] == [None]
    )


def _windows_of_the_past(d: Difference) -> bool:
    fits = all(window < 2**31 for window in d.ours.windows.values())
    return d.is_of(wire.SETTINGS) and d.faults(None, FLOW, "May not increment flow control window") and fits


RULES: dict[str, Callable[[Difference], bool]] = {
    "8.1.1: a malformed request is an error of the stream; h2 ends the connection": lambda d: (
        d.is_of(wire.HEADERS, wire.DATA) and d.we_reset(PROTOCOL) and d.other.fault == PROTOCOL
    ),
    "8.1.1: contents that were promised by HEADERS with END_STREAM are missing; h2 does not look": _no_contents,
    "8.3.1: :authority must not name a user; h2 does not look": _user,
    "5.1.2: streams above the bound are refused one by one; h2 ends the connection": lambda d: (
        d.is_of(wire.HEADERS) and d.we_reset(REFUSED, PROTOCOL) and d.faults(None, PROTOCOL, "TooManyStreams")
    ),
    "4.3: COMPRESSION_ERROR; h2 says PROTOCOL_ERROR": lambda d: (
        d.is_of(wire.HEADERS) and d.faults(COMPRESSION, PROTOCOL)
    ),
    "4.2: the size of a frame is judged by its head; h2 waits for all of it": lambda d: (
        _head(d.step)[0] > MAX_FRAME and d.mine.fault == SIZE
    ),
    "3.4: the first frame is SETTINGS; h2 does not look": lambda d: (
        len(d.past) == 2 and not (d.is_of(wire.SETTINGS) and not d.head[2] & 1) and d.mine.fault == PROTOCOL
    ),
    "5.1: frames that still come for a stream that we reset are ignored; h2 resets it again": lambda d: (
        d.is_of(wire.DATA, wire.HEADERS) and d.we_ignored and d.h2_reset_closed
    ),
    "5.1, 5.1.1: HEADERS on a stream that was passed: PROTOCOL_ERROR; h2 tells how it was closed": _passed_headers,
    "5.1: a stream that was passed and reset counts as reset; for h2 as passed": _reset_once,
    "6.5.3: every value of a setting that comes twice is checked; h2 has only the last one": _setting_twice,
    "6.4: RST_STREAM on an idle stream is an error; h2 ignores it": lambda d: (
        d.is_of(wire.RST_STREAM) and d.faults(PROTOCOL, None)
    ),
    "5.3.2: priorities mean nothing; h2 has the rules of RFC 7540": lambda d: (
        d.faults(None, PROTOCOL, "may not depend on itself") and d.is_of(wire.PRIORITY, wire.HEADERS)
    ),
    "6.9.1: beyond a stream's window, an error of the stream; h2 ends the connection": lambda d: (
        d.is_of(wire.DATA) and d.we_reset(FLOW) and d.faults(None, FLOW)
    ),
    "6.9: WINDOW_UPDATE by 0 is an error of the stream, nothing if it is closed; h2 ends the connection": _update_by_0,
    "6.9: the reserved bit of WINDOW_UPDATE means nothing; h2 reads it as part of the number": lambda d: (
        d.is_of(wire.WINDOW_UPDATE) and d.payload[:1] >= b"\x80" and d.faults(d.mine.fault, PROTOCOL, "non-compliant")
    ),
    "6.2: padding may be as long as what follows its length; h2 wants one byte more": lambda d: (
        d.is_of(wire.HEADERS) and d.head[2] & wire.PADDED != 0 and d.other.why.endswith("invalid padding.")
    ),
    "6.2: padding must not cover the priority; h2 lets it": lambda d: (
        d.is_of(wire.HEADERS)
        and d.head[2] & 0x28 == wire.PADDED | wire.PRIORITY_FLAG
        and d.mine.why == "more padding than frame"
    ),
    "5.4: two rules are broken or a code is a matter of taste; both end the connection": _codes,
    "4.3: what is wrong with the head of an unfinished block may be reported now or at its end": _unfinished,
    "4.1: the stream of a frame is looked at when all of it is there; h2 needs only the head": _partial,
    "5.1: HEADERS for a stream that we reset are ignored; h2 counts them as a new stream": _many_and_late,
    "5.5: ALTSVC is for clients, and unknown here; h2 knows it": lambda d: d.is_of(ALTSVC) and d.we_ignored,
    "6.8: a client may go on with its streams after its GOAWAY; for h2 that is the end": _after_goaway,
    "10.5.1: a list above the bound costs its call; h2 ends the connection": _too_large_a_list,
    "6.9.2: SETTINGS change the windows of streams that live; h2 minds closed ones": _windows_of_the_past,
    "10.5.1: our bound on CONTINUATION frames is lower": _continuations,
    "8.3.1: :authority may be missing, host may differ in port and case; h2 is stricter": lambda d: (
        d.is_of(wire.HEADERS)
        and d.faults(None, PROTOCOL, "authority or Host", "mismatched :authority", "multiple Host")
    ),
    "8.2.1: metadata may have blanks at its ends, as gRPC says; h2 ends the connection": lambda d: (
        d.is_of(wire.HEADERS, wire.CONTINUATION) and d.faults(None, PROTOCOL, "whitespace")
    ),
    "5.5: SETTINGS_ENABLE_CONNECT_PROTOCOL is unknown here; h2 knows it": lambda d: (
        d.is_of(wire.SETTINGS) and d.faults(d.mine.fault, PROTOCOL, "Setting 8 ")
    ),
}


def reason_for(difference: Difference) -> str | None:
    """None: the two must not differ like this."""
    return next((reason for reason, holds in RULES.items() if holds(difference)), None)
