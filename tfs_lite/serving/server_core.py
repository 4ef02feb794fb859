"""The serving core: which models are served, in which state they are, and a handle to each.

Any number of APIs may stand in front of it. It has no event loop and needs none; every method may be called from any
thread, and only :meth:`ServerCore.reload`, :meth:`ServerCore.resize` and the waits block.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry

from tfs_lite.adapters.platforms import check_config
from tfs_lite.adapters.warmup import WarmupReport
from tfs_lite.config.diff import ConfigDiff
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ModelRef, ServableData, ServableId, StoragePath, VersionState, VersionStatus
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.core.status import ServingError, Status, failed_precondition, invalid_argument, not_found
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager, AspiredVersionsManagerOptions
from tfs_lite.managers.labels import VersionLabels
from tfs_lite.managers.policies import POLICIES
from tfs_lite.managers.registry import Done
from tfs_lite.managers.retrier import RetryPolicy
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.metrics.batches import BatchMetrics, BatchStateCollector, WorkerState
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.request_log.sampler import RequestLogs
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.config_follower import ConfigFollower, FollowerEffects, FollowerOptions
from tfs_lite.serving.device_resources import DeviceResources, adapter_settings, may_be_retried
from tfs_lite.serving.load_journal import LoadAttempt, LoadJournal
from tfs_lite.serving.load_waiter import ModelWaiter, WaitResult
from tfs_lite.serving.metrics import GoneModels, LifecycleMetrics, StateCollector
from tfs_lite.serving.model_configs import ModelConfigs
from tfs_lite.serving.model_opener import ModelOpener
from tfs_lite.serving.model_states import ModelReport, ModelStates
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.reload import AppliedButIncomplete, Reloader
from tfs_lite.serving.request_services import RequestServices
from tfs_lite.serving.servable_factory import BatchingOptions, ServableFactory, ServingSettings, worker_states
from tfs_lite.serving.source_chain import SourceChain

if TYPE_CHECKING:
    from tfs_lite.core.replicas import ReplicaReport
    from tfs_lite.serving.cluster.cluster import Cluster, ConnectedEngine

T = TypeVar("T")
logger = logging.getLogger(__name__)


class ServerCore:
    """``start`` -> ``load_first`` -> lookups, queries and ``reload`` from any thread -> ``close``.

    ``changes`` tells of every change of a state, ``states`` what is known about each model, ``sources`` offers versions
    in the control mode explicit, ``services`` has what requests need beside the models.
    """

    def __init__(
        self, options: ServerOptions, registry: CollectorRegistry | None = None, engine: ConnectedEngine | None = None
    ) -> None:
        """``engine`` is the connection to the cluster that the options name, which is closed with the core."""
        self.options = options
        self.registry = registry or CollectorRegistry()
        self.clock = SystemClock()
        # What is known: the manager's events, the attempts to load, the state of each model.
        self.changes = ChangeNotifier()
        self._bus: EventBus[ServableState] = EventBus(self.clock)
        self._monitor = ServableStateMonitor(self._bus)
        self._journal = LoadJournal(self._on_attempt)
        self.states = ModelStates(self._monitor, self._journal, self.changes)
        # What is counted and logged.
        self.request_metrics = RequestMetrics(self.registry, self.states.is_configured)
        self.batch_metrics = BatchMetrics(self.registry, self.request_metrics.tensorflow)
        self.request_logs = RequestLogs(self.clock, self.request_metrics.tensorflow.on_logged)
        self._metrics = LifecycleMetrics(self.registry)
        self._gone = GoneModels()
        self.services = RequestServices(options, self.clock, self.registry, self.states, self._journal, self.handle)
        # What loads, serves and unloads.
        self._resources = DeviceResources.measure(
            options.total_model_memory_limit_bytes, options.per_process_gpu_memory_fraction
        )
        self._manager = self._make_manager()
        self._cluster = self._join(engine)
        self._opener = ModelOpener(options.worker, options.per_process_gpu_memory_fraction, self._cluster)
        self.model_configs = ModelConfigs()
        self._serving_settings = ServingSettings(
            ServableFactory(BatchingOptions.read(options), self.clock, self.services.environment(self.batch_metrics))
        )
        settings = adapter_settings(options, self._serving_settings, self._opener, self._on_warm_up, self.model_configs)
        self._follower = self._make_follower() if options.follows_changes else None
        self.sources = SourceChain(
            options, self._manager, self.states, self._journal, settings, self.clock, self._follower
        )
        # What applies configs.
        self._labels = VersionLabels()
        self._waiter = ModelWaiter(self.states, self.changes, self.clock)
        self._reloader = Reloader(
            options,
            sources=self.sources,
            manager=self._manager,
            labels=self._labels,
            states=self.states,
            waiter=self._waiter,
            logs=self.request_logs,
            clock=self.clock,
            on_applied=self._on_models_changed,
        )
        self._monitor.subscribe(self._on_event)
        self.registry.register(StateCollector(self.models, lambda: self._resources.use(self._journal), self.queues))
        self.registry.register(BatchStateCollector(self._queued_rows, self._workers))

    def _join(self, engine: ConnectedEngine | None) -> Cluster | None:
        options = self.options.cluster_options
        if engine is None or options is None:
            return None
        from tfs_lite.serving.cluster.cluster import Cluster

        fraction = self.options.per_process_gpu_memory_fraction
        return Cluster(engine, self.clock, self.registry, options, fraction, self.wake, self.changes.notify)

    def _make_manager(self) -> AspiredVersionsManager:
        options = self.options
        return AspiredVersionsManager(
            AspiredVersionsManagerOptions(
                clock=self.clock,
                load_executor=PoolExecutor("tfs-load", options.num_load_threads),
                unload_executor=PoolExecutor("tfs-unload", options.num_unload_threads),
                event_bus=self._bus,
                resource_tracker=self._resources.tracker,
                max_num_load_retries=options.max_num_load_retries,
                load_retry_interval=options.load_retry_interval_micros / 1e6,
                should_retry_model_load=may_be_retried,
                policy=POLICIES[options.aspired_version_policy],
            )
        )

    def _make_follower(self) -> ConfigFollower:
        options = self.options
        return ConfigFollower(
            FollowerOptions(
                quiet_period=options.version_quiet_period_seconds,
                beside=options.aspired_version_policy == "availability",
                retry=RetryPolicy(options.max_num_load_retries, options.load_retry_interval_micros / 1e6),
                may_be_retried=may_be_retried,
            ),
            self._manager,
            FollowerEffects(
                read=self.model_configs,
                loaded_with=self._serving_settings.of,
                check=check_config,
                make_loader=lambda item: self.sources.make_loader(item),
                resize=self.resize,
                remark=self.states.remark,
                wake_source=lambda: self.sources.wake(),
                on_replaced=self.services.version_replaced,
                on_given_up=self._give_up_load,
            ),
            self.clock,
        )

    # From start to close.

    def start(self) -> None:
        """Begins to follow the disk, with nothing to serve yet."""
        if self._cluster is not None:
            self._cluster.start()
        self._manager.start()
        self.sources.start()

    def load_first(self, config: ModelServerConfig) -> None:
        """Applies the config of the start and returns at once; :meth:`wait_for_first` waits for its models. Until
        :meth:`end_first_load` more threads load than afterwards."""
        self._manager.set_num_load_threads(max(self.options.num_initial_load_threads, self.options.num_load_threads))
        self._reloader.apply_first(config)

    def wait_for_first(self, *, first_attempt_counts: bool) -> WaitResult:
        """The outcome of every model known at the start; as it stands when the server is closed meanwhile."""
        names = self.states.configured if self.options.looks_at_disk else ()
        return self._waiter.wait(names, None, since=0.0, first_attempt_counts=first_attempt_counts)

    def end_first_load(self) -> None:
        """The models known at the start are available or have failed. From now on as many threads load as the options
        say, and replicas of other models, which an earlier server has left, are ended."""
        if self._cluster is not None and not self.stopping:
            self._cluster.finish_adoption()
        self._manager.set_num_load_threads(self.options.num_load_threads)

    def wait_for_all(self) -> None:
        """Returns when every model of the config is available, or on :meth:`stop_waiting`."""
        self._wait_until(lambda: all(report.available for report in self.models()))

    def wait_for_available(self, names: Iterable[str]) -> None:
        """Returns when each of these models has a version that is available, or on :meth:`stop_waiting`."""
        wanted = list(names)
        self._wait_until(lambda: all(self.available_versions(name) for name in wanted))

    def _wait_until(self, holds: Callable[[], bool]) -> None:
        while not self.stopping:
            count = self.changes.count
            if holds():
                return
            self.changes.wait_since(count, None)

    def stop_waiting(self) -> None:
        """Ends every wait, that of a reload too, and accepts no more configs."""
        self._waiter.close()

    @property
    def stopping(self) -> bool:
        return self._waiter.closed

    def close(self, drain_timeout: float) -> None:
        """Accepts no more configs or versions, waits up to ``drain_timeout`` seconds for live handles, unloads.
        Replicas stay, for the next server of the cluster."""
        self.stop_waiting()
        if self._cluster is not None:
            self._cluster.stop_deciding()
        self.sources.close()
        self.services.close()
        self._manager.close(drain_timeout)
        self._opener.close()
        if self._cluster is not None:
            self._cluster.close()
        self._monitor.close()
        self.request_logs.close()
        self.clock.close()

    # Configs.

    def check(self, config: ModelServerConfig) -> None:
        """Raises if this server could not serve the config."""
        self._reloader.check(config)

    def reload(self, config: ModelServerConfig) -> str:
        """What was applied; see :meth:`Reloader.apply`. FAILED_PRECONDITION where the options say that nothing
        changes."""
        if not self.options.follows_changes:
            mode = self.options.model_control_mode
            how = "by the repository calls of V2 only" if self.options.is_explicit else "not"
            raise failed_precondition(f"the server was started with model_control_mode {mode}: its models change {how}")
        return self._counted(self._reloader.apply, config)

    def follow(self, config: ModelServerConfig) -> None:
        """Applies the config of a watched file or repository; see :meth:`Reloader.follow`."""
        self._counted(self._reloader.follow, config)

    def _counted(self, apply: Callable[[ModelServerConfig], T], config: ModelServerConfig) -> T:
        try:
            result = apply(config)
        except ServingError as error:
            refused = "" if isinstance(error, AppliedButIncomplete) else "config refused, nothing changed: "
            logger.warning("%s%s", refused, str(error))
            self._metrics.on_reload(ok=False)
            raise
        self._metrics.on_reload(ok=True)
        return result

    # Lookups.

    def handle(self, ref: ModelRef) -> ServableHandle:
        """The version that answers: by number, by label, or the latest one available."""
        if not ref.name:
            raise invalid_argument("ModelSpec has no name specified")
        return self._manager.get_servable_handle(ref if ref.label is None else ModelRef(ref.name, self._version(ref)))

    def status(self, ref: ModelRef) -> list[VersionStatus]:
        """Every version of the model, the highest first, or the one asked for. NOT_FOUND if there is none."""
        version, report = self._version(ref), self.states.report(ref.name)
        if version is not None:
            found = [item for item in report.versions if item.version == version]
            if not found:
                raise not_found(f"Could not find version {version} of model {ref.name}")
            return found
        if not report.versions:
            problem = report.problem.message.removeprefix(f"model {ref.name}: ")
            raise not_found(f"Could not find any versions of model {ref.name}{problem and ': '}{problem}")
        return list(report.versions)

    def _version(self, ref: ModelRef) -> int | None:
        return ref.version if ref.label is None else self._labels.resolve(ref.name, ref.label)

    def settings_of(self, servable: Servable) -> ModelSettings:
        """The model config with which a version was loaded."""
        return self._serving_settings.of(servable)

    def resize(self, servable_id: ServableId, settings: ModelSettings) -> ModelSettings | None:
        """Brings a version that answers to the number of instances in ``settings`` without loading it anew. Returns the
        settings it had before; None if that is not possible, and nothing has changed. Raises the loader's error."""
        with self.handle(ModelRef(servable_id.name, servable_id.version)) as handle:
            servable, loader = handle.servable, self._journal.loader(servable_id)
            if loader is None or loader.servable is not servable:
                return None
            before = self._serving_settings.of(servable)
            if not loader.resize(settings):
                return None
            self._serving_settings.changed(servable, settings)
            return before

    def wake(self, servable_id: ServableId) -> None:
        """Tries a load again that waits for room in the cluster, because something has changed there. Any thread,
        cheap; nothing happens to a version that does not wait."""
        self._manager.wake(servable_id)

    def replace(self, item: ServableData[StoragePath], done: Done) -> None:
        """Puts another load of a version that answers in its place, without a gap. ``done`` is called once, on any
        thread; a failure leaves what serves as it is. NOT_FOUND if the version does not answer."""
        with self.handle(ModelRef(item.id.name, item.id.version)) as handle:
            old = weakref.ref(handle.servable)

        def replaced(status: Status) -> None:
            if status.ok:
                self.services.version_replaced(item.id, old)
            else:
                self._give_up_load(item.id)
            done(status)

        data = ServableData.ok(item.id, self.sources.make_loader(item), item.revision)
        self._manager.replace_servable(data, replaced)

    def _give_up_load(self, servable_id: ServableId) -> None:
        if self._cluster is not None:
            self._cluster.give_up(servable_id)

    # Queries about models.

    def models(self) -> list[ModelReport]:
        """Every model of the config, in its order."""
        return self.states.reports()

    def known_models(self) -> list[ModelReport]:
        """Every model of the config and every one that ever had a version, by name."""
        names = {*self.states.configured, *self._monitor.get_all_servable_states()}
        return [self.states.report(name) for name in sorted(names)]

    def availability(self) -> list[tuple[str, list[int], float]]:
        """Of every known model: its name, the versions that answer requests now, and since when one of them does, in
        seconds since 1970 (0: none does)."""
        found = []
        for report in self.known_models():
            states = self._monitor.get_version_states(report.name).items()
            since = {version: at.time for version, at in states if at.state.state is ManagerState.AVAILABLE}
            found.append((report.name, sorted(since), min(since.values(), default=0.0)))
        return found

    def is_model_available(self, name: str) -> bool | None:
        """Whether a version is available that can be asked; None for a model that is not in the config."""
        if not self.states.is_configured(name):
            return None
        versions = self.states.report(name).versions
        available = (version for version in versions if version.state is VersionState.AVAILABLE)
        return any(self.can_be_asked(ServableId(name, version.version)) for version in available)

    def can_be_asked(self, servable_id: ServableId) -> bool:
        """False for a version that is available and has lost all its replicas; it stays available."""
        return self._cluster is None or self._cluster.can_be_asked(servable_id)

    def available_ids(self) -> list[ServableId]:
        """Every version that answers requests now, in order."""
        return self._manager.list_available_servable_ids()

    def available_versions(self, name: str) -> set[int]:
        """The versions of the model that answer requests now."""
        return {item.version for item in self.available_ids() if item.name == name}

    def live_versions(self, name: str) -> set[int]:
        """The versions that have begun and not ended: being loaded, serving, or on their way out."""
        states = self._monitor.get_version_states(name)
        return {version for version, timed in states.items() if timed.state.state is not ManagerState.END}

    def last_attempts(self, name: str) -> dict[int, LoadAttempt]:
        """The last attempt to load each version that has not ended."""
        found = ((v, self._journal.last(ServableId(name, v))) for v in self._monitor.get_version_states(name))
        return {version: attempt for version, attempt in found if attempt is not None}

    def replicas(self) -> Iterable[ReplicaReport]:
        """Of every version that has replicas in a cluster, also while it is loaded."""
        return self._cluster.replicas() if self._cluster else ()

    # Numbers.

    def counter_value(self, name: str) -> float:
        """The first cell of a counter, under TensorFlow Serving's name or ours; 0 if there is no such counter."""
        value = self.request_metrics.tensorflow.counter_value(name)
        if value is not None:
            return value
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name in (name, f"{name}_total"):
                    return sample.value
        return 0.0

    def queues(self) -> Iterator[tuple[ServableId, int]]:
        """How many calls wait for each version that is available."""
        return ((servable_id, servable.pending) for servable_id, servable in self._servables())

    def _queued_rows(self) -> Iterator[tuple[ServableId, int]]:
        return ((servable_id, servable.pending_rows) for servable_id, servable in self._servables())

    def _workers(self) -> Iterator[WorkerState]:
        for servable_id, servable in self._servables():
            yield from worker_states(servable_id, servable)

    def _servables(self) -> Iterator[tuple[ServableId, Servable]]:
        """Every version that is available, each while a handle holds it."""
        for servable_id, handle in self._manager.get_available_servable_handles().items():
            with handle:
                yield servable_id, handle.servable

    # What happens.

    def _on_models_changed(self, difference: ConfigDiff) -> None:
        for name in self._gone.update([m.name for m in difference.added], [m.name for m in difference.removed]):
            self._metrics.model_gone(name)
            self.request_metrics.model_gone(name)
            self.batch_metrics.model_gone(name)
            self.services.model_gone(name)
            if self._cluster is not None:
                self._cluster.model_gone(name)

    def _on_attempt(self, attempt: LoadAttempt) -> None:
        if not attempt.status.waits:
            self._metrics.on_attempt(attempt)
        if attempt.status.ok:
            logger.info("%s loaded in %.2f s", attempt.id, attempt.seconds)
        self.changes.notify()

    def _on_warm_up(self, report: WarmupReport) -> None:
        metrics = self.request_metrics.tensorflow
        metrics.on_warm_up(report.directory, report.status, report.seconds, report.records)

    def _on_event(self, timed: TimedState) -> None:
        """After each event of the manager, on its publisher's thread, under the bus."""
        event = timed.state
        self._metrics.on_event(event)
        self.services.on_event(event)
        if self._follower is not None:
            self._follower.on_event(event)
        if event.state is ManagerState.END:
            self._journal.forget(event.id)
            if self._cluster is not None:
                self._cluster.version_gone(event.id)
            self.request_metrics.version_gone(event.id)
            self.batch_metrics.version_gone(event.id)
        self.changes.notify()
