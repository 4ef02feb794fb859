"""Memory of large bodies goes back to the system.

A body of many megabytes leaves free pages all over the heap, which the C library keeps for later. In a container they
count as used. So a moment after a large body the library is asked to return what is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tfs_lite.adapters.memory import trim_heap
from tfs_lite.core.status import ServingError
from tfs_lite.server.runtime.event_loop import BackgroundRunner

LARGE_BYTES = 4 << 20
DELAY = 1.0
"""Seconds: until then the request is answered, or another large one has come."""


class HeapTrimmer:
    """On the event loop; trimming itself runs on ``background``. ``close`` ends it."""

    def __init__(
        self, background: BackgroundRunner, trim: Callable[[], None] = trim_heap, delay: float = DELAY
    ) -> None:
        self._background = background
        self._trim = trim
        self._delay = delay
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def note(self, size: int) -> None:
        """A body of ``size`` bytes was in memory."""
        if size >= LARGE_BYTES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._begin)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._background.run(self._trim)
        except ServingError:
            self.note(LARGE_BYTES)  # too much is waiting: later
