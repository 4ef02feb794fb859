"""PredictResponses as bytes, built around the numbers instead of from messages.

Most answers differ from the last one in their numbers only. The bytes between the numbers are cached for every recent
(version, signature, names, dtypes, shapes); numbers that are sent as they are in memory, raw or in a packed field, are
inserted. Other answers are written by protobuf, and mean the same to every parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DataType
from tfs_lite.protocols.dtypes import Array, from_numpy
from tfs_lite.protocols.messages import PredictResponse, TensorProto, TensorShapeProto
from tfs_lite.protocols.tensorflow import tensor_proto
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.protocols.varints import encode_varints
from tfs_lite.transport.remembered import Remembered

MAX_FRAMES = 256

_PACKED = {
    DataType.FLOAT: "float_val",
    DataType.DOUBLE: "double_val",
    DataType.BOOL: "bool_val",
    DataType.COMPLEX64: "scomplex_val",
    DataType.COMPLEX128: "dcomplex_val",
}
"""Typed fields whose packed bytes are those of the array."""
_FIELDS = TensorProto.DESCRIPTOR.fields_by_name
_LENGTH = 2
"""The wire type of everything that says its length."""

Frame = tuple[bytes, ...]
"""The bytes before the numbers of each output, and those after the last."""


class AnswerWriter:
    """Writes answers by ``write``. One thread. ``as_content``: numbers are raw bytes instead of typed fields."""

    def __init__(self, as_content: bool = False) -> None:
        self._as_content = as_content
        self._frames = Remembered[Any, Frame | None](MAX_FRAMES)

    def write(self, servable_id: ServableId, signature: str, outputs: Mapping[str, Array]) -> bytes:
        """A serialized PredictResponse. INVALID_ARGUMENT if an output has no tensor type; RESOURCE_EXHAUSTED if it is
        too large for a message."""
        shapes = [(name, array.dtype, array.shape) for name, array in outputs.items()]
        key = (servable_id.name, servable_id.version, signature, *shapes)
        try:
            frame = self._frames[key]
        except KeyError:
            frame = self._frames.add(key, _frame(servable_id, signature, outputs, self._as_content))
        if frame is None:
            return _by_protobuf(servable_id, signature, outputs, self._as_content)
        parts = [frame[0]]
        for array, known in zip(outputs.values(), frame[1:], strict=True):
            parts.append(array.tobytes())
            parts.append(known)
        return b"".join(parts)


def _by_protobuf(servable_id: ServableId, signature: str, outputs: Mapping[str, Array], as_content: bool) -> bytes:
    response = PredictResponse(
        model_spec=model_spec(ModelRef(servable_id.name, servable_id.version, signature=signature))
    )
    for name, array in outputs.items():
        response.outputs[name].CopyFrom(tensor_proto.encode(array, as_content))
    encoded: bytes = response.SerializeToString()
    return encoded


def _frame(servable_id: ServableId, signature: str, outputs: Mapping[str, Array], as_content: bool) -> Frame | None:
    """The frame of an answer; None where the numbers are not simply the array's bytes."""
    if sum(array.nbytes for array in outputs.values()) >= tensor_proto.MAX_MESSAGE_BYTES:
        return None
    pieces = []
    for name, array in outputs.items():
        field = _field(array, as_content)
        if field is None:
            return None
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in array.shape])
        head: bytes = TensorProto(dtype=from_numpy(array.dtype), tensor_shape=shape).SerializeToString()
        if array.nbytes:
            head += _head(field, array.nbytes)
        entry = _head(1, len(name.encode())) + name.encode() + _head(2, len(head) + array.nbytes) + head
        pieces.append(_head(1, len(entry) + array.nbytes) + entry)
    spec: bytes = model_spec(ModelRef(servable_id.name, servable_id.version, signature=signature)).SerializeToString()
    return (*pieces, _head(2, len(spec)) + spec)


def _field(array: Array, as_content: bool) -> int | None:
    """The number of the field that takes the array's bytes as they are."""
    dtype = from_numpy(array.dtype)
    if dtype is DataType.STRING or not array.dtype.isnative:
        return None
    name = "tensor_content" if as_content else _PACKED.get(dtype)
    return None if name is None else _FIELDS[name].number


def _head(field: int, length: int) -> bytes:
    """Tag and length of a field that says its length."""
    return encode_varints(np.array([field << 3 | _LENGTH])) + encode_varints(np.array([length]))
