"""Metrics of replicas and of the cluster that they live in.

Losses, starts and the ways to replicas are counted when they happen; the states of replicas and of the cluster are read
when a page is requested. A server without a cluster has none of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ReplicaReport
from tfs_lite.metrics.batches import SECONDS
from tfs_lite.metrics.series import CounterSeries, GoneVersions, HistogramSeries, SeriesCollector, SeriesLock, add_one

STATES = ("placing", "opening", "ready", "lost", "draining")
START_SECONDS = (0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 100.0, 300.0, 1000.0)
_VERSION = ("model", "version")


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The cluster as this server sees it. ``is_up``: it can be reached; ``leads``: this server decides about the
    replicas. ``nodes``: how many are ready, draining, lost; ``free``: what they have left, by resource."""

    is_up: bool
    leads: bool
    epoch: int
    nodes: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    helper_restarts: int = 0


class ReplicaMetrics:
    """Counts what happens to replicas."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._guard = guard = SeriesLock()
        self._losses = CounterSeries(
            guard, "tfs_lite_replica_losses", "Replicas that were lost, by what ended them.", (*_VERSION, "cause")
        )
        self._starts = HistogramSeries(
            guard,
            "tfs_lite_replica_start_seconds",
            "Seconds from a wanted replica to a ready one; adopted replicas are left out.",
            _VERSION,
            START_SECONDS,
        )
        self._seconds = HistogramSeries(
            guard,
            "tfs_lite_remote_seconds",
            "Seconds that a run in a replica took for the way there and back.",
            _VERSION,
            SECONDS,
        )
        self._bytes = CounterSeries(guard, "tfs_lite_remote_bytes", "Bytes of tensors, to replicas and back.", _VERSION)
        self._series = (self._losses, self._starts, self._seconds, self._bytes)
        self._gone = GoneVersions(self._drop)
        registry.register(SeriesCollector(guard, self._series))

    def on_loss(self, servable_id: ServableId, cause: str) -> None:
        """Counts a loss. ``cause`` is one of few: it becomes a label."""
        with self._guard.lock:
            self._losses.cell((*_labels(servable_id), cause))[0] += 1

    def on_start(self, servable_id: ServableId, seconds: float) -> None:
        """A replica has become ready so long after it was wanted."""
        with self._guard.lock:
            add_one(self._starts.cell(_labels(servable_id)), START_SECONDS, seconds)

    def on_remote(self, servable_id: ServableId, seconds: float, nbytes: int) -> None:
        """A run in a replica: its duration less the time in the model, and the bytes of its inputs and outputs."""
        version = _labels(servable_id)
        with self._guard.lock:
            add_one(self._seconds.cell(version), SECONDS, max(seconds, 0.0))
            self._bytes.cell(version)[0] += nbytes

    def version_gone(self, servable_id: ServableId) -> None:
        """The version was unloaded; its series are dropped after some more unloads."""
        with self._guard.lock:
            self._gone.version(servable_id)

    def version_back(self, servable_id: ServableId) -> None:
        """The version is loaded, perhaps again: its series stay."""
        with self._guard.lock:
            self._gone.back(servable_id)

    def model_gone(self, name: str) -> None:
        """The model is no longer served; all its series are dropped."""
        with self._guard.lock:
            self._gone.model(name)

    def _drop(self, **labels: str) -> None:
        for series in self._series:
            series.drop(**labels)


class ClusterCollector(Collector):
    """Reads the current state once per page, on the page's thread."""

    def __init__(self, replicas: Callable[[], Iterable[ReplicaReport]], cluster: Callable[[], ClusterReport]) -> None:
        self._replicas = replicas
        self._cluster = cluster

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield self._states()
        yield from self._of_cluster(self._cluster())

    def _states(self) -> Metric:
        states = GaugeMetricFamily("tfs_lite_replicas", "Replicas in each state.", labels=(*_VERSION, "state"))
        counts: dict[ServableId, Counter[str]] = {}
        for report in self._replicas():  # one that is loaded a second time has two
            counts.setdefault(report.id, Counter()).update(replica.state for replica in report.replicas)
        for servable_id, found in counts.items():
            for state in STATES:
                states.add_metric((*_labels(servable_id), state), found[state])
        return states

    def _of_cluster(self, report: ClusterReport) -> Iterator[Metric]:
        plain: Sequence[tuple[str, str, float]] = (
            ("up", "1 while the cluster can be reached.", report.is_up),
            ("leader", "1 while this server decides about the replicas.", report.leads),
            ("epoch", "The epoch of the server that decides; that of a later server is higher.", report.epoch),
        )
        for name, text, value in plain:
            yield GaugeMetricFamily(f"tfs_lite_cluster_{name}", text, value)
        nodes = GaugeMetricFamily("tfs_lite_cluster_nodes", "Nodes of the cluster.", labels=("state",))
        for state, count in report.nodes.items():
            nodes.add_metric((state,), count)
        free = GaugeMetricFamily("tfs_lite_cluster_free", "What the nodes have left.", labels=("resource",))
        for resource, amount in report.free.items():
            free.add_metric((resource,), amount)
        yield from (nodes, free)
        yield CounterMetricFamily(
            "tfs_lite_helper_restarts", "Starts of the helper after its first.", report.helper_restarts
        )


def _labels(servable_id: ServableId) -> tuple[str, str]:
    return servable_id.name, str(servable_id.version)
