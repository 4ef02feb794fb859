"""TensorProto <-> numpy array, the tensors of TensorFlow's protocols.

Clients send values either as raw bytes (``tensor_content``) or in the typed field of the dtype; a server must take
both for every dtype. Answers use typed fields unless asked otherwise, because clients read ``float_val`` directly.

Nothing is allocated before the declared shape has been compared to the size of the data. The one exception is part of
the format: with fewer values than elements the last one is repeated (without any: zeros), which may fill at most
``max_bytes``.
"""

from __future__ import annotations

import math

import numpy as np

from tfs_lite.core.signature import DataType, format_shape
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.descriptors import numbers_in
from tfs_lite.protocols.dtypes import MAX_FILL_BYTES, MAX_RANK, Array, from_numpy, to_numpy
from tfs_lite.protocols.messages import Message, TensorProto
from tfs_lite.protocols.varints import decode_varint, encode_varints

MAX_MESSAGE_BYTES = 2**31 - 1
"""The largest message in bytes, by protobuf's bound."""


_FIELDS = {
    DataType.FLOAT: "float_val",
    DataType.DOUBLE: "double_val",
    DataType.INT32: "int_val",
    DataType.UINT8: "int_val",
    DataType.INT16: "int_val",
    DataType.INT8: "int_val",
    DataType.STRING: "string_val",
    DataType.COMPLEX64: "scomplex_val",
    DataType.INT64: "int64_val",
    DataType.BOOL: "bool_val",
    DataType.BFLOAT16: "half_val",
    DataType.UINT16: "int_val",
    DataType.COMPLEX128: "dcomplex_val",
    DataType.HALF: "half_val",
    DataType.UINT32: "uint32_val",
    DataType.UINT64: "uint64_val",
    DataType.FLOAT8_E5M2: "float8_val",
    DataType.FLOAT8_E4M3FN: "float8_val",
    DataType.FLOAT8_E4M3FNUZ: "float8_val",
    DataType.FLOAT8_E5M2FNUZ: "float8_val",
}
_SUPPORTED = frozenset(int(dtype) for dtype in _FIELDS)
_COMPLEX = (DataType.COMPLEX64, DataType.COMPLEX128)
_BIT_PATTERNS = (DataType.HALF, DataType.BFLOAT16)
_PACKED_AS_IS = (DataType.FLOAT, DataType.DOUBLE, DataType.BOOL, *_COMPLEX)
"""Types whose packed field has the same bytes as the array."""


def decode(tensor: Message, alias: str, max_bytes: int = MAX_FILL_BYTES) -> Array:
    """The array of ``tensor``; it may be read-only. Strings become an object array of ``bytes``.

    Every mistake raises INVALID_ARGUMENT ``tensor parsing error: ALIAS: reason``.
    """
    try:
        return _decode(tensor, max_bytes)
    except ValueError as error:
        raise invalid_argument(f"tensor parsing error: {alias}: {error}") from None


def encode(array: Array, as_content: bool = False) -> Message:
    """A TensorProto of ``array``: typed fields with every element written out, or raw bytes with ``as_content``.

    Strings always go into ``string_val``, the only form that every client reads. INVALID_ARGUMENT if the dtype has
    no counterpart or an object array holds anything but ``bytes`` and ``str``.
    """
    dtype = from_numpy(array.dtype)
    if array.nbytes > MAX_MESSAGE_BYTES:
        raise ServingError(
            StatusCode.RESOURCE_EXHAUSTED,
            f"a tensor of {array.nbytes} bytes, shape {format_shape(array.shape)}, is more than a message holds",
        )
    tensor = TensorProto(dtype=dtype)
    tensor.tensor_shape.SetInParent()
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if dtype is DataType.STRING:
        tensor.string_val.extend(_to_bytes(element) for element in array.ravel().tolist())
        return tensor
    flat = array.astype(to_numpy(dtype), copy=False).ravel()
    if as_content:
        tensor.tensor_content = flat.tobytes()
    elif _FIELDS[dtype] == "float8_val":
        tensor.float8_val = flat.tobytes()
    elif flat.size:
        tensor.MergeFromString(_packed_field(dtype, flat))
    return tensor


def _decode(tensor: Message, max_bytes: int) -> Array:
    dtype = _dtype(tensor.dtype)
    shape = _shape(tensor.tensor_shape, to_numpy(dtype).itemsize)
    count = math.prod(shape)
    if count == 0:
        return np.empty(_small(shape, to_numpy(dtype).itemsize, max_bytes), to_numpy(dtype))
    content: bytes = tensor.tensor_content
    if not content:
        flat = _fill(_typed_values(tensor, dtype), count, max_bytes)
    elif dtype is DataType.STRING:
        flat = _strings_of_content(content, count)
    else:
        flat = _numbers_of_content(content, dtype, shape)
    return flat.reshape(shape)


def _dtype(number: int) -> DataType:
    if number in _SUPPORTED:
        return DataType(number)
    known = TensorProto.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_number.get(number)
    raise ValueError(f"dtype {known.name if known else number} is not supported")


def _shape(proto: Message, item_size: int) -> tuple[int, ...]:
    if len(proto.dim) > MAX_RANK:
        raise ValueError(f"{len(proto.dim)} dimensions, at most {MAX_RANK} are allowed")
    shape = tuple(dim.size for dim in proto.dim)
    for axis, size in enumerate(shape):
        if size < 0:
            raise ValueError(f"size {size} in dimension {axis} is negative")
    if math.prod(size or 1 for size in shape) * item_size >= 2**63:
        raise ValueError(f"shape {format_shape(shape)} is too large")
    return shape


def _small(shape: tuple[int, ...], item_size: int, max_bytes: int) -> tuple[int, ...]:
    """The shape of an empty tensor. Nothing bounds its other sizes but this, and results may have them alone."""
    if math.prod(size or 1 for size in shape) * item_size > max_bytes:
        raise ValueError(f"shape {format_shape(shape)} of an empty tensor is too large")
    return shape


def _numbers_of_content(content: bytes, dtype: DataType, shape: tuple[int, ...]) -> Array:
    numpy_dtype = to_numpy(dtype)
    expected = math.prod(shape) * numpy_dtype.itemsize
    if len(content) != expected:
        raise ValueError(
            f"tensor_content has {len(content)} bytes, expected {expected} "
            f"for shape {format_shape(shape)} of {dtype.text}"
        )
    if dtype is DataType.BOOL and np.frombuffer(content, np.uint8).max() > 1:
        raise ValueError("tensor_content of bool has a byte other than 0 and 1")
    return np.frombuffer(content, numpy_dtype)


def _strings_of_content(content: bytes, count: int) -> Array:
    """All lengths first, as varints, then all strings."""
    if count > len(content):
        raise ValueError(f"tensor_content has {len(content)} bytes, too few for {count} strings")
    lengths, position = [], 0
    for _ in range(count):
        length, position = decode_varint(content, position)
        lengths.append(length)
    if position + sum(lengths) != len(content):
        raise ValueError(f"tensor_content has {len(content)} bytes, its strings need {position + sum(lengths)}")
    strings = np.empty(count, object)
    for index, length in enumerate(lengths):
        strings[index] = content[position : position + length]
        position += length
    return strings


def _typed_values(tensor: Message, dtype: DataType) -> Array:
    """The values in the typed field, flat. Values in the field of another dtype are not looked at."""
    field = getattr(tensor, _FIELDS[dtype])
    numpy_dtype = to_numpy(dtype)
    if dtype is DataType.STRING:
        strings = np.empty(len(field), object)
        strings[:] = field
        return strings
    if isinstance(field, bytes):
        return np.frombuffer(field, numpy_dtype)
    values = numbers_in(tensor, _FIELDS[dtype])
    if dtype in _COMPLEX:
        return values[: values.size // 2 * 2].view(numpy_dtype)
    if dtype in _BIT_PATTERNS:
        return values.astype(np.uint16).view(numpy_dtype)
    return values.astype(numpy_dtype, copy=False)


def _fill(values: Array, count: int, max_bytes: int) -> Array:
    """The first ``count`` values; missing ones repeat the last value, or are zeros if there is none."""
    if values.size >= count:
        return values[:count]
    strings = values.dtype == object
    last = values[-1:] if values.size else np.array([b"" if strings else 0], values.dtype)
    needed = count * max(values.dtype.itemsize, len(last[0]) if strings else 0)
    if needed > max_bytes:
        raise ValueError(
            f"{values.size} values came for {count} elements; repeating the last one would fill {needed} bytes, "
            f"at most {max_bytes} are allowed"
        )
    filled = np.empty(count, values.dtype)
    filled[: values.size] = values
    filled[values.size :] = last
    return filled


def _packed_field(dtype: DataType, flat: Array) -> bytes:
    """The bytes of one packed repeated field: tag, length, values."""
    if dtype in _PACKED_AS_IS:
        payload = flat.tobytes()
    else:
        payload = encode_varints(flat.view(np.uint16) if dtype in _BIT_PATTERNS else flat)
    number = TensorProto.DESCRIPTOR.fields_by_name[_FIELDS[dtype]].number
    return encode_varints(np.array([number << 3 | 2, len(payload)])) + payload


def _to_bytes(element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if not isinstance(element, str):
        raise invalid_argument(f"an array of strings holds {type(element).__name__}, expected bytes or str")
    try:
        return element.encode()
    except UnicodeEncodeError:
        raise invalid_argument("a string has characters that UTF-8 cannot express") from None
