"""Clients that ask for a long stream and take it slowly, for ``scale.py``.

One kind has HTTP/2's first windows of 64 KB and gives credit only for what it has read; the other gives all the credit
there is and leaves the bytes in the socket, whose buffer is small. Both look at every message: its number, its size.
"""

from __future__ import annotations

import socket
import struct
import time

import connections as c
from connections import frame, request_block
from transport_echo import ASKED, MANY, NUMBER

SOCKET_BUFFER = 1 << 16
READ_BYTES = 1 << 14


class SlowReader:
    """``turn`` reads a little. ``fault`` says what was wrong; empty: nothing. ``status``: None until the end."""

    def __init__(self, port: int, count: int, size: int, *, has_credit: bool) -> None:
        self.messages = 0
        self.status: int | None = None
        self.fault = ""
        self._size, self._gives_credit = size, not has_credit
        self._buffer, self._body = bytearray(), bytearray()
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
        self.sock.settimeout(30)
        self.sock.connect(("127.0.0.1", port))
        window = c.LARGEST_WINDOW if has_credit else c.FIRST_WINDOW
        settings = struct.pack(">HIHIHI", c.HEADER_TABLE_SIZE, 0, c.ENABLE_PUSH, 0, c.INITIAL_WINDOW, window)
        asks = b"\0" + NUMBER.pack(ASKED.size) + ASKED.pack(count, size)
        start = c.PREFACE + frame(c.SETTINGS, 0, 0, settings)
        if has_credit:
            start += frame(c.WINDOW_UPDATE, 0, 0, NUMBER.pack(c.LARGEST_WINDOW - c.FIRST_WINDOW))
        start += frame(c.HEADERS, c.END_HEADERS, 1, request_block(MANY)) + frame(c.DATA, c.END_STREAM, 1, asks)
        self.sock.sendall(start)
        self.sock.setblocking(False)

    def turn(self, most: int = READ_BYTES) -> bool:
        """Reads up to so many bytes; whether there were any."""
        try:
            data = self.sock.recv(most)
        except BlockingIOError:
            return False
        except ConnectionError as error:
            data, self.fault = b"", str(error)
        if not data:
            self.fault = self.fault or "the connection was closed"
            self.status = -1
            return False
        self._buffer += data
        self._frames()
        return True

    def rest(self, seconds: float = 60.0) -> None:
        """Reads at full speed to the end of the stream."""
        gives_up = time.monotonic() + seconds
        while self.status is None:
            if not self.turn(1 << 20):
                time.sleep(0.001)
            if time.monotonic() > gives_up:
                self.fault = "the stream has not ended"
                return

    def _frames(self) -> None:
        taken = at = 0
        while len(self._buffer) - at >= 9:
            word, flags, _ = struct.unpack_from(">IBI", self._buffer, at)
            after = at + 9 + (word >> 8)
            if len(self._buffer) < after:
                break
            payload = bytes(self._buffer[at + 9 : after])
            taken += self._frame(word & 0xFF, flags, payload)
            at = after
        del self._buffer[:at]
        if taken and self._gives_credit:
            credit = NUMBER.pack(taken)
            self._answer(frame(c.WINDOW_UPDATE, 0, 0, credit) + frame(c.WINDOW_UPDATE, 0, 1, credit))

    def _frame(self, kind: int, flags: int, payload: bytes) -> int:
        """How many bytes of windows it took."""
        if kind == c.DATA:
            self._body += payload
            self._messages()
            return len(payload)
        if kind == c.HEADERS and flags & c.END_STREAM:
            self.status = c.grpc_status(payload)
        elif kind in (c.RST_STREAM, c.GOAWAY):
            self.status, self.fault = -1, f"the server ended it: {payload!r}"
        elif kind == c.SETTINGS and not flags & c.ACK:
            self._answer(frame(c.SETTINGS, c.ACK, 0))
        elif kind == c.PING and not flags & c.ACK:
            self._answer(frame(c.PING, c.ACK, 0, payload))
        return 0

    def _messages(self) -> None:
        whole = 5 + self._size
        while len(self._body) >= whole:
            flag, size, number = struct.unpack_from(">BII", self._body)
            if (flag, size, number) != (0, self._size, self.messages) or any(self._body[9:whole]):
                self.fault = f"message {self.messages} is wrong: {bytes(self._body[:12])!r}"
            self.messages += 1
            del self._body[:whole]

    def _answer(self, data: bytes) -> None:
        self.sock.setblocking(True)
        self.sock.sendall(data)
        self.sock.setblocking(False)
