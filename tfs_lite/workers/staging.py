"""The inputs of one run on their way into shared memory: in place where they were staged, else copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tfs_lite.core.model import Shapes
from tfs_lite.core.signature import Tensor
from tfs_lite.protocols.dtypes import from_numpy, to_numpy
from tfs_lite.workers.arena import Arena, Array, Place, end_of, lay_out_shapes


class Staging:
    """Owns the memory that inputs go into. One thread at a time: ``stage`` if it likes, ``place``, ``forget``."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._views: dict[str, tuple[Place, Array]] = {}

    def stage(self, shapes: Shapes) -> dict[str, Tensor]:
        """Arrays of these shapes, to be filled before ``place``. RESOURCE_EXHAUSTED beyond the limit."""
        places = lay_out_shapes(shapes)
        self.arena.grow(end_of(places))
        self._views = {place.name: (place, self.arena.view(place)) for place in places}
        return {name: view for name, (_, view) in self._views.items()}

    def place(self, inputs: Mapping[str, Tensor]) -> list[Place]:
        """Where the inputs lie now. Those that are staged arrays, or rows of one, stay where they are; the others are
        copied behind them. May be repeated for the same inputs. Errors as :meth:`Arena.put`."""
        views = self._views
        placed: list[Place] = []
        others: dict[str, Tensor] = {}
        for name, tensor in inputs.items():
            found = _in_place(name, tensor, views)
            if found is None:
                others[name] = tensor
            else:
                placed.append(found)
        if others:
            placed += self.arena.put(others, end_of([place for place, _ in views.values()]))
        return placed

    def forget(self) -> None:
        """What was staged is over."""
        self._views = {}

    def close(self) -> None:
        self.forget()
        self.arena.close()


def _in_place(name: str, tensor: Tensor, views: Mapping[str, tuple[Place, Array]]) -> Place | None:
    """The tensor's place if it lies in the memory staged under its name."""
    staged = views.get(name)
    if staged is None or not isinstance(tensor, np.ndarray):
        return None
    place, view = staged
    if tensor is view:
        return place
    if tensor.dtype != view.dtype or not tensor.flags.c_contiguous or not tensor.size:
        return None
    offset = tensor.__array_interface__["data"][0] - view.__array_interface__["data"][0]
    if offset or tensor.nbytes > view.nbytes:
        return None
    dtype = from_numpy(tensor.dtype)
    return replace(place, shape=tensor.shape, nbytes=tensor.size * to_numpy(dtype).itemsize)
