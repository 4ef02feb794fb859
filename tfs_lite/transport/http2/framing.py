"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): their numbers, and those that a server sends, as bytes.

From bytes to frames (RFC 9113, sections 3.4, 4 and 6.10): the preface, whole frames, whole header blocks.

What comes may be cut anywhere. A header block in several frames is put together here, so that nobody else has to know
CONTINUATION; it reaches the handler of HEADERS as one, without padding and priority.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TypeAlias

from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode
from tfs_lite.transport.limits import Limits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0x0, 0x1, 0x2, 0x3, 0x4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0x5, 0x6, 0x7, 0x8, 0x9

END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20

HEAD_SIZE = 9
HEAD = Struct(">BHBBI")
"""High byte and low bytes of the length, type, flags, stream (the first bit means nothing)."""
NUMBER = Struct(">I")
SETTING = Struct(">HI")
STREAM_MASK = 0x7FFFFFFF

MAX_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
DEFAULT_MAX_FRAME = 16_384
LARGEST_MAX_FRAME = 2**24 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Any frame. ``payload`` is shorter than 2**24 bytes."""
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


PRIORITY_SIZE = 5
LARGEST_BLOCK = 4
"""A header block that is more than so many times too large ends the connection. Undoing the Huffman code takes time."""
_KIND, _CONTENTS = 3, bytes([DATA])
_WHOLE = END_HEADERS | PADDED | PRIORITY_FLAG

Handler: TypeAlias = Callable[[int, int, bytes], None]
"""Flags, stream, payload."""


class FrameReader:
    """``handlers``: by type of frame, DATA first; ``spend(name)`` pays for what means nothing, from a budget.

    ``partial_since``: when the frame, header block or preface that is incomplete now began; None: there is none, or it
    is DATA: a large message may pause where it likes, and has a time limit of its own.
    ``opened`` is set by the owner once the first SETTINGS are in force. ``stopped``: nothing more is to be read.
    """

    __slots__ = (
        "_block",
        "_block_since",
        "_block_start",
        "_continuations",
        "_greeted",
        "_handlers",
        "_max_block",
        "_max_continuations",
        "_max_frame",
        "_rest",
        "_spend",
        "opened",
        "partial_since",
        "stopped",
    )

    def __init__(self, limits: Limits, handlers: Sequence[Handler], spend: Callable[[str], None], now: float) -> None:
        self._handlers = tuple(handlers)
        self._spend = spend
        self._max_frame = limits.max_frame
        self._max_block = LARGEST_BLOCK * limits.max_header_list
        self._max_continuations = limits.max_continuations
        self._rest = b""
        self._greeted = False
        self._block: bytearray | None = None
        self._block_start = (0, 0)
        """Flags and stream of the HEADERS that the block began with."""
        self._block_since = now
        self._continuations = 0
        self.opened = False
        self.stopped = False
        self.partial_since: float | None = now

    def feed(self, data: bytes, now: float) -> None:
        """Calls the handlers. Raises ConnectionFault, after which there is nothing more to feed."""
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
        """How many bytes of it were used up."""
        position, size = 0, len(data)
        if not self._greeted:
            if data[: len(PREFACE)] != PREFACE[:size]:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this port speaks gRPC over HTTP/2", "no_http2")
            if size < len(PREFACE):
                return 0
            self._greeted, position = True, len(PREFACE)
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
            usual = kind == DATA or (kind == HEADERS and flags & _WHOLE == END_HEADERS)
            if usual and self._block is None and self.opened:
                handlers[kind](flags, number & STREAM_MASK, data[start:position])
                continue  # as it mostly is
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
                payload = bare(flags, payload)
            if not flags & END_HEADERS:
                self._block, self._block_start = bytearray(payload), (flags, number)
                self._block_since, self._continuations = now, 0
                return
        if kind < len(self._handlers):
            self._handlers[kind](flags, number, payload)
        else:
            self._spend("oddments")

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
            self._spend("empties")
        block += payload
        if flags & END_HEADERS:
            self._block = None
            self._handlers[HEADERS](first_flags, stream, bytes(block))


def bare(flags: int, payload: bytes) -> bytes:
    """Without padding and priority."""
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
