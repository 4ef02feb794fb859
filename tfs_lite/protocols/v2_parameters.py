"""The parameters of a V2 request: those that the protocol knows become fields, the rest is the model's.

Both ways in give them as (key, value, kind): gRPC's kinds are those of its message, HTTP's follow from JSON.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import cast

from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.v2_request import InferRequest, ParameterValue

RESERVED = "triton_"
EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
MAX_TEXT_ID = 128
"""Characters of a correlation id that is a text."""
MAX_UNSIGNED = 2**64 - 1


class Kind(enum.StrEnum):
    """The type that a value was sent with. JSON integers of any size are INT."""

    BOOL = "bool_param"
    INT = "int64_param"
    TEXT = "string_param"
    FLOAT = "double_param"
    UINT = "uint64_param"

    @property
    def word(self) -> str:
        return self.value.removesuffix("_param")


_TAKES: dict[str, tuple[Kind, ...]] = {
    "sequence_id": (Kind.INT, Kind.TEXT),
    "sequence_start": (Kind.BOOL,),
    "sequence_end": (Kind.BOOL,),
    "priority": (Kind.UINT, Kind.INT),
    "timeout": (Kind.INT,),
}
_GRPC = {**_TAKES, EMPTY_FINAL: (Kind.BOOL,)}
_HTTP = {**_TAKES, "binary_data_output": (Kind.BOOL,)}


def take_parameters(
    request: InferRequest, items: Iterable[tuple[str, ParameterValue, Kind]], over_http: bool = False
) -> None:
    """Fills in what ``request`` says beside its tensors. INVALID_ARGUMENT for a known key of another type, a number out
    of range and a key that is reserved; UNIMPLEMENTED for a correlation id that is too long."""
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


def _custom(key: str, value: ParameterValue, kind: Kind) -> ParameterValue:
    if key.startswith(RESERVED):
        raise invalid_argument(
            f"parameter keys starting with '{RESERVED}' are reserved and '{key:.128}' is none that requests may have"
        )
    if kind is Kind.UINT:
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
    """gRPC has signed numbers for what is an unsigned one."""
    if not -(2**63) <= given <= MAX_UNSIGNED:
        raise invalid_argument(f"parameter 'sequence_id' is {given}, more than 64 bits hold")
    return given & MAX_UNSIGNED


def _in_range(key: str, value: ParameterValue) -> int:
    number = cast(int, value)
    if not 0 <= number <= MAX_UNSIGNED:
        raise invalid_argument(f"parameter '{key}' is {number}, expected 0 to {MAX_UNSIGNED}")
    return number
