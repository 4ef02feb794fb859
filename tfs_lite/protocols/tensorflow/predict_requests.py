"""PredictRequests that differ from an earlier one in their numbers only, which are read without parsing.

    bytes -> [same length and same bytes around the numbers as an earlier request?] -> its layout, or None
    parsed request + its bytes -> layout, cached for the next one

Clients send the same message repeatedly with other numbers: the model's name, the signature, names, dtypes and shapes
are equal byte for byte. Numbers are one run of little-endian bytes (``tensor_content``, or a packed typed field), so a
:class:`Layout` has their positions, and an array is a view of the request's bytes. A field's meaning follows from the
bytes before it; equal bytes outside the runs therefore mean an equal message except for the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import DataType, Signature
from tfs_lite.protocols.dtypes import Array, from_numpy
from tfs_lite.protocols.messages import Message, TensorProto
from tfs_lite.protocols.varints import decode_varint

MAX_LAYOUTS = 128
MAX_OF_LENGTH = 4
"""Layouts that are cached for messages of one length."""
MAX_KNOWN_BYTES = 4096
"""The most bytes of a message that a layout keeps."""

_NEVER = (DataType.STRING, DataType.BOOL)
"""Not numbers; bytes that mean something only after a look at each."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
"""Bytes of the wire types of fixed size."""

Field = tuple[int, int]
"""Number and wire type."""

_INPUTS, _KEY, _VALUE = (2, _LENGTH), (1, _LENGTH), (2, _LENGTH)
_CONTENT = (TensorProto.DESCRIPTOR.fields_by_name["tensor_content"].number, _LENGTH)
_FLOATS = TensorProto.DESCRIPTOR.fields_by_name["float_val"].number
_DOUBLES = TensorProto.DESCRIPTOR.fields_by_name["double_val"].number
_TYPED: Mapping[DataType, tuple[Field, ...]] = {
    DataType.FLOAT: ((_FLOATS, _LENGTH), (_FLOATS, _FIXED32)),
    DataType.DOUBLE: ((_DOUBLES, _LENGTH), (_DOUBLES, _FIXED64)),
}
"""Packed, or one value by itself."""

Span = tuple[int, int]


@dataclass(slots=True)
class Layout:
    """The layout of every message of this length with the ``known`` bytes (offset, end, bytes).

    The caller sets ``fits`` to the signature that names, dtypes and shapes were last checked against.
    """

    model: ModelRef
    outputs: tuple[str, ...]
    known: tuple[tuple[int, int, bytes], ...]
    numbers: tuple[tuple[str, Any, int, int, tuple[int, ...]], ...]
    """Input name, numpy dtype, count, offset, shape."""
    fits: Signature | None = field(default=None)

    def matches(self, data: bytes) -> bool:
        """``data`` has the length of this layout."""
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


class Layouts:
    """The layouts seen last. One thread."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[Layout]] = {}
        self._count = 0

    def find(self, data: bytes) -> Layout | None:
        for layout in self._by_length.get(len(data), ()):
            if layout.matches(data):
                return layout
        return None

    def learn(self, data: bytes, request: Message, model: ModelRef, inputs: Mapping[str, Array]) -> Layout | None:
        """Caches the layout of a parsed request with its decoded ``inputs``, and returns it. None for a message without
        runs of numbers, or with an unusual encoding."""
        layout = _layout(data, request, model, inputs)
        if layout is None:
            return None
        if self._count >= MAX_LAYOUTS:
            self._by_length.clear()
            self._count = 0
        same_length = self._by_length.setdefault(len(data), [])
        same_length.insert(0, layout)
        self._count += 1
        if len(same_length) > MAX_OF_LENGTH:
            same_length.pop()
            self._count -= 1
        return layout


def _layout(data: bytes, request: Message, model: ModelRef, inputs: Mapping[str, Array]) -> Layout | None:
    if not inputs or any(array.dtype in (object, bool) or array.size == 0 for array in inputs.values()):
        return None
    try:
        spans = _spans(data, inputs)
    except (ValueError, KeyError):
        return None
    numbers = []
    for name, array in inputs.items():
        start, end = spans.get(name, (0, 0))
        if end - start != array.nbytes:
            return None
        numbers.append((name, array.dtype, array.size, start, array.shape))
    known = _around(data, sorted(spans.values()))
    if sum(len(piece) for _, _, piece in known) > MAX_KNOWN_BYTES:
        return None
    layout = Layout(model, tuple(request.output_filter), known, tuple(numbers))
    arrays = layout.inputs(data)
    same = all(array.tobytes() == inputs[name].tobytes() for name, array in arrays.items())
    return layout if same and len(spans) == len(inputs) else None


def _around(data: bytes, spans: list[Span]) -> tuple[tuple[int, int, bytes], ...]:
    """The pieces of ``data`` outside the spans."""
    edges = [0, *(edge for span in spans for edge in span), len(data)]
    pieces = zip(edges[::2], edges[1::2], strict=True)
    return tuple((start, end, data[start:end]) for start, end in pieces if end > start)


def _spans(data: bytes, inputs: Mapping[str, Array]) -> dict[str, Span]:
    """Where the numbers of each input are. ValueError if that is not plain."""
    found: dict[str, Span] = {}
    for part, start, end in _fields(data, 0, len(data)):
        if part != _INPUTS:
            continue
        key, value = _fields(data, start, end)
        if (key[0], value[0]) != (_KEY, _VALUE):
            raise ValueError("not a plain map entry")
        name = data[key[1] : key[2]].decode()
        if name in found:
            raise ValueError("an input twice")
        found[name] = _numbers_span(data, (value[1], value[2]), from_numpy(inputs[name].dtype))
    return found


def _numbers_span(data: bytes, tensor: Span, dtype: DataType) -> Span:
    """Of one TensorProto, whose fields from ``tensor_content`` on hold values."""
    ((run, start, end),) = [part for part in _fields(data, *tensor) if part[0][0] >= _CONTENT[0]]
    if dtype in _NEVER or run not in (_CONTENT, *_TYPED.get(dtype, ())):
        raise ValueError("no run of numbers")
    return start, end


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[Field, int, int]]:
    """(field, start, end of the payload) of every field."""
    position = start
    while position < end:
        tag, position = decode_varint(data, position)
        kind, size = tag & 7, 0
        if kind == _VARINT:
            size = decode_varint(data, position)[1] - position
        elif kind == _LENGTH:
            size, position = decode_varint(data, position)
        else:
            size = _SIZES.get(kind, end)  # groups are too long for any message
        if position + size > end:
            raise ValueError("a field beyond its message")
        yield (tag >> 3, kind), position, position + size
        position += size
