"""A program of the zoo: a module, its inputs at several sizes, and which dimensions are dynamic.

Weights and inputs are always the same, whatever the release of torch. Nothing here needs the rest of the package, so
that another release of torch can export the zoo.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

ROWS = "rows"
"""The first dimension of every input tensor is dynamic."""
Inputs = Callable[[int], tuple[Any, ...]]
Made = TypeVar("Made", bound=Callable[..., Any])


@dataclass(frozen=True)
class ZooProgram:
    """A program of the zoo. ``inputs`` and ``named`` make the arguments of ``forward`` for a size, those by position
    and those by name, new tensors each time."""

    name: str
    module: Callable[[], nn.Module]
    inputs: Inputs
    named: Callable[[int], Mapping[str, Any]]
    sizes: tuple[int, ...]
    """The sizes at which answers are compared."""
    example: int
    """The size of the example for the export."""
    dynamic: Any
    """``ROWS``, or the argument ``dynamic_shapes`` of ``torch.export.export``."""
    decompose: bool
    """Whether the exported program is decomposed into core operators."""

    def export(self) -> torch.export.ExportedProgram:
        """The exported program, with weights that are always the same."""
        torch.manual_seed(0)
        module = self.module()
        args, kwargs = self.inputs(self.example), dict(self.named(self.example))
        dynamic = _dynamic_rows(module, args, kwargs) if self.dynamic == ROWS else self.dynamic
        program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic)
        return program.run_decompositions() if self.decompose else program

    def save(self, path: Path) -> Path:
        """Exports the program and writes it to ``path``, without examples and stack traces."""
        program = self.export()
        program.example_inputs = None
        for module in program.graph_module.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                node.meta.pop("stack_trace", None)
        torch.export.save(program, path)
        return path

    def flat_inputs(self, size: int) -> list[Any]:
        """The leaves of the arguments, in the order in which a program takes them."""
        return pytree.tree_leaves((self.inputs(size), dict(self.named(size))))


PROGRAMS: dict[str, ZooProgram] = {}
"""All that have been added so far."""


def in_zoo(
    inputs: Inputs,
    *,
    sizes: tuple[int, ...] = (0, 1, 4, 9),
    dynamic: Any = ROWS,
    example: int = 4,
    named: Callable[[int], Mapping[str, Any]] = lambda size: {},
    train: bool = False,
    decompose: bool = False,
) -> Callable[[Made], Made]:
    """Adds a class of modules, a function that makes a module (``make_...``) or a function of tensors to the zoo."""

    def add(made: Made) -> Made:
        name = made.__name__.removeprefix("make_")
        is_module = isinstance(made, type) or made.__name__.startswith("make_")

        def module() -> nn.Module:
            built = made() if is_module else type(name, (nn.Module,), {"forward": staticmethod(made)})()
            return cast(nn.Module, built).train(train)

        assert name not in PROGRAMS, name
        PROGRAMS[name] = ZooProgram(name, module, inputs, named, sizes, example, dynamic, decompose)
        return made

    return add


def _dynamic_rows(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    def first(value: object) -> Any:
        return {0: Dim.DYNAMIC} if isinstance(value, Tensor) and value.dim() else None

    given = {**dict(zip(inspect.signature(module.forward).parameters, args, strict=False)), **kwargs}
    return pytree.tree_map(first, given)


def floats(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    """Normal numbers that depend on shape and seed alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def numbers(high: int, *shape: int, low: int = 0, dtype: torch.dtype = torch.int64, seed: int = 1) -> Tensor:
    """Whole numbers from ``low`` to below ``high``."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Inputs:
    """One float input with ``size`` rows of this shape."""
    return lambda size: (floats(size, *shape, dtype=dtype),)


def tokens(length: int, vocabulary: int = 32) -> Inputs:
    """One input of token numbers, ``size`` rows."""
    return lambda size: (numbers(vocabulary, size, length),)
