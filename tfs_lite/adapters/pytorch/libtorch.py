"""Platform ``pytorch_libtorch``: ``model.pt`` as ``torch.jit.save`` writes it. PyTorch has deprecated TorchScript.

A script has the names of its inputs, but neither dtypes nor shapes: they come from the model's config, or are
undeclared. As in Triton, names of the form ``INPUT__0`` in the config mean positions, and names of which none is known
stand in the order of forward's parameters.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tfs_lite.adapters.cuda.memory import MemoryPool
from tfs_lite.adapters.cuda.streams import DeviceModel, open_pool, open_streams
from tfs_lite.adapters.failures import RefusedInputs
from tfs_lite.adapters.inspect.script import inspect_script
from tfs_lite.adapters.memory import tensor_bytes
from tfs_lite.adapters.opening import OpenRequest, Platform, VersionFiles
from tfs_lite.adapters.pytorch.self_check import check_itself
from tfs_lite.adapters.pytorch.tensors import CPU, TORCH_DTYPES, to_tensor
from tfs_lite.adapters.results import by_name, numbered
from tfs_lite.config.model import ModelSettings, signature_of
from tfs_lite.core.loader import LoadPhase
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, TensorSpec, format_shape
from tfs_lite.core.status import failed_precondition, invalid_argument
from tfs_lite.protocols.dtypes import Array

NAME = "pytorch_libtorch"
ARTEFACT = "model.pt"
LARGE_BYTES = 16 << 20
"""The size of a script from which on its load would be felt: torch reads scripts with the interpreter lock held, about
a megabyte in a millisecond."""
_TENSORS = frozenset({"Tensor", "Optional[Tensor]"})
_TEXTS = "List[str]"
_SINGLE = frozenset(
    {"Tensor", "int", "float", "bool", "str", "number", "List[int]", "List[float]", "List[bool]", _TEXTS}
)
"""Types of one result each."""
_POSITION = re.compile(r".*__(\d+)", re.ASCII)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of the script's forward."""

    name: str
    takes_texts: bool
    required: bool


class ScriptModel(DeviceModel):
    """A script, called with its arguments by name; by one thread at a time, because it may keep state."""

    def __init__(self, request: OpenRequest, module: torch.jit.ScriptModule, pool: MemoryPool | None = None) -> None:
        arguments = arguments_of(module)
        signature = _signature(request.settings, arguments, module)
        super().__init__(
            request, NAME, signature, reentrant=False, streams=open_streams(torch.device(request.device)), pool=pool
        )
        fed = _arguments_for([spec.name for spec in signature.inputs], arguments)
        self._parameters = {spec.name: argument.name for spec, argument in zip(signature.inputs, fed, strict=True)}
        self._module: Any = module
        self._resident = tensor_bytes([*module.parameters(), *module.buffers()]) or None
        self._shares = max(request.batch_rows) > 1

    def check_itself(self) -> None:
        """Runs it on made-up inputs, where a config says what it takes and that leaves no traces: on a CPU, if it keeps
        nothing but buffers. FAILED_PRECONDITION if it can answer no request. Before the first run."""
        (signature,) = self.signatures.values()
        typed = all(spec.dtype in TORCH_DTYPES and spec.shape is not None for spec in signature.inputs)
        if self._device != CPU or signature.optional or not typed or _keeps_more_than_buffers(self._module):
            return
        kept = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        try:
            found = check_itself(self._id, signature, self.call, traced=True, shares=self._shares)
        finally:
            with torch.no_grad():
                for buffer, before in kept:
                    buffer.copy_(before)
        self._signatures = {DEFAULT_SIGNATURE: found.signature}

    def call(self, inputs: Mapping[str, Array]) -> Mapping[str, object]:
        (declared,) = self.signatures.values()
        if declared.conditions is not None:
            fault = declared.conditions.fault({name: array.shape for name, array in inputs.items()})
            if fault:
                raise RefusedInputs(fault)
        arguments = {self._parameters[name]: self._value(name, array) for name, array in inputs.items()}
        # After its profiling runs a script refuses tensors of inference mode.
        with torch.no_grad():
            return by_name(self._module(**arguments), declared.output_names)

    def resident_bytes(self) -> int | None:
        """The bytes of the weights; None for a frozen script: its weights are constants that no list of parameters
        shows."""
        return self._resident

    def drop_weights(self) -> None:
        del self._module

    def _value(self, name: str, array: Array) -> torch.Tensor | list[str]:
        if array.dtype != object:
            stream = self.stream
            return to_tensor(array, self._device, share=False) if stream is None else stream.upload(array)
        if array.ndim != 1:
            raise invalid_argument(f"input {name} has rank {array.ndim}; texts for a script have rank 1")
        try:
            return [text.decode() for text in array]
        except UnicodeDecodeError:
            raise invalid_argument(f"input {name} holds bytes that are no UTF-8 text") from None


def _keeps_more_than_buffers(module: Any) -> bool:
    """Whether a run may leave something behind that is no buffer: an attribute that it sets, a list or a dict."""
    graph = module.inlined_graph
    kept = {node.output().type().kind() for node in graph.findAllNodes("prim::GetAttr")}
    return bool(graph.findAllNodes("prim::SetAttr") or kept & {"ListType", "DictType"})


def open_script(request: OpenRequest) -> ScriptModel:
    path = os.path.join(request.files.directory, ARTEFACT)
    inspect_script(path, ARTEFACT, request.trusted, request.meter)
    request.meter.begin(LoadPhase.OPENING)
    logger.warning("%s is TorchScript, which PyTorch has deprecated; export it with tfs_lite.save", request.id)
    warnings.filterwarnings("ignore", r"`torch\.jit\.load` is (deprecated|not supported)", DeprecationWarning)
    device = torch.device(request.device)
    pool = open_pool(device)
    try:
        model = ScriptModel(request, _load(path, device, pool), pool)
        model.check_itself()
        return model
    except BaseException:
        if pool is not None:
            pool.drop()
        raise


def _load(path: str, device: torch.device, pool: MemoryPool | None) -> torch.jit.ScriptModule:
    def load() -> Any:
        return torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]

    module: torch.jit.ScriptModule = load() if pool is None else pool.allocate(load)
    module.eval()
    return module


def arguments_of(module: Any) -> list[Argument]:
    """The parameters of forward that a request can feed. FAILED_PRECONDITION if it requires one that no request can."""
    if not hasattr(module, "forward"):
        raise failed_precondition("the script has no method forward")
    found = []
    for argument in module.forward.schema.arguments[1:]:
        kind = str(argument.type)
        if kind in _TENSORS or kind == _TEXTS:
            found.append(Argument(argument.name, kind == _TEXTS, not argument.has_default_value()))
        elif not argument.has_default_value():
            raise failed_precondition(
                f"input {argument.name} of the script is of type {kind}; expected Tensor or List[str]"
            )
    return found


def _signature(settings: ModelSettings, arguments: Sequence[Argument], module: Any) -> Signature:
    """The signature that the config declares, completed from the script."""
    declared = signature_of(settings) or Signature((), ())
    inputs = declared.inputs or tuple(
        TensorSpec(argument.name, DataType.STRING if argument.takes_texts else DataType.INVALID)
        for argument in arguments
        if argument.required
    )
    fed = _check_inputs(inputs, arguments)
    may_be_left_out = {spec.name for spec, argument in zip(inputs, fed, strict=True) if not argument.required}
    optional = frozenset(declared.optional) & may_be_left_out
    return Signature(inputs, declared.outputs or _outputs(module), optional=optional)


def _outputs(module: Any) -> tuple[TensorSpec, ...]:
    """The outputs if the script's type has their number; none for named tuples, dicts and lists of tensors, also inside
    of a tuple, and for what may be None."""
    kind = module.forward.schema.returns[0].type
    if str(kind) == _TEXTS:
        return (TensorSpec(numbered(1)[0], DataType.STRING),)
    if kind.kind() == "TensorType":
        return (TensorSpec(numbered(1)[0]),)
    if not str(kind).startswith("Tuple["):
        return ()
    parts = [_names_in(name, part) for name, part in zip(numbered(len(kind.elements())), kind.elements(), strict=True)]
    return tuple(TensorSpec(name) for part in parts for name in part or ()) if None not in parts else ()


def _names_in(name: str, kind: Any) -> list[str] | None:
    """The names of the results in one of this type; None if their number is not known."""
    if str(kind).startswith("Tuple["):
        parts = [_names_in(f"{name}.{index}", part) for index, part in enumerate(kind.elements())]
        return None if None in parts else [inner for part in parts for inner in part or ()]
    return [name] if str(kind) in _SINGLE else None


def _check_inputs(inputs: Sequence[TensorSpec], arguments: Sequence[Argument]) -> list[Argument]:
    """The parameter of each input. INVALID_ARGUMENT unless every required one gets one input, of its kind: a tensor or
    texts."""
    fed = _arguments_for([spec.name for spec in inputs], arguments)
    missing = [argument.name for argument in arguments if argument.required and argument not in fed]
    if missing or len(set(fed)) != len(fed):
        raise invalid_argument(f"the inputs of the config feed {_names(fed)}; the script takes {_names(arguments)}")
    for spec, argument in zip(inputs, fed, strict=True):
        if (spec.dtype is DataType.STRING) != argument.takes_texts:
            expected = "texts" if argument.takes_texts else "a tensor"
            raise invalid_argument(f"input {spec.name} of the config is {spec.dtype.text}, the script takes {expected}")
    check_texts(inputs)
    return fed


def check_texts(inputs: Sequence[TensorSpec]) -> None:
    """Raises INVALID_ARGUMENT for an input of texts in a shape that no script can take: it gets texts as a list."""
    for spec in inputs:
        if spec.dtype is DataType.STRING and spec.shape is not None and len(spec.shape) != 1:
            raise invalid_argument(
                f"input {spec.name} of the config has the shape {format_shape(spec.shape)} for the script, which takes "
                "texts as a list: expected one dimension. With max_batch_size, dims: [ 1 ] and reshape { shape: [] } "
                "make one text for each row"
            )


def _arguments_for(names: Sequence[str], arguments: Sequence[Argument]) -> list[Argument]:
    """The parameter of forward for each input of the config: of the same name, or at the position in ``NAME__0``; in
    the order of forward if no name is of either kind and there are as many. INVALID_ARGUMENT for any other name."""
    found = [_argument_for(name, arguments) for name in names]
    if not any(found) and len(names) == len(arguments):
        return list(arguments)
    for name, argument in zip(names, found, strict=True):
        if argument is None:
            raise invalid_argument(f"input {name} of the config: the script takes {_names(arguments)}")
    return [argument for argument in found if argument is not None]


def _argument_for(name: str, arguments: Sequence[Argument]) -> Argument | None:
    for argument in arguments:
        if argument.name == name:
            return argument
    position = _POSITION.fullmatch(name)
    return arguments[int(position[1])] if position is not None and int(position[1]) < len(arguments) else None


def _names(arguments: Sequence[Argument]) -> str:
    return ", ".join(argument.name for argument in arguments)


def _recognises(files: VersionFiles) -> bool:
    return ARTEFACT in files.names


def _apart(request: OpenRequest) -> str:
    if request.on_gpu or request.files.unpacked_bytes < LARGE_BYTES:
        return ""
    return "opened in a process: torch would hold up the requests of all models while it reads a script of this size"


PLATFORM = Platform(NAME, ARTEFACT, _recognises, open_script, apart=_apart, reads=lambda files, paths: {ARTEFACT})
