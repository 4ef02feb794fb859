"""The signature of ``model.onnx``: its inputs and outputs, as the file declares them.

Inputs that have a value in the file are left out: onnxruntime uses that value. The batch is the first dimension where
all inputs and outputs share one symbol there, or leave it open; with ``max_batch_size`` it is in any case.

What onnxruntime checks is checked: ranks and numbers of inputs. It takes all else that a file declares as a hint: the
shapes of outputs, for which the config has the last word, equal names of sizes (all but the batch), and that an input
has no dimension.
"""

from __future__ import annotations

from dataclasses import replace

from tfs_lite.adapters.onnx.model_file import ARTEFACT, SEQUENCE, SEQUENCE_OF_MAPS, ModelFile, Value, shown
from tfs_lite.config.model import BATCH_SYMBOL, ModelSettings
from tfs_lite.core.signature import DataType, Dim, ShapeContract, Signature, SymbolicDim, TensorSpec, format_shape
from tfs_lite.core.status import failed_precondition, invalid_argument

ELEMENT_TYPES = {
    1: DataType.FLOAT,
    2: DataType.UINT8,
    3: DataType.INT8,
    4: DataType.UINT16,
    5: DataType.INT16,
    6: DataType.INT32,
    7: DataType.INT64,
    8: DataType.STRING,
    9: DataType.BOOL,
    10: DataType.HALF,
    11: DataType.DOUBLE,
    12: DataType.UINT32,
    13: DataType.UINT64,
    16: DataType.BFLOAT16,
    17: DataType.FLOAT8_E4M3FN,
    18: DataType.FLOAT8_E4M3FNUZ,
    19: DataType.FLOAT8_E5M2,
    20: DataType.FLOAT8_E5M2FNUZ,
}
"""Element types by ``TensorProto.DataType``."""
_NOT_SERVED = {
    14: "complex64",
    15: "complex128",
    21: "uint4",
    22: "int4",
    23: "float4e2m1",
    24: "float8e8m0",
    25: "uint2",
    26: "int2",
}
NOT_IN_NUMPY = frozenset(
    dtype for dtype in ELEMENT_TYPES.values() if dtype is DataType.BFLOAT16 or dtype.name.startswith("FLOAT8")
)
"""Element types that onnxruntime does not exchange with numpy."""


def signature_of(model: ModelFile, settings: ModelSettings) -> Signature:
    """The signature of a model. FAILED_PRECONDITION for an input or output that is no tensor that can be sent;
    INVALID_ARGUMENT if the config wants batches and a first dimension is fixed."""
    inputs = tuple(_spec("input", value) for value in model.inputs)
    outputs = tuple(_corrected(_spec("output", value), settings) for value in model.outputs)
    if settings.max_batch_size > 0:
        batch = SymbolicDim(BATCH_SYMBOL, settings.max_batch_size)
        inputs = tuple(_batched(spec, batch, "input") for spec in inputs)
        outputs = tuple(_batched(spec, batch, "output") for spec in outputs)
    elif all(value.dims and value.dims[0] is None for value in (*model.inputs, *model.outputs)):
        batch = SymbolicDim(BATCH_SYMBOL)
        inputs = tuple(_batched(spec, batch, "input") for spec in inputs)
        outputs = tuple(_batched(spec, batch, "output") for spec in outputs)
    inputs = _independent(inputs, {spec.batch for spec in (*inputs, *outputs)})
    types = {spec.dtype for spec in inputs}
    if DataType.STRING in types and types & NOT_IN_NUMPY:
        raise failed_precondition(
            f"{ARTEFACT} takes texts and {(types & NOT_IN_NUMPY).pop().text} at once, which onnxruntime in Python "
            "does not: export it with float inputs"
        )
    return Signature(inputs, outputs, contract=ShapeContract.INPUTS)


def declares(spec: TensorSpec, shape: tuple[int, ...], rows: int | None) -> bool:
    """Whether an output of this shape is what the file or the config declares. ``rows``: the size of the batch."""
    if spec.shape is None:
        return True
    return len(spec.shape) == len(shape) and all(
        size == dim if isinstance(dim, int) else axis or rows in (None, size)
        for axis, (dim, size) in enumerate(zip(spec.shape, shape, strict=True))
    )


def named_sizes(model: ModelFile) -> dict[str, list[tuple[str, int]]]:
    """The names that the file has for several sizes of inputs -> (input, axis) of each."""
    places: dict[str, list[tuple[str, int]]] = {}
    for value in model.inputs:
        for axis, dim in enumerate(value.dims or ()):
            if isinstance(dim, str):
                places.setdefault(dim, []).append((value.name, axis))
    return {symbol: found for symbol, found in places.items() if len(found) > 1}


def _independent(inputs: tuple[TensorSpec, ...], firsts: set[str | None]) -> tuple[TensorSpec, ...]:
    """The inputs with a symbol of its own for each size, but for the batch: the one that ``firsts``, the symbols of all
    first dimensions, are. Where a symbol is repeated, the first one keeps it."""
    batch = next(iter(firsts)) if len(firsts) == 1 else None
    taken = set[str]()

    def own(spec: TensorSpec, axis: int, dim: Dim) -> Dim:
        if not isinstance(dim, SymbolicDim) or dim.symbol == batch:
            return dim
        if dim.symbol in taken:
            return replace(dim, symbol=f"{spec.name}.{axis}")
        taken.add(dim.symbol)
        return dim

    return tuple(
        spec
        if spec.shape is None
        else replace(spec, shape=tuple(own(spec, axis, dim) for axis, dim in enumerate(spec.shape)))
        for spec in inputs
    )


def _corrected(spec: TensorSpec, settings: ModelSettings) -> TensorSpec:
    """The output as the config declares it, where that contradicts the file: other ranks, or numbers that are not the
    file's."""
    tensor = next((tensor for tensor in settings.output if tensor.name == spec.name), None)
    if tensor is None:
        return spec
    rows = (-1,) if settings.max_batch_size > 0 else ()
    dims = (*rows, *tensor.dims)
    own: tuple[Dim | None, ...] = spec.shape if spec.shape and len(spec.shape) == len(dims) else (None,) * len(dims)
    shape = (
        known if isinstance(known, SymbolicDim) else SymbolicDim(f"{spec.name}.{axis}") if size == -1 else size
        for axis, (known, size) in enumerate(zip(own, dims, strict=True))
    )
    return replace(spec, shape=tuple(shape))


def _spec(kind: str, value: Value) -> TensorSpec:
    dtype = ELEMENT_TYPES.get(value.dtype)
    if value.kind != "tensor" or dtype is None:
        what = value.kind
        if value.kind == "tensor":
            what = f"a tensor of {_NOT_SERVED.get(value.dtype, f'element type {value.dtype}')}"
        raise failed_precondition(
            f"{kind} {shown(value.name)} of {ARTEFACT} is {what}, which cannot be served{_hint(kind, value)}"
        )
    if value.dims is None or (kind == "input" and not value.dims):
        return TensorSpec(value.name, dtype)
    dims: list[Dim] = [
        dim if isinstance(dim, int) else SymbolicDim(dim or f"{value.name}.{axis}")
        for axis, dim in enumerate(value.dims)
    ]
    return TensorSpec(value.name, dtype, tuple(dims))


def _hint(kind: str, value: Value) -> str:
    if value.kind == SEQUENCE_OF_MAPS and kind == "output":
        return "; export a scikit-learn model with options={'zipmap': False}"
    if value.kind in (SEQUENCE, SEQUENCE_OF_MAPS):
        where = "inputs, and build the sequence" if kind == "input" else "outputs, and take the sequence apart"
        return (
            f": requests and answers have tensors only. Make its tensors {where} in the graph (SequenceAt, Concat...)"
        )
    if value.kind == "an optional value":
        return ": make it a tensor that is always there"
    if value.kind == "tensor" and value.dtype in _NOT_SERVED:
        return ": add a Cast to float or int8 in the graph"
    return ""


def _batched(spec: TensorSpec, batch: SymbolicDim, kind: str) -> TensorSpec:
    if spec.shape is None:
        return spec
    if not spec.shape or isinstance(spec.shape[0], int):
        raise invalid_argument(
            f"max_batch_size of the config: {kind} {shown(spec.name)} of {ARTEFACT} has the shape "
            f"{format_shape(spec.shape)}, "
            "whose first dimension is no batch; export it with a dynamic "
            f"one, {'say in the config what comes (output[].dims), ' if kind == 'output' else ''}"
            "or leave max_batch_size out"
        )
    return replace(spec, shape=(batch, *spec.shape[1:]))
