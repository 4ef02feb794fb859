"""The cluster as this server sees it: what connects to it, what keeps its replicas, and what opens versions in them.

    connect -> Cluster.start -> open (loaders)* -> first_load_ended -> stopping -> close

The engine starts and ends processes, the reconciler says which. A server that stops leaves its replicas: the next one
adopts them, or they end by themselves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tfs_lite.adapters.failures import label_of
from tfs_lite.adapters.memory import bytes_to_reserve
from tfs_lite.adapters.opening import OpenRequest, Platform
from tfs_lite.adapters.remote import OPEN_VERSION, describe
from tfs_lite.cluster.metrics import ClusterCollector, ClusterReport, ReplicaMetrics
from tfs_lite.cluster.replicas.engine import CPUS, GPUS, ClusterEngine, ClusterNode, VersionKey
from tfs_lite.cluster.replicas.generation import generation_of
from tfs_lite.cluster.replicas.helper import HelperEngine
from tfs_lite.cluster.replicas.near import ReplicaModel
from tfs_lite.cluster.replicas.placement import requirements_of
from tfs_lite.cluster.replicas.reconciler import Reconciler, ReplicaPlace
from tfs_lite.cluster.replicas.reports import ReplicaCounter, cluster_report, replica_report
from tfs_lite.cluster.replicas.states import ReplicaEvent, VersionReplicas
from tfs_lite.cluster.replicas.tls import Tls, TlsKeys
from tfs_lite.cluster.replicas.transfer import OfferedFiles, deliver
from tfs_lite.cluster.versions import ReplicatedVersion
from tfs_lite.config.replicas import ClusterOptions, ReplicaOptions
from tfs_lite.config.server_files import read_ssl_config
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.executor import PoolExecutor, Task
from tfs_lite.core.servable import DOES_NOT_ANSWER, ServableId
from tfs_lite.core.state import ManagerState, ReplicaReport
from tfs_lite.core.status import OK, ServingError, Status, StatusCode, failed_precondition, status_of
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.lifecycle_events import LifecycleEvent, LoadGivenUp, ModelGone, StateChanged, WorkerChanged
from tfs_lite.workers.connection import RemoteModel
from tfs_lite.workers.request_channel import RequestChannel

CPU, GPU = "cpu", "cuda:0"
"""A replica with a GPU sees no other one."""
BESIDE = "+"
"""The end of the generation of a version that is loaded next to itself, with nothing changed but its number of
replicas."""
MAX_NICE_NODES = 1000
"""The most nodes of which it is said that their replicas are nice."""
NICE = (
    "replicas on node %s run with niceness %d: beside other work they hardly get a processor. Start Ray there with "
    "RAY_worker_niceness=0; it is 15 otherwise"
)
logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore


class ConnectedEngine(ClusterEngine, Protocol):
    """An engine with an end. ``restarts``: how often what connects it to the cluster was started again."""

    @property
    def restarts(self) -> int: ...

    def close(self) -> None:
        """Leaves the cluster. The replicas stay."""


def connect(options: ClusterOptions) -> ConnectedEngine:
    """Reaches the cluster that the options name. UNAVAILABLE if that is not possible within 30 seconds;
    FAILED_PRECONDITION if it has other versions, or another server leads its name; INVALID_ARGUMENT for a file of keys
    that says too little."""
    settings: dict[str, object] = {"cache_dir": options.cache_dir, "cache_bytes": options.cache_bytes}
    if (keys := _keys(options)) is not None:
        settings["tls"] = keys.plain
    return HelperEngine.connect(options, settings)


def join(core: ServerCore, options: ClusterOptions) -> Cluster:
    """The cluster that the options name; see :func:`connect`."""
    engine = connect(options)
    try:
        return Cluster(core, options, engine)
    except BaseException:
        engine.close()
        raise


def _keys(options: ClusterOptions) -> TlsKeys | None:
    """The keys for connections between hosts; None if these go without TLS."""
    return TlsKeys.of(read_ssl_config(options.ssl_config_file)) if options.ssl_config_file else None


class Cluster(Feature):
    """Versions that live in replicas on other machines. Threads: any."""

    def __init__(self, core: ServerCore, options: ClusterOptions, engine: ConnectedEngine) -> None:
        """``engine`` is closed with the core. Raises UNAVAILABLE if the cluster does not answer."""
        self._core = core
        self._engine = engine
        self._options = options
        keys = _keys(options)
        self._tls = None if keys is None else Tls(keys)
        self._gpu_fraction = core.options.per_process_gpu_memory_fraction
        self._first_nodes = engine.nodes()
        self._executor = PoolExecutor("tfs-replicas", 1)
        self._metrics = ReplicaMetrics(core.registry)
        self._count = ReplicaCounter(self._metrics)
        self._reconciler = Reconciler(engine, core.clock, self._executor, self._on_event)
        self._lock = threading.Lock()  # guards what follows
        self._nice_nodes: set[str] = set()
        self._versions: dict[VersionKey, ReplicatedVersion] = {}
        core.registry.register(ClusterCollector(self.replicas, self._report))

    def start(self) -> None:
        self._reconciler.start()

    def first_load_ended(self) -> None:
        """Ends what an earlier server has left of other models."""
        self._reconciler.finish_adoption()

    def stopping(self) -> None:
        """Leaves replicas as they are from now on, whatever is closed here."""
        self._reconciler.close()

    def close(self) -> None:
        self._executor.shutdown()
        self._engine.close()

    def replicas(self) -> list[ReplicaReport]:
        """The replicas of every version that wants any."""
        with self._lock:
            versions = list(self._versions.values())
        return [replica_report(version.status(), version.ongoing()) for version in versions if not version.ended]

    def silence(self, id: ServableId) -> Status:
        """The status of a version of which no replica is up, although it wants some."""
        wanting = [version.status() for version in self._of(id) if version.is_open]
        if not wanting or any(status.up for status in wanting):
            return OK
        return Status(StatusCode.UNAVAILABLE, f"{DOES_NOT_ANSWER}: none of its replicas in the cluster is up")

    def _on_event(self, event: ReplicaEvent) -> None:
        self._count(event)
        self._core.changes.notify()

    def _report(self) -> ClusterReport:
        return cluster_report(self._reconciler.status(), self._reconciler.leads, self._engine.restarts)

    def on_event(self, event: LifecycleEvent) -> None:
        match event:
            case StateChanged(timed) if timed.state.state is ManagerState.AVAILABLE:
                self._metrics.version_back(timed.state.id)
            case StateChanged(timed) if timed.state.state is ManagerState.END:
                self._give_up(timed.state.id)
                self._metrics.version_gone(timed.state.id)
            case LoadGivenUp(servable_id):
                self._give_up(servable_id)
            case ModelGone(name):
                self._metrics.model_gone(name)

    def _give_up(self, servable_id: ServableId) -> None:
        """Ends all attempts to load the version. What waits for room is given back, without waiting for what it takes
        to close it; what serves goes on."""
        for version in self._of(servable_id):
            if not version.is_open:
                version.withdraw()
                self._executor.submit(Task("give up replicas", lambda: True, version.close, ignore))

    # What loaders ask.

    def open(self, platform: Platform, request: OpenRequest, replicas: ReplicaOptions) -> Sequence[ReplicaModel]:
        """Opens the instances of a version, or, with ``request.beside``, more of them.

        What is raised leaves nothing behind, but a version that waits for room goes on waiting until the next attempt,
        or until it is given up."""
        if platform.home == "server" or platform.open is None:
            raise ServingError(StatusCode.UNIMPLEMENTED, f'platform {platform.name} does not run with worker: "ray"')
        if request.settings.model_transaction_policy.decoupled:
            raise ServingError(StatusCode.UNIMPLEMENTED, 'a decoupled model does not run with worker: "ray" yet')
        if request.beside:
            return self._opened(platform, request).grow(replicas.count)
        version = self._version(platform, request, replicas)
        try:
            return version.wait_open()
        except BaseException as error:
            if not status_of(error).waits:
                version.close()
            raise

    def _of(self, servable_id: ServableId) -> list[ReplicatedVersion]:
        with self._lock:
            self._versions = {key: version for key, version in self._versions.items() if not version.ended}
            return [
                version for key, version in self._versions.items() if key[:2] == (servable_id.name, servable_id.version)
            ]

    def _opened(self, platform: Platform, request: OpenRequest) -> ReplicatedVersion:
        generation = _generation(platform, request)
        for version in self._of(request.id):
            if version.is_open and version.key[2].startswith(generation):
                return version
        raise failed_precondition("there are no replicas of it that more could join")

    def _version(self, platform: Platform, request: OpenRequest, options: ReplicaOptions) -> ReplicatedVersion:
        """The one that waits, or another one; one that waits and differs is given up."""
        generation = _generation(platform, request)
        for version in self._of(request.id):
            if version.is_open and version.key[2] == generation:
                generation += BESIDE
            elif not version.is_open:
                if (version.key[2], version.count) == (generation, options.count):
                    return version
                version.close()
        made = self._make(platform, request, options, generation)
        with self._lock:
            self._versions[made.key] = made
        return made

    def _make(
        self, platform: Platform, request: OpenRequest, options: ReplicaOptions, generation: str
    ) -> ReplicatedVersion:
        files, settings = request.files, request.settings
        reserve = platform.reserve
        on_device = reserve(files, settings, True) if reserve else bytes_to_reserve(files.unpacked_bytes)
        requirements, on_gpu = requirements_of(options, files.unpacked_bytes, on_device, self._nodes())
        fraction = requirements.needs.get(GPUS, 0.0)
        is_fetched = self._core.sources.origin_of(files.directory) is not None  # then its path is this machine's alone
        offered = OfferedFiles.of(files.directory, self._options.fetches or is_fetched)

        def prepare(channel: RequestChannel) -> str:
            there = replace(files, directory=deliver(channel, offered))
            return describe(
                replace(request, device=GPU if on_gpu else CPU, files=there),
                platform.name,
                torch_threads=max(1, int(requirements.needs[CPUS])),
                gpu_fraction=fraction if 0 < fraction < 1 else self._gpu_fraction,
            )

        remote = RemoteModel(label_of(request.id), OPEN_VERSION, "", require_files=request.require_files)

        def make_model(place: ReplicaPlace) -> ReplicaModel:
            return ReplicaModel(
                place,
                remote,
                self._engine.secret,
                lambda: self._engine.epoch,
                lanes=options.lanes(on_gpu),
                health_check_timeout=self._options.health_check_timeout,
                in_background=True,
                tls=self._tls,
                prepare=prepare,
                on_remote=partial(self._metrics.on_remote, request.id),
                on_niceness=self._look_at_niceness,
                on_worker=lambda cause: self._core.publish(WorkerChanged(request.id, cause)),
            )

        wanted = VersionReplicas(request.id.name, request.id.version, generation, options.count, requirements)
        keeps_sequences = settings.sequence_batching is not None
        needed = options.count if keeps_sequences else options.ready
        return ReplicatedVersion(
            self._reconciler, wanted, needed, make_model, lambda: self._core.manager.wake(request.id)
        )

    def _look_at_niceness(self, node: str, niceness: int) -> None:
        """Says once of each node that its replicas give way to everything else there."""
        with self._lock:
            is_new = niceness > 0 and node not in self._nice_nodes and len(self._nice_nodes) < MAX_NICE_NODES
            if is_new:
                self._nice_nodes.add(node)
        if is_new:
            logger.warning(NICE, node, niceness)

    def _nodes(self) -> Sequence[ClusterNode]:
        return self._reconciler.status().nodes or self._first_nodes


def _generation(platform: Platform, request: OpenRequest) -> str:
    return generation_of(request.files.directory, request.settings, platform.name)
