"""What all calls of one server have in common: the bounds, the numbers, the way in, and threads for inflating."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfs_lite.transport.deadlines import Deadlines
from tfs_lite.transport.grpc.codes import RESOURCE_EXHAUSTED
from tfs_lite.transport.grpc.compression import inflate
from tfs_lite.transport.grpc.messages import MessageFault
from tfs_lite.transport.limits import Limits
from tfs_lite.transport.numbers import Numbers
from tfs_lite.transport.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from tfs_lite.transport.grpc.call import Call

MAX_INLINE_IN = 256 * 1024
"""Bytes of a compressed message that is inflated on the event loop ..."""
MAX_INLINE_OUT = 1024 * 1024
"""... unless it becomes larger than this: a millisecond or so."""
INFLATERS = 2
"""Threads for larger messages."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a server is told about its calls, by its owner. Called on the event loop."""

    enter: Callable[[str], bool]
    """With the path of a call, before its handler. What it raises is the answer. Whether ``leave`` is owed."""
    leave: Callable[[], None]
    explain: Callable[[str, Exception], tuple[int, str]]
    """What ``enter`` or the handler of a path has raised, as status code of gRPC and text for the client."""


class Inflater:
    """Compressed messages, one after the other for each call. On the event loop; the threads start when needed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_message: int) -> None:
        self._loop = loop
        self._max_message = max_message
        self._threads: ThreadPoolExecutor | None = None

    async def inflate(self, data: bytes, encoding: str) -> bytes:
        """Raises MessageFault. The loop goes on while a large message is inflated."""
        bound = min(self._max_message, MAX_INLINE_OUT)
        if len(data) <= MAX_INLINE_IN:
            try:
                return inflate(data, encoding, bound)
            except MessageFault as fault:
                if fault.code != RESOURCE_EXHAUSTED or bound == self._max_message:
                    raise
        if self._threads is None:
            self._threads = ThreadPoolExecutor(INFLATERS, thread_name_prefix="grpc-inflate")
        return await self._loop.run_in_executor(self._threads, inflate, data, encoding, self._max_message)

    def close(self) -> None:
        """Waits for what is being inflated: a part of a second for the largest message."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


class Common:
    """Of one server that has started. ``calls`` has every call until its handler has ended; ``emptied`` is called when
    there is none left. ``draining``: no more requests of streams are read."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        numbers: Numbers,
        hooks: Hooks,
        emptied: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.numbers = numbers
        self.hooks = hooks
        self.emptied = emptied
        self.complaints = RateLimitedLog(loop.time)
        self.deadlines: Deadlines[Call] = Deadlines(loop, _expire)
        self.inflater = Inflater(loop, limits.max_receive_message)
        self.calls: set[Call] = set()
        self.draining = False


def _expire(call: Call) -> None:
    call.expire()
