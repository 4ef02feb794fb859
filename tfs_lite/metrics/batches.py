"""What the metrics page says about batches: how long calls wait, how many share a run, what is added to fill it up.

Counted on the thread that ran the model, while callers wait for their answers: counting is short. What is a state (what
waits now, which workers are up) is read when the page is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.model import BatchReport
from tfs_lite.core.servable import ServableId
from tfs_lite.metrics.series import (
    Cell,
    CounterSeries,
    GoneVersions,
    HistogramSeries,
    SeriesCollector,
    add_one,
    add_sorted,
)
from tfs_lite.metrics.tensorflow import UpstreamMetrics

SECONDS = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
NUMBERS = tuple(2.0**power for power in range(14))
PADDING = (0.0, *NUMBERS)


class _Line(NamedTuple):
    """Where the runs of one version are counted."""

    waits: Cell
    rows: Cell
    padding: Cell
    calls: Cell
    seconds: Cell
    failures: Cell


class BatchMetrics:
    """Any thread may call any method. Runs are counted under ``upstream``'s names too, but for those of models that do
    not merge calls: there TensorFlow Serving has no batching to speak of."""

    def __init__(self, registry: CollectorRegistry, upstream: UpstreamMetrics) -> None:
        self._upstream = upstream
        self._guard = upstream.batches
        self._waits = self._histogram("queue_seconds", "Time that a call waited for its run.", SECONDS)
        self._rows = self._histogram("size", "Rows of requests in a run.", NUMBERS)
        self._padding = self._histogram("padding_rows", "Rows added to a run to reach an allowed size.", PADDING)
        self._calls = self._histogram("calls", "Calls, or pieces of large ones, that shared a run.", NUMBERS)
        self._seconds = self._histogram("run_seconds", "Time in the model; failed runs are left out.", SECONDS)
        self._failures = CounterSeries(
            self._guard, "tfs_lite_batch_failures", "Runs that failed.", ("model", "version")
        )
        self._series = (self._waits, self._rows, self._padding, self._calls, self._seconds, self._failures)
        self._gone = GoneVersions(self._drop)
        self._lines: dict[tuple[str, int], _Line] = {}  # guarded by the guard's lock
        registry.register(SeriesCollector(self._guard, self._series))

    def _histogram(self, name: str, text: str, limits: tuple[float, ...]) -> HistogramSeries:
        return HistogramSeries(self._guard, f"tfs_lite_batch_{name}", text, ("model", "version"), limits)

    def on_batch(self, report: BatchReport) -> None:
        """A model that merges calls was run."""
        waits, waited = sorted(report.queue_seconds), sum(report.queue_seconds)
        with self._guard.lock:
            self._count(report, waits, waited)
            self._upstream.count_batch(waits, waited, report.rows, report.padding)

    def on_run(self, report: BatchReport) -> None:
        """A model was run that takes every call alone."""
        waits, waited = sorted(report.queue_seconds), sum(report.queue_seconds)
        with self._guard.lock:
            self._count(report, waits, waited)

    def version_gone(self, servable_id: ServableId) -> None:
        """The version was unloaded: its series go when enough younger ones have gone too."""
        with self._guard.lock:
            self._gone.version(servable_id)

    def model_gone(self, name: str) -> None:
        """The model is served no more: all its series go."""
        with self._guard.lock:
            self._gone.model(name)

    def _count(self, report: BatchReport, waits: list[float], waited: float) -> None:
        key = (report.id.name, report.id.version)
        line = self._lines.get(key) or self._make_line(key)
        add_sorted(line.waits, SECONDS, waits, waited)
        add_one(line.rows, NUMBERS, report.rows)
        add_one(line.padding, PADDING, report.padding)
        add_one(line.calls, NUMBERS, len(waits))
        if report.ok:
            add_one(line.seconds, SECONDS, report.run_seconds)
        else:
            line.failures[0] += 1

    def _make_line(self, key: tuple[str, int]) -> _Line:
        labels = (key[0], str(key[1]))
        line = self._lines[key] = _Line(*(series.cell(labels) for series in self._series))
        return line

    def _drop(self, **labels: str) -> None:
        for series in self._series:
            series.drop(**labels)
        self._lines.clear()


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One instance of a version, and the worker that runs it. ``kind``: ``thread`` or ``process``. ``pid`` is None for
    one that has no process of its own, or none just now; ``restarts`` counts those after the first start."""

    id: ServableId
    instance: int
    kind: str
    up: bool
    pid: int | None = None
    restarts: int = 0


class BatchStateCollector(Collector):
    """Reads the current state once per page, on the thread that makes the page. ``waiting``: the rows of the calls that
    wait for each version; the calls are among StateCollector's."""

    def __init__(
        self,
        waiting: Callable[[], Iterable[tuple[ServableId, int]]],
        workers: Callable[[], Iterable[WorkerState]],
    ) -> None:
        self._waiting = waiting
        self._workers = workers

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        rows = GaugeMetricFamily(
            "tfs_lite_queue_rows", "Rows that wait for a version's thread.", labels=("model", "version")
        )
        for servable_id, number in self._waiting():
            rows.add_metric((servable_id.name, str(servable_id.version)), number)
        yield rows
        yield from self._of_workers()

    def _of_workers(self) -> Iterator[Metric]:
        labels = ("model", "version", "instance")
        up = GaugeMetricFamily("tfs_lite_worker_up", "1 while the worker can run its model.", labels=labels)
        restarts = CounterMetricFamily(
            "tfs_lite_worker_restarts", "Starts of the worker after its first.", labels=labels
        )
        info = GaugeMetricFamily("tfs_lite_worker_info", "1, for what the worker is.", labels=(*labels, "kind", "pid"))
        for worker in self._workers():
            which = (worker.id.name, str(worker.id.version), str(worker.instance))
            up.add_metric(which, int(worker.up))
            restarts.add_metric(which, worker.restarts)
            info.add_metric((*which, worker.kind, "" if worker.pid is None else str(worker.pid)), 1)
        yield from (up, restarts, info)
