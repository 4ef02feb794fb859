"""``tfs_lite.save``: publishes a module as a version that the server loads without trust.

The archive holds no pickle (example inputs are left out), takes only tensors, and returns them by name. Before it is
published, it has to pass the server's own inspection and to give the same answers as the module.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes

from tfs_lite.adapters.aoti.model import open_compiled
from tfs_lite.adapters.failures import sentence, story
from tfs_lite.adapters.memory import tensor_bytes
from tfs_lite.adapters.opening import NeedsProcess, OpenRequest, VersionFiles
from tfs_lite.adapters.pytorch.export import ARTEFACT, ExportedModel, open_by_torch, open_exported
from tfs_lite.adapters.saving.answers import check_answers
from tfs_lite.adapters.saving.compiled import check_compiler, write_compiled
from tfs_lite.adapters.saving.examples import (
    DynamicDims,
    Example,
    Examples,
    batch_example,
    check_dims,
    dynamic_dimensions,
    places_by_name,
    read_examples,
)
from tfs_lite.adapters.saving.outputs import by_flat_name
from tfs_lite.adapters.saving.refusals import advised, check_layers, layers_of, refusal, without_torch_logs
from tfs_lite.core.publish import commit, staging_directory
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, failed_precondition, invalid_argument
from tfs_lite.storage.url import SCHEMES, is_url

logger = logging.getLogger(__name__)


def save(
    module: nn.Module,
    base: str | os.PathLike[str],
    *,
    example_inputs: Examples,
    version: int | None = None,
    dynamic_batch: bool = True,
    max_batch_size: int | None = None,
    dynamic_dims: DynamicDims | None = None,
    dynamic_shapes: Any = None,
    trusted: bool = False,
    compile: Literal["", "aoti"] = "",
    isa: Literal["", "avx2", "avx512"] = "",
) -> Path:
    """Exports ``module`` and publishes it as ``base/<version>``, by default the next version. Returns that path.

        net = torch.nn.Linear(4, 2)
        tfs_lite.save(net, "/models/ranker", example_inputs=(torch.randn(3, 4),))

    ``example_inputs`` are tensors, by position (a tuple) or by name (a dict); inputs that are None are left out. With
    ``dynamic_batch`` the first dimension of each input is a batch of any size, or of at most ``max_batch_size``.
    ``dynamic_dims`` names further dimensions of any size: ``{"input_ids": {1: "length"}}``; dimensions of one name
    always have one size. ``dynamic_shapes`` is passed to ``torch.export.export`` in place of both.

    The results of the module become outputs by name: keys of a dict, fields of a dataclass or named tuple,
    ``outer.inner`` for a result inside another one, ``output_0``, ``output_1``, ... for a tuple; None is left out. The
    module is exported in eval mode and left as it was, except for parameters and plain attributes that it changes
    itself.

    ``trusted`` allows programs that servers load only from trusted paths, such as those with operators of other
    libraries. ``compile="aoti"`` adds machine code by AOTInductor, for processors like this one or with the
    instructions ``isa``: this takes a C++ compiler and up to minutes, and servers load it only from trusted paths.

    Raises ServingError: INVALID_ARGUMENT (the examples do not fit together), FAILED_PRECONDITION (the module cannot be
    exported, or the export does not do what the module does), ALREADY_EXISTS (the version is there), and others if the
    disk is full or may not be written to.
    """
    if is_url(os.fspath(base)) or os.fspath(base).partition(":/")[0] in SCHEMES:  # a Path has one slash less
        raise invalid_argument(
            "save writes to a disk: save to a directory, then publish it: tfs-lite publish DIRECTORY/VERSION --base URL"
        )
    if dynamic_dims and dynamic_shapes is not None:
        raise invalid_argument("dynamic_dims and dynamic_shapes both say which dimensions have any size; give one")
    if compile not in ("", "aoti"):
        raise invalid_argument(f'compile is "{compile}", expected "aoti" or nothing')
    if isa and not compile:
        raise invalid_argument('isa says what to compile for; give compile="aoti" as well')
    module = _unwrapped(module)
    _check_module(module)
    given = example = read_examples(module, example_inputs)
    if compile:
        check_compiler(isa, example.device)
    free: Mapping[str, Sequence[tuple[str, int]]] = {}
    if dynamic_shapes is None:
        dims = {} if dynamic_dims is None else dynamic_dims
        check_dims(given, dims)
        example = batch_example(given, max_batch_size, dims) if dynamic_batch else given
        dynamic = dynamic_dimensions(example, dynamic_batch, max_batch_size, dims)
        dynamic_shapes, free = example.by_input(dynamic), places_by_name(dynamic)
    with (
        staging_directory(os.fspath(base), version) as staging,
        _only_refusals(module),
        _as_served(module),
        _named_inputs(module, given),
    ):
        layers = layers_of(module)
        try:
            program = _export(module, example, dynamic_shapes)
        except Exception as error:
            # torch's own stack, which a beginner cannot use, is logged and not shown
            raise refusal(module, given, example, dynamic_shapes, error) from None
        check_layers(module, layers)
        path = os.path.join(staging, ARTEFACT)
        _check_disk(staging, program)
        if compile == "aoti":
            with without_torch_logs():
                write_compiled(program, example, path, isa)
        else:
            torch.export.save(program, path)
        del program
        opens = open_compiled if compile == "aoti" else _open_exported
        try:
            opened = opens(_request(staging, module, example, trusted))
        except ServingError as error:
            raise advised(module, error) from None
        with contextlib.closing(opened) as saved:
            check_answers(saved, module, example, free)
        return Path(commit(staging, os.fspath(base), version).path)


def _check_disk(staging: str, program: ExportedProgram) -> None:
    """Raises OSError if the disk has no room for the weights: torch's writer ends the process when it runs into
    that."""
    needed = tensor_bytes((*program.state_dict.values(), *program.constants.values()))
    free = shutil.disk_usage(staging).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"No space left on device ({needed} bytes of weights, {free} are free)", staging)


def _check_module(module: object) -> None:
    """Raises INVALID_ARGUMENT for what the exporter cannot read as a module, FAILED_PRECONDITION for one without
    weights."""
    if not isinstance(module, nn.Module):
        raise invalid_argument(f"the module is a {type(module).__name__}, expected a torch.nn.Module")
    if isinstance(module, torch.jit.ScriptModule):
        raise invalid_argument(
            "the module is TorchScript, which cannot be exported; save the module that it was made of"
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            kind = type(module).__name__
            raise failed_precondition(
                f"{kind} cannot be exported: {name} has no values (device meta); load its weights first"
            )


def _unwrapped(module: Any) -> Any:
    """The module itself for what ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel`` make of one: they
    take anything, and pass it on."""
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return module.module
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(module, nn.Module) and isinstance(inner, nn.Module) else module


@contextlib.contextmanager
def _only_refusals(module: nn.Module) -> Iterator[None]:
    """Errors of torch and of the module become FAILED_PRECONDITION; its own stack is logged."""
    try:
        yield
        return
    except (ServingError, OSError, MemoryError):
        raise
    except Exception as error:
        kind = type(module).__name__
        logger.debug("%s cannot be saved", kind, extra={"story": story(error)})
        failure = failed_precondition(f"{kind} cannot be saved: {type(error).__name__}: {sentence(error)}")
    raise failure


@contextlib.contextmanager
def _named_inputs(module: nn.Module, example: Example) -> Iterator[None]:
    """A ``forward`` with ``*args`` or ``**kwargs`` has a parameter for each input of the example: the exporter names
    inputs by them, and finds their dynamic dimensions so."""
    own = inspect.signature(module.forward).parameters
    if set(example.names) <= own.keys():
        yield
        return
    forward = module.forward

    def named(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in example.names])  # type: ignore[attr-defined]
    had = "forward" in vars(module)
    module.forward = named
    try:
        yield
    finally:
        if had:
            module.forward = forward
        else:
            del module.forward


@contextlib.contextmanager
def _as_served(module: nn.Module) -> Iterator[None]:
    """Puts the module into eval mode, with results as tensors by name; afterwards restores every module's mode and
    every buffer."""
    modes = {child: child.training for child in module.modules()}
    buffers = {buffer: buffer.detach().clone() for buffer in module.buffers()}
    module.eval()
    hook = module.register_forward_hook(by_flat_name)
    try:
        yield
    finally:
        hook.remove()
        for child, training in modes.items():
            child.training = training
        with torch.no_grad():
            for buffer, before in buffers.items():
                buffer.copy_(before)


def _export(module: nn.Module, example: Example, dynamic_shapes: Any) -> ExportedProgram:
    """Exports it; bounds that the module itself sets to a dimension, such as a table of positions, are taken over."""

    def export(shapes: Any) -> ExportedProgram:
        return torch.export.export(module, example.args, dict(example.kwargs), dynamic_shapes=shapes)

    with without_torch_logs():
        try:
            program = export(dynamic_shapes)
        except Exception as error:
            bounds = _suggested_bounds(str(error))
            if not bounds:
                raise
            program = export(refine_dynamic_shapes_from_suggested_fixes(bounds, dynamic_shapes))
    program.example_inputs = None
    return program


def _suggested_bounds(message: str) -> str:
    """The bounds that torch suggests, if it suggests nothing but bounds of dimensions; otherwise empty."""
    _, heading, rest = message.partition("Suggested fixes:")
    fixes = rest.partition("\n\n")[0]
    lines = [line.strip() for line in fixes.splitlines() if line.strip()]
    only_bounds = all(re.fullmatch(r"(\w+) = Dim\('\1', max=\d+\)", line) for line in lines)
    return heading + fixes if lines and only_bounds else ""


def _request(staging: str, module: nn.Module, example: Example, trusted: bool) -> OpenRequest:
    """The request that the server would get for the version."""
    device = str(example.device)
    files = VersionFiles(staging, frozenset({ARTEFACT}))
    return OpenRequest(ServableId(type(module).__name__, 0), files, device, trusted)


def _open_exported(request: OpenRequest) -> ExportedModel:
    try:
        return open_exported(request)
    except NeedsProcess:
        return open_by_torch(request)
