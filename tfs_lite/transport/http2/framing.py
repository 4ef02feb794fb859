"""Frames of HTTP/2 (RFC 9113, sections 3.4, 4 and 6): those that the server sends as bytes, and bytes to frames.

The input may be cut anywhere. :class:`FrameReader` joins a header block of several frames, so that CONTINUATION is not
seen outside this module: the handler of HEADERS gets the whole block, without padding and priority.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TypeAlias

from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode
from tfs_lite.transport.http2.rate_limit import RateLimits
from tfs_lite.transport.limits import Limits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0x0, 0x1, 0x2, 0x3, 0x4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0x5, 0x6, 0x7, 0x8, 0x9

END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20

HEAD_SIZE = 9
HEAD = Struct(">BHBBI")
"""A frame's head: high byte and low bytes of the length, type, flags, stream (whose first bit is reserved)."""
NUMBER = Struct(">I")
SETTING = Struct(">HI")
STREAM_MASK = 0x7FFFFFFF

MAX_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
DEFAULT_MAX_FRAME = 16_384
LARGEST_MAX_FRAME = 2**24 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Makes a frame of any kind. ``payload`` is shorter than 2**24 bytes."""
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def rst_stream(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(increment))


def ping(payload: bytes, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway(last_stream: int, code: int, why: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, NUMBER.pack(last_stream) + NUMBER.pack(code) + why)


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(key, value) for key, value in values.items()))


SETTINGS_ACK = frame(SETTINGS, ACK, 0)

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 0x1, 0x2, 0x3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 0x4, 0x5, 0x6


def our_settings(limits: Limits) -> bytes:
    """The server's SETTINGS frame, which opens every connection."""
    return settings(
        {
            MAX_CONCURRENT_STREAMS: limits.max_streams,
            INITIAL_WINDOW_SIZE: limits.stream_window,
            MAX_FRAME_SIZE: limits.max_frame,
            MAX_HEADER_LIST_SIZE: limits.max_header_list,
        }
    )


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The client's settings in order, unknown ones included. Raises ConnectionFault."""
    if len(payload) % SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a size that is no multiple of 6")
    found: list[tuple[int, int]] = list(SETTING.iter_unpack(payload))
    for key, value in found:
        if key == ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if key == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE beyond 2^31-1")
        if key == MAX_FRAME_SIZE and not DEFAULT_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of its range")
    return found


PRIORITY_SIZE = 5
MAX_BLOCK_FACTOR = 4
"""A header block more than so many times the largest header list ends the connection: decoding Huffman takes time."""
_KIND, _CONTENTS = 3, bytes([DATA])
_WHOLE = END_HEADERS | PADDED | PRIORITY_FLAG
_ALWAYS_WHOLE = (DATA, WINDOW_UPDATE)
"""Frequent kinds of frames that are never part of a header block."""

Handler: TypeAlias = Callable[[int, int, bytes], None]
"""Flags, stream, payload."""


class FrameReader:
    """Calls one of ``handlers``, which are ordered by frame type from DATA on, for each frame. ``rates`` limits frames
    without effect.

    ``partial_since``: when the frame, header block or preface that is incomplete now began; None if there is none, or
    if it is DATA, since a message has a time limit of its own. The owner sets ``opened`` once the first SETTINGS are in
    force, and ``stopped`` when nothing more is to be read.
    """

    __slots__ = (
        "_block",
        "_block_since",
        "_block_start",
        "_continuations",
        "_handlers",
        "_max_block",
        "_max_continuations",
        "_max_frame",
        "_preface_read",
        "_rates",
        "_rest",
        "opened",
        "partial_since",
        "stopped",
    )

    def __init__(self, limits: Limits, handlers: Sequence[Handler], rates: RateLimits, now: float) -> None:
        self._handlers = tuple(handlers)
        self._rates = rates
        self._max_frame = limits.max_frame
        self._max_block = MAX_BLOCK_FACTOR * limits.max_header_list
        self._max_continuations = limits.max_continuations
        self._rest = b""
        self._preface_read = False
        self._block: bytearray | None = None
        self._block_start = (0, 0)
        """Flags and stream of the HEADERS frame that began the block."""
        self._block_since = now
        self._continuations = 0
        self.opened = False
        self.stopped = False
        self.partial_since: float | None = now

    def feed(self, data: bytes, now: float) -> None:
        """Calls the handlers. After a ConnectionFault nothing more may be fed."""
        if self._rest:
            data = self._rest + data
        used = self._read(data, now)
        self._rest = data[used:]
        if self._block is not None:
            self.partial_since = self._block_since
        elif self.opened and (not self._rest or self._rest[_KIND : _KIND + 1] == _CONTENTS):
            self.partial_since = None
        elif self.partial_since is None or (used and self.opened):
            self.partial_since = now

    def _read(self, data: bytes, now: float) -> int:
        """Returns how many bytes were used."""
        position, size = 0, len(data)
        if not self._preface_read:
            if data[: len(PREFACE)] != PREFACE[:size]:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this port speaks gRPC over HTTP/2", "no_http2")
            if size < len(PREFACE):
                return 0
            self._preface_read, position = True, len(PREFACE)
        unpack, handlers = HEAD.unpack_from, self._handlers
        while size - position >= HEAD_SIZE and not self.stopped:
            high, low, kind, flags, number = unpack(data, position)
            length = high << 16 | low
            if length > self._max_frame:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame larger than MAX_FRAME_SIZE")
            start = position + HEAD_SIZE
            if start + length > size:
                break
            position = start + length
            usual = kind in _ALWAYS_WHOLE or (kind == HEADERS and flags & _WHOLE == END_HEADERS)
            if usual and self._block is None and self.opened:
                handlers[kind](flags, number & STREAM_MASK, data[start:position])
                continue  # the usual case
            self._dispatch(kind, flags, number & STREAM_MASK, data[start:position], now)
        return position

    def _dispatch(self, kind: int, flags: int, number: int, payload: bytes, now: float) -> None:
        if self._block is not None or kind == CONTINUATION:
            self._continue(kind, flags, number, payload)
            return
        if not self.opened and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == HEADERS:
            if flags & (PADDED | PRIORITY_FLAG):
                payload = strip_padding(flags, payload)
            if not flags & END_HEADERS:
                self._block, self._block_start = bytearray(payload), (flags, number)
                self._block_since, self._continuations = now, 0
                return
        if kind < len(self._handlers):
            self._handlers[kind](flags, number, payload)
        else:
            self._rates.take("unexpected_frames")

    def _continue(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        block, (first_flags, stream) = self._block, self._block_start
        if block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        if kind != CONTINUATION or number != stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame inside a header block")
        self._continuations += 1
        if len(block) + len(payload) > self._max_block or self._continuations > self._max_continuations:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block far too large", "header_bomb")
        if not payload:
            self._rates.take("empty_frames")
        block += payload
        if flags & END_HEADERS:
            self._block = None
            self._handlers[HEADERS](first_flags, stream, bytes(block))


def strip_padding(flags: int, payload: bytes) -> bytes:
    """The payload without padding and priority."""
    start, padding = 0, 0
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without a length of its padding")
        start, padding = 1, payload[0]
    if flags & PRIORITY_FLAG:
        start += PRIORITY_SIZE
        if start > len(payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
    if start + padding > len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[start : len(payload) - padding]
