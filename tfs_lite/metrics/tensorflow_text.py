"""Counters and histograms that print exactly as TensorFlow Serving prints its own.

prometheus_client appends ``_total`` to counters and adds lines, so that scrapers would not find TensorFlow Serving's
names. Any thread may call any method.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence

from tfs_lite.metrics.series import Cell, Cells, Labels, SeriesLock

_NAME = re.compile(r"[^a-zA-Z0-9_]")
MAX_CELLS = 1000
"""The most cells of one metric. Beyond it the oldest cell is dropped."""


def exponential_buckets(scale: float, growth: float, count: int) -> tuple[float, ...]:
    """The bounds ``scale * growth**i`` for ``count`` values of i, from 0."""
    return tuple(scale * growth**i for i in range(count))


class RawMetric:
    """A metric of TensorFlow Serving. ``name`` is a path like ``/tensorflow/serving/request_count``; ``text`` says what
    it counts; ``labels`` are the names of a cell's labels. ``cells`` are guarded by the guard's lock."""

    kind = ""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        limits: Sequence[float] = (),
        guard: SeriesLock | None = None,
    ) -> None:
        self._name = _NAME.sub(":", name)
        self._text = text
        self._guard = guard or SeriesLock()
        self.cells = Cells(self._guard, labels, limits, MAX_CELLS)

    def forget(self, label: str, value: str) -> None:
        """Drops the cells with this value of a label."""
        with self._guard:
            self.cells.drop(**{label: value})

    def lines(self) -> Iterator[str]:
        """The metric as text, line by line; no lines before the first observation."""
        with self._guard:
            cells = self.cells.snapshot()
        if cells:
            yield from heading(self._name, self._text, self.kind)
        for labels, cell in cells.items():
            yield from self._samples(labels, cell)

    def value(self, labels: Sequence[str] | None = None) -> float:
        """The count of one cell, or of the first; 0 if there is none."""
        with self._guard:
            cells = self.cells.snapshot()
        cell = next(iter(cells.values()), None) if labels is None else cells.get(tuple(labels))
        return 0.0 if cell is None else self._count(cell)

    def _count(self, cell: Cell) -> float:
        return cell[0]

    def _samples(self, labels: Labels, cell: Cell) -> Iterator[str]:
        yield f"{self._name}{self._shown(labels)} {cell[0]:.0f}"

    def _shown(self, labels: Labels, *more: str) -> str:
        pairs = [f'{name}="{escaped(value)}"' for name, value in zip(self.cells.labels, labels, strict=True)]
        return "{" + ",".join([*pairs, *more]) + "}"


class RawCounter(RawMetric):
    """A number that grows."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), guard: SeriesLock | None = None) -> None:
        super().__init__(name, text, labels, guard=guard)

    def add(self, labels: Labels = (), number: int = 1) -> None:
        with self._guard.lock:
            self.cells.cell(labels)[0] += number


class RawHistogram(RawMetric):
    """Counts by upper limit, their sum and their number."""

    kind = "histogram"

    def observe(self, labels: Labels, value: float) -> None:
        position = bisect.bisect_left(self.cells.limits, value)
        with self._guard.lock:
            cell = self.cells.cell(labels)
            cell[position] += 1
            cell[-1] += value

    def _count(self, cell: Cell) -> float:
        return sum(cell[:-1])

    def _samples(self, labels: Labels, cell: Cell) -> Iterator[str]:
        *counts, total = cell
        running = 0.0
        for limit, count in zip((*map(_short, self.cells.limits), "+Inf"), counts, strict=True):
            running += count
            yield f"{self._name}_bucket{self._shown(labels, _le(limit))} {running:.0f}"
        yield f"{self._name}_sum{self._shown(labels)} {_short(total)}"
        yield f"{self._name}_count{self._shown(labels)} {running:.0f}"


def heading(name: str, text: str, kind: str) -> tuple[str, str]:
    """The lines before the samples of a metric in Prometheus text. ``text`` says what it counts; it has no line
    breaks."""
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _le(limit: str) -> str:
    return f'le="{limit}"'


def _short(number: float) -> str:
    return f"{number:.6g}"


def escaped(value: str) -> str:
    """A label value in Prometheus text."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
