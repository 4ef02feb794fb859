"""Platform ``pytorch_export``: ``model.pt2`` as ``torch.export.save`` writes it, the recommended format.

Loading needs no code of the model, and the program itself has names, dtypes and shapes. Programs are built directly
from the archive (``exported.program``); those that this builder does not know are for torch's own loader, in a process
of the model. A program's own guards are off (they cost more than a small model); requests are checked against the
signature instead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from tfs_lite.adapters.cuda.graphs import MEMORY, graph_shapes, wants_graphs, why_no_graph
from tfs_lite.adapters.cuda.memory import Pool
from tfs_lite.adapters.cuda.streams import DeviceModel, open_pool, open_streams
from tfs_lite.adapters.exported.document import COMPILED, Document, read_document
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.adapters.exported.program import MISREAD, Program, build_program
from tfs_lite.adapters.exported.signature import has_only_plain_sizes, signature_of
from tfs_lite.adapters.inspect.archive import Archive, damaged, open_archive
from tfs_lite.adapters.measured import bytes_parameter
from tfs_lite.adapters.memory import tensor_bytes
from tfs_lite.adapters.opening import NeedsProcess, OpenRequest, Platform, VersionFiles
from tfs_lite.adapters.pytorch.cpu_layout import build_in_form, wanted_form
from tfs_lite.adapters.pytorch.tensors import to_tensor
from tfs_lite.adapters.results import by_name
from tfs_lite.adapters.signatures import check_declared
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.signature import Signature
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
        plain_sizes: bool,
        program: Program,
        pool: Pool | None = None,
        sharing: list[ExportedModel] | None = None,
    ) -> None:
        """``plain_sizes``: the signature describes all sizes that the program takes. ``sharing``: the open instances
        with this program, of which the first counts its weights."""
        streams = open_streams(torch.device(request.device))
        super().__init__(request, NAME, signature, reentrant=program.reentrant, streams=streams, pool=pool)
        self._request = replace(request, beside=())
        self._program = program
        self._sharing = [] if sharing is None else sharing
        self._shapes_were_checked = plain_sizes
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
            return ExportedModel(
                self._request, signature, self._shapes_were_checked, self._program, pool, self._sharing
            )
        except BaseException:
            if pool is not None:
                pool.drop()
            raise

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
        with torch.inference_mode():
            stream = self.stream
            if stream is not None:
                return by_name(stream.forward(arrays, self._forward), declared.output_names)
            tensors = [to_tensor(array, self._device, self._share_inputs) for array in arrays]
            return by_name(self._forward(*tensors), declared.output_names)

    @property
    def counts_weights(self) -> bool:
        return self._sharing[0] is self

    def resident_bytes(self) -> int:
        return self._resident if self.counts_weights else 0

    def drop_weights(self) -> None:
        self._sharing.remove(self)
        del self._forward, self._program


def open_exported(request: OpenRequest) -> ExportedModel:
    """NeedsProcess if only torch's own loader can build the program."""
    wanted = wanted_form(request.settings.parameters)

    def build(archive: Archive, document: Document, device: torch.device, pool: Pool | None) -> Program:
        if wanted.is_plain or request.on_gpu:
            return build_program(archive, document, device, pool)
        return build_in_form(archive, document, signature_of(document), wanted, request.id)

    try:
        return _open(request, build)
    except UnsupportedProgram as error:
        raise NeedsProcess(f"loaded by torch's loader in a process: {error}") from None


def open_by_torch(request: OpenRequest) -> ExportedModel:
    """The same by torch's own loader, which holds the interpreter's lock for most of a second."""
    from tfs_lite.adapters.exported.torch_loader import load_program

    return _open(request, load_program)


def check_config(directory: str, settings: ModelSettings) -> Signature:
    """The program's signature; INVALID_ARGUMENT if the config contradicts it. Builds nothing of the archive, and
    refuses one that needs trust: PERMISSION_DENIED."""
    wanted_form(settings.parameters)
    with open_archive(os.path.join(directory, ARTEFACT), ARTEFACT) as archive:
        signature, _ = _described(read_document(archive, trusted=False), settings)
    return signature


def _open(
    request: OpenRequest, build: Callable[[Archive, Document, torch.device, Pool | None], Program]
) -> ExportedModel:
    with open_archive(os.path.join(request.files.directory, ARTEFACT), ARTEFACT, request.meter) as archive:
        document = read_document(archive, request.trusted)
        signature, plain_sizes = _described(document, request.settings)
        device = torch.device(request.device)
        pool = open_pool(device)
        try:
            return ExportedModel(request, signature, plain_sizes, build(archive, document, device, pool), pool)
        except BaseException:
            if pool is not None:
                pool.drop()
            raise


def _described(document: Document, settings: ModelSettings) -> tuple[Signature, bool]:
    """The signature, and whether it describes all sizes that the program takes."""
    try:
        signature, plain_sizes = signature_of(document), has_only_plain_sizes(document)
    except MISREAD:
        raise damaged(f"{document.file} has inputs or outputs that cannot be read") from None
    check_declared(signature, settings)
    return signature, plain_sizes


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
)
