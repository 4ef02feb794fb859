"""The load of a version: from requested to ready, or to an error that says why.

    queued -> estimate -> reserve, park or refuse -> publish Loading -> loader.load() -> obtainable
        -> publish Available -> ready

A failed attempt goes back to the clock, a load without memory is parked, and both come back to the executor as a
new task: no thread waits. So does one whose attempt said that something has to come first: other models, as soon as any
version has become available; room for its replicas, when it is woken. That is no failure and uses up no retry.
Cancelling ends whatever is not running at that moment; an attempt that runs is never interrupted, and what it loaded is
unloaded unseen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.executor import Executor, Task
from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import OK, Reason, ServingError, Status, StatusCode, status_of
from tfs_lite.core.threads import is_users
from tfs_lite.managers.admission import Admission
from tfs_lite.managers.harness import HarnessState, LoaderHarness
from tfs_lite.managers.registry import Done, Registry, call_done
from tfs_lite.managers.reservations import Reservations
from tfs_lite.managers.retrier import RetryPolicy, next_delay
from tfs_lite.managers.serving_map import ServingMap
from tfs_lite.managers.survey import LoadStage, LoadView
from tfs_lite.managers.unload_flow import UnloadFlow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The settings of the load flow. ``should_retry`` and ``on_parked`` run on executor threads, ``on_overdue`` on the
    clock's, all outside all locks."""

    clock: Clock
    executor: Executor
    retry: RetryPolicy
    should_retry: Callable[[Status], bool]
    on_parked: Callable[[ServableId, ResourceAllocation], None]
    on_overdue: Callable[[ServableId], None] = ignore


class _Load:
    """One load request. The registry's lock guards the fields that change."""

    __slots__ = (
        "done",
        "failure",
        "failures",
        "harness",
        "loader",
        "order",
        "retry_at",
        "running",
        "served_before",
        "since",
        "waited",
        "waiting",
        "woken",
    )

    def __init__(self, harness: LoaderHarness, loader: Loader, done: Done) -> None:
        self.harness, self.loader, self.done = harness, loader, done
        self.failures = 0  # the failures of the present step: first estimating, then loading
        self.failure: Status | None = None
        self.running = False  # inside loader.load
        self.waiting = False  # for the clock
        self.served_before = 0  # versions that had become available when the present attempt began
        self.woken = False  # since then
        self.order = 0  # in the queue of the executor; 0 outside of it
        self.since = 0.0  # when it was queued, begun or put off the last time
        self.retry_at: float | None = None
        self.waited = False  # for something that has to come first, and others were refused memory in the meantime


def load_servable(loader: Loader, servable_id: ServableId) -> None:
    """One attempt, without a lock. Raises what the loader raises; INTERNAL if it has no servable afterwards."""
    loader.load(servable_id)
    if loader.servable is None:
        raise ServingError(StatusCode.INTERNAL, f"the loader of {servable_id} loaded nothing")


class LoadFlow:
    """All loads of one manager. Methods may be called from any thread, without the registry's lock."""

    def __init__(
        self,
        registry: Registry,
        serving_map: ServingMap,
        reservations: Reservations,
        unloads: UnloadFlow,
        settings: LoadSettings,
    ) -> None:
        self._registry = registry
        self._serving_map = serving_map
        self._reservations = reservations
        self._unloads = unloads
        self._settings = settings
        self._active: dict[ServableId, _Load] = {}  # loads not decided for good; guarded by the registry's lock
        self._served = 0  # how many versions have become available; guarded by it too
        self._submitted = 0  # how many tasks were queued; guarded by it too

    def request(self, servable_id: ServableId, done: Done) -> None:
        """Queues the load of a version that is new."""
        try:
            with self._registry.lock:
                self._registry.refuse_if_closing()
                harness = self._registry.find(servable_id)
                harness.transition(HarnessState.LOAD_REQUESTED)
                assert harness.loader is not None  # a harness without a loader is in error
                load = self._active[servable_id] = _Load(harness, harness.loader, done)
        except ServingError as error:
            call_done(done, error.status)
            return
        self._submit(load)

    def cancel(self, servable_id: ServableId) -> None:
        """Ends the load with its last failure or CANCELLED; an attempt that runs right now becomes the last one."""
        with self._registry.lock:
            harness = self._registry.harnesses.get(servable_id)
            if harness is None:
                return
            harness.cancelled = True
            load = self._active.get(servable_id)
            if load is None or load.running:
                return
            cancelled = Status(StatusCode.CANCELLED, f"Loading of {servable_id} was cancelled")
            self._end(load, load.failure or cancelled)
        logger.info("loading %s was cancelled", servable_id)
        self._report_end(load)

    def end_retries(self, servable_id: ServableId) -> bool:
        """Ends a load that waits for its next attempt, with its last failure; False if it does not wait for one."""
        with self._registry.lock:
            load = self._active.get(servable_id)
            if load is None or not load.waiting or load.failure is None:
                return False
            self._end(load, load.failure)
        self._report_end(load)
        return True

    def cancel_all(self) -> None:
        with self._registry.lock:
            ids = sorted(self._active)
        for servable_id in ids:
            self.cancel(servable_id)

    def reconsider(self) -> None:
        """Decides the parked loads again. Called after anything that may have freed memory."""
        if self._reservations.any_parked:
            self._reservations.measure()
        with self._registry.lock:
            decided = [self._active[harness.id] for harness in self._reservations.decide_parked()]
            refused = [load for load in decided if load.harness.state is HarnessState.ERROR]
            for load in refused:
                del self._active[load.harness.id]
        for load in decided:
            if load in refused:
                self._refused(load)
            else:
                self._submit(load)

    def wake(self, servable_id: ServableId) -> None:
        """Tries the load again if it waits for room for its replicas; once more after the attempt that runs now."""
        with self._registry.lock:
            load = self._active.get(servable_id)
            if load is None:
                return
            load.woken = True
            if load.harness.waits is not Reason.WAITS_FOR_PLACE:
                return
            load.harness.waits = None
        self._submit(load)

    def views(self) -> dict[ServableId, LoadView]:
        """Every load that is not decided for good. Called with the registry's lock held."""
        orders = sorted(load.order for load in self._active.values() if load.order)
        queued = {order: place for place, order in enumerate(orders)}
        return {servable_id: self._view(load, queued) for servable_id, load in self._active.items()}

    def _view(self, load: _Load, queued: Mapping[int, int]) -> LoadView:
        return LoadView(
            self._stage(load),
            load.since,
            queued.get(load.order, 0),
            load.retry_at if load.waiting else None,
            load.failures,
            self._settings.retry.max_attempts,
            load.failure,
            load.harness.waits,
        )

    def _stage(self, load: _Load) -> LoadStage:
        if load.order:
            return LoadStage.QUEUED
        if load.waiting:
            return LoadStage.BETWEEN_ATTEMPTS
        if load.harness.waits is not None:
            return LoadStage.NEEDS_OTHERS
        return LoadStage.NEEDS_MEMORY if self._reservations.is_parked(load.harness) else LoadStage.AT_WORK

    # From here on: one task per attempt, on an executor's thread.

    def _submit(self, load: _Load) -> None:
        with self._registry.lock:
            self._submitted += 1
            load.order, load.since = self._submitted, self._settings.clock.monotonic()
        self._settings.executor.submit(
            Task(
                name=f"load {load.harness.id}",
                begin=lambda: self._begin(load),
                work=lambda: load_servable(load.loader, load.harness.id),
                done=lambda error: self._finish(load, error),
                overdue=lambda: self._overdue(load),
            )
        )
        self._registry.changed()

    def _begin(self, load: _Load) -> bool:
        with self._registry.lock:
            load.order, load.since = 0, self._settings.clock.monotonic()
            reserved = load.harness.state is not HarnessState.LOAD_REQUESTED
        return (reserved or self._reserve(load)) and self._start(load)

    def _overdue(self, load: _Load) -> None:
        """The attempt goes on, and others do not wait for it: it may have been what a parked load waited for."""
        with self._registry.lock:
            if not self._is_active(load) or self._stage(load) is not LoadStage.AT_WORK:
                return  # it has just ended
            load.harness.is_overdue = load.waited = True
        self._settings.on_overdue(load.harness.id)
        self._registry.changed()

    def _reserve(self, load: _Load) -> bool:
        """Estimates and decides; True if the memory is reserved."""
        try:
            estimate = self._reservations.estimate(load.loader)
        except BaseException as error:
            self._failed(load, _while_reserving(load.harness.id, error), error)
            if is_users(error):
                raise
            return False
        with self._registry.lock:
            if not self._is_active(load):
                return False
            load.failures, load.failure = 0, None
            load.harness.estimate = estimate
            admission = self._reservations.decide(load.harness)
            load.harness.is_overdue = load.harness.is_overdue and admission is Admission.ADMIT
            if admission is Admission.REFUSE:
                del self._active[load.harness.id]
        if admission is Admission.PARK:
            logger.info("%s waits for resources: %s", load.harness.id, estimate)
            self._settings.on_parked(load.harness.id, estimate)
        elif admission is Admission.REFUSE:
            self._refused(load)
        return admission is Admission.ADMIT

    def _start(self, load: _Load) -> bool:
        harness = load.harness
        with self._registry.lock:
            if not self._is_active(load):
                return False
            if harness.state is HarnessState.LOAD_APPROVED:
                harness.transition(HarnessState.LOADING)
                self._registry.queue_event(harness, ManagerState.LOADING)
            harness.attempts += 1
            load.running, load.woken, load.served_before = True, False, self._served
        self._registry.publish_events()
        return True

    def _finish(self, load: _Load, error: BaseException | None) -> None:
        with self._registry.lock:
            load.harness.is_overdue = False
        if error is not None:
            self._failed(load, status_of(error), error)
            return
        harness = load.harness
        estimate = self._reservations.estimate_loaded(harness.id, load.loader, harness.estimate)
        with self._registry.lock:
            self._registry.releases += load.waited and estimate != harness.estimate
            harness.estimate = estimate
            del self._active[harness.id]
            cancelled = harness.cancelled
            if cancelled:
                harness.transition(HarnessState.UNLOADING)
        if cancelled:
            self._unloads.discard(harness, load.done)
        else:
            self._serve(load)

    def _serve(self, load: _Load) -> None:
        harness = load.harness
        self._serving_map.add(harness.id, load.loader.servable)
        with self._registry.lock:
            self._registry.queue_event(harness, ManagerState.AVAILABLE)
        self._registry.publish_events()
        with self._registry.lock:  # it can be unloaded only from now on: Unloading cannot overtake Available
            harness.transition(HarnessState.READY)
            closing = self._registry.closing
            self._served += 1
            waits = [other.id for other in self._registry.moving if other.waits is Reason.WAITS_FOR_MODELS]
            waiting = [other for servable_id in waits if (other := self._active.get(servable_id)) is not None]
            for other in waiting:
                other.harness.waits = None
        logger.info("%s is available", harness.id)
        call_done(load.done, OK)
        if closing:
            self._unloads.request(harness.id, lambda status: None)
        for other in waiting:
            self._submit(other)
        self._registry.changed()

    def _failed(self, load: _Load, status: Status, error: BaseException) -> None:
        """An estimate or an attempt failed: it comes back later, or ends."""
        if status.waits and self._wait(load, status):
            return
        harness, retry = load.harness, self._settings.retry
        retryable = self._is_retryable(status)
        with self._registry.lock:
            if not self._is_active(load):
                return
            known = load.failure == status
            load.running, load.failure, harness.is_overdue = False, status, False
            load.failures += 1
            delay = next_delay(retry, load.failures, retryable=retryable, cancelled=harness.cancelled)
            load.waiting, load.since = delay is not None, self._settings.clock.monotonic()
            load.retry_at = load.since + delay if delay is not None else None
            if delay is None:
                self._end(load, status)
        cause, story = (None, error.detail) if isinstance(error, ServingError) else (error, "")
        ends_early = delay is None and load.failures < retry.max_attempts
        tries = f"attempt {load.failures}" + (", not retried" if ends_early else f" of {retry.max_attempts}")
        told = {"story": "" if known else story}
        logger.warning("loading %s failed (%s): %s", harness.id, tries, status, exc_info=cause, extra=told)
        if delay is None:
            self._report_end(load)
        elif delay > 0:
            self._settings.clock.call_later(delay, lambda: self._resume(load))
            self._registry.changed()  # a newer list may be there, which ends the wait
        else:
            self._resume(load)

    def _wait(self, load: _Load, status: Status) -> bool:
        """The attempt found that something has to come first. False: it was not one that may wait."""
        harness = load.harness
        with self._registry.lock:
            if not (self._is_active(load) and load.running) or harness.cancelled:
                return False
            known = load.failure == status
            load.running, load.failure, load.waited = False, status, True
            load.since = self._settings.clock.monotonic()
            for_place = status.reason is Reason.WAITS_FOR_PLACE
            come = load.woken if for_place else self._served != load.served_before  # meanwhile, perhaps the very thing
            harness.waits = None if come else status.reason
        if not known:
            logger.info("%s: %s", harness.id, status.message)
        if come:
            self._submit(load)
        else:
            self._registry.changed()  # no parked load waits for it any more
        return True

    def _is_retryable(self, status: Status) -> bool:
        try:
            return self._settings.should_retry(status)
        except Exception:
            logger.exception("should_retry_model_load failed; not retrying")
            return False

    def _resume(self, load: _Load) -> None:
        with self._registry.lock:
            if not (self._is_active(load) and load.waiting):
                return
            load.waiting = False
        self._submit(load)

    def _is_active(self, load: _Load) -> bool:
        """Called with the lock held. False once the load was ended, by any thread."""
        return self._active.get(load.harness.id) is load

    def _end(self, load: _Load, status: Status) -> None:
        """Called with the lock held, for an active load that is not running."""
        del self._active[load.harness.id]
        self._reservations.forget(load.harness)
        self._registry.releases += load.waited
        load.harness.error(status)

    def _refused(self, load: _Load) -> None:
        """Ends the load, for which there is no room and which may not wait for some."""
        logger.warning("loading %s failed: %s", load.harness.id, load.harness.status)
        self._report_end(load)

    def _report_end(self, load: _Load) -> None:
        self._registry.publish_events()
        call_done(load.done, load.harness.status)
        self._registry.changed()


def _while_reserving(servable_id: ServableId, error: BaseException) -> Status:
    status = status_of(error)
    prefix = f"Error while attempting to reserve resources to load servable {servable_id}"
    return Status(status.code, f"{prefix}: {status.message}")
