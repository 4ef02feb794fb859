"""Protobuf messages that differ from an earlier one in their numbers only, which are read without parsing.

    bytes -> [same length and same bytes around the numbers as an earlier message?] -> its layout, or None

Clients send the same message repeatedly with other numbers: names, dtypes and shapes are equal byte for byte. Numbers
are one run of little-endian bytes for each tensor, so a layout has their positions, and an array is a view of the
message's bytes. A field's meaning follows from the bytes before it; equal bytes outside the runs therefore mean an
equal message except for the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.varints import decode_varint
from tfs_lite.transport.remembered import Remembered

MAX_LENGTHS, MAX_OF_LENGTH = 128, 4
"""Lengths of messages whose layouts are cached, and layouts of one length."""
MAX_KNOWN_BYTES = 4096
"""The most bytes of a message that a layout keeps."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types. LENGTH is that of everything that says its length."""
_SIZES = {FIXED64: 8, FIXED32: 4}
"""Bytes of the wire types of fixed size."""

Field = tuple[int, int]
"""A field's number and wire type."""
Span = tuple[int, int]
Known = tuple[tuple[int, int, bytes], ...]
"""The offset, end and bytes of the pieces that are the same in every message."""
Numbers = tuple[tuple[str, Any, int, int, tuple[int, ...]], ...]
"""The input name, numpy dtype, count, offset and shape of each part with numbers."""


@dataclass(slots=True)
class WireLayout:
    """The layout of every message of this length with the ``known`` bytes."""

    known: Known
    numbers: Numbers

    def matches(self, data: bytes) -> bool:
        """Whether ``data`` has the bytes of this layout around its numbers; it has the layout's length already."""
        for start, end, known in self.known:  # noqa: SIM110 - this is the hot path
            if data[start:end] != known:
                return False
        return True

    def inputs(self, data: bytes) -> dict[str, Array]:
        """The arrays of a message that matches: read-only views of its bytes."""
        return {
            name: np.frombuffer(data, dtype, count, offset).reshape(shape)
            for name, dtype, count, offset, shape in self.numbers
        }


L = TypeVar("L", bound=WireLayout)


class LayoutCache(Generic[L]):
    """The layouts seen last. One thread."""

    def __init__(self) -> None:
        self._by_length = Remembered[int, tuple[L, ...]](MAX_LENGTHS)

    def find(self, data: bytes) -> L | None:
        for layout in self._by_length.get(len(data), ()):
            if layout.matches(data):
                return layout
        return None

    def add(self, length: int, layout: L) -> None:
        """``length`` is that of its messages. Of too many of one length the oldest goes, and so does the oldest
        length."""
        others = self._by_length.get(length, ())
        self._by_length.add(length, (layout, *others[: MAX_OF_LENGTH - 1]))


def lay_out(
    data: bytes, inputs: Mapping[str, Array], spans: Mapping[str, Span], others: Sequence[Span] = ()
) -> WireLayout | None:
    """The layout of a message with these decoded ``inputs``, whose numbers are in ``spans``; ``others`` are more bytes
    that may differ. None if a span does not hold its array's bytes, or if too many bytes would have to be kept."""
    if not inputs or len(spans) != len(inputs) or any(array.size == 0 for array in inputs.values()):
        return None
    numbers = []
    for name, array in inputs.items():
        start, end = spans.get(name, (0, 0))
        if end - start != array.nbytes:
            return None
        numbers.append((name, array.dtype, array.size, start, array.shape))
    known = _around(data, sorted([*spans.values(), *others]))
    if sum(len(piece) for _, _, piece in known) > MAX_KNOWN_BYTES:
        return None
    layout = WireLayout(known, tuple(numbers))
    arrays = layout.inputs(data)
    same = all(array.tobytes() == inputs[name].tobytes() for name, array in arrays.items())
    return layout if same else None


def fields(data: bytes, start: int, end: int) -> Iterator[tuple[Field, int, int]]:
    """Yields (field, start, end of the payload) of every field. ValueError for groups and for a field that is cut
    off."""
    position = start
    while position < end:
        tag, position = decode_varint(data, position)
        kind, size = tag & 7, 0
        if kind == VARINT:
            size = decode_varint(data, position)[1] - position
        elif kind == LENGTH:
            size, position = decode_varint(data, position)
        else:
            size = _SIZES.get(kind, end)  # groups are too long for any message
        if position + size > end:
            raise ValueError("a field beyond its message")
        yield (tag >> 3, kind), position, position + size
        position += size


def _around(data: bytes, spans: list[Span]) -> Known:
    """The pieces of ``data`` outside the spans."""
    edges = [0, *(edge for span in spans for edge in span), len(data)]
    pieces = zip(edges[::2], edges[1::2], strict=True)
    return tuple((start, end, data[start:end]) for start, end in pieces if end > start)
