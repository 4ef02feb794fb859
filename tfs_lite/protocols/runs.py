"""From a request to the run of a model: every check that needs no model, in the order that clients expect.

    message or body  ->  Run (signature found, names checked, inputs decoded)
                     ->  call_inputs (outputs, defaults, dtypes and shapes)  ->  the model

Live and replayed requests go through the same checks, so that a warm-up finds the mistakes that a client would find.
Inputs that a request leaves out get defaults from the model's config: one row, repeated for every row of the request,
if the first dimension is the batch; otherwise the whole tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tfs_lite.core.signature import (
    DEFAULT_SIGNATURE,
    DataType,
    Signature,
    SymbolicDim,
    TensorSpec,
    check_input_names,
    check_inputs,
    check_output_filter,
    check_rows,
    find_signature,
    format_shape,
    named,
)
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import MAX_FILL_BYTES, Array, from_numpy
from tfs_lite.protocols.json.tensors import infer_dtype, read_tensor
from tfs_lite.protocols.json.text import Json, loads
from tfs_lite.protocols.json.values import FLOATS
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.classify_regress import check_predict_method
from tfs_lite.protocols.tensorflow.tensor_proto import decode

MAX_FILTER = 10_000
"""Names in an output_filter."""


@dataclass(slots=True)
class Run:
    """One run of a model: the key of its signature, the inputs that were sent, and the wanted outputs (empty: all).
    ``fits`` is the signature that it was already checked against, if any."""

    signature: str
    inputs: Mapping[str, Array]
    outputs: tuple[str, ...] = ()
    fits: Signature | None = None


def run_of_predict(
    signatures: Mapping[str, Signature],
    request: Message,
    check_method_names: bool = False,
    max_bytes: int = MAX_FILL_BYTES,
) -> Run:
    """The run of a PredictRequest. ``max_bytes`` bounds a tensor that was sent with fewer values than elements.
    FAILED_PRECONDITION if there is no such signature; INVALID_ARGUMENT."""
    key = request.model_spec.signature_name or DEFAULT_SIGNATURE
    signature = find_signature(signatures, key)
    if check_method_names:
        check_predict_method(signature)
    try:
        check_input_names(signature, request.inputs)
        if len(request.output_filter) > MAX_FILTER:
            raise invalid_argument(f"output_filter has more than {MAX_FILTER} names")
        inputs = {name: decode(tensor, name, max_bytes) for name, tensor in request.inputs.items()}
    except ServingError as error:
        raise named(error, signature.model) from None
    return Run(key, inputs, tuple(request.output_filter))


def call_inputs(signature: Signature, run: Run, max_bytes: int = MAX_FILL_BYTES) -> Mapping[str, Array]:
    """The inputs for the model: those of ``run``, and defaults for the others, repeated to at most ``max_bytes``.
    INVALID_ARGUMENT if there are too many rows, or if outputs, dtypes or shapes do not fit the signature."""
    check_rows(signature, (array.shape for array in run.inputs.values()))
    try:
        check_output_filter(signature, run.outputs)
        arrays = fill_defaults(signature, run.inputs, max_bytes)
        check_inputs(signature, {name: (from_numpy(array.dtype), array.shape) for name, array in arrays.items()})
    except ServingError as error:
        raise named(error, signature.model) from None
    return arrays


def fill_defaults(
    signature: Signature, arrays: Mapping[str, Array], max_bytes: int = MAX_FILL_BYTES
) -> Mapping[str, Array]:
    """The ``arrays``, and the defaults of the inputs that are not among them.

    A row is repeated for the size that the request gives to its batch dimension, or once. Defaults that are not
    repeated are the signature's own arrays, which are read-only. INVALID_ARGUMENT if repeating would fill more than
    ``max_bytes``. Inputs without a default stay missing.
    """
    missing = [spec for spec in signature.inputs if spec.name in signature.defaults and spec.name not in arrays]
    if not missing:
        return arrays
    return {**arrays, **{spec.name: _filled(spec, signature, arrays, max_bytes) for spec in missing}}


def parse_default(text: str) -> Json:
    """The value of a JSON text. INVALID_ARGUMENT if it is not JSON."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise invalid_argument("the text has characters that UTF-8 cannot express") from None
    return loads(data)


def default_array(value: Json, spec: TensorSpec) -> Array:
    """A parsed JSON value as the default of an input: of its dtype, read-only.

    Values are read as in a request: lists nest as the tensor does, byte strings are ``{"b64": "..."}``, and an
    undeclared dtype follows from the values. INVALID_ARGUMENT, without the name of the input, for a value that does not
    fit the dtype or the shape; UNIMPLEMENTED for a dtype that JSON cannot express.
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
    filled[...] = default  # unlike np.repeat, this is quick for any number of empty rows
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
    """Raises INVALID_ARGUMENT if ``array`` has lost a number that is in ``wide``, because it is too large for the
    dtype."""
    lost = np.isfinite(wide) & ~np.isfinite(array.astype(np.float64))
    if lost.any():
        raise invalid_argument(f"{wide.flat[int(lost.argmax())]:g} is too large for {dtype.text}")
