"""Platform ``pytorch_aoti``: ``model.pt2`` with compiled code in it; see the package.

Native code needs trust and lives in a process of its own: what goes wrong in it ends that process. The library holds no
weights: they are read as those of an exported program are, handed over once, and freed with the model.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tfs_lite.adapters.aoti.machine import check_machine, read_metadata
from tfs_lite.adapters.exported.document import COMPILED, CONSTANTS, FILES, WEIGHTS, ProgramDocument, read_document
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.adapters.exported.program import MISREAD, check_schema
from tfs_lite.adapters.exported.signature import signature_of
from tfs_lite.adapters.exported.weights import read_weights
from tfs_lite.adapters.inspect.archive import PROGRAM, Archive, check_members, damaged, open_archive
from tfs_lite.adapters.memory import tensor_bytes
from tfs_lite.adapters.opening import OpenedModel, OpenRequest, Platform, VersionFiles
from tfs_lite.adapters.pytorch.export import ARTEFACT, open_by_torch, open_exported
from tfs_lite.adapters.pytorch.export import PLATFORM as EXPORT
from tfs_lite.adapters.pytorch.model import TorchModel
from tfs_lite.adapters.pytorch.self_check import check_itself
from tfs_lite.adapters.pytorch.tensors import CPU, to_tensor
from tfs_lite.adapters.results import by_name
from tfs_lite.adapters.signatures import check_declared
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, check_inputs
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument
from tfs_lite.protocols.dtypes import Array, from_numpy

NAME = "pytorch_aoti"
FALLBACK = "aoti_fallback"
_CODE = "model"
_LIBRARY_FILES = rf"{re.escape(COMPILED)}{_CODE}/[\w.\-]+\.(so|cpp|json|cubin|weights|o)"
_MEMBERS = re.compile(rf"{_LIBRARY_FILES}|{FILES}")
logger = logging.getLogger(__name__)


class CompiledModel(TorchModel):
    """Compiled code, called with contiguous tensors by position. One thread."""

    def __init__(self, request: OpenRequest, signature: Signature, code: Any, weights: int, writes: bool) -> None:
        super().__init__(request, NAME, signature)
        self._code = code
        self._resident = weights
        self._share_inputs = not writes
        self._shares = max(request.batch_rows) > 1

    def check_itself(self) -> None:
        """Runs it on made-up inputs, where that leaves no traces: on a CPU, if it keeps no state. FAILED_PRECONDITION
        if it can answer no request. Before the first run."""
        if self._device == CPU and self._share_inputs:
            (signature,) = self.signatures.values()
            found = check_itself(self._id, signature, self.call, shares=self._shares)
            self._signatures = {DEFAULT_SIGNATURE: found.signature}

    def call(self, inputs: Mapping[str, Array]) -> Mapping[str, object]:
        (declared,) = self.signatures.values()
        check_inputs(declared, {name: (from_numpy(array.dtype), array.shape) for name, array in inputs.items()})
        tensors = [to_tensor(inputs[spec.name], self._device, self._share_inputs) for spec in declared.inputs]
        with torch.inference_mode():
            results: Sequence[torch.Tensor] = self._code.run(tensors)
        return by_name(results, declared.output_names)

    def resident_bytes(self) -> int:
        return self._resident

    def close(self) -> None:
        del self._code


def open_compiled(request: OpenRequest) -> OpenedModel:
    """The compiled model; with ``aoti_fallback: export`` its program, where the code is for another machine."""
    fallback = _fallback(request.settings)
    path = os.path.join(request.files.directory, ARTEFACT)
    with open_archive(path, ARTEFACT, request.meter) as archive:
        document = _read(archive)
        signature = _signature(document, request.settings)
        try:
            check_machine(read_metadata(archive), request.device)
        except ServingError as error:
            if not fallback or error.code is not StatusCode.FAILED_PRECONDITION:
                raise
            logger.warning("%s runs its exported program: %s", request.id, error.status.message)
        else:
            return _load(request, archive, document, signature, path)
    return open_exported(request)


def check_config(directory: str, settings: ModelSettings) -> Signature:
    """The signature; INVALID_ARGUMENT if the config contradicts it. Loads no code."""
    _fallback(settings)
    with open_archive(os.path.join(directory, ARTEFACT), ARTEFACT) as archive:
        document = _read(archive)
        read_metadata(archive)
        return _signature(document, settings)


def _fallback(settings: ModelSettings) -> bool:
    value = settings.parameters.get(FALLBACK, "")
    if value not in ("", "export"):
        raise invalid_argument(f'parameters.{FALLBACK} is "{value}", expected "export"')
    return value == "export"


def _read(archive: Archive) -> ProgramDocument:
    archive.verify_checksums()
    check_members(archive, _MEMBERS)
    if PROGRAM not in archive.members:
        raise failed_precondition(
            f"{archive.name} holds compiled code without its program, which says what it takes and gives: compile it "
            'with tfs_lite.save and compile="aoti"'
        )
    return read_document(archive, trusted=True)


def _signature(document: ProgramDocument, settings: ModelSettings) -> Signature:
    """The signature that the program declares. The code checks nothing itself, so the signature has to describe every
    size."""
    try:
        check_schema(document)
        signature = signature_of(document)
    except UnsupportedProgram as error:
        raise failed_precondition(f"the program in {document.file} cannot be read: {error}; save it again") from None
    except MISREAD:
        raise damaged(f"{document.file} has inputs or outputs that cannot be read") from None
    if signature.conditions is not None and not signature.conditions.complete:
        raise failed_precondition(
            f"{document.file} has guards that are no plain arithmetic on sizes, which compiled code does not check: "
            "save it without compile"
        )
    check_declared(signature, settings)
    return signature


def _load(
    request: OpenRequest, archive: Archive, document: ProgramDocument, signature: Signature, path: str
) -> CompiledModel:
    index = torch.device(request.device).index
    try:
        code = torch._C._aoti.AOTIModelPackageLoader(path, _CODE, False, 1, -1 if index is None else index)
        weights = _weights(archive, document, code.get_constant_fqns(), request.device)
        code.load_constants(weights, False, True, False)
    except RuntimeError as error:
        raise failed_precondition(f"the compiled code cannot be loaded: {error!s:.200}") from None
    specs = document.program["graph_module"]["signature"]["output_specs"]
    writes = any(key.endswith("_mutation") for spec in specs for key in spec)
    model = CompiledModel(request, signature, code, tensor_bytes(list(weights.values())), writes)
    if not any("higher_order" in node["target"] for node in document.program["graph_module"]["graph"]["nodes"]):
        model.check_itself()  # made-up inputs may keep a loop running
    return model


def _weights(archive: Archive, document: ProgramDocument, names: Sequence[str], device: str) -> dict[str, torch.Tensor]:
    places = {name: (WEIGHTS if name in document.weights else CONSTANTS) + name for name in names}
    move: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor.to(device)  # noqa: E731
    tensors = read_weights(archive, document, set(places.values()), move)
    return {name: tensors[place].detach() for name, place in places.items()}


def _recognises(files: VersionFiles) -> bool:
    return ARTEFACT in files.names and any(member.startswith(COMPILED) for member in files.members)


PLATFORM = Platform(
    NAME,
    "model.pt2 compiled by AOTInductor",
    _recognises,
    open_compiled,
    needs_trust=True,
    home="process",
    open_in_process=open_by_torch,
    shared=EXPORT.shared,
    check_config=check_config,
    reads=lambda files, paths: {ARTEFACT},
)
