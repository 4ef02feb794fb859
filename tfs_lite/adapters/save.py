"""``tfs_lite.save``: publishes a module as a version that the server loads without trust.

The archive holds no pickle (example inputs are left out) and keeps the names of results (a named tuple's fields become
keys). Before it is published, it has to pass the server's own inspection and to give the same answers as the module.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from tfs_lite.adapters.contract import OpenRequest, VersionFiles
from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.pytorch_export import ARTEFACT, ExportedModel, open_exported
from tfs_lite.adapters.results import by_name
from tfs_lite.adapters.tensors import to_arrays
from tfs_lite.core.publish import commit, staging_directory
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Tensor
from tfs_lite.core.status import failed_precondition, invalid_argument

Examples = tuple[torch.Tensor, ...] | Mapping[str, torch.Tensor]
_FEWEST_ROWS = 2
"""The exporter treats a dimension of size 0 or 1 in the example as a constant."""


def save(
    module: torch.nn.Module,
    base: str | os.PathLike[str],
    *,
    example_inputs: Examples,
    version: int | None = None,
    dynamic_batch: bool = True,
    max_batch_size: int | None = None,
    dynamic_shapes: Any = None,
    trusted: bool = False,
) -> Path:
    """Exports ``module`` and publishes it as ``base/<version>`` (without a version: the next one). Returns that path.

    ``example_inputs`` are tensors, by position or by name. With ``dynamic_batch`` their first dimension is a batch of
    any size, or of at most ``max_batch_size``; ``dynamic_shapes`` is passed to ``torch.export.export`` instead. The
    module is exported in eval mode and left as it was. ``trusted`` allows what servers load only from trusted paths,
    such as operators of other libraries.

    Raises ServingError: INVALID_ARGUMENT (examples that do not fit together), FAILED_PRECONDITION (the module cannot be
    exported, or the export does not do what the module does), ALREADY_EXISTS (the version is there).
    """
    args, kwargs = _check_examples(example_inputs)
    if dynamic_batch and dynamic_shapes is None:
        args, kwargs = _batch_examples(args, kwargs, max_batch_size)
        dynamic_shapes = _batch_shapes(args, kwargs, max_batch_size)
    with staging_directory(os.fspath(base), version) as staging, _as_served(module):
        program = _export(module, args, kwargs, dynamic_shapes)
        torch.export.save(program, os.path.join(staging, ARTEFACT))
        del program
        _check_answers(_load(staging, module, args, kwargs, trusted), module, args, kwargs)
        return Path(commit(staging, os.fspath(base), version).path)


def _check_examples(examples: object) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """The tensors (by position, by name). INVALID_ARGUMENT for anything else."""
    if isinstance(examples, Mapping):
        args, kwargs = (), dict(examples)
    elif isinstance(examples, tuple | list):
        args, kwargs = tuple(examples), {}
    else:
        raise invalid_argument(
            f"example_inputs is a {type(examples).__name__}, expected a tuple of tensors or a dict of them by name"
        )
    for name, value in [*enumerate(args), *kwargs.items()]:
        if not isinstance(value, torch.Tensor):
            raise invalid_argument(f"example input {name} is a {type(value).__name__}, expected a tensor")
    return args, kwargs


def _batch_examples(
    args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor], max_batch_size: int | None
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """The same examples with at least two rows."""
    rows = {value.shape[0] for value in (*args, *kwargs.values()) if value.dim()}
    if len(rows) > 1:
        raise invalid_argument(
            f"the example inputs have {', '.join(map(str, sorted(rows)))} rows: give all the same number, "
            "or set dynamic_batch=False or dynamic_shapes"
        )
    count = rows.pop() if rows else _FEWEST_ROWS
    if max_batch_size is not None and max_batch_size < max(count, _FEWEST_ROWS):
        raise invalid_argument(
            f"max_batch_size is {max_batch_size}: expected at least {max(count, _FEWEST_ROWS)}, or dynamic_batch=False"
        )
    if count == 0:
        raise invalid_argument("the example inputs have no rows")
    if count >= _FEWEST_ROWS:
        return args, kwargs
    return tuple(map(_twice, args)), {name: _twice(value) for name, value in kwargs.items()}


def _twice(value: torch.Tensor) -> torch.Tensor:
    return torch.cat([value, value]) if value.dim() else value


def _batch_shapes(
    args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor], max_batch_size: int | None
) -> tuple[Any, ...] | dict[str, Any]:
    """One symbol for the first dimension of every input that has one."""
    batch = Dim("batch", max=max_batch_size)
    if kwargs:
        return {name: {0: batch} if value.dim() else None for name, value in kwargs.items()}
    return tuple({0: batch} if value.dim() else None for value in args)


@contextlib.contextmanager
def _as_served(module: torch.nn.Module) -> Iterator[None]:
    """Eval mode; afterwards restores every module's mode and every buffer."""
    modes = {child: child.training for child in module.modules()}
    buffers = {buffer: buffer.detach().clone() for buffer in module.buffers()}
    module.eval()
    try:
        yield
    finally:
        for child, training in modes.items():
            child.training = training
        with torch.no_grad():
            for buffer, before in buffers.items():
                buffer.copy_(before)


def _export(
    module: torch.nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor], dynamic_shapes: Any
) -> ExportedProgram:
    try:
        program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    except Exception as error:
        raise failed_precondition(f"{type(module).__name__} cannot be exported: {sentence(error)}") from error
    program.example_inputs = None
    _name_tuple_fields(program)
    return program


def _name_tuple_fields(program: ExportedProgram) -> None:
    """Replaces a named tuple by a dict of its fields: its class might not be known where the program is loaded."""
    call = program.module_call_graph[0].signature
    fields = getattr(call.out_spec.context, "_fields", None) if call is not None else None
    if call is not None and fields is not None:
        call.out_spec = pytree.TreeSpec(dict, list(fields), call.out_spec.children())


def _load(
    staging: str,
    module: torch.nn.Module,
    args: tuple[torch.Tensor, ...],
    kwargs: dict[str, torch.Tensor],
    trusted: bool,
) -> ExportedModel:
    """Loads and inspects what was saved, as the server does."""
    device = next((value.device for value in (*args, *kwargs.values())), torch.device("cpu"))
    files = VersionFiles(staging, frozenset({ARTEFACT}))
    return open_exported(OpenRequest(ServableId(type(module).__name__, 0), files, device, trusted))


def _check_answers(
    saved: ExportedModel, module: torch.nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]
) -> None:
    """Compares the answers to the example, as far as the module gives the same answer twice."""
    signature = saved.signatures[DEFAULT_SIGNATURE]
    inputs = to_arrays({**dict(zip(signature.input_names, args, strict=False)), **kwargs}, torch.device("cpu"))
    try:
        expected = _answer(module, args, kwargs, signature.output_names)
        again = _answer(module, args, kwargs, signature.output_names)
        answer = saved.run(DEFAULT_SIGNATURE, inputs, ())
    finally:
        saved.close()
    for name, array in answer.items():
        if _close(expected[name], again[name]) and not _close(expected[name], array):
            raise failed_precondition(f"the exported {type(module).__name__} answers the example differently: {name}")


def _answer(
    module: torch.nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor], names: tuple[str, ...]
) -> dict[str, Tensor]:
    with torch.no_grad():
        result = module(*(value.clone() for value in args), **{name: value.clone() for name, value in kwargs.items()})
    return to_arrays(by_name(result, names), torch.device("cpu"))


def _close(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    wide = np.complex128 if np.asarray(left).dtype.kind == "c" else np.float64
    return np.allclose(np.asarray(left, wide), np.asarray(right, wide), rtol=1e-3, atol=1e-4, equal_nan=True)
