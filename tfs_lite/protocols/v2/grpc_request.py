"""ModelInferRequest as bytes -> InferRequest.

Data is raw (``bytes`` for each input that is not in shared memory, in their order) or typed, in the field of the
datatype. Raw data of large requests is not parsed: its arrays are views of the request's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfs_lite.core.servable import MAX_VERSION, parse_version
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.descriptors import numbers_in
from tfs_lite.protocols.dtypes import Array, to_numpy
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.serving import parse
from tfs_lite.protocols.v2.messages import InferTensorContents, ModelInferRequest
from tfs_lite.protocols.v2.request import (
    InferRequest,
    ParameterType,
    ParameterValue,
    SentTensor,
    SharedMemorySlice,
    WantedOutput,
    check_entries,
    take_parameters,
)
from tfs_lite.protocols.v2.tensors import Buffer, RawTensor, dtype_of
from tfs_lite.protocols.varints import decode_varint

SPLIT_BYTES = 16 * 1024
"""The size in bytes below which messages are parsed whole."""
MAX_SPLIT_FIELDS = 1000
"""The most fields for which splitting is quicker; with more than that, protobuf is."""

REGION, BYTE_SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
CLASSIFICATION = "classification"

_RAW = ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
_VARINT, _LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}
"""Bytes of the wire types of fixed size."""
_TYPED_FIELDS = tuple(InferTensorContents.DESCRIPTOR.fields_by_name)
_TYPED = {
    DataType.BOOL: "bool_contents",
    DataType.INT8: "int_contents",
    DataType.INT16: "int_contents",
    DataType.INT32: "int_contents",
    DataType.INT64: "int64_contents",
    DataType.UINT8: "uint_contents",
    DataType.UINT16: "uint_contents",
    DataType.UINT32: "uint_contents",
    DataType.UINT64: "uint64_contents",
    DataType.FLOAT: "fp32_contents",
    DataType.DOUBLE: "fp64_contents",
    DataType.STRING: "bytes_contents",
}


@dataclass(slots=True)
class SentMessage:
    """A ModelInferRequest, whose raw contents are in ``raw`` and not in ``message``."""

    message: Message
    raw: Sequence[Buffer] = field(default_factory=list)

    @property
    def id(self) -> str:
        found: str = self.message.id
        return found

    @property
    def model(self) -> str:
        found: str = self.message.model_name
        return found


def read_message(data: bytes) -> SentMessage:
    """The message. INVALID_ARGUMENT for bytes that are no ModelInferRequest."""
    if len(data) >= SPLIT_BYTES and (split := _split(data)) is not None:
        with suppress(ServingError):  # the error is that of parsing all bytes
            return SentMessage(parse(ModelInferRequest, split[0]), split[1])
    message = parse(ModelInferRequest, data)
    check_entries("raw_input_contents", len(message.raw_input_contents))
    raw = list(message.raw_input_contents)
    del message.raw_input_contents[:]
    return SentMessage(message, raw)


def read_request(sent: SentMessage) -> InferRequest:
    """The request of the message; whether it fits the model is checked later. INVALID_ARGUMENT; UNIMPLEMENTED."""
    message = sent.message
    if not sent.model:
        raise invalid_argument("the request has no model name")
    for field_name in ("parameters", "inputs", "outputs"):
        check_entries(field_name, len(getattr(message, field_name)))
    request = InferRequest(sent.model, read_version(message.model_version), sent.id)
    if message.parameters:
        take_parameters(request, [(key, *_parameter(key, value)) for key, value in message.parameters.items()])
    raw = iter(sent.raw)
    for tensor in message.inputs:
        request.inputs.append(_input(tensor, sent, raw))
    surplus = sum(1 for _ in raw)
    if surplus:
        raise invalid_argument(
            f"raw_input_contents has {len(sent.raw)} entries for model '{sent.model}', "
            f"{surplus} more than there are inputs that need one"
        )
    request.outputs.extend(_output(output) for output in message.outputs)
    return request


def read_version(text: str) -> int | None:
    """The version that a request names; None for the newest. INVALID_ARGUMENT unless it is a whole number from 0."""
    if not text:
        return None
    version = parse_version(text)
    if version is None:
        raise invalid_argument(f"model version '{text:.64}' is not a whole number from 0 to {MAX_VERSION}")
    return version


def _split(data: bytes) -> tuple[bytes, list[Buffer]] | None:
    """The message without its raw contents, and these. None if its encoding is unusual."""
    view = memoryview(data)
    kept: list[Buffer] = []
    raw: list[Buffer] = []
    position = start = 0
    try:
        for _ in range(MAX_SPLIT_FIELDS):
            if position == len(data):
                kept.append(view[start:])
                return b"".join(kept), raw
            tag_at = position
            tag, position = decode_varint(data, position)
            size, position = _payload(data, tag & 7, position)
            if position + size > len(data):
                return None
            if tag == _RAW << 3 | _LENGTH:
                kept.append(view[start:tag_at])
                raw.append(view[position : position + size])
                start = position + size
            position += size
    except ValueError:
        pass
    return None


def _payload(data: bytes, wire_type: int, position: int) -> tuple[int, int]:
    """The size of a field's value, and its position."""
    if wire_type == _LENGTH:
        return decode_varint(data, position)
    if wire_type == _VARINT:
        return decode_varint(data, position)[1] - position, position
    if wire_type in _FIXED:
        return _FIXED[wire_type], position
    raise ValueError("a group")


def _parameter(key: str, value: Message) -> tuple[ParameterValue, ParameterType]:
    choice = value.WhichOneof("parameter_choice")
    if choice is None:
        raise invalid_argument(f"parameter '{key:.128}' has no value")
    return getattr(value, choice), ParameterType(choice)


def _input(tensor: Message, sent: SentMessage, raw: Any) -> SentTensor:
    name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
    memory = _memory(tensor.parameters, "input", name) if tensor.parameters else None
    typed = tensor.HasField("contents")
    if memory is not None:
        if typed:
            raise invalid_argument(
                f"unexpected 'content' provided when using shared memory for input tensor '{name}' "
                f"for model '{sent.model}'"
            )
        return SentTensor(name, datatype, shape, memory=memory)
    if typed:
        if sent.raw:
            raise invalid_argument(
                f"contents field must not be specified when using raw_input_contents for '{name}' "
                f"for model '{sent.model}'"
            )
        return RawTensor(name, datatype, shape, data=_typed_values(tensor.contents, datatype, name))
    data = next(raw, None)
    if data is None:
        raise invalid_argument(f"unable to find data for input tensor '{name}' for model '{sent.model}' in request")
    return RawTensor(name, datatype, shape, data=data)


def _typed_values(contents: Message, datatype: str, name: str) -> Array:
    dtype = dtype_of(datatype, name)
    expected = _TYPED.get(dtype)
    for found in _TYPED_FIELDS:
        if found != expected and len(getattr(contents, found)):
            wanted = f"expected {expected}" if expected else "which must be sent in raw_input_contents"
            raise invalid_argument(f"unexpected {found} for input '{name}' of datatype {datatype}, {wanted}")
    if expected is None:
        raise invalid_argument(f"input '{name}' of datatype {datatype} must be sent in raw_input_contents")
    if dtype is not DataType.STRING:
        return numbers_in(contents, expected).astype(to_numpy(dtype), copy=False)
    values = getattr(contents, expected)
    texts = np.empty(len(values), object)
    texts[:] = values
    return texts


def _output(output: Message) -> WantedOutput:
    if not output.parameters:
        return WantedOutput(output.name)
    count = _number(output.parameters, CLASSIFICATION, "output", output.name) or 0
    return WantedOutput(output.name, count, memory=_memory(output.parameters, "output", output.name))


def _memory(parameters: Mapping[str, Message], what: str, name: str) -> SharedMemorySlice | None:
    if REGION not in parameters:
        return None
    if parameters[REGION].WhichOneof("parameter_choice") != ParameterType.TEXT:
        raise _wrong_type(REGION, what, name, "string")
    size = _number(parameters, BYTE_SIZE, what, name)
    if size is None:
        raise invalid_argument(f"'{BYTE_SIZE}' must be specified along with '{REGION}' for {what} '{name}'")
    return SharedMemorySlice(parameters[REGION].string_param, size, _number(parameters, OFFSET, what, name) or 0)


def _number(parameters: Mapping[str, Message], key: str, what: str, name: str) -> int | None:
    if key not in parameters:
        return None
    choice = parameters[key].WhichOneof("parameter_choice")
    value: int = getattr(parameters[key], choice) if choice in (ParameterType.INT, ParameterType.UINT) else -1
    if value < 0:
        raise _wrong_type(key, what, name, "int64 from 0")
    return value


def _wrong_type(key: str, what: str, name: str, expected: str) -> ServingError:
    return invalid_argument(f"invalid value for '{key}' of {what} '{name}', expected {expected}")
