"""Classify, Regress and MultiInference: checks of signatures, their wanted outputs, and results made of the outputs.

Features feed inputs by name, so a signature may have one input or more. Only the outputs with the known names are used:
``classes`` (labels) and ``scores`` for classify, ``outputs`` for regress; a model that does not declare its outputs has
them in its answer. Numbers may be of any floating type; answers have float.

Everything that does not fit raises INVALID_ARGUMENT. Results are written as bytes and parsed, because adding thousands
of small messages one by one takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import (
    CLASSIFY_METHOD,
    DEFAULT_SIGNATURE,
    METHODS,
    REGRESS_METHOD,
    DataType,
    Signature,
    format_shape,
    known_signatures,
    named,
)
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import FLOATING, Array, from_numpy
from tfs_lite.protocols.messages import ClassificationResult, Message, RegressionResult
from tfs_lite.protocols.tensorflow.serving import read_model_spec
from tfs_lite.protocols.varints import encode_varint

CLASSES = "classes"
SCORES = "scores"
OUTPUTS = "outputs"


_CLASSIFICATION = b"\x0a"  # ClassificationResult.classifications
_CLASS = b"\x0a"  # Classifications.classes
_LABEL = b"\x0a"  # Class.label
_SCORE = b"\x15"  # Class.score
_REGRESSION = b"\x0a\x05\x0d"  # RegressionResult.regressions, five bytes: Regression.value


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a task: classify or regress. ``field`` is the result's name in the answer of MultiInference."""

    method_name: str
    field: str
    check: Callable[[Signature, bool], tuple[str, ...]]
    result: Callable[[Mapping[str, Any], int], Message]


def find_inference_signature(signatures: Mapping[str, Signature], key: str) -> Signature:
    """The signature under ``key`` (empty: the default)."""
    key = key or DEFAULT_SIGNATURE
    try:
        return signatures[key]
    except KeyError:
        raise invalid_argument(
            f"No signature was found with the name: {key:.2000}. {known_signatures(signatures)}"
        ) from None


def check_predict_method(signature: Signature) -> None:
    """Checks the method of a signature, for servers that check method names: Predict runs signatures of every known
    method."""
    known = METHODS.values()
    if signature.method_name not in known:
        raise named(
            invalid_argument(
                f"Expected prediction signature method_name to be one of {', '.join(known)}. "
                f"Was: {signature.method_name or 'empty'}"
            ),
            signature.model,
        )


def check_classify_signature(signature: Signature, check_method_name: bool = False) -> tuple[str, ...]:
    """The outputs to request from a signature for classify; none if it does not declare its outputs."""
    return _checked_outputs(signature, check_method_name, CLASSIFY_METHOD, "classification", _classify_outputs)


def check_regress_signature(signature: Signature, check_method_name: bool = False) -> tuple[str, ...]:
    """The same for regress."""
    return _checked_outputs(signature, check_method_name, REGRESS_METHOD, "regression", _regress_outputs)


def classification_result(outputs: Mapping[str, Array], count: int) -> Message:
    """A ClassificationResult of ``count`` rows. Labels are empty without ``classes``, scores 0 without ``scores``;
    both are [batch, number of classes]."""
    names = _classify_outputs(outputs)
    labels = _checked_classes(outputs[CLASSES], count) if CLASSES in names else None
    scores = _checked_scores(outputs[SCORES], count) if SCORES in names else None
    if labels is not None and scores is not None and labels.shape != scores.shape:
        raise invalid_argument(
            f"Tensors class and score should match in dim_size(1). Got {labels.shape[1]} vs. {scores.shape[1]}"
        )
    found = labels if labels is not None else scores
    width = 0 if found is None else found.shape[1]
    heads = [_CLASS + b"\x05" + _SCORE] * (count * width) if labels is None else _heads(labels)
    numbers = np.zeros((count, width), np.float32) if scores is None else scores
    return ClassificationResult.FromString(_rows(heads, numbers))


def regression_result(outputs: Mapping[str, Array], count: int) -> Message:
    """A RegressionResult of ``count`` rows, from ``outputs`` of shape [batch] or [batch, 1]."""
    (name,) = _regress_outputs(outputs)
    values = outputs[name]
    if values.ndim != 1 and (values.ndim != 2 or values.shape[1] != 1):
        raise invalid_argument(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] "
            f"but got {format_shape(values.shape)}"
        )
    if values.shape[0] != count:
        raise invalid_argument(f"Input batch size did not match output batch size: {count} vs. {values.shape[0]}")
    if from_numpy(values.dtype) not in FLOATING:
        raise invalid_argument(f"Expected output Tensor of DT_FLOAT. Got: {_name(values)}")
    data = np.empty((count, len(_REGRESSION) + 4), np.uint8)
    data[:, :-4] = np.frombuffer(_REGRESSION, np.uint8)
    data[:, -4:] = _float_bytes(values)
    return RegressionResult.FromString(data.tobytes())


def arrays_of(result: Message) -> dict[str, Array]:
    """A result as arrays by the names of the outputs that it was made of: labels and scores of shape [batch, number of
    classes], or values of shape [batch]. Rows with fewer classes than others are filled up with empty labels and 0."""
    if result.DESCRIPTOR is RegressionResult.DESCRIPTOR:
        return {OUTPUTS: np.array([row.value for row in result.regressions], np.float32)}
    rows = result.classifications
    shape = (len(rows), max((len(row.classes) for row in rows), default=0))
    labels, scores = np.full(shape, b"", object), np.zeros(shape, np.float32)
    for row, found in enumerate(rows):
        for column, each in enumerate(found.classes):
            labels[row, column], scores[row, column] = each.label.encode(), each.score
    return {CLASSES: labels, SCORES: scores}


CLASSIFY = Kind(CLASSIFY_METHOD, "classification_result", check_classify_signature, classification_result)
REGRESS = Kind(REGRESS_METHOD, "regression_result", check_regress_signature, regression_result)


@dataclass(frozen=True, slots=True)
class MultiInferenceTask:
    """One question of a MultiInference request: a signature by its key, and which of its outputs are wanted."""

    key: str
    kind: Kind
    signature: Signature
    outputs: tuple[str, ...]


def first_model_spec(request: Message) -> ModelRef:
    """The model and version for all tasks of a MultiInferenceRequest: those of the first task."""
    if not request.tasks or not request.tasks[0].model_spec.name:
        raise invalid_argument("ModelSpec has no name specified")
    return read_model_spec(request.tasks[0])


def read_tasks(
    request: Message, signatures: Mapping[str, Signature], check_method_names: bool = False
) -> tuple[MultiInferenceTask, ...]:
    """The tasks of a MultiInferenceRequest, in order: one model, each signature once. UNIMPLEMENTED for a method other
    than classify and regress. Versions and labels of later tasks are not looked at."""
    tasks: dict[str, MultiInferenceTask] = {}
    for task in request.tasks:
        _check_model(task.model_spec.name, request.tasks[0].model_spec.name)
        key = task.model_spec.signature_name or DEFAULT_SIGNATURE
        if key in tasks:
            raise named(invalid_argument(f"Duplicate evaluation of signature: {key}"), signatures[key].model)
        if key not in signatures:
            raise invalid_argument(
                f"Requested signature not found in model graph: {key}. {known_signatures(signatures)}"
            )
        kind = _kind(task.method_name)
        tasks[key] = MultiInferenceTask(key, kind, signatures[key], kind.check(signatures[key], check_method_names))
    return tuple(tasks.values())


def _check_model(name: str, first: str) -> None:
    if not name:
        raise invalid_argument("Found ModelSpec with an empty model name")
    if name != first:
        raise invalid_argument(
            f"All tasks of a MultiInferenceRequest must access the same model name: {first}, not {name}"
        )


def _kind(method_name: str) -> Kind:
    for kind in (CLASSIFY, REGRESS):
        if kind.method_name == method_name:
            return kind
    raise ServingError(
        StatusCode.UNIMPLEMENTED,
        f"Unsupported signature method_name: {method_name}. Expected {CLASSIFY_METHOD} or {REGRESS_METHOD}",
    )


def _checked_outputs(
    signature: Signature,
    check_method_name: bool,
    method: str,
    what: str,
    outputs: Callable[[Collection[str]], tuple[str, ...]],
) -> tuple[str, ...]:
    try:
        _check_method(signature, check_method_name, method, what)
        _check_inputs(signature, what)
        return outputs(signature.output_names) if signature.outputs else ()
    except ServingError as error:
        raise named(error, signature.model) from None


def _check_method(signature: Signature, check: bool, expected: str, what: str) -> None:
    if check and signature.method_name != expected:
        raise invalid_argument(
            f"Expected {what} signature method_name to be {expected}. Was: {signature.method_name or 'empty'}"
        )


def _check_inputs(signature: Signature, what: str) -> None:
    if not signature.inputs:
        raise invalid_argument(f"Expected one input Tensor or more: No {what} inputs found in SignatureDef")


def _classify_outputs(names: Collection[str]) -> tuple[str, ...]:
    wanted = tuple(name for name in (CLASSES, SCORES) if name in names)
    if wanted:
        return wanted
    missing = (
        f"Expected classification signature outputs to contain at least one of {CLASSES}, {SCORES}. "
        f"Outputs: {{{','.join(sorted(names))}}}"
    )
    if 1 <= len(names) <= 2:
        raise invalid_argument(missing)
    raise invalid_argument(f"Expected one or two output Tensors, found {len(names)}. {missing}")


def _regress_outputs(names: Collection[str]) -> tuple[str, ...]:
    if OUTPUTS in names:
        return (OUTPUTS,)
    missing = f"No regression outputs found in SignatureDef: {OUTPUTS} is not among {{{','.join(sorted(names))}}}"
    if len(names) == 1:
        raise invalid_argument(missing)
    raise invalid_argument(f"Expected one output Tensor, found {len(names)}. {missing}")


def _checked_classes(classes: Array, count: int) -> Array:
    _check_rank(classes)
    if from_numpy(classes.dtype) is not DataType.STRING:
        raise invalid_argument(f"Expected classes Tensor of DT_STRING. Got: {_name(classes)}")
    _check_rows("classes", classes, count)
    return classes


def _checked_scores(scores: Array, count: int) -> Array:
    _check_rank(scores)
    if from_numpy(scores.dtype) not in FLOATING:
        raise invalid_argument(f"Expected scores Tensor of DT_FLOAT. Got: {_name(scores)}")
    _check_rows("scores", scores, count)
    return scores


def _check_rank(tensor: Array) -> None:
    if tensor.ndim != 2:
        raise invalid_argument(f"Expected Tensor shape: [batch_size num_classes] but got {format_shape(tensor.shape)}")


def _check_rows(name: str, tensor: Array, count: int) -> None:
    if tensor.shape[0] != count:
        raise invalid_argument(f"Expected {name} output batch size of {count}. Got: {tensor.shape[0]}")


def _name(tensor: Array) -> str:
    return f"DT_{from_numpy(tensor.dtype).name}"


def _heads(labels: Array) -> list[bytes]:
    """The bytes before the four bytes of each score. Labels come again and again, so each is written once."""
    flat = labels.ravel().tolist()
    for strange in set(map(type, flat)) - {bytes, str}:
        raise invalid_argument(f"the model answered with a class label of type {strange.__name__}, expected bytes")
    heads = {label: _head(label) for label in set(flat)}
    return [heads[label] for label in flat]


def _head(label: bytes | str) -> bytes:
    try:
        text = label.encode() if isinstance(label, str) else label
        text.decode()
    except UnicodeError:
        raise invalid_argument(f"the model answered with a class label that is no UTF-8 text: {label!r:.40}") from None
    body = _LABEL + encode_varint(len(text)) + text + _SCORE
    return _CLASS + encode_varint(len(body) + 4) + body


def _rows(heads: list[bytes], scores: Array) -> bytes:
    """The bytes of a ClassificationResult: a message for each row, with its heads and scores in turn."""
    count, width = scores.shape
    sizes = np.fromiter(map(len, heads), np.int64, len(heads)) + 4
    data = np.frombuffer(bytearray(b"\0\0\0\0".join([*heads, b""])), np.uint8)
    data[np.cumsum(sizes)[:, np.newaxis] + np.arange(-4, 0)] = _float_bytes(scores)
    classes, start = data.tobytes(), 0
    pieces: list[bytes] = []
    for end in np.cumsum(sizes.reshape(count, width).sum(axis=1)).tolist():
        pieces += (_CLASSIFICATION, encode_varint(end - start), classes[start:end])
        start = end
    return b"".join(pieces)


def _float_bytes(numbers: Array) -> Array:
    """The numbers as little-endian floats: [n, 4] bytes."""
    with np.errstate(over="ignore"):
        return numbers.astype("<f4").reshape(-1, 1).view(np.uint8)
