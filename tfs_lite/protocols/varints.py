"""Protobuf's variable-length integers, for whole arrays at once and one at a time.

protobuf converts a numpy array element by element, which for large tensors costs more than the model; here numpy does
it. All integers of one call get the same number of bytes, those of the largest one: every parser accepts padded
varints, and a parsed message writes them in their short form again.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def encode_varints(values: np.ndarray[Any, Any]) -> bytes:
    """The varints of a flat, non-empty integer array, one after the other. Negative values take ten bytes."""
    unsigned = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    width = max(1, -(-int(unsigned.max()).bit_length() // 7))
    encoded = np.empty((unsigned.size, width), np.uint8)
    for column in range(width):
        encoded[:, column] = (unsigned >> np.uint64(7 * column)).astype(np.uint8) | np.uint8(0x80)
    encoded[:, -1] &= 0x7F
    return encoded.tobytes()


def encode_varint(value: int) -> bytes:
    """The varint of a number from 0 on, in its short form."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """One varint of at most 32 bits: its value and the position after it. ValueError if it is cut off or longer."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            raise ValueError("a length is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a length takes more than 32 bits")
