"""What a model returned: outputs by name, checked against the declared ones.

Names are the keys of a dict, the fields of a named tuple, or ``output_0``, ``output_1``, ... Names that the model's
config declares replace numbers, position by position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tfs_lite.core.signature import DataType, Signature, SymbolicDim, Tensor, TensorSpec, format_shape
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import from_numpy


def numbered(count: int) -> tuple[str, ...]:
    return tuple(f"output_{index}" for index in range(count))


def by_name(result: object, declared: Sequence[str]) -> dict[str, object]:
    """``declared`` are the output names of the signature, empty if it declares none.

    INTERNAL if the model returned another number of results than declared.
    """
    if isinstance(result, Mapping):
        return {str(name): value for name, value in result.items()}
    fields = getattr(result, "_fields", None)
    values: Sequence[object] = result if isinstance(result, tuple | list) else (result,)
    if fields is not None and (not declared or set(fields) == set(declared)):
        return dict(zip(fields, values, strict=True))
    names = declared or numbered(len(values))
    if len(names) != len(values):
        raise ServingError(
            StatusCode.INTERNAL, f"the model returned {len(values)} results, expected {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, values, strict=True))


TypeOf = Callable[[object], tuple[DataType, tuple[int, ...]] | None]
"""A result's dtype and shape; None if it does not show them, or cannot be sent."""


def type_of_array(value: object) -> tuple[DataType, tuple[int, ...]] | None:
    if not isinstance(value, np.ndarray):
        return None
    try:
        return from_numpy(value.dtype), value.shape
    except ServingError:
        return None


def check_outputs(
    signature: Signature, inputs: Mapping[str, Tensor], outputs: Mapping[str, object], type_of: TypeOf = type_of_array
) -> None:
    """INTERNAL unless every output has the dtype and shape that the signature declares. Skips values without a type,
    and signatures whose shapes are hints: what such a model gives is right.

    A dimension that an input has as well must have the request's size, so that a model cannot lose or add rows.
    """
    if signature.hints:
        return
    sizes: dict[str, int] = {}
    for spec in signature.inputs:
        sent = inputs.get(spec.name)
        for dim, size in zip(spec.shape or (), sent.shape if sent is not None else (), strict=False):
            if isinstance(dim, SymbolicDim):
                sizes[dim.symbol] = size
    for spec in signature.outputs:
        found = type_of(outputs.get(spec.name))
        if found is None:
            continue
        dtype, shape = found
        if not _fits(spec, dtype, shape, sizes):
            raise ServingError(
                StatusCode.INTERNAL,
                f"the model returned output {spec.name} as {dtype.text}{format_shape(shape)}, "
                f"expected {spec.dtype.text}{format_shape(spec.shape)}",
            )


def _fits(spec: TensorSpec, dtype: DataType, shape: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
    if spec.dtype not in (DataType.INVALID, dtype):
        return False
    if spec.shape is None:
        return True
    expected = [sizes.get(dim.symbol, -1) if isinstance(dim, SymbolicDim) else dim for dim in spec.shape]
    return len(expected) == len(shape) and all(
        wanted in (-1, size) for wanted, size in zip(expected, shape, strict=True)
    )
