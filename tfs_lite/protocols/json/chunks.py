"""A large JSON text, read in chunks of about 64 KB, so that no call holds the interpreter lock for long.

A list or an object whose text is longer than a chunk is entered, and as many of its items as fit are parsed in one run.
Only its own brackets, names and commas are read here; every run is a text for ``tree``. The chunks therefore decide on
speed only: a text is accepted exactly if ``tree`` would accept it whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json.dense_numbers import LEAST_BYTES, large_arrays
from tfs_lite.protocols.json.scan import SLICE_BYTES, SPACE, Slice, end_of_run, slices, string_end
from tfs_lite.protocols.json.tree import MAX_DEPTH, MAX_VALUES, Json, JsonRefused, StandIns, TooMany, new_stand_in, read

_SHORT_PART = 64
"""The part of a chunk that is looked at first, a 64th: many containers end soon after the long item in them."""

_WORD = re.compile(rb'[^ \t\r\n,:\[\]{}"]*+')
_BRACKETS: dict[type, tuple[bytes, bytes]] = {list: (b"[", b"]"), dict: (b"{", b"}")}


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a reader. ``open`` are the containers around it; ``fresh`` means that the innermost has no items
    so far, ``after`` that a comma or a closing bracket comes next, and not an item or its name.
    """

    at: int
    open: tuple[list[Any] | dict[str, Any], ...] = ()
    fresh: bool = False
    after: bool = False


def read_large(text: bytes, chunk_bytes: int = SLICE_BYTES, least_array: int = LEAST_BYTES) -> Json:
    """Reads a text as :func:`tree.read` does, in chunks of ``chunk_bytes``; large arrays of numbers are arrays in the
    tree.

    ``least_array``: how many bytes of text make an array large.
    """
    stand_ins: StandIns = {}
    parts, done = [], 0
    for start, end, array in large_arrays(text, least_array, chunk_bytes):
        parts += [text[done:start], new_stand_in(stand_ins, array)]
        done = end
    rest = b"".join((*parts, text[done:])) if parts else text
    if len(rest) <= chunk_bytes:
        return read(rest, stand_ins=stand_ins)
    return PieceReader(rest, stand_ins, chunk_bytes=chunk_bytes).whole()


class PieceReader:
    """Reads one text. Keeps nothing but the names of open objects unless ``keep`` is set."""

    def __init__(
        self, text: bytes, stand_ins: StandIns | None = None, keep: bool = True, chunk_bytes: int = SLICE_BYTES
    ) -> None:
        self._text = text
        self._stand_ins = stand_ins
        self._keep = keep
        self._piece_bytes = chunk_bytes
        self._open: list[Any] = []
        self._at = 0
        self._fresh = False
        self._after = False
        self._values = 0
        """How many values may have been kept so far, commas and brackets in strings counted too."""
        self._long_items = 0
        """How many items are known to be long, each of them the first in the one before."""

    @property
    def position(self) -> Position:
        """The place up to which the text is known to be right, after :class:`JsonRefused`; the fault is behind it."""
        return Position(self._at, tuple(self._open), self._fresh, self._after)

    def whole(self) -> Json:
        """The value of the text; None if values are not kept. Raises :class:`JsonRefused`, or :class:`TooMany` if they
        are."""
        root: list[Any] = []
        start = self._skip(0)
        if self._text[start : start + 1] not in (b"[", b"{"):
            return read(self._text, stand_ins=self._stand_ins)
        self._enter(root, start)
        while self._open:
            if self._after:
                self._behind_an_item()
            elif self._long_items or not self._run_of_items():
                self._long_item()
        if self._skip(self._at) != len(self._text):
            raise JsonRefused
        return root[0] if self._keep else None

    def _skip(self, at: int) -> int:
        """The position of the first byte from ``at`` on that is not white space."""
        return end_of_run(SPACE, self._text, at)

    def _run_of_items(self) -> bool:
        """Reads the items up to the last comma, or the closing bracket, within a chunk. Whether there was any."""
        stop, closes = self._end_of_run()
        if stop < 0:
            return False
        self._count(self._text[self._at : stop])
        container = self._open[-1]
        opening, closing = _BRACKETS[type(container)]
        items: Any = read(
            opening + self._text[self._at : stop] + closing, above=len(self._open) - 1, stand_ins=self._stand_ins
        )
        if closes and self._text[stop : stop + 1] != closing:
            raise JsonRefused
        if not items and not (closes and self._fresh):
            raise JsonRefused
        if type(container) is dict:
            if not container.keys().isdisjoint(items):
                raise JsonRefused
            container.update(items if self._keep else dict.fromkeys(items))
        elif self._keep:
            container.extend(items)
        self._at, self._fresh, self._after = (stop, False, True) if closes else (stop + 1, False, False)
        return True

    def _count(self, run: bytes) -> None:
        self._values += 1 + sum(map(run.count, (b",", b"[", b"{")))
        if self._keep and self._values > MAX_VALUES:
            raise TooMany

    def _end_of_run(self) -> tuple[int, bool]:
        """The end of the run, -1 if no item ends within a chunk; and whether the container ends there."""
        for size in (self._piece_bytes // _SHORT_PART, self._piece_bytes):
            chunk, brackets, steps, levels = self._levels(size)
            closing = np.flatnonzero(levels < 0)
            if closing.size:
                return self._at + int(brackets[closing[0]]), True
        commas = chunk.find(ord(","))
        around = np.concatenate(([0], levels))[np.searchsorted(brackets, commas)]
        own = commas[around == 0]
        if own.size:
            return self._at + int(own[-1]), False
        self._long_items = int(np.concatenate((around, levels[steps < 0])).min(initial=brackets.size)) or 1
        return -1, False

    def _levels(self, size: int) -> tuple[Slice, Array, Array, Array]:
        """The next slice; its brackets, their steps, and the level behind each, counted from here."""
        for chunk in slices(self._text, self._at, size):
            brackets, steps = chunk.brackets()
            return chunk, brackets, steps, np.cumsum(steps)
        raise JsonRefused

    def _long_item(self) -> None:
        """Reads one item that does not end within a chunk, or enters it."""
        self._long_items -= 1
        container = self._open[-1]
        start = self._skip(self._at)
        name = None
        if self._fresh and self._text[start : start + 1] == _BRACKETS[type(container)][1]:
            self._at, self._fresh, self._after = start, False, True
            return
        if type(container) is dict:
            name, start = self._name(start)
            if name in container:
                raise JsonRefused
        first = self._text[start : start + 1]
        if first in (b"[", b"{"):
            self._enter(container, start, name)
            return
        if first == b'"':
            end = string_end(self._text, start, self._piece_bytes)
            value: Json = _string(self._text[start:end])
        else:
            end = end_of_run(_WORD, self._text, start)
            value = read(self._text[start:end], above=len(self._open), stand_ins=self._stand_ins)
        self._put(container, name, value)
        self._at, self._fresh, self._after = end, False, True

    def _enter(self, container: Any, at: int, name: str | None = None) -> None:
        if len(self._open) == MAX_DEPTH:
            raise JsonRefused
        inner: list[Any] | dict[str, Any] = [] if self._text[at : at + 1] == b"[" else {}
        self._put(container, name, inner)
        self._open.append(inner)
        self._at, self._fresh, self._after = at + 1, True, False

    def _put(self, container: Any, name: str | None, value: Any) -> None:
        if name is not None:
            container[name] = value if self._keep else None
        elif self._keep:
            container.append(value)

    def _behind_an_item(self) -> None:
        at = self._skip(self._at)
        byte = self._text[at : at + 1]
        if byte == b",":
            self._after = False
        elif byte == _BRACKETS[type(self._open[-1])][1]:
            self._open.pop()
        else:
            raise JsonRefused
        self._at = at + 1

    def _name(self, start: int) -> tuple[str, int]:
        """The name that begins at ``start``, and where its value begins."""
        if self._text[start : start + 1] != b'"':
            raise JsonRefused
        end = string_end(self._text, start, self._piece_bytes)
        colon = self._skip(end)
        if self._text[colon : colon + 1] != b":":
            raise JsonRefused
        return _string(self._text[start:end]), self._skip(colon + 1)


def _string(token: bytes) -> str:
    try:
        return orjson.loads(token)  # type: ignore[no-any-return]
    except orjson.JSONDecodeError:
        raise JsonRefused from None
