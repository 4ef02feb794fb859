"""The cluster as this server sees it: what connects to it, what keeps its replicas, and what opens versions in them.

    connect -> Cluster.start -> open (loaders)* -> finish_adoption -> stop_deciding -> close

The engine starts and ends processes, the reconciler says which. A server that stops leaves its replicas: the next one
adopts them, or they end by themselves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry

from tfs_lite.adapters.failures import label_of
from tfs_lite.adapters.memory import bytes_to_reserve
from tfs_lite.adapters.opening import OpenRequest, Platform
from tfs_lite.adapters.remote import OPEN_VERSION, describe
from tfs_lite.config.replicas import ClusterOptions, ReplicaOptions
from tfs_lite.config.server_files import read_ssl_config
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.executor import PoolExecutor, Task
from tfs_lite.core.replicas import ReplicaReport
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, status_of
from tfs_lite.metrics.replicas import ClusterCollector, ClusterReport, ReplicaMetrics
from tfs_lite.serving.cluster.replicas import ReplicatedVersion
from tfs_lite.workers.connection import RemoteModel
from tfs_lite.workers.replicas.engine import CPUS, GPUS, ClusterEngine, Node, VersionKey
from tfs_lite.workers.replicas.generation import generation_of
from tfs_lite.workers.replicas.helper import HelperEngine
from tfs_lite.workers.replicas.near import ReplicaModel
from tfs_lite.workers.replicas.placement import requirements_of
from tfs_lite.workers.replicas.reconciler import Reconciler, ReplicaPlace
from tfs_lite.workers.replicas.reports import ReplicaCounter, cluster_report, replica_report
from tfs_lite.workers.replicas.states import ReplicaEvent, VersionReplicas
from tfs_lite.workers.replicas.tls import Tls, TlsKeys
from tfs_lite.workers.replicas.transfer import OfferedFiles, deliver
from tfs_lite.workers.request_channel import RequestChannel

CPU, GPU = "cpu", "cuda:0"
"""A replica with a GPU sees no other one."""
BESIDE = "+"
"""Ends the generation of a version that is loaded beside itself, with nothing changed but its number of replicas."""
MAX_NICE_NODES = 1000
"""Of so many it is said that their replicas are nice."""
NICE = (
    "replicas on node %s run with niceness %d: beside other work they hardly get a processor. Start Ray there with "
    "RAY_worker_niceness=0; it is 15 otherwise"
)
logger = logging.getLogger(__name__)


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


def _keys(options: ClusterOptions) -> TlsKeys | None:
    """None if connections between hosts go without TLS."""
    return TlsKeys.of(read_ssl_config(options.ssl_config_file)) if options.ssl_config_file else None


class Cluster:
    """Threads: any. ``wake`` is called with a version whose load waits for room, when another attempt may succeed;
    ``on_change`` after any replica has changed its state."""

    def __init__(
        self,
        engine: ConnectedEngine,
        clock: Clock,
        registry: CollectorRegistry,
        options: ClusterOptions,
        gpu_fraction: float,
        wake: Callable[[ServableId], None],
        on_change: Callable[[], None],
        on_worker: Callable[[ServableId, str | None], None],
    ) -> None:
        """``on_worker`` is told why a replica of a version was lost, and None when it is there again. ``gpu_fraction``:
        the share of a GPU's memory for a replica that has a whole one; 0: all. Raises UNAVAILABLE if the cluster does
        not answer."""
        self._engine = engine
        self._options = options
        keys = _keys(options)
        self._tls = None if keys is None else Tls(keys)
        self._gpu_fraction = gpu_fraction
        self._wake = wake
        self._first_nodes = engine.nodes()
        self._executor = PoolExecutor("tfs-replicas", 1)
        self._metrics = ReplicaMetrics(registry)
        self._count = ReplicaCounter(self._metrics)
        self._on_change = on_change
        self._on_worker = on_worker
        self._reconciler = Reconciler(engine, clock, self._executor, self._on_event)
        self._lock = threading.Lock()  # guards what follows
        self._nice_nodes: set[str] = set()
        self._versions: dict[VersionKey, ReplicatedVersion] = {}
        registry.register(ClusterCollector(self.replicas, self._report))

    def start(self) -> None:
        self._reconciler.start()

    def finish_adoption(self) -> None:
        """Every model that is known at the start is available or has failed: what else an earlier server has left is
        ended."""
        self._reconciler.finish_adoption()

    def stop_deciding(self) -> None:
        """From now on replicas stay as they are, whatever is closed here."""
        self._reconciler.close()

    def close(self) -> None:
        """After :meth:`stop_deciding`, once the last version was closed."""
        self._executor.shutdown()
        self._engine.close()

    def replicas(self) -> list[ReplicaReport]:
        """Of every version that wants any."""
        with self._lock:
            versions = list(self._versions.values())
        return [replica_report(version.status(), version.ongoing()) for version in versions if not version.ended]

    def can_be_asked(self, servable_id: ServableId) -> bool:
        """False for a version of which no replica is up, although it wants some."""
        wanting = [version.status() for version in self._of(servable_id) if version.is_open]
        return not wanting or any(status.up for status in wanting)

    def _on_event(self, event: ReplicaEvent) -> None:
        self._count(event)
        self._on_change()

    def _report(self) -> ClusterReport:
        return cluster_report(self._reconciler.status(), self._reconciler.leads, self._engine.restarts)

    def version_gone(self, servable_id: ServableId) -> None:
        """The version has ended."""
        self.give_up(servable_id)
        self._metrics.version_gone(servable_id)

    def version_back(self, servable_id: ServableId) -> None:
        """The version is available."""
        self._metrics.version_back(servable_id)

    def give_up(self, servable_id: ServableId) -> None:
        """No load of the version is tried any more. What waits for room is given back, without waiting for what it
        takes to close it; what serves goes on."""
        for version in self._of(servable_id):
            if not version.is_open:
                version.withdraw()
                self._executor.submit(Task("give up replicas", lambda: True, version.close, ignore))

    def model_gone(self, name: str) -> None:
        """The model is not served any more."""
        self._metrics.model_gone(name)

    # What loaders ask.

    def open(self, platform: Platform, request: OpenRequest, options: ReplicaOptions) -> Sequence[ReplicaModel]:
        """The instances of a version, or, with ``request.beside``, more of them.

        What is raised leaves nothing behind, but a version that waits for room goes on waiting until the next attempt,
        or until it is given up."""
        if platform.home == "server" or platform.open is None:
            raise ServingError(StatusCode.UNIMPLEMENTED, f'platform {platform.name} does not run with worker: "ray"')
        if request.settings.model_transaction_policy.decoupled:
            raise ServingError(StatusCode.UNIMPLEMENTED, 'a decoupled model does not run with worker: "ray" yet')
        if request.beside:
            return self._opened(platform, request).grow(options.count)
        version = self._version(platform, request, options)
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
        offered = OfferedFiles.of(files.directory, self._options.fetches)

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
                on_worker=partial(self._on_worker, request.id),
            )

        wanted = VersionReplicas(request.id.name, request.id.version, generation, options.count, requirements)
        keeps_sequences = settings.sequence_batching is not None
        needed = options.count if keeps_sequences else options.ready
        return ReplicatedVersion(self._reconciler, wanted, needed, make_model, lambda: self._wake(request.id))

    def _look_at_niceness(self, node: str, niceness: int) -> None:
        """Says once of each node that its replicas give way to everything else there."""
        with self._lock:
            is_new = niceness > 0 and node not in self._nice_nodes and len(self._nice_nodes) < MAX_NICE_NODES
            if is_new:
                self._nice_nodes.add(node)
        if is_new:
            logger.warning(NICE, node, niceness)

    def _nodes(self) -> Sequence[Node]:
        return self._reconciler.status().nodes or self._first_nodes


def _generation(platform: Platform, request: OpenRequest) -> str:
    return generation_of(request.files.directory, request.settings, platform.name)
