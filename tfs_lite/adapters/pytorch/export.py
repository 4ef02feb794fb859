"""Platform ``pytorch_export``: ``model.pt2`` as ``torch.export.save`` writes it, the recommended format.

Loading needs no code of the model, and the program itself has names, dtypes and shapes. Programs are built directly
from the archive (``exported.program``); those that this builder does not know are for torch's own loader, in a process
of the model. torch's guards are off (they cost more than a small model): what they say is in the signature, against
which every run is checked. Guards that cannot be read are torch's to check, and then every call runs alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from tfs_lite.adapters.cuda.graphs import MEMORY, graph_shapes, wants_graphs, why_no_graph
from tfs_lite.adapters.cuda.memory import MemoryPool
from tfs_lite.adapters.cuda.streams import DeviceModel, open_pool, open_streams
from tfs_lite.adapters.exported.document import COMPILED, ProgramDocument, read_document
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.adapters.exported.program import MISREAD, Program, build_program
from tfs_lite.adapters.exported.signature import signature_of
from tfs_lite.adapters.failures import RefusedInputs
from tfs_lite.adapters.inspect.archive import Archive, damaged, open_archive, unsafe
from tfs_lite.adapters.measured import bytes_parameter
from tfs_lite.adapters.memory import free_in_turn, tensor_bytes
from tfs_lite.adapters.opening import NeedsProcess, OpenRequest, Platform, VersionFiles
from tfs_lite.adapters.pytorch.cpu_layout import build_in_form, wanted_form
from tfs_lite.adapters.pytorch.self_check import check_itself
from tfs_lite.adapters.pytorch.tensors import CPU, to_tensor
from tfs_lite.adapters.results import by_name
from tfs_lite.adapters.signatures import check_declared
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, SizeConditions
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import Array

NAME = "pytorch_export"
ARTEFACT = "model.pt2"
logger = logging.getLogger(__name__)


class ExportedModel(DeviceModel):
    """An exported program, called with tensors by position. Several threads may run one that is reentrant, and several
    instances may share one that keeps no state."""

    def __init__(
        self,
        request: OpenRequest,
        signature: Signature,
        program: Program,
        pool: MemoryPool | None = None,
        sharing: list[ExportedModel] | None = None,
    ) -> None:
        """``sharing``: the open instances with this program, of which the first counts its weights."""
        streams = open_streams(torch.device(request.device))
        super().__init__(request, NAME, signature, reentrant=program.reentrant, streams=streams, pool=pool)
        self._request = replace(request, beside=())
        self._program = program
        self._sharing = [] if sharing is None else sharing
        self._shapes_were_checked = _is_complete(signature)
        self._share_inputs = not program.writes
        self._resident = tensor_bytes(program.weights)
        self._forward = program.forward
        if request.on_gpu and wants_graphs(request.settings.parameters):
            self._capture_for(request, signature, program)
        self._sharing.append(self)

    def another(self, device: str) -> ExportedModel | None:
        if self._program.writes or device != self._request.device:
            return None
        (signature,), pool = self.signatures.values(), None if self._pool is None else self._pool.share()
        try:
            more = ExportedModel(self._request, signature, self._program, pool, self._sharing)
            more._shapes_were_checked = self._shapes_were_checked
            return more
        except BaseException:
            if pool is not None:
                pool.drop()
            raise

    def check_itself(self, several: bool = False) -> None:
        """Runs it on made-up inputs, where that leaves no traces: on a CPU, if it keeps no state and has no loops.
        ``several``: of one row and of two, whatever the one shows. FAILED_PRECONDITION if it can answer no request.
        Before the first run."""
        if self._device != CPU or self._program.writes or self._program.branches:
            return
        (signature,) = self.signatures.values()
        found = check_itself(
            self._request.id, signature, self.call, several=several, shares=max(self._request.batch_rows) > 1
        )
        self._signatures = {DEFAULT_SIGNATURE: found.signature}
        if found.answers:
            self._shapes_were_checked = False  # what it fails on later is the request

    def _capture_for(self, request: OpenRequest, signature: Signature, program: Program) -> None:
        most_bytes = bytes_parameter(request.settings.parameters, MEMORY)
        reason = (
            "it keeps state, or has branches" if program.writes or program.branches else why_no_graph(program.operators)
        )
        try:
            shapes = graph_shapes(signature, request.batch_rows) if not reason else []
        except ServingError as error:
            reason = error.status.message
        if reason:
            logger.warning("%s runs without CUDA graphs: %s", request.id, reason)
            return
        self.capture(shapes, self._forward, most_bytes)

    def call(self, inputs: Mapping[str, Array]) -> Mapping[str, object]:
        (declared,) = self.signatures.values()
        arrays = [inputs[spec.name] for spec in declared.inputs]
        if declared.conditions is not None:
            self._check_sizes(declared.conditions, inputs)
        with torch.inference_mode():
            stream = self.stream
            if stream is not None:
                return by_name(stream.forward(arrays, self._forward), declared.output_names)
            tensors = [to_tensor(array, self._device, self._share_inputs) for array in arrays]
            return by_name(self._forward(*tensors), declared.output_names)

    def _check_sizes(self, conditions: SizeConditions, inputs: Mapping[str, Array]) -> None:
        """Requests were checked as they came; what runs may be of several of them, or in another shape."""
        fault = conditions.fault({name: array.shape for name, array in inputs.items()})
        if fault:
            raise RefusedInputs(fault)

    @property
    def counts_weights(self) -> bool:
        return self._sharing[0] is self

    def resident_bytes(self) -> int:
        return self._resident if self.counts_weights else 0

    def drop_weights(self) -> None:
        self._sharing.remove(self)
        held = list(self._program.weights)
        del self._forward, self._program
        free_in_turn(held)


def open_exported(request: OpenRequest) -> ExportedModel:
    """Opens a version. NeedsProcess if only torch's own loader can build the program."""
    wanted = wanted_form(request.settings.parameters)

    def build(
        archive: Archive, document: ProgramDocument, signature: Signature, device: torch.device, pool: MemoryPool | None
    ) -> Program:
        if not _is_complete(signature):
            raise UnsupportedProgram("it has guards that are no plain arithmetic on sizes")
        if wanted.is_plain or request.on_gpu:
            return build_program(archive, document, device, pool)
        return build_in_form(archive, document, signature, wanted, request.id)

    try:
        return _open(request, build)
    except UnsupportedProgram as error:
        raise NeedsProcess(f"loaded by torch's loader in a process: {error}") from None


def open_by_torch(request: OpenRequest) -> ExportedModel:
    """The same by torch's own loader, which holds the interpreter's lock for most of a second."""
    from tfs_lite.adapters.exported.torch_loader import load_program

    def build(
        archive: Archive, document: ProgramDocument, signature: Signature, device: torch.device, pool: MemoryPool | None
    ) -> Program:
        return load_program(archive, document, device, pool, guards=not _is_complete(signature))

    return _open(request, build, by_torch=True)


def check_config(directory: str, settings: ModelSettings) -> Signature:
    """The program's signature; INVALID_ARGUMENT if the config contradicts it. Builds nothing of the archive, and
    refuses one that needs trust: PERMISSION_DENIED."""
    wanted_form(settings.parameters)
    with open_archive(os.path.join(directory, ARTEFACT), ARTEFACT) as archive:
        return _described(read_document(archive, trusted=False), settings, trusted=False)


def _open(
    request: OpenRequest,
    build: Callable[[Archive, ProgramDocument, Signature, torch.device, MemoryPool | None], Program],
    by_torch: bool = False,
) -> ExportedModel:
    """``by_torch``: it may have operators of other libraries, which say themselves what torch's trace has noted."""
    with open_archive(os.path.join(request.files.directory, ARTEFACT), ARTEFACT, request.meter) as archive:
        document = read_document(archive, request.trusted)
        signature = _described(document, request.settings, request.trusted)
        device = torch.device(request.device)
        pool = open_pool(device)
        try:
            model = ExportedModel(request, signature, build(archive, document, signature, device, pool), pool)
            model.check_itself(several=by_torch)
            return model
        except BaseException:
            if pool is not None:
                pool.drop()
            raise


def _described(document: ProgramDocument, settings: ModelSettings, trusted: bool) -> Signature:
    """The signature. PERMISSION_DENIED for guards that cannot be read, unless the file is trusted."""
    try:
        signature = signature_of(document)
    except MISREAD:
        raise damaged(f"{document.file} has inputs or outputs that cannot be read") from None
    if not (trusted or _is_complete(signature)):
        raise unsafe(f"{document.file} has a guard that is no plain arithmetic on sizes, which torch runs as Python")
    check_declared(signature, settings)
    return signature


def _is_complete(signature: Signature) -> bool:
    """Whether the signature says all that the program's guards say."""
    return signature.conditions is None or signature.conditions.complete


def _recognises(files: VersionFiles) -> bool:
    return ARTEFACT in files.names and not any(member.startswith(COMPILED) for member in files.members)


PLATFORM = Platform(
    NAME,
    ARTEFACT,
    _recognises,
    open_exported,
    open_in_process=open_by_torch,
    shared=("tfs_lite.adapters.exported.torch_loader",),
    check_config=check_config,
    reads=lambda files, paths: {ARTEFACT},
    shares_weights=True,
    leaves_threads=lambda request: request.on_gpu,  # those of the driver
)
