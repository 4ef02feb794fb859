"""The results of a model: outputs by name, checked against the declared ones.

Names are the keys of a dict, the fields of a named tuple or a dataclass, or ``output_0``, ``output_1``, ... What lies
inside another container is called ``outer.inner``, and what is None there is left out. Names that the model's config
declares replace numbers, position by position.

:func:`dependent_output` runs a model at its load to see whether the answer for a row depends on its company.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

import numpy as np

from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import (
    DataType,
    ShapeContract,
    Signature,
    SymbolicDim,
    Tensor,
    TensorSpec,
    common_batch,
    example_shapes,
    format_shape,
)
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import FLOATING, Array, from_numpy, to_numpy

COMPANY = 1e-2
"""How far the answer for a row may be from that for the same row beside others, relative to the largest number of it.
Sums in another order differ by less than 1e-4, and layers quantised as they run, for which all rows have one scale, by
some 1e-3."""
DEPENDS = (
    "%s answers no two requests together, although its signature has a batch: its output %s for a row depends on the "
    "rows beside it, as a mean over the rows or a batch norm in training makes it"
)
"""For the log: a version, and an output whose rows differ by more than :data:`COMPANY`."""
MADE_UP_SIZES = (2, 8, 64)
"""Sizes that requests choose, but for the rows, in runs at the load: the first ones are tried that the model takes."""
MAX_MADE_UP = 1 << 22
"""Elements of made-up inputs."""
logger = logging.getLogger(__name__)


def numbered(count: int) -> tuple[str, ...]:
    return tuple(f"output_{index}" for index in range(count))


def by_name(result: object, declared: Sequence[str]) -> dict[str, object]:
    """The outputs by name. ``declared`` are the output names of the signature, empty if it declares none. A list of
    texts is one result, unless as many are declared.

    INTERNAL if the model returned another number of results than declared.
    """
    if isinstance(result, Mapping):
        return dict(_by_key(result, declared))
    fields = getattr(result, "_fields", None)
    values: Sequence[object] = result if isinstance(result, tuple | list) else (result,)
    if (
        isinstance(result, list)
        and len(declared) <= 1
        and values
        and all(isinstance(one, str | bytes) for one in values)
    ):
        values = (result,)
    if fields is not None and (not declared or set(fields) == set(declared)):
        return dict(_by_key(dict(zip(fields, values, strict=True)), declared))
    for value in values:
        if not hasattr(value, "layout") and (value is None or holds_results(value)):
            inner = dict(_by_key(dict(zip(numbered(len(values)), values, strict=True)), ()))
            inner = {name: leaf for name, leaf in inner.items() if leaf is not None}
            if not declared or set(declared) <= inner.keys():
                return inner
            values = tuple(inner.values())
            break
    names = declared or numbered(len(values))
    if len(names) != len(values):
        raise ServingError(
            StatusCode.INTERNAL, f"the model returned {len(values)} results, expected {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, values, strict=True))


def _by_key(results: Mapping[object, object], declared: Sequence[str]) -> Iterator[tuple[str, object]]:
    for key, value in results.items():
        name = str(key)
        if name not in declared and holds_results(value):
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in leaves(value) if leaf is not None)
        else:
            yield name, value


def holds_results(value: object) -> bool:
    """Whether it is a container of several results, and no single one: lists of numbers, texts and arrays are one."""
    if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
        return True
    return isinstance(value, tuple | list) and any(hasattr(one, "layout") or holds_results(one) for one in value)


def leaves(value: object) -> Iterator[tuple[str, object]]:
    """Names and values of what is inside a container, and is none itself; ``outer.inner`` for what is deeper."""
    parts = parts_of(value)
    for name, part in (parts or {}).items():
        if parts_of(part) is None:
            yield name, part
        else:
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in leaves(part))


def parts_of(value: object) -> dict[str, object] | None:
    """The values in a container, by name or number; None for anything else."""
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    if hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return {str(index): part for index, part in enumerate(value)}
    return None


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
    and signatures whose outputs are served as they come.

    A dimension that an input has as well must have the request's size, so that a model cannot lose or add rows. A 1 may
    come as 0: exporters take a size that is broadcast for 1, whatever it is at 0 rows.
    """
    if signature.contract is not ShapeContract.ALL:
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


def as_texts(array: Array) -> Array:
    """Texts of any kind as an object array of ``bytes``. TypeError for what is none."""
    texts = np.empty(array.shape, dtype=object)
    for index, text in np.ndenumerate(array):
        if not isinstance(text, bytes | str):
            raise TypeError("neither text nor bytes")
        texts[index] = text.encode() if isinstance(text, str) else bytes(text)
    return texts


def as_sent(name: str, value: object) -> Tensor:
    """An output as it crosses rooms: an array, texts as an object array of ``bytes``. INTERNAL if it is none, or of a
    dtype or with elements that cannot be sent."""
    if isinstance(value, np.ndarray):
        kind = f"dtype {value.dtype}"
        try:
            if from_numpy(value.dtype) is not DataType.STRING or all(type(text) is bytes for text in value.flat):
                return value
            return as_texts(value)
        except (ServingError, TypeError):
            pass
    else:
        kind = f"type {type(value).__name__}"
    raise ServingError(StatusCode.INTERNAL, f"output {name} is of {kind}; expected a numpy array of numbers or texts")


def _fits(spec: TensorSpec, dtype: DataType, shape: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
    if spec.dtype not in (DataType.INVALID, dtype):
        return False
    if spec.shape is None:
        return True
    expected = [sizes.get(dim.symbol, -1) if isinstance(dim, SymbolicDim) else dim for dim in spec.shape]
    return len(expected) == len(shape) and all(
        wanted in (-1, size) or (wanted == 1 and size == 0) for wanted, size in zip(expected, shape, strict=True)
    )


def alike(left: Array, right: Array) -> bool:
    """Whether rows of floating-point numbers differ by no more than :data:`COMPANY`."""
    wide = np.complex128 if left.dtype.kind == "c" else np.float64
    first, second = left.astype(wide), right.astype(wide)
    largest = np.max(np.abs(first), initial=0.0, where=np.isfinite(first))
    return bool(np.allclose(first, second, rtol=0, atol=COMPANY * largest, equal_nan=True))


def dependent_output(
    servable_id: ServableId,
    signature: Signature,
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    second: int = 1,
) -> str | None:
    """The first output of floating-point numbers that is another one for a row beside a second row than for the row
    alone, by runs on made-up inputs. Empty: each output has a row for each row, which depends on no
    other. None: nothing is known, because the model takes no such inputs, or outputs do not follow the rows.

    ``run`` raises what the run raises. ``second``: the integers of the second row; those of the first are 1. Rows of
    two lengths say nothing: an output may be as long as there are rows."""
    for size in MADE_UP_SIZES if common_batch(signature) is not None else ():
        try:
            inputs = _two_rows(signature, size, second)
            alone, together = (run({name: array[:rows] for name, array in inputs.items()}) for rows in (1, 2))
            if any(
                array.shape[:1] != (rows,) for rows, found in ((1, alone), (2, together)) for array in found.values()
            ):
                return None
            output = _differing(alone, together)
            if output and _differing(*[run({name: array[:1] for name, array in inputs.items()}) for _ in range(2)]):
                output = ""  # it draws random numbers
        except Exception as error:
            logger.debug("%s was tried with made-up inputs: %s", servable_id, error)
            continue
        return output
    return None


def _two_rows(signature: Signature, size: int, second: int) -> dict[str, Array]:
    """Made-up inputs: empty texts, random numbers between 0 and 1, integers and truth values of 1. ValueError for
    inputs that the model does not take, or that are too large."""
    shapes = example_shapes(signature, size, 2)
    if shapes is None or sum(map(prod, shapes.values())) > MAX_MADE_UP:
        raise ValueError("inputs are too large")
    if any(shape[:1] != (2,) for shape in shapes.values()):
        raise ValueError("the batch has fewer rows")
    random, inputs = np.random.default_rng(0), dict[str, Array]()
    for spec in signature.inputs:
        shape = shapes[spec.name]
        if spec.dtype is DataType.STRING:
            inputs[spec.name] = np.full(shape, b"", object)
            continue
        values = random.random(shape) if spec.dtype in FLOATING else np.ones(shape)
        if spec.dtype not in FLOATING:
            values[1:] = second
        inputs[spec.name] = values.astype(to_numpy(spec.dtype))
    return inputs


def _differing(alone: Mapping[str, Array], together: Mapping[str, Array]) -> str:
    """The first output of floating-point numbers whose first row is another one in each answer; empty without one."""
    for name, array in alone.items():
        first, second = array[:1], together[name][:1]
        if array.dtype.kind in "fc" and first.shape == second.shape and not alike(first, second):
            return name
    return ""
