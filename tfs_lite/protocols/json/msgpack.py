"""msgpack bodies: bytes -> tree, tree -> bytes. The trees are those of JSON bodies, with ``bytes`` as leaves.

ormsgpack does the work, with bounds that it does not have. Large nested lists of floats, which all have the same
width in msgpack, become arrays without a Python object for each number; any other body is parsed by one call, which
holds the interpreter lock while it lasts.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import chain
from secrets import token_bytes
from typing import Any, TypeAlias

import numpy as np
import ormsgpack

from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json.dense_numbers import MAX_RANK
from tfs_lite.protocols.json.tree import MAX_DEPTH, of_kind
from tfs_lite.protocols.json.writer import native, survey

Body: TypeAlias = "bool | int | float | str | bytes | list[Body] | dict[str, Body] | Array | None"
"""The value of a msgpack body. An array stands for a nested list of floats."""

LEAST_ARRAY_BYTES = 64 * 1024
_MAX_TOKENS = 4096
"""How many values are read one by one, in search of large arrays; a body with more of them is parsed at once."""
MAX_TREE_BYTES = 2 << 20
"""The limit of a body that is parsed at once: a byte may become an object of 60 bytes, and other threads wait."""
_PART_VALUES = 64 * 1024
"""The values that one call packs."""

_TOO_DEEP = f"more than {MAX_DEPTH} levels of nesting"
_FLOATS: dict[int, np.dtype[Any]] = {0xCA: np.dtype(">f4"), 0xCB: np.dtype(">f8")}
_LEAF_BYTES = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9}
_LEAF_BYTES |= {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Types of strings and binaries whose length follows the type byte -> the bytes of that length."""
_LIST_BYTES = {0xDC: 3, 0xDD: 5}
_MAP_BYTES = {0xDE: 3, 0xDF: 5}


def loads(data: bytes) -> Body:
    """The tree of one msgpack value. Safe on any thread.

    A body above ``MAX_TREE_BYTES`` may consist of large lists of floats, and a few thousand other values of any size.
    From ``LEAST_ARRAY_BYTES`` on, a rectangular nested list of floats of one width may come as an array (float64).
    INVALID_ARGUMENT ``msgpack Parse error: REASON`` for anything malformed, more than 100 levels of nesting, bytes
    after the value, extension types, names in maps that are no strings, and strings that are not UTF-8. If a name
    comes twice in a map, the last one wins: unlike in JSON bodies, this cannot be told.
    """
    if len(data) >= LEAST_ARRAY_BYTES:
        tree = _Walk(data).whole()
        if tree is not None:
            return tree
    if len(data) > MAX_TREE_BYTES:
        raise invalid_argument(
            f"msgpack Parse error: the body is malformed, or has more than {_MAX_TOKENS} values besides large lists of "
            f"floats in more than {MAX_TREE_BYTES} bytes"
        )
    return _unpack(data)


def dumps(value: object) -> bytes:
    """The bytes of a tree of dict, list, tuple, str, bytes, int, float, bool, None, and numpy arrays and scalars.

    Arrays become nested lists whose elements have the array's own width; those below 32 bits that Python does not
    know are floats of 32. An array without dimensions is its element; one of objects counts as a list. TypeError for
    complex numbers, names that are no str, integers beyond 64 bits and strings that UTF-8 cannot express.
    """
    if not survey(value, _PART_VALUES)[0]:
        return _pack(value)
    out = io.BytesIO()
    out.writelines(_parts(value))
    return out.getvalue()


def _unpack(data: bytes) -> Body:
    """Parses by ormsgpack. It ignores bytes after the first value, so the data becomes the first item of a list of
    two."""
    end = token_bytes(16)
    try:
        tree, behind = ormsgpack.unpackb(b"\x92" + data + b"\xc4\x10" + end)
    except ValueError:
        raise _malformed(data) from None
    if behind != end:
        raise _malformed(data)
    if len(data) > MAX_DEPTH and _is_deeper(tree, MAX_DEPTH):
        raise invalid_argument(f"msgpack Parse error: {_TOO_DEEP}")
    return tree  # type: ignore[no-any-return]


def _malformed(data: bytes) -> ServingError:
    if not data:
        return invalid_argument("msgpack Parse error: The document is empty")
    try:
        ormsgpack.unpackb(data)
    except ValueError as error:
        return invalid_argument(f"msgpack Parse error: {_reason(str(error))}")
    return invalid_argument("msgpack Parse error: something follows the value")


def _reason(text: str) -> str:
    if "ext_hook" in text:
        return "extension types are not supported"
    if "Recursion" in text:
        return _TOO_DEEP
    if text.startswith("invalid type") and "Reserved" not in text:
        return "a name in a map is no string"
    return text


def _is_deeper(tree: Any, levels: int) -> bool:
    level: Sequence[Any] = [tree]
    for _ in range(levels + 1):
        kinds = set(map(type, level))
        lists, maps = of_kind(list, level, kinds), of_kind(dict, level, kinds)
        if not lists and not maps:
            return False
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, maps))]
    return True


class _TooMany(Exception):
    """Raised when reading value by value is too slow for this body, or the body is invalid."""


class _Walk:
    """Reads a body value by value, its large arrays of floats as a whole."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._tokens = _MAX_TOKENS

    def whole(self) -> Body:
        """The value of the data, or None: then ormsgpack has to read it, or to say what is wrong with it."""
        try:
            value = self._value(0)
        except (_TooMany, IndexError, ValueError):
            return None
        return value if self._at == len(self._data) else None

    def _value(self, above: int) -> Body:
        self._tokens -= 1
        tag = self._data[self._at]
        is_list = 0x90 <= tag <= 0x9F or tag in _LIST_BYTES
        is_map = 0x80 <= tag <= 0x8F or tag in _MAP_BYTES
        if not is_list and not is_map:
            return self._leaf(tag)
        if above == MAX_DEPTH or self._tokens < 0:
            raise _TooMany
        if is_list:
            array = self._floats(above)
            if array is not None:
                return array
            return [self._value(above + 1) for _ in range(self._count())]
        return {self._name(): self._value(above + 1) for _ in range(self._count())}

    def _count(self) -> int:
        """The number of items of the list or map that begins here. Goes behind it."""
        count, size = _header(self._data, self._at)
        if count > self._tokens:
            raise _TooMany
        self._at += size
        return count

    def _name(self) -> str:
        name = self._leaf(self._data[self._at])
        if not isinstance(name, str):
            raise _TooMany
        return name

    def _leaf(self, tag: int) -> Body:
        start = self._at
        if tag <= 0x7F or tag >= 0xE0:
            size = 1
        elif 0xA0 <= tag <= 0xBF:
            size = 1 + (tag & 0x1F)
        elif tag in _LENGTH_BYTES:
            length = _LENGTH_BYTES[tag]
            size = 1 + length + int.from_bytes(self._data[start + 1 : start + 1 + length], "big")
        elif tag in _LEAF_BYTES:
            size = _LEAF_BYTES[tag]
        else:
            raise _TooMany
        self._at = start + size
        return ormsgpack.unpackb(self._data[start : self._at])  # type: ignore[no-any-return]

    def _floats(self, above: int) -> Array | None:
        """The list that begins here, if it is a large one of floats, nested regularly. Then goes behind it."""
        shape: list[int] = []
        headers: list[bytes] = []
        at = self._at
        while 0x90 <= self._data[at] <= 0x9F or self._data[at] in _LIST_BYTES:
            count, size = _header(self._data, at)
            if count == 0 or len(shape) == MAX_RANK - 1 or above + len(shape) == MAX_DEPTH:
                return None
            shape.append(count)
            headers.append(self._data[at : at + size])
            at += size
        dtype = _FLOATS.get(self._data[at])
        if dtype is None:
            return None
        widths = [1 + dtype.itemsize]
        for count, header in zip(reversed(shape), reversed(headers), strict=True):
            widths.insert(0, len(header) + count * widths[0])
        end = self._at + widths[0]
        if widths[0] < LEAST_ARRAY_BYTES or end > len(self._data) or not self._is_regular(shape, headers, widths, at):
            return None
        numbers = np.ndarray(tuple(shape), dtype, self._data, at + 1, tuple(widths[1:]))
        self._at = end
        with np.errstate(all="ignore"):
            return numbers.astype(np.float64)

    def _is_regular(self, shape: list[int], headers: list[bytes], widths: list[int], at: int) -> bool:
        """Whether all items of a list have the headers, and all elements the type byte, that the first ones have."""
        offset = self._at
        for rank, header in enumerate([*headers, self._data[at : at + 1]]):
            found = np.ndarray((*shape[:rank], len(header)), np.uint8, self._data, offset, (*widths[1 : rank + 1], 1))
            if not (found == np.frombuffer(header, np.uint8)).all():
                return False
            offset += len(header)
        return True


def _header(data: bytes, at: int) -> tuple[int, int]:
    """How many items the list or map at ``at`` has, and how many bytes say so."""
    tag = data[at]
    if tag <= 0x9F:
        return tag & 0x0F, 1
    size = _LIST_BYTES.get(tag) or _MAP_BYTES[tag]
    return int.from_bytes(data[at + 1 : at + size], "big"), size


def _parts(value: Any) -> Iterator[bytes]:
    """The bytes of a large tree, in parts."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield from _array_parts(native(value))
    elif isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("names in maps must be str")
        yield _header_of(len(value), 0x80)
        yield from _items(list(chain.from_iterable(value.items())))
    elif isinstance(value, list | tuple | np.ndarray):
        values = value.tolist() if isinstance(value, np.ndarray) else value
        yield _header_of(len(values), 0x90)
        yield from _items(values)
    else:
        yield _pack(value)


def _items(values: Sequence[Any]) -> Iterator[bytes]:
    """The bytes of values, one after the other."""
    if not survey(values, _PART_VALUES)[0]:
        yield _pack(values)[len(_header_of(len(values), 0x90)) :]
    elif len(values) == 1:
        yield from _parts(values[0])
    else:
        middle = len(values) // 2
        yield from _items(values[:middle])
        yield from _items(values[middle:])


def _array_parts(array: Array) -> Iterator[bytes]:
    """The bytes of a contiguous array of a native type, in parts."""
    if array.ndim == 0:
        yield _pack_array(array[()])
    elif array.size <= _PART_VALUES:
        yield _pack_array(array)
    else:
        yield _header_of(len(array), 0x90)
        step = max(1, _PART_VALUES // array[0].size)
        for first in range(0, len(array), step):
            rows = array[first : first + step]
            if rows.size <= _PART_VALUES:
                yield _pack_array(rows)[len(_header_of(len(rows), 0x90)) :]
            else:
                yield from _array_parts(rows[0])


def _pack(value: object) -> bytes:
    return ormsgpack.packb(value, _pack_other)


def _pack_other(value: object) -> Any:
    """The value for ormsgpack in place of an array or a scalar of numpy."""
    array = np.asarray(value) if isinstance(value, np.generic) else value
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{type(value).__name__} has no msgpack form")
    if array.dtype == object:
        return array.tolist()
    return ormsgpack.Fragment(b"".join(_array_parts(native(array))))


def _pack_array(value: Any) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_SERIALIZE_NUMPY)


def _header_of(count: int, kind: int) -> bytes:
    """How a list (0x90) or a map (0x80) of so many items begins."""
    if count < 16:
        return bytes([kind | count])
    large = 0xDE if kind == 0x80 else 0xDC
    return (
        bytes([large]) + count.to_bytes(2, "big") if count < 1 << 16 else bytes([large + 1]) + count.to_bytes(4, "big")
    )
