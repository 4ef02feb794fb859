"""The client's end of an HTTP/2 connection for tests: frames as bytes, right or wrong, and a server's bytes as values.

    functions of this module -> bytes of single frames; a Peer -> header blocks, and reads what the server says
    ConnectionFixture: a Peer, a connection of tfs_lite.transport.http2, and a record of its events

Nothing here checks what is sent; what the server sends is checked: header blocks have to be decodable, header frames
must not be interrupted, frames not larger than what the client allows. No I/O, and time moves when it is told.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hpack import Decoder, Encoder

from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.transport.http2.connection import Http2Connection
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.http2.fields import check_request
from tfs_lite.transport.http2.hpack_writer import integer
from tfs_lite.transport.http2.streams import Stream
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.numbers import Numbers

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME, MAX_HEADER_LIST = range(1, 7)

REQUEST: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.Service/Method"),
    (b":authority", b"here"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
RESPONSE_HEADERS = b"\x88"
"""The header block ``:status: 200``."""
TRAILERS = b"\x00\x0bgrpc-status\x010"
"""The header block ``grpc-status: 0``."""
MESSAGE_PREFIX = 5
_HEAD = struct.Struct(">BHBBI")
FRAME_HEAD = 9


# Frames that a client sends.


def raw(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """Any frame; ``length``: what its head claims, if not the truth."""
    size = len(payload) if length is None else length
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def data(stream: int, contents: bytes = b"", *, ended: bool = False, padding: int | None = None) -> bytes:
    flags = END_STREAM if ended else 0
    if padding is None:
        return raw(DATA, flags, stream, contents)
    return raw(DATA, flags | PADDED, stream, bytes([padding]) + contents + bytes(padding))


def priority(stream: int, depends_on: int = 0, weight: int = 15) -> bytes:
    return raw(PRIORITY, 0, stream, struct.pack(">IB", depends_on, weight))


def rst_stream(stream: int, code: int = ErrorCode.CANCEL) -> bytes:
    return raw(RST_STREAM, 0, stream, struct.pack(">I", code))


def settings(pairs: Iterable[tuple[int, int]] = ()) -> bytes:
    return raw(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in pairs))


def settings_ack() -> bytes:
    return raw(SETTINGS, ACK, 0)


def ping(payload: bytes = b"12345678", *, ack: bool = False) -> bytes:
    return raw(PING, ACK if ack else 0, 0, payload)


def goaway(last_stream: int = 0, code: int = ErrorCode.NO_ERROR, why: bytes = b"") -> bytes:
    return raw(GOAWAY, 0, 0, struct.pack(">II", last_stream, code) + why)


def window_update(stream: int, increment: int) -> bytes:
    return raw(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def continuation(stream: int, block: bytes = b"", *, last: bool = True) -> bytes:
    return raw(CONTINUATION, END_HEADERS if last else 0, stream, block)


def push_promise(stream: int, promised: int, block: bytes = b"") -> bytes:
    return raw(PUSH_PROMISE, END_HEADERS, stream, struct.pack(">I", promised) + block)


def headers(
    stream: int,
    block: bytes,
    *,
    ended: bool = False,
    padding: int | None = None,
    depends_on: int | None = None,
    cuts: Sequence[int] = (),
) -> bytes:
    """HEADERS, and a CONTINUATION for each place at which the block is cut."""
    ends = [*cuts, len(block)]
    pieces = [block[start:end] for start, end in zip([0, *cuts], ends, strict=True)]
    flags = (END_STREAM if ended else 0) | (0 if cuts else END_HEADERS)
    first = pieces[0]
    if depends_on is not None:
        flags, first = flags | PRIORITY_FLAG, struct.pack(">IB", depends_on, 15) + first
    if padding is not None:
        flags, first = flags | PADDED, bytes([padding]) + first + bytes(padding)
    rest = [continuation(stream, piece, last=at == len(cuts)) for at, piece in enumerate(pieces[1:], 1)]
    return raw(HEADERS, flags, stream, first) + b"".join(rest)


# Pieces of header blocks (RFC 7541).


NEWEST = b"\xbe"
"""Index 62: the field that entered the table last."""


def string(text: bytes) -> bytes:
    return integer(0, 7, len(text)) + text


def plain_field(name: bytes, value: bytes) -> bytes:
    """A literal without indexing, both strings as they are."""
    return b"\x00" + string(name) + string(value)


def indexed_field(name: bytes, value: bytes) -> bytes:
    """A literal that enters the table."""
    return b"\x40" + string(name) + string(value)


def resized(size: int) -> bytes:
    """A table size update."""
    return integer(0x20, 5, size)


def size_of(fields: Fields) -> int:
    """As tables and lists count it."""
    return sum(len(name) + len(value) + 32 for name, value in fields)


def message(contents: bytes = b"", flag: int = 0, size: int | None = None) -> bytes:
    """A message of gRPC; ``size``: what its prefix claims, if not the truth."""
    return struct.pack(">BI", flag, len(contents) if size is None else size) + contents


# What a server sends.


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the server's. ``fields``: of a whole header block, decoded (on HEADERS, with all its CONTINUATION).

    ``value``: error code, increment, or 0; ``last``: the last stream of GOAWAY.
    """

    kind: int
    flags: int
    stream: int
    payload: bytes = b""
    fields: tuple[tuple[bytes, bytes], ...] = ()
    value: int = 0
    last: int = 0

    @property
    def ended(self) -> bool:
        return self.kind in (DATA, HEADERS) and self.flags & END_STREAM != 0

    @property
    def ack(self) -> bool:
        return self.kind in (SETTINGS, PING) and self.flags & ACK != 0

    @property
    def settings(self) -> dict[int, int]:
        return dict(struct.iter_unpack(">HI", self.payload))


class Peer:
    """A client's state: its header tables, and what it allows the server."""

    def __init__(self) -> None:
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.max_frame = 16_384
        self._rest = b""
        self._block: list[Frame] = []
        self._asked: list[dict[int, int]] = []

    def settings(self, values: Mapping[int, int] | None = None) -> bytes:
        """SETTINGS that the client holds the server to, once they are acknowledged."""
        self._asked.append(dict(values or {}))
        return settings(self._asked[-1].items())

    def block(self, fields: Fields = REQUEST, huffman: bool = True) -> bytes:
        return self.encoder.encode(list(fields), huffman)

    def call(self, stream: int, contents: bytes = b"", fields: Fields = REQUEST) -> bytes:
        """A whole request."""
        opening = headers(stream, self.block(fields), ended=not contents)
        return opening + (data(stream, contents, ended=True) if contents else b"")

    def open(self, stream: int, fields: Fields = REQUEST) -> bytes:
        """The beginning of a request."""
        return headers(stream, self.block(fields))

    def read(self, output: bytes) -> list[Frame]:
        """The whole frames of it; AssertionError if the server breaks a rule."""
        buffer, position, found = self._rest + output, 0, []
        while len(buffer) - position >= FRAME_HEAD:
            high, low, kind, flags, stream = _HEAD.unpack_from(buffer, position)
            start = position + FRAME_HEAD
            end = start + (high << 16 | low)
            if end > len(buffer):
                break
            found += self._one(Frame(kind, flags, stream, buffer[start:end]))
            position = end
        self._rest = buffer[position:]
        return found

    def _one(self, frame: Frame) -> list[Frame]:
        assert len(frame.payload) <= self.max_frame, f"a frame of {len(frame.payload)} bytes"
        if frame.kind == HEADERS or self._block:
            return self._header_frame(frame)
        assert frame.kind != CONTINUATION, "CONTINUATION without HEADERS"
        if frame.ack and frame.kind == SETTINGS:
            self._acknowledged()
        if frame.kind in (RST_STREAM, WINDOW_UPDATE):
            return [Frame(frame.kind, frame.flags, frame.stream, value=struct.unpack(">I", frame.payload)[0])]
        if frame.kind == GOAWAY:
            last, code = struct.unpack_from(">II", frame.payload)
            return [Frame(GOAWAY, frame.flags, frame.stream, frame.payload[8:], value=code, last=last)]
        return [frame]

    def _header_frame(self, frame: Frame) -> list[Frame]:
        self._block.append(frame)
        first = self._block[0]
        assert len(self._block) == 1 or (frame.kind, frame.stream) == (CONTINUATION, first.stream), "a cut header block"
        if not frame.flags & END_HEADERS:
            return []
        block = b"".join(part.payload for part in self._block)
        self._block = []
        fields = tuple((bytes(name), bytes(value)) for name, value in self.decoder.decode(block, raw=True))
        return [Frame(HEADERS, first.flags | END_HEADERS, first.stream, block, fields)]

    def _acknowledged(self) -> None:
        values = self._asked.pop(0) if self._asked else {}
        self.max_frame = values.get(MAX_FRAME, self.max_frame)
        if HEADER_TABLE_SIZE in values:
            self.decoder.max_allowed_table_size = values[HEADER_TABLE_SIZE]


# A connection between the two.


@dataclass(frozen=True, slots=True)
class Request:
    """What the conn makes of header fields: themselves."""

    fields: tuple[tuple[bytes, bytes], ...] | None
    fault: str | None = None
    length: int = -1

    @classmethod
    def parse(cls, fields: tuple[tuple[bytes, bytes], ...] | None) -> Request:
        lengths = {value for name, value in fields or () if name == b"content-length"}
        fault = None if fields is None else check_request(fields)
        if fault is None and (len(lengths) > 1 or not all(value.isdigit() for value in lengths)):
            fault = "content-length"
        return cls(fields, fault, int(lengths.pop()) if lengths and fault is None else -1)


@dataclass(frozen=True, slots=True)
class Event:
    """What the connection told its owner: ``name`` is that of the method, without ``on_``."""

    name: str
    stream: int = 0
    value: Any = None
    """Fields of a request, contents of data, code of a reset, payload of a ping."""
    ended: bool = False


class ConnectionFixture:
    """A connection that has begun (unless ``preface`` is False), its client, and a record of what happened.

    ``events``, ``output`` and ``frames`` (those of the output) are everything since the greeting; :meth:`send` gives
    back what is new. ``credit``: contents count as used up when they come. ``awake``: the connection has asked for a
    flush since the last :meth:`take`.
    """

    def __init__(self, limits: Limits | None = None, *, preface: bool = True, credit: bool = True) -> None:
        self.clock = VirtualClock()
        self.numbers = Numbers()
        self.peer = Peer()
        self.events: list[Event] = []
        self.output = bytearray()
        self.frames: list[Frame] = []
        self.calls: dict[int, Stream] = {}
        """Every stream that ever was, by number."""
        self.pings_allowed = True
        self.refusing: bytes | None = None
        """The header block that answers every request by its head."""
        self.awake = False
        self._credit = credit
        limits = limits or Limits()
        self.connection: Http2Connection[Request] = Http2Connection(
            limits, self.numbers, self, Request.parse, self.clock.monotonic, self._wake
        )
        self.connection.start()
        if preface:
            self.send(PREFACE, self.peer.settings(), settings_ack())
            self.events.clear()
            self.output.clear()
            self.frames.clear()

    # What tests do.

    def send(self, *parts: bytes) -> list[Frame]:
        """Sends that in one piece, and returns the frames of the answer."""
        self.connection.receive(b"".join(parts))
        return self.take()

    def take(self) -> list[Frame]:
        """The frames that the server has sent since the last call."""
        found = bytearray()
        while pieces := self.connection.take():
            for piece in pieces:
                found += piece
        self.awake = False
        self.output += found
        frames = self.peer.read(bytes(found))
        self.frames += frames
        return frames

    def answer(self, number: int, message: bytes = b"") -> list[Frame]:
        """A whole unary answer."""
        stream = self.calls[number]
        self.connection.answer(stream, RESPONSE_HEADERS, message, TRAILERS)
        self.connection.release(stream)
        return self.take()

    @property
    def fault(self) -> ErrorCode | None:
        """The error that the connection has ended with: of the last GOAWAY that was sent."""
        ends = [frame for frame in self.frames if frame.kind == GOAWAY]
        return ErrorCode(ends[-1].value) if ends and self.connection.closing is not None else None

    @property
    def resets(self) -> list[tuple[int, ErrorCode]]:
        """Streams that the server has reset, and why."""
        return [(frame.stream, ErrorCode(frame.value)) for frame in self.frames if frame.kind == RST_STREAM]

    def sent(self, number: int) -> bytes:
        """Contents of the server's DATA frames on the stream."""
        return b"".join(frame.payload for frame in self.frames if frame.kind == DATA and frame.stream == number)

    def contents(self, number: int) -> bytes:
        """What came on the stream."""
        return b"".join(event.value for event in self.events if event.name == "data" and event.stream == number)

    def names(self) -> list[str]:
        return [event.name for event in self.events]

    # What the connection calls.

    def refusal(self, opening: Request) -> bytes | None:
        return self.refusing

    def on_request(self, stream: Stream, opening: Request, ended: bool) -> None:
        self.calls[stream.id] = stream
        self.events.append(Event("request", stream.id, opening.fields, ended))

    def on_data(self, stream: Stream, data: bytes, ended: bool) -> None:
        self.events.append(Event("data", stream.id, bytes(data), ended))
        if self._credit:
            self.connection.credit(stream, len(data))

    def on_reset(self, stream: Stream, code: int) -> None:
        self.events.append(Event("reset", stream.id, int(code)))
        self.connection.release(stream)

    def on_writable(self, stream: Stream) -> None:
        self.events.append(Event("writable", stream.id))

    def on_ping(self) -> bool:
        self.events.append(Event("ping"))
        return self.pings_allowed

    def on_ping_ack(self, payload: bytes) -> None:
        self.events.append(Event("ping_ack", 0, bytes(payload)))

    def _wake(self) -> None:
        self.awake = True
