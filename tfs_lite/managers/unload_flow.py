"""The unload of a version: it is withdrawn, drained and unloaded.

    publish Unloading -> withdraw from the serving map -> last handle released -> task on the unload executor:
    loader.unload() -> publish End

No thread waits for the handles. The thread that releases the last one, often a request's, puts the task on the
executor and goes on; teardown itself never happens there. A request is never ended to get a version unloaded: one that
goes on beyond the patience makes its version overdue, which is told, and no decision waits for it any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from math import inf

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock, Timer
from tfs_lite.core.executor import Executor, Task
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import OK, ServingError, Status, StatusCode
from tfs_lite.managers.harness import HarnessState, LoaderHarness, Overdue
from tfs_lite.managers.registry import Done, Registry, call_done
from tfs_lite.managers.serving_map import ServingMap

logger = logging.getLogger(__name__)


class UnloadFlow:
    """All unloads of one manager. Methods may be called from any thread, without the registry's lock."""

    def __init__(
        self,
        registry: Registry,
        serving_map: ServingMap,
        executor: Executor,
        clock: Clock,
        drain_patience: float = inf,
        on_drained: Callable[[ServableId], None] = ignore,
        on_overdue: Callable[[ServableId, Overdue], None] = ignore,
    ) -> None:
        """Both are called outside the lock: ``on_drained`` when the last handle of a version is gone, ``on_overdue``
        when handles are live for longer than ``drain_patience`` seconds, and when its unload takes longer than the
        executor's patience."""
        self._registry = registry
        self._serving_map = serving_map
        self._executor = executor
        self._clock = clock
        self._drain_patience = drain_patience
        self._on_drained = on_drained
        self._on_overdue = on_overdue
        self._drains: dict[LoaderHarness, Timer] = {}  # those with live handles; guarded by the registry's lock
        self._queued: dict[
            LoaderHarness, None
        ] = {}  # unloads that wait for a thread, in order; guarded by the registry's lock

    def request(self, servable_id: ServableId, done: Done) -> None:
        """Withdraws the version now and unloads it when its last handle is gone."""
        try:
            with self._registry.lock:
                harness = self._registry.find(servable_id)
                harness.transition(HarnessState.UNLOAD_REQUESTED)
                self._registry.queue_event(harness, ManagerState.UNLOADING)
        except ServingError as error:
            call_done(done, error.status)
            return
        self._registry.publish_events()
        with self._registry.lock:
            harness.transition(HarnessState.QUIESCING)
        self.drain(harness, partial(self._serving_map.withdraw, servable_id), done)
        self._registry.changed()

    def drain(self, harness: LoaderHarness, leave: Callable[[Callable[[], None]], None], done: Done) -> None:
        """Takes a version that is quiescing out of the serving map by ``leave``, which calls what it is given after the
        last handle, and unloads it then."""
        leave(lambda: self._drained(harness, done))
        if self._drain_patience == inf:
            return
        with self._registry.lock:
            if harness.state is HarnessState.QUIESCING:
                timer = self._clock.call_later(self._drain_patience, lambda: self._drain_overdue(harness))
                self._drains[harness] = timer

    def discard(self, harness: LoaderHarness, done: Done) -> None:
        """Unloads a version whose load was cancelled while it ran; it was never served. Its state is UNLOADING."""
        cancelled = Status(StatusCode.CANCELLED, f"Loading of {harness.id} was cancelled")
        self._submit(harness, cancelled, done)

    def _drained(self, harness: LoaderHarness, done: Done) -> None:
        """Unloads a version that is quiescing and has no handles any more."""
        with self._registry.lock:
            harness.transition(HarnessState.QUIESCED)
            harness.is_overdue = False
            timer = self._drains.pop(harness, None)
        if timer is not None:
            timer.cancel()
        self._on_drained(harness.id)
        self._submit(harness, OK, done)

    def queued(self) -> list[LoaderHarness]:
        """Unloads that wait for a thread, in order. Called with the registry's lock held."""
        return list(self._queued)

    def _submit(self, harness: LoaderHarness, final: Status, done: Done) -> None:
        with self._registry.lock:
            self._queued[harness] = None
        self._executor.submit(
            Task(
                name=f"unload {harness.id}",
                begin=lambda: self._begin(harness),
                work=lambda: _unload(harness),
                done=lambda error: self._finish(harness, final, done, error),
                overdue=lambda: self._overdue(harness),
            )
        )
        self._registry.changed()

    def _begin(self, harness: LoaderHarness) -> bool:
        with self._registry.lock:
            self._queued.pop(harness, None)
            if harness.state is HarnessState.QUIESCED:
                harness.transition(HarnessState.UNLOADING)
            is_last = not self._queued
        if is_last:
            self._registry.changed()  # the next version may be withdrawn
        return True

    def _drain_overdue(self, harness: LoaderHarness) -> None:
        self._set_overdue(harness, HarnessState.QUIESCING, Overdue.DRAIN)

    def _overdue(self, harness: LoaderHarness) -> None:
        self._set_overdue(harness, HarnessState.UNLOADING, Overdue.UNLOAD)

    def _set_overdue(self, harness: LoaderHarness, state: HarnessState, what: Overdue) -> None:
        """Unless the version has left the state meanwhile."""
        with self._registry.lock:
            if harness.state is not state:
                return
            harness.is_overdue = True
        self._on_overdue(harness.id, what)
        self._registry.changed()

    def _finish(self, harness: LoaderHarness, final: Status, done: Done, error: BaseException | None) -> None:
        if error is not None:
            logger.error("unloading %s failed; it counts as unloaded", harness.id, exc_info=error)
        with self._registry.lock:
            harness.transition(HarnessState.DISABLED)
            harness.is_overdue = False
            self._registry.releases += 1
            if harness in self._registry.beside:  # the version goes on without it
                self._registry.drop_beside(harness)
            else:
                self._registry.queue_event(harness, ManagerState.END, final)
        self._registry.publish_events()
        logger.info("%s is unloaded", harness.id)
        call_done(done, final)
        self._registry.changed()


def _unload(harness: LoaderHarness) -> None:
    assert harness.loader is not None  # only a version with a loader was ever loaded
    harness.loader.unload()
