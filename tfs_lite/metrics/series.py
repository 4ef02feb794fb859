"""Counters, gauges and histograms that are cheap to count and are written out when a page is requested.

    SeriesLock      one lock for the cells of many metrics, so that one acquisition covers everything that is counted
    Cells      a metric's cells by label values; frequent callers cache cells and check ``SeriesLock.dropped``
    *Series    cells as metrics of prometheus_client

A cell is a list: one number, or a histogram's counts (one for each limit, one beyond the last) followed by their sum.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.servable import ServableId

Cell: TypeAlias = list[float]
Labels: TypeAlias = tuple[str, ...]

KEPT_VERSIONS = 8
"""Unloaded versions of a model whose series are kept."""


@dataclass(slots=True)
class SeriesLock:
    """``lock`` guards the cells of every metric made with this guard, and ``dropped``, the number of dropped cells. A
    cached cell is valid while that number stays the same.

    ``with guard:`` is for reading and dropping cells: it holds the lock, and first calls ``add_up``, which adds what
    was counted and is not in the cells yet."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    dropped: int = 0
    add_up: Callable[[], None] = ignore

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            self.add_up()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def add_up_now(self) -> None:
        with self:
            pass


class Cells:
    """The cells of one metric. Every method is called under the guard's lock. ``most`` bounds the cells, and the oldest
    is dropped first; 0: no bound."""

    def __init__(self, guard: SeriesLock, labels: Sequence[str], limits: Sequence[float] = (), most: int = 0) -> None:
        self.guard = guard
        self.labels = tuple(labels)
        self.limits = tuple(limits)
        self._empty: Cell = [0.0] * (len(self.limits) + 2) if limits else [0.0]
        self._most = most
        self._cells: dict[Labels, Cell] = {}

    def cell(self, labels: Labels) -> Cell:
        """The cell of these label values, made if it does not exist."""
        found = self._cells.get(labels)
        return self._new(labels) if found is None else found

    def find(self, labels: Labels) -> Cell | None:
        return self._cells.get(labels)

    def drop(self, **values: str) -> None:
        """Drops the cells with these values of these labels."""
        wanted = [(self.labels.index(name), value) for name, value in values.items()]
        for labels in [key for key in self._cells if all(key[at] == value for at, value in wanted)]:
            self._forget(labels)

    def snapshot(self) -> dict[Labels, Cell]:
        """A copy, in the order of creation."""
        return {labels: list(cell) for labels, cell in self._cells.items()}

    def _new(self, labels: Labels) -> Cell:
        if self._most and len(self._cells) >= self._most:
            self._forget(next(iter(self._cells)))
        cell = self._cells[labels] = list(self._empty)
        return cell

    def _forget(self, labels: Labels) -> None:
        del self._cells[labels]
        self.guard.dropped += 1


def add_one(cell: Cell, limits: Sequence[float], value: float) -> None:
    """Counts a value in a histogram's cell. Called under the lock."""
    cell[bisect_left(limits, value)] += 1
    cell[-1] += value


def add_sorted(cell: Cell, limits: Sequence[float], values: Sequence[float], total: float) -> None:
    """Counts many values, in ascending order, whose sum is ``total``, with one step for each bucket that they fall
    into. Called under the lock."""
    start, end = 0, len(values)
    while start < end:
        bucket = bisect_left(limits, values[start])
        stop = end if bucket == len(limits) else bisect_right(values, limits[bucket], start)
        cell[bucket] += stop - start
        start = stop
    cell[-1] += total


class Series(Cells):
    """A metric of prometheus_client: a name, a help text, and samples."""

    def __init__(
        self,
        guard: SeriesLock,
        name: str,
        text: str,
        labels: Sequence[str],
        limits: Sequence[float] = (),
        most: int = 0,
    ) -> None:
        super().__init__(guard, labels, limits, most)
        self._name = name
        self._text = text
        self._created: dict[Labels, float] = {}

    def creation_times(self) -> dict[Labels, float]:
        """The creation time of each cell, in seconds since 1970. Called under the lock."""
        return dict(self._created)

    def family(self, cells: Mapping[Labels, Cell], created: Mapping[Labels, float]) -> Metric:
        """The metric with the results of :meth:`snapshot` and :meth:`creation_times`. Needs no lock."""
        raise NotImplementedError

    def _new(self, labels: Labels) -> Cell:
        self._created[labels] = time.time()
        return super()._new(labels)

    def _forget(self, labels: Labels) -> None:
        super()._forget(labels)
        del self._created[labels]


class CounterSeries(Series):
    """A number that grows."""

    def family(self, cells: Mapping[Labels, Cell], created: Mapping[Labels, float]) -> Metric:
        family = CounterMetricFamily(self._name, self._text, labels=self.labels)
        for labels, cell in cells.items():
            family.add_metric(labels, cell[0], created.get(labels))
        return family


class LengthSeries(Series):
    """A gauge whose value is the length of the cell. Appending and popping need no lock."""

    def __init__(self, guard: SeriesLock, name: str, text: str, labels: Sequence[str]) -> None:
        super().__init__(guard, name, text, labels)
        self._empty = []

    def family(self, cells: Mapping[Labels, Cell], created: Mapping[Labels, float]) -> Metric:
        family = GaugeMetricFamily(self._name, self._text, labels=self.labels)
        for labels, cell in cells.items():
            family.add_metric(labels, len(cell))
        return family


class HistogramSeries(Series):
    """Counts by inclusive upper limit. Each bucket may have an exemplar: the trace of one request in it."""

    def __init__(
        self, guard: SeriesLock, name: str, text: str, labels: Sequence[str], limits: Sequence[float], most: int = 0
    ) -> None:
        super().__init__(guard, name, text, labels, limits, most)
        self._exemplars: dict[Labels, tuple[Exemplar | None, ...]] = {}  # read without the lock, replaced whole

    def add_exemplar(self, labels: Labels, value: float, trace_id: str, at: float) -> None:
        """The trace of this id has the value, ``at`` is its time in seconds since 1970. It takes the place of the
        bucket's last one; without a cell it is left out. Called under the lock."""
        if self.find(labels) is not None:
            found = list(self._exemplars.get(labels) or [None] * (len(self.limits) + 1))
            found[bisect_left(self.limits, value)] = Exemplar({"trace_id": trace_id}, value, at)
            self._exemplars[labels] = tuple(found)

    def _forget(self, labels: Labels) -> None:
        super()._forget(labels)
        self._exemplars.pop(labels, None)

    def family(self, cells: Mapping[Labels, Cell], created: Mapping[Labels, float]) -> Metric:
        family = HistogramMetricFamily(self._name, self._text, labels=self.labels)
        limits = [*map(floatToGoString, self.limits), "+Inf"]
        for labels, (*counts, total) in cells.items():
            running, buckets = 0.0, []
            exemplars = self._exemplars.get(labels) or [None] * len(limits)
            for limit, count, exemplar in zip(limits, counts, exemplars, strict=True):
                running += count
                buckets.append((limit, running) if exemplar is None else (limit, running, exemplar))
            family.add_metric(labels, buckets, total)
            if labels in created:
                names = dict(zip(self.labels, labels, strict=True))
                family.add_sample(f"{self._name}_created", names, created[labels])
        return family


class SeriesCollector(Collector):
    """Copies the cells under the lock and writes them out without it."""

    def __init__(self, guard: SeriesLock, series: Sequence[Series]) -> None:
        self._guard = guard
        self._series = tuple(series)

    def describe(self) -> Iterator[Metric]:
        for series in self._series:
            yield series.family({}, {})

    def collect(self) -> Iterator[Metric]:
        with self._guard:
            seen = [(series, series.snapshot(), series.creation_times()) for series in self._series]
        with_created = _tells_creation_times()
        for series, cells, created in seen:
            yield series.family(cells, created if with_created else {})


def _tells_creation_times() -> bool:
    """Whether prometheus_client shows creation times, which its users may turn off."""
    probe = Counter("probe", "Never on a page.", registry=None)
    return any(sample.name.endswith("_created") for metric in probe.collect() for sample in metric.samples)


class GoneVersions:
    """Bounds the series of unloaded versions. Called under the guard's lock. ``drop`` gets a model and a version, or a
    model alone, whose series are to be dropped."""

    def __init__(self, drop: Callable[..., None]) -> None:
        self._drop = drop
        self._gone: dict[str, deque[str]] = {}

    def version(self, servable_id: ServableId) -> None:
        """The version was unloaded; its series are dropped after some more unloads."""
        gone = self._gone.setdefault(servable_id.name, deque())
        version = str(servable_id.version)
        if version in gone:
            gone.remove(version)
        gone.append(version)
        if len(gone) > KEPT_VERSIONS:
            self._drop(model=servable_id.name, version=gone.popleft())

    def back(self, servable_id: ServableId) -> None:
        """The version is loaded again: whatever is unloaded from now on, its series stay."""
        gone, version = self._gone.get(servable_id.name, deque()), str(servable_id.version)
        if version in gone:
            gone.remove(version)

    def model(self, name: str) -> None:
        """The model is no longer served; all its series are dropped."""
        self._gone.pop(name, None)
        self._drop(model=name)
