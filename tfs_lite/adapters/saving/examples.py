"""The examples that a module is called with, by position or by name, and which of their dimensions may have any
size."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim

from tfs_lite.core.status import ServingError, invalid_argument

Examples = tuple[torch.Tensor | None, ...] | Mapping[str, torch.Tensor | None]
DynamicDims = Mapping[str, Mapping[int, str | Dim]]
"""The names of dimensions, by input and dimension. Dimensions of one name always have one size."""
BATCH = "batch"
FEWEST = 2
"""The exporter treats a dimension of size 0 or 1 in the example as a constant."""


@dataclass(frozen=True, slots=True)
class Example:
    """Tensors by position and by keyword, and the names of all of them in that order."""

    args: tuple[torch.Tensor, ...]
    kwargs: Mapping[str, torch.Tensor]
    names: tuple[str, ...]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(zip(self.names, (*self.args, *self.kwargs.values()), strict=True))

    @property
    def device(self) -> torch.device:
        return next((value.device for value in self.tensors.values()), torch.device("cpu"))

    def replace(self, tensors: Mapping[str, torch.Tensor]) -> Example:
        """The same inputs with other values."""
        by_position = self.names[: len(self.args)]
        args, kwargs = tuple(tensors[name] for name in by_position), {name: tensors[name] for name in self.kwargs}
        return Example(args, kwargs, self.names)

    def by_input(self, values: Mapping[str, Any]) -> tuple[Any, ...] | dict[str, Any]:
        """Values by input in the form of torch's ``dynamic_shapes``."""
        return tuple(values[name] for name in self.names) if not self.kwargs else dict(values)


def read_examples(module: torch.nn.Module, examples: object) -> Example:
    """Copies of the tensors; inputs that are None are left out. INVALID_ARGUMENT for anything else.

    They are copies because the exporter makes one input of two that share memory.
    """
    given: Mapping[str, object]
    by_position = isinstance(examples, tuple | list)
    if isinstance(examples, Mapping):
        given = dict(examples)
    elif isinstance(examples, tuple | list):
        given = dict(zip(_names(module, examples), examples, strict=True))
    else:
        raise invalid_argument(
            f"example_inputs is a {type(examples).__name__}, expected a tuple of tensors or a dict of them by name"
        )
    wrong = next((name for name in given if not isinstance(name, str) or not name.isidentifier()), None)
    if wrong is not None:
        raise invalid_argument(f"example input {wrong!r:.80}: inputs have names that Python can write, such as x")
    tensors: dict[str, torch.Tensor] = {}
    for index, (name, value) in enumerate(given.items()):
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.is_meta:
                kind = "has no values (device meta)" if value.is_meta else f"is {value.layout}"
                raise invalid_argument(f"example input {name} {kind}, expected a dense tensor with values")
            tensors[name] = value.detach().clone()
        elif value is not None:
            label = index if by_position else name
            raise invalid_argument(f"example input {label} is a {type(value).__name__}, expected a tensor")
    names = tuple(tensors)
    if by_position and names == tuple(given)[: len(names)]:
        return Example(tuple(tensors.values()), {}, names)
    return Example((), tensors, names)


def _names(module: torch.nn.Module, examples: tuple[object, ...] | list[object]) -> list[str]:
    """The names that the exporter gives to inputs by position: those of ``forward``'s parameters. A module
    that takes fewer inputs fails when it is called."""
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind_partial(*examples).arguments
    except TypeError:
        return [f"input_{index}" for index in range(len(examples))]
    names: list[str] = []
    for name, value in bound.items():
        many = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}_{index}" for index in range(len(value))] if many else [name]
    return names


def batch_example(example: Example, max_batch_size: int | None, dims: DynamicDims) -> Example:
    """The same examples with at least two rows. Inputs whose dimension 0 has a name of its own in ``dims`` stay."""
    batched = {name: value for name, value in example.tensors.items() if _has_batch(name, value, dims)}
    rows = {value.shape[0] for value in batched.values()}
    if len(rows) > 1:
        raise invalid_argument(
            f"the example inputs have {', '.join(map(str, sorted(rows)))} rows: give all the same number, "
            "or set dynamic_batch=False, dynamic_dims or dynamic_shapes"
        )
    count = rows.pop() if rows else FEWEST
    if max_batch_size is not None and max_batch_size < max(count, FEWEST):
        raise invalid_argument(
            f"max_batch_size is {max_batch_size}: expected at least {max(count, FEWEST)}, or dynamic_batch=False"
        )
    if count == 0:
        raise invalid_argument("the example inputs have no rows")
    if count >= FEWEST:
        return example
    return example.replace({**example.tensors, **{name: torch.cat([x, x]) for name, x in batched.items()}})


def _has_batch(name: str, value: torch.Tensor, dims: DynamicDims) -> bool:
    return value.dim() > 0 and _name(dims.get(name, {}).get(0, BATCH)) == BATCH


def dynamic_dimensions(
    example: Example, batch: bool, max_batch_size: int | None, dims: DynamicDims
) -> dict[str, dict[int, Dim] | None]:
    """The dimensions of each input that may have any size, as torch's exporter takes them; None where there are
    none."""
    tensors = example.tensors
    symbols = {BATCH: Dim(BATCH, max=max_batch_size)} if batch else {}
    for wanted in dims.values():
        symbols |= {_name(dim): dim for dim in wanted.values() if not isinstance(dim, str)}
    sizes: dict[str, tuple[str, int]] = {}
    found: dict[str, dict[int, Dim] | None] = {}
    for name, value in tensors.items():
        named = {index: _check_dim(name, value, index, dim) for index, dim in dims.get(name, {}).items()}
        if batch and value.dim():
            named.setdefault(0, BATCH)
        for index, symbol in named.items():
            other, size = sizes.setdefault(symbol, (name, value.shape[index]))
            if size != value.shape[index]:
                raise _sizes_differ(symbol, (other, size), (name, value.shape[index]))
        found[name] = {index: _dim(symbol, symbols) for index, symbol in named.items()} or None
    return found


def places_by_name(dims: Mapping[str, Mapping[int, Dim] | None]) -> dict[str, list[tuple[str, int]]]:
    """Input and axis of the dimensions that may have any size, by their names; none that follow from others, such as
    ``8*blocks``, or have a least size."""
    found: dict[str, list[tuple[str, int]]] = {}
    for name, by_axis in dims.items():
        for axis, dim in (by_axis or {}).items():
            if dim.__name__.isidentifier() and (getattr(dim, "min", 0) or 0) <= 1:
                found.setdefault(dim.__name__, []).append((name, axis))
    return found


def check_dims(example: Example, dims: object) -> None:
    """Raises INVALID_ARGUMENT unless it is names, or torch's ``Dim``, by dimension by example input."""
    if not isinstance(dims, Mapping):
        raise invalid_argument(f'dynamic_dims is a {type(dims).__name__}, expected such as {{"x": {{1: "length"}}}}')
    for name, wanted in dims.items():
        if name not in example.names:
            raise invalid_argument(f'dynamic_dims: there is no example input "{name}", only {", ".join(example.names)}')
        if not isinstance(wanted, Mapping):
            raise invalid_argument(f'{_where(name)} is a {type(wanted).__name__}, expected such as {{1: "length"}}')
        for index, dim in wanted.items():
            if not isinstance(dim, str | Dim):
                raise invalid_argument(
                    f'{_where(name)}[{index}] is a {type(dim).__name__}, expected a name such as "length" or a Dim'
                )


def _where(name: str) -> str:
    return f'dynamic_dims["{name}"]'


def _check_dim(name: str, value: torch.Tensor, index: int, dim: str | Dim) -> str:
    """The name of the dimension."""
    where = _where(name)
    if not isinstance(index, int) or not 0 <= index < value.dim():
        raise invalid_argument(f"{where}: the example has {value.dim()} dimensions, there is no dimension {index}")
    if isinstance(dim, str) and not dim.isidentifier():
        raise invalid_argument(f'{where}[{index}] is "{dim}", expected a name such as "length"')
    if value.shape[index] < FEWEST:
        raise invalid_argument(
            f"{where}[{index}]: the example has size {value.shape[index]} there, which the exporter takes for a "
            f"constant; give an example of at least {FEWEST}"
        )
    return _name(dim)


def _dim(name: str, known: dict[str, Dim]) -> Dim:
    if name not in known:
        known[name] = Dim(name)
    return known[name]


def _name(dim: str | Dim) -> str:
    return dim if isinstance(dim, str) else dim.__name__


def _sizes_differ(symbol: str, first: tuple[str, int], second: tuple[str, int]) -> ServingError:
    return invalid_argument(
        f'dynamic_dims: "{symbol}" is {first[1]} in {first[0]} and {second[1]} in {second[0]}. Dimensions of one name '
        "have one size: give examples that agree, or another name to one of them"
    )
