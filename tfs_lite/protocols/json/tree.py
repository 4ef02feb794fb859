"""One JSON text -> a tree, by orjson, with the rules that orjson does not have.

orjson keeps the last of two members of one name, does not know ``NaN`` and allows 1024 levels. A valid text has as many
colons outside its strings as its objects have members: if the parsed objects have fewer, a name came twice. The depth
follows from the brackets. Numbers that are words, and arrays that were read before, are parsed as stand-ins: ordinary
numbers, chosen at random, which are replaced in the tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from secrets import randbits
from typing import Any, TypeAlias

import numpy as np
import orjson

from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json.scan import (
    FEW,
    SPACE,
    colons_and_brackets,
    end_of_run,
    few_colons,
    is_deeper,
    may_have_special,
    replace_special,
)

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | Array | None"
"""The value of a JSON text. An array stands for a nested list of numbers."""

StandIns: TypeAlias = dict[float, Any]
"""The values that numbers in the text stand for."""

MAX_DEPTH = 100
MAX_VALUES = 8 << 20
"""Values of a tree, large arrays of numbers counted as one. Each costs some 60 bytes, and as text two or three."""
_MARK = b"e+301"
"""The end of every stand-in."""
_SPECIAL_WORDS = (b"NaN", b"Inf", b"-Inf", b"Infinity", b"-Infinity")


class JsonRefused(Exception):
    """The text is not acceptable JSON; ``diagnosis`` finds the reason."""


class TooMany(Exception):
    """The text has more values outside its large arrays of numbers than ``MAX_VALUES``."""


def read(text: bytes, above: int = 0, stand_ins: StandIns | None = None) -> Json:
    """The value of ``text``, which is inside ``above`` other containers. Raises :class:`JsonRefused`, nothing else.

    Refused are bad syntax, a name twice in one object, and more than ``MAX_DEPTH`` levels with those above.
    Integers beyond 64 bits become floats. The tree has no arrays but those of ``stand_ins``.
    """
    try:
        tree: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        text, stand_ins = _without_special(tight(text), stand_ins)
        try:
            tree = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise JsonRefused from None
    levels = MAX_DEPTH - above
    colons = few_colons(text) if levels >= FEW else -1
    if colons < 0 or _members(tree, colons) < colons:
        colons, brackets = colons_and_brackets(text)
        if is_deeper(brackets, levels) or _members(tree, colons) < colons:
            raise JsonRefused
    return _replace(tree, above, stand_ins) if stand_ins and _MARK in text else tree  # type: ignore[no-any-return]


def new_stand_in(stand_ins: StandIns, value: object) -> bytes:
    """The text of a number that stands for ``value`` from now on, where nothing but a value may be.

    One of 2**52 numbers from 1.07e+301 to 2.14e+301: no text has it by accident, and none on purpose, since it is new
    every time.
    """
    number = math.ldexp(1 + randbits(52) * 2.0**-52, 1000)
    stand_ins[number] = value
    return b" %a " % number


def tight(text: bytes) -> bytes:
    """The text without the white space around its first bracket.

    orjson takes white space there for a sign that there is much more of it, and then runs out of the memory that it
    sets aside if the rest is dense.
    """
    first = end_of_run(SPACE, text, 0)
    second = end_of_run(SPACE, text, first + 1)
    if text[first : first + 1] not in (b"[", b"{") or second == first + 1:
        return text
    return text[first : first + 1] + text[second:]


def _without_special(text: bytes, stand_ins: StandIns | None) -> tuple[bytes, StandIns]:
    """The text with stand-ins for its words, if it has any, and all stand-ins."""
    everything = dict(stand_ins or {})
    if may_have_special(text):
        text = replace_special(text, {word: new_stand_in(everything, float(word)) for word in _SPECIAL_WORDS})
    return text, everything


def _members(tree: Any, enough: int) -> int:
    """How many members all objects of the tree have together; looks no further when it is ``enough``."""
    if type(tree) is dict and len(tree) >= enough:
        return len(tree)
    level: Sequence[Any] = [tree]
    found = 0
    while level:
        kinds = set(map(type, level))
        objects, lists = of_kind(dict, level, kinds), of_kind(list, level, kinds)
        found += sum(map(len, objects))
        if found >= enough:
            break
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, objects))]
    return found


def of_kind(kind: type, values: Sequence[Any], kinds: set[type]) -> Sequence[Any]:
    """The values that are exactly of this kind. ``kinds``: all there are; most often it is one."""
    if kind not in kinds:
        return ()
    return values if len(kinds) == 1 else [value for value in values if type(value) is kind]


def _replace(tree: Any, above: int, stand_ins: StandIns) -> Any:
    """The tree with values in place of their stand-ins. JsonRefused if an array makes it too deep."""
    root = [tree]
    level: list[Any] = [root]
    while level:
        below: list[Any] = []
        for container in level:
            for key, value in container.items() if type(container) is dict else enumerate(container):
                if type(value) is float:
                    if value in stand_ins:
                        container[key] = _fitting(stand_ins[value], above)
                elif type(value) is dict or type(value) is list:
                    below.append(value)
        level, above = below, above + 1
    return root[0]


def _fitting(value: Any, above: int) -> Any:
    if isinstance(value, np.ndarray) and above + value.ndim > MAX_DEPTH:
        raise JsonRefused
    return value
