"""One table of element types: the number on the wire, numpy's dtype, and the names in protocols.

Strings are object arrays of ``bytes``; bfloat16 and float8 are the dtypes of ``ml_dtypes``, as in TensorFlow's and
Triton's clients. Hosts are little-endian, as all that torch runs on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import invalid_argument

MAX_FILL_BYTES = 100 * 1024 * 1024
"""The most bytes that a repeated last value may fill."""
MAX_RANK = 64
"""numpy's bound on the number of dimensions."""

Array = np.ndarray[Any, np.dtype[Any]]


def array_bytes(array: Array, text_bytes: int) -> int:
    """About the bytes that an array takes; ``text_bytes``: those of a byte string in addition to its own."""
    if not array.dtype.hasobject:
        return array.nbytes
    return array.size * text_bytes + sum(map(len, array.reshape(-1).tolist()))


@dataclass(frozen=True, slots=True)
class DtypeNames:
    """The names of an element type. ``config`` is that in config.pbtxt, or empty."""

    dtype: DataType
    numpy: np.dtype[Any]
    config: str = ""


TABLE = (
    DtypeNames(DataType.FLOAT, np.dtype(np.float32), "TYPE_FP32"),
    DtypeNames(DataType.DOUBLE, np.dtype(np.float64), "TYPE_FP64"),
    DtypeNames(DataType.INT32, np.dtype(np.int32), "TYPE_INT32"),
    DtypeNames(DataType.UINT8, np.dtype(np.uint8), "TYPE_UINT8"),
    DtypeNames(DataType.INT16, np.dtype(np.int16), "TYPE_INT16"),
    DtypeNames(DataType.INT8, np.dtype(np.int8), "TYPE_INT8"),
    DtypeNames(DataType.STRING, np.dtype(object), "TYPE_STRING"),
    DtypeNames(DataType.COMPLEX64, np.dtype(np.complex64)),
    DtypeNames(DataType.INT64, np.dtype(np.int64), "TYPE_INT64"),
    DtypeNames(DataType.BOOL, np.dtype(np.bool_), "TYPE_BOOL"),
    DtypeNames(DataType.BFLOAT16, np.dtype(ml_dtypes.bfloat16), "TYPE_BF16"),
    DtypeNames(DataType.UINT16, np.dtype(np.uint16), "TYPE_UINT16"),
    DtypeNames(DataType.COMPLEX128, np.dtype(np.complex128)),
    DtypeNames(DataType.HALF, np.dtype(np.float16), "TYPE_FP16"),
    DtypeNames(DataType.UINT32, np.dtype(np.uint32), "TYPE_UINT32"),
    DtypeNames(DataType.UINT64, np.dtype(np.uint64), "TYPE_UINT64"),
    DtypeNames(DataType.FLOAT8_E5M2, np.dtype(ml_dtypes.float8_e5m2)),
    DtypeNames(DataType.FLOAT8_E4M3FN, np.dtype(ml_dtypes.float8_e4m3fn)),
    DtypeNames(DataType.FLOAT8_E4M3FNUZ, np.dtype(ml_dtypes.float8_e4m3fnuz)),
    DtypeNames(DataType.FLOAT8_E5M2FNUZ, np.dtype(ml_dtypes.float8_e5m2fnuz)),
)

_TO_NUMPY = {row.dtype: row.numpy for row in TABLE}
_FROM_NUMPY = {row.numpy: row.dtype for row in TABLE}

FLOATING = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)
"""The types of scores, and of inputs that numbers of Examples may be converted to."""

CONFIG_NAMES = {row.dtype: row.config for row in TABLE if row.config}
"""The names of element types in config.pbtxt, such as ``TYPE_FP32``."""
FROM_CONFIG_NAME = {name: dtype for dtype, name in CONFIG_NAMES.items()}


def to_numpy(dtype: DataType) -> np.dtype[Any]:
    """The numpy dtype of an element type. KeyError for INVALID, which is no element type."""
    return _TO_NUMPY[dtype]


def from_numpy(dtype: np.dtype[Any]) -> DataType:
    """The element type of an array, in any byte order and of any kind of text. INVALID_ARGUMENT if there is none."""
    if dtype.kind in "SUT":
        return DataType.STRING
    found = _FROM_NUMPY.get(dtype) or _FROM_NUMPY.get(dtype.newbyteorder("="))
    if found is None:
        raise invalid_argument(f"arrays of dtype {dtype} cannot be sent: no tensor type corresponds to it")
    return found
