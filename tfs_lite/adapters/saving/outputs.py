"""What a module returns, as tensors by name.

A tensor, or a tuple or list of tensors, stays what it is: its names are numbers. Everything else becomes a dict: keys
of a mapping, fields of a named tuple or a dataclass (the outputs of ``transformers`` are both) name its values, what
lies inside one of them is called ``outer.inner``, and what is None is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tfs_lite.adapters.results import numbered
from tfs_lite.core.status import ServingError, failed_precondition


def by_flat_name(module: torch.nn.Module, _: object, result: object) -> object:
    """A forward hook: the module's result as a tensor, a tuple or list of tensors, or a dict of them.

    FAILED_PRECONDITION for a value that is no tensor, and for a name that is there twice.
    """
    kind = type(module).__name__
    if _is_numbered(result):
        return result
    flat: dict[str, torch.Tensor] = {}
    for name, value in _leaves(result):
        if not isinstance(value, torch.Tensor):
            raise _no_tensor(kind, name, value)
        if name in flat:
            raise failed_precondition(f"{kind} returns two tensors called {name}; give each a name of its own")
        flat[name] = value
    if not flat:
        raise failed_precondition(f"{kind} returns no tensor; return a tensor, or a dict of tensors by name")
    return flat


def _is_numbered(result: object) -> bool:
    if isinstance(result, torch.Tensor):
        return True
    if not isinstance(result, tuple | list) or hasattr(result, "_fields"):
        return False
    return bool(result) and all(isinstance(value, torch.Tensor) for value in result)


def _leaves(result: object) -> Iterator[tuple[str, object]]:
    """Names and values of what is no container, one level of containers in containers deep."""
    parts = _parts(result)
    if parts is None:
        parts = {"output_0": result}
    elif isinstance(result, tuple | list) and not hasattr(result, "_fields"):
        parts = dict(zip(numbered(len(parts)), parts.values(), strict=True))
    for name, value in parts.items():
        inner = _parts(value)
        if inner is None:
            inner = {"": value}
        for key, leaf in inner.items():
            if leaf is not None:
                yield (f"{name}.{key}" if key else name), leaf


def _parts(value: object) -> dict[str, Any] | None:
    """The values in a container, by name or number; None for anything else. FAILED_PRECONDITION for keys that are one
    name, such as 1 and "1"."""
    if isinstance(value, Mapping):
        parts = {str(key): part for key, part in value.items()}
        if len(parts) < len(value):
            twice = next(key for key in value if not isinstance(key, str) and str(key) in value)
            raise failed_precondition(f"a dict returns two values called {twice}; give each a name of its own")
        return parts
    if hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return {str(index): part for index, part in enumerate(value)}
    return None


def _no_tensor(kind: str, name: str, value: object) -> ServingError:
    number = isinstance(value, int | float | torch.SymInt | torch.SymFloat)
    found = "number" if number else type(value).__name__
    what = f"{kind} cannot be exported: its output {name} is a {found}, and only tensors can be served."
    if number:
        return failed_precondition(f"{what} Return torch.full((), value) in place of the number, or leave it out")
    if "Cache" in type(value).__name__:
        return failed_precondition(
            f"{what} It is what a language model remembers between calls: switch it off before saving, with "
            "model.config.use_cache = False"
        )
    if _parts(value) is not None:
        return failed_precondition(f"{what} Containers may be one inside another, and no deeper: return fewer of them")
    return failed_precondition(f"{what} Return tensors, or a dict of tensors by name, and leave everything else out")
