"""Slow work for the event loop: a few threads, and a bound on how much may wait for them.

The event loop of a server, in a thread of its own: uvloop's where there is one, else asyncio's.

uvloop reads and writes sockets in C, which takes a third off what a small request costs. It knows no Windows.

Answers on their way from the threads of models back to the event loop: one wake-up for as many as are there.

    any thread: post  ->  [queue]  ->  the loop, in one go: deliver(item) for each, in the order of posting

Waking a loop costs a system call and a hand-over of the interpreter lock, so it is done once per batch and not once per
request.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

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


new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
try:
    import uvloop
except ImportError:
    pass
else:
    new_event_loop = uvloop.new_event_loop


class LoopThread:
    """``run`` may be called from any thread but the loop's own; ``close`` once, when nothing runs any more."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine on the loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Runs the coroutine on the loop and does not wait; drops it if the loop has ended."""
        try:
            asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()

    def close(self) -> None:
        """Cancels what is left, ends the loop and joins the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(_settle())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()


async def _settle() -> None:
    """Lets cancelled tasks and open generators end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class CompletionQueue(Generic[T]):
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
