"""The layout of a step: the order of its rows in one forward, and the attention calls that they make.

A forward takes all rows of a step as one sequence, without padding: first the texts with one row, by slot, then those
with more. Attention reads the cache in place: neighbouring slots are read by one call, unless their lengths are so
unequal that reading past the shorter ones costs more than another call. Indices and masks, which are the same in all
layers, are made once per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from tfs_lite.adapters.language.engine_stream import upload
from tfs_lite.core.generation import Rows, Step

CPU_CALL_BYTES = 512 << 10
"""Bytes of the cache that are read in the time that one more call takes."""
GPU_CALL_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of the forward that share an attention call: one row each of the neighbouring ``slots``, or consecutive
    rows of one slot. ``ends``: of each row, how many positions of its slot it sees (its own is the last)."""

    rows: slice
    slots: slice
    ends: tuple[int, ...]

    @property
    def one_text(self) -> bool:
        """Whether its rows are consecutive ones of one slot."""
        return bool(len(self.ends) > self.slots.stop - self.slots.start)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """A part, and the ``columns`` of its slots that it reads. ``mask`` is added to the scores, [texts, 1, 1, columns]
    or [1, 1, rows, columns]; None means that every row sees every column, or with ``causal`` those up to its own."""

    part: Part
    columns: slice
    mask: torch.Tensor | None = None
    causal: bool = False


def parts_of(rows: Sequence[Rows], call_cost: float) -> list[Part]:
    """The parts of ``rows`` in the order of a forward. ``call_cost``: the cost of a call, in positions that could be
    read in its time."""
    parts: list[Part] = []
    before = 0
    for entry in rows:
        count, end = len(entry.tokens), entry.start + len(entry.tokens)
        slot, span = slice(entry.slot, entry.slot + 1), slice(before, before + count)
        last = parts[-1] if parts else None
        if count == 1 and last is not None and _joins(last, entry.slot, end, call_cost):
            slot, span = slice(last.slots.start, slot.stop), slice(last.rows.start, span.stop)
            parts[-1] = Part(span, slot, (*last.ends, end))
        else:
            parts.append(Part(span, slot, tuple(range(entry.start + 1, end + 1))))
        before += count
    return parts


def _joins(last: Part, slot: int, end: int, call_cost: float) -> bool:
    if last.one_text or slot != last.slots.stop:
        return False
    count, widest = len(last.ends), max(last.ends)
    return max(widest, end) * (count + 1) - widest * count <= end + call_cost


def in_order(rows: Sequence[Rows]) -> list[int]:
    """Indices of the rows in the order of a forward: single rows by slot, then the others."""
    return sorted(range(len(rows)), key=lambda index: (len(rows[index].tokens) > 1, rows[index].slot))


def wanted_rows(rows: Sequence[Rows], order: Sequence[int]) -> list[int]:
    """Rows of the forward whose logits are wanted, in the order of the step: of each of its ``rows`` as many of the
    first as it has targets, and the last one if it draws."""
    first = [0] * len(rows)
    for index, after in pairwise(order):
        first[after] = first[index] + len(rows[index].tokens)
    wanted: list[int] = []
    for begin, entry in zip(first, rows, strict=True):
        targets, count = len(entry.targets), len(entry.tokens)
        wanted.extend(range(begin, begin + targets))
        if entry.draw is not None and targets < count:
            wanted.append(begin + count - 1)
    return wanted


@dataclass(slots=True, eq=False)
class StepLayout:
    """A step as a forward takes it. Tensors are int64, on the network's device: ``ids`` and ``positions`` [1, rows],
    ``slots`` [rows], ``wanted`` [wanted rows], or None for all rows in the order of the forward."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    wanted: torch.Tensor | None
    parts: Sequence[Part]
    dtype: torch.dtype
    _calls: dict[tuple[int | None, bool], list[AttentionCall]] = field(default_factory=dict)

    def calls(self, window: int | None, masks_only: bool = False) -> list[AttentionCall]:
        """The attention calls of a layer whose rows see the last ``window`` positions, or all with None.
        ``masks_only``: no call is ``causal``. Layers with the same arguments get the same list."""
        known = self._calls.get((window, masks_only))
        if known is None:
            known = self._calls[window, masks_only] = [self._call(part, window, masks_only) for part in self.parts]
        return known

    @property
    def masked_widths(self) -> list[tuple[int, int, int]]:
        """Slot, end and end of reading of every text that is read past its end by a call for several slots."""
        return [
            (part.slots.start + index, end, max(part.ends))
            for part in self.parts
            if not part.one_text
            for index, end in enumerate(part.ends)
            if end < max(part.ends)
        ]

    def _call(self, part: Part, window: int | None, masks_only: bool) -> AttentionCall:
        low = 0 if window is None else max(min(part.ends) - window, 0)
        high = max(part.ends)
        columns = slice(low, high)
        equal = min(part.ends) == high
        if equal:
            return AttentionCall(part, columns)
        fits = window is None or high <= window
        if part.one_text and fits and part.ends[0] == 1 and not masks_only:
            return AttentionCall(part, columns, causal=True)
        return AttentionCall(part, columns, self._mask(part, columns, window))

    def _mask(self, part: Part, columns: slice, window: int | None) -> torch.Tensor:
        own = self.positions[0, part.rows, None]
        seen = torch.arange(columns.start, columns.stop, device=own.device)
        hidden = seen > own
        if window is not None:
            hidden |= seen <= own - window
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=own.device).masked_fill_(hidden, -torch.inf)
        return mask[None, None] if part.one_text else mask[:, None, None]


def layout_of(step: Step, device: torch.device, dtype: torch.dtype, call_cost: float) -> StepLayout:
    """The layout of a step, with masks of ``dtype``. One small tensor goes to the device."""
    order = in_order(step.rows)
    rows = [step.rows[index] for index in order]
    count = sum(len(entry.tokens) for entry in rows)
    numbers: list[int] = []
    for entry in rows:
        numbers.extend(entry.tokens)
    for entry in rows:
        numbers.extend(range(entry.start, entry.start + len(entry.tokens)))
    for entry in rows:
        numbers.extend([entry.slot] * len(entry.tokens))
    wanted = wanted_rows(step.rows, order)
    everything = wanted == list(range(count))
    packed = upload(numbers if everything else numbers + wanted, torch.long, device)
    ids, positions, slots = packed[: 3 * count].view(3, 1, count)
    picked = None if everything else packed[3 * count :]
    return StepLayout(ids, positions, slots[0], picked, parts_of(rows, call_cost), dtype)
