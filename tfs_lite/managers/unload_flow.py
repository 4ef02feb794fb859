"""The unload of a version: it is withdrawn, drained and unloaded.

    publish Unloading -> withdraw from the serving map -> last handle released -> task on the unload executor:
    loader.unload() -> publish End

No thread waits for the handles. The thread that releases the last one, often a request's, puts the task on the
executor and goes on; teardown itself never happens there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.executor import Executor, Task
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import OK, ServingError, Status, StatusCode
from tfs_lite.managers.harness import HarnessState, LoaderHarness
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
        on_drained: Callable[[ServableId], None] = ignore,
        on_overdue: Callable[[ServableId], None] = ignore,
    ) -> None:
        """Both are called outside the lock: ``on_drained`` when the last handle of a version is gone, ``on_overdue``
        when its unload takes longer than the executor's patience."""
        self._registry = registry
        self._serving_map = serving_map
        self._executor = executor
        self._on_drained = on_drained
        self._on_overdue = on_overdue
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
        self._serving_map.withdraw(servable_id, lambda: self.drained(harness, done))
        self._registry.changed()

    def discard(self, harness: LoaderHarness, done: Done) -> None:
        """Unloads a version whose load was cancelled while it ran; it was never served. Its state is UNLOADING."""
        cancelled = Status(StatusCode.CANCELLED, f"Loading of {harness.id} was cancelled")
        self._submit(harness, cancelled, done)

    def drained(self, harness: LoaderHarness, done: Done) -> None:
        """Unloads a version that is quiescing and has no handles any more."""
        with self._registry.lock:
            harness.transition(HarnessState.QUIESCED)
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
                done=lambda error: self._finish(harness, final, done),
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

    def _overdue(self, harness: LoaderHarness) -> None:
        with self._registry.lock:
            if harness.state is not HarnessState.UNLOADING:
                return
            harness.is_overdue = True
        self._on_overdue(harness.id)
        self._registry.changed()

    def _finish(self, harness: LoaderHarness, final: Status, done: Done) -> None:
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
    try:
        harness.loader.unload()
    except Exception:
        logger.exception("unloading %s failed; it counts as unloaded", harness.id)
