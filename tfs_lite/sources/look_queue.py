"""Looks at disks, one after the other, each with a bound in time.

A disk may hang (a server of NFS that has gone, a dead FUSE program), and a thread that has asked it cannot be
interrupted. So a look that does not answer keeps its thread, and another thread goes on with the rest of the queue:

    queued -> looked at -> done
                 |-- no answer in time: it hangs, and is looked at again once it has answered

Nothing is looked at twice at a time. At most :data:`MOST_ON_ONE_DISK` looks hang on one device: what else lies there is
not looked at until one of them has answered.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable

from tfs_lite.core.clock import Clock
from tfs_lite.core.executor import Executor, Patience, PoolExecutor, Task
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.sources.disk import Disk

logger = logging.getLogger(__name__)
DISK_TIMEOUT_SECONDS = 10.0
MOST_HANGING = 16
"""Looks of one queue that hang; when there are as many, nothing is looked at."""
MOST_ON_ONE_DISK = 3
_FULL = MOST_HANGING - MOST_ON_ONE_DISK
"""The number of hanging looks from which on nothing is looked at that lies on a device where a look hangs."""


class Looked:
    """Something that is looked at again and again. The queue's lock guards the fields; ``device`` is set by the look.

    ``queued``: a look was asked for that has not begun. ``hangs_since``: when the look began that has not answered in
    time, in seconds of ``monotonic``; None: there is none.
    """

    __slots__ = ("device", "hangs_since", "path", "queued")

    def __init__(self, path: str) -> None:
        self.path = path
        self.device = 0  # 0: not known yet
        self.queued = False
        self.hangs_since: float | None = None

    def look(self) -> None:
        """Looks once, on a thread of the queue. It may hang; what it raises is logged."""
        raise NotImplementedError

    def on_hang(self, what: str) -> None:
        """Its look has not answered in time, or waits for others that have not: ``what`` says so in words. Any thread;
        must be short."""

    def on_answer(self, seconds: float) -> None:
        """The look that had hung has ended after so long. On its thread."""


class _Worker:
    """One pass through the queue. ``item`` is being looked at, ``since`` then; ``replaced``: it hangs, and another
    worker has taken over."""

    __slots__ = ("item", "renewed", "replaced", "since")

    def __init__(self) -> None:
        self.item: Looked | None = None
        self.since = self.renewed = 0.0
        self.replaced = False


class LookQueue:
    """``ask`` from any thread -> ``close``. What waits is bounded by the number of things that are looked at."""

    def __init__(self, name: str, disk: Disk, clock: Clock, seconds: float, *, threaded: bool = True) -> None:
        """A look that takes more than ``seconds`` hangs. Without threads looks run in :meth:`run_pending`, without a
        bound."""
        self._name = name
        self._disk = disk
        self._clock = clock
        self._seconds = seconds
        patience = Patience(seconds, MOST_HANGING, clock) if threaded else None
        self._executor: Executor = PoolExecutor(name, int(threaded), patience)
        self._lock = threading.Lock()  # guards the fields below and those of every item
        self._waiting: deque[Looked] = deque()
        self._worker: _Worker | None = None  # who takes the next item
        self._hanging: list[Looked] = []
        self._closed = False

    def ask(self, items: Iterable[Looked]) -> None:
        """A look at each that begins after this; one that was asked for already counts."""
        with self._lock:
            if self._closed:
                return
            for item in items:
                if not item.queued:
                    item.queued = True
                    self._waiting.append(item)
            worker = self._hire()
        self._submit(worker)

    def drop(self, items: Iterable[Looked]) -> None:
        """They are not looked at before they are asked for again. A look in progress goes on."""
        with self._lock:
            for item in items:
                item.queued = False

    def hanging(self) -> list[tuple[Looked, float]]:
        """The items whose look hangs, and the seconds since it began."""
        now = self._clock.monotonic()
        with self._lock:
            return [(item, now - item.hangs_since) for item in self._hanging if item.hangs_since is not None]

    def run_pending(self) -> None:
        """See :meth:`tfs_lite.core.executor.Executor.run_pending`."""
        self._executor.run_pending()

    def close(self) -> None:
        """No look begins any more. Waits for the one in progress, for a bounded time."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        self._executor.shutdown()

    def _hire(self) -> _Worker | None:
        """A new worker if there is something to do for one. Called with the lock held."""
        if self._worker is not None or not self._waiting:
            return None
        self._worker = _Worker()
        return self._worker

    def _submit(self, worker: _Worker | None) -> None:
        if worker is not None:
            self._executor.submit(
                Task(
                    "a look at a disk",
                    begin=lambda: True,
                    work=lambda: self._work(worker),
                    done=lambda error: None,
                    overdue=lambda: self._overdue(worker),
                )
            )

    def _work(self, worker: _Worker) -> None:
        while (item := self._next(worker)) is not None:
            try:
                if self._hanging and (reason := self._reason_to_wait(item)) is not None:
                    item.on_hang(reason)
                else:
                    item.look()
            except BaseException:
                logger.exception("a look at %s failed", item.path)
        if worker.item is not None:
            self._take_up(worker.item)

    def _next(self, worker: _Worker) -> Looked | None:
        """The item that the worker looks at now. It runs for each of a thousand streams in each second."""
        now = self._clock.monotonic()
        if now > worker.renewed + self._seconds / 10:
            worker.renewed = now
            self._executor.renew()
        with self._lock:
            if worker.replaced:
                return None
            worker.since = now
            while self._waiting:
                item = self._waiting.popleft()
                if item.queued and item.hangs_since is None:
                    item.queued, worker.item = False, item
                    return item
            self._worker = worker.item = None
            return None

    def _overdue(self, worker: _Worker) -> None:
        """The look in progress hangs, and another worker takes over."""
        with self._lock:
            item = worker.item
            if item is None:  # the last one has just ended, and so has the worker
                return
            worker.replaced = True
            item.hangs_since = worker.since
            self._hanging.append(item)
            self._worker = None
            hired = self._hire()
        what = "storage" if self._disk.fetches else "disk"
        item.on_hang(f"its {what} has not answered for {self._seconds:g} s")
        self._submit(hired)

    def _take_up(self, item: Looked) -> None:
        """Its look, which hung, has ended."""
        now = self._clock.monotonic()
        with self._lock:
            seconds, item.hangs_since = now - (item.hangs_since or now), None
            self._hanging.remove(item)
            if item.queued and not self._closed:
                self._waiting.append(item)
            hired = self._hire()
        item.on_answer(seconds)
        self._submit(hired)

    def _reason_to_wait(self, item: Looked) -> str | None:
        """The reason why the item is not to be looked at now; None if it may be."""
        with self._lock:
            hanging = [(each.device, each.path) for each in self._hanging]
        device = item.device or self._disk.device(item.path)
        beside = sum(device == (other or self._disk.device(path)) for other, path in hanging)
        if beside < (MOST_ON_ONE_DISK if len(hanging) < _FULL else 1):
            return None
        return f"its disk hangs: {beside} looks at other directories there have not answered"


def hangs(name: str, what: str) -> Status:
    """The status of a model whose base path cannot be looked at now."""
    return Status(StatusCode.UNAVAILABLE, f"model {name}: {what}", Reason.DISK_HANGS)
