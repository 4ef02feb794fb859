"""A gRPC client that can do what stock ones never would: reset a call at any byte, leave in the middle, cut messages
anywhere. The frames are those of :mod:`tests.support.grpc.http2_peer`, on asyncio.

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

from tests.support.grpc import http2_peer as http2
from tfs_lite.transport.http2.framing import DEFAULT_MAX_FRAME, DEFAULT_WINDOW

RESET = 1000
"""Added to the HTTP/2 error code of a call that the server has reset."""
GONE = -1
"""The status of a call whose connection has ended."""
CANCEL = 8
STREAM_WINDOW = 1 << 20
CREDIT_AT = 1 << 14


class Call:
    """One stream. ``status`` is done with the gRPC status, RESET + code, or GONE; messages may be left then."""

    def __init__(self, connection: Connection, number: int, window: int) -> None:
        self.number = number
        self.window = window
        self.text = ""
        """The status message, percent-encoded as it came."""
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.unsent: deque[tuple[bytes, bool]] = deque()
        self._connection = connection
        self._buffer = bytearray()
        self._messages: deque[bytes] = deque()
        self._news = asyncio.Event()

    def send(self, message: bytes, *, end: bool = False, cuts: random.Random | None = None) -> None:
        """With ``cuts`` the message is cut at random; else the frames are as large as they may be."""
        self.send_bytes(http2.message(message), end=end, cuts=cuts)

    def send_bytes(self, data: bytes, *, end: bool = False, cuts: random.Random | None = None) -> None:
        """Any bytes; at most 3 cuts, and no piece is empty."""
        places = {cuts.randrange(len(data)) for _ in range(cuts.randint(0, 3))} if cuts and data else set()
        bounds = [0, *sorted(places - {0}), len(data)]
        for start, stop in itertools.pairwise(bounds):
            self.unsent.append((data[start:stop], end and stop == len(data)))
        self._connection.send_waiting(self)

    def reset(self, code: int = CANCEL) -> None:
        """Sends RST_STREAM. It has no effect on a call that has ended."""
        if not self.status.done():
            self._connection.write(http2.rst_stream(self.number, code))
            self.end(RESET + code)

    async def next(self) -> bytes | None:
        """The next message; None when the call has ended and all were taken."""
        while not self._messages:
            if self.status.done():
                return None
            self._news.clear()
            await self._news.wait()
        return self._messages.popleft()

    # Called by the connection.

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
        self._peer = http2.Peer()
        self._numbers = itertools.count(1, 2)
        self._window = self._first_window = DEFAULT_WINDOW
        self._max_frame = DEFAULT_MAX_FRAME
        self._taken = 0
        self._transport: asyncio.Transport

    def open(self, path: str, timeout: str = "") -> Call:
        """Sends the headers of a call. ConnectionError when the connection has ended."""
        if self.ended.done():
            raise ConnectionError("the connection has ended")
        number = next(self._numbers)
        fields = dict(http2.REQUEST) | {b":path": path.encode()}
        if timeout:
            fields[b"grpc-timeout"] = timeout.encode()
        call = self.calls[number] = Call(self, number, self._first_window)
        self.write(self._peer.open(number, list(fields.items())))
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

    def send_waiting(self, *calls: Call) -> None:
        """What the windows allow of what the calls have to send."""
        for call in calls:
            while call.unsent:
                data, last = call.unsent[0]
                size = min(len(data), self._window, call.window, self._max_frame)
                if size <= 0 and data:
                    break
                self._window -= size
                call.window -= size
                if size == len(data):
                    call.unsent.popleft()
                else:
                    call.unsent[0] = (data[size:], last)
                self.write(http2.data(call.number, data[:size], ended=last and size == len(data)))

    # Of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write(http2.PREFACE + self._peer.settings({http2.INITIAL_WINDOW: STREAM_WINDOW}))

    def connection_lost(self, error: Exception | None) -> None:
        for call in list(self.calls.values()):
            call.end(GONE)
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        for frame in self._peer.read(data):
            self._frame(frame, self.calls.get(frame.stream))

    def _frame(self, frame: http2.Frame, call: Call | None) -> None:
        if frame.kind == http2.DATA:
            self._credit(len(frame.payload))
            if call is not None:
                call.take(frame.payload)
        elif frame.kind == http2.HEADERS and frame.ended and call is not None:
            fields = dict(frame.fields)
            call.end(int(fields[b"grpc-status"]), fields.get(b"grpc-message", b"").decode())
        elif frame.kind == http2.RST_STREAM and call is not None:
            call.end(RESET + frame.value)
        elif frame.kind == http2.WINDOW_UPDATE:
            self._widen(call, frame)
        elif frame.kind == http2.SETTINGS and not frame.ack:
            self._settings(frame.settings)
        elif frame.kind == http2.PING and not frame.ack:
            self.write(http2.ping(frame.payload, ack=True))
        elif frame.kind == http2.GOAWAY:
            self.goaway = f"{frame.value} {frame.payload!r}"

    def _credit(self, size: int) -> None:
        self._taken += size
        if self._taken >= CREDIT_AT:
            self.write(http2.window_update(0, self._taken))
            self._taken = 0

    def _widen(self, call: Call | None, frame: http2.Frame) -> None:
        if frame.stream == 0:
            self._window += frame.value
            self.send_waiting(*self.calls.values())
        elif call is not None:
            call.window += frame.value
            self.send_waiting(call)

    def _settings(self, values: dict[int, int]) -> None:
        window = values.get(http2.INITIAL_WINDOW, self._first_window)
        for call in self.calls.values():
            call.window += window - self._first_window
        self._first_window = window
        self._max_frame = values.get(http2.MAX_FRAME, self._max_frame)
        self.write(http2.settings_ack())
        self.send_waiting(*self.calls.values())


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection
