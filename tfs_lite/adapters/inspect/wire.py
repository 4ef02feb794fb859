"""The fields of an encoded protobuf message, one after the other, without its schema and without copies.

Every occurrence of a field is given out. Parsers merge those of a message and keep the last of a number: who decides
about a file by what may be in it looks at all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tfs_lite.core.status import ServingError, StatusCode

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MAX_TAG = 5
_MAX_VARINT = 10
"""Bytes."""


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yields number and value of every field: an int for a varint, the bytes for everything else. DATA_LOSS if the
    message is cut off or is none."""
    position, end = 0, len(message)
    while position < end:
        tag, position = _varint(message, position, _MAX_TAG)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise damaged()
        if kind == _VARINT:
            value, position = _varint(message, position, _MAX_VARINT)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _varint(message, position, _MAX_TAG)
        elif kind in _FIXED_SIZES:
            size = _FIXED_SIZES[kind]
        else:
            raise damaged()
        if size > end - position:
            raise damaged()
        yield number, message[position : position + size]
        position += size


def messages(message: memoryview, *path: int) -> Iterator[memoryview]:
    """Every message, text or bytes at the end of a path of field numbers."""
    number, *rest = path
    for found, value in fields(message):
        if found == number:
            inner = as_bytes(value)
            yield from messages(inner, *rest) if rest else (inner,)


def texts(message: memoryview, number: int) -> list[str]:
    """Every text in fields of this number."""
    return [text(value) for value in messages(message, number)]


def last_text(message: memoryview, number: int) -> str:
    """The text that a parser finds in the field of this number."""
    return (texts(message, number) or [""])[-1]


def last_number(message: memoryview, number: int) -> int:
    """The number that a parser finds in this field: signed, 64 bits."""
    value = 0
    for found, candidate in fields(message):
        if found == number:
            if not isinstance(candidate, int):
                raise damaged()
            value = candidate
    return _signed(value)


def numbers(message: memoryview, number: int, most: int) -> list[int]:
    """The numbers in a repeated field, signed, packed or not. DATA_LOSS if there are more than ``most``."""
    found: list[int] = []
    for field, value in fields(message):
        if field == number:
            found += [value] if isinstance(value, int) else _packed(value, most)
        if len(found) > most:
            raise damaged()
    return [_signed(value) for value in found]


def entries(message: memoryview, number: int) -> Iterator[tuple[str, memoryview]]:
    """The entries of a map with texts as keys and messages as values, in the order of the file."""
    for entry in messages(message, number):
        key, value = "", memoryview(b"")
        for found, part in fields(entry):
            if found == 1:
                key = text(as_bytes(part))
            elif found == 2:
                value = as_bytes(part)
        yield key, value


def text(value: memoryview) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise damaged() from None


def as_bytes(value: int | memoryview) -> memoryview:
    """The value of a field that is a message, a text or bytes. DATA_LOSS for a number."""
    if isinstance(value, int):
        raise damaged()
    return value


def damaged() -> ServingError:
    return ServingError(StatusCode.DATA_LOSS, "the file is damaged: its bytes are no protobuf message")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _packed(values: memoryview, most: int) -> list[int]:
    """Varints, one after the other; at most one more than ``most``."""
    found, position = list[int](), 0
    while position < len(values) and len(found) <= most:
        value, position = _varint(values, position, _MAX_VARINT)
        found.append(value)
    return found


def _varint(message: memoryview, position: int, most: int) -> tuple[int, int]:
    """A varint of at most ``most`` bytes, and the position after it."""
    value = shift = 0
    try:
        for at in range(position, position + most):
            byte = message[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at + 1
            shift += 7
    except IndexError:
        pass
    raise damaged()
