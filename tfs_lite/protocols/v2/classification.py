"""The classification extension of V2: instead of an output's numbers, the best few as texts ``value:index[:label]``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.dtypes import Array, from_numpy

MAX_ELEMENTS = 1_000_000
_WITH_CLASSES = frozenset(
    {
        *(DataType.FLOAT, DataType.DOUBLE),
        *(DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64),
        *(DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64),
    }
)


def classes(array: Array, count: int, batched: bool, labels: Sequence[str] = (), name: str = "") -> Array:
    """The ``count`` largest values of each row, or of the whole array unless ``batched``, in descending order, and
    equal ones by index: an object array of ``bytes`` of shape [rows, min(count, n)], or [min(count, n)].

    ``labels`` are those of the first indices. INVALID_ARGUMENT for types that are no numbers or have no order, and for
    more than a million elements.
    """
    if from_numpy(array.dtype) not in _WITH_CLASSES:
        raise invalid_argument(f"class result not available for output due to unsupported type (output '{name}')")
    if array.size > MAX_ELEMENTS:
        raise invalid_argument(
            f"classification output tensor too large: output '{name}' has {array.size} elements, "
            f"at most {MAX_ELEMENTS} are allowed"
        )
    batched = batched and array.ndim > 0
    rows = array if batched else array[np.newaxis]
    flat = rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))
    width = min(count, flat.shape[1])
    indices = _best(flat, width)
    found = np.empty(indices.size, object)
    found[:] = _texts(np.take_along_axis(flat, indices, axis=1), indices, labels)
    found = found.reshape(indices.shape)
    return found if batched else found[0]


def _best(rows: Array, count: int) -> Array:
    """Indices of the largest values of each row; NaN comes last."""
    backwards = rows[:, ::-1]
    if rows.dtype.kind == "f":
        backwards = np.where(np.isnan(backwards), -np.inf, backwards)
    order = np.argsort(backwards, axis=1, kind="stable")
    indices: Array = rows.shape[1] - 1 - order[:, ::-1]
    return indices[:, :count]


def _texts(values: Array, indices: Array, labels: Sequence[str]) -> list[bytes]:
    """The texts, flat. Has to be quick, because there may be a million."""
    form = b"%f:%d" if values.dtype.kind == "f" else b"%d:%d"
    pairs = zip(values.ravel().tolist(), indices.ravel().tolist(), strict=True)
    if not any(labels):
        return [form % pair for pair in pairs]
    endings = [f":{label}".encode() if label else b"" for label in labels]
    known = len(endings)
    return [form % pair + endings[pair[1]] if pair[1] < known else form % pair for pair in pairs]
