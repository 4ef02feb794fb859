"""An inference request of the V2 protocol, whichever way it came: gRPC messages and HTTP bodies are both read into it.

    ModelInferRequest ------\\
                             -> InferRequest -> checked against the signature -> Run -> Predictor -> InferAnswer -> ...
    JSON and binary body ---/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.tensor_proto import Array

ParameterValue: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class SharedMemoryPlace:
    """Where a tensor is, or is to be put: a registered region, and which of its bytes."""

    region: str
    byte_size: int
    offset: int = 0


MAX_ENTRIES = 10_000
"""Inputs, outputs or parameters of one request. No model has as many, and each costs time on the event loop."""


def check_entries(what: str, count: int) -> None:
    """INVALID_ARGUMENT for more than ``MAX_ENTRIES``."""
    if count > MAX_ENTRIES:
        raise invalid_argument(f"the request has {count} {what}, at most {MAX_ENTRIES} are allowed")


@dataclass(slots=True)
class SentTensor:
    """One input as it was sent. ``datatype`` is V2's name (``FP32``, ``BYTES``). ``array`` is already decoded to that
    dtype and ``shape``; None: its bytes are in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    array: Array | None = None
    memory: SharedMemoryPlace | None = None


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """One requested output. ``classification`` above 0: the so many best classes instead of the numbers. ``binary``:
    over HTTP, as bytes behind the JSON; None: as the request says for all."""

    name: str
    classification: int = 0
    binary: bool | None = None
    memory: SharedMemoryPlace | None = None


@dataclass(slots=True)
class InferRequest:
    """``version`` None: the newest. ``timeout`` is in seconds. ``outputs`` empty: all. ``parameters`` are those that
    the protocol does not know. ``empty_final``: the client wants to hear of the end of an answer without content."""

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
    """What goes back: the arrays of the wanted outputs, in their order. An output of text is an object array of
    ``bytes``. ``parameters`` go out as they are."""

    version: ServableId
    id: str
    outputs: Mapping[str, Array]
    wanted: Mapping[str, WantedOutput] = field(default_factory=dict)
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
