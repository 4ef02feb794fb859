"""Platform ``pytorch_export``: ``model.pt2`` as ``torch.export.save`` writes it, the recommended format.

Loading needs no code of the model, and the program itself has names, dtypes and shapes. Its own guards are off (they
cost more than a small model); requests are checked against the signature instead. Lower bounds of dynamic dimensions
are not checked: the exporter reports 2 for sizes that run with 0 and 1 as well. The program is called without torch's
wrappers, which flatten the inputs as a tree, although here they are flat, and find every weight through a fallback of
``torch.nn.Module`` that costs as much as a small operator: half of the time of a small network.
"""

from __future__ import annotations

import linecache
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.export.passes import move_to_device_pass
from torch.export.pt2_archive._package import _load_exported_programs
from torch.export.pt2_archive.constants import ARCHIVE_VERSION_PATH, ARCHIVE_VERSION_VALUE
from torch.fx.graph import CodeGen
from torch.fx.graph_module import _loader

from tfs_lite.adapters.contract import OpenRequest, Platform, VersionFiles
from tfs_lite.adapters.cuda.graphs import GraphSwitch, wants_graphs, why_no_graph
from tfs_lite.adapters.cuda.memory import Pool
from tfs_lite.adapters.cuda.streams import DeviceModel, open_pool, open_streams
from tfs_lite.adapters.inspect.archive import Archive, open_archive
from tfs_lite.adapters.inspect.artifact import COMPILED, check_exported
from tfs_lite.adapters.inspect.reader import ArchiveReader
from tfs_lite.adapters.memory import tensor_bytes
from tfs_lite.adapters.results import by_name, numbered
from tfs_lite.adapters.tensors import DATA_TYPES, to_tensor
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.signature import Dim, Signature, SymbolicDim, TensorSpec, format_shape
from tfs_lite.core.status import ServingError, failed_precondition, invalid_argument
from tfs_lite.protocols.dtypes import Array

NAME = "pytorch_export"
ARTEFACT = "model.pt2"
_EXPORTER_MINIMUM = 2
_SYMBOL = re.compile(r"[a-z]+\d+")
_CONTEXTS = ("wrap_with_autocast", "wrap_with_set_grad_enabled")
logger = logging.getLogger(__name__)
_READING = threading.Lock()
"""torch keeps the program that it reads in a global variable, so two threads must not read programs at once."""


class ExportedModel(DeviceModel):
    """An exported program, called with tensors by position; its outputs always fit its signature.

    Several threads may run a program that writes to no tensor and has neither branches nor loops.
    """

    outputs_may_differ = False

    def __init__(self, request: OpenRequest, program: ExportedProgram, pool: Pool | None = None) -> None:
        signature = signature_of(program)
        _check_settings(signature, request.settings)
        writes = _writes_to_tensors(program)
        reentrant = not writes and not _has_branches(program)
        streams = open_streams(request.device, _graph_switch(request, program, reentrant))
        super().__init__(request, NAME, signature, reentrant=reentrant, streams=streams, pool=pool)
        self._shapes_were_checked = _only_plain_sizes(program)
        self._share_inputs = not writes
        self._resident = tensor_bytes([*program.state_dict.values(), *program.constants.values()])
        # A module's hooks repeat checks, and cost as much as its guards.
        self._forward = program.module(check_guards=False).forward if writes else plain_forward(program)

    def call(self, inputs: Mapping[str, Array]) -> Mapping[str, object]:
        (declared,) = self.signatures.values()
        arrays = [inputs[spec.name] for spec in declared.inputs]
        with torch.inference_mode():
            stream = self.stream
            if stream is not None:
                return by_name(stream.forward(arrays, self._forward), declared.output_names)
            tensors = [to_tensor(array, self._device, self._share_inputs) for array in arrays]
            return by_name(self._forward(*tensors), declared.output_names)

    def resident_bytes(self) -> int:
        return self._resident

    def drop_weights(self) -> None:
        del self._forward


def open_exported(request: OpenRequest) -> ExportedModel:
    path = os.path.join(request.files.directory, ARTEFACT)
    with open_archive(path, ARTEFACT) as archive:
        check_exported(archive, request.trusted)
        with _READING, _generated_code_forgotten():
            program = _read_program(archive)
            pool = open_pool(request.device)
            try:
                if any(value.device != request.device for value in _placeholders(program)):
                    program = _moved(program, request.device, pool)
                return ExportedModel(request, program, pool)
            except BaseException:
                if pool is not None:
                    pool.drop()
                raise


def _moved(program: ExportedProgram, device: torch.device, pool: Pool | None) -> ExportedProgram:
    if pool is None:
        return move_to_device_pass(program, device)
    return pool.allocate(lambda: move_to_device_pass(program, device))


def check_config(directory: str, settings: ModelSettings) -> Signature:
    """The program's signature; INVALID_ARGUMENT if the config contradicts it. Runs nothing of the archive, and refuses
    one that needs trust: PERMISSION_DENIED."""
    with open_archive(os.path.join(directory, ARTEFACT), ARTEFACT) as archive:
        check_exported(archive, trusted=False)
        with _READING, _generated_code_forgotten():
            signature = signature_of(_read_program(archive))
    _check_settings(signature, settings)
    return signature


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


def _read_program(archive: Archive) -> ExportedProgram:
    """Does what ``torch.export.pt2_archive.load_pt2`` does, with a reader that lets other threads run."""
    version = archive.read(ARCHIVE_VERSION_PATH).decode()
    if version != ARCHIVE_VERSION_VALUE:
        raise failed_precondition(f"{archive.name} has archive version {version:.20}, expected {ARCHIVE_VERSION_VALUE}")
    reader: Any = ArchiveReader(archive)
    return _load_exported_programs(reader, reader.get_file_names(), None)["model"]


def signature_of(program: ExportedProgram) -> Signature:
    """Names, dtypes and shapes as exported. FAILED_PRECONDITION if an input or a result is no plain tensor."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs = [
        _spec(name, _tensor_name(spec.arg, f"input {name}"), values, program)
        for name, spec in zip(_input_names(program), _user_inputs(program), strict=True)
    ]
    outputs = [
        _spec(name, _tensor_name(spec.arg, f"result {name}"), values, program)
        for name, spec in zip(_output_names(program), _user_outputs(program), strict=True)
    ]
    return Signature(tuple(inputs), tuple(outputs))


def _input_names(program: ExportedProgram) -> Sequence[str]:
    """The names of forward's parameters, first those by position, then those by keyword."""
    call = program.module_call_graph[0].signature
    names = list(call.forward_arg_names or ()) if call is not None else []
    tree = program.call_spec.in_spec
    children = [child for part in tree.children() for child in part.children()] if tree is not None else []
    if len(names) != len(children):
        raise failed_precondition("the program does not name its inputs: export the model again")
    for name, child in zip(names, children, strict=True):
        if not child.is_leaf():
            raise _refusal(f"input {name}", f"a {_kind(child)} of values")
    return names


def _output_names(program: ExportedProgram) -> Sequence[str]:
    tree = program.call_spec.out_spec
    if tree is None or tree.is_leaf():
        return numbered(1)
    names: Sequence[str] = numbered(tree.num_children)
    if issubclass(tree.type, dict):
        names = [str(key) for key in tree.context]
    elif hasattr(tree.context, "_fields"):
        names = tree.context._fields
    for name, child in zip(names, tree.children(), strict=True):
        if not child.is_leaf():
            raise _refusal(f"result {name}", f"a {_kind(child)} of values")
    return names


def _kind(tree: Any) -> str:
    return str(getattr(tree.type, "__name__", tree.type))


def _user_inputs(program: ExportedProgram) -> list[Any]:
    return [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]


def _user_outputs(program: ExportedProgram) -> list[Any]:
    return [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]


def _tensor_name(argument: object, what: str) -> str:
    if not isinstance(argument, TensorArgument):
        raise _refusal(what, f"the constant {getattr(argument, 'value', None)!r}")
    return argument.name


def _refusal(what: str, found: str) -> ServingError:
    return failed_precondition(f"{what} is {found}; export the model so that it takes and returns only tensors")


def _spec(name: str, node: str, values: Mapping[str, Any], program: ExportedProgram) -> TensorSpec:
    value = values[node]
    if value.dtype not in DATA_TYPES:
        raise failed_precondition(f"{name} is of type {value.dtype}, which cannot be sent")
    return TensorSpec(name, DATA_TYPES[value.dtype], tuple(_dim(size, program) for size in value.shape))


def _dim(size: int | torch.SymInt, program: ExportedProgram) -> Dim:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    bounds = program.range_constraints.get(expression)
    finite = bounds is not None and getattr(bounds.upper, "is_Integer", False)
    return SymbolicDim(str(expression), int(bounds.upper) if bounds is not None and finite else None)


def _only_plain_sizes(program: ExportedProgram) -> bool:
    """Whether the signature describes all sizes: none is computed from another, and none has a minimum of its own."""
    sizes = [size for value in _placeholders(program) for size in value.shape]
    if any(isinstance(dim := _dim(size, program), SymbolicDim) and not _SYMBOL.fullmatch(dim.symbol) for size in sizes):
        return False
    return all(bounds.lower <= _EXPORTER_MINIMUM for bounds in program.range_constraints.values())


def _writes_to_tensors(program: ExportedProgram) -> bool:
    """Whether any operator changes a tensor in place, which might be an input."""
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    schemas = [getattr(node.target, "_schema", None) for graph in graphs for node in graph.nodes]
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _has_branches(program: ExportedProgram) -> bool:
    """Whether the program calls operators that run graphs of their own, which torch may compile when they run."""
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = [node.target for graph in graphs for node in graph.nodes]
    return any(isinstance(target, HigherOrderOperator) and str(target) not in _CONTEXTS for target in targets)


def _graph_switch(request: OpenRequest, program: ExportedProgram, reentrant: bool) -> GraphSwitch | None:
    """The switch for a model on a GPU that can have CUDA graphs and whose config asks for them; otherwise None."""
    if request.device.type != "cuda" or not wants_graphs(request.settings.parameters):
        return None
    reason = why_no_graph(program) if reentrant else "it keeps state, or has branches"
    if reason:
        logger.warning("%s runs without CUDA graphs: %s", request.id, reason)
        return None
    return GraphSwitch(request.id)


def _placeholders(program: ExportedProgram) -> list[torch.Tensor]:
    """The inputs and weights as placeholders: dtype, shape and device without data."""
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    return [value for value in values if isinstance(value, torch.Tensor)]


def _check_settings(signature: Signature, settings: ModelSettings) -> None:
    """INVALID_ARGUMENT if the config contradicts the program; it may repeat what the program declares."""
    for kind, specs, tensors in (
        ("input", signature.inputs, settings.input),
        ("output", signature.outputs, settings.output),
    ):
        known = {spec.name: spec for spec in specs}
        for tensor in tensors:
            spec = known.get(tensor.name)
            if spec is None:
                names = ", ".join(f'"{name}"' for name in known)
                raise invalid_argument(f'{kind} "{tensor.name}" of the config: the model has {names}')
            if spec.dtype is not tensor.data_type:
                raise invalid_argument(
                    f'{kind} "{tensor.name}" of the config is {tensor.data_type.text}, '
                    f"the model's is {spec.dtype.text}{format_shape(spec.shape)}"
                )


def _recognises(files: VersionFiles) -> bool:
    return ARTEFACT in files.names and not any(member.startswith(COMPILED) for member in files.members)


PLATFORM = Platform(NAME, ARTEFACT, _recognises, open_exported)


def plain_forward(program: ExportedProgram) -> Callable[..., Sequence[torch.Tensor]]:
    """The program as a function of its flat inputs that returns its flat results, without guards and hooks. Only for
    programs that write to none of their tensors, because replaced weights would not be seen."""
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
