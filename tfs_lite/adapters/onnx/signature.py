"""The signature of ``model.onnx``: its inputs and outputs, as the file declares them.

Inputs that have a value in the file are left out: onnxruntime uses that value. The batch is the first dimension where
all inputs and outputs share one symbol there, or leave it open; with ``max_batch_size`` it is in any case.
"""

from __future__ import annotations

from dataclasses import replace

from tfs_lite.adapters.onnx.model_file import ARTEFACT, ModelFile, Value, shown
from tfs_lite.config.model import BATCH_SYMBOL, ModelSettings
from tfs_lite.core.signature import DataType, Dim, Signature, SymbolicDim, TensorSpec, format_shape
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
"""By ``TensorProto.DataType``. onnxruntime has no complex numbers, and clients have nothing below a byte."""
NOT_IN_NUMPY = frozenset(
    dtype for dtype in ELEMENT_TYPES.values() if dtype is DataType.BFLOAT16 or dtype.name.startswith("FLOAT8")
)
"""Element types that onnxruntime does not exchange with numpy."""


def signature_of(model: ModelFile, settings: ModelSettings) -> Signature:
    """FAILED_PRECONDITION for an input or output that is no tensor that can be sent; INVALID_ARGUMENT if the config
    wants batches and a first dimension is fixed."""
    inputs = tuple(_spec("input", value) for value in model.inputs)
    outputs = tuple(_spec("output", value) for value in model.outputs)
    if settings.max_batch_size > 0:
        batch = SymbolicDim(BATCH_SYMBOL, settings.max_batch_size)
        inputs = tuple(_batched(spec, batch, "input") for spec in inputs)
        outputs = tuple(_batched(spec, batch, "output") for spec in outputs)
    elif all(value.dims and value.dims[0] is None for value in (*model.inputs, *model.outputs)):
        batch = SymbolicDim(BATCH_SYMBOL)
        inputs = tuple(_batched(spec, batch, "input") for spec in inputs)
        outputs = tuple(_batched(spec, batch, "output") for spec in outputs)
    types = {spec.dtype for spec in inputs}
    if DataType.STRING in types and types & NOT_IN_NUMPY:
        raise failed_precondition(
            f"{ARTEFACT} takes texts and {(types & NOT_IN_NUMPY).pop().text} at once, which onnxruntime in Python "
            "does not: export it with float inputs"
        )
    return Signature(inputs, outputs)


def _spec(kind: str, value: Value) -> TensorSpec:
    dtype = ELEMENT_TYPES.get(value.dtype)
    if value.kind != "tensor" or dtype is None:
        what = value.kind if value.kind != "tensor" else f"a tensor of element type {value.dtype}"
        hint = "; export a scikit-learn model with options={'zipmap': False}" if value.kind == "a sequence" else ""
        raise failed_precondition(f"{kind} {shown(value.name)} of {ARTEFACT} is {what}, which cannot be served{hint}")
    if value.dims is None:
        return TensorSpec(value.name, dtype)
    dims: list[Dim] = [
        dim if isinstance(dim, int) else SymbolicDim(dim or f"{value.name}.{axis}")
        for axis, dim in enumerate(value.dims)
    ]
    return TensorSpec(value.name, dtype, tuple(dims))


def _batched(spec: TensorSpec, batch: SymbolicDim, kind: str) -> TensorSpec:
    if spec.shape is None:
        return spec
    if not spec.shape or isinstance(spec.shape[0], int):
        raise invalid_argument(
            f"max_batch_size of the config: {kind} {shown(spec.name)} of {ARTEFACT} has the shape "
            f"{format_shape(spec.shape)}, "
            "whose first dimension is no batch; export it with a dynamic "
            "one, or leave max_batch_size out"
        )
    return replace(spec, shape=(batch, *spec.shape[1:]))
