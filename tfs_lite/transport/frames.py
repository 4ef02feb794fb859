"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): their numbers, and those that a server sends, as bytes."""

from __future__ import annotations

from struct import Struct

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
