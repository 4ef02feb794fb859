"""Counters and histograms that print exactly as TensorFlow Serving prints its own.

The usual library appends ``_total`` to counters and adds lines of its own, so whoever scrapes TensorFlow Serving's
names today would find none of them. These two know only what that page needs. Any thread may call any method.
"""

from __future__ import annotations

import bisect
import re
import threading
from collections.abc import Iterator, Sequence

_NAME = re.compile(r"[^a-zA-Z0-9_]")
MAX_CELLS = 1000
"""Of one metric. Beyond it the oldest cell goes."""


def exponential_buckets(scale: float, growth: float, count: int) -> tuple[float, ...]:
    """``scale * growth**i`` for ``count`` values of i, from 0."""
    return tuple(scale * growth**i for i in range(count))


class RawMetric:
    """``name`` is a path like ``/tensorflow/serving/request_count``; ``labels`` are the names of a cell's labels."""

    kind = ""

    def __init__(self, name: str, labels: Sequence[str] = ()) -> None:
        self._name = _NAME.sub(":", name)
        self._labels = tuple(labels)
        self._lock = threading.Lock()  # guards _cells and what is in them
        self._cells: dict[tuple[str, ...], list[float]] = {}

    def forget(self, label: str, value: str) -> None:
        """Drops the cells with this value of a label."""
        position = self._labels.index(label)
        with self._lock:
            for cell in [cell for cell in self._cells if cell[position] == value]:
                del self._cells[cell]

    def lines(self) -> Iterator[str]:
        """The metric as text, line by line; nothing before the first observation."""
        with self._lock:
            cells = {cell: list(values) for cell, values in self._cells.items()}
        if cells:
            yield f"# TYPE {self._name} {self.kind}"
        for cell, values in cells.items():
            yield from self._samples(cell, values)

    def value(self, labels: Sequence[str] | None = None) -> float:
        """The count of one cell, or of the first; 0 if there is none."""
        with self._lock:
            cell = next(iter(self._cells), ()) if labels is None else tuple(labels)
            values = self._cells.get(cell)
            return 0.0 if values is None else self._count(values)

    def _cell(self, labels: tuple[str, ...]) -> list[float]:
        """Called under the lock."""
        found = self._cells.get(labels)
        if found is None:
            if len(self._cells) >= MAX_CELLS:
                del self._cells[next(iter(self._cells))]
            found = self._cells[labels] = self._empty()
        return found

    def _empty(self) -> list[float]:
        return [0]

    def _count(self, values: Sequence[float]) -> float:
        return values[0]

    def _samples(self, cell: tuple[str, ...], values: Sequence[float]) -> Iterator[str]:
        yield f"{self._name}{self._shown(cell)} {values[0]:.0f}"

    def _shown(self, cell: tuple[str, ...], *more: str) -> str:
        pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(self._labels, cell, strict=True)]
        return "{" + ",".join([*pairs, *more]) + "}"


class RawCounter(RawMetric):
    """A number that grows."""

    kind = "counter"

    def add(self, labels: tuple[str, ...] = (), number: int = 1) -> None:
        with self._lock:
            self._cell(labels)[0] += number


class RawHistogram(RawMetric):
    """Counts by upper limit, their sum and their number."""

    kind = "histogram"

    def __init__(self, name: str, labels: Sequence[str], limits: Sequence[float]) -> None:
        super().__init__(name, labels)
        self._limits = tuple(limits)

    def observe(self, labels: tuple[str, ...], value: float) -> None:
        position = bisect.bisect_left(self._limits, value)
        with self._lock:
            cell = self._cell(labels)
            cell[position] += 1
            cell[-1] += value

    def _empty(self) -> list[float]:
        """One count for each limit, one beyond the last, and the sum."""
        return [0] * (len(self._limits) + 2)

    def _count(self, values: Sequence[float]) -> float:
        return sum(values[:-1])

    def _samples(self, cell: tuple[str, ...], values: Sequence[float]) -> Iterator[str]:
        *counts, total = values
        running = 0.0
        for limit, count in zip((*map(_short, self._limits), "+Inf"), counts, strict=True):
            running += count
            yield f"{self._name}_bucket{self._shown(cell, _le(limit))} {running:.0f}"
        yield f"{self._name}_sum{self._shown(cell)} {_short(total)}"
        yield f"{self._name}_count{self._shown(cell)} {running:.0f}"


def _le(limit: str) -> str:
    return f'le="{limit}"'


def _short(number: float) -> str:
    return f"{number:.6g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
