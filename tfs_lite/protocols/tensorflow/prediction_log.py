"""A logged request: a ``PredictionLog``, of which warm-up files and request logs consist.

Reading returns the method and its request; writing makes a log of a request and its answer. The rules for warm-up
files, which their writers and their reader share, are here as well.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.messages import Message, PredictionLog
from tfs_lite.protocols.tensorflow.classify_regress import arrays_of
from tfs_lite.protocols.tensorflow.tensor_proto import decode

WARMUP_DIRECTORY = "assets.extra"
WARMUP_NAME = "tf_serving_warmup_requests"
WARMUP_FILE = f"{WARMUP_DIRECTORY}/{WARMUP_NAME}"
"""The path of the warm-up requests inside a version's directory."""

MAX_WARMUP_RECORDS = 1000
MAX_LOG_BYTES = 512 << 20
"""The most bytes of one log: a request and an answer of the default limits, and some more."""


class LoggedMethod(enum.Enum):
    """The methods that are logged with one request. The value is the field of the log."""

    PREDICT = "predict_log"
    CLASSIFY = "classify_log"
    REGRESS = "regress_log"
    MULTI_INFERENCE = "multi_inference_log"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request and the method that it was sent to. ``message`` is that method's request."""

    method: LoggedMethod
    message: Message

    @property
    def model_names(self) -> frozenset[str]:
        """The models that it names: one, if it makes sense; none, if it names none."""
        specs = (
            [task.model_spec for task in self.message.tasks]
            if self.method is LoggedMethod.MULTI_INFERENCE
            else [self.message.model_spec]
        )
        return frozenset(spec.name for spec in specs if spec.name)


def parse_log(data: bytes) -> Message:
    """The log in the bytes of a record. INVALID_ARGUMENT if they are no log."""
    try:
        return PredictionLog.FromString(data)
    except DecodeError:
        raise invalid_argument(
            f"Failed to parse warmup record: its {len(data)} bytes are not a {PredictionLog.DESCRIPTOR.full_name}"
        ) from None


def logged_request(log: Message) -> LoggedRequest | None:
    """The request of a log; None if it holds none at all. UNIMPLEMENTED for logs of sessions and streams."""
    field = log.WhichOneof("log_type")
    if field is None:
        return None
    try:
        method = LoggedMethod(field)
    except ValueError:
        known = ", ".join(method.value for method in LoggedMethod)
        raise ServingError(
            StatusCode.UNIMPLEMENTED, f"Unsupported log_type for warmup: {field}; expected one of {known}"
        ) from None
    return LoggedRequest(method, getattr(log, field).request)


def recorded_answer(log: Message) -> tuple[dict[str, Array], int | None]:
    """The answer in a log as arrays by the names of its outputs, empty if there is none to compare with, and the
    version that gave it, if it says. Answers of MultiInference are not compared. INVALID_ARGUMENT for tensors that
    cannot be read."""
    field = log.WhichOneof("log_type")
    if field not in {method.value for method in LoggedMethod} - {LoggedMethod.MULTI_INFERENCE.value}:
        return {}, None
    response = getattr(log, field).response
    version = response.model_spec.version.value if response.model_spec.HasField("version") else None
    if field == LoggedMethod.PREDICT.value:
        return {name: decode(tensor, name, MAX_LOG_BYTES) for name, tensor in response.outputs.items()}, version
    return (arrays_of(response.result) if response.HasField("result") else {}), version


def make_log(method: LoggedMethod, request: Message, response: Message) -> Message:
    """The log of a request and its answer, messages of ``method``, without metadata."""
    log = PredictionLog()
    entry = getattr(log, method.value)
    entry.request.CopyFrom(request)
    entry.response.CopyFrom(response)
    return log
