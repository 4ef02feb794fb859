"""The serving core: which models are served, in which state they are, and a handle to each.

Any number of APIs may stand in front of it. It has no event loop and needs none; every method may be called from any
thread, and only :meth:`ServerCore.reload`, :meth:`ServerCore.resize` and the waits block.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector

from tfs_lite.adapters.memory import MemoryReturn
from tfs_lite.adapters.opening import SeenFiles
from tfs_lite.adapters.platforms import check_config
from tfs_lite.adapters.warmup import WarmupReport
from tfs_lite.config.diff import ConfigDiff
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.executor import Patience, PoolExecutor
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.history import Cause, History, Origin, acting, current_origin
from tfs_lite.core.loader import LoadProgress
from tfs_lite.core.model import Servable
from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.core.servable import (
    DOES_NOT_ANSWER,
    ModelRef,
    ServableData,
    ServableId,
    StoragePath,
    VersionState,
    VersionStatus,
)
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.core.status import (
    OK,
    Reason,
    ServingError,
    Status,
    StatusCode,
    failed_precondition,
    invalid_argument,
    not_found,
)
from tfs_lite.core.threads import JOIN_SECONDS, BoundedCalls, within
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager, AspiredVersionsManagerOptions
from tfs_lite.managers.harness import LEAVING, HarnessState, Overdue
from tfs_lite.managers.labels import Labels, VersionLabels
from tfs_lite.managers.policies import POLICIES
from tfs_lite.managers.registry import Done
from tfs_lite.managers.retrier import RetryPolicy
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.managers.survey import ManagerView
from tfs_lite.metrics.batches import BatchMetrics, BatchStateCollector, WorkerState
from tfs_lite.metrics.failed_requests import FailedRequests
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.request_log.sampler import RequestLogs
from tfs_lite.schedulers.ensemble.models import model_text
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.config_sources import RefusedConfig
from tfs_lite.serving.device_resources import DeviceResources, adapter_settings, may_be_retried
from tfs_lite.serving.history.file import EventFile
from tfs_lite.serving.history.memory import MemoryAccounts, VersionMemory
from tfs_lite.serving.history.metrics import EventMetrics, HistoryCollector
from tfs_lite.serving.history.recorder import Recorder
from tfs_lite.serving.load_journal import LoadAttempt, LoadJournal
from tfs_lite.serving.load_waiter import ModelWaiter, WaitResult
from tfs_lite.serving.metrics import GoneModels, LifecycleMetrics, ResourceUse, StateCollector
from tfs_lite.serving.model_configs import ModelConfigs
from tfs_lite.serving.model_opener import ModelOpener
from tfs_lite.serving.model_states import Answering, ModelReport, ModelStates
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.reload import AppliedButIncomplete, Reloader
from tfs_lite.serving.request_services import RequestServices
from tfs_lite.serving.servable_factory import BatchingOptions, ServableFactory, ServingSettings, worker_states
from tfs_lite.serving.source_chain import SourceChain
from tfs_lite.serving.version_follower import (
    RECHECK_SECONDS,
    FollowerEffects,
    FollowerOptions,
    LoadedAs,
    VersionFollower,
)
from tfs_lite.serving.what_if.forecast import WhatIf
from tfs_lite.serving.what_if.preview import Inside, Preview

if TYPE_CHECKING:
    from tfs_lite.core.replicas import ReplicaReport
    from tfs_lite.serving.cluster.cluster import Cluster, ConnectedEngine

T = TypeVar("T")
MOST_OVERDUE = 4
"""Loads, and unloads, that may take too long at a time and have others run in their place."""
ANSWERING_AGE = 1.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Burden:
    """A version that is available: how many calls wait, what every further one would be answered at once (None: that
    depends), and its workers."""

    pending: int
    refusal: Status | None
    workers: tuple[WorkerState, ...]


@dataclass(frozen=True, slots=True)
class StandingRefusal:
    """A config file or repository that is not in force, and since when the server has known that, in seconds since
    1970."""

    config: RefusedConfig
    since: float


class ServerCore:
    """``start`` -> ``load_first`` -> lookups, queries and ``reload`` from any thread -> ``close``.

    ``changes`` tells of every change of a state, ``states`` what is known about each model, ``sources`` offers versions
    in the control mode explicit, ``disk_calls`` bounds what asks a disk on a thread that others need,
    ``refused_models`` are those of a repository that cannot be served, ``services`` has what requests need beside the
    models, ``failed_requests`` the last ones that have failed.
    """

    def __init__(
        self, options: ServerOptions, registry: CollectorRegistry | None = None, engine: ConnectedEngine | None = None
    ) -> None:
        """``engine`` is the connection to the cluster that the options name, which is closed with the core."""
        self.options = options
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry = registry
        self.clock = SystemClock()
        self.disk_calls = BoundedCalls(options.disk_timeout_seconds)
        self._forecasts = BoundedCalls(max(options.reload_timeout_seconds, options.disk_timeout_seconds), 1)
        self.history = History(self.clock.time)
        # What is known: the manager's events, the attempts to load, the state of each model.
        self.changes = ChangeNotifier()
        self._bus: EventBus[ServableState] = EventBus(self.clock)
        self._monitor = ServableStateMonitor(self._bus)
        self._journal = LoadJournal(self._on_attempt)
        self.states = ModelStates(self._monitor, self._journal, self.changes, self.clock, self.silence)
        self._memory = MemoryReturn(self.clock)
        self._accounts = MemoryAccounts(
            lambda servable_id, leaked: self._recorder.on_leak(servable_id, leaked), memory=self._memory
        )
        self._recorder = Recorder(self.history, self._accounts, self.states.is_configured)
        # What is counted and logged.
        self.request_metrics = RequestMetrics(self.registry, self.states.is_configured)
        self.failed_requests = FailedRequests(self.clock.time, self.states.is_configured)
        self.request_metrics.on_failure(self.failed_requests.note)
        self.batch_metrics = BatchMetrics(self.registry, self.request_metrics.tensorflow)
        self.request_logs = RequestLogs(self.clock, self.request_metrics.tensorflow.on_logged)
        self._metrics = LifecycleMetrics(self.registry)
        self._gone = GoneModels()
        self.services = RequestServices(options, self.clock, self.registry, self.states, self._journal, self.handle)
        # What loads, serves and unloads.
        self._resources = DeviceResources.measure(options)
        self._manager = self._make_manager()
        self._cluster = self._join(engine)
        self._opener = ModelOpener(
            options.worker,
            options.per_process_gpu_memory_fraction,
            self._cluster,
            self._on_worker,
            options.worker_sandbox,
            options.saved_model_tags,
        )
        self.model_configs = ModelConfigs()
        self._refused: StandingRefusal | None = None
        self._answering: tuple[int, float, Answering] | None = None  # changes, time; replaced as a whole
        self.refused_models: Mapping[str, Status] = {}
        batching = BatchingOptions.read(options)
        self._serving_settings = ServingSettings(
            ServableFactory(batching, self.clock, self.services.environment(self.batch_metrics))
        )
        settings = adapter_settings(
            options, self._serving_settings, self._opener, self._on_warm_up, self.model_configs, batching.batch_rows
        )
        self._follower = self._make_follower() if options.follows_changes else None
        self.sources = SourceChain(
            options,
            self._manager,
            self.states,
            self._journal,
            self._recorder,
            self._accounts,
            settings,
            self.clock,
            self._follower,
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
            recorder=self._recorder,
            clock=self.clock,
            on_applied=self._on_models_changed,
        )
        self._preview = Preview(
            options,
            self._reloader,
            self.sources,
            self._manager,
            self._resources.tracker,
            Inside(self.request_metrics.in_flight, self.services.routes.live),
        )
        self._monitor.subscribe(self._on_event)
        self.registry.register(
            StateCollector(
                self.models,
                self.device_memory,
                self.queues,
                self.can_be_asked,
                self.states.state_seconds,
                self.hanging,
                self.draining,
            )
        )
        self.registry.register(BatchStateCollector(self._queued_rows, self.workers))
        self.registry.register(
            HistoryCollector(
                self._accounts, self._dropped_events, lambda: self.states.configured, self._memory.collections
            )
        )
        self._event_metrics = EventMetrics(self.registry)
        self.history.listen(self._event_metrics.on_event)
        self._event_file = self._open_event_file()

    def _open_event_file(self) -> EventFile | None:
        """Restores what an earlier server has left there."""
        if not self.options.state_directory:
            return None
        file = EventFile(self.options.state_directory)
        self.history.restore(file.read())
        file.start()
        self.history.listen(file.write)
        return file

    def _dropped_events(self) -> dict[str, int]:
        file = {"file": self._event_file.dropped} if self._event_file is not None else {}
        return {"memory": self.history.dropped, **file}

    def _join(self, engine: ConnectedEngine | None) -> Cluster | None:
        options = self.options.cluster_options
        if engine is None or options is None:
            return None
        from tfs_lite.serving.cluster.cluster import Cluster

        fraction = self.options.per_process_gpu_memory_fraction
        return Cluster(
            engine,
            self.clock,
            self.registry,
            options,
            fraction,
            self.wake,
            self.changes.notify,
            self._recorder.on_worker,
        )

    def _make_manager(self) -> AspiredVersionsManager:
        options = self.options
        return AspiredVersionsManager(
            AspiredVersionsManagerOptions(
                clock=self.clock,
                load_executor=PoolExecutor(
                    "tfs-load", options.num_load_threads, Patience(options.slow_load_seconds, MOST_OVERDUE, self.clock)
                ),
                unload_executor=PoolExecutor(
                    "tfs-unload",
                    options.num_unload_threads,
                    Patience(options.slow_unload_seconds, MOST_OVERDUE, self.clock),
                ),
                event_bus=self._bus,
                resource_tracker=self._resources.tracker,
                max_num_load_retries=options.max_num_load_retries,
                load_retry_interval=options.load_retry_interval_micros / 1e6,
                should_retry_model_load=may_be_retried,
                policy=POLICIES[options.aspired_version_policy],
                on_parked=self._recorder.on_parked,
                on_overdue=self._on_overdue,
                on_drained=self._on_drained,
                drain_patience=options.slow_drain_seconds,
            )
        )

    def _make_follower(self) -> VersionFollower:
        options = self.options
        return VersionFollower(
            FollowerOptions(
                quiet_period=options.version_quiet_period_seconds,
                beside=options.aspired_version_policy == "availability",
                retry=RetryPolicy(options.max_num_load_retries, options.load_retry_interval_micros / 1e6),
                may_be_retried=may_be_retried,
            ),
            self._manager,
            FollowerEffects(
                read=lambda directory, model: self.disk_calls.call(
                    f"the config of model {model}", lambda: self.model_configs(directory, model)
                ),
                loaded_as=self._loaded_as,
                state_of=lambda directory, settings: self.disk_calls.call(
                    f"the version at {os.path.basename(directory)}", lambda: SeenFiles.look(directory, settings).state
                ),
                check=lambda directory, settings: self.disk_calls.call(
                    f"the version at {os.path.basename(directory)}", lambda: check_config(directory, settings)
                ),
                make_loader=lambda item: self.sources.make_loader(item),
                resize=self.resize,
                remark=self.states.remark,
                wake_source=lambda: self.sources.wake(),
                on_replaced=self._on_replaced,
                on_given_up=self._give_up_load,
            ),
            self.clock,
        )

    def _loaded_as(self, servable: Servable) -> LoadedAs:
        files = self._serving_settings.files_of(servable)
        return LoadedAs(self._serving_settings.of(servable), files.state if files is not None else "")

    # From start to close.

    def start(self) -> None:
        """Begins to follow the disk, with nothing to serve yet."""
        self._recorder.started({"version": version_of("tfs-lite"), "pid": os.getpid()})
        if self._cluster is not None:
            self._cluster.start()
        self._memory.start()
        self._manager.start()
        self.sources.start()

    def load_first(self, config: ModelServerConfig) -> None:
        """Applies the config of the start and returns at once; :meth:`wait_for_first` waits for its models. Until
        :meth:`end_first_load` more threads load than afterwards."""
        self._manager.set_num_load_threads(max(self.options.num_initial_load_threads, self.options.num_load_threads))
        with acting(Origin(Cause.START)):
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
        missing = ""  # the first model that was not available

        def is_available(name: str) -> bool:
            return self.states.report(name).available

        def holds() -> bool:
            nonlocal missing
            if missing and self.states.is_configured(missing) and not is_available(missing):
                return False
            missing = next((name for name in self.states.configured if not is_available(name)), "")
            return not missing

        self._wait_until(holds)

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
        Replicas stay, for the next server of the cluster. Every other wait has a bound too; what has not ended then is
        left behind (:func:`tfs_lite.core.threads.left_behind`)."""
        self.stop_waiting()
        self._recorder.stopping(Origin(Cause.SHUTDOWN))
        if self._cluster is not None:
            self._cluster.stop_deciding()
        self.sources.close()
        within(JOIN_SECONDS, "tfs-services", self.services.close)
        self._memory.close()
        self._manager.close(drain_timeout)
        within(JOIN_SECONDS, "tfs-workers", self._opener.close)
        if self._cluster is not None:
            within(JOIN_SECONDS, "tfs-cluster", self._cluster.close)
        self._monitor.close()
        if self._event_file is not None:
            within(JOIN_SECONDS, "tfs-events", self._event_file.close)
        within(JOIN_SECONDS, "tfs-request-log", self.request_logs.close)
        self.clock.close()

    # Configs.

    def check(self, config: ModelServerConfig) -> None:
        """Raises if this server could not serve the config."""
        self._reloader.check(config)

    def reload(self, config: ModelServerConfig) -> str:
        """What was applied; see :meth:`Reloader.apply`. FAILED_PRECONDITION where the options say that nothing
        changes."""
        self._require_following()
        with acting(current_origin() or Origin(Cause.OPERATOR)):
            return self._counted(self._reloader.apply, config)

    def follow(self, config: ModelServerConfig) -> None:
        """Applies the config of a watched file or repository; see :meth:`Reloader.follow`."""
        self._counted(self._reloader.follow, config, is_logged=False)

    def look_again(self) -> None:
        """The source looks at its directories now, on its own thread. FAILED_PRECONDITION where the options say that
        nothing changes."""
        self._require_following()
        self.sources.wake()

    def config_refused(self, status: Status, model: str = "") -> None:
        """A config was refused before it got here: a reload that failed. ``model``: the one that a call wanted to load;
        that is no reload."""
        if not model:
            self._metrics.on_reload(ok=False)
        self._recorder.config_refused(status, model)

    def config_looked_at(self, refused: RefusedConfig | None) -> None:
        """After each look at the config file or the repository: why what it says is not in force; None: it is. One
        thread at a time."""
        before = self._refused
        if refused != (before.config if before is not None else None):
            since = before.since if before is not None else self.clock.time()
            self._refused = StandingRefusal(refused, since) if refused is not None else None
            self.changes.notify()

    @property
    def refused_config(self) -> StandingRefusal | None:
        """The config file or repository that is not in force, until it is corrected; None: it is, or none is
        followed."""
        return self._refused

    def repository_refuses(self, models: Mapping[str, Status]) -> None:
        """Which models of the repository are not served and why, by name, until it is told anew. One thread."""
        self.refused_models = models
        self.changes.notify()

    def what_if(self, config: ModelServerConfig) -> WhatIf:
        """What a reload of this config would change, without changing it; see :meth:`Preview.config`. Reads the
        disk."""
        self._require_following()
        return self._forecasts.call("the forecast", lambda: self._preview.config(config))

    def what_if_published(self, name: str, version: int | None, directory: str) -> WhatIf:
        """What would change if these files were published; see :meth:`Preview.published`. Reads the disk."""
        self._require_following()
        return self._forecasts.call("the forecast", lambda: self._preview.published(name, version, directory))

    def _require_following(self) -> None:
        """FAILED_PRECONDITION where the options say that neither configs nor the disk are followed."""
        if not self.options.follows_changes:
            mode = self.options.model_control_mode
            how = "by the repository calls of V2 only" if self.options.is_explicit else "not"
            raise failed_precondition(f"the server was started with model_control_mode {mode}: its models change {how}")

    def _counted(
        self, apply: Callable[[ModelServerConfig], T], config: ModelServerConfig, *, is_logged: bool = True
    ) -> T:
        """With ``is_logged=False`` the caller logs a refusal: it tries again at each look, and logs each cause once."""
        try:
            result = apply(config)
        except ServingError as error:
            refused = "" if isinstance(error, AppliedButIncomplete) else "config refused, nothing changed: "
            if is_logged:
                logger.warning("%s%s", refused, str(error))
            self._metrics.on_reload(ok=False)
            if refused:
                self._recorder.config_refused(error.status)
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

    @property
    def labels(self) -> Labels:
        """Every label of every model."""
        return self._labels.table

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
                self._on_replaced(item.id, old)
            else:
                self._give_up_load(item.id)
            done(status)

        self._recorder.wanted_anew(item.id)
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

    def answering(self) -> Answering:
        """Of the models that are to be served: which have a version that can be asked. One that a call has unloaded is
        not to be served; one that could not be loaded at the start is. Probes ask often, so that the answer is kept
        until a state changes, a second at most."""
        changes, now = self.changes.count, self.clock.monotonic()
        known = self._answering
        if known is None or known[0] != changes or now - known[1] > ANSWERING_AGE:
            names = dict.fromkeys((*self.states.configured, *self._asked_at_start()))
            found = {name: self.states.version_states(name).values() for name in names}
            wanted = [name for name, events in found.items() if self._is_to_answer(name, events)]
            silent = [name for name in wanted if not any(map(self._answers, found[name]))]
            known = self._answering = changes, now, Answering(len(wanted), tuple(silent))
        return known[2]

    def _answers(self, event: TimedState) -> bool:
        return _is_available(event) and self.can_be_asked(event.state.id)

    def _asked_at_start(self) -> Iterable[str]:
        """By ``--load_model``: a model that could not be loaded is not in the config."""
        names = self.options.load_model
        return self._monitor.get_all_servable_states() if "*" in names else names

    def _is_to_answer(self, name: str, events: Iterable[TimedState]) -> bool:
        if not self.options.is_explicit or self.states.aspired(name):
            return True
        return any(not event.state.health.ok for event in events)

    def is_model_available(self, name: str) -> bool | None:
        """Whether a version is available that can be asked; None for a model that is not in the config."""
        if not self.states.is_configured(name):
            return None
        versions = self.states.report(name).versions
        available = (version for version in versions if version.state is VersionState.AVAILABLE)
        return any(self.can_be_asked(ServableId(name, version.version)) for version in available)

    def can_be_asked(self, servable_id: ServableId) -> bool:
        """False for a version that is available and refuses every request; it stays available."""
        return self.silence(servable_id).ok

    def silence(self, servable_id: ServableId) -> Status:
        """Why a version that is available refuses every request: none of its workers is up, or the model of a step
        is missing or is silent itself (``models`` names these). OK for every other. Any thread, cheap."""
        return self._silence(servable_id, {servable_id})

    def _silence(self, servable_id: ServableId, seen: set[ServableId]) -> Status:
        """``seen``: the versions that were looked at before, so that each is looked at once."""
        try:
            handle = self._manager.get_servable_handle(ModelRef(servable_id.name, servable_id.version))
        except ServingError:
            return OK  # it is not available, and its state says so
        with handle:
            workers = tuple(worker_states(servable_id, handle.servable))
            composing = handle.servable.traits.composing
        if self._cluster is not None and not self._cluster.can_be_asked(servable_id):
            return Status(StatusCode.UNAVAILABLE, f"{DOES_NOT_ANSWER}: none of its replicas in the cluster is up")
        if workers and not any(worker.up for worker in workers):
            return Status(StatusCode.UNAVAILABLE, f"{DOES_NOT_ANSWER}: {_why_down(workers)}")
        silent = {name: why for name, version in composing if (why := self._why_silent(name, version, seen))}
        if silent:
            text = f"{DOES_NOT_ANSWER}: {'; '.join(silent.values())}"
            return Status(StatusCode.UNAVAILABLE, text, Reason.WAITS_FOR_MODELS, tuple(silent))
        return OK

    def _why_silent(self, name: str, version: int | None, seen: set[ServableId]) -> str:
        """In words, of the model of a step; empty if it answers."""
        try:
            with self._manager.get_servable_handle(ModelRef(name, version)) as handle:
                found = handle.id
        except ServingError:
            return f"{model_text((name, version))} of its steps is not available"
        if found in seen:
            return ""
        seen.add(found)
        why = self._silence(found, seen)
        return "" if why.ok else f"{model_text((name, version))} of its steps {why.message.removeprefix('it ')}"

    def available_ids(self) -> list[ServableId]:
        """Every version that answers requests now, in order."""
        return self._manager.list_available_servable_ids()

    def available_versions(self, name: str) -> set[int]:
        """The versions of the model that answer requests now."""
        return self._manager.available_versions(name)

    def live_versions(self, name: str) -> set[int]:
        """The versions that have begun and not ended: being loaded, serving, or on their way out."""
        states = self._monitor.get_version_states(name)
        return {version for version, timed in states.items() if timed.state.state is not ManagerState.END}

    def last_attempts(self, name: str) -> dict[int, LoadAttempt]:
        """The last attempt to load each version that has not ended."""
        found = ((v, self._journal.last(ServableId(name, v))) for v in self._monitor.get_version_states(name))
        return {version: attempt for version, attempt in found if attempt is not None}

    def load_progress(self, servable_id: ServableId) -> LoadProgress | None:
        """How far the load of the version is, also of one that is loaded beside itself, and the check of its digests
        before; None while nothing is done for it, or where its loader cannot tell."""
        return self._journal.progress(servable_id) or self.sources.checking().get(servable_id)

    def loads(self) -> dict[ServableId, LoadProgress]:
        """How far every load is that :meth:`load_progress` could tell of."""
        return self.sources.checking() | self._journal.running()

    def replicas(self) -> Iterable[ReplicaReport]:
        """Of every version that has replicas in a cluster, also while it is loaded."""
        return self._cluster.replicas() if self._cluster else ()

    def memory(self, name: str) -> tuple[VersionMemory, ...]:
        """The byte account of every version of the model that is in memory, and of the latest that were; the highest
        version first."""
        return self._accounts.of(name)

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

    def device_memory(self) -> list[ResourceUse]:
        """What the versions in memory hold on each device, as their loaders estimate it, and what there is."""
        return list(self._resources.use(self._journal))

    def queues(self, names: Collection[str] | None = None) -> Iterator[tuple[ServableId, int]]:
        """How many calls wait for each version that is available, or for those of these models."""
        return ((servable_id, servable.pending) for servable_id, servable in self._servables(names))

    def burdens(self, name: str | None = None) -> Iterator[tuple[ServableId, Burden]]:
        """How every version that is available, or those of one model, fare under their requests."""
        for servable_id, servable in self._servables(None if name is None else (name,)):
            workers = tuple(worker_states(servable_id, servable))
            yield servable_id, Burden(servable.pending, servable.refusal(None), workers)

    def workers(self, name: str | None = None) -> Iterator[WorkerState]:
        """Of every instance that answers requests, or of those of one model, then of those that answer their last."""
        for servable_id, servable in self._servables(None if name is None else (name,)):
            yield from worker_states(servable_id, servable)
        for handle in self._manager.get_leaving_servable_handles(name):
            with handle:
                yield from worker_states(handle.id, handle.servable, drains=True)

    def hanging(self) -> Iterator[tuple[str, str, float]]:
        """What takes longer than its bound: the model, ``disk``, ``load``, ``drain`` or ``unload``, and for how many
        seconds it has gone on."""
        for name, seconds in self.sources.hanging().items():
            yield name, "disk", seconds
        for servable_id, view in self.survey().versions.items():
            if view.state.is_overdue:
                timed = self.states.version_states(servable_id.name).get(servable_id.version)
                state = view.state.state
                what = "drain" if state is HarnessState.QUIESCING else "unload" if state in LEAVING else "load"
                yield servable_id.name, what, max(self.clock.time() - timed.time, 0.0) if timed is not None else 0.0

    def draining(self) -> Iterator[tuple[ServableId, int]]:
        """How many requests and sequences each version waits for that was withdrawn, or replaced by another load."""
        return ((servable_id, view.leaving) for servable_id, view in self.survey().versions.items() if view.leaving)

    def survey(self) -> ManagerView:
        """Every version that the manager has, and what each of them waits for."""
        return self._manager.survey()

    @property
    def memory_total(self) -> ResourceAllocation:
        """The memory of the devices, as far as models may have it."""
        return self._resources.tracker.total

    @property
    def memory_beside_models(self) -> str:
        """What keeps models from having all of a container's memory, in words; empty without a limit."""
        return self._resources.tracker.beside_models

    def _queued_rows(self) -> Iterator[tuple[ServableId, int]]:
        return ((servable_id, servable.pending_rows) for servable_id, servable in self._servables())

    def _servables(self, names: Collection[str] | None = None) -> Iterator[tuple[ServableId, Servable]]:
        """Every version that is available, or those of these models, each while a handle holds it."""
        for servable_id, handle in self._manager.get_available_servable_handles(names).items():
            with handle:
                yield servable_id, handle.servable

    # What happens.

    def _on_models_changed(self, difference: ConfigDiff) -> None:
        for model in difference.added:
            self._metrics.model_added(model.name)
            self.request_metrics.model_added(model.name)
        for name in self._gone.update([m.name for m in difference.added], [m.name for m in difference.removed]):
            self._metrics.model_gone(name)
            self.request_metrics.model_gone(name)
            self.batch_metrics.model_gone(name)
            self._event_metrics.model_gone(name)
            self._accounts.model_gone(name)
            self.services.model_gone(name)
            if self._cluster is not None:
                self._cluster.model_gone(name)

    def _on_replaced(self, servable_id: ServableId, old: Callable[[], Any]) -> None:
        self.services.version_replaced(servable_id, old)
        self._recorder.on_replaced(servable_id)

    def _on_worker(self, servable_id: ServableId, cause: str | None) -> None:
        self._recorder.on_worker(servable_id, cause)
        self.changes.notify(servable_id.name)

    def _on_attempt(self, attempt: LoadAttempt) -> None:
        self._recorder.on_attempt(attempt)
        if not attempt.status.waits:
            self._metrics.on_attempt(attempt)
            if not attempt.status.ok:
                self.sources.on_failed_attempt(attempt.id)
        if attempt.status.ok:
            logger.info("%s loaded in %.2f s", attempt.id, attempt.seconds)
        self.changes.notify(attempt.id.name)

    def _on_overdue(self, servable_id: ServableId, what: Overdue) -> None:
        """A load beside a version that serves is one too, and so are the last requests of what was replaced; they say
        nothing about that."""
        options = self.options
        if what is Overdue.DRAIN:
            text = f"requests inside it go on for longer than {options.slow_drain_seconds:g} s; they are waited for"
            logger.warning("%s is withdrawn, and %s: tfs-lite explain %s", servable_id, text, servable_id.name)
        else:
            bound = options.slow_unload_seconds if what is Overdue.UNLOAD else options.slow_load_seconds
            text = f"its {what.value} takes longer than {bound:g} s and goes on; others do not wait for it"
        status = Status(StatusCode.DEADLINE_EXCEEDED, text, Reason.OVERDUE)
        self._recorder.on_overdue(servable_id, status)
        if not self.states.is_available(servable_id):
            self.states.remark(servable_id, status)

    def _on_drained(self, servable_id: ServableId) -> None:
        self._recorder.on_drained(servable_id, self.clock.time())
        if self.states.remarks(servable_id.name).get(servable_id.version, OK).reason is Reason.OVERDUE:
            self.states.remark(servable_id, None)

    def _on_warm_up(self, report: WarmupReport) -> None:
        metrics = self.request_metrics.tensorflow
        metrics.on_warm_up(report.directory, report.status, report.seconds, report.records)

    def _on_event(self, timed: TimedState) -> None:
        """After each event of the manager, on its publisher's thread, under the bus."""
        event = timed.state
        self._recorder.on_state(timed)
        self._metrics.on_event(event)
        self.services.on_event(event)
        self.sources.on_event(event)
        if self._follower is not None:
            self._follower.on_event(event)
        remark = self.states.remarks(event.id.name).get(event.id.version, OK)
        if remark.reason is Reason.OVERDUE and event.state is not ManagerState.LOADING:
            self.states.remark(event.id, None)
        if event.state in (ManagerState.AVAILABLE, ManagerState.END) and self.options.follows_changes:
            self.clock.call_later(RECHECK_SECONDS, lambda: self.sources.wake({event.id.name}))
        if event.state is ManagerState.AVAILABLE:
            if self._cluster is not None:
                self._cluster.version_back(event.id)
            self.request_metrics.version_back(event.id)
            self.batch_metrics.version_back(event.id)
        if event.state is ManagerState.END:
            self._journal.forget(event.id)
            if self._cluster is not None:
                self._cluster.version_gone(event.id)
            self.request_metrics.version_gone(event.id)
            self.batch_metrics.version_gone(event.id)
        self.changes.notify(event.id.name)


def _is_available(event: TimedState) -> bool:
    return event.state.state is ManagerState.AVAILABLE


def _why_down(workers: Sequence[WorkerState]) -> str:
    """``workers``: all that a version has; none is up."""
    first = next((worker for worker in workers if worker.failure), workers[0])
    what = "its process" if len(workers) == 1 else f"each of its {len(workers)} processes"
    text = f"{what} ended ({first.cause or 'the cause is not known yet'})"
    if first.failure:
        return f"{text} and could not be started again: {first.failure}"
    return f"{text} and is being started again"
