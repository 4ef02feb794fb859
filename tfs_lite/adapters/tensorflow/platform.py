"""The platform ``tensorflow_savedmodel``: what TensorFlow Serving serves, each version in a process of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec

from tfs_lite.adapters.opening import OpenedModel, OpenRequest, Platform, VersionFiles
from tfs_lite.adapters.signatures import check_declared
from tfs_lite.adapters.tensorflow.allowed import check_operators
from tfs_lite.adapters.tensorflow.saved_model import ARTEFACT, MetaGraph, open_saved_model
from tfs_lite.config.model import ModelSettings, ModelTensor
from tfs_lite.core.signature import DEFAULT_SIGNATURE, ShapeContract, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import Reason, ServingError, StatusCode, failed_precondition, invalid_argument

NAME = "tensorflow_savedmodel"
SERVE = "serve"
"""The tag of graphs that are served, if the server is not told otherwise."""
EXTRA = "tensorflow"
LIBRARY = "tensorflow"
OPEN_VERSION = "tfs_lite.adapters.tensorflow.program:open_version"
"""The function that opens a version in its process."""
_READ = re.compile(r"saved_model\.pb|fingerprint\.pb|keras_metadata\.pb|(variables|assets)/.*")
_MIB = 1 << 20
PROCESS_BYTES = 600 * _MIB
"""Bytes that a process with TensorFlow takes in addition to the weights."""


def inspect_saved_model(directory: str, tags: str, trusted: bool, settings: ModelSettings) -> Mapping[str, Signature]:
    """The signatures of a version, read without TensorFlow. Raises what loading would raise, as far as that shows in
    the files."""
    with open_saved_model(directory) as saved:
        return inspect_graph(saved.tagged(tags.split(",")), trusted, settings)


def inspect_graph(graph: MetaGraph, trusted: bool, settings: ModelSettings) -> Mapping[str, Signature]:
    """The signatures of an open file's graph; raises as :func:`inspect_saved_model`. Their shapes are no contract but
    where the config makes them one: it declares inputs itself, or sequences, whose requests become rows."""
    signatures = read_signatures(graph)
    if not trusted:
        check_operators(graph)
    check_signatures(signatures, settings)
    strict = signatures.keys() if settings.sequence_batching else {DEFAULT_SIGNATURE} if settings.input else set()
    return {
        key: replace(found, contract=ShapeContract.ALL if key in strict else found.contract)
        for key, found in signatures.items()
    }


def read_signatures(graph: MetaGraph) -> dict[str, Signature]:
    """Reads the signatures of a graph. FAILED_PRECONDITION if there is none."""
    signatures = graph.signatures()
    if not signatures:
        raise failed_precondition(
            f"{ARTEFACT} has no signatures: save the model with signatures=..., as tf.saved_model.save documents"
        )
    return signatures


def check_signatures(signatures: Mapping[str, Signature], settings: ModelSettings) -> None:
    """Raises INVALID_ARGUMENT if ``input`` or ``output`` of the config contradicts ``serving_default``."""
    own = signatures.get(DEFAULT_SIGNATURE)
    if own is None:
        return
    check_declared(own, settings)
    for kind, declared, specs in (("input", settings.input, own.inputs), ("output", settings.output, own.outputs)):
        known = {spec.name: spec for spec in specs}
        for index, tensor in enumerate(declared):
            _check_sizes(f"{kind}[{index}]", tensor, known[tensor.name], settings.max_batch_size > 0)


def _check_sizes(field: str, declared: ModelTensor, own: TensorSpec, batched: bool) -> None:
    if own.shape is None:
        return
    if batched and own.batch is None:
        raise invalid_argument(f"max_batch_size: the first dimension of {own.name} is fixed")
    dims = own.shape[1:] if batched else own.shape
    fits = len(dims) == len(declared.dims) and all(
        isinstance(dim, SymbolicDim) or wanted in (-1, dim) for dim, wanted in zip(dims, declared.dims, strict=False)
    )
    if not fits:
        shown = [-1 if isinstance(dim, SymbolicDim) else dim for dim in dims]
        raise invalid_argument(f"{field}: {own.name} has the dimensions {shown}, not {list(declared.dims)}")


def not_installed() -> ServingError:
    return ServingError(
        StatusCode.UNIMPLEMENTED,
        f"platform {NAME} needs {LIBRARY}, which is not installed: pip install 'tfs-lite[{EXTRA}]'",
        Reason.NEEDS_EXTRA,
    )


def _open(request: OpenRequest) -> OpenedModel:
    """Refuses to open a version here: SavedModels are opened by :data:`OPEN_VERSION`, in processes of this machine."""
    if find_spec(LIBRARY) is None:
        raise not_installed()
    raise ServingError(StatusCode.UNIMPLEMENTED, f"platform {NAME} runs in processes of the server, not as replicas")


def _reserve(files: VersionFiles, settings: ModelSettings, on_gpu: bool) -> int:
    variables = os.path.join(files.directory, "variables")
    return _size(variables) * 6 // 5 + PROCESS_BYTES


def _size(directory: str) -> int:
    """Bytes of the files in a directory; 0 without it."""
    try:
        with os.scandir(directory) as found:
            return sum(entry.stat().st_size for entry in found if entry.is_file())
    except FileNotFoundError:
        return 0


PLATFORM = Platform(
    NAME,
    ARTEFACT,
    lambda files: ARTEFACT in files.names,
    _open,
    reserve=_reserve,
    extra=EXTRA,
    home="process",
    program=OPEN_VERSION,
    sandbox="required",
    reads=lambda files, paths: [path for path in paths if _READ.fullmatch(path)],
    check_config=lambda directory, settings: inspect_saved_model(directory, SERVE, True, settings),
)
