"""Builds an exported program from its archive, without torch's own loader.

    read_document  ->  graph to a function  ->  weights in pieces  ->  the function with its weights

The function is written and compiled once for all versions with the same program (:class:`KnownProgram`).

torch's loader makes symbolic shapes and fake tensors of every value, for most of a second under the interpreter's lock.
None of that is needed to run the program: the file names every operator, argument and weight. What this builder does
not know raises UnsupportedProgram before any weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tfs_lite.adapters.cuda.memory import MemoryPool
from tfs_lite.adapters.exported.arguments import DTYPES, Argument, Named, read_argument, union
from tfs_lite.adapters.exported.document import CONSTANTS, WEIGHTS, KnownProgram, ProgramDocument
from tfs_lite.adapters.exported.function import CompiledFunction, Forward, GraphFunction
from tfs_lite.adapters.exported.layout import WeightLayout
from tfs_lite.adapters.exported.operators import Operator, UnsupportedProgram
from tfs_lite.adapters.exported.weights import read_weights
from tfs_lite.adapters.inspect.archive import Archive, damaged
from tfs_lite.core.yielding import Yielder

SCHEMA_VERSION = 8
"""The major version of the file's schema, in which a change of meaning would show."""

_AS_WRITTEN = WeightLayout()

MISREAD = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""The exceptions that reading a document raises when it is not as the schema says."""


@dataclass(frozen=True, slots=True)
class Program:
    """An exported program, ready to run.

    ``forward`` takes the leaves of the inputs by position, constants included, and returns the leaves of the results.
    ``weights`` are all its tensors. ``writes``: a run changes a weight or an input. ``reentrant``: several threads may
    run it at once. ``operators`` are all that it calls. ``known`` is what the next version with this program need not
    find out again.
    """

    forward: Forward
    weights: Sequence[torch.Tensor]
    writes: bool
    reentrant: bool
    operators: frozenset[Operator]
    known: KnownProgram

    @property
    def branches(self) -> bool:
        """Whether a result decides which operators run."""
        return any(operator.branches for operator in self.operators)


def build_program(
    archive: Archive,
    document: ProgramDocument,
    device: torch.device,
    pool: MemoryPool | None = None,
    layout: WeightLayout = _AS_WRITTEN,
) -> Program:
    """Builds the program of an archive: ``document`` is that of the archive; ``pool`` gets the weights on a GPU;
    ``layout`` is for a CPU.

    UnsupportedProgram if only torch's own loader can build it; DATA_LOSS if it is damaged.
    """
    try:
        written = document.known.once((device, layout), lambda: _write(document, device, layout))
        tensors = read_weights(archive, document, written.weights, lambda tensor: _move(tensor, device, pool))
        _check_declared(document.file, written, tensors)
    except MISREAD as error:
        raise UnsupportedProgram(f"its graph cannot be read: {type(error).__name__} {error!s:.80}") from error
    if not layout.is_plain:
        tensors = _in_layout(tensors, written.weights, layout)
    weights, writes = list(tensors.values()), written.writes
    forward = _with_images(written.function.make(tensors), layout)
    return Program(forward, weights, writes, not writes, written.operators, document.known)


def _in_layout(
    tensors: Mapping[str, torch.Tensor], values: Mapping[str, str], layout: WeightLayout
) -> dict[str, torch.Tensor]:
    """The weights in another layout. Two that were one tensor stay one, unless only one of them is packed."""
    copies = dict[tuple[Any, ...], torch.Tensor]()
    found = dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        value = values[name]
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.requires_grad, value in layout.packed)
        if key not in copies or not tensor.numel():
            copies[key] = layout.weight(value, tensor)
        found[name] = copies[key]
    return found


def _with_images(forward: Forward, layout: WeightLayout) -> Forward:
    """The same for inputs whose channels are last."""
    if not layout.channels_last:
        return forward

    def in_layout(*inputs: torch.Tensor) -> Any:
        return forward(*map(layout.image, inputs))

    return in_layout


def _move(tensor: torch.Tensor, device: torch.device, pool: MemoryPool | None) -> torch.Tensor:
    return tensor.to(device) if pool is None else pool.allocate(lambda: tensor.to(device))


def check_schema(document: ProgramDocument) -> None:
    """Raises UnsupportedProgram for a program of another version of the format."""
    version = document.program["schema_version"]["major"]
    if version != SCHEMA_VERSION:
        raise UnsupportedProgram(f"its schema has version {version!r:.20}, known is {SCHEMA_VERSION}")


def _check_declared(file: str, written: _Written, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises DATA_LOSS for a weight of another dtype or shape than the graph says."""
    for weight, tensor in tensors.items():
        if written.declared[weight] != (tensor.dtype, list(tensor.shape)):
            raise damaged(f"{file} declares {weight.rpartition('/')[2]!r:.80} in two ways")


@dataclass(frozen=True, slots=True)
class _Written:
    """A graph as a function. ``weights`` maps each weight to the first value of the graph that is it, ``declared`` to
    its dtype and shape there."""

    function: CompiledFunction
    weights: Mapping[str, str]
    declared: Mapping[str, tuple[torch.dtype, list[int]]]
    writes: bool
    operators: frozenset[Operator]


def _write(document: ProgramDocument, device: torch.device, layout: WeightLayout) -> _Written:
    """The function of the program's graph."""
    check_schema(document)
    graph, signature = document.program["graph_module"]["graph"], document.program["graph_module"]["signature"]
    function = GraphFunction(device, document.file, Yielder(), find=layout.operator)
    targets = _add_inputs(function, graph["inputs"], signature["input_specs"], device)
    for node in graph["nodes"]:
        function.add_node(node)
    function.set_outputs(_write_back(function, graph["outputs"], signature["output_specs"], targets, device))
    metas = {weight: graph["tensor_values"][value] for weight, value in function.weights.items()}
    declared = {
        weight: (DTYPES[meta["dtype"]], [size["as_int"] for size in meta["sizes"]]) for weight, meta in metas.items()
    }
    operators = frozenset(function.operators)
    return _Written(function.compiled(), function.weights, declared, function.writes, operators)


def _add_inputs(
    function: GraphFunction, inputs: Sequence[Any], specs: Sequence[Any], device: torch.device
) -> Mapping[tuple[str, str], str]:
    """Declares inputs and weights. Returns the values that the program may write to: (kind, its name in the signature)
    -> its name in the graph."""
    targets = dict[tuple[str, str], str]()
    for value, spec in zip(inputs, specs, strict=True):
        argument = read_argument(value, device)
        name = argument.name if isinstance(argument, Named) else None
        match union(spec):
            case ("constant_input", _):
                function.add_input(None)
            case ("user_input", _):
                function.add_input(name)
                targets["user_input", str(name)] = str(name)
            case ("parameter", {"parameter_name": str(weight)}) if name is not None:
                function.add_weight(name, WEIGHTS + weight)
                targets["parameter", weight] = name
            case ("buffer", {"buffer_name": str(weight), "persistent": bool(persistent)}) if name is not None:
                function.add_weight(name, (WEIGHTS if persistent else CONSTANTS) + weight)
                targets["buffer", weight] = name
            case ("tensor_constant", {"tensor_constant_name": str(weight)}) if name is not None:
                function.add_weight(name, CONSTANTS + weight)
            case (kind, _):
                raise UnsupportedProgram(f"an input is of kind {kind!r:.40}")
    return targets


def _write_back(
    function: GraphFunction,
    outputs: Sequence[Any],
    specs: Sequence[Any],
    targets: Mapping[tuple[str, str], str],
    device: torch.device,
) -> list[Argument]:
    """Writes the changed inputs and weights. Returns what is left: the user's results."""
    results = list[Argument]()
    for value, spec in zip(outputs, specs, strict=True):
        argument = read_argument(value, device)
        match union(spec):
            case ("user_output", _):
                results.append(argument)
            case ("buffer_mutation", {"buffer_name": str(name)}) if isinstance(argument, Named):
                function.write_back(targets["buffer", name], argument.name)
            case ("parameter_mutation", {"parameter_name": str(name)}) if isinstance(argument, Named):
                function.write_back(targets["parameter", name], argument.name)
            case ("user_input_mutation", {"user_input_name": str(name)}) if isinstance(argument, Named):
                function.write_back(targets["user_input", name], argument.name)
            case (kind, _):
                raise UnsupportedProgram(f"a result is of kind {kind!r:.40}")
    return results
