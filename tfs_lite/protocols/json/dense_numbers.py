"""Large arrays of numbers in a JSON text, read straight into numpy.

A part without strings that is one rectangular nested list of numbers is recognised in two passes, each over chunks of
64 KB, so that no call holds the interpreter lock for long and no list of Python numbers grows beyond a chunk. The first
pass keeps only brackets and commas and compares them to the shape that they begin with. The second parses the numbers,
chunk by chunk. The ordinary parser reads what does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json.scan import SLICE_BYTES, SPECIAL, long_gaps
from tfs_lite.protocols.json.tree import tight

LEAST_BYTES = 8 * 1024
"""Shorter lists stay lists."""
MAX_RANK = 64
"""numpy's bound on the number of dimensions."""

_NUMBERS_AND_SPACE = b"0123456789+-.eENaInfity \t\r\n"
_BRACKETS_TO_SPACE = bytes.maketrans(b"[]", b"  ")
_OPEN, _CLOSE, _COMMA, _SPACE = b"[], "
_MAX_SPACES = 100
"""White space next to one bracket, in bytes; a list with more is left to the ordinary parser."""


def large_arrays(
    text: bytes, least: int = LEAST_BYTES, chunk_bytes: int = SLICE_BYTES
) -> Iterator[tuple[int, int, Array]]:
    """Yields ``(start, end, array)`` for each large dense array of numbers: ``text[start:end]`` is exactly its text.

    int64 if every number is an integer that fits, uint64 if that is needed and enough, float64 otherwise (integers
    among floats become floats; so do those beyond 64 bits). Special numbers such as ``NaN`` count as floats.
    The text as a whole need not be valid: what is yielded is the text of a valid array all the same. ``least``: how
    many bytes make an array large. ``chunk_bytes``: how many are read by one call.
    """
    for start, end in long_gaps(text, least, chunk_bytes):
        start, end = text.find(b"[", start, end), text.rfind(b"]", start, end) + 1
        if start < 0 or end - start < least:
            continue
        structure = _structure(text, start, end, chunk_bytes)
        end = _without_foreign_brackets(text, start, end, structure)
        shape = _shape(structure)
        if shape is None or end - start < least:
            continue
        numbers = _numbers(text, start, end, math.prod(shape), chunk_bytes)
        if numbers is not None:
            yield start, end, numbers.reshape(shape)


def _structure(text: bytes, start: int, end: int, chunk_bytes: int) -> bytearray:
    """The text without its numbers and white space."""
    structure = bytearray()
    for position in range(start, end, chunk_bytes):
        structure += text[position : min(position + chunk_bytes, end)].translate(None, _NUMBERS_AND_SPACE)
    return structure


def _without_foreign_brackets(text: bytes, start: int, end: int, structure: bytearray) -> int:
    """The new end, once the closing brackets are gone that belong to lists which began before ``start``."""
    view = np.frombuffer(structure, np.uint8)
    foreign = int(np.count_nonzero(view == _CLOSE)) - int(np.count_nonzero(view == _OPEN))
    del view
    for _ in range(min(foreign, MAX_RANK)):
        end = text.rfind(b"]", start, end - 1) + 1
        del structure[structure.rfind(b"]", 0, -1) + 1 :]
    return end


def _shape(structure: bytearray) -> tuple[int, ...] | None:
    """The shape whose brackets and commas these are, or None if there is none.

    From outside to inside: between its own brackets a list is the text of its first item, repeated with commas
    between. The innermost list is commas only.
    """
    view = np.frombuffer(structure, np.uint8)
    start, end = 0, len(structure)
    shape: list[int] = []
    while len(shape) < MAX_RANK and end - start >= 2 and structure[start] == _OPEN and structure[end - 1] == _CLOSE:
        start, last = start + 1, end - 1
        width = _item_width(structure, start, last)
        items, left_over = divmod(last + 1 - start, width or 1)
        body = view[start:last]
        if width == 0 or left_over or not (body[width:] == body[:-width]).all():
            return None
        if items > 1 and body[width - 1] != _COMMA:
            return None
        shape.append(items)
        if width == 1:
            return tuple(shape)
        end = start + width - 1
    return None


def _item_width(structure: bytearray, start: int, end: int) -> int:
    """How many bytes the first item takes with the comma after it, 0 if it has no end.

    An item that begins with n brackets ends with the first n closing ones in a row, if it is regular.
    """
    beginning = structure[start : min(end, start + MAX_RANK)]
    opening = len(beginning) - len(beginning.lstrip(b"["))
    if opening == 0:
        return 1
    stop = structure.find(b"]" * opening, start, end)
    return 0 if stop < 0 else stop + opening + 1 - start


def _numbers(text: bytes, start: int, end: int, count: int, chunk_bytes: int) -> Array | None:
    """All numbers, flat, or None if anything between the commas is not one number in the right place."""
    numbers = np.empty(0, np.int64)
    done = 0
    while start < end:
        stop = text.rfind(b",", start, start + chunk_bytes) if end - start > chunk_bytes else end
        if stop < 0:
            return None
        chunk = _chunk(text[start:stop])
        if chunk is None or done + chunk.size > count:
            return None
        if done == 0:
            numbers = np.empty(count, chunk.dtype)
        elif numbers.dtype != chunk.dtype:
            common = _common(numbers[:done], chunk)
            numbers, chunk = numbers.astype(common, copy=False), chunk.astype(common, copy=False)
        numbers[done : done + chunk.size] = chunk
        done += chunk.size
        start = stop + 1
    return numbers if done == count else None


def _common(first: Array, second: Array) -> type[np.generic]:
    """The dtype for the numbers of two arrays of different dtypes."""
    integers = [array for array in (first, second) if array.dtype == np.int64]
    if np.float64 in (first.dtype, second.dtype) or integers[0].min() < 0:
        return np.float64
    return np.uint64


def _chunk(chunk: bytes) -> Array | None:
    """The numbers of a stretch between two commas."""
    if not _brackets_are_in_place(np.frombuffer(b"," + chunk + b",", np.uint8)):
        return None
    flat = tight(b"[" + chunk.translate(_BRACKETS_TO_SPACE) + b"]")
    try:
        numbers = orjson.loads(flat)
    except orjson.JSONDecodeError:
        return _with_special(flat)
    if b"." in chunk or b"e" in chunk or b"E" in chunk:
        return np.fromiter(numbers, np.float64, len(numbers))
    return _integers(numbers)


def _integers(numbers: list[Any]) -> Array | None:
    if not numbers:
        return None
    array = np.array(numbers)
    if array.dtype == np.float64 and not any(isinstance(number, float) for number in numbers):
        try:
            return np.array(numbers, np.uint64)
        except OverflowError:
            return array
    return array


def _with_special(flat: bytes) -> Array | None:
    """The numbers of a list some of which are words. ``null`` is none of the letters that come here."""
    words = SPECIAL.findall(flat)
    if not words:
        return None
    try:
        numbers = orjson.loads(SPECIAL.sub(b"null", flat))
    except orjson.JSONDecodeError:
        return None
    array = np.fromiter(numbers, np.float64, len(numbers))
    array[np.isnan(array)] = [float(word) for word in words]
    return array


def _brackets_are_in_place(view: Array) -> bool:
    """Whether only brackets and white space are between each bracket and the comma (or end) on its outer side."""
    return _beside(view, _OPEN, -1) and _beside(view, _CLOSE, 1)


def _beside(view: Array, bracket: int, step: int) -> bool:
    places = np.flatnonzero(view == bracket)
    for _ in range(_MAX_SPACES):
        if not places.size:
            return True
        places = places + step
        beside = view[places]
        space = beside <= _SPACE
        if not (space | (beside == _COMMA) | (beside == bracket)).all():
            return False
        places = places[space]
    return False
