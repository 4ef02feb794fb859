"""The ``data`` of a V2 tensor in JSON -> a flat array, in the order of the text. Lists may be nested in any way.

What is regular goes at numpy's speed (``rest_dense``). The rest is flattened without recursion, and if an element does
not fit, the first one is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import to_numpy
from tfs_lite.protocols.rest_dense import first_unfit, read_dense
from tfs_lite.protocols.rest_values import INTEGERS, read_element, show, type_name
from tfs_lite.protocols.tensor_proto import Array
from tfs_lite.protocols.v2_tensors import name_of

WITHOUT_JSON = (DataType.HALF, DataType.BFLOAT16)
"""Types whose values V2 does not put into JSON."""


def no_json(dtype: DataType, what: str) -> ServingError:
    """``what``: which tensor it is."""
    return invalid_argument(
        f"sending {name_of(dtype)} data via JSON is not supported. Please use the binary data format for {what}"
    )


def read_data(value: object, dtype: DataType, what: str) -> Array:
    """``value``: what stands in the body, lists, arrays or one element. Texts become ``bytes`` in UTF-8. The array is
    flat, of the dtype's numpy type, may be read-only and share memory with ``value``. INVALID_ARGUMENT if an element is
    of another kind or out of range, or if the type has no JSON form."""
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
    """What is in nested lists, in the order of the text; arrays are whole."""
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
    """Says which element it is."""
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
