"""Triton's ``model_warmup``: runs that every instance of a version makes before the version becomes available.

    sample of the config -> a row of each input (zeros, random, or a file in ``BASE/warmup/``) -> ``batch_size`` copies
    -> the checks of live requests -> ``Model.run`` of each instance, ``count`` times

No scheduler runs yet, so nothing is added: the controls and states that a model of sequences takes in addition to the
client's inputs have to be in the sample.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.config.model_warmup import WARMUP_FOLDER, ModelWarmup, ModelWarmupInput
from tfs_lite.core.manifest import open_plain
from tfs_lite.core.model import Model
from tfs_lite.core.signature import (
    DEFAULT_SIGNATURE,
    DataType,
    SymbolicDim,
    TensorSpec,
    check_input_names,
    find_signature,
    format_shape,
)
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import FLOATING, Array, to_numpy
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.protocols.v2.tensors import decode_raw, name_of

MAX_TEXT_BYTES = 256 << 20
"""The limit of a file with texts; a file with numbers is read as far as it is needed."""
SEED = 0
"""Always the same, so that a version that was loaded once can be loaded again."""
_LENGTH = struct.Struct("<I")


def warm_models(models: Sequence[Model], request: OpenRequest) -> None:
    """Runs every sample of the config on every model, on the caller's thread, which has the models to itself.

    Raises ServingError, ``failed to run warmup sample '<name>'`` with the reason: INVALID_ARGUMENT if the sample does
    not fit the model or its file is missing, outside of the folder or too short, UNAVAILABLE if the file cannot be
    read, and what the model raises.
    """
    for index, sample in enumerate(request.settings.model_warmup):
        if not sample.batch_size:
            continue
        try:
            inputs = _inputs(models[0], sample, request)
            for model in models:
                for _ in range(sample.count):
                    _run(model, inputs)
        except ServingError as error:
            name = sample.name or f"model_warmup[{index}]"
            raise ServingError(error.code, f"failed to run warmup sample '{name}': {error};") from None


def _run(model: Model, inputs: Mapping[str, Array]) -> None:
    """INTERNAL if it leaves out an output that its signature has."""
    if model.has_item_steps:
        prepared = model.preprocess(DEFAULT_SIGNATURE, inputs, None)
        found = model.postprocess(DEFAULT_SIGNATURE, model.run(DEFAULT_SIGNATURE, prepared, ()), None)
    else:
        found = model.run(DEFAULT_SIGNATURE, inputs, ())
    for name in find_signature(model.signatures, DEFAULT_SIGNATURE).output_names:
        if name not in found:
            text = f"it did not return output {name}; it returned: {', '.join(sorted(found)) or 'nothing'}"
            raise ServingError(StatusCode.INTERNAL, text)


def _inputs(model: Model, sample: ModelWarmup, request: OpenRequest) -> Mapping[str, Array]:
    """All rows of all inputs, checked as those of a client are."""
    signature = find_signature(model.signatures, DEFAULT_SIGNATURE)
    check_input_names(signature, sample.inputs)
    folder = os.path.join(os.path.dirname(os.path.abspath(request.files.directory)), WARMUP_FOLDER)
    specs = {spec.name: spec for spec in signature.inputs}
    batched = request.settings.max_batch_size > 0
    rows = {
        name: _rows(_row(name, tensor, folder), specs[name], sample.batch_size, batched)
        for name, tensor in sample.inputs.items()
    }
    return call_inputs(signature, Run(DEFAULT_SIGNATURE, rows))


def _rows(row: Array, spec: TensorSpec, copies: int, batched: bool) -> Array:
    """The copies of ``row``, which may have a batch dimension or not, along the batch. ``batched`` decides where the
    model does not declare its shapes. INVALID_ARGUMENT for several copies without a batch."""
    lacks = batched if spec.shape is None else len(spec.shape) == row.ndim + 1
    rows = row[np.newaxis] if lacks else row
    if copies == 1:
        return rows
    if not rows.ndim or not (lacks or (spec.shape and isinstance(spec.shape[0], SymbolicDim))):
        raise invalid_argument(f"input {spec.name} of shape {format_shape(spec.shape)} takes no batch of {copies}")
    return np.repeat(rows, copies, 0) if rows.shape[0] == 1 else np.concatenate([rows] * copies)


def _row(name: str, tensor: ModelWarmupInput, folder: str) -> Array:
    """One row, in the shape of its dims."""
    if tensor.input_data_file is not None:
        return _from_file(name, tensor, folder, tensor.input_data_file)
    if tensor.data_type is DataType.STRING:
        return np.full(tensor.dims, b"", object)
    dtype = to_numpy(tensor.data_type)
    if tensor.random_data is None:
        return np.zeros(tensor.dims, dtype)
    generator = np.random.default_rng(SEED)
    if tensor.data_type in FLOATING:
        return generator.random(tensor.dims, np.float32).astype(dtype)
    return generator.integers(0, 2, tensor.dims).astype(dtype)  # whole numbers are often indices: 0 and 1 are good ones


def _from_file(name: str, tensor: ModelWarmupInput, folder: str, file: str) -> Array:
    count = int(np.prod(tensor.dims, dtype=np.int64))
    if tensor.data_type is DataType.STRING:
        data = _read(folder, file, MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise invalid_argument(f"{WARMUP_FOLDER}/{file} is larger than {MAX_TEXT_BYTES} bytes")
        data = _first_texts(data, count)
    else:
        data = _read(folder, file, count * to_numpy(tensor.data_type).itemsize)
    try:
        return decode_raw(name_of(tensor.data_type), tensor.dims, data, name)
    except ServingError as error:
        raise ServingError(error.code, f"{WARMUP_FOLDER}/{file}: {error}") from None


def _first_texts(data: bytes, count: int) -> bytes:
    """The part of the file with the first ``count`` texts; all of it if it has fewer."""
    end = 0
    for _ in range(count):
        if len(data) - end < _LENGTH.size:
            return data
        end += _LENGTH.size + _LENGTH.unpack_from(data, end)[0]
    return data[:end]


def _read(folder: str, file: str, size: int) -> bytes:
    """Reads at most ``size`` bytes of the file, which has to be below the folder after links have been followed."""
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(folder, file))
    if os.path.commonpath((root, path)) != root:
        raise invalid_argument(f"{WARMUP_FOLDER}/{file} is a link that leads out of the folder")
    if not os.path.isfile(path):
        raise invalid_argument(f"there is no file {WARMUP_FOLDER}/{file} beside the versions")
    try:
        with open_plain(path) as source:
            return source.read(size)
    except OSError as error:
        raise ServingError(StatusCode.UNAVAILABLE, f"{WARMUP_FOLDER}/{file} cannot be read: {error.strerror}") from None
