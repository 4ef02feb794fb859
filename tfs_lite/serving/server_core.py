"""The serving core: which models are served, in which state they are, and a handle to each.

Any number of APIs may stand in front of it, and any number of features (:mod:`~tfs_lite.serving.feature`) in it. It has
no event loop and needs none; every method may be called from any thread, and only reloads and the waits block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector

from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.callbacks import together
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.executor import Patience, PoolExecutor
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.history import Cause, History, Origin, acting
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.core.status import OK, Reason, ServingError, Status, StatusCode, invalid_argument
from tfs_lite.core.threads import JOIN_SECONDS, BoundedCalls, within
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager, AspiredVersionsManagerOptions
from tfs_lite.managers.harness import Overdue
from tfs_lite.managers.labels import VersionLabels, instead_of
from tfs_lite.managers.policies import POLICIES
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.request_log.sampler import RequestLogs
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.feature import Feature, Features
from tfs_lite.serving.lifecycle_events import (
    Drained,
    LifecycleEvent,
    LoadAttempted,
    LoadParked,
    StateChanged,
    StepOverdue,
    WarmedUp,
    WorkerChanged,
)
from tfs_lite.serving.load_journal import LoadAttempt, LoadJournal
from tfs_lite.serving.load_waiter import ModelWaiter, WaitResult
from tfs_lite.serving.metrics import Metrics
from tfs_lite.serving.model_states import ModelStates
from tfs_lite.serving.opening.device_resources import DeviceResources, adapter_settings, may_be_retried
from tfs_lite.serving.opening.model_configs import ModelConfigs
from tfs_lite.serving.opening.model_opener import ModelOpener
from tfs_lite.serving.opening.servable_factory import (
    BatchingOptions,
    ServableEnvironment,
    ServableFactory,
    ServingSettings,
)
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.reload import Reloader
from tfs_lite.serving.renewal import Renewal
from tfs_lite.serving.response_cache import ResponseCacheFeature
from tfs_lite.serving.sequences.feature import Sequences
from tfs_lite.serving.source_chain import SourceChain
from tfs_lite.serving.standing import Refusals
from tfs_lite.serving.statistics.feature import Statistics
from tfs_lite.serving.version_follower import RECHECK_SECONDS
from tfs_lite.serving.view import View

F = TypeVar("F", bound=Feature)
MOST_OVERDUE = 4
"""Loads, and unloads, that may take too long at a time and have others run in their place."""
logger = logging.getLogger(__name__)
MakeFeature: TypeAlias = Callable[["ServerCore"], Feature | None]
"""Makes a feature for a core that is being made; None if its options do not want it."""


class ServerCore:
    """``start`` -> ``load_first`` -> lookups, queries and reloads from any thread -> ``close``.

    Its parts are public. ``reloader`` applies configs, ``view`` has the queries, ``states`` what is known about each
    model, ``changes`` tells waiting threads of every change, ``history`` keeps what has happened, ``renewal`` brings
    versions that serve into another state, ``opener`` opens models, ``sources`` offers versions in the control mode
    explicit, ``refusals`` has what is not in force and why, ``waiter`` waits for models, ``disk_calls`` bounds what
    asks a disk on a thread that others need, ``on_call`` is to be called after every call.
    """

    def __init__(self, options: ServerOptions, features: Iterable[MakeFeature] = ()) -> None:
        """``features``: the features of this core in addition to metrics, statistics, sequences and the response cache;
        the order is that of their events."""
        self.options = options
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.clock = SystemClock()
        self.disk_calls = BoundedCalls(options.disk_timeout_seconds)
        self.history = History(self.clock.time)
        # What is known: the manager's states, the attempts to load, the state of each model.
        self.features = Features(self.registry)
        self.changes = ChangeNotifier()
        self._bus: EventBus[ServableState] = EventBus(self.clock)
        self.monitor = ServableStateMonitor(self._bus)
        self.journal = LoadJournal(self._on_attempt)
        self.view = View(self)
        told = self.view.silence, self.features.rejected
        self.states = ModelStates(self.monitor, self.journal, self.changes, self.clock, *told)
        self.refusals = Refusals(self.changes, self.clock.time)
        self.labels = VersionLabels()
        self.waiter = ModelWaiter(self.states, self.changes, self.clock)
        self.resources = DeviceResources.measure(options)
        self.model_configs = ModelConfigs()
        # What serves every request.
        self.metrics = Metrics(self, self.view)
        self.cache = ResponseCacheFeature(self)
        self.statistics = Statistics(self, self.cache.cache)
        self.sequences = Sequences(self)
        self.request_logs = RequestLogs(self.clock, self.metrics.requests.tensorflow.on_logged)
        # What loads and unloads.
        self.manager = self._make_manager()
        try:
            self._assemble(features)
        except BaseException:
            self.features.close()
            raise

    def _assemble(self, features: Iterable[MakeFeature]) -> None:
        """The features, then what goes through them: opening, batching, the way from source to manager, configs."""
        options = self.options
        self.features.make(self, features, (self.metrics, self.cache, self.statistics, self.sequences))
        self.on_call = together([feature.on_call for feature in self.features])
        self.opener = ModelOpener(
            options.worker,
            options.per_process_gpu_memory_fraction,
            self.features.open,
            self._on_worker,
            options.worker_sandbox,
            options.saved_model_tags,
        )
        batching = BatchingOptions.read(options)
        serving = ServingSettings(ServableFactory(batching, self.clock, self._environment()))
        self.renewal = Renewal(self, serving)
        settings = adapter_settings(
            options,
            serving,
            self.opener,
            lambda report: self.publish(WarmedUp(report)),
            self.model_configs,
            batching.batch_rows,
        )
        self.sources = SourceChain(
            options, self.manager, self.states, self.journal, settings, self.clock, self.features, self.renewal.follower
        )
        # What applies configs.
        self.reloader = Reloader(
            options,
            sources=self.sources,
            manager=self.manager,
            labels=self.labels,
            states=self.states,
            waiter=self.waiter,
            logs=self.request_logs,
            clock=self.clock,
            publish=self.publish,
            rejected=self.features.rejected,
        )
        self.monitor.subscribe(self._on_state)

    def _make_manager(self) -> AspiredVersionsManager:
        options = self.options
        slow = (options.slow_load_seconds, options.slow_unload_seconds)
        patience = [Patience(seconds, MOST_OVERDUE, self.clock) for seconds in slow]
        return AspiredVersionsManager(
            AspiredVersionsManagerOptions(
                clock=self.clock,
                load_executor=PoolExecutor("tfs-load", options.num_load_threads, patience[0]),
                unload_executor=PoolExecutor("tfs-unload", options.num_unload_threads, patience[1]),
                event_bus=self._bus,
                resource_tracker=self.resources.tracker,
                max_num_load_retries=options.max_num_load_retries,
                load_retry_interval=options.load_retry_interval_micros / 1e6,
                should_retry_model_load=may_be_retried,
                policy=POLICIES[options.aspired_version_policy],
                on_parked=lambda servable_id, needs: self.publish(LoadParked(servable_id, needs)),
                on_overdue=self._on_overdue,
                on_drained=self._on_drained,
                drain_patience=options.slow_drain_seconds,
            )
        )

    def _environment(self) -> ServableEnvironment:
        """The functions by which servables ask the server and report to it."""
        on_runs = [feature.on_run for feature in self.features]
        routes = self.sequences.routes
        return ServableEnvironment(
            on_batch=together([self.metrics.batches.on_batch, *on_runs]),
            on_run=together([self.metrics.batches.on_run, *on_runs]),
            on_call=self.on_call,
            on_forgotten=routes.forgotten,
            resolve=lambda name, version: self.handle(ModelRef(name, version)),
            resolve_sequence=lambda name, version, flags: routes.handle(ModelRef(name, version), flags),
            cache=self.cache.cache,
            generation=self.metrics.generation,
        )

    # Features.

    def find(self, kind: type[F]) -> F | None:
        """The feature of this class; None if this core has none."""
        return self.features.find(kind)

    def publish(self, event: LifecycleEvent) -> None:
        """Tells every feature, on this thread, in the order of the list. One that fails costs the others nothing."""
        self.features.publish(event)

    # From start to close.

    def start(self) -> None:
        """Begins to follow the disk, with nothing to serve yet."""
        self.features.start()
        self.manager.start()
        self.sources.start()

    def load_first(self, config: ModelServerConfig) -> None:
        """Applies the config of the start and returns at once; :meth:`wait_for_first` waits for its models. Until
        :meth:`end_first_load` more threads load than afterwards."""
        self.manager.set_num_load_threads(max(self.options.num_initial_load_threads, self.options.num_load_threads))
        with acting(Origin(Cause.START)):
            self.reloader.apply_first(config)

    def wait_for_first(self, *, first_attempt_counts: bool) -> WaitResult:
        """The outcome of every model known at the start; as it stands when the server is closed meanwhile."""
        names = self.states.configured if self.options.looks_at_disk else ()
        return self.waiter.wait(names, None, since=0.0, first_attempt_counts=first_attempt_counts)

    def end_first_load(self) -> None:
        """The models known at the start are available or have failed. From now on as many threads load as the options
        say."""
        if not self.waiter.closed:
            self.features.first_load_ended()
        self.manager.set_num_load_threads(self.options.num_load_threads)

    def close(self, drain_timeout: float) -> None:
        """Ends every wait, accepts no more configs or versions, waits up to ``drain_timeout`` seconds for live handles,
        unloads. Every other wait has a bound too; what has not ended then is left behind
        (:func:`tfs_lite.core.threads.left_behind`)."""
        self.waiter.close()
        self.features.stopping()
        self.sources.close()
        self.manager.close(drain_timeout)
        within(JOIN_SECONDS, "tfs-workers", self.opener.close)
        self.features.close()
        self.monitor.close()
        within(JOIN_SECONDS, "tfs-request-log", self.request_logs.close)
        self.clock.close()

    # Lookups.

    def handle(self, ref: ModelRef) -> ServableHandle:
        """The version that answers: by number, by label, or the latest one available. What a label on a version that
        must not answer means: :func:`instead_of`."""
        if not ref.name:
            raise invalid_argument("ModelSpec has no name specified")
        if ref.label is None:
            return self.manager.get_servable_handle(ref)
        version = self._meant(ref)
        try:
            return self.manager.get_servable_handle(ModelRef(ref.name, version))
        except ServingError:  # what the label means may have changed meanwhile
            for other in (self._meant(ref), self.labels.resolve(ref.name, ref.label)):
                if other != version:
                    return self.manager.get_servable_handle(ModelRef(ref.name, other))
            raise

    def _meant(self, ref: ModelRef) -> int | None:
        """The version that a label means now; None: the latest one. One on a rejected version means the highest one
        below it that is available."""
        version = self.labels.version(ref)
        rejected = self.features.rejected(ref.name)
        if version is None or version not in rejected:
            return version
        return instead_of(version, self.manager.available_versions(ref.name), rejected)

    # What happens.

    def _on_worker(self, servable_id: ServableId, cause: str | None) -> None:
        self.publish(WorkerChanged(servable_id, cause))
        self.changes.notify(servable_id.name)

    def _on_attempt(self, attempt: LoadAttempt) -> None:
        self.publish(LoadAttempted(attempt))
        if not (attempt.status.ok or attempt.status.waits or self.states.is_available(attempt.id)):
            self.sources.on_failed_attempt(attempt.id)  # where it goes on with what it was, nothing has to stand in
        if attempt.status.ok:
            logger.info("%s loaded in %.2f s", attempt.id, attempt.seconds)
        self.changes.notify(attempt.id.name)

    def _on_overdue(self, servable_id: ServableId, what: Overdue) -> None:
        """Takes a step that is overdue. It may also be a second load of a version that serves, or the last requests of
        a replaced one; these say nothing about the version."""
        options = self.options
        if what is Overdue.DRAIN:
            text = f"requests inside it go on for longer than {options.slow_drain_seconds:g} s; they are waited for"
            left = "was loaded anew" if self.states.is_available(servable_id) else "is withdrawn"
            logger.warning("%s %s, and %s: tfs-lite explain %s", servable_id, left, text, servable_id.name)
        else:
            bound = options.slow_unload_seconds if what is Overdue.UNLOAD else options.slow_load_seconds
            text = f"its {what.value} takes longer than {bound:g} s and goes on; others do not wait for it"
        status = Status(StatusCode.DEADLINE_EXCEEDED, text, Reason.OVERDUE)
        self.publish(StepOverdue(servable_id, status))
        if not self.states.is_available(servable_id):
            self.states.remark(servable_id, status)

    def _on_drained(self, servable_id: ServableId) -> None:
        self.publish(Drained(servable_id, self.clock.time()))
        if self.states.remarks(servable_id.name).get(servable_id.version, OK).reason is Reason.OVERDUE:
            self.states.remark(servable_id, None)

    def _on_state(self, timed: TimedState) -> None:
        """Called after each event of the manager, on its publisher's thread, under the bus."""
        event = timed.state
        self.publish(StateChanged(timed))
        if event.state is ManagerState.AVAILABLE:
            self.labels.arrived(event.id)
        self.sources.on_event(event)
        remark = self.states.remarks(event.id.name).get(event.id.version, OK)
        if remark.reason is Reason.OVERDUE and event.state is not ManagerState.LOADING:
            self.states.remark(event.id, None)
        if event.state is ManagerState.AVAILABLE and self.options.follows_changes:  # changed while it was loaded?
            self.clock.call_later(RECHECK_SECONDS, lambda: self.sources.wake({event.id.name}))
        if event.state is ManagerState.END:
            self.journal.forget(event.id)
        self.changes.notify(event.id.name)
