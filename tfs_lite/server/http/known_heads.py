"""The memory of what the heads of requests mean, by their bytes.

A client sends the same head thousands of times, so a server remembers what its parser made of it. A head is known by
all of its bytes; one of another length of the body is another head.
"""

from __future__ import annotations

from tfs_lite.server.http.message import HttpHead
from tfs_lite.transport.remembered import Remembered

HEAD_END = b"\r\n\r\n"
MAX_HEADS, MAX_KNOWN_BYTES = 1024, 2048
"""Heads that are remembered, and the most bytes of such a head."""


class KnownHeads(Remembered[bytes, HttpHead]):
    """The heads that are known, on one event loop."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(MAX_HEADS)

    def may_hold(self, text: bytes) -> bool:
        """Whether the text may be a head that is remembered."""
        return len(HEAD_END) < len(text) <= MAX_KNOWN_BYTES

    def learn(self, text: bytes, head: HttpHead) -> None:
        """Remembers a head, unless the connection has more to do for it than to read its body and to answer."""
        if head.keep_alive and not head.expects_continue and head.length is not None:
            self.add(text, head)
