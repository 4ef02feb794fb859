"""Platform ``python``: ``model.py`` that defines ``class Model``. It is code, so the path must be trusted.

A ``torch.nn.Module`` is constructed with the parameters of the config that its constructor names, gets its weights from
``model.safetensors`` and is called with its inputs by name. Any other class is constructed with a :class:`ModelContext`
and asked to ``predict``; it may have steps for single items (:mod:`tfs_lite.adapters.python.items`), ``warmup`` at the
end of the load and is ``close``d at its end.
"""

from __future__ import annotations

import inspect
import logging
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import ModuleType
from typing import Any, TypeVar, cast

import torch
from torch.nn.parameter import is_lazy

from tfs_lite.adapters.failures import run_failure, story, with_detail
from tfs_lite.adapters.memory import tensor_bytes
from tfs_lite.adapters.opening import OpenRequest, Platform, VersionFiles
from tfs_lite.adapters.python.items import ItemSteps
from tfs_lite.adapters.python.source import ARTEFACT, forget, import_model, source_failure
from tfs_lite.adapters.pytorch.model import TorchModel
from tfs_lite.adapters.pytorch.tensors import to_tensor
from tfs_lite.adapters.pytorch.weight_file import WeightFile, open_weights
from tfs_lite.adapters.results import by_name
from tfs_lite.config.model import ModelSettings, signature_of, state_names
from tfs_lite.core.loader import LoadMeter, LoadPhase
from tfs_lite.core.signature import Signature, Tensor, TensorSpec, find_signature
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument
from tfs_lite.protocols.dtypes import Array

NAME = "python"
WEIGHTS = "model.safetensors"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_TRUE = frozenset({"1", "true", "yes", "on"})
_READERS: Mapping[object, Callable[[str], object]] = {
    **dict.fromkeys((int, "int"), int),
    **dict.fromkeys((float, "float"), float),
    **dict.fromkeys((bool, "bool"), lambda text: text.lower() in _TRUE),
}
logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The context that the constructor of a class ``Model`` in ``model.py`` gets."""

    name: str
    """The name under which the model is served."""
    version: int
    directory: str
    """The version's directory."""
    config: ModelSettings
    """The model's config; ``config.parameters`` are the operator's parameters, as texts."""
    device: torch.device
    """The device on which the model is to run."""


class PythonModel(TorchModel):
    """The common part of both kinds of ``Model``: their module, and the conversion of inputs."""

    def __init__(self, request: OpenRequest, source: ModuleType, signature: Signature) -> None:
        super().__init__(request, NAME, signature)
        self._source = source
        inputs, outputs = state_names(request.settings)
        self.states = dict(zip(outputs, inputs, strict=True))

    def call(self, inputs: Mapping[str, Array]) -> Mapping[str, object]:
        result = self._guarded(lambda: self.answer(self._values(inputs)))
        if isinstance(result, Iterator):
            raise ServingError(
                StatusCode.UNIMPLEMENTED,
                f"model {self._id.name} answers with several responses: its config needs "
                "model_transaction_policy { decoupled: true }",
            )
        (declared,) = self.signatures.values()
        return by_name(result, declared.output_names)

    def _values(self, inputs: Mapping[str, Array]) -> dict[str, torch.Tensor | Array]:
        return {
            name: array if array.dtype == object else to_tensor(array, self._device, share=False)
            for name, array in inputs.items()
        }

    def parts(
        self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]
    ) -> Iterator[dict[str, Tensor]]:
        """Yields what ``predict`` yields; a single answer if it returns a dict. An answer may lack outputs."""
        declared = self.run_signature(signature)
        try:
            result = self._guarded(lambda: self.answer(self._values(cast(Mapping[str, Array], inputs))))
            answers = result if isinstance(result, Iterator) else iter([result])
            try:
                while (found := self._guarded(lambda: next(answers, None))) is not None:
                    yield self._part(declared, inputs, found, outputs)
            finally:
                if isinstance(answers, Generator):
                    self._guarded(answers.close)
            return
        except Exception as error:
            failure = run_failure(self._id, error, self._shapes_were_checked)
            self._note(failure, error)
        raise failure

    def _part(
        self, declared: Signature, inputs: Mapping[str, Tensor], found: object, outputs: tuple[str, ...]
    ) -> dict[str, Tensor]:
        results = by_name(found, declared.output_names)
        wanted = {name: value for name, value in results.items() if not outputs or name in outputs}
        return self.to_arrays(declared, inputs, wanted)

    def _guarded(self, work: Callable[[], T]) -> T:
        """Returns ``work()``; ``sys.exit()`` and the like only fail the request."""
        try:
            return work()
        except Exception:
            raise
        except BaseException as error:
            text = f"model {self._id.name} version {self._id.version} raised {type(error).__name__}"
            failure = with_detail(ServingError(StatusCode.INTERNAL, text), story(error))
        raise failure

    @abstractmethod
    def answer(self, values: Mapping[str, torch.Tensor | Array]) -> object:
        """Calls the user's code with tensors or arrays, and returns its result."""

    def close(self) -> None:
        forget(self._source)


class ModuleModel(PythonModel):
    """A model whose ``Model`` is a ``torch.nn.Module``."""

    def __init__(self, request: OpenRequest, source: ModuleType, module: torch.nn.Module) -> None:
        super().__init__(request, source, _module_signature(module, request.settings))
        _load_weights(module, request.files, request.meter)
        self._module = module.to(request.device).eval()
        self._resident = tensor_bytes([*module.parameters(), *module.buffers()])

    def answer(self, values: Mapping[str, torch.Tensor | Array]) -> object:
        with torch.inference_mode():
            return self._module(**values)

    def resident_bytes(self) -> int:
        return self._resident

    def close(self) -> None:
        del self._module
        super().close()


class PlainModel(PythonModel):
    """A model whose ``Model`` is any other class. Its size is unknown; it may run TorchScript, so there is no inference
    mode."""

    leaves_out = True

    def __init__(self, request: OpenRequest, source: ModuleType, make: Callable[[ModelContext], Any]) -> None:
        super().__init__(request, source, declared_signature(request.settings))
        identity = (request.id.name, request.id.version, request.files.directory)
        self._object: Any = make(ModelContext(*identity, request.settings, self._device))
        try:
            self._find_item_steps()
        except BaseException:
            self.close()
            raise

    def _find_item_steps(self) -> None:
        (declared,) = self.signatures.values()
        self._items = ItemSteps(self._id.name, self._object, declared)
        self._has_item_steps = bool(self._items)
        self._run_signature = self._items.batch_signature
        if not self._run_signature.inputs:
            self._shapes_were_checked = True  # they are the model's own choice

    def warm_up(self) -> None:
        """Calls the class's ``warmup``, if it has one, at the end of the load."""
        if hasattr(self._object, "warmup"):
            self._object.warmup()

    def answer(self, values: Mapping[str, torch.Tensor | Array]) -> object:
        with torch.no_grad():
            result = self._object.predict(dict(values))
        if not isinstance(result, Mapping | Iterator):
            raise ServingError(
                StatusCode.INTERNAL,
                f"predict() of model {self._id.name} returned {type(result).__name__}, expected a dict",
            )
        if self._has_item_steps and isinstance(result, Mapping):
            self._items.check_batch(values, result)
        return result

    def run_signature(self, signature: str) -> Signature:
        find_signature(self.signatures, signature)
        return self._run_signature

    @property
    def has_item_steps(self) -> bool:
        return self._has_item_steps

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        """Runs ``preprocess``; also DEADLINE_EXCEEDED, if the deadline passes before the last item."""
        find_signature(self.signatures, signature)
        return self._step(lambda: self._items.preprocess(inputs, deadline))

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        """Runs ``postprocess``; also DEADLINE_EXCEEDED, if the deadline passes before the last item."""
        find_signature(self.signatures, signature)
        return self._step(lambda: self._items.postprocess(outputs, deadline))

    def _step(self, work: Callable[[], T]) -> T:
        try:
            with torch.no_grad():
                return self._guarded(work)
        except Exception as error:
            failure = run_failure(self._id, error, shapes_were_checked=True)
            self._note(failure, error)
        raise failure

    def resident_bytes(self) -> None:
        return None

    def close(self) -> None:
        try:
            if hasattr(self._object, "close"):
                self._object.close()
        except BaseException as error:
            logger.error("close() of %s failed", self._id, extra={"story": story(error)})
        del self._object
        vars(self).pop("_items", None)  # not there yet if the class has none that are usable
        super().close()


def declared_signature(settings: ModelSettings) -> Signature:
    """The signature of a class with predict(), which only its config declares. INVALID_ARGUMENT without inputs."""
    signature = signature_of(settings)
    if signature is None or not signature.inputs:
        raise invalid_argument("a class with predict() needs its inputs declared in config.pbtxt or config.yaml")
    return signature


def open_python(request: OpenRequest) -> PythonModel:
    directory = request.files.directory
    source = import_model(request.id, directory)
    try:
        return _make(request, source)
    except BaseException as error:  # sys.exit() in a model must not end the server
        forget(source)
        failure = source_failure(error, directory)
    raise failure


def _make(request: OpenRequest, source: ModuleType) -> PythonModel:
    make = getattr(source, "Model", None)
    if not isinstance(make, type):
        raise no_class()
    if issubclass(make, torch.nn.Module):
        return ModuleModel(request, source, make(**_arguments(make, request.settings.parameters)))
    if not callable(getattr(make, "predict", None)):
        raise invalid_argument("class Model is no torch.nn.Module and has no method predict")
    model = PlainModel(request, source, make)
    try:
        model.warm_up()
    except BaseException:
        model.close()
        raise
    return model


def no_class() -> ServingError:
    return invalid_argument(f"{ARTEFACT} defines no class Model")


def _arguments(make: type, parameters: Mapping[str, str]) -> dict[str, object]:
    """The config's parameters that the constructor names, converted by its annotations."""
    found: dict[str, object] = {}
    for parameter in inspect.signature(make).parameters.values():
        if parameter.name in parameters and parameter.kind in _BY_NAME:
            found[parameter.name] = _read(parameter, parameters[parameter.name])
        elif parameter.default is parameter.empty and parameter.kind in _BY_NAME:
            raise invalid_argument(
                f"class Model needs {parameter.name}, which the parameters of the config do not have"
            )
    return found


def _read(parameter: inspect.Parameter, text: str) -> object:
    try:
        return _READERS.get(parameter.annotation, str)(text)
    except ValueError:
        raise invalid_argument(f"parameter {parameter.name} of the config is {text!r:.80}, no number") from None


def _module_signature(module: torch.nn.Module, settings: ModelSettings) -> Signature:
    """The signature that the config declares; else forward's parameters without defaults, of undeclared dtype and
    shape."""
    declared = signature_of(settings) or Signature((), ())
    parameters = list(inspect.signature(module.forward).parameters.values())
    named = [parameter for parameter in parameters if parameter.kind in _BY_NAME]
    if declared.inputs:
        required = {parameter.name for parameter in named if parameter.default is parameter.empty}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            _check_names(declared.input_names, [parameter.name for parameter in named])
        return replace(declared, optional=declared.optional - required)
    inputs = tuple(TensorSpec(parameter.name) for parameter in named if parameter.default is parameter.empty)
    if not inputs:
        raise invalid_argument("forward() names no inputs: declare them in config.pbtxt or config.yaml")
    return Signature(inputs, declared.outputs)


def _check_names(declared: Sequence[str], known: Sequence[str]) -> None:
    for name in declared:
        if name not in known:
            takes = ", ".join(f'"{parameter}"' for parameter in known)
            raise invalid_argument(f'input "{name}" of the config: forward() takes {takes}')


def _load_weights(module: torch.nn.Module, files: VersionFiles, meter: LoadMeter) -> None:
    if WEIGHTS not in files.names:
        if next(module.parameters(), None) is not None:
            logger.warning("there is no %s: the model keeps the weights it was constructed with", WEIGHTS)
        return
    with open_weights(files.directory, WEIGHTS, meter) as file:
        meter.begin(LoadPhase.READING, file.nbytes)
        weights = _read_weights(module, file)
        meter.begin(LoadPhase.OPENING)
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        reasons = [line.strip() for line in str(error).splitlines()[1:]]
        raise failed_precondition(f"{WEIGHTS} does not fit class Model: {' '.join(reasons):.300}") from None


def _read_weights(module: torch.nn.Module, file: WeightFile) -> dict[str, torch.Tensor]:
    """The tensors of the file by name. Those of the module's own parameters and buffers are read into these, one after
    the other, and share their memory: ``load_state_dict`` then copies a tensor to itself, which costs nothing."""
    weights = dict[str, torch.Tensor]()
    own = dict(chain(module.named_parameters(), module.named_buffers()))
    for name, header in file.headers.items():
        target = own[name].detach() if name in own and not is_lazy(own[name]) else None
        if target is None or not _can_be_filled(target) or target.shape != header.shape:
            weights[name] = file.read(name)
        elif target.dtype is header.torch_dtype:
            file.read_into(name, target)
            weights[name] = target
        else:
            weights[name] = target.copy_(file.read(name))
    return weights


def _can_be_filled(target: torch.Tensor) -> bool:
    plain = type(target) is torch.Tensor and target.layout is torch.strided and target.device.type == "cpu"
    return plain and target.is_contiguous()


def _recognises(files: VersionFiles) -> bool:
    return ARTEFACT in files.names


PLATFORM = Platform(NAME, ARTEFACT, _recognises, open_python, needs_trust=True, sandbox="asked")
