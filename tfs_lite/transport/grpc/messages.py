"""Splits the bytes of a stream into gRPC's messages: a flag, four bytes of length, and so many bytes of message.

DATA frames may cut the stream anywhere. Only bytes that have arrived are kept, and nothing is reserved for a length
that a client claims.
"""

from __future__ import annotations

from struct import Struct

from tfs_lite.transport.grpc.codes import INTERNAL, RESOURCE_EXHAUSTED

PREFIX = Struct(">BI")
PREFIX_SIZE = 5
SMALL_PIECE = 1024
"""Smaller pieces are joined as they arrive; larger ones stay as they are until the message is whole."""


class MessageFault(Exception):
    """A message that cannot be read or sent; the call ends with this status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def named(text: str, flag: str) -> str:
    """The text with the name of the bound that it is about, if there is one."""
    return f"{text}: {flag}" if flag else text


class Assembler:
    """Joins the messages of one direction of one stream: ``feed`` bytes as they arrive, ``finish`` at the end. One
    thread.

    After a fault it cannot be used any more. ``held`` counts the bytes of the unfinished message that were fed, its
    prefix included; ``missing`` those still to come, or 0 while the prefix is not whole. Both are read-only.
    """

    __slots__ = ("_begun", "_compressed", "_flag", "_max", "_pieces", "_prefix", "held", "missing")

    def __init__(self, max_message: int, flag: str = "") -> None:
        """``flag`` is the bound's name for the client's text."""
        self._max = max_message
        self._flag = flag
        self._prefix = b""
        self._begun = False
        self._compressed = False
        self._pieces: list[bytes | bytearray] = []
        self.held = 0
        self.missing = 0

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """The messages that are whole now, in the client's order: whether each is compressed, and its bytes.

        MessageFault, as soon as the prefix is there: INTERNAL for a flag that is neither 0 nor 1, RESOURCE_EXHAUSTED
        for a length above the bound. Whole messages before the bad one are dropped with it.
        """
        if not self.held and len(data) >= PREFIX_SIZE:
            flag, size = PREFIX.unpack_from(data)
            if not flag and size == len(data) - PREFIX_SIZE and size <= self._max:
                return [(False, data[PREFIX_SIZE:])]  # the usual case: one frame, one message
        return self._split(data)

    def finish(self) -> None:
        """Raises MessageFault, INTERNAL, if the client has half-closed the call inside a message."""
        if not self.held:
            return
        missing = f"{self.missing} bytes" if self._begun else "the rest of its 5-byte prefix"
        raise MessageFault(INTERNAL, f"the stream ended inside a message: {missing} did not come")

    def _split(self, data: bytes) -> list[tuple[bool, bytes]]:
        messages: list[tuple[bool, bytes]] = []
        at = 0
        while at < len(data):
            if not self._begun:
                self._prefix += data[at : at + PREFIX_SIZE - len(self._prefix)]
                at += len(self._prefix) - self.held
                self.held = len(self._prefix)
                if self.held < PREFIX_SIZE:
                    break
                self._begin()
            piece = data[at : at + self.missing]
            at += len(piece)
            self._keep(piece)
            if not self.missing:
                messages.append((self._compressed, self._whole()))
        return messages

    def _begin(self) -> None:
        flag, size = PREFIX.unpack(self._prefix)
        if flag > 1:
            raise MessageFault(
                INTERNAL, f"the first byte of a message says whether it is compressed: 0 or 1, not {flag}"
            )
        if size > self._max:
            text = f"Received message larger than max ({size} vs. {self._max} bytes)"
            raise MessageFault(RESOURCE_EXHAUSTED, named(text, self._flag))
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
