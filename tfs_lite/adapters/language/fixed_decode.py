"""The few shapes that steps which only decode are brought to, so that each can be recorded once.

A shape holds a step with no more slots and no longer texts. Rows go by 1, 2, 4, 8 and then by eights, more coarsely
where there are many; widths double.

Steps that only decode, as forwards of a few fixed shapes: each is recorded once, and replayed with new numbers.

    rows of a step -> the smallest shape that holds them -> its inputs are filled -> replay -> logits

Row ``i`` of such a forward is slot ``i``. Texts take the lowest free slot, so those that write are among the first,
and attention reads the cache where it lies, as in any other step. To gather the caches of the rows first would make
three passes over memory of one; reading idle slots costs less, unless nearly all are idle or nearly all texts are much
shorter than the longest. Such steps, and those with prompts, are left to the ordinary way.

Row ``i`` that is idle is a token at position 0 which nobody looks at. Its keys go to one position more that every slot
has behind its last: what an idle slot holds may still be the beginning of another text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from tfs_lite.adapters.cuda.graphs import Capture, Captured
from tfs_lite.adapters.language.attention import Serving
from tfs_lite.adapters.language.cache import Cache
from tfs_lite.adapters.language.engine_stream import on_host
from tfs_lite.adapters.language.layout import GPU_CALL_BYTES, Call, Layout, Part
from tfs_lite.adapters.language.network import Network
from tfs_lite.core.generation import Rows, Step

MAX_SHAPES = 96
FIRST_WIDTH = 128
_LEAST_ROWS = 8
_PER_OCTAVE = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """The first ``rows`` slots, a row each, of which the first ``width`` positions are read."""

    rows: int
    width: int

    @property
    def positions(self) -> int:
        return self.rows * self.width


def decode_shapes(slots: int, length: int, most: int = MAX_SHAPES) -> list[Shape]:
    """The largest first, ``Shape(slots, length)``; at most so many. All steps fit into one of them."""
    found: list[Shape] = []
    first = FIRST_WIDTH
    while True:
        for per_octave in _PER_OCTAVE:
            found = [Shape(*pair) for pair in product(_row_counts(slots, per_octave), _widths(length, first))]
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


def _row_counts(slots: int, per_octave: int) -> list[int]:
    counts, count = [], 1
    while count < slots:
        counts.append(count)
        octave = 1 << (count.bit_length() - 1)
        count += count if count < _LEAST_ROWS else max(_LEAST_ROWS, octave // per_octave)
    return [*counts, slots]


def _widths(length: int, first: int) -> list[int]:
    widths, width = [], first
    while width < length:
        widths.append(width)
        width *= 2
    return [*widths, length]


IDLE_BYTES = 16 * GPU_CALL_BYTES
"""Of the cache of one layer. To read so much for nothing takes as long as to start a layer's operators one by one."""


class FixedDecode:
    """The recorded forwards of ``network``, which must have been made with ``fixed``.

    Order: ``record`` once, ``logits`` any number of times, ``close`` once, before the network's memory goes. One thread
    at a time, on the stream of the record. ``replays`` counts.
    """

    def __init__(self, network: Network, drop: Callable[[], None], idle_bytes: int = IDLE_BYTES) -> None:
        """``drop``: gives back what the records' memory was taken from."""
        self._network = network
        self._drop = drop
        self._idle_positions = idle_bytes // network.cache.position_bytes
        self._slots = torch.arange(network.slots, device=network.device)
        self._out: torch.Tensor | None = None
        self._captured: dict[Shape, Captured] = {}
        self._shapes: Sequence[Shape] = ()
        self.replays = 0

    @property
    def shapes(self) -> Sequence[Shape]:
        """Those that were recorded."""
        return self._shapes

    def record(self, capture: Capture, shapes: Sequence[Shape]) -> None:
        """``shapes``: the largest first. What ``capture`` raises comes through. Places are as they were."""
        for shape in shapes:
            idle = self._numbers((), shape)
            self._captured[shape] = capture([idle], partial(self._forward, shape))
        self._shapes = tuple(shapes)

    def logits(self, step: Step) -> torch.Tensor | None:
        """As :meth:`Network.logits`, which has checked the step and made its copies; valid until the next call. None,
        with nothing done: the step is better done the ordinary way."""
        shape = self._shape_for(step.rows)
        return None if shape is None else self.run(step.rows, shape)

    def run(self, rows: Sequence[Rows], shape: Shape) -> torch.Tensor:
        """Of rows with one token each that fit into the shape."""
        ends = [(entry.slot, entry.start + 1) for entry in rows]
        self._network.cache.begin(ends, [(slot, end, shape.width) for slot, end in ends if end < shape.width])
        self.replays += 1
        logits: torch.Tensor = self._captured[shape].run([self._numbers(rows, shape)])
        return logits[: len(rows)]

    def close(self) -> None:
        """When the device is done with the last replay."""
        for captured in self._captured.values():
            captured.forget()
        self._captured.clear()
        self._shapes, self._out = (), None
        self._drop()

    def _shape_for(self, rows: Sequence[Rows]) -> Shape | None:
        if not rows or any(len(entry.tokens) > 1 or entry.draw is None or entry.targets for entry in rows):
            return None
        ends = [entry.start + 1 for entry in rows]
        shape = smallest(self._shapes, max(entry.slot for entry in rows) + 1, max(ends))
        if shape is None or shape.positions - sum(ends) > self._idle_positions:
            return None
        return shape

    def _numbers(self, rows: Sequence[Rows], shape: Shape) -> torch.Tensor:
        """int64 [4, rows of the shape], on the host: of each slot its token, its position, where its keys go; and the
        slots whose logits are wanted, in the order of the step."""
        ids, positions, order = ([0] * shape.rows for _ in range(3))
        write_positions = [self._network.length] * shape.rows
        for index, entry in enumerate(rows):
            ids[entry.slot] = entry.tokens[0]
            positions[entry.slot] = write_positions[entry.slot] = entry.start
            order[index] = entry.slot
        return on_host([ids, positions, write_positions, order], torch.long, self._network.device)

    def _forward(self, shape: Shape, numbers: torch.Tensor) -> torch.Tensor:
        """The logits come out in memory that all shapes share: each of its own would be held for ever. It is made by
        the first forward, of the largest shape, which is an ordinary one."""
        network = self._network
        ids, positions, write_positions, order = numbers.unbind()
        slots = slice(0, shape.rows)
        part = Part(slots, slots, (shape.width,) * shape.rows)
        layout = _FixedLayout(ids[None], positions[None], self._slots[slots], order, [part], network.dtype)
        logits = network.forward(
            layout.ids, layout.positions, order, _FixedServing(network.cache, layout, write_positions)
        )
        if self._out is None:
            self._out = torch.empty_like(logits)
        return self._out[slots].copy_(logits)


class _FixedLayout(Layout):
    """Every row is read up to the end of its part, under a mask."""

    __slots__ = ()

    def _call(self, part: Part, window: int | None, masks_only: bool) -> Call:
        columns = slice(0, max(part.ends))
        return Call(part, columns, self._mask(part, columns, window))


class _FixedServing(Serving):
    """Writes keys to ``write_positions``, int64 [rows], in place of their positions."""

    __slots__ = ()

    def __init__(self, cache: Cache, layout: Layout, write_positions: torch.Tensor) -> None:
        super().__init__(cache, layout)
        self._positions = write_positions
