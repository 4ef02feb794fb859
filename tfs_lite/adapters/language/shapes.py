"""The few shapes that steps which only decode are brought to, so that each can be recorded once.

A shape holds a step with no more places and no longer texts. Rows go by 1, 2, 4, 8 and then by eights, more coarsely
where there are many; widths double.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

MAX_SHAPES = 96
FIRST_WIDTH = 128
_LEAST_ROWS = 8
_PER_OCTAVE = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """The first ``rows`` places, a row each, of which the first ``width`` positions are read."""

    rows: int
    width: int

    @property
    def positions(self) -> int:
        return self.rows * self.width


def decode_shapes(places: int, length: int, most: int = MAX_SHAPES) -> list[Shape]:
    """The largest first, ``Shape(places, length)``; at most so many. All steps fit into one of them."""
    found: list[Shape] = []
    first = FIRST_WIDTH
    while True:
        for per_octave in _PER_OCTAVE:
            found = [Shape(*pair) for pair in product(_row_counts(places, per_octave), _widths(length, first))]
            if len(found) <= most:
                return _largest_first(found)
        if first >= length:
            return _largest_first(found)[:most]
        first *= 2


def smallest(shapes: Sequence[Shape], rows: int, width: int) -> Shape | None:
    """The cheapest one that holds so much; ``shapes`` has the largest first."""
    return next((shape for shape in reversed(shapes) if shape.rows >= rows and shape.width >= width), None)


def _largest_first(shapes: Iterable[Shape]) -> list[Shape]:
    """The order in which the memory of a record is enough for those that follow."""
    return sorted(shapes, key=lambda shape: (shape.positions, shape.rows), reverse=True)


def _row_counts(places: int, per_octave: int) -> list[int]:
    counts, count = [], 1
    while count < places:
        counts.append(count)
        octave = 1 << (count.bit_length() - 1)
        count += count if count < _LEAST_ROWS else max(_LEAST_ROWS, octave // per_octave)
    return [*counts, places]


def _widths(length: int, first: int) -> list[int]:
    widths, width = [], first
    while width < length:
        widths.append(width)
        width *= 2
    return [*widths, length]
