"""Messages of gRPC out of the bytes of a stream: a flag, four bytes of length, and so many bytes of message.

DATA frames may cut the stream anywhere. What came of an unfinished message is kept, and nothing more: a client pays for
the memory it takes with bytes that it has sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from tfs_lite.transport.grpc.codes import INTERNAL, RESOURCE_EXHAUSTED

PREFIX = Struct(">BI")
PREFIX_SIZE = 5
SMALL_PIECE = 1024
"""Smaller pieces are put together as they come; each larger one stays as it is until the message is whole."""


class MessageFault(Exception):
    """A client's messages cannot be read any further; the call ends with this status.

    ``before`` has the whole messages, as of :meth:`Assembler.feed`, that came in the same bytes before the bad one.
    """

    def __init__(self, code: int, text: str, before: Sequence[tuple[bool, bytes]] = ()) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.before = before


class Assembler:
    """Of one direction of one stream: ``feed`` as bytes come -> ``finish`` at the end. On one thread.

    After a fault it is of no further use. ``held``: bytes of an unfinished message that came and are kept, the prefix
    included; everything else that was fed has been given out. ``missing``: bytes still to come of that message, 0
    while its prefix is not whole. Both are to be read only.
    """

    __slots__ = ("_begun", "_compressed", "_max", "_pieces", "_prefix", "held", "missing")

    def __init__(self, max_message: int) -> None:
        self._max = max_message
        self._prefix = b""
        self._begun = False
        self._compressed = False
        self._pieces: list[bytes | bytearray] = []
        self.held = 0
        self.missing = 0

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """The messages that are whole now: (is it compressed?, its bytes), in the client's order.

        MessageFault: INTERNAL for a flag that is neither 0 nor 1, RESOURCE_EXHAUSTED for a length above the bound;
        both as soon as the prefix is there.
        """
        if not self.held and len(data) >= PREFIX_SIZE:
            flag, size = PREFIX.unpack_from(data)
            if not flag and size == len(data) - PREFIX_SIZE and size <= self._max:
                return [(False, data[PREFIX_SIZE:])]  # as it mostly is: one frame, one message
        messages: list[tuple[bool, bytes]] = []
        try:
            self._take(data, messages)
        except MessageFault as fault:
            fault.before = messages
            raise
        return messages

    def finish(self) -> None:
        """The client has said its last word. INTERNAL if it was inside a message."""
        if not self.held:
            return
        missing = f"{self.missing} bytes" if self._begun else "the rest of its 5-byte prefix"
        raise MessageFault(INTERNAL, f"the stream ended inside a message: {missing} did not come")

    def _take(self, data: bytes, messages: list[tuple[bool, bytes]]) -> None:
        at = 0
        while at < len(data):
            if not self._begun:
                self._prefix += data[at : at + PREFIX_SIZE - len(self._prefix)]
                at += len(self._prefix) - self.held
                self.held = len(self._prefix)
                if self.held < PREFIX_SIZE:
                    return
                self._begin()
            piece = data[at : at + self.missing]
            at += len(piece)
            self._keep(piece)
            if not self.missing:
                messages.append((self._compressed, self._whole()))

    def _begin(self) -> None:
        flag, size = PREFIX.unpack(self._prefix)
        if flag > 1:
            raise MessageFault(
                INTERNAL, f"the first byte of a message says whether it is compressed: 0 or 1, not {flag}"
            )
        if size > self._max:
            raise MessageFault(RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._max} bytes)")
        self._begun, self._compressed, self.missing = True, flag == 1, size

    def _keep(self, piece: bytes) -> None:
        if len(piece) >= SMALL_PIECE or (len(piece) == self.missing and not self._pieces):
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))
        self.held += len(piece)
        self.missing -= len(piece)

    def _whole(self) -> bytes:
        message = b"".join(self._pieces)
        self._pieces.clear()
        self._prefix, self._begun, self.held = b"", False, 0
        return message
