"""Tree -> JSON text, by orjson, and by code of our own for what orjson cannot print.

orjson writes ``null`` for numbers that are not finite, takes contiguous arrays of native types only, fails on foreign
byte order, and prints an array without dimensions in double width. A large tree is cut into parts of a few thousand
values, so that no call holds the interpreter lock for long.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import orjson

from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json.tree import of_kind

_PART_VALUES = 8192
"""Values printed by one call: about 100 KB of text, well below a millisecond."""
_CHARACTERS_A_VALUE = 16
"""A string counts as one more value for each of these characters."""
_ROUNDED_TWICE = (b"7.038531e-26", b"7.03853069e-26")
"""The one float32 (of either sign; all have been tried) whose shortest text, read as a double and then rounded to a
float32, is another number; and a text of it that is not."""
_NATIVE = frozenset(np.dtype(code) for code in "?bhilqBHILQefd")


def dumps(value: object) -> bytes:
    """The text of a tree of dict, list, tuple, str, int, float, bool, None, and numpy arrays and scalars.

    Arrays may have any layout, byte order and numeric dtype: bool as ``true`` and ``false``, integers plainly, floats
    as the shortest text that gives the same number again in their own width (those below 32 bits in that of float32).
    An array of objects counts as a list, one without dimensions as its element. Numbers that are not finite become
    ``NaN``, ``Infinity``, ``-Infinity``.

    TypeError for complex numbers, bytes, names that are no str, integers beyond 64 bits, and strings that UTF-8
    cannot express. Safe on any thread; large trees give the interpreter lock away in between.
    """
    large, odd = survey(value, _PART_VALUES)
    if not large:
        return print_small(value, odd)
    out = io.BytesIO()
    out.writelines(_parts(value))
    return out.getvalue()


def survey(value: object, limit: int) -> tuple[bool, bool]:
    """Whether the tree has more than ``limit`` values, and if not, whether some of them are odd.

    Odd are arrays that orjson must not see. No more than ``limit`` values are looked at.
    """
    left, odd = limit, False
    level: Sequence[Any] = [value]
    while level:
        kinds = set(map(type, level))
        arrays, objects = of_kind(np.ndarray, level, kinds), of_kind(dict, level, kinds)
        lists = [*of_kind(list, level, kinds), *of_kind(tuple, level, kinds)]
        left -= len(level) + sum(map(len, of_kind(str, level, kinds))) // _CHARACTERS_A_VALUE
        left -= sum(array.size for array in arrays)
        if left < sum(map(len, lists)) + sum(map(len, objects)):
            return True, odd
        odd = odd or not all(array.ndim and array.dtype.isnative for array in arrays)
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, objects))]
    return False, odd


def _parts(value: Any) -> Iterator[bytes]:
    """The text of a large tree, in parts."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield from _array_parts(native(value))
    elif isinstance(value, dict):
        yield b"{"
        yield from _members(list(value.items()))
        yield b"}"
    elif isinstance(value, list | tuple | np.ndarray):
        yield b"["
        yield from _items(value.tolist() if isinstance(value, np.ndarray) else value)
        yield b"]"
    else:
        yield print_small(value, False)


def _items(values: Sequence[Any]) -> Iterator[bytes]:
    """The text of values with commas between."""
    large, odd = survey(values, _PART_VALUES)
    if not large:
        yield print_small(values, odd)[1:-1]
    elif len(values) == 1:
        yield from _parts(values[0])
    else:
        middle = len(values) // 2
        yield from _items(values[:middle])
        yield b","
        yield from _items(values[middle:])


def _members(members: list[tuple[str, Any]]) -> Iterator[bytes]:
    """The text of members with commas between."""
    large, odd = survey(members, _PART_VALUES)
    if not large:
        yield print_small(dict(members), odd)[1:-1]
    elif len(members) == 1:
        name, value = members[0]
        yield orjson.dumps({name: 0})[1:-2]
        yield from _parts(value)
    else:
        middle = len(members) // 2
        yield from _members(members[:middle])
        yield b","
        yield from _members(members[middle:])


def print_small(value: object, odd: bool) -> bytes:
    """The text of a small tree. ``odd``: it has arrays that orjson must not see."""
    if not odd:
        text = orjson.dumps(value, _print_other, orjson.OPT_SERIALIZE_NUMPY)
        no_words = b"u" not in text or b"null" not in text  # one byte is found at once, and is mostly not there
        if no_words and _ROUNDED_TWICE[0] not in text:
            return text
    return orjson.dumps(_with_words(value), _print_other)


def _with_words(value: Any) -> Any:
    """The tree with finished text for numbers that are not finite. Arrays and numpy's scalars are left as they are."""
    if isinstance(value, dict):
        return {name: _with_words(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_words(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return orjson.Fragment(_word(value))
    return value


def _print_other(value: object) -> Any:
    """The value for orjson in place of an array or a scalar of numpy."""
    array = np.asarray(value) if isinstance(value, np.generic) else value
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{type(value).__name__} has no JSON text")
    if array.dtype == object:
        return _with_words(array.tolist())
    return orjson.Fragment(b"".join(_array_parts(native(array))))


def _array_parts(array: Array) -> Iterator[bytes]:
    """The text of a contiguous array of a native type, in parts."""
    if array.ndim == 0:
        yield _print_array(array.reshape(1))[1:-1]
        return
    if array.size <= _PART_VALUES:
        yield _print_array(array)
        return
    step = max(1, _PART_VALUES // array[0].size)
    for first in range(0, len(array), step):
        yield b"," if first else b"["
        rows = array[first : first + step]
        if rows.size <= _PART_VALUES:
            yield _print_array(rows)[1:-1]
        else:
            yield from _array_parts(rows[0])
    yield b"]"


def _print_array(array: Array) -> bytes:
    text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    if array.dtype == np.float32:
        text = text.replace(*_ROUNDED_TWICE)
    if array.dtype.kind != "f" or b"n" not in text:
        return text
    words = [_word(number) for number in array[~np.isfinite(array)].tolist()]
    return b"".join(chain.from_iterable(zip(text.split(b"null"), [*words, b""], strict=True)))


def _word(number: float) -> bytes:
    if math.isnan(number):
        return b"NaN"
    return b"Infinity" if number > 0 else b"-Infinity"


def native(array: Array) -> Array:
    """The array, contiguous and of a type that Python and JSON's writers know: a wider one, if it has none of those.

    TypeError if there is no such type.
    """
    dtype = array.dtype.newbyteorder("=")
    if dtype not in _NATIVE:
        dtype = np.dtype(_wider(dtype.name))
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array, dtype).reshape(array.shape)


def _wider(name: str) -> type[np.generic]:
    if name.startswith(("bfloat", "float8", "float6", "float4")):
        return np.float32
    if name.startswith("float"):
        return np.float64
    if name.startswith(("int", "uint")):
        return np.int64
    raise TypeError(f"arrays of {name} have no JSON text")
