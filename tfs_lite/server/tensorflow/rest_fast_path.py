"""A fast path for simple predictions: rows of floats for the only input, rows of float32 from the only output. Pure.

Its results are exactly those of the general path, which handles everything for which these functions return None.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from tfs_lite.core.signature import DataType, Signature, SymbolicDim
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json.text import MAX_DEPTH
from tfs_lite.protocols.json.writer import print_small
from tfs_lite.protocols.rest.predict import PredictBody

MOST_NUMBERS = 4096
_OPENINGS = (b'{"instances":', b'{"instances": ')
_SHORTEST, _LONGEST = map(len, _OPENINGS)
_FLOAT32 = np.dtype(np.float32)


def read_instances(data: bytes) -> PredictBody | None:
    """A body in JSON that has rows without texts and nothing else. None for others, and for malformed ones."""
    start = data.find(b"[", _SHORTEST, _LONGEST + 1)
    if data[:start] not in _OPENINGS or data[-1:] != b"}" or data.find(b'"', start) > 0:
        return None
    if data.count(b"[", start) >= MAX_DEPTH:  # without names of members, nothing else can be nested
        return None
    try:
        return PredictBody("", True, orjson.loads(memoryview(data)[start:-1]))
    except orjson.JSONDecodeError:
        return None


def read_plain(body: PredictBody, signature: Signature) -> dict[str, Array] | None:
    """The only input as a float32 array [rows, width]. None unless the signature declares such an input and ``body``
    has rows of as many floats."""
    if len(signature.inputs) != 1 or signature.conditions is not None or not body.rows:
        return None
    spec, rows = signature.inputs[0], body.value
    if spec.dtype is not DataType.FLOAT or spec.shape is None or len(spec.shape) != 2 or type(rows) is not list:
        return None
    batch, width = spec.shape
    if not isinstance(batch, SymbolicDim) or isinstance(width, SymbolicDim):
        return None
    if not rows or (batch.maximum is not None and len(rows) > batch.maximum):
        return None
    numbers: list[Any] = []
    for row in rows:
        if type(row) is not list or len(row) != width:
            return None
        numbers += row
    if set(map(type, numbers)) != {float}:
        return None
    return {spec.name: np.frombuffer(array("f", numbers), _FLOAT32).reshape(len(rows), width)}


def print_plain(outputs: Mapping[str, Array], rows: bool) -> bytes | None:
    """The answer in JSON to a request in row form. None unless there is one output, a small matrix of float32."""
    if not rows or len(outputs) != 1:
        return None
    (found,) = outputs.values()
    if found.dtype != _FLOAT32 or found.ndim != 2 or found.size > MOST_NUMBERS or not found.flags.c_contiguous:
        return None
    return print_small({"predictions": found}, odd=False)
