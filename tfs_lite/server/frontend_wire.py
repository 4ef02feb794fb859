"""What the server and a gRPC frontend say to one another over their UNIX socket.

Frames of a fixed head and up to 64 KiB; both sides have the same code and machine, so numbers are in machine order and
nothing is negotiated. Frames that arise in one turn of the event loop leave in one write; all frames of a chunk are
read in one go. A larger payload goes through shared memory, announced by PIECE frames before the frame it belongs to.
Payloads that wait for room there wait in line, and with them later frames of the same call; the others overtake.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter, deque
from dataclasses import dataclass
from mmap import mmap
from typing import cast

from tfs_lite.server.frontend_ring import RingError, open_rings

# One call: every CALL is ended by exactly one ANSWER, END or FAILURE, also after CANCEL.
CALL = 1  # to the server. code: row of the table; value: microseconds until the deadline, NO_DEADLINE: none;
#           payload: the request; of a call with many requests the client's metadata, JSON
CANCEL = 2  # to the server
CREDIT = 3  # both ways. value: so many more may come; of the items to the frontend, of the messages to the server
MESSAGE = 16  # to the server: one of many requests
LAST = 17  # to the server: there are no more of them
ANSWER = 4  # to the frontend
TRAILERS = 5  # to the frontend, before ANSWER. payload: JSON, pairs of texts
ITEM = 6  # to the frontend
END = 7  # to the frontend
FAILURE = 8  # to the frontend. code: of the status; payload: its message
# The frontend itself.
SETUP = 9  # to the frontend, once, first. payload: JSON
READY = 10  # to the server. value: the TCP port, NO_PORT: none
FAILED = 11  # to the server instead of READY. code: of the status; payload: its message
DRAIN = 12  # to the frontend. value: microseconds of grace
BYE = 13  # to the server, last: everything is answered
# Shared memory, both ways. Never seen outside this file.
PIECE = 14  # value: position
CONSUMED = 15  # value: position

NO_DEADLINE = -1
NO_PORT = -1
WINDOW = 32
"""Items of one call that may be on their way at a time, and messages."""
WINDOW_BYTES = 4 * 1024 * 1024
"""So many bytes of one call's messages on their way are followed by no other one."""
MAX_CALLS = 10_000
"""Inside one frontend at a time."""
MAX_INLINE = 64 * 1024
"""Bytes that go through the socket."""
MAX_PAYLOAD = 2**32 - 1
HIGH_WATER = 1024 * 1024
"""Bytes that wait for the socket before the sender holds back."""
HEAD = struct.Struct("=BBHIIq")
"""Kind, flags, code, call, length of the payload behind it (PIECE: in the memory), value."""
_HEAD_SIZE = HEAD.size
_LARGE = 1
"""Flag: the payload was sent in pieces."""


class WireError(Exception):
    """The other side does not keep to the rules. The message is for the log."""


@dataclass(slots=True)
class _Late:
    """A frame that waits for room in the memory, or behind one that does. ``sent``: bytes of its payload."""

    kind: int
    code: int
    call: int
    value: int
    payload: bytes
    sent: int = 0


class Link(asyncio.Protocol):
    """One end. On the event loop only. Subclasses say what a frame means in ``on_frame``, which may raise WireError,
    and what happens when the other end is gone in ``on_lost``. ``max_payload`` bounds what comes in pieces. Takes the
    memory over, and closes it with the connection.

    ``clear`` is set while the socket takes what is sent. ``broken`` says what the other side did wrong, "" so far.
    """

    def __init__(self, memory: mmap, *, server_side: bool, max_payload: int = MAX_PAYLOAD) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._memory = memory
        self._writer, self._reader = open_rings(memory, server_side=server_side)
        self._max_payload = max_payload
        self._rest = b""
        self._parts: list[bytes] = []
        self._late: deque[_Late] = deque()
        self._late_calls: Counter[int] = Counter()
        self._pieces: list[bytes] = []
        self._pieces_call = 0
        self._pieces_bytes = 0
        self.clear = asyncio.Event()
        self.clear.set()
        self.broken = ""

    # For subclasses and their owners.

    def on_frame(self, kind: int, code: int, call: int, value: int, payload: bytes) -> None:
        raise NotImplementedError

    def on_lost(self) -> None:
        raise NotImplementedError

    def send(self, kind: int, call: int = 0, payload: bytes = b"", *, code: int = 0, value: int = 0) -> None:
        """Sends one frame, or drops it when the other end is gone. Frames of one call keep their order."""
        if self._transport is None:
            return
        if len(payload) > MAX_INLINE or (self._late and call in self._late_calls):
            self._late.append(_Late(kind, code, call, value, payload))
            self._late_calls[call] += 1
            self._send_late()
        else:
            self._write(HEAD.pack(kind, 0, code, call, len(payload), value), payload)

    def close(self) -> None:
        """Closes once everything is written."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio's protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no common base with asyncio's
        self._transport.set_write_buffer_limits(high=HIGH_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._memory.close()
        self._parts.clear()
        self._late.clear()
        self._late_calls.clear()
        self.clear.set()
        self.on_lost()

    def pause_writing(self) -> None:
        self.clear.clear()

    def resume_writing(self) -> None:
        self.clear.set()

    def data_received(self, data: bytes) -> None:
        if self.broken:
            return
        read = self._reader.position
        try:
            self._rest = self._parse(self._rest + data if self._rest else data)
        except (WireError, RingError) as error:
            self.broken = str(error)
            self.abort()
            return
        if self._reader.position != read:
            self._write(HEAD.pack(CONSUMED, 0, 0, 0, 0, self._reader.position), b"")

    def _parse(self, data: bytes) -> bytes:
        """Handles every whole frame and returns the rest."""
        unpack, on_frame = HEAD.unpack_from, self.on_frame
        at, end = 0, len(data)
        while end - at >= _HEAD_SIZE:
            kind, flags, code, call, length, value = unpack(data, at)
            if kind == PIECE:
                self._add_piece(call, value, length)
                at += _HEAD_SIZE
                continue
            if length > MAX_INLINE:
                raise WireError(f"a frame of kind {kind} with {length} bytes")
            start, stop = at + _HEAD_SIZE, at + _HEAD_SIZE + length
            if stop > end:
                break
            at = stop
            if kind == CONSUMED:
                self._writer.free(value)
                self._send_late()
            else:
                on_frame(kind, code, call, value, self._joined(call) if flags & _LARGE else data[start:stop])
        return data[at:]

    # Writing.

    def _write(self, head: bytes, payload: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(head)
        if payload:
            self._parts.append(payload)

    def _flush(self) -> None:
        if self._parts and self._transport is not None:
            data = b"".join(self._parts)
            self._parts.clear()
            self._transport.write(data)

    def _send_late(self) -> None:
        while self._late:
            late = self._late[0]
            large = len(late.payload) > MAX_INLINE
            if large and not self._send_pieces(late):
                return
            self._late.popleft()
            self._late_calls[late.call] -= 1
            if not self._late_calls[late.call]:
                del self._late_calls[late.call]
            payload = b"" if large else late.payload
            self._write(HEAD.pack(late.kind, large * _LARGE, late.code, late.call, len(payload), late.value), payload)

    def _send_pieces(self, late: _Late) -> bool:
        """False while there is no room for the rest."""
        whole = memoryview(late.payload)
        while late.sent < len(whole):
            piece = whole[late.sent : late.sent + self._writer.max_piece]
            position = self._writer.put(piece)
            if position is None:
                return False
            self._write(HEAD.pack(PIECE, 0, 0, late.call, len(piece), position), b"")
            late.sent += len(piece)
        return True

    # Reading payloads that come in pieces: one at a time, as they were sent.

    def _add_piece(self, call: int, position: int, length: int) -> None:
        if self._pieces and call != self._pieces_call:
            raise WireError(f"a piece of call {call} within the payload of call {self._pieces_call}")
        self._pieces_bytes += length
        if self._pieces_bytes > self._max_payload:
            raise WireError(f"a payload of more than {self._max_payload} bytes")
        self._pieces_call = call
        self._pieces.append(self._reader.take(position, length))

    def _joined(self, call: int) -> bytes:
        if not self._pieces or call != self._pieces_call:
            raise WireError(f"the payload of call {call} has no pieces")
        payload = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._pieces_bytes = [], 0
        return payload
