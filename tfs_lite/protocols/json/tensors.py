"""Nested lists of a REST body -> arrays, or what is wrong with them.

The shape is that of the first element at each level; every other element has to agree with it, and every leaf has to be
of the tensor's type. ``arrays`` reads correct values. The others are read here in order, to name the first mistake;
correct runs are skipped at the quick reader's speed, so that a mistake at the end of a large body is found soon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from tfs_lite.core.signature import DataType, format_shape
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import MAX_RANK, Array
from tfs_lite.protocols.json.arrays import first_unfit, read_dense
from tfs_lite.protocols.json.values import read_element, show

Shape = tuple[int, ...]

_RUN = 1024
_WORTH_A_TRY = 16
"""The number of items from which on checking all of them at once is quicker than one by one."""


def infer_dtype(value: object) -> DataType:
    """The element type of a value whose input declares none, from all its leaves.

    FLOAT if a number has a fraction or an exponent, INT64 for other numbers, BOOL, STRING; FLOAT without leaves. A leaf
    that does not go with the others is found when the value is read.
    """
    kinds: set[type] = set()
    level: list[Any] = [value]
    while level:
        types = set(map(type, level))
        if np.ndarray in types:
            arrays = (item for item in level if isinstance(item, np.ndarray) and item.size)
            kinds |= {float if array.dtype.kind == "f" else int for array in arrays}
        kinds |= types - {list, np.ndarray}
        level = list(chain.from_iterable(item for item in level if type(item) is list)) if list in types else []
    if float in kinds:
        return DataType.FLOAT
    if int in kinds:
        return DataType.INT64
    if kinds & {str, bytes, dict}:
        return DataType.STRING
    return DataType.BOOL if bool in kinds else DataType.FLOAT


def read_tensor(value: object, dtype: DataType) -> Array:
    """The array that ``value`` stands for: a leaf, nested lists, or an array of numbers. ``dtype`` is a declared one.

    The result may be ``value`` itself, and read-only. Numbers too large for a floating type become infinities.
    INVALID_ARGUMENT for ragged lists, leaves of another type, integers out of range, more dimensions than numpy has;
    UNIMPLEMENTED for a type that REST has no form for.
    """
    array = read_dense(value, dtype)
    if array is None:
        _check(value, 0, _first_shape(value), dtype)
        raise irregular()
    return array


def runs(items: list[Any]) -> Iterator[tuple[int, list[Any]]]:
    """The items in runs, each with the number of its first item."""
    return ((start, items[start : start + _RUN]) for start in range(0, len(items), _RUN))


def element_error(numbers: Array, position: int, dtype: DataType) -> ServingError:
    """Why the element at ``position``, in flat order, is not one of ``dtype``."""
    try:
        read_element(numbers.flat[position].item(), dtype)
    except ServingError as error:
        return error
    return irregular()


def irregular() -> ServingError:
    return invalid_argument("lists are not regular")


class RowChecker:
    """Compares the rows of one tensor to the first of them, in order."""

    def __init__(self, dtype: DataType) -> None:
        self._dtype = dtype
        self._expected: Shape | None = None

    def fits(self, rows: Array) -> bool:
        """Whether the rows of an array, at least one, agree with those before."""
        shape: Shape = rows.shape[1:]
        self._expected = shape if self._expected is None else self._expected
        return shape == self._expected

    def check(self, row: object) -> None:
        """Errors are those of :func:`read_tensor`; INVALID_ARGUMENT if the row has another size or shape."""
        shape = read_tensor(row, self._dtype).shape
        expected = shape if self._expected is None else self._expected
        if math.prod(shape) != math.prod(expected):
            raise invalid_argument(f"Expecting tensor size: {math.prod(expected)} but got: {math.prod(shape)}")
        if shape != expected:
            raise invalid_argument(f"Expecting shape {format_shape(expected)} but got: {format_shape(shape)}")
        if len(shape) >= MAX_RANK:
            raise _too_deep()
        self._expected = expected


def _first_shape(value: object) -> Shape:
    shape: list[int] = []
    while isinstance(value, list) and len(shape) <= MAX_RANK:
        shape.append(len(value))
        value = value[0] if value else None
    if isinstance(value, np.ndarray):
        shape.extend(value.shape)
    if len(shape) > MAX_RANK:
        raise _too_deep()
    return tuple(shape)


def _check(value: object, level: int, shape: Shape, dtype: DataType) -> None:
    """Raises the first thing that is wrong with ``value``, which stands at ``level`` of a tensor of this shape."""
    if isinstance(value, np.ndarray):
        _check_array(value, level, shape, dtype)
    elif isinstance(value, list):
        _check_size(len(value), level, shape)
        for _, items in runs(value):
            if not _are_right(items, shape[level + 1 :], dtype):
                for item in items:
                    _check(item, level + 1, shape, dtype)
    else:
        _check_level(value, level, shape)
        read_element(value, dtype)


def _are_right(items: list[Any], shape: Shape, dtype: DataType) -> bool:
    array = read_dense(items, dtype) if len(items) >= _WORTH_A_TRY else None
    return array is not None and array.shape[1:] == shape


def _check_array(array: Array, level: int, shape: Shape, dtype: DataType) -> None:
    for axis, size in enumerate(array.shape):
        _check_size(size, level + axis, shape)
    if array.size:
        _check_level(array.flat[0].item(), level + array.ndim, shape)
    position = first_unfit(array, dtype)
    if position is not None:
        raise element_error(array, position, dtype)


def _check_size(size: int, level: int, shape: Shape) -> None:
    if level >= len(shape):
        raise invalid_argument(f"Encountered list at unexpected level: {level}, expected below {len(shape)}")
    if size != shape[level]:
        raise invalid_argument(
            f"Encountered list at unexpected size: {size} at level: {level}, expected size: {shape[level]}"
        )


def _check_level(leaf: object, level: int, shape: Shape) -> None:
    if level != len(shape):
        raise invalid_argument(
            f"JSON Value: {show(leaf)} found at incorrect level: {level}, expected at level: {len(shape)}"
        )


def _too_deep() -> ServingError:
    return invalid_argument(f"lists are nested more than {MAX_RANK} deep")
