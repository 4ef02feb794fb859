"""The messages between the server and a process with a model.

A request and its answer have the same form; how their tensors travel is the connection's (``tensor_channel``).

    number, what, signature, outputs, tensors, seconds left    RUN, PREPROCESS, POSTPROCESS
    number, what, "", [], [], what is needed for it            OPEN, DESCRIBE, PING, DRAIN, CLOSE
    number, ANSWER, "", [], tensors, [0, detail, ongoing]      or, without tensors, [code, message, ongoing]

The detail of an answer to a replica's RUN is how many seconds the model took.

A process of this machine gets the memory along with its first messages:

    [OPEN, {...}] + inputs, outputs (memory)                        answer: [0, description] or
                                                                    [code, message, detail, reason]
    [ITEM_CHANNELS, n] + n times (socket, inputs, outputs), if the model has item steps; no answer

Whoever receives a message does not trust it: it is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from tfs_lite.core.model import Model
from tfs_lite.core.signature import (
    DataType,
    Dim,
    ShapeContract,
    Signature,
    SizeConditions,
    SymbolicDim,
    Tensor,
    TensorSpec,
)
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.protocols.dtypes import Array, from_numpy, to_numpy
from tfs_lite.workers.channel import ProtocolError
from tfs_lite.workers.tensors import read_dtype

OPEN, ITEM_CHANNELS, RUN, PREPROCESS, POSTPROCESS, CLOSE = (
    "open",
    "item_channels",
    "run",
    "preprocess",
    "postprocess",
    "close",
)
DESCRIBE, PING, DRAIN = "describe", "ping", "drain"
PLACED = "placed"
"""The state of a replica that nobody has asked to open a model."""
"""For replicas."""
ANSWER = "answer"
BUSY = Status(StatusCode.RESOURCE_EXHAUSTED, "busy")
"""The failure of a run that a replica has not begun, because it has as many requests as it takes. No model's failure
has this status."""
MAX_TEXT = 8192
REASONS = frozenset(
    {Reason.FILES_REFUSED, Reason.FILES_CHANGED, Reason.NO_PLATFORM, Reason.NEEDS_EXTRA, Reason.NEEDS_TRUST}
)
"""The reasons that the process of a model may give for a failure to open it: they say something of its files alone."""
"""Characters of a failure's message; the child cuts longer ones."""


class Message(NamedTuple):
    """A request, or the answer of the same ``number``, apart from its tensors."""

    number: int
    what: str
    signature: str = ""
    wanted: Sequence[str] = ()
    extra: object = None


def read_message(raw: list[Any]) -> Message:
    """The message in these six fields, of which the fifth is for the tensors. ProtocolError if it is none."""
    number, what, signature, wanted, _, extra = raw
    if type(number) is not int or not isinstance(what, str) or not isinstance(signature, str):
        raise ProtocolError("no message")
    if not isinstance(wanted, list):
        raise ProtocolError("no names of outputs")
    for name in wanted:
        if not isinstance(name, str):
            raise ProtocolError("no names of outputs")
    return Message(number, what, signature, wanted, extra)


def answer_to(number: int, detail: object = None, ongoing: int = 0) -> Message:
    return Message(number, ANSWER, extra=(int(StatusCode.OK), detail, ongoing))


def failure_of(number: int, error: ServingError, ongoing: int = 0) -> Message:
    return Message(number, ANSWER, extra=(*plain_failure(error.code, error.status.message), ongoing))


def read_answer(answer: Message, number: int) -> tuple[object, int]:
    """The detail and ``ongoing`` of the answer to request ``number``. Raises the failure that it is; ProtocolError if
    it is no answer to that request."""
    extra = answer.extra
    if answer.what != ANSWER or answer.number != number or not isinstance(extra, list) or len(extra) != 3:
        raise ProtocolError("no answer to the question")
    code, detail, ongoing = extra
    if type(ongoing) is not int or ongoing < 0:
        raise ProtocolError("no answer to the question")
    if type(code) is int and code == StatusCode.OK:
        return detail, ongoing
    raise read_failure(code, detail)


@dataclass(frozen=True, slots=True)
class Description:
    """The child's description of the model that it has opened. ``private_bytes``: the main memory that only this
    process has; pages that it shares with others do not count. ``reason``: see WorkerStatus."""

    platform: str
    signatures: Mapping[str, Signature]
    has_item_steps: bool
    resident_bytes: int | None
    private_bytes: int | None = None
    reason: str = ""


def describe_model(model: Model, resident_bytes: int | None, private_bytes: int | None = None) -> dict[str, object]:
    """The model's description as it is sent in a message."""
    return {
        "platform": model.platform,
        "signatures": {key: _plain_signature(signature) for key, signature in model.signatures.items()},
        "has_item_steps": bool(model.has_item_steps),
        "resident_bytes": resident_bytes,
        "private_bytes": private_bytes,
        "reason": model.worker.reason[:MAX_TEXT],
    }


def read_description(raw: object) -> Description:
    """Reads what :func:`describe_model` made. ProtocolError if it is something else."""
    try:
        fields = cast(dict[str, Any], raw)
        return Description(
            _text(fields["platform"]),
            {_text(key): _read_signature(value) for key, value in fields["signatures"].items()},
            fields["has_item_steps"] is True,
            _size_or_none(fields["resident_bytes"]),
            _size_or_none(fields["private_bytes"]),
            _text(fields["reason"])[:MAX_TEXT],
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise ProtocolError("no description of a model") from None


def plain_failure(code: StatusCode, message: str) -> tuple[int, str]:
    """A failure as it is sent in a message: long texts are cut, and what cannot be encoded is replaced."""
    return int(code), cut(message)


def cut(text: str) -> str:
    """A text as it is sent in a message."""
    return text[:MAX_TEXT].encode(errors="replace").decode()


def read_failure(code: object, message: object) -> ServingError:
    """The failure. ProtocolError unless it is a code other than OK, and a message."""
    known = type(code) is int and code != StatusCode.OK and code in StatusCode._value2member_map_
    if not known or not isinstance(message, str) or len(message) > MAX_TEXT:
        raise ProtocolError("no status of a failure")
    return ServingError(StatusCode(cast(int, code)), message)


def plain_refusal(error: ServingError) -> tuple[int, str, str, str]:
    """The failure of an opening as it is sent in a message: code, message, detail for the log, and the reason's name if
    it is one of :data:`REASONS`."""
    reason = error.status.reason
    name = reason.name if reason in REASONS else ""
    return *plain_failure(error.code, error.status.message), cut(error.detail), name


def read_refusal(answer: object) -> ServingError:
    """The failure that :func:`plain_refusal` made. ProtocolError if it is something else."""
    if not isinstance(answer, list) or len(answer) != 4 or not all(isinstance(text, str) for text in answer[2:]):
        raise ProtocolError("no description of a model")
    code, message, detail, name = answer
    status = read_failure(code, message).status
    reason = next((each for each in REASONS if each.name == name), None)
    failure = ServingError(status.code, status.message, reason)
    failure.detail = detail[:MAX_TEXT]
    return failure


def _plain_signature(signature: Signature) -> list[object]:
    return [
        [_plain_spec(spec) for spec in signature.inputs],
        [_plain_spec(spec) for spec in signature.outputs],
        signature.method_name,
        {name: _plain_tensor(value) for name, value in signature.defaults.items()},
        sorted(signature.optional),
        _plain_conditions(signature.conditions),
        signature.contract.value,
    ]


def _read_signature(raw: Any) -> Signature:
    inputs, outputs, method_name, defaults, optional, conditions, contract = raw
    return Signature(
        tuple(map(_read_spec, inputs)),
        tuple(map(_read_spec, outputs)),
        _text(method_name),
        {_text(name): _read_tensor(value) for name, value in defaults.items()},
        frozenset(map(_text, optional)),
        _read_conditions(conditions),
        ShapeContract(contract),
    )


def _plain_conditions(conditions: SizeConditions | None) -> list[object] | None:
    return None if conditions is None else [conditions.axes, conditions.texts, conditions.complete]


def _read_conditions(raw: Any) -> SizeConditions | None:
    if raw is None:
        return None
    axes, texts, complete = raw
    places = [(_text(name), _size(axis)) for name, axis in axes]
    return read_conditions(places, list(map(_text, texts)), complete is True)


def _plain_spec(spec: TensorSpec) -> list[object]:
    shape = None if spec.shape is None else [_plain_dim(dim) for dim in spec.shape]
    return [spec.name, int(spec.dtype), shape, spec.tensor]


def _read_spec(raw: Any) -> TensorSpec:
    name, dtype, shape, tensor = raw
    declared = DataType.INVALID if dtype == DataType.INVALID else read_dtype(dtype)
    return TensorSpec(_text(name), declared, None if shape is None else tuple(map(_read_dim, shape)), _text(tensor))


def _plain_dim(dim: Dim) -> object:
    return [dim.symbol, dim.maximum] if isinstance(dim, SymbolicDim) else int(dim)


def _read_dim(raw: Any) -> Dim:
    if not isinstance(raw, list):
        return _size(raw)
    symbol, maximum = raw
    return SymbolicDim(_text(symbol), None if maximum is None else _size(maximum))


def _plain_tensor(tensor: Tensor) -> list[object]:
    array = np.asarray(tensor)
    dtype = from_numpy(array.dtype)
    if dtype is DataType.STRING:
        return [int(dtype), array.shape, [bytes(text) for text in array.ravel().tolist()]]
    return [int(dtype), array.shape, array.astype(to_numpy(dtype)).tobytes()]


def _read_tensor(raw: Any) -> Array:
    number, shape, body = raw
    dtype = read_dtype(number)
    if dtype is not DataType.STRING:
        return np.frombuffer(body, to_numpy(dtype)).reshape(shape).copy()
    found: Array = np.empty(len(body), dtype=object)
    found[:] = [bytes(memoryview(text)) for text in body]
    return found.reshape(shape)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _size_or_none(value: Any) -> int | None:
    return None if value is None else _size(value)


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value
