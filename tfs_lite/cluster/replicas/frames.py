"""Messages with tensors as bytes, for connections between machines. Nothing here reads or writes a socket.

    u32 length of the head | head | zeros | tensor | zeros | tensor ...

The head is msgpack of the six fields of a message (``workers.wire``), its fifth a list of (name, dtype, shape, bytes)
for the tensors. These lie at multiples of 64 bytes from the beginning of the frame, texts as ``workers.tensors`` says.
So a receiver that has the head knows how many bytes the frame has, and has checked them, before it takes memory for
the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import ormsgpack

from tfs_lite.core.signature import Tensor
from tfs_lite.protocols.dtypes import to_numpy
from tfs_lite.workers.channel import ProtocolError
from tfs_lite.workers.tensors import (
    ALIGNMENT,
    FlatTensor,
    TensorLocation,
    aligned,
    end_of,
    flatten,
    read_sizes,
    too_large,
)
from tfs_lite.workers.wire import Message, read_message

MAX_HEAD = 1 << 24
"""Bytes."""
LENGTH_BYTES = 4
_LENGTH = struct.Struct("<I")
_ZEROS = bytes(ALIGNMENT)
Piece = bytes | memoryview


class Head(NamedTuple):
    """The contents of a frame's head. ``size``: the bytes of the whole frame."""

    message: Message
    locations: list[TensorLocation]
    size: int


def pack(message: Message, tensors: Mapping[str, Tensor], limit: int, what: str) -> list[Piece]:
    """The frame, to be sent piece after piece; arrays are not copied where their bytes lie in order. RESOURCE_EXHAUSTED
    if the tensors, called ``what`` for clients, take more than ``limit`` bytes; INVALID_ARGUMENT for an array of a type
    that no tensor has; ValueError if the head becomes too long."""
    number, kind, signature, wanted, extra = message
    flat = flatten(tensors)
    sizes, nbytes = [], 0
    for tensor in flat:
        sizes.append((tensor.name, int(tensor.dtype), tensor.shape, tensor.nbytes))
        nbytes = aligned(nbytes) + tensor.nbytes
    if nbytes > limit:
        raise too_large(what, nbytes, limit)
    head = ormsgpack.packb((number, kind, signature, wanted, sizes, extra))
    if len(head) > MAX_HEAD:
        raise ValueError(f"a message of {len(head)} bytes; at most {MAX_HEAD} can be sent")
    pieces: list[Piece] = [_LENGTH.pack(len(head)) + head]
    end = LENGTH_BYTES + len(head)
    for tensor in flat:
        start = aligned(end)
        pieces.append(_ZEROS[end - start :] if start > end else b"")
        pieces += _body(tensor)
        end = start + tensor.nbytes
    return pieces


def head_end(frame: memoryview) -> int:
    """The end of a frame's head, by its first :data:`LENGTH_BYTES` bytes. ProtocolError beyond the limit."""
    length: int = _LENGTH.unpack_from(frame)[0]
    if length > MAX_HEAD:
        raise ProtocolError(f"a message of {length} bytes; at most {MAX_HEAD} are expected")
    return LENGTH_BYTES + length


def read_head(frame: memoryview, limit: int) -> Head:
    """The head of a frame, given the frame's bytes up to :func:`head_end`. ProtocolError if it is none, or announces
    tensors of more than ``limit`` bytes."""
    try:
        raw = ormsgpack.unpackb(frame[LENGTH_BYTES:])
    except ValueError:
        raise ProtocolError("a message that cannot be read") from None
    if not isinstance(raw, list) or len(raw) != 6:
        raise ProtocolError("no message")
    locations = read_sizes(raw[4], len(frame))
    size = max(end_of(locations), len(frame))
    nbytes = size - aligned(len(frame))
    if nbytes > limit:
        raise ProtocolError(f"tensors of {nbytes} bytes; at most {limit} are expected")
    return Head(read_message(raw), locations, size)


def _body(tensor: FlatTensor) -> list[Piece]:
    if not tensor.nbytes:
        return []
    if tensor.texts is not None:
        return [tensor.array.tobytes(), tensor.texts]
    return [np.ascontiguousarray(tensor.array, to_numpy(tensor.dtype)).reshape(-1).view(np.uint8).data]
