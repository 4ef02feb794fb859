"""Arrays -> the answer of a REST ``:predict`` request, as a tree for ``json_text`` or ``msgpack_body``.

Numbers stay arrays, so that the writers can go through them at once. Types that JSON readers have no notion of (half,
bfloat16, float8) are widened to float, which loses nothing. Strings are text, or wrappers of binary data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.dtypes import from_numpy, to_numpy
from tfs_lite.protocols.rest_values import FLOATS, INTEGERS, write_base64
from tfs_lite.protocols.tensor_proto import Array

_WRITTEN_AS_IS = frozenset({DataType.FLOAT, DataType.DOUBLE, DataType.BOOL, *INTEGERS})


def predict_tree(outputs: Mapping[str, Array], rows: bool, binary: bool = False) -> dict[str, Any]:
    """The answer's tree: ``predictions``, one element for each row, or ``outputs``, each output as a whole.

    One output stands by itself, several are named. A byte string is text if it is UTF-8, and a ``b64`` wrapper if it is
    not or if the output's name ends in ``_bytes``; with ``binary`` it stays ``bytes``. INVALID_ARGUMENT if there are no
    outputs, if one has a type that JSON cannot show, or, in row form, if one is a scalar or has another number of rows.
    """
    if not outputs:
        raise invalid_argument("Cannot convert empty tensor map to JSON")
    if rows:
        _check_rows(outputs)
    for array in outputs.values():
        _check_type(array)
    if rows and len(outputs) > 1:
        return {"predictions": _named_rows(outputs, binary)}
    trees = {name: _tree(name, array, binary) for name, array in outputs.items()}
    tree = trees if len(trees) > 1 else next(iter(trees.values()))
    return {"predictions" if rows else "outputs": tree}


def _check_rows(outputs: Mapping[str, Array]) -> None:
    expected = None
    for name, array in outputs.items():
        if array.ndim == 0:
            raise invalid_argument(
                f"Tensor name: {name} has no shape information: it is a scalar, and has no rows for 'predictions'"
            )
        expected = len(array) if expected is None else expected
        if len(array) != expected:
            raise invalid_argument(
                f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {expected}"
            )


def _check_type(array: Array) -> None:
    dtype = from_numpy(array.dtype)
    if dtype not in (*_WRITTEN_AS_IS, *FLOATS, DataType.STRING):
        raise invalid_argument(f"Failed to write JSON value for tensor type: {dtype.text}")


def _named_rows(outputs: Mapping[str, Array], binary: bool) -> list[dict[str, Any]]:
    columns = [_row_trees(name, array, binary) for name, array in outputs.items()]
    return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]


def _row_trees(name: str, array: Array, binary: bool) -> list[Any]:
    """One tree for each row. Rows of numbers are views; single ones keep the width that they are printed with."""
    tree = _tree(name, array, binary)
    if not isinstance(tree, np.ndarray) or tree.ndim > 1 or (tree.dtype == np.float32 and not binary):
        return list(tree)
    values: list[Any] = tree.tolist()
    return values


def _tree(name: str, array: Array, binary: bool) -> Any:
    dtype = from_numpy(array.dtype)
    if dtype is DataType.STRING:
        return _strings(name, array, binary)
    wanted = to_numpy(dtype) if dtype in _WRITTEN_AS_IS else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        tree = np.asarray(array, wanted, order="C")
    if tree.ndim:
        return tree
    return tree[()] if wanted == np.float32 and not binary else tree.item()


def _strings(name: str, array: Array, binary: bool) -> Any:
    write = _as_bytes if binary else write_base64 if name.endswith("_bytes") else _as_text
    """Nested lists. The elements are ``bytes``, as in every array of strings."""
    strings = np.empty(array.size, object)
    strings[:] = [write(item) for item in array.ravel().tolist()]
    return strings.reshape(array.shape).tolist()


def _as_bytes(data: bytes) -> bytes:
    return data


def _as_text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return write_base64(data)
