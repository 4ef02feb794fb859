"""The results of a module, as tensors by name.

A tensor, or a tuple or list of tensors, stays what it is: its names are numbers. Everything else becomes a dict: keys
of a mapping, fields of a named tuple or a dataclass (the outputs of ``transformers`` are both) name its values, what
lies inside one of them is called ``outer.inner``, and what is None is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from tfs_lite.adapters.results import leaves, numbered, parts_of
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
    """Names and values of what is no container and not None."""
    parts = parts_of(result)
    if parts is None:
        parts = {"0": result}
    if parts_of(result) is None or (isinstance(result, tuple | list) and not hasattr(result, "_fields")):
        parts = dict(zip(numbered(len(parts)), parts.values(), strict=True))
    _check_keys(result)
    yield from ((name, leaf) for name, leaf in leaves(parts) if leaf is not None)


def _check_keys(value: object) -> None:
    """Raises FAILED_PRECONDITION for keys of a dict that are one name, such as 1 and "1"."""
    parts = parts_of(value)
    if isinstance(value, Mapping) and parts is not None and len(parts) < len(value):
        twice = next(key for key in value if not isinstance(key, str) and str(key) in value)
        raise failed_precondition(f"a dict returns two values called {twice}; give each a name of its own")
    for part in (parts or {}).values():
        _check_keys(part)


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
    return failed_precondition(f"{what} Return tensors, or a dict of tensors by name, and leave everything else out")
