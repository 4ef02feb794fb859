"""Metrics of batches: the wait of calls, the calls of each run, the padding.

Runs are reported on the thread that ran the model, while callers wait for their answers, so that counting has to be
cheap: reports are noted, and counted some at once, at the latest when the counts are read. State (waiting calls,
workers) is read when the page is requested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfs_lite.core.model import BatchReport, SandboxStatus
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
from tfs_lite.metrics.tensorflow import TensorflowMetrics

SECONDS = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
NUMBERS = tuple(2.0**power for power in range(14))
PADDING = (0.0, *NUMBERS)
MOST_NOTED = 16
"""Reports that are noted before they are counted."""


class _VersionCells(NamedTuple):
    """The cells of the runs of one version."""

    waits: Cell
    rows: Cell
    padding: Cell
    calls: Cell
    seconds: Cell
    failures: Cell


@dataclass(slots=True)
class BatchTotals:
    """Runs of one version since its series began. ``waits`` are those of calls, ``run_seconds`` of runs that did not
    fail."""

    waits: float
    wait_seconds: float
    runs: float
    rows: float
    padding: float
    timed_runs: float
    run_seconds: float


class BatchMetrics:
    """Counts the runs of models. Runs of models that merge calls are counted under TensorFlow Serving's names, too."""

    def __init__(self, registry: CollectorRegistry, tensorflow: TensorflowMetrics) -> None:
        self._tensorflow = tensorflow
        self._guard = tensorflow.batches
        self._waits = self._histogram("queue_seconds", "Time that a call waited for its run.", SECONDS)
        self._rows = self._histogram("size", "Rows of requests in a run.", NUMBERS)
        self._padding = self._histogram("padding_rows", "Rows added to a run to reach an allowed size.", PADDING)
        self._calls = self._histogram("calls", "Calls, or pieces of large ones, that shared a run.", NUMBERS)
        self._seconds = self._histogram("run_seconds", "Time in the model; failed runs are left out.", SECONDS)
        self._failures = CounterSeries(
            self._guard, "tfs_lite_batch_failures", "Runs that failed.", ("model", "version")
        )
        self._series = (self._waits, self._rows, self._padding, self._calls, self._seconds, self._failures)
        self._again = CounterSeries(
            self._guard,
            "tfs_lite_batches_queued_again",
            "Runs with calls that were queued again after their worker was lost or busy: answered, failed, or lost.",
            ("model", "version", "outcome"),
        )
        self._gone = GoneVersions(self._drop)
        self._cells: dict[tuple[str, int], _VersionCells] = {}  # guarded by the guard's lock
        self._noted: deque[tuple[BatchReport, bool]] = deque()
        self._guard.add_up = self._add_up
        registry.register(SeriesCollector(self._guard, (*self._series, self._again)))

    def _histogram(self, name: str, text: str, limits: tuple[float, ...]) -> HistogramSeries:
        return HistogramSeries(self._guard, f"tfs_lite_batch_{name}", text, ("model", "version"), limits)

    def on_batch(self, report: BatchReport) -> None:
        """Counts a run of a model that merges calls."""
        self._note(report, merges=True)

    def on_run(self, report: BatchReport) -> None:
        """Counts a run of a model that takes every call alone."""
        self._note(report, merges=False)

    def add_exemplar(self, servable_id: ServableId, wait: float, trace_id: str, at: float) -> None:
        """A call of the trace has waited so many seconds; ``at`` is when it ended, in seconds since 1970."""
        with self._guard:
            self._waits.add_exemplar((servable_id.name, str(servable_id.version)), wait, trace_id, at)

    def totals(self) -> dict[tuple[str, str], BatchTotals]:
        """The totals by model and version."""
        with self._guard:
            waits, rows, padding, seconds = (
                series.snapshot() for series in (self._waits, self._rows, self._padding, self._seconds)
            )
        return {
            (key[0], key[1]): BatchTotals(
                sum(waits[key][:-1]),
                waits[key][-1],
                sum(cell[:-1]),
                cell[-1],
                padding[key][-1],
                sum(seconds[key][:-1]),
                seconds[key][-1],
            )
            for key, cell in rows.items()
        }

    def version_gone(self, servable_id: ServableId) -> None:
        """The version was unloaded; its series are dropped after some more unloads."""
        with self._guard:
            self._gone.version(servable_id)

    def version_back(self, servable_id: ServableId) -> None:
        """The version is loaded, perhaps again: its series stay."""
        with self._guard:
            self._gone.back(servable_id)

    def model_gone(self, name: str) -> None:
        """The model is no longer served; all its series are dropped."""
        with self._guard:
            self._gone.model(name)

    def _note(self, report: BatchReport, merges: bool) -> None:
        self._noted.append((report, merges))
        if len(self._noted) >= MOST_NOTED:
            self._guard.add_up_now()

    def _add_up(self) -> None:
        """Adds up what was counted; called under the lock."""
        for _ in range(len(self._noted)):
            report, merges = self._noted.popleft()
            waits, waited = sorted(report.queue_seconds), sum(report.queue_seconds)
            self._count(report, waits, waited)
            if merges:
                self._tensorflow.count_batch(waits, waited, report.rows, report.padding)

    def _count(self, report: BatchReport, waits: list[float], waited: float) -> None:
        key = (report.id.name, report.id.version)
        cells = self._cells.get(key) or self._make_cells(key)
        add_sorted(cells.waits, SECONDS, waits, waited)
        add_one(cells.rows, NUMBERS, report.rows)
        add_one(cells.padding, PADDING, report.padding)
        add_one(cells.calls, NUMBERS, len(waits))
        if report.ok:
            add_one(cells.seconds, SECONDS, report.run_seconds)
        else:
            cells.failures[0] += 1
        if report.again:
            outcome = "answered" if report.ok else "lost" if report.lost else "failed"
            self._again.cell((key[0], str(key[1]), outcome))[0] += 1

    def _make_cells(self, key: tuple[str, int]) -> _VersionCells:
        labels = (key[0], str(key[1]))
        cells = self._cells[key] = _VersionCells(*(series.cell(labels) for series in self._series))
        return cells

    def _drop(self, **labels: str) -> None:
        for series in (*self._series, self._again):
            series.drop(**labels)
        self._cells.clear()


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The worker of one instance of a version. ``kind``: ``thread``, ``process`` or ``ray``. ``pid`` is None without a
    process; ``restarts`` counts the starts after the first; ``reason`` says why the model was not opened in the usual
    way, or why no two calls share a run; ``node`` is the host where it runs, empty for this one. ``cause``, ``failure``
    and ``retry_at`` say of one that is not up why it has ended, why it could not be started again, and when that is
    tried next, in seconds of ``time.monotonic``. ``sandbox`` is that of its process, None if it is in none. ``drains``:
    its version was withdrawn, or replaced by another load, and waits for its last requests."""

    id: ServableId
    instance: int
    kind: str
    up: bool
    pid: int | None = None
    restarts: int = 0
    reason: str = ""
    node: str = ""
    cause: str = ""
    failure: str = ""
    retry_at: float | None = None
    sandbox: SandboxStatus | None = None
    drains: bool = False


class BatchStateCollector(Collector):
    """Reads the current state once per page, on the page's thread. ``waiting``: the waiting rows of each version; the
    waiting calls are in StateCollector. ``workers``: of two loads of a version the first counts."""

    def __init__(
        self, waiting: Callable[[], Iterable[tuple[ServableId, int]]], workers: Callable[[], Iterable[WorkerState]]
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
        info = GaugeMetricFamily(
            "tfs_lite_worker_info", "1, for what the worker is.", labels=(*labels, "kind", "pid", "reason")
        )
        seen = set()
        for worker in self._workers():
            which = (worker.id.name, str(worker.id.version), str(worker.instance))
            if which in seen:  # of what was replaced
                continue
            seen.add(which)
            up.add_metric(which, int(worker.up))
            restarts.add_metric(which, worker.restarts)
            pid = "" if worker.pid is None else str(worker.pid)
            facts = dict(zip(labels, which, strict=True)) | {"kind": worker.kind, "pid": pid, "reason": worker.reason}
            if worker.node:
                facts["node"] = worker.node
            if worker.sandbox is not None:
                facts["sandbox"] = " ".join(worker.sandbox.holds)
            info.add_sample(info.name, facts, 1)
        yield from (up, restarts, info)
