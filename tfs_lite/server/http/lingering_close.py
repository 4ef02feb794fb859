"""Closing a connection without losing the answer on it.

A client that is refused before it has sent its whole body goes on sending. If the connection is closed then, the system
answers what still comes with a reset, and the reset overtakes the answer. So the answer is followed by the end of our
side only; what the client still sends is thrown away until it ends too, or patience does: that for time, and that for
bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

MAX_THROWN_AWAY = 64 << 20
"""Bytes that a client may still send after the answer."""


class LingeringTransport:
    """A transport of asyncio whose ``close`` lingers while ``is_sending`` says that the client is in mid-request.

    Everything else is the transport's own. On the event loop. Whoever gets the data asks ``lingering`` whether to
    ``throw_away`` it. A second ``close``, the client's end or ``patience`` seconds close it for good.
    """

    def __init__(self, transport: asyncio.Transport, is_sending: Callable[[], bool], patience: float) -> None:
        self._transport = transport
        self._is_sending = is_sending
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None
        self._left = MAX_THROWN_AWAY

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
        self._timer = asyncio.get_running_loop().call_later(self._patience, self._transport.abort)
        self._transport.resume_reading()
        self._transport.write_eof()

    def throw_away(self, size: int) -> None:
        """The client has sent so many bytes more."""
        self._left -= size
        if self.lingering and self._left < 0:
            self._transport.abort()

    def closed(self) -> None:
        """The connection is no more."""
        if self._timer is not None:
            self._timer.cancel()
