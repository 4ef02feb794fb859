"""Slow work for the event loop: a few threads, and a bound on how much may wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tfs_lite.core.status import ServingError, StatusCode

T = TypeVar("T")


class BackgroundRunner:
    """``run`` is called on the event loop, ``close`` from anywhere else. ``what`` names the work in error messages."""

    def __init__(self, what: str, threads: int, max_pending: int) -> None:
        self._what = what
        self._max_pending = max_pending
        self._pending = 0
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"tfs-{what}")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``. RESOURCE_EXHAUSTED when too much is waiting. When the caller is cancelled, work that
        has begun goes on, and work that has not is dropped: nobody wants it any more."""
        if self._pending >= self._max_pending:
            raise ServingError(
                StatusCode.RESOURCE_EXHAUSTED, f"{self._pending} {self._what} requests are pending, no more are taken"
            )
        self._pending += 1
        queued = self._executor.submit(work)
        future = asyncio.wrap_future(queued)
        future.add_done_callback(self._finished)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            queued.cancel()
            raise

    def close(self) -> None:
        """Drops what has not begun, waits for the rest."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _finished(self, future: asyncio.Future[T]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # looked at, so that asyncio does not complain when the caller has gone
