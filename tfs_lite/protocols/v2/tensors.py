"""Tensors of the V2 protocol: the names of its datatypes, and raw bytes <-> numpy arrays.

Numbers are little-endian, row-major and without padding; a BYTES element is its length, in four bytes, and its bytes.
Nothing is allocated before the declared shape has been compared to the size of the data.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tfs_lite.core.signature import DataType, format_shape
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import MAX_FILL_BYTES, MAX_RANK, TABLE, Array, from_numpy, to_numpy
from tfs_lite.protocols.v2.request import SentTensor

BYTES = "BYTES"
MAX_ELEMENTS = 2**63 - 1
_LENGTH = struct.Struct("<I")

_NAMES = {row.dtype: BYTES if row.dtype is DataType.STRING else row.config[5:] for row in TABLE if row.config}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(slots=True)
class RawTensor(SentTensor):
    """An input that is decoded after the checks that clients expect first. ``data`` are the bytes as sent, or the typed
    values, flat and of the right dtype."""

    data: Buffer | Array = b""


def dtype_of(datatype: str, name: str = "", model: str = "") -> DataType:
    """The element type of V2's name, such as ``FP32``. INVALID_ARGUMENT for an unknown name; its message names the
    input and the model where they are given."""
    try:
        return _DTYPES[datatype]
    except KeyError:
        of = f" for input {_of(name, model)}" if name else ""
        known = ", ".join(sorted(_DTYPES))
        raise invalid_argument(f"invalid datatype '{datatype:.64}'{of}; V2 has {known}") from None


def name_of(dtype: DataType) -> str:
    """V2's name of the element type; ``INVALID`` for INVALID, which means any, and for types without a name."""
    return _NAMES.get(dtype, "INVALID")


def datatype_of(array: Array, name: str = "") -> str:
    """V2's name for the dtype of output ``name``. INTERNAL if it has none: the model must not return such an output."""
    found = _NAMES.get(from_numpy(array.dtype))
    if found is None:
        raise ServingError(StatusCode.INTERNAL, f"output '{name}' is {array.dtype}, which V2 has no datatype for")
    return found


def decode_raw(datatype: str, shape: tuple[int, ...], data: Buffer, name: str = "", model: str = "") -> Array:
    """The array of these bytes. It may be read-only, and shares their memory if that is aligned. Texts become an object
    array of ``bytes``. ``name`` and ``model`` are for messages. INVALID_ARGUMENT."""
    dtype = dtype_of(datatype, name, model)
    count = element_count(shape, to_numpy(dtype).itemsize, name)
    if dtype is DataType.STRING:
        return _texts(data, count, name, model).reshape(shape)
    numpy_dtype = to_numpy(dtype)
    if len(data) != count * numpy_dtype.itemsize:
        raise _size_mismatch(name, model, count * numpy_dtype.itemsize, len(data))
    if dtype is DataType.BOOL:
        return _booleans(data).reshape(shape)
    array = np.frombuffer(data, numpy_dtype) if count else np.empty(0, numpy_dtype)
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def shape_values(datatype: str, shape: tuple[int, ...], values: Array, name: str = "", model: str = "") -> Array:
    """The same for typed values: a flat array, whose size has to fit. INVALID_ARGUMENT."""
    dtype = dtype_of(datatype, name, model)
    item_size = to_numpy(dtype).itemsize
    count = element_count(shape, item_size, name)
    if values.size == count:
        return values.reshape(shape)
    if dtype is not DataType.STRING:
        raise _size_mismatch(name, model, count * item_size, values.size * item_size)
    raise _too_few(name, model, count, values.size) if values.size < count else _too_many(name, model, count)


def decode(tensor: SentTensor, model: str = "") -> Array:
    """The array of an input that is not in shared memory. INVALID_ARGUMENT."""
    if tensor.array is not None:
        return tensor.array
    if not isinstance(tensor, RawTensor):
        raise invalid_argument(f"unable to find data for input tensor '{tensor.name}' for model '{model}' in request")
    if isinstance(tensor.data, np.ndarray):
        return shape_values(tensor.datatype, tensor.shape, tensor.data, tensor.name, model)
    return decode_raw(tensor.datatype, tensor.shape, tensor.data, tensor.name, model)


def raw_texts(tensors: Iterable[SentTensor], larger_than: int) -> list[RawTensor]:
    """The inputs of texts that have more bytes than that and are not decoded yet."""
    return [
        tensor
        for tensor in tensors
        if isinstance(tensor, RawTensor)
        and tensor.datatype == BYTES
        and tensor.array is None
        and not isinstance(tensor.data, np.ndarray)
        and len(tensor.data) > larger_than
    ]


def decode_ahead(tensors: Iterable[SentTensor]) -> None:
    """Decodes inputs before the request is checked. One that cannot be decoded stays as it is, so that it is refused in
    its turn. Any thread."""
    for tensor in tensors:
        with suppress(ServingError):
            tensor.array = decode(tensor)


def check_byte_size(tensor: SentTensor, size: int, model: str = "") -> None:
    """Raises INVALID_ARGUMENT unless the shape of an input needs ``size`` bytes. Texts may have any size."""
    dtype = dtype_of(tensor.datatype, tensor.name, model)
    item_size = to_numpy(dtype).itemsize
    count = element_count(tensor.shape, item_size, tensor.name)
    if dtype is not DataType.STRING and size != count * item_size:
        raise _size_mismatch(tensor.name, model, count * item_size, size)


def encode_raw(array: Array) -> bytes:
    """The bytes that :func:`decode_raw` reads. INVALID_ARGUMENT if an object array holds anything but texts."""
    if from_numpy(array.dtype) is DataType.STRING:
        return _frame(array)
    return array.tobytes()


def text_bytes(element: object) -> bytes:
    """The bytes of an element of a text array. INVALID_ARGUMENT if it is no text."""
    if isinstance(element, bytes):
        return element
    if not isinstance(element, str):
        raise invalid_argument(f"an array of texts holds {type(element).__name__}, expected bytes or str")
    try:
        return element.encode()
    except UnicodeEncodeError:
        raise invalid_argument("a text has characters that UTF-8 cannot express") from None


def element_count(shape: tuple[int, ...], item_size: int = 1, name: str = "") -> int:
    """The number of elements of the shape. INVALID_ARGUMENT if a size is missing or the product is too large."""
    if len(shape) > MAX_RANK:
        raise invalid_argument(f"input '{name}' has {len(shape)} dimensions, at most {MAX_RANK} are allowed")
    if any(size < 0 for size in shape):
        raise invalid_argument(
            f"All input dimensions should be specified for input '{name}', got shape {format_shape(shape)}"
        )
    count = math.prod(shape)
    sizes = math.prod(size or 1 for size in shape)
    most = MAX_ELEMENTS if count else MAX_FILL_BYTES
    if sizes > most:
        raise invalid_argument(
            f"shape {format_shape(shape)} of input '{name}' causes total element count to exceed maximum size of "
            f"{most} bytes"
        )
    if sizes * item_size > most:
        raise invalid_argument(
            f"byte size overflow for input '{name}': shape {format_shape(shape)} has more than {most} bytes"
        )
    return count


def _booleans(data: Buffer) -> Array:
    """Reads booleans: any byte but 0 is true."""
    array = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    return array != 0 if array.size and array.max() > 1 else array.view(np.bool_)


def _texts(data: Buffer, count: int, name: str, model: str) -> Array:
    if count * _LENGTH.size > len(data):
        _count_texts(data, count, name, model)
    data = bytes(data)
    texts = np.empty(count, object)
    unpack, end, at = _LENGTH.unpack_from, len(data), 0
    for index in range(count):
        if end - at < _LENGTH.size:
            _count_texts(data, count, name, model)
        (length,) = unpack(data, at)
        at += _LENGTH.size + length
        if at > end:
            raise _cut(name, model, "incomplete string data")
        texts[index] = data[at - length : at]
    if at != end:
        _count_texts(data, count, name, model)
    return texts


def _count_texts(data: Buffer, count: int, name: str, model: str) -> None:
    """Raises the error for texts whose number or lengths do not fit."""
    at = found = 0
    while at < len(data):
        if found == count:
            raise _too_many(name, model, count)
        if len(data) - at < _LENGTH.size:
            raise _cut(name, model, "incomplete string length indicator")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        found += 1
        if at > len(data):
            raise _cut(name, model, "incomplete string data")
    raise _too_few(name, model, count, found)


def _frame(array: Array) -> bytes:
    pieces: list[bytes] = []
    for element in array.ravel().tolist():
        text = text_bytes(element)
        pieces += (_LENGTH.pack(len(text)), text)
    return b"".join(pieces)


def _of(name: str, model: str) -> str:
    return f"'{name}'" + (f" for model '{model}'" if model else "")


def _size_mismatch(name: str, model: str, expected: int, got: int) -> ServingError:
    return invalid_argument(f"input byte size mismatch for input {_of(name, model)}. Expected {expected}, got {got}")


def _too_few(name: str, model: str, expected: int, got: int) -> ServingError:
    return invalid_argument(f"expected {expected} string elements for inference input {_of(name, model)}, got {got}")


def _too_many(name: str, model: str, expected: int) -> ServingError:
    return invalid_argument(
        f"unexpected number of string elements {expected + 1} for inference input {_of(name, model)}, "
        f"expecting {expected}"
    )


def _cut(name: str, model: str, what: str) -> ServingError:
    return invalid_argument(f"{what} for inference input {_of(name, model)}")
