"""The inputs of one run on their way into shared memory: in place where they were staged, else copied."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfs_lite.core.model import Shapes
from tfs_lite.core.signature import Tensor
from tfs_lite.protocols.dtypes import Array, from_numpy, to_numpy
from tfs_lite.workers.arena import Arena
from tfs_lite.workers.tensors import TensorLocation, end_of, lay_out_shapes


class Staging:
    """Owns the memory that inputs are written to. One thread at a time: ``stage`` if wanted, ``locate``, ``forget``."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._views: dict[str, tuple[TensorLocation, Array]] = {}

    def stage(self, shapes: Shapes) -> dict[str, Tensor]:
        """Arrays of these shapes, to be filled before ``locate``. RESOURCE_EXHAUSTED beyond the limit."""
        locations = lay_out_shapes(shapes)
        self.arena.grow(end_of(locations))
        self._views = {location.name: (location, self.arena.view(location)) for location in locations}
        return {name: view for name, (_, view) in self._views.items()}

    def locate(self, inputs: Mapping[str, Tensor]) -> list[TensorLocation]:
        """The locations of the inputs now. Those that are staged arrays, or rows of one, stay where they are; the
        others are copied behind them. May be repeated for the same inputs. Errors as :meth:`Arena.write`."""
        views = self._views
        placed: list[TensorLocation] = []
        others: dict[str, Tensor] = {}
        for name, tensor in inputs.items():
            found = _staged_location(name, tensor, views)
            if found is None:
                others[name] = tensor
            else:
                placed.append(found)
        if others:
            placed += self.arena.write(others, end_of([location for location, _ in views.values()]))
        return placed

    def forget(self) -> None:
        """Ends what was staged: later tensors are copied."""
        self._views = {}

    def close(self) -> None:
        self.forget()
        self.arena.close()


def _staged_location(
    name: str, tensor: Tensor, views: Mapping[str, tuple[TensorLocation, Array]]
) -> TensorLocation | None:
    """The tensor's location if it lies in the memory staged under its name."""
    staged = views.get(name)
    if staged is None or not isinstance(tensor, np.ndarray):
        return None
    location, view = staged
    if tensor is view:
        return location
    if tensor.dtype != view.dtype or not tensor.flags.c_contiguous or not tensor.size:
        return None
    offset = tensor.__array_interface__["data"][0] - view.__array_interface__["data"][0]
    if offset or tensor.nbytes > view.nbytes:
        return None
    dtype = from_numpy(tensor.dtype)
    return location._replace(shape=tensor.shape, nbytes=tensor.size * to_numpy(dtype).itemsize)
