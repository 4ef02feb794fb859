"""Decode steps as forwards of a few fixed shapes, which CUDA graphs record once and replay with new numbers.

    rows of a step -> the smallest shape that holds them -> its inputs are filled -> replay -> logits

Row ``i`` of such a forward is slot ``i``. Texts get the lowest free slot, so the slots in use are among the first, and
attention reads the cache where it lies, as in any other step. Gathering the caches of the rows first would pass over
memory three times; reading idle slots costs less, unless nearly all slots are idle or nearly all texts are much shorter
than the longest. Such steps, and those with prompts, are carried out the ordinary way.

An idle row is a token at position 0 whose result is not used. Its keys are written to one extra position behind the
last one of its slot, because the slot may still hold the beginning of another text.

All graphs are captured, and compared with ordinary steps, while the version loads: a capture during serving would hold
up every text. They share one memory pool, large enough for the largest graph, because only one of them runs at a time.
"""

from __future__ import annotations

import gc
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from tfs_lite.adapters.cuda.graphs import Capture, Captured, Forward, capture_on
from tfs_lite.adapters.cuda.memory import DEVICE_LOCKS, MemoryPool
from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.language.attention import CachedAttention
from tfs_lite.adapters.language.cache import Cache
from tfs_lite.adapters.language.engine_stream import on_host, synchronize
from tfs_lite.adapters.language.layout import GPU_CALL_BYTES, AttentionCall, Part, StepLayout
from tfs_lite.adapters.language.network import Network
from tfs_lite.adapters.language.self_check import ALLOWED
from tfs_lite.core.generation import Rows, Sampling, SamplingRequest, Step
from tfs_lite.core.servable import ServableId

MAX_SHAPES = 96
FIRST_WIDTH = 128
IDLE_BYTES = 16 * GPU_CALL_BYTES
"""Bytes of one layer's cache: reading so much in vain takes as long as starting the operators of a layer one by one."""
_LEAST_ROWS = 8
_PER_OCTAVE = (8, 4, 2, 1)
logger = logging.getLogger(__name__)


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
    """The cheapest shape with these rows and this width, or None; ``shapes`` has the largest first."""
    return next((shape for shape in reversed(shapes) if shape.rows >= rows and shape.width >= width), None)


def _largest_first(shapes: Iterable[Shape]) -> list[Shape]:
    """The order in which the memory of each record is enough for those that follow."""
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


class FixedDecode:
    """The recorded forwards of ``network``, which must have been made with ``fixed``.

    Order: ``record`` once, ``logits`` any number of times, ``close`` once, before the network's memory goes. One thread
    at a time, on the stream of the record. ``replays`` counts.
    """

    def __init__(self, network: Network, drop: Callable[[], None], idle_bytes: int = IDLE_BYTES) -> None:
        """``drop`` frees the memory pool of the records."""
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
        """The recorded shapes."""
        return self._shapes

    def record(self, capture: Capture, shapes: Sequence[Shape]) -> None:
        """Records the shapes, the largest first. Errors of ``capture`` come through. Slots keep what they hold."""
        for shape in shapes:
            idle = self._numbers((), shape)
            self._captured[shape] = capture([idle], partial(self._forward, shape))
        self._shapes = tuple(shapes)

    def logits(self, step: Step) -> torch.Tensor | None:
        """Computes logits as :meth:`Network.logits` does, which has checked the step and made its copies; valid until
        the next call. None, with nothing done, for a step that is better carried out the ordinary way."""
        shape = self._shape_for(step.rows)
        return None if shape is None else self.run(step.rows, shape)

    def run(self, rows: Sequence[Rows], shape: Shape) -> torch.Tensor:
        """The logits of rows with one token each that fit into the shape."""
        ends = [(entry.slot, entry.start + 1) for entry in rows]
        self._network.cache.begin(ends, [(slot, end, shape.width) for slot, end in ends if end < shape.width])
        self.replays += 1
        logits: torch.Tensor = self._captured[shape].run([self._numbers(rows, shape)])
        return logits[: len(rows)]

    def close(self) -> None:
        """Drops the records; to be called when the device has finished the last replay."""
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
        """The inputs of a forward on the host, int64 [4, rows of the shape]: for each slot its token, its position and
        the position to which its keys are written; then the slots whose logits are wanted, in the order of the step."""
        ids, positions, order = ([0] * shape.rows for _ in range(3))
        write_positions = [self._network.length] * shape.rows
        for index, entry in enumerate(rows):
            ids[entry.slot] = entry.tokens[0]
            positions[entry.slot] = write_positions[entry.slot] = entry.start
            order[index] = entry.slot
        return on_host([ids, positions, write_positions, order], torch.long, self._network.device)

    def _forward(self, shape: Shape, numbers: torch.Tensor) -> torch.Tensor:
        """The logits are written to memory that all shapes share. The first forward, of the largest shape, makes it,
        which is not captured."""
        network = self._network
        ids, positions, write_positions, order = numbers.unbind()
        slots = slice(0, shape.rows)
        part = Part(slots, slots, (shape.width,) * shape.rows)
        layout = _FixedLayout(ids[None], positions[None], self._slots[slots], order, [part], network.dtype)
        logits = network.forward(
            layout.ids, layout.positions, order, _FixedAttention(network.cache, layout, write_positions)
        )
        if self._out is None:
            self._out = torch.empty_like(logits)
        return self._out[slots].copy_(logits)


class _FixedLayout(StepLayout):
    """A layout in which every row reads up to the end of its part, under a mask."""

    __slots__ = ()

    def _call(self, part: Part, window: int | None, masks_only: bool) -> AttentionCall:
        columns = slice(0, max(part.ends))
        return AttentionCall(part, columns, self._mask(part, columns, window))


class _FixedAttention(CachedAttention):
    """Writes keys to ``write_positions``, int64 [rows], instead of their positions."""

    __slots__ = ()

    def __init__(self, cache: Cache, layout: StepLayout, write_positions: torch.Tensor) -> None:
        super().__init__(cache, layout)
        self._positions = write_positions


def capture_decode(network: Network, servable_id: ServableId) -> None:
    """Gives ``network``, made with ``fixed`` on a GPU, its ``decoding``. It has to be called with the engine's stream
    current, after the self-check and before the first text. If the capture fails, the reason is logged and all steps
    are ordinary ones."""
    pool, began = MemoryPool(network.device), time.monotonic()
    gc.collect()  # Graphs of other versions must not be destroyed during a capture.
    decoding = FixedDecode(network, pool.drop)
    shapes = decode_shapes(network.slots, network.length)
    why = record_and_check(network, decoding, _in_turn(network.device, capture_on(network.device, pool)), shapes)
    if why:
        logger.warning("%s decodes without CUDA graphs: %s", servable_id, why)
        return
    seconds = time.monotonic() - began
    logger.info("%s decodes with %d CUDA graphs, captured and checked in %.1f s", servable_id, len(shapes), seconds)


@torch.inference_mode()
def record_and_check(network: Network, decoding: FixedDecode, capture: Capture, shapes: Sequence[Shape]) -> str:
    """Sets ``network.decoding`` and returns an empty string; or closes ``decoding`` and returns the reason. The cache
    is clear afterwards."""
    why = ""
    try:
        decoding.record(capture, shapes)
        worst = worst_difference(network, decoding)
        allowed = ALLOWED.get(network.dtype, ALLOWED[torch.bfloat16])
        if not worst <= allowed:
            why = f"logits differ by {worst:.2g} of their spread from those of ordinary steps, {allowed:.2g} is allowed"
    except Exception as error:
        why = sentence(error)
    finally:
        network.cache.clear(everything=True)
    if why:
        synchronize(network.device)
        decoding.close()
    else:
        network.decoding = decoding
    return why


def worst_difference(network: Network, decoding: FixedDecode) -> float:
    """The largest difference between the logits of a recorded shape and those of the same step carried out the ordinary
    way, in parts of their spread; infinite for NaN. The cache is filled with random numbers."""
    device, numbers = network.device, random.Random(0)
    noise = torch.Generator(device).manual_seed(0)
    for tensor in (*network.cache.keys.values(), *network.cache.values.values()):
        tensor.normal_(generator=noise)
    wide = torch.promote_types(network.dtype, torch.float32)
    worst = 0.0
    for shape in decoding.shapes:
        step = Step(_rows(shape, network.vocabulary, numbers))
        plain, fixed = network.logits(step).to(wide), decoding.run(step.rows, shape).to(wide)
        spread = (plain.max() - plain.min()).item() or 1.0
        difference = (plain - fixed).abs().max().item() / spread
        worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


def _rows(shape: Shape, vocabulary: int, numbers: random.Random) -> list[Rows]:
    """Rows in some of the shape's slots, in any order; the last slot and the last position are among them."""
    slots = [slot for slot in range(shape.rows - 1) if numbers.random() < 0.7]
    ends = {slot: numbers.randrange(shape.width) for slot in slots} | {shape.rows - 1: shape.width - 1}
    rows = [
        Rows(slot, start, [numbers.randrange(vocabulary)], SamplingRequest(Sampling(), 0, 0, (), 0))
        for slot, start in ends.items()
    ]
    numbers.shuffle(rows)
    return rows


def _in_turn(device: torch.device, capture: Capture) -> Capture:
    """Serialises the capture with loads, unloads and other captures on the device."""

    def with_the_lock(host: Sequence[torch.Tensor], forward: Forward) -> Captured:
        with DEVICE_LOCKS.of(device):
            return capture(host, forward)

    return with_the_lock
