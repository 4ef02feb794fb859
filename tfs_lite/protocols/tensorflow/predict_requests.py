"""PredictRequests that differ from an earlier one in their numbers only, which are read without parsing.

    bytes -> [a layout of ``wire_layouts``?] -> its numbers, or None
    parsed request + its bytes -> layout, cached for the next one

The model's name, the signature, names, dtypes and shapes are equal byte for byte. The numbers of a tensor are one run
of bytes: ``tensor_content``, or a packed typed field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import DataType, Signature
from tfs_lite.protocols.dtypes import Array, from_numpy
from tfs_lite.protocols.messages import Message, TensorProto
from tfs_lite.protocols.wire_layouts import (
    FIXED32,
    FIXED64,
    LENGTH,
    Field,
    LayoutCache,
    Span,
    WireLayout,
    fields,
    lay_out,
)

_NEVER = (DataType.STRING, DataType.BOOL)
"""Types that are not numbers; their bytes mean something only after a look at each."""

_INPUTS, _KEY, _VALUE = (2, LENGTH), (1, LENGTH), (2, LENGTH)
_CONTENT = (TensorProto.DESCRIPTOR.fields_by_name["tensor_content"].number, LENGTH)
_FLOATS = TensorProto.DESCRIPTOR.fields_by_name["float_val"].number
_DOUBLES = TensorProto.DESCRIPTOR.fields_by_name["double_val"].number
_TYPED: Mapping[DataType, tuple[Field, ...]] = {
    DataType.FLOAT: ((_FLOATS, LENGTH), (_FLOATS, FIXED32)),
    DataType.DOUBLE: ((_DOUBLES, LENGTH), (_DOUBLES, FIXED64)),
}
"""The fields for the numbers of each type: packed, or one value by itself."""


@dataclass(slots=True)
class PredictLayout(WireLayout):
    """The layout of PredictRequests. The caller sets ``fits`` to the signature that names, dtypes and shapes were last
    checked against."""

    model: ModelRef
    outputs: tuple[str, ...]
    fits: Signature | None = field(default=None)


class Layouts(LayoutCache[PredictLayout]):
    """The layouts seen last. One thread."""

    def learn(
        self, data: bytes, request: Message, model: ModelRef, inputs: Mapping[str, Array]
    ) -> PredictLayout | None:
        """Caches the layout of a parsed request with its decoded ``inputs``, and returns it. None for a message without
        runs of numbers, or with an unusual encoding."""
        try:
            found = lay_out(data, inputs, _spans(data, inputs))
        except (ValueError, KeyError):
            return None
        if found is None:
            return None
        layout = PredictLayout(found.known, found.numbers, model, tuple(request.output_filter))
        self.add(len(data), layout)
        return layout


def _spans(data: bytes, inputs: Mapping[str, Array]) -> dict[str, Span]:
    """The places of each input's numbers. ValueError if that is not plain."""
    found: dict[str, Span] = {}
    for part, start, end in fields(data, 0, len(data)):
        if part != _INPUTS:
            continue
        key, value = fields(data, start, end)
        if (key[0], value[0]) != (_KEY, _VALUE):
            raise ValueError("not a plain map entry")
        name = data[key[1] : key[2]].decode()
        if name in found:
            raise ValueError("an input twice")
        found[name] = _numbers_span(data, (value[1], value[2]), from_numpy(inputs[name].dtype))
    return found


def _numbers_span(data: bytes, tensor: Span, dtype: DataType) -> Span:
    """The place of the numbers of one TensorProto, whose fields from ``tensor_content`` on hold values."""
    ((run, start, end),) = [part for part in fields(data, *tensor) if part[0][0] >= _CONTENT[0]]
    if dtype in _NEVER or run not in (_CONTENT, *_TYPED.get(dtype, ())):
        raise ValueError("no run of numbers")
    return start, end
