"""``tfs_lite.save``: publishes a module as a version that the server loads without trust.

The archive holds no pickle (example inputs are left out) and keeps the names of results (a named tuple's fields become
keys). Before it is published, it has to pass the server's own inspection and to give the same answers as the module,
to the example and to other values of its shapes: an exporter that takes one input for another, or a value for a
constant, may well be right about the example.
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

from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.opening import NeedsProcess, OpenRequest, VersionFiles
from tfs_lite.adapters.pytorch.export import ARTEFACT, ExportedModel, open_by_torch, open_exported
from tfs_lite.adapters.pytorch.tensors import to_arrays
from tfs_lite.adapters.results import by_name
from tfs_lite.core.publish import commit, staging_directory
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Tensor
from tfs_lite.core.status import ServingError, failed_precondition, invalid_argument

Examples = tuple[torch.Tensor, ...] | Mapping[str, torch.Tensor]
_Inputs = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]
"""What a module is called with: by position, by name."""
_NOISE = 1e-9
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
    module is exported in eval mode and left as it was, but for parameters and plain attributes that it changes itself.
    ``trusted`` allows what servers load only from trusted paths, such as operators of other libraries.

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
        with contextlib.closing(_load(staging, module, args, kwargs, trusted)) as saved:
            _check_answers(saved, module, args, kwargs)
        return Path(commit(staging, os.fspath(base), version).path)


def _check_examples(examples: object) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Copies of the tensors (by position, by name). INVALID_ARGUMENT for anything else.

    They are copies because the exporter makes one input of two that share memory.
    """
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
    return tuple(map(_copy, args)), {name: _copy(value) for name, value in kwargs.items()}


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone()


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
    device = next((str(value.device) for value in (*args, *kwargs.values())), "cpu")
    files = VersionFiles(staging, frozenset({ARTEFACT}))
    request = OpenRequest(ServableId(type(module).__name__, 0), files, device, trusted)
    try:
        return open_exported(request)
    except NeedsProcess:
        return open_by_torch(request)


def _check_answers(
    saved: ExportedModel, module: torch.nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]
) -> None:
    """Compares the answers to the example and to other values, as far as the module gives the same answers twice.

    The program is asked what the module was asked before, in the same order: both may have a state.
    """
    signature = saved.signatures[DEFAULT_SIGNATURE]
    generator = torch.Generator().manual_seed(0)
    others = (
        tuple(_other_values(value, generator) for value in args),
        {name: _other_values(value, generator) for name, value in kwargs.items()},
    )
    questions = [((args, kwargs), "the example"), (others, "other values")]
    expected = _answers(module, (args, kwargs), others, signature.output_names)
    again = _answers(module, (args, kwargs), others, signature.output_names)
    for ((by_position, by_keyword), what), first, second in zip(questions, expected, again, strict=False):
        tensors = {**dict(zip(signature.input_names, by_position, strict=False)), **by_keyword}
        try:
            answer = saved.run(DEFAULT_SIGNATURE, to_arrays(tensors, torch.device("cpu")), ())
        except ServingError as error:
            raise failed_precondition(f"the exported {type(module).__name__} fails for {what}: {error}") from error
        for name, array in answer.items():
            if _close(first[name], second[name]) and not _close(first[name], array):
                raise failed_precondition(f"the exported {type(module).__name__} answers {what} differently: {name}")


def _other_values(example: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Values that a module is likely to accept if it accepts the example.

    Integers may be places in a table: they are drawn from the example's own, and on an accelerator, where a place
    outside of a table ends all work of the process, they stay. Floating-point numbers lie between two of the example's;
    where it has only one, between 0 and 1.
    """
    count, dtype = example.numel(), example.dtype
    if not count or not (example.is_cpu or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        return example
    shares = torch.rand(count, generator=generator, dtype=torch.float64)
    left, right = torch.randint(count, (2, count), generator=generator)
    if dtype == torch.bool:
        others = shares < 0.5
    elif dtype.is_floating_point or dtype.is_complex:
        values = example.cpu().flatten().to(torch.complex128 if dtype.is_complex else torch.float64)
        between = values[left] + (values[right] - values[left]) * shares
        others = torch.where(between.isfinite(), between, values[left])
        others = shares if bool((values == values[0]).all()) else others
    else:
        others = example.flatten()[left]
    return others.reshape(example.shape).to(example)


def _answers(
    module: torch.nn.Module, example: _Inputs, others: _Inputs, names: tuple[str, ...]
) -> list[dict[str, Tensor]]:
    """The answers to the example and, if the module accepts them, to the other values."""
    answers = [_answer(module, *example, names)]
    with contextlib.suppress(Exception):
        answers.append(_answer(module, *others, names))
    return answers


def _answer(
    module: torch.nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor], names: tuple[str, ...]
) -> dict[str, Tensor]:
    with torch.no_grad():
        result = module(*(value.clone() for value in args), **{name: value.clone() for name, value in kwargs.items()})
    return to_arrays(by_name(result, names), torch.device("cpu"))


def _close(left: Tensor, right: Tensor) -> bool:
    """Whether two answers are the same: integers exactly, other numbers but for a thousandth, or for a ten-thousandth
    of the largest of them (of 1, if that is larger still)."""
    first, second = np.asarray(left), np.asarray(right)
    if first.shape != second.shape:
        return False
    if first.dtype.kind in "iub":
        return bool(np.array_equal(first, second))
    wide = np.complex128 if first.dtype.kind == "c" else np.float64
    first, second = np.asarray(first, wide), np.asarray(second, wide)
    largest = np.max(np.abs(first), initial=0.0, where=np.isfinite(first))
    return np.allclose(first, second, rtol=1e-3, atol=1e-4 * min(largest, 1.0) + _NOISE, equal_nan=True)
