"""Looks for single fields in encoded messages, without parsing the rest.

Parsers differ in which of several occurrences of a field counts, so all are found: who decides about a request by what
it names decides about everything that it may mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.varints import decode_varint

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 10
"""Bytes."""


def names_at(*path: int) -> Callable[[bytes], list[str]]:
    """A function that finds every text at the end of a path of field numbers. It raises INVALID_ARGUMENT for bytes that
    are no message."""

    def find(data: bytes) -> list[str]:
        found = [data]
        for number in path:
            found = [inner for outer in found for inner in occurrences(outer, number)]
        return [text.decode(errors="replace") for text in found]

    return find


def name_or_all(*path: int) -> Callable[[bytes], list[str]]:
    """Reads names as ``names_at`` does; where there is none, the empty name, which stands for all."""
    find = names_at(*path)
    return lambda data: find(data) or [""]


def lacks(number: int) -> Callable[[bytes], bool]:
    """A function that tells whether a message has no such field."""
    return lambda data: not any(True for _ in occurrences(data, number))


def occurrences(data: bytes, wanted: int) -> Iterator[bytes]:
    """The contents of every field of this number that is a text, bytes or a message."""
    try:
        position = 0
        while position < len(data):
            tag, position = decode_varint(data, position)
            kind, start = tag & 7, position
            if kind == _VARINT:
                position = _after_varint(data, position)
            elif kind == _BYTES:
                size, start = decode_varint(data, position)
                position = start + size
            else:
                position += {_FIXED64: 8, _FIXED32: 4}[kind]
            if position > len(data):
                raise ValueError("a field is cut off")
            if kind == _BYTES and tag >> 3 == wanted:
                yield data[start:position]
    except (ValueError, KeyError):
        raise invalid_argument("the request is no valid message") from None


def _after_varint(data: bytes, position: int) -> int:
    for end in range(position, min(position + _MAX_VARINT, len(data))):
        if data[end] < 0x80:
            return end + 1
    raise ValueError("a number is cut off")
