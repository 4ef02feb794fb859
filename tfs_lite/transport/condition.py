"""Waits on the event loop: of one task for another's word; of many for something to become true, until some time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf


class OneWaiter:
    """Something that at most one task waits for at a time: ``sleep`` returns at the next ``wake``."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    async def sleep(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Condition:
    """A condition on the event loop: ``notify`` is called after every change that may end a wait. Many tasks may wait,
    each for something else."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self._changed.set()

    async def wait_for(self, done: Callable[[], bool], end: Callable[[], float] = lambda: inf) -> bool:
        """Whether it was done before ``end``, in seconds of ``time.monotonic``, which is the loop's clock."""
        loop = asyncio.get_running_loop()
        while not done():
            left = end() - loop.time()
            if left <= 0:
                return False
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left if left < inf else None):
                    await self._changed.wait()
        return True
