"""A gRPC client that can do what stock ones never would: reset a call at any byte, leave in the middle, cut messages
anywhere. HTTP/2 by hand on asyncio, header blocks by ``hpack`` with its dynamic table and Huffman's code.

    connection = await connect(port)
    call = connection.open("/package.Service/Method", timeout="100m")
    call.send(message, end=True)
    answer, status = await call.next(), await call.status

One event loop. Windows are obeyed in both directions; streams get a window of 1 MiB, which is never made larger.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
from collections import deque
from typing import cast

from hpack import Decoder, Encoder

from tfs_lite.transport.http2 import framing as frames

RESET = 1000
"""Added to the HTTP/2 error code of a call that the server has reset."""
GONE = -1
"""The status of a call whose connection has ended."""
CANCEL = 8
INITIAL_WINDOW = 4
MAX_FRAME = 5
STREAM_WINDOW = 1 << 20
CREDIT_AT = 1 << 14


class Call:
    """One stream. ``status`` is done with the gRPC status, RESET + code, or GONE; messages may be left then."""

    def __init__(self, connection: Connection, number: int, window: int) -> None:
        self.number = number
        self.window = window
        self.text = ""
        """What the status says, percent-encoded as it came."""
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.unsent: deque[tuple[bytes, bool]] = deque()
        self._connection = connection
        self._buffer = bytearray()
        self._messages: deque[bytes] = deque()
        self._news = asyncio.Event()

    def send(self, message: bytes, *, end: bool = False, cuts: random.Random | None = None) -> None:
        """With ``cuts`` the message goes out in pieces of any size; else in frames as large as they may be."""
        self.send_bytes(b"\0" + struct.pack(">I", len(message)) + message, end=end, cuts=cuts)

    def send_bytes(self, data: bytes, *, end: bool = False, cuts: random.Random | None = None) -> None:
        """Any bytes; at most 3 cuts, and no piece is empty."""
        places = {cuts.randrange(len(data)) for _ in range(cuts.randint(0, 3))} if cuts and data else set()
        bounds = [0, *sorted(places - {0}), len(data)]
        for start, stop in itertools.pairwise(bounds):
            self.unsent.append((data[start:stop], end and stop == len(data)))
        self._connection.send_waiting(self)

    def reset(self, code: int = CANCEL) -> None:
        """RST_STREAM, whatever is under way. Without effect on a call that has ended."""
        if not self.status.done():
            self._connection.write(frames.rst_stream(self.number, code))
            self.end(RESET + code)

    async def next(self) -> bytes | None:
        """The next message; None when the call has ended and all were taken."""
        while not self._messages:
            if self.status.done():
                return None
            self._news.clear()
            await self._news.wait()
        return self._messages.popleft()

    # What the connection tells it.

    def take(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 5:
            (size,) = struct.unpack_from(">I", self._buffer, 1)
            if len(self._buffer) < 5 + size:
                return
            self._messages.append(bytes(self._buffer[5 : 5 + size]))
            del self._buffer[: 5 + size]
            self._news.set()

    def end(self, status: int, text: str = "") -> None:
        self.text = text
        self.unsent.clear()
        self._connection.calls.pop(self.number, None)
        if not self.status.done():
            self.status.set_result(status)
        self._news.set()


class Connection(asyncio.Protocol):
    """``goaway`` is the text of GOAWAY; None before it. ``ended`` is done when it is."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        self.goaway: str | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._encoder, self._decoder = Encoder(), Decoder()
        self._next = 1
        self._buffer = bytearray()
        self._window = self._first_window = frames.DEFAULT_WINDOW
        self._max_frame = frames.DEFAULT_MAX_FRAME
        self._taken = 0
        self._transport: asyncio.Transport

    def open(self, path: str, timeout: str = "") -> Call:
        """Sends the headers of a call. ConnectionError when the connection has ended."""
        if self.ended.done():
            raise ConnectionError("the connection has ended")
        number, self._next = self._next, self._next + 2
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "soak"), ("te", "trailers")]
        fields.append(("content-type", "application/grpc"))
        if timeout:
            fields.append(("grpc-timeout", timeout))
        call = self.calls[number] = Call(self, number, self._first_window)
        self.write(frames.frame(frames.HEADERS, frames.END_HEADERS, number, self._encoder.encode(fields)))
        return call

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        """Closes at once: the server gets a TCP reset."""
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def send_waiting(self, call: Call) -> None:
        """What the windows allow of what the call has to send."""
        while call.unsent:
            data, last = call.unsent[0]
            size = min(len(data), self._window, call.window, self._max_frame)
            if size <= 0 and data:
                return
            self._window -= size
            call.window -= size
            if size == len(data):
                call.unsent.popleft()
            else:
                call.unsent[0] = (data[size:], last)
            flags = frames.END_STREAM if last and size == len(data) else 0
            self.write(frames.frame(frames.DATA, flags, call.number, data[:size]))

    # Of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write(frames.PREFACE + frames.settings({INITIAL_WINDOW: STREAM_WINDOW}))

    def connection_lost(self, error: Exception | None) -> None:
        for call in list(self.calls.values()):
            call.end(GONE)
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= frames.HEAD_SIZE:
            high, low, kind, flags, number = frames.HEAD.unpack_from(self._buffer, at)
            after = at + frames.HEAD_SIZE + (high << 16 | low)
            if len(self._buffer) < after:
                break
            self._frame(kind, flags, number, bytes(self._buffer[at + frames.HEAD_SIZE : after]))
            at = after
        del self._buffer[:at]

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        call = self.calls.get(number)
        if kind == frames.HEADERS:
            assert flags & frames.END_HEADERS, "headers in several frames"
            fields = dict(self._decoder.decode(payload))
            if call is not None and flags & frames.END_STREAM:
                call.end(int(fields["grpc-status"]), fields.get("grpc-message", ""))
        elif kind == frames.DATA:
            self._took(len(payload))
            if call is not None:
                call.take(payload)
        elif kind == frames.RST_STREAM and call is not None:
            call.end(RESET + frames.NUMBER.unpack(payload)[0])
        elif kind == frames.WINDOW_UPDATE:
            self._widen(call, number, frames.NUMBER.unpack(payload)[0])
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._settings(payload)
        elif kind == frames.PING and not flags & frames.ACK:
            self.write(frames.ping(payload, ack=True))
        elif kind == frames.GOAWAY:
            self.goaway = f"{frames.NUMBER.unpack_from(payload, 4)[0]} {payload[8:]!r}"

    def _took(self, size: int) -> None:
        self._taken += size
        if self._taken >= CREDIT_AT:
            self.write(frames.window_update(0, self._taken))
            self._taken = 0

    def _widen(self, call: Call | None, number: int, size: int) -> None:
        if number == 0:
            self._window += size
            for waiting in list(self.calls.values()):
                self.send_waiting(waiting)
        elif call is not None:
            call.window += size
            self.send_waiting(call)

    def _settings(self, payload: bytes) -> None:
        for name, value in frames.SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW:
                for call in self.calls.values():
                    call.window += value - self._first_window
                self._first_window = value
            elif name == MAX_FRAME:
                self._max_frame = value
        self.write(frames.SETTINGS_ACK)
        for call in list(self.calls.values()):
            self.send_waiting(call)


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection
