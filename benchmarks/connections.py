"""Connections of the load generators: gRPC over HTTP/2 and HTTP/1.1, frames written and read by hand on plain sockets.

A stock client costs more CPU a request than the servers that are measured, so these do only what the wire needs:
request headers are one constant block per connection (literals, no Huffman, never indexed), frames of an answer are
told apart by their nine bytes, and an HTTP/2 peer is asked to keep no header table, so that equal trailers are equal
bytes and are decoded once. Flow control is obeyed in both directions. Bodies of answers are kept for one request in
``SAMPLE``.

A connection belongs to one thread. Its owner calls ``start`` for requests, then ``flush``; and ``receive`` when the
socket is readable. ConnectionError when the server goes away or says GOAWAY; ProtocolError when it sends what these few
lines do not read.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

SAMPLE = 64
"""One answer in so many is handed on with its body."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 1, 2, 3, 4, 5
LARGEST_WINDOW = 2**31 - 1
FIRST_WINDOW = 65535
RESET = 1000
"""Added to the HTTP/2 error code of a reset stream, so that it cannot be taken for a gRPC status."""
READ_BYTES = 1 << 18
_HEAD = struct.Struct(">IBI")
_NUMBER = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


class ProtocolError(RuntimeError):
    """The server sent something that these connections do not read."""


class Answer(NamedTuple):
    """``request`` and ``due`` are those given to ``start``. ``code``: gRPC or HTTP status. ``body``: of a sampled
    request, else None."""

    request: int
    due: float
    code: int
    body: bytes | None


class Connection(Protocol):
    sock: socket.socket
    good: int
    """The code of an answer that counts as served."""

    @property
    def busy(self) -> int: ...

    @property
    def room(self) -> int: ...

    def start(self, index: int, due: float) -> None: ...

    def flush(self) -> bool:
        """Writes what it can; whether nothing is left."""

    def receive(self) -> list[Answer]: ...


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


class Writer:
    """The bytes that a socket has not taken yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.out: list[bytes] = []

    def flush(self) -> bool:
        if not self.out:
            return True
        data = self.out[0] if len(self.out) == 1 else b"".join(self.out)
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        self.out = [] if sent == len(data) else [data[sent:]]
        return not self.out


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header field that is never indexed; both strings shorter than 127 bytes."""
    return b"\x10" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def request_block(path: str, timeout: str = "") -> bytes:
    post_http = b"\x83\x86"
    fields = (
        (":path", path),
        (":authority", "127.0.0.1"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-bench/1"),
    )
    deadline = literal("grpc-timeout", timeout) if timeout else b""
    return post_http + b"".join(literal(*field) for field in fields) + deadline


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """(value, where the next byte is) of an HPACK integer."""
    most = (1 << bits) - 1
    value, at = block[at] & most, at + 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte, at = block[at], at + 1
        value += (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _string(block: bytes, at: int) -> tuple[bytes | None, int]:
    """None for a string in Huffman's code."""
    coded = block[at] >= 0x80
    size, at = _integer(block, at, 7)
    return None if coded else block[at : at + size], at + size


def grpc_status(block: bytes) -> int:
    """The ``grpc-status`` of trailers that refer to no dynamic table. ProtocolError where there is none to be read."""
    at, found = 0, -1
    while at < len(block):
        byte = block[at]
        if byte >= 0x80:
            index, at = _integer(block, at, 7)
            if index > 61:
                raise ProtocolError("trailers refer to a header table that was turned off")
            continue
        if byte >= 0x20 and byte < 0x40:
            _, at = _integer(block, at, 5)
            continue
        index, at = _integer(block, at, 6 if byte >= 0x40 else 4)
        name: bytes | None = b"?"
        if index == 0:
            name, at = _string(block, at)
        value, at = _string(block, at)
        if name == b"grpc-status" and value is not None:
            found = int(value)
    if found < 0:
        raise ProtocolError(f"no grpc-status in the trailers {block!r}")
    return found


class GrpcConnection(Writer):
    """Unary calls of one method. ``messages`` are the request messages that ``start`` names by index; ``timeout`` is a
    deadline for every call as the wire writes it (``500m``: milliseconds), empty: none."""

    good = 0

    def __init__(self, port: int, path: str, messages: Sequence[bytes], timeout: str = "") -> None:
        super().__init__(connect(port))
        self._block = request_block(path, timeout)
        self._head = _HEAD.pack(len(self._block) << 8 | HEADERS, END_HEADERS, 0)[:5]
        self._bodies = [b"\0" + _NUMBER.pack(len(message)) + message for message in messages]
        self._data_heads = [_HEAD.pack(len(body) << 8 | DATA, END_STREAM, 0)[:5] for body in self._bodies]
        self._next = 1
        self._open: dict[int, tuple[int, float]] = {}
        self._kept: dict[int, list[bytes]] = {}
        self._statuses: dict[bytes, int] = {}
        self._rest = b""
        self._window = self._stream_window = FIRST_WINDOW
        self._max_frame = 16384
        self._max_streams = LARGEST_WINDOW
        self._unsent: deque[list[int]] = deque()
        """Of bodies that had to wait for a window: [stream, index, bytes sent, the stream's window]."""
        self._taken = 0
        settings = ((HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW, LARGEST_WINDOW))
        self.out.append(PREFACE + frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in settings)))
        self.out.append(frame(WINDOW_UPDATE, 0, 0, _NUMBER.pack(LARGEST_WINDOW - FIRST_WINDOW)))

    @property
    def busy(self) -> int:
        return len(self._open)

    @property
    def room(self) -> int:
        return self._max_streams - len(self._open)

    def start(self, index: int, due: float) -> None:
        stream, self._next = self._next, self._next + 2
        self._open[stream] = (index, due)
        if (stream >> 1) % SAMPLE == 0:
            self._kept[stream] = []
        body, number = self._bodies[index], _NUMBER.pack(stream)
        if len(body) <= self._window and len(body) <= min(self._stream_window, self._max_frame) and not self._unsent:
            self._window -= len(body)
            self.out.append(b"".join((self._head, number, self._block, self._data_heads[index], number, body)))
            return
        self.out.append(b"".join((self._head, number, self._block)))
        self._unsent.append([stream, index, 0, self._stream_window])
        self._send_waiting()

    def _send_waiting(self) -> None:
        """As much of the bodies that wait as the windows allow, the oldest first."""
        for item in list(self._unsent):
            stream, index, sent, window = item
            body = self._bodies[index]
            while sent < len(body) and (size := min(len(body) - sent, self._max_frame, window, self._window)) > 0:
                ends = END_STREAM if sent + size == len(body) else 0
                self.out.append(frame(DATA, ends, stream, body[sent : sent + size]))
                sent, window, self._window = sent + size, window - size, self._window - size
            item[2:] = sent, window
            if sent == len(body):
                self._unsent.remove(item)
            elif self._window <= 0:
                return

    def receive(self) -> list[Answer]:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        data = self._rest + data if self._rest else data
        at, end, done = 0, len(data), list[Answer]()
        while end - at >= 9:
            word, flags, stream = _HEAD.unpack_from(data, at)
            after = at + 9 + (word >> 8)
            if after > end:
                break
            self._read(word & 0xFF, flags, stream, data[at + 9 : after], done)
            at = after
        self._rest = data[at:]
        return done

    def _read(self, kind: int, flags: int, stream: int, payload: bytes, done: list[Answer]) -> None:
        if kind == DATA:
            self._took(len(payload))
            if stream in self._kept:
                self._kept[stream].append(payload)
        elif kind == HEADERS:
            if not flags & END_HEADERS:
                raise ProtocolError("headers in several frames")
            if flags & END_STREAM:
                self._ended(stream, self._status(payload), done)
        elif kind == WINDOW_UPDATE:
            self._widened(stream, _NUMBER.unpack(payload)[0])
        elif kind == RST_STREAM and stream in self._open:
            self._ended(stream, RESET + _NUMBER.unpack(payload)[0], done)
        else:
            self._control(kind, flags, payload)

    def _control(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == PING and not flags & ACK:
            self.out.append(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            raise ConnectionError(f"the server says goodbye: {payload[8:]!r}")

    def _status(self, block: bytes) -> int:
        status = self._statuses.get(block)
        if status is None:
            status = grpc_status(block)
            if len(self._statuses) < 1000:
                self._statuses[block] = status
        return status

    def _ended(self, stream: int, code: int, done: list[Answer]) -> None:
        index, due = self._open.pop(stream)
        kept = self._kept.pop(stream, None)
        done.append(Answer(index, due, code, None if kept is None else b"".join(kept)[5:]))
        if self._unsent:
            self._unsent = deque(item for item in self._unsent if item[0] != stream)

    def _took(self, size: int) -> None:
        """Gives the connection's window back before it is used up."""
        self._taken += size
        if self._taken > LARGEST_WINDOW // 4:
            self.out.append(frame(WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._taken)))
            self._taken = 0

    def _widened(self, stream: int, size: int) -> None:
        if stream == 0:
            self._window += size
        for item in self._unsent:
            if item[0] == stream:
                item[3] += size
        self._send_waiting()

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            name, value = _SETTING.unpack_from(payload, at)
            if name == INITIAL_WINDOW:
                for item in self._unsent:
                    item[3] += value - self._stream_window
                self._stream_window = value
            elif name == MAX_FRAME:
                self._max_frame = value
            elif name == MAX_STREAMS:
                self._max_streams = value
        self.out.append(frame(SETTINGS, ACK, 0))
        self._send_waiting()


class HttpConnection(Writer):
    """POSTs to one path, one at a time, on a connection that is kept."""

    good = 200

    def __init__(
        self,
        port: int,
        path: str,
        messages: Sequence[bytes],
        content_type: str = "application/json",
        headers: Callable[[bytes], str] = lambda message: "",
    ) -> None:
        """``headers``: more lines for the head of each message, with their line ends."""
        super().__init__(connect(port))
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\nContent-Length: "
        heads = [f"{head}{len(message)}\r\n{headers(message)}\r\n".encode() for message in messages]
        self._requests = [head + message for head, message in zip(heads, messages, strict=True)]
        self._asked: tuple[int, float] | None = None
        self._count = 0
        self._rest = b""

    @property
    def busy(self) -> int:
        return 0 if self._asked is None else 1

    @property
    def room(self) -> int:
        return 1 if self._asked is None else 0

    def start(self, index: int, due: float) -> None:
        self._asked = (index, due)
        self._count += 1
        self.out.append(self._requests[index])

    def receive(self) -> list[Answer]:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        data = self._rest + data if self._rest else data
        end = data.find(b"\r\n\r\n")
        if end < 0 or self._asked is None:
            self._rest = data
            return []
        head = data[:end].lower()
        _, found, size = head.partition(b"\r\ncontent-length:")
        if not found:
            raise ProtocolError(f"an answer without its length: {head!r}")
        body = data[end + 4 :]
        if len(body) < int(size.partition(b"\r")[0]):
            self._rest = data
            return []
        (index, due), self._asked, self._rest = self._asked, None, b""
        return [Answer(index, due, int(head[9:12]), body if (self._count - 1) % SAMPLE == 0 else None)]
