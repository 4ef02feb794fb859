"""Answers on their way from the threads of models back to the event loop: one wake-up for as many as are there.

    any thread: post  ->  [queue]  ->  the loop, in one go: deliver(item) for each, in the order of posting

Waking a loop costs a system call and a hand-over of the interpreter lock, so it is done once per batch and not once per
request.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """Made on the event loop. ``deliver`` must not raise."""

    def __init__(self, deliver: Callable[[T], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._items: deque[T] = deque()
        self._alone = threading.Lock()  # held by whoever delivers when the loop is closed
        self._called = False  # whether the loop will come by; it says no more before it looks at the items

    def post(self, item: T) -> None:
        """Any thread. Once the loop is closed, items are delivered on the posting threads, one at a time."""
        self._items.append(item)
        if not self._called or self.loop.is_closed():
            self._called = True
            try:
                self.loop.call_soon_threadsafe(self._flush)
            except RuntimeError:
                with self._alone:
                    self._flush()

    def _flush(self) -> None:
        self._called = False
        items = self._items
        while items:
            self._deliver(items.popleft())
