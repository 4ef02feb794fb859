"""The replacement of a ready version by another load of it, without a moment in which the version does not answer.

    queued -> estimate -> reserve a second share, or refuse -> loader.load() -> takes the place in the serving map
        -> what was there is unloaded after its last handle

The version stays Available throughout, so no event is published. A replacement that fails leaves what serves as it is,
and nothing behind; trying again is up to the caller. While both are in memory the one that does not stand for the
version is kept outside the managed ones, and its memory counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.executor import Executor, Task
from tfs_lite.core.loader import Loader
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.status import OK, ServingError, Status, StatusCode, failed_precondition, status_of
from tfs_lite.core.threads import is_users
from tfs_lite.managers.harness import HarnessState, LoaderHarness
from tfs_lite.managers.load_flow import load_servable
from tfs_lite.managers.registry import Done, Registry, call_done
from tfs_lite.managers.reservations import Reservations
from tfs_lite.managers.serving_map import ServingMap
from tfs_lite.managers.unload_flow import UnloadFlow

logger = logging.getLogger(__name__)


class _Replacement:
    """One request. ``old`` is what serves."""

    __slots__ = ("done", "harness", "loader", "old")

    def __init__(self, old: LoaderHarness, harness: LoaderHarness, loader: Loader, done: Done) -> None:
        self.old, self.harness, self.loader, self.done = old, harness, loader, done


class ReplaceFlow:
    """All replacements of one manager. Methods may be called from any thread, without the registry's lock."""

    def __init__(
        self,
        registry: Registry,
        serving_map: ServingMap,
        reservations: Reservations,
        unloads: UnloadFlow,
        executor: Executor,
        on_overdue: Callable[[ServableId], None] = ignore,
    ) -> None:
        """``on_overdue`` is called, outside the lock, when a load takes longer than the executor's patience."""
        self._registry = registry
        self._serving_map = serving_map
        self._reservations = reservations
        self._unloads = unloads
        self._executor = executor
        self._on_overdue = on_overdue

    def request(self, data: ServableData[Loader], done: Done) -> None:
        """Queues the replacement of a version that is ready."""
        try:
            with self._registry.lock:
                self._registry.refuse_if_closing()
                old = self._registry.find(data.id)
                if old.state is not HarnessState.READY:
                    raise failed_precondition(f"{data.id} is not ready (state: {old.state.value})")
                harness = LoaderHarness(data.id, data.payload, data.revision, self._on_error)
                harness.transition(HarnessState.LOAD_REQUESTED)
        except ServingError as error:
            call_done(done, error.status)
            return
        self._submit(_Replacement(old, harness, data.payload, done))

    def _submit(self, replacement: _Replacement) -> None:
        self._executor.submit(
            Task(
                name=f"replace {replacement.harness.id}",
                begin=lambda: self._begin(replacement),
                work=lambda: load_servable(replacement.loader, replacement.harness.id),
                done=lambda error: self._finish(replacement, error),
                overdue=lambda: self._overdue(replacement),
            )
        )
        self._registry.changed()

    def _begin(self, replacement: _Replacement) -> bool:
        """Reserves the memory; False, with ``done`` called, if that is not possible."""
        harness = replacement.harness
        try:
            harness.estimate = self._reservations.estimate(replacement.loader)
            with self._registry.lock:
                self._require_ready(replacement)
                self._reservations.hold_beside(harness)
                harness.transition(HarnessState.LOAD_APPROVED)
                harness.transition(HarnessState.LOADING)
        except BaseException as error:
            call_done(replacement.done, status_of(error))
            if is_users(error):
                raise
            return False
        return True

    def _overdue(self, replacement: _Replacement) -> None:
        with self._registry.lock:
            if replacement.harness.state is not HarnessState.LOADING:
                return
            replacement.harness.is_overdue = True
        self._on_overdue(replacement.harness.id)
        self._registry.changed()

    def _finish(self, replacement: _Replacement, error: BaseException | None) -> None:
        harness = replacement.harness
        with self._registry.lock:
            harness.is_overdue = False
        if error is not None:
            with self._registry.lock:
                self._registry.drop_beside(harness)
                harness.error(status_of(error))
            call_done(replacement.done, harness.status)
            self._registry.changed()
            return
        estimate = self._reservations.estimate_loaded(harness.id, replacement.loader, harness.estimate)
        try:
            with self._registry.lock:
                harness.estimate = estimate
                self._require_ready(replacement)
                self._change_places(replacement)
        except ServingError as refusal:
            self._drop(replacement, refusal.status)
            return
        self._serve(replacement)

    def _change_places(self, replacement: _Replacement) -> None:
        """Called with the lock held. The new one cannot be unloaded before it is READY, which it is not yet."""
        old, new = replacement.old, replacement.harness
        new.is_aspired, new.given_up = old.is_aspired, old.given_up
        self._registry.change_places(new, old)
        old.transition(HarnessState.UNLOAD_REQUESTED)
        old.transition(HarnessState.QUIESCING)

    def _serve(self, replacement: _Replacement) -> None:
        old, new = replacement.old, replacement.harness
        servable = replacement.loader.servable
        self._unloads.drain(old, lambda drained: self._serving_map.replace(new.id, servable, drained), _ignore)
        with self._registry.lock:
            new.transition(HarnessState.READY)
            closing = self._registry.closing
        logger.info("%s was loaded anew and took its own place", new.id)
        call_done(replacement.done, OK)
        if closing:
            self._unloads.request(new.id, _ignore)
        self._registry.changed()

    def _drop(self, replacement: _Replacement, status: Status) -> None:
        """Drops the new load, which has no place to take any more."""
        with self._registry.lock:
            replacement.harness.transition(HarnessState.UNLOADING)
        self._unloads.discard(replacement.harness, lambda _: call_done(replacement.done, status))

    def _require_ready(self, replacement: _Replacement) -> None:
        """Called with the lock held. CANCELLED if the version is not wanted any more, or is another one by now."""
        old = replacement.old
        stands = old.state is HarnessState.READY and self._registry.harnesses.get(old.id) is old
        if self._registry.closing or not stands or not old.is_aspired:
            raise ServingError(StatusCode.CANCELLED, f"{old.id} is no longer served")

    def _on_error(self, harness: LoaderHarness) -> None:
        """Called with the lock held. A second load of a version that serves ends without an event."""
        if self._registry.harnesses.get(harness.id) is harness:
            self._registry.queue_end(harness)


def _ignore(status: Status) -> None:
    """Ignores the end of the old one, which is logged where it happens."""
