"""Messages of TensorFlow Serving <-> the values of ``core``: model specs, signatures, states, statuses.

Both ends use it: the server writes what the client reads, so each pair of functions here is the other's inverse.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from tfs_lite.core.servable import ModelRef, VersionState, VersionStatus
from tfs_lite.core.signature import DataType, Dim, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import ServingError, Status, StatusCode, invalid_argument
from tfs_lite.protocols.messages import (
    GetModelStatusResponse,
    Message,
    ModelSpec,
    ModelVersionStatus,
    SignatureDef,
    SignatureDefMap,
    StatusProto,
    TensorInfo,
)
from tfs_lite.protocols.tensorflow import tensor_proto

_DATA_TYPES = frozenset(int(dtype) for dtype in DataType)


def parse(message_class: Any, data: bytes) -> Message:
    """The message in ``data``. Bytes that are no such message raise INVALID_ARGUMENT."""
    try:
        return message_class.FromString(data)
    except DecodeError:
        name = message_class.DESCRIPTOR.full_name
        raise invalid_argument(f"the request's {len(data)} bytes are not a {name}") from None


def read_model_spec(request: Message, require_name: bool = True) -> ModelRef:
    """The model that ``request.model_spec`` names. INVALID_ARGUMENT without a spec, or without a required name."""
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    spec = request.model_spec
    if require_name and not spec.name:
        raise invalid_argument("ModelSpec has no name specified")
    choice = spec.WhichOneof("version_choice")
    return ModelRef(
        name=spec.name,
        version=spec.version.value if choice == "version" else None,
        label=spec.version_label if choice == "version_label" else None,
        signature=spec.signature_name,
    )


def model_spec(ref: ModelRef) -> Message:
    """The spec of a request, or of an answer (which always has a version and never a label)."""
    spec = ModelSpec(name=ref.name, signature_name=ref.signature)
    if ref.version is not None:
        spec.version.value = ref.version
    elif ref.label is not None:
        spec.version_label = ref.label
    return spec


def status_proto(status: Status) -> Message:
    return StatusProto(error_code=status.code, error_message=status.message)


def read_status(proto: Message) -> Status:
    """The status; codes that are not canonical count as UNKNOWN."""
    try:
        return Status(StatusCode(proto.error_code), proto.error_message)
    except ValueError:
        return Status(StatusCode.UNKNOWN, proto.error_message)


def model_status(versions: Iterable[VersionStatus]) -> Message:
    """A GetModelStatusResponse, in the order given."""
    return GetModelStatusResponse(
        model_version_status=[
            ModelVersionStatus(version=item.version, state=item.state, status=status_proto(item.status))
            for item in versions
        ]
    )


def read_model_status(response: Message) -> list[VersionStatus]:
    """The versions of a GetModelStatusResponse, in its order."""
    return [
        VersionStatus(item.version, VersionState(item.state), read_status(item.status))
        for item in response.model_version_status
    ]


def status_rows(versions: Iterable[VersionStatus]) -> list[dict[str, Any]]:
    """The versions of a GetModelStatusResponse as REST shows them: original names, 64-bit integers as strings."""
    return [
        {
            "version": str(item.version),
            "state": item.state.name,
            "status": {"error_code": item.status.code.name, "error_message": item.status.message},
        }
        for item in versions
    ]


def status_json(versions: Iterable[VersionStatus]) -> str:
    """A GetModelStatusResponse as REST shows it. Those who wait for a version ask every few milliseconds: it is made
    without the message, which takes several times as long."""
    return json.dumps({"model_version_status": status_rows(versions)}, indent=1)


def signature_def_map(signatures: Mapping[str, Signature]) -> Message:
    """The answer of GetModelMetadata for a model's signatures."""
    return SignatureDefMap(signature_def={key: _signature_def(value) for key, value in signatures.items()})


def read_signature_def_map(message: Message) -> dict[str, Signature]:
    """The signatures of a SignatureDefMap, tensors by name: a map has no order of its own.

    Defaults that cannot be values of a :class:`Signature` (several rows, types that only TensorFlow has) are left out.
    """
    return {key: _read_signature(value) for key, value in message.signature_def.items()}


def _signature_def(signature: Signature) -> Message:
    inputs = {spec.name: spec for spec in signature.inputs}
    return SignatureDef(
        inputs={name: _tensor_info(spec) for name, spec in inputs.items()},
        outputs={spec.name: _tensor_info(spec) for spec in signature.outputs},
        method_name=signature.method_name,
        defaults={name: _default(value, inputs[name]) for name, value in signature.defaults.items()},
    )


def _read_signature(definition: Message) -> Signature:
    inputs = _read_infos(definition.inputs)
    found = {spec.name: _read_default(definition.defaults, spec) for spec in inputs}
    defaults = {name: value for name, value in found.items() if value is not None}
    return Signature(inputs, _read_infos(definition.outputs), definition.method_name, defaults)


def _default(value: Tensor, spec: TensorSpec) -> Message:
    """The default as a request of one row would send it."""
    array = np.asarray(value)
    return tensor_proto.encode(array[np.newaxis] if spec.batch is not None else array)


def _read_default(defaults: Mapping[str, Message], spec: TensorSpec) -> Tensor | None:
    if spec.name not in defaults:
        return None
    try:
        array = tensor_proto.decode(defaults[spec.name], spec.name)
    except ServingError:
        return None
    if spec.batch is None:
        return array
    return array.reshape(array.shape[1:]) if array.shape[:1] == (1,) else None


def _tensor_info(spec: TensorSpec) -> Message:
    info = TensorInfo(name=spec.tensor or f"{spec.name}:0", dtype=spec.dtype)
    if spec.shape is None:
        info.tensor_shape.unknown_rank = True
        return info
    info.tensor_shape.SetInParent()
    for dim in spec.shape:
        info.tensor_shape.dim.add(size=dim if isinstance(dim, int) else -1)
    return info


def _read_infos(infos: Mapping[str, Message]) -> tuple[TensorSpec, ...]:
    return tuple(_read_info(name, infos[name]) for name in sorted(infos))


def _read_info(name: str, info: Message) -> TensorSpec:
    dtype = DataType(info.dtype) if info.dtype in _DATA_TYPES else DataType.INVALID
    if info.tensor_shape.unknown_rank:
        return TensorSpec(name, dtype)
    dims: list[Dim] = [
        dim.size if dim.size >= 0 else SymbolicDim(f"{name}_{axis}") for axis, dim in enumerate(info.tensor_shape.dim)
    ]
    return TensorSpec(name, dtype, tuple(dims))
