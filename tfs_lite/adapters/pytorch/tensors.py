"""numpy arrays of requests <-> tensors of models.

A tensor shares the caller's memory only if the array is writable and the model promises not to write to it. Results are
always copies: they outlive the call, while a model may reuse what it returned.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from tfs_lite.adapters.results import as_texts, check_outputs, type_of_array
from tfs_lite.core.signature import DataType, Signature, Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array, from_numpy, to_numpy

CPU = torch.device("cpu")

TORCH_DTYPES: Mapping[DataType, torch.dtype] = {
    DataType.FLOAT: torch.float32,
    DataType.DOUBLE: torch.float64,
    DataType.INT32: torch.int32,
    DataType.UINT8: torch.uint8,
    DataType.INT16: torch.int16,
    DataType.INT8: torch.int8,
    DataType.COMPLEX64: torch.complex64,
    DataType.INT64: torch.int64,
    DataType.BOOL: torch.bool,
    DataType.BFLOAT16: torch.bfloat16,
    DataType.UINT16: torch.uint16,
    DataType.COMPLEX128: torch.complex128,
    DataType.HALF: torch.float16,
    DataType.UINT32: torch.uint32,
    DataType.UINT64: torch.uint64,
    DataType.FLOAT8_E5M2: torch.float8_e5m2,
    DataType.FLOAT8_E4M3FN: torch.float8_e4m3fn,
    DataType.FLOAT8_E4M3FNUZ: torch.float8_e4m3fnuz,
    DataType.FLOAT8_E5M2FNUZ: torch.float8_e5m2fnuz,
}
"""Every element type but STRING, which torch does not have."""

DATA_TYPES: Mapping[torch.dtype, DataType] = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items()}

_RAW = {2: (np.uint16, torch.uint16), 1: (np.uint8, torch.uint8)}
_FOREIGN = {
    to_numpy(dtype): TORCH_DTYPES[dtype]
    for dtype in TORCH_DTYPES
    if dtype is DataType.BFLOAT16 or dtype.name.startswith("FLOAT8")
}
"""Element types that numpy and torch both have but cannot exchange: they travel as integers of the same width."""
_FOREIGN_NUMPY = {torch_dtype: dtype for dtype, torch_dtype in _FOREIGN.items()}


def to_tensor(array: Array, device: torch.device, share: bool) -> torch.Tensor:
    """The array as a tensor on ``device``. ``share`` promises that the tensor is not written to."""
    may_share = share or device.type != "cpu"
    if not (may_share and array.flags.writeable and array.flags.c_contiguous and array.dtype.isnative):
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    foreign = _FOREIGN.get(array.dtype)
    if foreign is None:
        tensor = torch.from_numpy(array)
    else:
        tensor = torch.from_numpy(array.view(_RAW[array.itemsize][0])).view(foreign)
    if not array.size:  # numpy's strides are 0 then, and torch's are not
        tensor = tensor.new_empty(tensor.shape)
    return tensor.to(device)


def to_arrays(values: Mapping[str, object], device: torch.device) -> dict[str, Tensor]:
    """A model's results, which are tensors, arrays or texts, as arrays. Waits once for the device, after all copies.

    INTERNAL, naming the output, for a value that has no element type.
    """
    host = {name: _on_host(value) if isinstance(value, torch.Tensor) else value for name, value in values.items()}
    if device.type == "cuda":
        _wait(device)
    return {name: _as_array(name, value) for name, value in host.items()}


def is_typed(value: object) -> bool:
    """Whether a result has its dtype and shape before it is converted to an array."""
    return isinstance(value, torch.Tensor | np.ndarray)


def check_tensors(signature: Signature, inputs: Mapping[str, Tensor], outputs: Mapping[str, object]) -> None:
    """Calls :func:`check_outputs` with results that are tensors, arrays or texts."""
    check_outputs(signature, inputs, outputs, _type_of)


def _type_of(value: object) -> tuple[DataType, tuple[int, ...]] | None:
    if not isinstance(value, torch.Tensor):
        return type_of_array(value)
    dtype = DATA_TYPES.get(value.dtype)
    return None if dtype is None else (dtype, tuple(value.shape))


def as_array(tensor: torch.Tensor) -> Array:
    """A contiguous tensor on the host as an array over the same memory."""
    foreign = _FOREIGN_NUMPY.get(tensor.dtype)
    if foreign is None:
        array: Array = tensor.numpy()
        return array
    return tensor.view(_RAW[foreign.itemsize][1]).numpy().view(foreign)


def _wait(device: torch.device) -> None:
    """Waits for the work of the current stream so far, and for no other stream, while the thread sleeps."""
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(device))
    done.synchronize()


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        if "sparse" not in str(tensor.layout):
            return tensor
        tensor = tensor.to_dense()
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.device.type == "cpu":
        return plain.clone(memory_format=torch.contiguous_format)
    return plain.contiguous().to("cpu", non_blocking=True)


def _as_array(name: str, value: object) -> Array:
    try:
        array = as_array(value) if isinstance(value, torch.Tensor) else np.array(value, order="C")
        return as_texts(array) if from_numpy(array.dtype) is DataType.STRING else array
    except (ServingError, TypeError, ValueError, RuntimeError):
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            message = f"output {name} is a tensor of layout {value.layout}; expected a dense tensor"
            raise ServingError(StatusCode.INTERNAL, message) from None
        if isinstance(value, torch.Tensor) and value.is_quantized:
            message = f"output {name} is quantised ({value.dtype}); the model has to return it.dequantize()"
            raise ServingError(StatusCode.INTERNAL, message) from None
        kind = str(value.dtype) if isinstance(value, torch.Tensor | np.ndarray) else type(value).__name__
        raise ServingError(
            StatusCode.INTERNAL, f"output {name} is of type {kind}; expected a tensor, an array or texts"
        ) from None
