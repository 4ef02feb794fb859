"""torch's own loader, for programs that are not built directly.

It needs most of a second of Python for a program of some hundred operators, so it is for processes of models, and not
for the server's.
"""

from __future__ import annotations

import linecache
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.export.pt2_archive._package import _load_exported_programs
from torch.fx.graph import CodeGen
from torch.fx.graph_module import _loader
from torch.utils import _pytree as pytree

from tfs_lite.adapters.cuda.memory import MemoryPool
from tfs_lite.adapters.exported.document import CONSTANTS, SAMPLES, WEIGHTS, ProgramDocument
from tfs_lite.adapters.exported.operators import HIGHER_ORDER, Operator, refusal
from tfs_lite.adapters.exported.program import Program
from tfs_lite.adapters.exported.weights import read_members
from tfs_lite.adapters.inspect.archive import Archive

_TENSORS = (f"{WEIGHTS}weight_", f"{CONSTANTS}tensor_")
_READING = threading.Lock()
"""Held while torch reads a program: it keeps the program in a global variable, so two threads must not read programs at
once."""


def load_program(
    archive: Archive,
    document: ProgramDocument,
    device: torch.device,
    pool: MemoryPool | None = None,
    guards: bool = False,
) -> Program:
    """The program of an archive, whose ``document`` has been checked, on ``device``; ``pool`` gets the weights on a
    GPU. With ``guards`` torch checks every run by the program's guards, which are Python: only for trusted files. May
    raise anything."""
    with _READING, _generated_code_forgotten():
        reader: Any = ArchiveReader(archive)
        program = _load_exported_programs(reader, reader.get_file_names(), None)["model"]
        if any(value.device != device for value in _placeholders(program)):
            program = _moved(program, device, pool)
        calls = list(_calls(program))
        operators = frozenset(operator for operator, _ in calls)
        signature = program.graph_signature
        writes = len(signature.user_outputs) < len(signature.output_specs) or any(
            operator.writes or operator.keeps_statistics(arguments) for operator, arguments in calls
        )
        forward = flat_forward(program, guards) if writes or guards else plain_forward(program)
        weights = (*program.state_dict.values(), *program.constants.values())
        tensors = [value for value in weights if isinstance(value, torch.Tensor)]
        # torch may compile the graphs of its higher-order operators when they run.
        reentrant = not writes and not any(operator.branches for operator in operators)
        return Program(_refusing(forward), tensors, writes, reentrant, operators, document.known)


def _moved(program: ExportedProgram, device: torch.device, pool: MemoryPool | None) -> ExportedProgram:
    if pool is None:
        return move_to_device_pass(program, device)
    return pool.allocate(lambda: move_to_device_pass(program, device))


def plain_forward(program: ExportedProgram) -> Callable[..., Sequence[torch.Tensor]]:
    """The program as a function of its flat inputs that returns its flat results, without guards and hooks. Only for
    programs that write to none of their tensors, because replaced weights would not be seen.

    torch's wrappers flatten the inputs as a tree, although here they are flat, and find every weight through a fallback
    of ``torch.nn.Module`` that costs as much as a small operator: half of the time of a small network.
    """
    module = program.module(check_guards=False)
    assert isinstance(module, torch.fx.GraphModule)
    module.graph.set_codegen(CodeGen())
    module.recompile()
    for part in module.modules():
        part.__dict__.update(part.named_parameters(recurse=False))
        part.__dict__.update(part.named_buffers(recurse=False))
        part.__dict__.update(part.named_children())
    forward: Callable[..., Sequence[torch.Tensor]] = module.forward
    return forward


def _refusing(forward: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """The same, whose failed guards and assertions are RefusedInputs."""

    def call(*inputs: Any) -> Sequence[Any]:
        try:
            return forward(*inputs)
        except (RuntimeError, AssertionError) as error:
            if isinstance(error, AssertionError) or str(error).startswith("Runtime assertion failed"):
                raise refusal(str(error)) from error
            raise

    return call


def flat_forward(program: ExportedProgram, guards: bool = False) -> Callable[..., Sequence[Any]]:
    """The same for a program that writes, or with its ``guards``: torch's module between flat inputs and flat
    results."""
    spec = program.call_spec.in_spec
    assert spec is not None
    if guards:  # torch makes them for programs with examples only, of which it needs the tree
        program.example_inputs = pytree.tree_unflatten([0] * spec.num_leaves, spec)
    forward = program.module(check_guards=guards).forward

    def call(*inputs: Any) -> Sequence[Any]:
        arguments, keywords = pytree.tree_unflatten(inputs, spec)
        return pytree.tree_leaves(forward(*arguments, **keywords))

    return call


class ArchiveReader:
    """Stands where torch expects a ``PT2ArchiveReader`` and, in its field ``archive_file``, a ``PyTorchFileReader``."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.archive_file = self

    def get_file_names(self) -> list[str]:
        return list(self._archive.members)

    def read_string(self, name: str) -> str:
        return self._archive.read(name).decode()

    def get_record_size(self, name: str) -> int:
        return self._archive.size(name)

    def read_bytes(self, name: str) -> bytes | memoryview:
        """The member; what becomes a tensor without being copied is writable.

        Sample inputs are a pickle, and serving has no use for them: torch is told that there are none.
        """
        if name == SAMPLES:
            return b""
        return self._writable(name) if name.startswith(_TENSORS) else self._archive.read(name)

    def get_storage_from_record(self, name: str, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor of ``elements`` of ``dtype``, with memory of its own."""
        return torch.frombuffer(self._writable(name), dtype=dtype, count=elements)

    def _writable(self, name: str) -> memoryview:
        return read_members(self._archive, [name])[name]


@contextmanager
def _generated_code_forgotten() -> Iterator[None]:
    """Drops the source of the functions that torch generates meanwhile. torch keeps it for stack traces for ever: some
    kilobytes for each load, more for larger programs. The functions do not need it."""
    before = set(_loader.eval_cache)
    try:
        yield
    finally:
        for name in set(_loader.eval_cache) - before:
            _loader.eval_cache.pop(name, None)
            linecache.cache.pop(name, None)


def _placeholders(program: ExportedProgram) -> list[torch.Tensor]:
    """The inputs and weights as placeholders: dtype, shape and device without data."""
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    return [value for value in values if isinstance(value, torch.Tensor)]


def _calls(program: ExportedProgram) -> Iterator[tuple[Operator, dict[str, object]]]:
    """Every operator that the program calls, with its arguments by name."""
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes if node.op == "call_function"):
        if isinstance(node.target, HigherOrderOperator):
            name = f"torch.ops.higher_order.{node.target}"
            yield Operator(name, HIGHER_ORDER.get(name, node.target), has_graphs=True), {}
        elif isinstance(node.target, torch._ops.OpOverload):
            names = (argument.name for argument in node.target._schema.arguments)
            arguments = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
            yield Operator(f"torch.ops.{node.target}", node.target, node.target), arguments
