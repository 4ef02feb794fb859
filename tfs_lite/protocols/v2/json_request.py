"""The body of a V2 inference request over HTTP -> an :class:`InferRequest`.

    body: JSON, perhaps with bytes after it  ->  read_infer  ->  InferRequest, its tensors decoded or raw

Every mistake is INVALID_ARGUMENT. What depends on the model (names, datatypes, shapes) is checked later (``checks``).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import Array, to_numpy
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.protocols.json.values import shorten, type_name
from tfs_lite.protocols.v2.binary import LENGTH_HEADER, BinaryData
from tfs_lite.protocols.v2.json_values import (
    MAX_UINT64,
    Members,
    read_data,
    read_flag,
    read_list,
    read_members,
    read_parameters,
    read_shape,
    read_size,
    read_text,
)
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
from tfs_lite.protocols.v2.tensors import RawTensor, decode_raw, dtype_of, element_count

_KINDS: dict[type, ParameterType] = {
    bool: ParameterType.BOOL,
    int: ParameterType.INT,
    str: ParameterType.TEXT,
    float: ParameterType.FLOAT,
}
_EXPECTED: dict[str, tuple[type, ...]] = {
    "sequence_id": (int, str),
    "sequence_start": (bool,),
    "sequence_end": (bool,),
    "priority": (int,),
    "timeout": (int,),
    "binary_data_output": (bool,),
}
_WORDS: dict[type, str] = {int: "a whole number from 0", str: "a string", bool: "a boolean"}
_REGION, _REGION_SIZE, _REGION_OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"


def read_infer(model: str, version: int | None, body: bytes, length: int | None) -> InferRequest:
    """The request. ``length`` is that of the JSON part; None means the whole body. Arrays may share memory with
    ``body``. Takes long for large bodies; any thread."""
    members = read_members(body if length is None else body[:length])
    blobs = None if length is None else BinaryData(memoryview(body)[length:])
    request = InferRequest(model, version, "" if members.get("id") is None else read_text(members, "id"))
    add_parameters(request, read_parameters(members))
    for position, item in enumerate(_entries(members, "inputs")):
        request.inputs.append(_input(_object(item, f"input {position}"), blobs))
    if members.get("outputs") is not None:
        request.outputs = [
            _output(_object(item, f"output {position}")) for position, item in enumerate(_entries(members, "outputs"))
        ]
    if blobs is not None:
        blobs.finish()
    return request


def add_parameters(request: InferRequest, parameters: Members) -> None:
    """Sets the request's fields from its parameters. INVALID_ARGUMENT."""
    check_entries("parameters", len(parameters))
    items: list[tuple[str, ParameterValue, ParameterType]] = []
    for key, value in parameters.items():
        kind = _KINDS.get(type(value))
        expected = _EXPECTED.get(key)
        if expected is not None and (type(value) not in expected or (type(value) is int and value < 0)):
            words = " or ".join(_WORDS[kind] for kind in expected)
            raise invalid_argument(f"Unable to parse '{key}': expected {words}, got {_shown(value)}")
        if kind is None:
            raise invalid_argument(
                f"parameter '{shorten(key)}' has invalid type {type_name(value)}. It should be either 'int', 'bool', "
                "'string' or 'number'"
            )
        items.append((key, value, kind))
    take_parameters(request, items, over_http=True)


def _entries(members: Members, name: str) -> list[Any]:
    found: list[Any] = read_list(members, name)
    check_entries(name, len(found))
    return found


def _input(members: Members, blobs: BinaryData | None) -> SentTensor:
    name = read_text(members, "name", "an input")
    what = f"input '{shorten(name)}'"
    shape, datatype = read_shape(members, what), read_text(members, "datatype", what)
    parameters = read_parameters(members, what)
    memory = _memory(parameters, what)
    sized = "binary_data_size" in parameters
    data = members.get("data")
    if (data is not None) + sized + (memory is not None) != 1:
        raise invalid_argument(
            f"must specify exactly one of 'data', 'binary_data_size' and '{_REGION}' for {what} in request"
        )
    if memory is not None:
        return SentTensor(name, datatype, shape, memory=memory)
    if sized:
        return _binary_input(name, datatype, shape, read_size(parameters, "binary_data_size", what), blobs)
    return SentTensor(name, datatype, shape, _shaped(data, datatype, shape, name))


def _binary_input(name: str, datatype: str, shape: tuple[int, ...], size: int, blobs: BinaryData | None) -> SentTensor:
    if blobs is None:
        raise invalid_argument(
            f"must specify valid 'Infer-Header-Content-Length' ({LENGTH_HEADER}) in request header when passing "
            f"inputs in binary data format, as input '{shorten(name)}' is"
        )
    data = blobs.take(shorten(name), size)
    tensor = RawTensor(name, datatype, shape, data=data)
    if size > COMFORTABLE_BYTES:  # this thread is for slow work; errors are raised later, in the order of the checks
        with suppress(ServingError):
            tensor.array, tensor.data = decode_raw(datatype, shape, data, name), b""
    return tensor


def _shaped(value: Any, datatype: str, shape: tuple[int, ...], name: str) -> Array:
    dtype = dtype_of(datatype, shorten(name))
    what = f"input '{shorten(name)}'"
    count = element_count(shape, to_numpy(dtype).itemsize, shorten(name))
    if not isinstance(value, list) and not hasattr(value, "tolist"):
        raise invalid_argument(f"Unable to parse 'data' of {what}: expected an array, got {type_name(value)}")
    flat = read_data(value, dtype, what)
    if flat.size == count:
        return flat.reshape(shape)
    wrong = "shape does not match true shape" if flat.size < count else "Shape does not match true shape"
    raise invalid_argument(
        f"Unable to parse 'data' of {what}: {wrong} of 'data' field. Expected {count} elements, got {flat.size}"
    )


def _output(members: Members) -> WantedOutput:
    name = read_text(members, "name", "an output")
    what = f"output '{shorten(name)}'"
    parameters = read_parameters(members, what)
    classes = read_size(parameters, "classification", what, default=0)
    return WantedOutput(name, classes, read_flag(parameters, "binary_data", what), _memory(parameters, what))


def _memory(parameters: Members, what: str) -> SharedMemorySlice | None:
    if _REGION not in parameters:
        return None
    size = read_size(parameters, _REGION_SIZE, what, most=MAX_UINT64)
    offset = read_size(parameters, _REGION_OFFSET, what, default=0, most=MAX_UINT64)
    return SharedMemorySlice(read_text(parameters, _REGION, what), size, offset)


def _object(value: Any, what: str) -> Members:
    if isinstance(value, dict):
        return value
    raise invalid_argument(f"Unable to parse {what}: expected an object, got {type_name(value)}")


def _shown(value: Any) -> str:
    return str(value) if type(value) in (int, float) else type_name(value)
