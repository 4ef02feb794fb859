"""Encodes header fields (RFC 7541) without any state.

It uses only the static table and literals that enter no table. A field is therefore the same bytes on every connection,
blocks can be made in advance, and a block that is never sent leaves no table wrong.
"""

from __future__ import annotations

from hpack.table import HeaderTable

_NAMES = {name: index for name, (index, _) in HeaderTable.STATIC_TABLE_MAPPING.items()}
_STATUSES = HeaderTable.STATIC_TABLE_MAPPING[b":status"][1]


def literal(name: bytes, value: bytes) -> bytes:
    """A field of any name, in lower case, and any value; it does not enter the client's table."""
    index = _NAMES.get(name)
    head = integer(0x00, 4, index) if index else b"\x00" + _string(name)
    return head + _string(value)


def status(code: int) -> bytes:
    """The field ``:status``. ``code`` has three digits."""
    text = b"%d" % code
    index = _STATUSES.get(text)
    return integer(0x80, 7, index) if index else literal(b":status", text)


def integer(pattern: int, bits: int, value: int) -> bytes:
    """Encodes ``value``, from 0 on, with a prefix of ``bits`` (1 to 8) under the bits of ``pattern`` (section 5.1)."""
    largest = (1 << bits) - 1
    if value < largest:
        return bytes((pattern | value,))
    octets = [pattern | largest]
    value -= largest
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def _string(text: bytes) -> bytes:
    return integer(0x00, 7, len(text)) + text
