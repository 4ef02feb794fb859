"""Values for inputs that a request leaves out: read from a model's config, put into requests.

A default is one row of its input where the first dimension is the batch, and is repeated for as many rows as the
request has; elsewhere it is the whole tensor.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec, format_shape
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.json_text import Json, loads
from tfs_lite.protocols.rest_tensors import infer_dtype, read_tensor
from tfs_lite.protocols.rest_values import FLOATS
from tfs_lite.protocols.tensor_proto import MAX_FILL_BYTES, Array


def fill_defaults(
    signature: Signature, arrays: Mapping[str, Array], max_bytes: int = MAX_FILL_BYTES
) -> Mapping[str, Array]:
    """``arrays``, and the defaults of the inputs that are not among them.

    A row is repeated as often as the arrays that have the same first dimension, the batch, say; once if there is none.
    Defaults that are not repeated are the signature's own arrays, and read-only. INVALID_ARGUMENT if repeating would
    fill more than ``max_bytes``. Inputs without a default stay missing.
    """
    missing = [spec for spec in signature.inputs if spec.name in signature.defaults and spec.name not in arrays]
    if not missing:
        return arrays
    return {**arrays, **{spec.name: _filled(spec, signature, arrays, max_bytes) for spec in missing}}


def parse_default(text: str) -> Json:
    """The value of a JSON text. INVALID_ARGUMENT if it is no JSON."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise invalid_argument("the text has characters that UTF-8 cannot express") from None
    return loads(data)


def default_array(value: Json, spec: TensorSpec) -> Array:
    """A parsed JSON value as the default of an input: of its dtype, read-only.

    Values are read as those of a request are: lists nest as the tensor does, byte strings are ``{"b64": "..."}``, and
    an undeclared dtype follows from the values. INVALID_ARGUMENT, without the name of the input, for a value that its
    dtype cannot hold or a shape that is not the input's; UNIMPLEMENTED for a dtype that JSON cannot express.
    """
    dtype = infer_dtype(value) if spec.dtype is DataType.INVALID else spec.dtype
    array = np.array(read_tensor(value, dtype), order="C")
    _check_shape(array.shape, spec)
    if dtype in FLOATS:
        _check_range(array, read_tensor(value, DataType.DOUBLE), dtype)
    array.setflags(write=False)
    return array


def _filled(spec: TensorSpec, signature: Signature, arrays: Mapping[str, Array], max_bytes: int) -> Array:
    default = np.asarray(signature.defaults[spec.name])
    if spec.batch is None:
        return default
    rows = _rows(spec, signature, arrays)
    if rows * default.nbytes > max_bytes:
        raise invalid_argument(
            f"the default of input {spec.name} would fill {rows * default.nbytes} bytes for {rows} rows, "
            f"at most {max_bytes} are allowed"
        )
    filled = np.empty((rows, *default.shape), default.dtype)
    filled[...] = default  # unlike np.repeat, this takes no time for any number of empty rows
    return filled


def _rows(spec: TensorSpec, signature: Signature, arrays: Mapping[str, Array]) -> int:
    """The size that the request gives to the first dimension of ``spec``."""
    batch = spec.batch
    for other in signature.inputs:
        sent = arrays.get(other.name)
        if sent is None:
            continue
        for dim, size in zip(other.shape or (), sent.shape, strict=False):
            if isinstance(dim, SymbolicDim) and dim.symbol == batch:
                return int(size)
    return 1


def _check_shape(shape: tuple[int, ...], spec: TensorSpec) -> None:
    if spec.shape is None:
        return
    expected = spec.shape[1:] if spec.batch is not None else spec.shape
    fits = len(shape) == len(expected) and all(
        size == dim if isinstance(dim, int) else dim.maximum is None or size <= dim.maximum
        for size, dim in zip(shape, expected, strict=True)
    )
    if not fits:
        what = "one row" if spec.batch is not None else "the input"
        raise invalid_argument(f"it has shape {format_shape(shape)}, {what} has {format_shape(expected)}")


def _check_range(array: Array, wide: Array, dtype: DataType) -> None:
    """INVALID_ARGUMENT if ``array`` has lost a number that is in ``wide``, because it is too large for the dtype."""
    lost = np.isfinite(wide) & ~np.isfinite(array.astype(np.float64))
    if lost.any():
        raise invalid_argument(f"{wide.flat[int(lost.argmax())]:g} is too large for {dtype.text}")
