"""Returns the memory of large bodies to the system.

A body of many megabytes leaves free pages all over the heap, which the C library keeps for later. In a container they
count as used, so the library is asked to return them a moment after a large body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tfs_lite.adapters.memory import trim_heap
from tfs_lite.core.status import ServingError
from tfs_lite.server.runtime.event_loop import BackgroundRunner

LARGE_BYTES = 4 << 20
DELAY = 1.0
"""Seconds. By then the request is usually answered."""


class HeapTrimmer:
    """The trimmer of the heap: it decides on the event loop; trimming itself runs on ``background``."""

    def __init__(
        self, background: BackgroundRunner, trim: Callable[[], None] = trim_heap, delay: float = DELAY
    ) -> None:
        self._background = background
        self._trim = trim
        self._delay = delay
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def note(self, size: int) -> None:
        """Tells that a body of ``size`` bytes was in memory."""
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
            self.note(LARGE_BYTES)  # the threads are busy: later
