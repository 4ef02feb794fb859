"""The event loop of a server and the threads around it: the loop's own, those for slow work, and the way back from the
models' threads to the loop.

The loop is uvloop's where it is installed, which takes a third off the cost of a small request.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.core.threads import JOIN_SECONDS, Pool, join, within
from tfs_lite.core.yielding import wait_exactly

T = TypeVar("T")


class BackgroundRunner:
    """A few threads for slow work, and a bound on the work that waits for them. ``what`` names the work in error
    messages. ``run`` on the event loop, ``close`` on another thread."""

    def __init__(self, what: str, threads: int, max_pending: int) -> None:
        self._what = what
        self._max_pending = max_pending
        self._pending = 0
        self._executor = Pool(threads, f"tfs-{what}")

    async def run(self, work: Callable[[], T]) -> T:
        """Returns the result of ``work``, which runs with the caller's context variables. RESOURCE_EXHAUSTED when too
        much is waiting. When the caller is cancelled, work that has begun goes on, and work that has not is dropped."""
        if self._pending >= self._max_pending:
            message = f"{self._pending} {self._what} requests are pending, no more are taken"
            raise ServingError(StatusCode.RESOURCE_EXHAUSTED, message, Reason.QUEUE_FULL)
        queued = self._executor.submit(copy_context().run, work)
        self._pending += 1
        future = asyncio.wrap_future(queued)
        future.add_done_callback(self._finished)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            queued.cancel()
            raise
        finally:
            del queued, future  # else a failure, which has this frame in its traceback, is a cycle with all its work

    def close(self) -> None:
        """Drops work that has not begun and waits for the rest, for a bounded time."""
        within(JOIN_SECONDS, f"tfs-{self._what}", lambda: self._executor.shutdown(wait=True, cancel_futures=True))

    def _finished(self, future: asyncio.Future[T]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not log it when the caller was cancelled


new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
try:
    import uvloop
except ImportError:
    pass
else:
    new_event_loop = uvloop.new_event_loop


class LoopThread:
    """An event loop on a thread of its own. ``run`` from any other thread; ``close`` once, when nothing runs."""

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
        """Cancels the remaining tasks, ends the loop and joins the thread, for a bounded time."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        join(self._thread)

    def _serve(self) -> None:
        wait_exactly()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(_finish_tasks())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()


async def _finish_tasks() -> None:
    """Waits for cancelled tasks and closes open generators."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class CompletionQueue(Generic[T]):
    """Brings items from any thread to the event loop. ``deliver``, which must not raise, gets them in the order of
    ``post``.

    To wake a loop costs a system call and a switch of the interpreter lock, so many items share one wake-up. Made on
    the event loop.
    """

    def __init__(self, deliver: Callable[[T], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._items: deque[T] = deque()
        self._delivering = threading.Lock()  # held to deliver on a posting thread, when the loop is closed
        self._scheduled = False  # whether the loop will flush; reset before it reads the items

    def post(self, item: T) -> None:
        """Any thread. Once the loop is closed, items are delivered on the posting threads, one at a time."""
        self._items.append(item)
        if not self._scheduled or self.loop.is_closed():
            self._scheduled = True
            try:
                self.loop.call_soon_threadsafe(self._flush)
            except RuntimeError:
                with self._delivering:
                    self._flush()

    def _flush(self) -> None:
        self._scheduled = False
        items = self._items
        while items:
            self._deliver(items.popleft())
