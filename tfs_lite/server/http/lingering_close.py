"""Closes a connection without losing the answer on it.

A client that is refused before it has sent its whole body goes on sending. If the connection is closed then, the system
answers the late bytes with a reset, and the reset overtakes the answer. Therefore only our side of the connection is
closed after the answer. Late bytes are discarded until the client closes its side, up to a number of seconds and bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

MAX_DISCARDED = 64 << 20
"""Bytes that a client may send after the answer."""


class LingeringTransport:
    """An asyncio transport whose ``close`` lingers while ``is_sending`` says that the client is in mid-request.

    Everything else is the transport's own. On the event loop. While ``lingering``, the owner passes received bytes to
    ``discard``. A second ``close``, the client's end or ``timeout`` seconds close the transport for good.
    """

    def __init__(self, transport: asyncio.Transport, is_sending: Callable[[], bool], timeout: float) -> None:
        self._transport = transport
        self._is_sending = is_sending
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        self._left = MAX_DISCARDED

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def lingering(self) -> bool:
        return self._timer is not None

    def is_closing(self) -> bool:
        return self.lingering or self._transport.is_closing()

    def close(self) -> None:
        if self.lingering or self._transport.is_closing() or not self._is_sending():
            self._transport.close()
            return
        self._timer = asyncio.get_running_loop().call_later(self._timeout, self._transport.abort)
        self._transport.resume_reading()
        self._transport.write_eof()

    def discard(self, size: int) -> None:
        """Counts ``size`` bytes that the client has sent in the meantime."""
        self._left -= size
        if self.lingering and self._left < 0:
            self._transport.abort()

    def closed(self) -> None:
        """The connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
