"""Which signatures a version would have, as far as its config and artefact tell without running anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tfs_lite.adapters.signatures import calls_of, labels_of
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import format_path
from tfs_lite.config.signatures import short_method
from tfs_lite.core.signature import DEFAULT_SIGNATURE, PREDICT_METHOD, DataType, Signature, TensorSpec, format_shape


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    """One signature: ``predict``, ``classify`` or ``regress``, and its tensors by name, such as ``float[-1,3]``. None:
    only the loaded model can tell."""

    name: str
    method: str
    inputs: Mapping[str, str] | None = None
    outputs: Mapping[str, str] | None = None


def check_signatures(own: Signature | None, settings: ModelSettings, directory: str) -> tuple[SignatureCheck, ...]:
    """All signatures of a version. ``own`` is that of its model; None: not known here, so only files of labels are
    looked at. Raises what loading would raise."""
    if own is not None:
        return tuple(_known(key, call.signature) for key, call in calls_of(own, settings, directory).items())
    methods = {DEFAULT_SIGNATURE: PREDICT_METHOD}
    for key, wish in settings.signatures.items():
        labels_of(wish, format_path(("signatures", key)), directory)
        methods[key] = wish.method_name
    return tuple(SignatureCheck(key, short_method(method)) for key, method in methods.items())


def _known(key: str, signature: Signature) -> SignatureCheck:
    inputs = _texts(signature.inputs)
    for name in signature.defaults:
        inputs[name] = f"{inputs[name]} or its default".lstrip()
    return SignatureCheck(key, short_method(signature.method_name), inputs, _texts(signature.outputs))


def _texts(specs: Iterable[TensorSpec]) -> dict[str, str]:
    return {spec.name: _text(spec) for spec in specs}


def _text(spec: TensorSpec) -> str:
    if spec.dtype is DataType.INVALID and spec.shape is None:
        return ""
    return f"{'any' if spec.dtype is DataType.INVALID else spec.dtype.text}{format_shape(spec.shape)}"
