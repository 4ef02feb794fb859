"""An inference request of the V2 protocol, into which gRPC messages and HTTP bodies are both read.

    ModelInferRequest ------\
                             -> InferRequest -> checked against the signature -> Run -> Predictor -> InferAnswer -> ...
    JSON and binary body ---/

Parameters that the protocol knows become fields, the others are the model's. They come as (key, value, type): gRPC's
types are those of its message, HTTP's follow from JSON.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import Array

ParameterValue: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class SharedMemorySlice:
    """The bytes of a registered region in which a tensor is, or is to be written."""

    region: str
    byte_size: int
    offset: int = 0


MAX_ENTRIES = 10_000
"""Inputs, outputs or parameters of one request: more than any model has, because each costs time on the event loop."""


def check_entries(what: str, count: int) -> None:
    """Raises INVALID_ARGUMENT for more than ``MAX_ENTRIES``."""
    if count > MAX_ENTRIES:
        raise invalid_argument(f"the request has {count} {what}, at most {MAX_ENTRIES} are allowed")


@dataclass(slots=True)
class SentTensor:
    """One input as it was sent. ``datatype`` is V2's name (``FP32``, ``BYTES``). ``array`` is decoded to that dtype and
    ``shape``; None means that its bytes are in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    array: Array | None = None
    memory: SharedMemorySlice | None = None


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """One requested output. ``classification`` above 0 requests that many best classes instead of the numbers. Over
    HTTP a ``binary`` output is sent as bytes after the JSON; None means the request's default."""

    name: str
    classification: int = 0
    binary: bool | None = None
    memory: SharedMemorySlice | None = None


@dataclass(slots=True)
class InferRequest:
    """A request. Without a ``version`` the newest; without ``outputs`` all. ``timeout`` is in seconds; ``parameters``
    are those that the protocol does not know. With ``empty_final`` a stream ends with an empty answer."""

    model: str
    version: int | None = None
    id: str = ""
    inputs: list[SentTensor] = field(default_factory=list)
    outputs: list[WantedOutput] = field(default_factory=list)
    sequence: SequenceFlags | None = None
    priority: int = 0
    timeout: float = 0.0
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    binary_outputs: bool = False
    empty_final: bool = False


@dataclass(slots=True)
class InferAnswer:
    """An answer: the arrays of the wanted outputs, in their order, where texts are object arrays of ``bytes``, and
    ``parameters``."""

    version: ServableId
    id: str
    outputs: Mapping[str, Array]
    wanted: Mapping[str, WantedOutput] = field(default_factory=dict)
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)


RESERVED = "triton_"
EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
MAX_TEXT_ID = 128
"""Characters of a correlation id that is a text."""
MAX_UNSIGNED = 2**64 - 1


class ParameterType(enum.StrEnum):
    """The type that a value was sent with. JSON integers of any size are INT."""

    BOOL = "bool_param"
    INT = "int64_param"
    TEXT = "string_param"
    FLOAT = "double_param"
    UINT = "uint64_param"

    @property
    def word(self) -> str:
        return self.value.removesuffix("_param")


_TAKES: dict[str, tuple[ParameterType, ...]] = {
    "sequence_id": (ParameterType.INT, ParameterType.TEXT),
    "sequence_start": (ParameterType.BOOL,),
    "sequence_end": (ParameterType.BOOL,),
    "priority": (ParameterType.UINT, ParameterType.INT),
    "timeout": (ParameterType.INT,),
}
_GRPC = {**_TAKES, EMPTY_FINAL: (ParameterType.BOOL,)}
_HTTP = {**_TAKES, "binary_data_output": (ParameterType.BOOL,)}


def take_parameters(
    request: InferRequest, items: Iterable[tuple[str, ParameterValue, ParameterType]], over_http: bool = False
) -> None:
    """Sets the fields of ``request`` from its parameters. INVALID_ARGUMENT for a known key of another type, a number
    out of range and a reserved key; UNIMPLEMENTED for a correlation id that is too long."""
    known = _HTTP if over_http else _GRPC
    taken: dict[str, ParameterValue] = {}
    own: dict[str, ParameterValue] = {}
    for key, value, kind in items:
        expected = known.get(key)
        if expected is None:
            own[key] = _custom(key, value, kind)
        elif kind in expected:
            taken[key] = value
        else:
            words = " or ".join(word.word for word in expected)
            raise invalid_argument(f"parameter '{key}' is of type {kind.word}, expected {words}")
    request.parameters = own
    request.sequence = _sequence(taken)
    request.priority = _in_range("priority", taken.get("priority", 0))
    request.timeout = _in_range("timeout", taken.get("timeout", 0)) / 1e6
    request.empty_final = bool(taken.get(EMPTY_FINAL, False))
    request.binary_outputs = bool(taken.get("binary_data_output", False))


def _custom(key: str, value: ParameterValue, kind: ParameterType) -> ParameterValue:
    if key.startswith(RESERVED):
        raise invalid_argument(
            f"parameter keys starting with '{RESERVED}' are reserved and '{key:.128}' is none that requests may have"
        )
    if kind is ParameterType.UINT:
        raise invalid_argument(f"parameter '{key:.128}' is of type uint64, expected bool, int64, double or string")
    return value


def _sequence(taken: dict[str, ParameterValue]) -> SequenceFlags | None:
    given = cast("int | str", taken.get("sequence_id", 0))
    if not given:
        return None
    if isinstance(given, str) and len(given) > MAX_TEXT_ID:
        raise ServingError(
            StatusCode.UNIMPLEMENTED,
            f"string correlation ID cannot be longer than {MAX_TEXT_ID} characters, got {len(given)}",
        )
    start, end = bool(taken.get("sequence_start", False)), bool(taken.get("sequence_end", False))
    return SequenceFlags(given if isinstance(given, str) else _unsigned(given), start, end)


def _unsigned(given: int) -> int:
    """The unsigned number, which gRPC sends as a signed one."""
    if not -(2**63) <= given <= MAX_UNSIGNED:
        raise invalid_argument(f"parameter 'sequence_id' is {given}, more than 64 bits hold")
    return given & MAX_UNSIGNED


def _in_range(key: str, value: ParameterValue) -> int:
    number = cast(int, value)
    if not 0 <= number <= MAX_UNSIGNED:
        raise invalid_argument(f"parameter '{key}' is {number}, expected 0 to {MAX_UNSIGNED}")
    return number
