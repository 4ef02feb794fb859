"""InferAnswer -> ModelInferResponse as bytes, alone or within a stream.

The numbers are copied once, from the arrays into the message: protobuf writes the other fields, and the raw contents,
which are the last field, are appended. Most answers differ from the last one in their numbers and their id only, so the
other bytes are cached for every recent (version, names, dtypes, shapes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.dtypes import Array, from_numpy
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.tensor_proto import MAX_MESSAGE_BYTES
from tfs_lite.protocols.v2.grpc_request import BYTE_SIZE, OFFSET, REGION
from tfs_lite.protocols.v2.messages import ModelInferResponse, ModelStreamInferResponse
from tfs_lite.protocols.v2.request import FINAL, InferAnswer, ParameterValue, SharedMemorySlice
from tfs_lite.protocols.v2.tensors import Buffer, datatype_of, encode_raw
from tfs_lite.protocols.varints import encode_varint
from tfs_lite.transport.remembered import Remembered

MAX_FRAMES = 256

_ID = ModelInferResponse.DESCRIPTOR.fields_by_name["id"].number << 3 | 2
_RAW = ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number << 3 | 2
_RESPONSE = ModelStreamInferResponse.DESCRIPTOR.fields_by_name["infer_response"].number << 3 | 2


Frame = tuple[bytes, ...]
"""The bytes before the id, those after it up to the numbers of the first output, and those before each further one's;
without outputs the second piece ends the message."""


class GrpcAnswers:
    """Writes answers by ``write``, the same bytes as :func:`answer_bytes`. One thread."""

    def __init__(self) -> None:
        self._frames = Remembered[Any, Frame | None](MAX_FRAMES)

    def write(self, answer: InferAnswer) -> bytes:
        """A ModelInferResponse; errors as of :func:`answer_bytes`."""
        outputs = answer.outputs
        key = (answer.version, *[(name, array.dtype, array.shape) for name, array in outputs.items()])
        try:
            frame = self._frames[key]
        except KeyError:
            frame = self._frames.add(key, _frame(answer))
        wanted = answer.wanted
        if frame is None or answer.parameters or (wanted and any(output.memory for output in wanted.values())):
            return answer_bytes(answer)
        parts = [frame[0]]
        if answer.id:
            encoded = answer.id.encode()
            parts += (bytes([_ID]), encode_varint(len(encoded)), encoded)
        for before, array in zip(frame[1:], outputs.values(), strict=False):
            parts += (before, array.tobytes())
        return b"".join(parts) if outputs else b"".join((*parts, frame[1]))


def answer_bytes(answer: InferAnswer) -> bytes:
    """A ModelInferResponse. INVALID_ARGUMENT if it is too large for a message; INTERNAL for a dtype without a name."""
    return b"".join(_parts(answer, answer.parameters))


def stream_bytes(answer: InferAnswer, final: bool) -> bytes:
    """A ModelStreamInferResponse; ``final`` means that it is the last one of its request. Errors as above."""
    parts = _parts(answer, {**answer.parameters, FINAL: final})
    return b"".join([bytes([_RESPONSE]), encode_varint(sum(map(len, parts))), *parts])


def stream_error(message: str, request_id: str) -> bytes:
    """A ModelStreamInferResponse that says why a request failed, the last one of its request."""
    response = ModelStreamInferResponse(error_message=message or "the request failed")
    response.infer_response.id = request_id
    response.infer_response.parameters[FINAL].bool_param = True
    encoded: bytes = response.SerializeToString()
    return encoded


def _parts(answer: InferAnswer, parameters: Mapping[str, ParameterValue]) -> list[Buffer]:
    _check_size(sum(array.nbytes for array in answer.outputs.values()))
    response = ModelInferResponse(model_name=answer.version.name, model_version=str(answer.version.version))
    response.id = answer.id
    _set_parameters(response.parameters, parameters)
    raw: list[Buffer] = []
    for name, array in answer.outputs.items():
        output = response.outputs.add(name=name, datatype=datatype_of(array, name), shape=array.shape)
        wanted = answer.wanted.get(name)
        data = _raw(array)
        if wanted is not None and wanted.memory is not None:
            _set_memory(output, wanted.memory, len(data))
            data = b""
        raw += (bytes([_RAW]) + encode_varint(len(data)), data)
    parts = [response.SerializeToString(), *raw]
    _check_size(sum(map(len, parts)))
    return parts


def _frame(answer: InferAnswer) -> Frame | None:
    """The frame of an answer; None where the numbers are not simply the arrays' bytes, or where the answer is an
    error."""
    arrays = answer.outputs.values()
    texts = any(from_numpy(array.dtype) is DataType.STRING or not array.dtype.isnative for array in arrays)
    if texts or sum(array.nbytes for array in arrays) >= MAX_MESSAGE_BYTES // 2:
        return None
    before = ModelInferResponse(model_name=answer.version.name, model_version=str(answer.version.version))
    after = ModelInferResponse()
    heads: list[bytes] = []
    for name, array in answer.outputs.items():
        after.outputs.add(name=name, datatype=datatype_of(array, name), shape=array.shape)
        heads.append(bytes([_RAW]) + encode_varint(array.nbytes))
    known: bytes = after.SerializeToString()
    first = heads[0] if heads else b""
    return (before.SerializeToString(), known + first, *heads[1:])


def _check_size(size: int) -> None:
    if size >= MAX_MESSAGE_BYTES:
        raise invalid_argument(f"the response has {size} bytes, more than the {MAX_MESSAGE_BYTES} of a message")


def _raw(array: Array) -> Buffer:
    """The bytes of an array, as a view if possible."""
    if from_numpy(array.dtype) is DataType.STRING or not array.dtype.isnative:
        return encode_raw(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _set_memory(output: Message, memory: SharedMemorySlice, size: int) -> None:
    values: dict[str, ParameterValue] = {REGION: memory.region, BYTE_SIZE: size}
    if memory.offset:
        values[OFFSET] = memory.offset
    _set_parameters(output.parameters, values)


def _set_parameters(parameters: Mapping[str, Message], values: Mapping[str, ParameterValue]) -> None:
    for key, value in values.items():
        parameter = parameters[key]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, str):
            parameter.string_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        elif value < 2**63:
            parameter.int64_param = value
        else:
            parameter.uint64_param = value
