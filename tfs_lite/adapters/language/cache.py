"""Keys and values of the running texts: one slot for each text, allocated once and written in place.

A slot still holds what its last text left. An attention call that reads several slots reads the shorter ones past their
end, under a mask, and a mask does not undo NaN. So the cache knows up to which position a slot may hold something, and
clears what is left over before it is read.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tfs_lite.core.generation import Copy


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads of keys and values of one layer, and the sizes of a key and of a value."""

    heads: int
    key: int
    value: int


class Cache:
    """The cache of ``slots`` texts of up to ``length`` positions. One thread.

    ``keys`` and ``values``: by number of the layer, [slots, heads, length, size], with zeros where nothing was written.
    Their memory never moves.
    """

    def __init__(
        self, shapes: dict[int, LayerShape], slots: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots = slots
        self.length = length

        def empty(shape: LayerShape, size: int) -> torch.Tensor:
            return _zeros((slots, shape.heads, length, size), dtype, device)

        self.keys = {layer: empty(shape, shape.key) for layer, shape in shapes.items()}
        self.values = {layer: empty(shape, shape.value) for layer, shape in shapes.items()}
        self._tensors = [*self.keys.values(), *self.values.values()]
        self._by_row = {
            layer: (self.keys[layer].permute(0, 2, 1, 3), self.values[layer].permute(0, 2, 1, 3)) for layer in shapes
        }
        self._used = [0] * slots
        """The position from which on each slot holds zeros."""

    @property
    def position_bytes(self) -> int:
        """The most bytes of one position in one layer."""
        return max((2 * t.shape[1] * t.shape[3] * t.element_size() for t in self._tensors), default=1)

    def resident_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Makes the copies, in order."""
        for wanted in copies:
            for tensor in self._tensors:
                tensor[wanted.target, :, : wanted.count] = tensor[wanted.source, :, : wanted.count]
            self._note(wanted.target, wanted.count)

    def begin(self, ends: Sequence[tuple[int, int]], read_past: Sequence[tuple[int, int, int]]) -> None:
        """Called before the rows of a step are written. ``ends``: the slot of each text and how many positions it will
        have. ``read_past``: slot, end and end of reading of the texts that are read past their end."""
        for slot, end in ends:
            self._note(slot, end)
        for slot, end, _ in read_past:
            if self._used[slot] > end:
                for tensor in self._tensors:
                    tensor[slot, :, end : self._used[slot]].zero_()
                self._used[slot] = end

    def write(
        self, layer: int, slots: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """``keys`` and ``values``: [rows, heads, size], to ``slots`` and ``positions``, int64 [rows] each."""
        to_keys, to_values = self._by_row[layer]
        to_keys.index_put_((slots, positions), keys)
        to_values.index_put_((slots, positions), values)

    def clear(self, everything: bool = False) -> None:
        """Clears all slots; with ``everything`` also what was written without ``begin``."""
        for slot, used in enumerate([self.length] * self.slots if everything else self._used):
            for tensor in self._tensors if used else ():
                tensor[slot, :, :used].zero_()
        self._used = [0] * self.slots

    def _note(self, slot: int, end: int) -> None:
        self._used[slot] = max(self._used[slot], end)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Makes a tensor of zeros. On the CPU the memory is mapped from the system: pages that are never written take no
    memory, and all of it is given back with the tensor, which the heap does not promise."""
    count = math.prod(shape)
    if device.type != "cpu" or not count:
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
