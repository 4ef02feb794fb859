"""Values of a V2 body in JSON: members of a type, and the ``data`` of tensors, with Triton's messages.

A member that is null is absent. In ``data`` a null is an element, and wrong.
Every error is INVALID_ARGUMENT and quotes no more of the body than a name. ``data`` becomes a flat array in the order
of the text, however its lists are nested: regular lists by numpy (``json.arrays``), others flattened without recursion.
The error for an element that does not fit names the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import Array, to_numpy
from tfs_lite.protocols.json import text as json_text
from tfs_lite.protocols.json.arrays import first_unfit, read_dense
from tfs_lite.protocols.json.tree import MAX_DEPTH
from tfs_lite.protocols.json.values import INTEGERS, present, read_element, shorten, show, type_name
from tfs_lite.protocols.v2.tensors import name_of

Members: TypeAlias = dict[str, Any]

MAX_INT64 = 2**63 - 1
MAX_UINT64 = 2**64 - 1
_DEEP = "levels of nesting"
TOO_DEEP = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"


def read_object(text: bytes, what: str = "request") -> Members:
    """The members of a body that is an object, without those that are null."""
    return present(read_members(text, what))


def read_members(text: bytes, what: str = "request") -> Members:
    """All members of a body that is an object."""
    try:
        tree = json_text.loads(text)
    except ServingError as error:
        deep = f"{TOO_DEEP}: " if _DEEP in str(error) else ""
        fault = str(error).removeprefix("JSON Parse error: ").replace(" at offset: ", " at ")  # as Triton says it
        raise invalid_argument(f"failed to parse the {what} JSON buffer: {deep}{fault}") from None
    if not isinstance(tree, dict):
        raise invalid_argument(f"failed to parse the {what} JSON buffer: expected an object, got {type_name(tree)}")
    return tree


def read_text(members: Members, key: str, of: str = "") -> str:
    """A required member that is a string. ``of`` names its owner in the message."""
    return _require(members, key, of, isinstance(members.get(key), str), "a string")  # type: ignore[no-any-return]


def read_list(members: Members, key: str, of: str = "") -> list[Any]:
    value = members.get(key)
    if hasattr(value, "tolist"):  # a large array of numbers
        return value.tolist()  # type: ignore[no-any-return, union-attr]
    return _require(members, key, of, isinstance(value, list), "an array")  # type: ignore[no-any-return]


def read_parameters(members: Members, of: str = "") -> Members:
    """The member ``parameters``, without its nulls; empty if it is missing."""
    value = members.get("parameters")
    if value is None:
        return {}
    if not isinstance(value, dict):
        where = f" of {of}" if of else ""
        raise invalid_argument(f"Expected JSON object for keyword: 'parameters'{where}, got {type_name(value)}")
    return present(value)


def read_size(members: Members, key: str, of: str = "", default: int | None = None, most: int = MAX_INT64) -> int:
    """A whole number from 0 to ``most``; required if there is no ``default``."""
    if key not in members and default is not None:
        return default
    value = members.get(key)
    fits = type(value) is int and 0 <= value <= most
    return _require(members, key, of, fits, "a whole number from 0")  # type: ignore[no-any-return]


def read_flag(members: Members, key: str, of: str = "", default: bool | None = None) -> bool | None:
    """A member that is ``true`` or ``false``; ``default`` if it is missing."""
    if key not in members:
        return default
    return _require(members, key, of, isinstance(members[key], bool), "a boolean")  # type: ignore[no-any-return]


def read_shape(members: Members, of: str) -> tuple[int, ...]:
    """The member ``shape``: whole numbers of 64 bits from 0."""
    shape = read_list(members, "shape", of)
    for index, size in enumerate(shape):
        if type(size) is not int or not 0 <= size <= MAX_INT64:
            where = f" of {shorten(of)}" if of else ""
            shown = str(size)[:40] if isinstance(size, int | float) else type_name(size)
            text = f"element {index} is {shown}, expected a whole number from 0"
            raise invalid_argument(f"Unable to parse 'shape'{where}: {text}")
    return tuple(shape)


def _require(members: Members, key: str, of: str, fits: bool, expected: str) -> Any:
    if fits:
        return members[key]
    where = f" of {shorten(of)}" if of else ""
    got = "nothing" if members.get(key) is None else type_name(members[key])
    raise invalid_argument(f"Unable to parse '{key}'{where}: expected {expected}, got {got}")


WITHOUT_JSON = (DataType.HALF, DataType.BFLOAT16)
"""Types whose values V2 does not put into JSON."""


def no_json(dtype: DataType, what: str) -> ServingError:
    """The error for a tensor, ``what``, of a type without a JSON form."""
    return invalid_argument(
        f"sending {name_of(dtype)} data via JSON is not supported. Please use the binary data format for {what}"
    )


def read_data(value: object, dtype: DataType, what: str) -> Array:
    """The flat array of a value of the body: lists, arrays or one element. Texts become ``bytes`` in UTF-8. The array
    has the dtype's numpy type, may be read-only and share memory with ``value``. INVALID_ARGUMENT if an element is of
    another type or out of range, or if the dtype has no JSON form."""
    if dtype in WITHOUT_JSON:
        raise no_json(dtype, what)
    if dtype is DataType.STRING:
        return _texts(value, what)
    dense = read_dense(value, dtype)
    if dense is not None:
        return dense.reshape(-1)
    parts = [np.empty(0, to_numpy(dtype))]
    for part in _runs(value):
        read = read_dense(part, dtype)
        if read is None:
            raise _misfit(part, dtype, what)
        parts.append(read.reshape(-1))
    return np.concatenate(parts)


def leaves(value: object) -> Iterator[Any]:
    """The elements of nested lists, in the order of the text; an array is one element."""
    stack = [iter((value,))]
    while stack:
        for item in stack[-1]:
            if type(item) is list:
                stack.append(iter(item))
                break
            yield item
        else:
            stack.pop()


def _runs(value: object) -> Iterator[Any]:
    """Lists of leaves, and arrays."""
    for is_array, run in groupby(leaves(value), lambda leaf: isinstance(leaf, np.ndarray)):
        if is_array:
            yield from run
        else:
            yield list(run)


def _texts(value: object, what: str) -> Array:
    found = list(leaves(value))
    if set(map(type, found)) - {str}:
        raise _misfit(found, DataType.STRING, what)
    texts = np.empty(len(found), object)
    texts[:] = [text.encode() for text in found]
    return texts


def _misfit(part: Any, dtype: DataType, what: str) -> ServingError:
    """The error that names the first element that does not fit."""
    if isinstance(part, np.ndarray):
        element = part.flat[first_unfit(part, dtype) or 0].item()
    else:
        element = next((leaf for leaf in part if not _fits(leaf, dtype)), None)
    where = f"Unable to parse 'data' of {what}:"
    if type(element) is int and dtype in INTEGERS:
        low, high = INTEGERS[dtype].min, INTEGERS[dtype].max
        return invalid_argument(f"{where} {element} is no {name_of(dtype)}, whose range is {low} to {high}")
    word = _word(dtype)
    return invalid_argument(
        f"{where} attempt to access JSON non-{word} as {word}: {show(element)} is {type_name(element)}"
    )


def _fits(leaf: Any, dtype: DataType) -> bool:
    if dtype is DataType.STRING:
        return type(leaf) is str
    try:
        read_element(leaf, dtype)
    except ServingError:
        return False
    return True


def _word(dtype: DataType) -> str:
    if dtype is DataType.STRING:
        return "string"
    if dtype is DataType.BOOL:
        return "boolean"
    if dtype in INTEGERS:
        return "signed-integer" if INTEGERS[dtype].min else "unsigned-integer"
    return "number"
