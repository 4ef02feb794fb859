"""``tensorflow.Example``, rows of named features -> the arrays of a signature: the input of Classify, Regress and
MultiInference.

A feature feeds the input of its name, one row for each example; features without an input are ignored. The features of
a context are those of every example that lacks them, and the input's default is used where both lack them. A feature
without values counts as missing. A signature whose only input is ``inputs``, one string for each row, gets the
serialized examples, with the context in front: its model reads them itself.

Values that a request sends once and that are repeated for every row (of the context, of defaults) may fill at most
``max_bytes`` of an input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec, format_shape
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import FLOATING, MAX_FILL_BYTES, Array, from_numpy, to_numpy
from tfs_lite.protocols.messages import Message

SERIALIZED = "inputs"
"""The input that takes serialized examples."""
MAX_EXAMPLES = 1 << 20
"""The most examples of a request: reading one costs about a microsecond a feature, however small it is."""

_FLOATS, _INTEGERS, _BYTES = "float_list", "int64_list", "bytes_list"
_INTEGRAL = (
    DataType.BOOL,
    *(DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64),
    *(DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64),
)
_KINDS = {
    **dict.fromkeys(FLOATING, (_FLOATS, _INTEGERS)),
    **dict.fromkeys(_INTEGRAL, (_INTEGERS,)),
    DataType.STRING: (_BYTES,),
}
"""The kinds of features that may feed an input, by its element type."""
_SEVERAL = 32
"""Values of a row from which numpy reads a row faster than Python reads its values."""


def example_count(input: Message) -> int:
    """How many rows an ``Input`` has. INVALID_ARGUMENT without any, or with more than ``MAX_EXAMPLES``."""
    count = len(_examples(input))
    if count == 0:
        raise invalid_argument("Input is empty")
    if count > MAX_EXAMPLES:
        raise invalid_argument(f"Input has {count} examples, at most {MAX_EXAMPLES} are allowed")
    return count


def tensors_of_input(input: Message, signature: Signature, max_bytes: int = MAX_FILL_BYTES) -> dict[str, Array]:
    """The inputs of ``signature``, by name, with as many rows as there are examples.

    An input ``[batch, d1, ...]`` takes ``d1 * ...`` values of each example; one size among them may be unknown and is
    found from the number of values. Floats take float and int64 features, integers and bool int64 features within their
    range, strings bytes features. Where dtype or shape are not declared, they are those of the features.

    Inputs without a batch dimension are left out if they have a default, and optional ones if no example has them.
    Everything else that does not fit raises
    INVALID_ARGUMENT naming the feature and the example.
    """
    count = example_count(input)
    if takes_serialized(signature):
        return {SERIALIZED: _serialized(input, max_bytes)}
    rows = [example.features.feature for example in _examples(input)]
    context = input.example_list_with_context.context.features.feature
    arrays: dict[str, Array] = {}
    for spec in signature.inputs:
        column = _column(spec, rows, context.get(spec.name), max_bytes)
        default = signature.defaults.get(spec.name)
        if default is None and spec.name in signature.optional and not column.present:
            continue
        if default is None:
            arrays[spec.name] = _array(column, None, count)
        elif spec.batch is not None:
            row = np.asarray(default)
            _bound(f"the default of input {spec.name}", len(column.missing), row.nbytes, max_bytes)
            arrays[spec.name] = _array(column, row[np.newaxis], count)
        elif column.present:
            arrays[spec.name] = _array(column, _rows_of_default(column, np.asarray(default), count), count)
    return arrays


def takes_serialized(signature: Signature) -> bool:
    """Whether the model parses the examples itself."""
    return (
        signature.input_names == (SERIALIZED,)
        and signature.inputs[0].dtype is DataType.STRING
        and (signature.inputs[0].shape is None or len(signature.inputs[0].shape) == 1)
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """One feature of every example. ``kinds`` and ``values`` are None where an example does not have it; ``present``
    and ``missing`` are the numbers of the examples that have it and do not."""

    spec: TensorSpec
    kinds: list[str | None]
    values: list[Any]
    present: list[int]
    missing: list[int]

    @property
    def sent_kinds(self) -> set[str | None]:
        return {kind for kind in self.kinds if kind is not None}

    def wrong(self, index: int, what: str) -> ServingError:
        return invalid_argument(f"feature {self.spec.name} of example {index} {what}")


def _examples(input: Message) -> Sequence[Message]:
    kind = input.WhichOneof("kind")
    return getattr(input, kind).examples if kind else ()


def _serialized(input: Message, max_bytes: int) -> Array:
    """Serializes the examples with the context in front: joined bytes are how protobuf merges messages, and the later
    one, the example, wins."""
    examples = _examples(input)
    context: bytes = input.example_list_with_context.context.SerializeToString()
    _bound("the context", len(examples), len(context), max_bytes)
    strings = np.empty(len(examples), object)
    strings[:] = [context + example.SerializeToString() for example in examples]
    return strings


def _column(spec: TensorSpec, rows: Sequence[Any], shared: Message | None, max_bytes: int) -> _Column:
    """``shared`` is the feature of the context, if it has it."""
    found = [row.get(spec.name) for row in rows]
    if shared is not None:
        without = [index for index, feature in enumerate(found) if feature is None or not feature.WhichOneof("kind")]
        _bound(f"feature {spec.name} of the context", len(without), _size_in_memory(shared), max_bytes)
        for index in without:
            found[index] = shared
    kinds = [None if feature is None else feature.WhichOneof("kind") for feature in found]
    values = [
        None if feature is None or kind is None else getattr(feature, kind).value
        for feature, kind in zip(found, kinds, strict=True)
    ]
    present = [index for index, kind in enumerate(kinds) if kind is not None]
    missing = [] if len(present) == len(kinds) else [index for index, kind in enumerate(kinds) if kind is None]
    return _Column(spec, kinds, values, present, missing)


def _size_in_memory(feature: Message) -> int:
    """The least bytes that one row of it takes as an array."""
    kind = feature.WhichOneof("kind")
    return int(feature.ByteSize()) + (8 * len(getattr(feature, kind).value) if kind else 0)


def _rows_of_default(column: _Column, default: Array, count: int) -> Array | None:
    """The rows that are missing, out of a default that is a whole tensor, if it has a row for each example."""
    shape = column.spec.shape
    return default[column.missing] if shape and shape[0] == count else None


def _array(column: _Column, default: Array | None, count: int) -> Array:
    """The input, ``count`` rows. ``default`` has one row for all that are missing, or one for each of them."""
    spec = column.spec
    _check_batch(spec, count)
    if column.missing and default is None:
        raise invalid_argument(
            f"feature {spec.name} is missing in example {column.missing[0]}, "
            f"and input {spec.name} has no default for a row"
        )
    dtype = _dtype(column, default)
    row_shape = _row_shape(column, count) if default is None or column.present else default.shape[1:]
    if not column.missing:
        return _values(column, dtype, row_shape)
    array = np.empty((count, *row_shape), to_numpy(dtype))
    if column.present:
        _check_default(column, default, row_shape)
        array[column.present] = _values(column, dtype, row_shape)
    array[column.missing] = default
    return array


def _check_batch(spec: TensorSpec, count: int) -> None:
    if spec.shape is None or spec.batch is not None:
        return
    if not spec.shape:
        raise invalid_argument(
            f"input {spec.name} is a single value without a batch dimension: examples cannot feed it"
        )
    if spec.shape[0] != count:
        raise invalid_argument(
            f"input {spec.name} has a fixed size of {spec.shape[0]} in dimension 0, which is no batch dimension: "
            f"{count} examples cannot feed it"
        )


def _dtype(column: _Column, default: Array | None) -> DataType:
    """The element type of the array. INVALID_ARGUMENT if a feature is of a kind that cannot feed it."""
    dtype = column.spec.dtype
    if dtype is DataType.INVALID and default is not None:
        dtype = from_numpy(default.dtype)
    if dtype is DataType.INVALID:
        dtype = _natural(column.sent_kinds)
    takes = _KINDS.get(dtype, ())
    for kind in column.sent_kinds - set(takes):
        index = column.kinds.index(kind)
        expected = " or ".join(takes) or "no feature at all: examples cannot express its values"
        raise column.wrong(index, f"came as {kind}, but input {column.spec.name} of {dtype.text} takes {expected}")
    return dtype


def _natural(kinds: set[str | None]) -> DataType:
    if _BYTES in kinds:
        return DataType.STRING
    return DataType.FLOAT if _FLOATS in kinds else DataType.INT64


def _row_shape(column: _Column, count: int) -> tuple[int, ...]:
    """The shape of one row, which every example has. INVALID_ARGUMENT for one that has not."""
    first = column.present[0]
    shape = _shape_of_size(column, first, count)
    expected = math.prod(shape)
    for index in column.present:
        if len(column.values[index]) != expected:
            raise column.wrong(
                index, f"has {len(column.values[index])} values, expected {expected} {_why(column.spec, first)}"
            )
    return shape


def _check_default(column: _Column, default: Array | None, row_shape: tuple[int, ...]) -> None:
    if default is not None and default.shape[1:] != row_shape:
        raise invalid_argument(
            f"feature {column.spec.name} is missing in example {column.missing[0]}: the row that input "
            f"{column.spec.name} has as its default has shape {format_shape(default.shape[1:])}, "
            f"but the features that were sent have {format_shape(row_shape)}"
        )


def _why(spec: TensorSpec, first: int) -> str:
    if spec.shape is None or any(isinstance(dim, SymbolicDim) for dim in spec.shape[1:]):
        return f"as in example {first}"
    return f"for a row of input {spec.name}, which has shape {format_shape(spec.shape)}"


def _shape_of_size(column: _Column, first: int, count: int) -> tuple[int, ...]:
    """The shape of a row, where ``first`` is the number of an example that has the feature."""
    spec, size = column.spec, len(column.values[first])
    if spec.shape is None:
        return () if size == 1 else (size,)
    dims = [count if dim == spec.shape[0] and isinstance(dim, SymbolicDim) else dim for dim in spec.shape[1:]]
    unknown = [axis for axis, dim in enumerate(dims) if isinstance(dim, SymbolicDim)]
    if len(unknown) > 1:
        raise invalid_argument(
            f"input {spec.name} has shape {format_shape(spec.shape)}: examples cannot feed several unknown sizes"
        )
    if unknown:
        known = math.prod(dim for dim in dims if isinstance(dim, int))
        if known == 0 or size % known:
            raise column.wrong(
                first, f"has {size} values, expected a multiple of {known} for shape {format_shape(spec.shape)}"
            )
        dims[unknown[0]] = size // known
    return tuple(dim for dim in dims if isinstance(dim, int))


def _values(column: _Column, dtype: DataType, row_shape: tuple[int, ...]) -> Array:
    """The values that were sent, as rows. All features have the same number of values here."""
    size = math.prod(row_shape)
    lists = [column.values[index] for index in column.present]
    if dtype is DataType.STRING:
        flat = np.empty(size * len(lists), object)
        flat[:] = list(chain.from_iterable(lists))
    else:
        flat = _cast(column, _flat(lists, size, column.sent_kinds), dtype, size)
    return flat.reshape(len(lists), *row_shape)


def _flat(lists: Sequence[Any], size: int, kinds: set[str | None]) -> Array:
    """All values, one after the other, in a type that holds the kinds that came."""
    wide = np.float64 if len(kinds) > 1 else np.float32 if _FLOATS in kinds else np.int64
    if size < _SEVERAL:
        return np.fromiter(chain.from_iterable(lists), wide, size * len(lists))
    return np.concatenate([np.asarray(values) for values in lists]).astype(wide, copy=False)


def _cast(column: _Column, flat: Array, dtype: DataType, size: int) -> Array:
    """Casts values to ``dtype``. INVALID_ARGUMENT for a value that is out of its range; fractions are rounded."""
    if flat.dtype == to_numpy(dtype):
        return flat
    if dtype in FLOATING:
        with np.errstate(over="ignore"):
            array = flat.astype(to_numpy(dtype))
        lost = np.isfinite(flat) & ~np.isfinite(array)
    else:
        array = flat.astype(to_numpy(dtype))
        lost = array != flat if dtype is not DataType.BOOL else (flat != 0) & (flat != 1)
    if lost.any():
        position = int(lost.argmax())
        raise column.wrong(column.present[position // size], f"holds {flat[position]}, out of range of {dtype.text}")
    return array


def _bound(what: str, times: int, size: int, max_bytes: int) -> None:
    if times * size > max_bytes:
        raise invalid_argument(
            f"{what}, repeated for {times} examples, would fill {times * size} bytes; at most {max_bytes} are allowed"
        )
