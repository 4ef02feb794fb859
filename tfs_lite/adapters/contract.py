"""The contract of a platform: how it recognises its artefact, and how it opens it as a model.

    recognises(files)  ->  open(request)  ->  OpenedModel.run*  ->  OpenedModel.close

A platform is a value: a name, a rule, a function. To add one, write a module with a :class:`Platform` and register it
under the entry point group ``tfs_lite.platforms``. What all platforms share (trust, devices, memory, workers) is in
:mod:`tfs_lite.adapters.loader`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol, cast

import torch

from tfs_lite.adapters.failures import run_failure, story
from tfs_lite.adapters.results import check_outputs, shows_type
from tfs_lite.adapters.tensors import to_arrays
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.loader import LoadMeter
from tfs_lite.core.model import Model, WorkerStatus
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, Tensor, find_signature
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array

MAX_LOGGED_CAUSES = 20
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """The files in a version's directory.

    ``unpacked_bytes`` counts archives by their contents. ``members`` are those of ``model.pt2``, if there is one.
    """

    directory: str
    names: frozenset[str]
    unpacked_bytes: int = 0
    members: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What to open, and where. ``settings`` are empty without a config. ``beside`` is the number of instances of the
    version that are open already. ``meter`` is told how far the load is: a platform that reads bytes itself begins the
    phase READING with their number and adds what it has read."""

    id: ServableId
    files: VersionFiles
    device: torch.device
    trusted: bool
    settings: ModelSettings = field(default_factory=ModelSettings)
    beside: int = 0
    meter: LoadMeter = field(default_factory=LoadMeter, repr=False, compare=False)


class NeedsProcess(Exception):
    """``Platform.open`` does not open this version; ``Platform.open_in_process`` does, in a process of the model. The
    message says why."""


class OpenedModel(Model, Protocol):
    """An opened version: a model with one signature, ``serving_default``, that knows its size."""

    def resident_bytes(self) -> int | None:
        """Bytes of the model's tensors; None if unknown."""


class LoadedModel(OpenedModel, ABC):
    """The base class of all built-in platforms' models: what is done around the call of the artefact.

    Threads: ``run`` and ``close`` by one thread at a time, everything else by any. The caller's arrays are never
    written to; results belong to the caller. Every failure of ``run`` is a ServingError.
    """

    states: Mapping[str, str] = MappingProxyType({})
    """Output states, which a model may leave out -> the inputs whose values they keep then."""
    reason = ""
    """Why ``Platform.open_in_process`` has opened the model; empty if ``Platform.open`` has."""

    def __init__(self, servable_id: ServableId, platform: str, signature: Signature, device: torch.device) -> None:
        self._id = servable_id
        self._platform = platform
        self._signatures = {DEFAULT_SIGNATURE: signature}
        self._device = device
        self._shapes_were_checked = says_everything(signature)
        self._logged = set[str]()

    @property
    def platform(self) -> str:
        return self._platform

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    @property
    def worker(self) -> WorkerStatus:
        return WorkerStatus(reason=self.reason)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        declared = self.run_signature(signature)
        try:
            results = self.call(cast(Mapping[str, Array], inputs))
            wanted = outputs or declared.output_names or tuple(results)
            picked = {name: self._pick(results, name, inputs) for name in wanted}
            check_outputs(declared, inputs, picked)
            arrays = to_arrays(picked, self._device)
            if not all(map(shows_type, picked.values())):
                check_outputs(declared, inputs, arrays)
            return arrays
        except Exception as error:
            failure = run_failure(self._id, error, self._shapes_were_checked)
            self._log(failure, error)
        raise failure

    def run_signature(self, signature: str) -> Signature:
        """The inputs and outputs of ``run``: the client's, unless the model has ``preprocess`` or ``postprocess``."""
        return find_signature(self._signatures, signature)

    @abstractmethod
    def call(self, inputs: Mapping[str, Array]) -> Mapping[str, object]:
        """Runs the model; results by name, still on the device. May raise anything."""

    @abstractmethod
    def resident_bytes(self) -> int | None:
        """Bytes of the model's tensors; None if unknown."""

    @abstractmethod
    def close(self) -> None:
        """Drops the weights. Called once, after the last ``run``."""

    def _pick(self, results: Mapping[str, object], name: str, inputs: Mapping[str, Tensor]) -> object:
        try:
            return results[name]
        except KeyError:
            if name in self.states:
                return inputs[self.states[name]]
            raise ServingError(
                StatusCode.INTERNAL,
                f"model {self._id.name} version {self._id.version} did not return output {name}; "
                f"it returned: {', '.join(sorted(results))}",
            ) from None

    def _log(self, failure: ServingError, error: BaseException) -> None:
        """Logs an internal failure with its stack, once per message."""
        if failure.code is not StatusCode.INTERNAL or failure.status.message in self._logged:
            return
        if len(self._logged) < MAX_LOGGED_CAUSES:
            self._logged.add(failure.status.message)
            logger.error("%s failed on a request\n%s", self._id, story(error))


def says_everything(signature: Signature) -> bool:
    """Whether every input's dtype and shape is declared, so that inputs that fit the signature fit the model."""
    return all(spec.dtype is not DataType.INVALID and spec.shape is not None for spec in signature.inputs)


@dataclass(frozen=True, slots=True)
class Platform:
    """A kind of artefact, and how versions of it are opened.

    ``open`` is None if this server cannot serve the artefact, and ``missing`` says why; or if the platform is
    ``composed``: a version has no artefact, and its servable is made of other models. ``open_in_process`` opens the
    versions for which ``open`` raises NeedsProcess, in processes of their own. ``check_config`` raises INVALID_ARGUMENT
    if the artefact in a directory contradicts a config, without opening it. ``reserve`` returns an upper
    bound of the bytes that a version takes on its device, from its files, the config and whether it goes to a GPU, or
    raises ServingError; None means that the bound follows from the size of the files. Models of an ``in_server``
    platform always run in the server's process. ``sandbox`` is for processes of models: "auto", one where the kernel
    has it; "asked", only if the model's config or the server asks for it; "required", no process without it unless the
    version is trusted.
    """

    name: str
    artefact: str
    recognises: Callable[[VersionFiles], bool]
    open: Callable[[OpenRequest], OpenedModel] | None
    needs_trust: bool = False
    missing: str = ""
    composed: bool = False
    reserve: Callable[[VersionFiles, ModelSettings, bool], int] | None = None
    in_server: bool = False
    sandbox: Literal["auto", "asked", "required"] = "auto"
    open_in_process: Callable[[OpenRequest], LoadedModel] | None = None
    check_config: Callable[[str, ModelSettings], object] | None = None

    @property
    def is_served(self) -> bool:
        """Whether this server can serve versions of it."""
        return self.open is not None or self.composed
