"""The feed of the page: what has changed, once a second, as server-sent events.

    snapshot, every second while there is a viewer -> the models that have changed -> the same bytes for every viewer

Every viewer begins with the whole picture, and gets it again every 30 s and when it was too slow for a change. A viewer
is a stream without end; one that reads nothing is cut, as everywhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.http.events import event
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.transport.table import EVERYTHING, Grant

MAX_VIEWERS = 16
INTERVAL = 1.0
"""Seconds between two snapshots."""
WHOLE_EVERY = 30
"""Snapshots."""
PING_SECONDS = 15.0
PING = b": ping\n\n"
WRITE_TIMEOUT = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FeedSnapshot:
    """``head`` is what is sent each time, ``models`` each model by name: JSON objects as bytes."""

    head: bytes
    models: dict[str, bytes]


class Feed:
    """The feed of snapshots, on the event loop. ``snapshot`` is called on a thread of ``background``."""

    def __init__(
        self, snapshot: Callable[[], FeedSnapshot], dumps: Callable[[Any], bytes], background: BackgroundRunner
    ) -> None:
        self._snapshot = snapshot
        self._dumps = dumps
        self._background = background
        self._now: FeedSnapshot | None = None
        self._number = 0
        """The number of the snapshot, from 1."""
        self._change = b""
        """The event from the snapshot before to this one."""
        self._whole = b""
        """The event with everything; empty until a viewer needs it."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.viewers = 0

    async def watch(self, first: bytes, grant: Grant = EVERYTHING) -> AsyncIterator[bytes]:
        """The events of one viewer, ``first`` before them. Call :meth:`admit` before. ``grant`` tells which models the
        viewer may see."""
        if self.viewers >= MAX_VIEWERS:
            return
        self.viewers += 1
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._run())
            yield first
            seen, own = 0, dict[str, bytes]()
            while not self._closed:
                if self._now is None or seen == self._number:
                    try:
                        async with asyncio.timeout(PING_SECONDS):
                            await self._changed.wait()
                    except TimeoutError:
                        yield PING
                    continue
                follows, seen = seen and seen + 1 == self._number and self._number % WHOLE_EVERY, self._number
                if grant.models is not None:
                    before, own = own, {name: body for name, body in self._now.models.items() if grant.allows(name)}
                    yield self._change_of(before, own) if follows else _event(self._now.head, [*own.values()], True)
                else:
                    yield self._change if follows else self._everything()
        finally:
            self.viewers -= 1

    def admit(self) -> None:
        """UNAVAILABLE for one viewer more than there may be, and when the server ends."""
        if self._closed:
            raise ServingError(StatusCode.UNAVAILABLE, "the server is being stopped")
        if self.viewers >= MAX_VIEWERS:
            raise ServingError(StatusCode.UNAVAILABLE, f"{self.viewers} dashboards are open, no more are served")

    def close(self) -> None:
        """Ends every stream."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self._wake()

    async def _run(self) -> None:
        """Ends when the last viewer has gone; then nothing is kept."""
        try:
            loop = asyncio.get_running_loop()
            while self.viewers:
                due = loop.time() + INTERVAL
                try:
                    self._take(await self._background.run(self._snapshot))
                except ServingError as error:
                    logger.warning("the dashboard shows what was before, for no snapshot can be taken: %s", error)
                except Exception:
                    logger.exception("the dashboard shows what was before, for no snapshot can be taken")
                await asyncio.sleep(max(due - loop.time(), INTERVAL / 10))
        finally:
            self._task, self._now, self._whole = None, None, b""

    def _take(self, snapshot: FeedSnapshot) -> None:
        before = self._now.models if self._now is not None else {}
        self._now, self._number, self._whole = snapshot, self._number + 1, b""
        self._change = self._change_of(before, snapshot.models)
        self._wake()

    def _change_of(self, before: dict[str, bytes], models: dict[str, bytes]) -> bytes:
        assert self._now is not None
        changed = [body for name, body in models.items() if before.get(name) != body]
        return _event(self._now.head, changed, False, self._dumps([name for name in before if name not in models]))

    def _everything(self) -> bytes:
        assert self._now is not None
        if not self._whole:
            self._whole = _event(self._now.head, list(self._now.models.values()), True)
        return self._whole

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _event(head: bytes, models: list[bytes], whole: bool, gone: bytes = b"[]") -> bytes:
    told = b"true" if whole else b"false"
    return event(b'{"server":%b,"whole":%b,"gone":%b,"models":[%b]}' % (head, told, gone, b",".join(models)))
