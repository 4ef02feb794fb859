"""Messages over a stream socket between two processes: a length, then msgpack, and no pickle, which could run code.

One side calls, the other answers, so there is never more than one message in flight. A message is plain data (lists,
texts, numbers, bytes) that its reader has to check: only the length is checked here.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import ormsgpack

MAX_MESSAGE = 1 << 24
"""Bytes."""
STALL_SECONDS = 5.0
"""How long the rest of a message may take once its beginning is there."""
MAX_DESCRIPTORS = 250
_BUFFER = 1 << 16
_LENGTH = struct.Struct("<I")


class ProtocolError(Exception):
    """Raised when the received bytes are no message, or not the expected one. The other end must not be used again."""


class ConnectionClosed(Exception):
    """The other end has closed. ``unread`` means that it had not read the last message sent to it."""

    def __init__(self, unread: bool = False) -> None:
        super().__init__("the connection is closed")
        self.unread = unread


class Channel:
    """One end of a connection; it owns the socket. One thread at a time, but any may call ``shut_down``: a thread that
    waits in ``receive`` then finds the connection closed."""

    def __init__(self, sock: socket.socket, stall_seconds: float = STALL_SECONDS) -> None:
        self._sock = sock
        self._stall = stall_seconds
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._closing = threading.Lock()  # guards the descriptor: shut_down must not use one that was closed

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Raises ConnectionClosed; ValueError if the message is too long, TypeError if it is no plain data."""
        body = ormsgpack.packb(message)
        if len(body) > MAX_MESSAGE:
            raise ValueError(f"a message of {len(body)} bytes; at most {MAX_MESSAGE} can be sent")
        frame = _LENGTH.pack(len(body)) + body
        try:
            if descriptors:
                frame = frame[socket.send_fds(self._sock, [frame], list(descriptors)) :]
            self._sock.sendall(frame)
        except OSError:
            raise ConnectionClosed(unread=True) from None

    def receive(self) -> object:
        """Waits for the next message without a time limit. Raises ConnectionClosed, ProtocolError."""
        try:
            got = self._sock.recv_into(self._buffer)
        except OSError as error:
            raise ConnectionClosed(isinstance(error, ConnectionResetError)) from None
        return self._whole(self._buffer, got)

    def receive_with_descriptors(self) -> tuple[object, list[int]]:
        """Receives a message as :meth:`receive` does, with its file descriptors, which the caller has to close."""
        try:
            piece, found, _, _ = socket.recv_fds(self._sock, _BUFFER, MAX_DESCRIPTORS)
        except OSError as error:
            raise ConnectionClosed(isinstance(error, ConnectionResetError)) from None
        try:
            for descriptor in found:
                os.set_inheritable(descriptor, False)
            self._buffer[: len(piece)] = piece
            return self._whole(self._buffer, len(piece)), found
        except BaseException:
            for descriptor in found:
                os.close(descriptor)
            raise

    def shut_down(self) -> None:
        """Ends the connection for both ends; the descriptor stays open until :meth:`close`."""
        with self._closing, suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._closing:
            self._sock.close()

    def _whole(self, buffer: bytearray, got: int) -> object:
        if got == 0:
            raise ConnectionClosed
        if got >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
            if end == got:
                return _decode(self._view[_LENGTH.size : got])
        return self._rest(bytearray(self._view[:got]))

    def _rest(self, frame: bytearray) -> object:
        """Receives the rest of the message that begins with ``frame``."""
        latest = time.monotonic() + self._stall
        try:
            while len(frame) < _LENGTH.size or len(frame) < _end_of(frame):
                self._sock.settimeout(max(latest - time.monotonic(), 0.001))
                piece = self._sock.recv(_BUFFER)
                if not piece:
                    raise ConnectionClosed
                frame += piece
        except TimeoutError:
            raise ProtocolError(f"{len(frame)} bytes of a message, and then nothing") from None
        except OSError:
            raise ConnectionClosed from None
        finally:
            self._sock.settimeout(None)
        if len(frame) > _end_of(frame):
            raise ProtocolError("more than one message")
        return _decode(memoryview(frame)[_LENGTH.size :])


def _end_of(frame: bytearray) -> int:
    length: int = _LENGTH.unpack_from(frame)[0]
    if length > MAX_MESSAGE:
        raise ProtocolError(f"a message of {length} bytes; at most {MAX_MESSAGE} are expected")
    return _LENGTH.size + length


def _decode(body: memoryview) -> object:
    try:
        found: object = ormsgpack.unpackb(body)
    except ValueError:
        raise ProtocolError("a message that cannot be read") from None
    return found
