"""Models of onnxruntime: one session each, which any number of threads may run.

An output is given as it comes, whatever the file declares; the log says once which one it is, and what corrects it.
Texts are ``str`` inside onnxruntime, which turns ``bytes`` into their Python notation without a word. Element types
that numpy lacks go in and out as integers of their width.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tfs_lite.adapters.failures import label_of
from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.memory import HeapEnd, trim_heap
from tfs_lite.adapters.onnx.inspection import inspect_model, sizes_need_values
from tfs_lite.adapters.onnx.model_file import ARTEFACT, ModelFile, artefact_path, read_model_file, shown
from tfs_lite.adapters.onnx.session import (
    CUSTOM_OPS,
    check_parameters,
    is_mapped,
    leaves_threads,
    open_session,
    run_error,
)
from tfs_lite.adapters.onnx.signature import ELEMENT_TYPES, NOT_IN_NUMPY, declares, named_sizes, signature_of
from tfs_lite.adapters.opening import NeedsProcess, OpenRequest, Platform, VersionFiles
from tfs_lite.adapters.results import DEPENDS, dependent_output
from tfs_lite.adapters.signatures import check_declared
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.loader import LoadPhase
from tfs_lite.core.manifest import open_plain
from tfs_lite.core.signature import (
    DEFAULT_SIGNATURE,
    DataType,
    ShapeContract,
    Signature,
    SymbolicDim,
    Tensor,
    TensorSpec,
    common_batch,
    find_signature,
    format_shape,
)
from tfs_lite.core.status import failed_precondition, invalid_argument
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.protocols.dtypes import CONFIG_NAMES, Array, to_numpy

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

NAME = "onnxruntime_onnx"
CONCURRENCY = 64
FIXED_BYTES = 32 << 20
LARGE_BYTES = 256 << 20
"""The size of a model from which on its unload would be felt: onnxruntime frees its weights with the interpreter lock
held, ten megabytes and more in a millisecond."""
logger = logging.getLogger(__name__)
_INTEGERS = {
    dtype: (number, np.dtype(np.uint16 if dtype is DataType.BFLOAT16 else np.uint8))
    for number, dtype in ELEMENT_TYPES.items()
    if dtype in NOT_IN_NUMPY
}
"""Element types that onnxruntime does not exchange with numpy: ONNX's number, and integers of the same width."""


class OnnxModel(LoadedModel):
    """An opened session. Any number of threads may be inside ``run``."""

    def __init__(
        self,
        request: OpenRequest,
        signature: Signature,
        session: InferenceSession,
        resident: int,
        named_sizes: Mapping[str, Sequence[tuple[str, int]]],
    ) -> None:
        """``named_sizes``: the sizes of inputs, by the names that the file has for several of them."""
        super().__init__(request.id, NAME, {DEFAULT_SIGNATURE: signature})
        self._session = session
        self._heap_end = HeapEnd()  # of the thread that has opened the session
        self._resident = resident
        specs = (*signature.inputs, *signature.outputs)
        self._dtypes = {spec.name: spec.dtype for spec in specs}
        self._by_value = any(spec.dtype in _INTEGERS for spec in specs)
        # what an operator refuses is mostly a size or a place that the request has chosen
        self._shapes_were_checked &= not any(_chooses(spec) for spec in signature.inputs)
        self._named_sizes = named_sizes
        self._batched = request.settings.max_batch_size > 0
        self._batch = common_batch(signature)
        self._declared = signature.outputs
        self._undeclared = set[str]()  # outputs that the log has named

    @property
    def concurrency(self) -> int:
        return CONCURRENCY

    def look_for_rows(self) -> None:
        """Runs made-up inputs of one row and of two. If each output has a row for each of them, calls may share runs
        from the first on, and never do so if the first row is answered differently beside the second; where runs fail,
        nothing is known. Before the first run."""
        signature = self._signatures[DEFAULT_SIGNATURE]
        output = dependent_output(self._id, signature, self._run)
        if output is None:
            return
        found = replace(signature, contract=ShapeContract.ROWS)
        if output:
            logger.warning(DEPENDS, self._id, shown(output))
            found = replace(signature, conditions=read_conditions((), (), complete=False))
        self._signatures = {DEFAULT_SIGNATURE: found}

    def _run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return cast("Mapping[str, Array]", self.compute("", inputs, ()))

    def compute(self, signature: str, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, object]:
        names = list(outputs or find_signature(self.signatures, signature).output_names)
        feeds = {name: _texts(name, array) if array.dtype == object else array for name, array in inputs.items()}
        try:
            results = self._values(names, feeds) if self._by_value else self._session.run(names, feeds)
        except Exception as error:
            failure = self._explained(run_error(error), inputs)
        else:
            return {name: _bytes(result) for name, result in zip(names, results, strict=True)}
        raise failure

    def to_arrays(
        self, declared: Signature, inputs: Mapping[str, Tensor], results: Mapping[str, object]
    ) -> dict[str, Tensor]:
        found = cast("dict[str, Tensor]", results)
        rows = None if self._batch is None else next((array.shape[0] for array in inputs.values()), None)
        for spec in self._declared:
            array = found.get(spec.name)
            if array is not None and not declares(spec, array.shape, rows) and spec.name not in self._undeclared:
                self._undeclared.add(spec.name)
                self._note_undeclared(spec, array.shape, inputs)
        return found

    def _note_undeclared(self, spec: TensorSpec, shape: tuple[int, ...], inputs: Mapping[str, Tensor]) -> None:
        """Logs what the config would have to say. Sizes that the request has chosen may be others the next time."""
        chosen = {
            size
            for one in self.signatures[DEFAULT_SIGNATURE].inputs
            for dim, size in zip(one.shape or (), inputs[one.name].shape, strict=False)
            if isinstance(dim, SymbolicDim)
        }
        sizes = shape[1 if self._batched else 0 :]
        dims = ", ".join("-1" if size in chosen or not size else str(size) for size in sizes)
        dtype = CONFIG_NAMES.get(spec.dtype, "...")
        field = f'output {{ name: "{shown(spec.name)}" data_type: {dtype} dims: [ {dims} ] }}'
        logger.warning(
            "%s: output %s came as %s, but %s declares %s; it is served as it comes. Say so in the config: %s",
            self._id,
            shown(spec.name),
            format_shape(shape),
            ARTEFACT,
            format_shape(spec.shape),
            field,
        )

    def _explained(self, error: Exception, inputs: Mapping[str, Array]) -> Exception:
        """The error of a run; INVALID_ARGUMENT if sizes differ that the file gives one name."""
        if not isinstance(error, RuntimeError):
            return error
        for symbol, places in self._named_sizes.items():
            sizes = [(name, inputs[name].shape[axis]) for name, axis in places if axis < inputs[name].ndim]
            other = next(((name, size) for name, size in sizes if size != sizes[0][1]), None)
            if other is not None:
                (first, size), (second, another) = sizes[0], other
                return invalid_argument(
                    f"{label_of(self._id)} failed: {error}; in {ARTEFACT} these sizes have one name, and "
                    f"{shown(symbol)} is {size} in {first} and {another} in {second}"
                )
        return error

    def resident_bytes(self) -> int:
        """Bytes of the weights in the file."""
        return self._resident

    def close(self) -> None:
        with self._heap_end.kept():
            del self._session

    def _values(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        kept = {name: np.asarray(array, order="C") for name, array in feeds.items()}  # the values are views of them
        values = {name: _to_value(array, self._dtypes[name]) for name, array in kept.items()}
        found = self._session.run_with_ort_values(names, values)
        return [_from_value(value, self._dtypes[name]) for name, value in zip(names, found, strict=True)]


def _chooses(spec: TensorSpec) -> bool:
    """Whether requests choose a size of the input, or its values may be places in a table."""
    integers = spec.dtype.name.startswith(("INT", "UINT"))
    return integers or any(isinstance(dim, SymbolicDim) for dim in spec.shape or ())


def _texts(name: str, array: Array) -> Array:
    """Decodes texts. INVALID_ARGUMENT with the place of the first one that is no UTF-8."""
    texts = np.empty(array.shape, object)
    for index, value in np.ndenumerate(array):
        try:
            texts[index] = value.decode()
        except UnicodeDecodeError:
            place = ",".join(map(str, index))
            raise invalid_argument(f"input {name} holds bytes that are no UTF-8 text, at [{place}]") from None
    return texts


def _bytes(result: object) -> Array:
    array: Array = np.asarray(result)
    if array.dtype.kind not in "OU":
        return np.ascontiguousarray(array).reshape(array.shape)
    encoded = np.empty(array.shape, object)
    for index, value in np.ndenumerate(array):
        encoded[index] = value.encode()
    return encoded


def _to_value(array: Array, dtype: DataType) -> OrtValue:
    from onnxruntime import OrtValue

    value: OrtValue
    if dtype in _INTEGERS:
        number, integers = _INTEGERS[dtype]
        value = OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(integers), number)
    else:
        value = OrtValue.ortvalue_from_numpy(array)
    return value


def _from_value(value: OrtValue, dtype: DataType) -> Array:
    if dtype not in _INTEGERS:
        array: Array = value.numpy()
        return array
    size = value.tensor_size_in_bytes()
    copy = bytearray(ctypes.string_at(value.data_ptr(), size) if size else b"")
    return np.frombuffer(copy, to_numpy(dtype)).reshape(value.shape())


def open_onnx(request: OpenRequest) -> OnnxModel:
    """Opens a version. NeedsProcess for a GPU, of which onnxruntime does not give all memory back, and for weights that
    stay mapped."""
    if request.on_gpu:
        raise NeedsProcess("opened in a process: onnxruntime gives all of a GPU's memory back at its end only")
    if is_mapped(request.settings.parameters):
        raise NeedsProcess("opened in a process: a mapped file that is truncated ends the process that has it")
    return open_in_process(request)


def open_in_process(request: OpenRequest) -> OnnxModel:
    import onnxruntime  # before the file is read: without it nothing else matters

    onnxruntime.disable_telemetry_events()  # those of Windows
    path = artefact_path(request.files)
    request.meter.begin(LoadPhase.OPENING)
    model, resident = _inspected(request.files, request.trusted, request.settings)
    signature = _declared(model, request.settings)
    session = open_session(path, request, reserve(request.files, request.settings, request.on_gpu))
    trim_heap()  # of what onnxruntime has parsed
    _check_names("input", signature.input_names, session.get_inputs())
    _check_names("output", signature.output_names, session.get_outputs())
    found = OnnxModel(request, signature, session, resident, named_sizes(model))
    if max(request.batch_rows) > 1 and not sizes_need_values(model):
        found.look_for_rows()
    return found


def inspect_onnx(files: VersionFiles, trusted: bool, settings: ModelSettings) -> tuple[Signature, int]:
    """The signature of a version and the bytes of its weights, without onnxruntime. Errors as those of opening it, as
    far as they show in the file and the config."""
    model, weights = _inspected(files, trusted, settings)
    return _declared(model, settings), weights


def _inspected(files: VersionFiles, trusted: bool, settings: ModelSettings) -> tuple[ModelFile, int]:
    """The file and the bytes of its weights, after all checks but those of the signature."""
    path = artefact_path(files)
    directory = os.path.dirname(path)
    check_parameters(settings.parameters, trusted, directory)
    model = read_model_file(path)
    return model, inspect_model(model, directory, trusted, CUSTOM_OPS in settings.parameters, files.unpacked_bytes)


def check_config(directory: str, settings: ModelSettings) -> Signature:
    """Raises INVALID_ARGUMENT if the config contradicts the model."""
    names = frozenset(name for name in (ARTEFACT,) if os.path.isfile(os.path.join(directory, name)))
    return _declared(read_model_file(artefact_path(VersionFiles(directory, names))), settings)


def _declared(model: ModelFile, settings: ModelSettings) -> Signature:
    signature = signature_of(model, settings)
    check_declared(signature, settings)
    return signature


def _check_names(kind: str, declared: Sequence[str], found: Sequence[Any]) -> None:
    """Raises FAILED_PRECONDITION if onnxruntime reads other names in the file than were inspected."""
    names = [value.name for value in found]
    if list(declared) != names:
        raise failed_precondition(
            f"{ARTEFACT} can be read in two ways: its {kind}s are {list(declared)!s:.200} or {names!s:.200}"
        )


def reserve(files: VersionFiles, settings: ModelSettings, on_gpu: bool) -> int:
    """A session rearranges weights, and has memory of its own besides."""
    return files.unpacked_bytes * 13 // 10 + FIXED_BYTES


def for_a_moment(files: VersionFiles) -> int:
    """Bytes that an opening needs for a moment: onnxruntime holds weights up to three times before a session is open:
    as parsed, as they are, and rearranged."""
    return files.unpacked_bytes * 2


def recognises(files: VersionFiles) -> bool:
    return ARTEFACT in files.names or os.path.isfile(os.path.join(files.directory, ARTEFACT, ARTEFACT))


def _reads(files: VersionFiles, paths: Collection[str]) -> set[str]:
    """The model, and the files of weights: those whose names are in it."""
    artefact = artefact_path(files)
    folder = "" if ARTEFACT in files.names else f"{ARTEFACT}/"
    others = [path for path in paths if path != folder + ARTEFACT]
    if not others:
        return {folder + ARTEFACT}
    with open_plain(artefact) as file:
        content = file.read()
    named = {path for path in others if os.fsencode(path.removeprefix(folder)) in content}
    return {folder + ARTEFACT, *named}


def _apart(request: OpenRequest) -> str:
    if request.files.unpacked_bytes < LARGE_BYTES:
        return ""
    return "opened in a process: onnxruntime would hold up the requests of all models while it frees one of this size"


PLATFORM = Platform(
    NAME,
    ARTEFACT,
    recognises,
    open_onnx,
    apart=_apart,
    reserve=reserve,
    for_a_moment=for_a_moment,
    extra="onnx",
    open_in_process=open_in_process,
    check_config=check_config,
    reads=_reads,
    leaves_threads=leaves_threads,
)
