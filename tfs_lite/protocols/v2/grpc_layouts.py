"""ModelInferRequests that differ from an earlier one in their numbers and their id only, read without parsing.

    bytes -> [a layout of ``wire_layouts``?] -> PlainRequest, or None
    an answered request + its bytes -> layout, cached for the next one

The numbers of a tensor are one run of bytes: an entry of ``raw_input_contents``, or packed ``fp32_contents`` or
``fp64_contents``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.v2.messages import InferTensorContents, ModelInferRequest
from tfs_lite.protocols.v2.plain import PlainForm, PlainRequest
from tfs_lite.protocols.v2.request import InferRequest, SentTensor
from tfs_lite.protocols.v2.tensors import decode, dtype_of
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

_REQUEST = ModelInferRequest.DESCRIPTOR.fields_by_name
_ID, _INPUT, _RAW = ((_REQUEST[name].number, LENGTH) for name in ("id", "inputs", "raw_input_contents"))
_CONTENTS = (_REQUEST["inputs"].message_type.fields_by_name["contents"].number, LENGTH)
_FLOATS, _DOUBLES = (
    InferTensorContents.DESCRIPTOR.fields_by_name[f"{name}_contents"].number for name in ("fp32", "fp64")
)
_TYPED: Mapping[DataType, tuple[Field, ...]] = {
    DataType.FLOAT: ((_FLOATS, LENGTH), (_FLOATS, FIXED32)),
    DataType.DOUBLE: ((_DOUBLES, LENGTH), (_DOUBLES, FIXED64)),
}
"""The fields for the numbers of each type: packed, or one value by itself."""


@dataclass(slots=True)
class _Layout(WireLayout):
    """``id`` is where the request's id is; empty without one."""

    form: PlainForm
    id: Span


class GrpcLayouts:
    """The layouts seen last. One thread."""

    def __init__(self) -> None:
        self._cache = LayoutCache[_Layout]()

    def find(self, data: bytes) -> PlainRequest | None:
        """The request of a message like an earlier one."""
        layout = self._cache.find(data)
        if layout is None:
            return None
        start, end = layout.id
        try:
            request_id = data[start:end].decode() if start < end else ""
        except UnicodeDecodeError:
            return None
        return PlainRequest(layout.form, request_id, layout.inputs(data))

    def learn(self, data: bytes, request: InferRequest, form: PlainForm) -> None:
        """Caches the layout of a message that was read as ``request``, a plain one of this form, if its encoding is
        plain as well."""
        try:
            inputs = {tensor.name: decode(tensor) for tensor in request.inputs}
            spans, at = _spans(data, request)
            found = lay_out(data, inputs, spans, (at,))
        except (ServingError, ValueError):
            return
        if found is not None and data[slice(*at)] == request.id.encode():
            self._cache.add(len(data), _Layout(found.known, found.numbers, form, at))


def _spans(data: bytes, request: InferRequest) -> tuple[dict[str, Span], Span]:
    """The places of each input's numbers, and of the id. ValueError if that is not plain."""
    parts = [*fields(data, 0, len(data))]
    ids, raw, sent = ([(start, end) for part, start, end in parts if part == kind] for kind in (_ID, _RAW, _INPUT))
    typed = [_typed_span(data, span, tensor) for span, tensor in zip(sent, request.inputs, strict=True)]
    (at,) = ids or [(0, 0)]
    return dict(zip([tensor.name for tensor in request.inputs], raw or typed, strict=True)), at


def _typed_span(data: bytes, span: Span, tensor: SentTensor) -> Span:
    """The place of the numbers of one input; empty if it has no contents of its own."""
    contents = [(start, end) for part, start, end in fields(data, *span) if part == _CONTENTS]
    if not contents:
        return 0, 0
    (around,) = contents
    ((run, start, end),) = fields(data, *around)
    if run not in _TYPED.get(dtype_of(tensor.datatype), ()):
        raise ValueError("no run of numbers")
    return start, end
