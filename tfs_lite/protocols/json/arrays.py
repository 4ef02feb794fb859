"""Nested lists of a REST body -> arrays by numpy, which converts whole levels at once.

Only for regular lists with leaves that fit; for others ``tensors`` finds the mistake. An array in the tree stands for
the equal list.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import MAX_RANK, Array, to_numpy
from tfs_lite.protocols.json.values import FLOATS, INTEGERS, read_element


def read_dense(value: object, dtype: DataType) -> Array | None:
    """The array that ``value`` stands for, C-contiguous: a leaf, nested lists or an array of numbers.

    It may be ``value`` itself, and read-only. Numbers too large for a floating type become infinities. None if lists
    are not regular or too deep for numpy, or if a leaf does not fit.
    """
    shape: list[int] = []
    level: list[Any] = [value]
    while level:
        kinds = set(map(type, level))
        if np.ndarray in kinds:
            return _join(level, shape, dtype)
        if kinds != {list}:
            break
        lengths = set(map(len, level))
        if len(lengths) > 1 or len(shape) == MAX_RANK:
            return None
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    flat = _flat(level, dtype)
    return None if flat is None else flat.reshape(shape)


def first_unfit(numbers: Array, dtype: DataType) -> int | None:
    """The flat index of the first element that does not fit the type; None if there is none.

    In an array of floats, whole numbers may have been integers in the text, so one that cannot have been is preferred.
    """
    if dtype in FLOATS or not numbers.size:
        return None
    if dtype not in INTEGERS:
        return 0
    if numbers.dtype.kind == "f":
        return int(np.argmax((np.trunc(numbers) != numbers) | (np.abs(numbers) >= 2.0**64)))
    low, high = INTEGERS[dtype].min, INTEGERS[dtype].max
    if low <= int(numbers.min()) and int(numbers.max()) <= high:
        return None
    return int(np.argmax((numbers < low) | (numbers > high)))


def _join(level: list[Any], shape: list[int], dtype: DataType) -> Array | None:
    """The tensor whose elements of one level are in ``level``, some of them as arrays."""
    parts: list[Array] = []
    for item in level:
        part = _convert(item, dtype) if isinstance(item, np.ndarray) else read_dense(item, dtype)
        if part is None or (parts and part.shape != parts[0].shape):
            return None
        parts.append(part)
    if not shape:
        return parts[0]
    shape = [*shape, *parts[0].shape]
    return np.stack(parts).reshape(shape) if len(shape) <= MAX_RANK else None


def _flat(leaves: list[Any], dtype: DataType) -> Array | None:
    """The leaves as a flat array, None if one does not fit."""
    kinds = set(map(type, leaves))
    if not leaves:
        return np.empty(0, to_numpy(dtype))
    if dtype is DataType.STRING:
        return _strings(leaves, kinds)
    if dtype is DataType.BOOL:
        return np.array(leaves, np.bool_) if kinds == {bool} else None
    if not kinds <= {int, float}:
        return None
    if dtype in FLOATS:
        return _convert(np.array(leaves, np.float64), dtype)
    if float in kinds:
        return None
    try:
        return _convert(np.array(leaves, np.uint64 if max(leaves) >= 2**63 else np.int64), dtype)
    except OverflowError:
        return None


def _strings(leaves: list[Any], kinds: set[type]) -> Array | None:
    strings = np.empty(len(leaves), object)
    if kinds == {str}:
        strings[:] = [leaf.encode() for leaf in leaves]
        return strings
    try:
        strings[:] = [read_element(leaf, DataType.STRING) for leaf in leaves]
    except ServingError:
        return None
    return strings


def _convert(numbers: Array, dtype: DataType) -> Array | None:
    """An int64, uint64 or float64 array as one of ``dtype``. None if an element does not fit.

    Integers become floats by way of float64, whether they came in a list or as an array.
    """
    if first_unfit(numbers, dtype) is not None:
        return None
    with np.errstate(all="ignore"):
        wide = np.asarray(numbers, np.float64) if dtype in FLOATS else numbers
        return np.asarray(wide, to_numpy(dtype), order="C")
