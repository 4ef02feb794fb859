"""Positions of strings, brackets, colons and words such as ``NaN`` in a JSON text, found without parsing it.

numpy reads the text in slices of 64 KB and releases the interpreter lock meanwhile; memory is that of one slice. A
malformed text gives useless positions and no error, because the callers parse every byte of the text afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tfs_lite.protocols.dtypes import Array

SLICE_BYTES = 64 * 1024

FEW = 16

SPECIAL = re.compile(rb"(?:N(?<![\w.+-]N)aN|I(?<![\w.+-]I)nf(?:inity)?|-(?<![\w.+-]-)Inf(?:inity)?)(?![\w.+-])")
"""Numbers that are written as words. What stands before a word is looked at behind its first letter, because a pattern
that begins with a letter is searched for ten times as fast."""

SPACE = re.compile(rb"[ \t\r\n]*+")
"""White space, or none."""

_CASE_BIT = 0x20
"""Takes ``[`` to ``{`` and ``]`` to ``}``."""
_OPEN, _CLOSE = ord("{"), ord("}")
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_OUTLINE = bytes(set(range(256)) - set(b'[]{}:,"'))
_LONGEST_TOKEN = 32
"""A slice never cuts a token of at most this many bytes."""
_ENDS = frozenset(b' \t\r\n,:[]{}"')
_SHORT_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the text: its bytes, ``view`` (uint8), and the offset of the first one, ``start``.

    ``quotes`` are the sorted indexes into ``view`` of the quotes that open or close strings; ``inside`` says whether
    the slice begins inside a string.
    """

    start: int
    view: Array
    quotes: Array
    inside: bool

    def find(self, byte: int) -> Array:
        """The sorted indexes into ``view`` of this byte, those in strings left out."""
        return self.outside(np.flatnonzero(self.view == byte))

    def outside(self, indexes: Array) -> Array:
        """The indexes, of the sorted ``indexes`` into ``view``, that are in no string."""
        if not self.quotes.size:
            return indexes[:0] if self.inside else indexes
        even = np.searchsorted(self.quotes, indexes) % 2 == self.inside
        return np.compress(even, indexes)

    def brackets(self) -> tuple[Array, Array]:
        """Indexes of all brackets and braces outside strings, and for each +1 if it opens, -1 if it closes."""
        folded = self.view | _CASE_BIT
        indexes = self.outside(np.flatnonzero((folded == _OPEN) | (folded == _CLOSE)))
        return indexes, (_OPEN + 1) - folded[indexes].astype(np.int64)


def slices(text: bytes, start: int = 0, size: int = SLICE_BYTES) -> Iterator[Slice]:
    """The text from ``start`` on (which is in no string), in slices of at most ``size`` bytes or one more.

    No slice ends within a token outside a string, or within an escape.
    """
    inside = False
    while start < len(text):
        end = _cut(text, start, size)
        view = np.frombuffer(text, np.uint8, end - start, start)
        quotes = _quotes(view)
        yield Slice(start, view, quotes, inside)
        inside ^= bool(quotes.size & 1)
        start = end


def few_colons(text: bytes) -> int:
    """The number of colons in a valid text with few of them and at most ``FEW`` levels, found by a few searches.

    -1 if it has more of either, or may have. Colons in strings are counted too.
    """
    if _find_few(text, b"]") < 0 or _find_few(text, b"}") < 0:
        return -1
    return _find_few(text, b":")


def colons_and_brackets(text: bytes) -> tuple[int, bytes]:
    """The number of colons of a valid text, and its brackets, strings left out, all of them as ``[`` and ``]``."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outline = text.translate(None, _NO_OUTLINE).replace(b'""', b"")
    if b'"' in outline:
        outline = b"".join(outline.split(b'"')[::2])
    return outline.count(b":"), outline.translate(_BRACES_TO_BRACKETS, b":,")


def is_deeper(brackets: bytes, levels: int) -> bool:
    """Whether ``brackets``, which belong together, are nested in more than this many levels."""
    while brackets and levels:
        brackets = brackets.replace(b"[]", b"")
        levels -= 1
    return bool(brackets)


def _find_few(text: bytes, byte: bytes) -> int:
    at = -1
    for found in range(FEW // 2 + 1):
        at = text.find(byte, at + 1)
        if at < 0:
            return found
    return -1


def string_end(text: bytes, start: int, slice_bytes: int = SLICE_BYTES) -> int:
    """The position after the closing quote of the string whose opening quote is at ``start``; 0 if it has none."""
    short = _SHORT_STRING.match(text, start, start + slice_bytes // 64)
    if short:
        return short.end()
    seen = 0
    for part in slices(text, start, slice_bytes):
        if seen + part.quotes.size > 1:
            return part.start + int(part.quotes[1 - seen]) + 1
        seen += part.quotes.size
    return 0


def long_gaps(text: bytes, least: int, slice_bytes: int = SLICE_BYTES) -> Iterator[tuple[int, int]]:
    """Yields ``(start, end)`` of every part of at least ``least`` bytes without a string in it."""
    edge, inside = 0, False
    for part in slices(text, 0, slice_bytes):
        edges = np.concatenate(([edge - 1], part.quotes + part.start))
        for index in np.flatnonzero(np.diff(edges) > least):
            if (int(index) & 1) == part.inside:
                yield int(edges[index]) + 1, int(edges[index + 1])
        edge = int(edges[-1]) + 1
        inside = part.inside ^ bool(part.quotes.size & 1)
    if not inside and len(text) - edge >= least:
        yield edge, len(text)


def end_of_run(run: re.Pattern[bytes], text: bytes, start: int) -> int:
    """The place where the bytes from ``start`` on end that ``run`` takes one by one. Gives the interpreter lock away
    between slices, for a run may be as long as the text."""
    end = start
    while True:
        found = run.match(text, end, end + SLICE_BYTES)
        if found is None or found.end() < end + SLICE_BYTES:
            return end if found is None else found.end()
        end = found.end()


def may_have_special(text: bytes) -> bool:
    """Whether a number may be written as a word; False means that none is. The search gives the interpreter lock away
    between slices."""
    if b"NaN" not in text and b"Inf" not in text:
        return False
    return any(
        SPECIAL.search(text, start, start + SLICE_BYTES + _LONGEST_TOKEN) for start in range(0, len(text), SLICE_BYTES)
    )


def replace_special(text: bytes, numbers: dict[bytes, bytes], slice_bytes: int = SLICE_BYTES) -> bytes:
    """The text with ``NaN`` and its like replaced, where they are in no string. ``numbers``: what stands for each."""
    parts, done = [], 0
    for part in slices(text, 0, slice_bytes):
        end = part.start + part.view.size
        found = list(SPECIAL.finditer(text, part.start, end))
        starts = np.array([match.start() - part.start for match in found], np.int64)
        legal = set(part.outside(starts).tolist())
        for match, start in zip(found, starts.tolist(), strict=True):
            if start in legal:
                parts += [text[done : match.start()], numbers[match.group()]]
                done = match.end()
    parts.append(text[done:])
    return b"".join(parts)


def _cut(text: bytes, start: int, size: int) -> int:
    """The end of the slice that begins at ``start``."""
    limit = start + size
    if limit >= len(text):
        return len(text)
    for end in range(limit, max(limit - _LONGEST_TOKEN, start), -1):
        if text[end - 1] in _ENDS:
            return end
    chunk = text[start:limit]
    backslashes = len(chunk) - len(chunk.rstrip(b"\\"))
    return limit + (backslashes & 1)


def _quotes(view: Array) -> Array:
    """Indexes of the quotes that no backslash escapes."""
    quotes = np.flatnonzero(view == ord('"'))
    if not quotes.size:
        return quotes
    slashes = np.flatnonzero(view == ord("\\"))
    if not slashes.size:
        return quotes
    breaks = np.flatnonzero(np.diff(slashes) != 1)
    first = slashes[np.concatenate(([0], breaks + 1))]
    last = slashes[np.concatenate((breaks, [slashes.size - 1]))]
    escaped = np.zeros(view.size + 1, np.bool_)
    escaped[last[(last - first) % 2 == 0] + 1] = True
    return quotes[~escaped[quotes]]
