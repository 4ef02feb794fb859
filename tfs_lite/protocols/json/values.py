"""One value of a REST body: its name and text in messages, and its meaning as an element of a tensor.

A tree comes from ``text`` or ``msgpack``. Its leaves are None, bool, int, float, str, with msgpack also
``bytes``; numpy arrays (int64, uint64, float64) stand for large dense lists of numbers. An integer that 64 bits
cannot hold is a float there, as in other parsers. Every text below that shows a value is short, however large the
value is.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import to_numpy

SHOWN = 256
"""Characters of a value that a message shows."""

INTEGERS = {
    dtype: np.iinfo(to_numpy(dtype))
    for dtype in (
        DataType.INT32,
        DataType.INT16,
        DataType.INT8,
        DataType.UINT8,
        DataType.UINT16,
        DataType.INT64,
        DataType.UINT32,
        DataType.UINT64,
    )
}
"""Element types that take integers, with their ranges."""

FLOATS = frozenset(
    {
        DataType.FLOAT,
        DataType.DOUBLE,
        DataType.HALF,
        DataType.BFLOAT16,
        DataType.FLOAT8_E5M2,
        DataType.FLOAT8_E4M3FN,
        DataType.FLOAT8_E4M3FNUZ,
        DataType.FLOAT8_E5M2FNUZ,
    }
)
"""Element types that take any number."""

_TYPES: dict[type, str] = {
    type(None): "Null",
    dict: "Object",
    list: "Array",
    np.ndarray: "Array",
    str: "String",
    bytes: "Binary",
    int: "Number",
    float: "Number",
}


def body_members(tree: object) -> dict[str, Any]:
    """The members of a body. INVALID_ARGUMENT if it is no object."""
    if not isinstance(tree, dict):
        raise invalid_argument(f"JSON Value: {show(tree)} Is not object")
    return tree


def present(members: dict[str, Any]) -> dict[str, Any]:
    """The members whose value is not null: serialisers print null for a member that is absent."""
    return {name: value for name, value in members.items() if value is not None}


def read_signature_name(members: dict[str, Any]) -> str:
    """The body's ``signature_name``, empty if it has none. INVALID_ARGUMENT if it is no string."""
    name = members.get("signature_name")
    if name is None:
        return ""
    if not isinstance(name, str):
        raise invalid_argument(f"'signature_name' key must be a string value, got {type_name(name)}: {show(name)}")
    return name


def type_name(value: object) -> str:
    """The type of a JSON value in messages: Null, True, False, Object, Array, String, Number or Binary."""
    if isinstance(value, bool):
        return str(value)
    return _TYPES[type(value)]


def show(value: object) -> str:
    """The value as compact JSON, cut after ``SHOWN`` characters. Takes no longer for a large value."""
    text = ""
    for chunk in _chunks(value):
        text += chunk
        if len(text) > SHOWN:
            return text[:SHOWN] + "..."
    return text


def shorten(text: str) -> str:
    """A name that a client chose, cut after ``SHOWN`` characters."""
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def is_base64(value: object) -> bool:
    """Whether it is the wrapper of binary data: an object with one member, ``b64``, which is a string."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def read_base64(value: object) -> bytes:
    """The bytes of a wrapper, see :func:`decode_base64`. INVALID_ARGUMENT for another value."""
    if not isinstance(value, dict) or not is_base64(value):
        raise invalid_argument(f"JSON Value: {show(value)} not formatted correctly for base64 data")
    try:
        return decode_base64(value["b64"])
    except ValueError:
        raise invalid_argument(f"Unable to base64 decode: {show(value)}") from None


def decode_base64(text: str) -> bytes:
    """The bytes of a text in the standard alphabet, with correct padding or without. As in TensorFlow Serving, ASCII
    white space may stand anywhere, and padding may be dots. ValueError for another text."""
    sent = b"".join(text.encode("ascii").split())
    digits = sent.rstrip(b"=.")
    missing = -len(digits) % 4
    if len(sent) - len(digits) not in (0, missing):
        raise binascii.Error("the padding is wrong")
    return binascii.a2b_base64(digits + b"=" * missing, strict_mode=True)


def write_base64(data: bytes) -> dict[str, str]:
    """The wrapper of ``data``."""
    return {"b64": base64.b64encode(data).decode()}


def read_element(value: object, dtype: DataType) -> object:
    """The element of a tensor that ``value`` stands for: bool, int, float or ``bytes``.

    INVALID_ARGUMENT if it is not of that type or not in its range, UNIMPLEMENTED if REST has no form for the type.
    """
    if dtype is DataType.STRING:
        return _read_string(value)
    if dtype is DataType.BOOL:
        fits = isinstance(value, bool)
    elif dtype in INTEGERS:
        fits = type(value) is int and INTEGERS[dtype].min <= value <= INTEGERS[dtype].max
    elif dtype in FLOATS:
        fits = type(value) in (int, float)
    else:
        raise ServingError(
            StatusCode.UNIMPLEMENTED, f"JSON Value: {show(value)} has no conversion to type: {dtype.text}"
        )
    if not fits:
        raise type_error(value, dtype)
    return value


def type_error(value: object, dtype: DataType) -> ServingError:
    """The INVALID_ARGUMENT for a value that does not fit the element type; for an integer type it names the range."""
    text = f"JSON Value: {show(value)} Type: {type_name(value)} is not of expected type: {dtype.text}"
    if type(value) is int and dtype in INTEGERS:
        text += f", whose range is {INTEGERS[dtype].min} to {INTEGERS[dtype].max}"
    return invalid_argument(text)


def _read_string(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        return read_base64(value)
    raise type_error(value, DataType.STRING)


def _chunks(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        for position, (key, member) in enumerate(value.items()):
            yield ("," if position else "") + _quote(key) + ":"
            yield from _chunks(member)
        yield "}"
    elif isinstance(value, list | np.ndarray):
        yield "["
        for position, item in enumerate(value):
            if position:
                yield ","
            yield from _chunks(item)
        yield "]"
    else:
        yield _scalar(value)


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, bytes):
        return json.dumps(write_base64(value[:SHOWN]), separators=(",", ":"))
    return json.dumps(value.item() if isinstance(value, np.generic) else value)


def _quote(text: str) -> str:
    return json.dumps(text[: SHOWN + 1], ensure_ascii=False)
