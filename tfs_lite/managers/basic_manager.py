"""The mechanism: it manages a set of versions, loads and unloads them when told, and serves those that are ready.

    manage_servable -> load_servable -> unload_servable -> stop_managing_servable

It decides nothing about what should be loaded, nor in which order; that is the part of
:class:`tfs_lite.managers.aspired_versions_manager.AspiredVersionsManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from math import inf

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.executor import Executor
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import Status, StatusCode, failed_precondition
from tfs_lite.core.threads import JOIN_SECONDS, leave_behind
from tfs_lite.managers.harness import REMOVABLE, HarnessState, LoaderHarness, Overdue, ServableStateSnapshot, step_of
from tfs_lite.managers.load_flow import LoadFlow, LoadSettings
from tfs_lite.managers.registry import Done, Registry
from tfs_lite.managers.replace_flow import ReplaceFlow
from tfs_lite.managers.reservations import Reservations
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.managers.retrier import RetryPolicy
from tfs_lite.managers.serving_map import ServingMap
from tfs_lite.managers.survey import ManagerView, VersionView
from tfs_lite.managers.unload_flow import UnloadFlow

logger = logging.getLogger(__name__)


def _is_in_use(harness: LoaderHarness) -> bool:
    return harness.state is HarnessState.QUIESCING


def always(status: Status) -> bool:
    """Every failure may be retried."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicManagerOptions:
    """The manager owns the two executors and shuts them down. Callbacks run outside all locks and must be short.

    ``load_retry_interval`` is in seconds; not positive means at once. ``should_retry_model_load`` may end the retries
    of a load early. ``on_change`` runs after anything changed that a tick may act on, or when work waits for
    :meth:`BasicManager.run_pending`. ``on_parked``: a load waits for that much memory. ``on_drained``: the last handle
    of a version that is being unloaded, or was replaced, is gone. ``on_overdue``: its load or unload takes longer than
    the executor's patience, or its last requests longer than ``drain_patience`` seconds; that goes on.
    """

    clock: Clock
    load_executor: Executor
    unload_executor: Executor
    event_bus: EventBus[ServableState] | None = None
    resource_tracker: ResourceTracker | None = None
    max_num_load_retries: int = 5
    load_retry_interval: float = 60.0
    should_retry_model_load: Callable[[Status], bool] = always
    on_change: Callable[[], None] = lambda: None
    on_parked: Callable[[ServableId, ResourceAllocation], None] = ignore
    on_drained: Callable[[ServableId], None] = ignore
    on_overdue: Callable[[ServableId, Overdue], None] = ignore
    drain_patience: float = inf


class BasicManager:
    """All methods may be called from any thread, and return without waiting for a load or an unload, except
    :meth:`close` and, with executors of size 0, :meth:`run_pending`.

    Events per version: Start, Loading, Available, Unloading, End; or End with the reason, at any point, once. They are
    published in the order in which the states changed. An item that arrived with an error has End only.
    """

    def __init__(self, options: BasicManagerOptions) -> None:
        self._options = options
        self._serving_map = ServingMap()
        self.get_servable_handle = self._serving_map.lookup
        """The right to use a ready version. Takes none of the manager's locks."""
        self._registry = Registry(options.event_bus, self._after_change, options.clock.monotonic)
        self._renewed_at = 0  # the registry's ``releases`` at the last renewal; guarded by its lock
        self._unloads = UnloadFlow(
            self._registry,
            self._serving_map,
            options.unload_executor,
            options.clock,
            options.drain_patience,
            options.on_drained,
            options.on_overdue,
        )
        self._reservations = reservations = Reservations(self._registry, options.resource_tracker)

        def on_overdue_load(servable_id: ServableId) -> None:
            options.on_overdue(servable_id, Overdue.LOAD)

        self._replacements = ReplaceFlow(
            self._registry, self._serving_map, reservations, self._unloads, options.load_executor, on_overdue_load
        )
        self._loads = LoadFlow(
            self._registry,
            self._serving_map,
            reservations,
            self._unloads,
            LoadSettings(
                clock=options.clock,
                executor=options.load_executor,
                retry=RetryPolicy(options.max_num_load_retries, options.load_retry_interval),
                should_retry=options.should_retry_model_load,
                on_parked=options.on_parked,
                on_overdue=on_overdue_load,
            ),
        )

    # What is managed.

    def manage_servable(self, data: ServableData[Loader]) -> None:
        """Takes the version on: New, or for an errored item Error, in which it stays until it is no longer managed.

        FAILED_PRECONDITION if the id is managed already; the loader offered is dropped then.
        """
        loader = data.payload if data.status.ok else None
        with self._registry.lock:
            self._registry.refuse_if_closing()
            if data.id in self._registry.harnesses:
                raise failed_precondition(f"Servable {data.id} is already being managed")
            harness = LoaderHarness(data.id, loader, data.revision, self._registry.queue_end)
            harness.given_up = data.given_up
            self._registry.add(harness)
            if loader is not None:
                self._registry.queue_event(harness, ManagerState.START)
            else:
                harness.error(data.status)
        self._registry.publish_events()
        self._registry.changed()

    def stop_managing_servable(self, servable_id: ServableId) -> None:
        """Drops a version that is New, Disabled or in Error; FAILED_PRECONDITION otherwise, or if it is unknown.

        A version that is still New says End(CANCELLED); the others have said their End before.
        """
        with self._registry.lock:
            harness = self._registry.harnesses.get(servable_id)
            if harness is None or harness.state not in REMOVABLE:
                state = "not being managed" if harness is None else harness.state.value
                raise failed_precondition(f"Cannot stop managing {servable_id}: it is {state}")
            self._registry.remove(servable_id)
            harness.error(Status(StatusCode.CANCELLED, f"{servable_id} is no longer wanted"))
        self._registry.publish_events()
        self._registry.changed()

    def set_aspired(self, servable_id: ServableId, is_aspired: bool) -> None:
        """Marks the version as wanted or not, for the policy.

        A version that is not wanted any more ends its load if that is queued, parked or waiting for its next attempt.
        An attempt that runs is not interrupted: if it fails it was the last, if it succeeds the version is unloaded
        without having been served, with End(CANCELLED).
        """
        with self._registry.lock:
            harness = self._registry.harnesses.get(servable_id)
            if harness is not None:
                harness.is_aspired = is_aspired
        if not is_aspired:
            self._loads.cancel(servable_id)

    def set_given_up(self, servable_id: ServableId, given_up: bool) -> None:
        """Notes what the source says of the version, for the policy."""
        with self._registry.lock:
            harness = self._registry.harnesses.get(servable_id)
            if harness is not None:
                harness.given_up = given_up

    def end_retries(self, servable_id: ServableId) -> bool:
        """Ends a load that waits for its next attempt, with its last failure. False, and nothing has changed, if it
        does not wait for one."""
        return self._loads.end_retries(servable_id)

    def renew_exhausted(self) -> list[ServableId]:
        """Manages every aspired version that ended with RESOURCE_EXHAUSTED anew, with the same loader, if a version was
        unloaded since, or a load that had waited has given memory back: once for each such change; or if it fits now
        because less memory is held outside models. Returns their ids."""
        renewed = []
        with self._registry.lock:
            refused = any(harness.refused_as_measured for harness in self._registry.exhausted)
            if not refused and self._registry.releases == self._renewed_at:
                return []
        if refused:
            self._reservations.measure()
        with self._registry.lock:
            self._renewed_at = self._registry.releases
            for old in list(self._registry.exhausted):
                if old.loader is None or not self._may_fit_now(old):
                    continue
                new = LoaderHarness(old.id, old.loader, old.revision, self._registry.queue_end)
                new.given_up = old.given_up
                self._registry.add(new)
                self._registry.queue_event(new, ManagerState.START)
                renewed.append(old.id)
        if renewed:
            self._registry.publish_events()
            self._registry.changed()
        return renewed

    def _may_fit_now(self, harness: LoaderHarness) -> bool:
        return (
            harness.is_aspired
            and not self._registry.closing
            and (harness.releases_seen < self._registry.releases or self._reservations.fits_again(harness))
        )

    def get_managed_servable_state_snapshots(self, name: str | None = None) -> list[ServableStateSnapshot]:
        """Every managed version of the stream, or of all streams, in the order of their ids."""
        with self._registry.lock:
            harnesses = self._registry.harnesses.values() if name is None else self._registry.stream(name)
            return sorted((harness.snapshot() for harness in harnesses), key=lambda snapshot: snapshot.id)

    def take_changed_streams(self) -> set[str]:
        """The streams of which a snapshot may have changed since the last call."""
        with self._registry.lock:
            return self._registry.take_changed_streams()

    def get_managed_servable_state_snapshot(self, servable_id: ServableId) -> ServableStateSnapshot | None:
        with self._registry.lock:
            harness = self._registry.harnesses.get(servable_id)
            return harness.snapshot() if harness is not None else None

    def survey(self) -> ManagerView:
        """Every managed version, and what each of them waits for. Under the lock, which is held for as long as one
        look at each version takes."""
        with self._registry.lock:
            answers, users = set(self._serving_map.ids()), self._serving_map.users()
            leaving = self._serving_map.leaving()
            loads, beside = self._loads.views(), {harness.id for harness in self._registry.beside}
            hangs: dict[ServableId, list[tuple[Overdue, float]]] = {}
            for harness, since in self._registry.beside.items():
                if harness.is_overdue:
                    hangs.setdefault(harness.id, []).append((step_of(harness.state), since))
            unloads = {harness.id: place for place, harness in enumerate(self._unloads.queued())}
            versions = {
                servable_id: VersionView(
                    harness.snapshot(),
                    harness.estimate,
                    harness.attempts,
                    loads.get(servable_id),
                    servable_id in answers,
                    users.get(servable_id, 0),
                    servable_id in beside,
                    unloads.get(servable_id),
                    leaving.get(servable_id, 0),
                    tuple(hangs.get(servable_id, ())),
                )
                for servable_id, harness in self._registry.harnesses.items()
            }
            closing = self._registry.closing
        executor = self._options.load_executor
        return ManagerView(self._options.clock.monotonic(), versions, executor.num_threads, closing)

    # Loading and unloading.

    def load_servable(self, servable_id: ServableId, done: Done) -> None:
        """Loads a version that is New. ``done`` gets OK once it is ready, else why not: NOT_FOUND (not managed), the
        version's own error, FAILED_PRECONDITION (asked before), RESOURCE_EXHAUSTED, CANCELLED, or the loader's error
        after the last attempt."""
        self._loads.request(servable_id, done)

    def wake(self, servable_id: ServableId) -> None:
        """Tries a load again that waits for room in the cluster (``WAITS_FOR_PLACE``): something has changed there.
        Does nothing to any other version. A call while an attempt runs is not lost."""
        self._loads.wake(servable_id)

    def unload_servable(self, servable_id: ServableId, done: Done) -> None:
        """Withdraws a Ready version and unloads it once its last handle is released; then ``done`` gets OK."""
        self._unloads.request(servable_id, done)

    def replace_servable(self, data: ServableData[Loader], done: Done) -> None:
        """Loads a Ready version anew, by the loader of ``data``, while the old load serves, and puts it in its place;
        the old one is unloaded once its last handle is released. ``done`` gets OK once the new one is served. Otherwise
        nothing has changed: NOT_FOUND or FAILED_PRECONDITION (not ready), CANCELLED (no longer served), or
        RESOURCE_EXHAUSTED or the loader's error. There are no further attempts, and no events."""
        self._replacements.request(data, done)

    def hold(self, servable_id: ServableId, held: bool) -> None:
        """Keeps the version from answering requests for the latest one, or no longer does; see
        :meth:`ServingMap.hold`."""
        self._serving_map.hold(servable_id, held)

    @property
    def is_unload_waiting(self) -> bool:
        """Whether a version has no users any more and waits for a thread that unloads it."""
        with self._registry.lock:
            return bool(self._unloads.queued())

    def set_num_load_threads(self, num_threads: int) -> None:
        """Returns at once; see :meth:`tfs_lite.core.executor.Executor.resize`."""
        self._options.load_executor.resize(num_threads)
        self._registry.changed()

    def run_pending(self) -> None:
        """Runs what executors of size 0 have queued, on the caller's thread. Never call it from a request."""
        self._options.load_executor.run_pending()
        self._options.unload_executor.run_pending()

    # Serving.

    def list_available_servable_ids(self) -> list[ServableId]:
        return self._serving_map.ids()

    def available_versions(self, name: str) -> set[int]:
        """The versions of the model that can be had now."""
        return self._serving_map.versions(name)

    def get_available_servable_handles(self, names: Collection[str] | None = None) -> dict[ServableId, ServableHandle]:
        """One handle to every ready version, or of these names; the caller releases each."""
        return self._serving_map.handles(names)

    def get_leaving_servable_handles(self, name: str | None = None) -> list[ServableHandle]:
        """Handles to the servables that were withdrawn or replaced and are still in use; the caller releases each soon:
        it is waited for."""
        return self._serving_map.leaving_handles(name)

    # The end.

    def close(self, drain_timeout: float = 0.0) -> None:
        """Unloads everything, in the order of the ids, and ends the executors.

        Waits up to ``drain_timeout`` seconds for live handles and for loads and unloads that run, but not for those
        that are overdue. What is still in use then is not unloaded under its users: it stays withdrawn, its executor
        stays alive, and its unload follows the last handle. What still loads or unloads is left behind.
        """
        with self._registry.lock:
            if self._registry.closing:
                return
            self._registry.closing = True
        self._loads.cancel_all()
        for snapshot in self.get_managed_servable_state_snapshots():
            if snapshot.state is HarnessState.NEW:
                self.stop_managing_servable(snapshot.id)
            elif snapshot.state is HarnessState.READY:
                self._unloads.request(snapshot.id, lambda status: None)
        with self._registry.lock:
            loading = self._in_states({HarnessState.LOADING})
        for servable_id in loading if drain_timeout > 0 else ():
            logger.info("%s is still loading; the stop waits up to %.0f s for that", servable_id, drain_timeout)
        self._drain(drain_timeout)
        self._end_executors()

    def _drain(self, timeout: float) -> None:
        deadline = self._options.clock.monotonic() + timeout
        timer = self._options.clock.call_later(timeout, self._registry.changed) if timeout > 0 else None
        while True:
            with self._registry.lock:
                seen = self._registry.changes
            self.run_pending()
            with self._registry.lock:
                left = deadline - self._options.clock.monotonic()
                if left <= 0 or not any(harness.is_awaited for harness in self._registry.moving):
                    break
                if self._registry.changes == seen:
                    self._registry.lock.wait(left)
        if timer is not None:
            timer.cancel()

    def _end_executors(self) -> None:
        with self._registry.lock:
            loading = self._in_states({HarnessState.LOADING})
            in_use = [harness for harness in self._registry.moving if _is_in_use(harness)]
        self._options.load_executor.shutdown(0.0 if loading else JOIN_SECONDS)
        if not (loading or in_use):
            self._options.unload_executor.shutdown()
        for servable_id in loading:
            logger.warning("%s is still loading; not waiting for it any longer", servable_id)
        for harness in in_use:
            logger.warning("%s is still in use; it will be unloaded after its last request", harness.id)
        leave_behind({f"requests inside {harness.id}": partial(_is_in_use, harness) for harness in in_use})

    def _in_states(self, states: set[HarnessState]) -> list[ServableId]:
        """Those that are moving and in one of these states. Called with the lock held."""
        return [harness.id for harness in self._registry.moving if harness.state in states]

    def _after_change(self) -> None:
        self._loads.reconsider()
        self._options.on_change()
