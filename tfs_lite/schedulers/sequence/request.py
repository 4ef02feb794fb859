"""A request of a sequence: what the slots and the backlog hold of it, and whether it is let in.

The checks on values come in the order that clients of Triton know, who also look at the beginnings of the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import Status, StatusCode, queue_full

MAX_ID_LENGTH = 128
"""The longest id that is a text, in characters."""

STOPPING = Status(
    StatusCode.UNAVAILABLE, "Server is stopping, scheduler for model has stopped accepting new inference requests"
)

T = TypeVar("T", bound=Hashable)
"""The type of what is queued. It is told from others by its hash and equality, best by identity."""

SequenceId: TypeAlias = int | str


class SequenceSlot(NamedTuple):
    """The slot of one sequence: its index in the state of an instance. Slots are given away in ascending order:
    the lowest number first, on any instance."""

    number: int
    """The row in Direct batches; 0 to ``slots_per_instance`` - 1."""
    instance: int


@dataclass(frozen=True, slots=True)
class SequenceItem(Generic[T]):
    """An item, and where it stands in its sequence."""

    item: T
    id: SequenceId
    start: bool
    end: bool
    arrived: float
    """The time when it was admitted, in seconds of the owner's clock."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request waits, in ``slot`` or, with None, in the backlog. ``restarted`` says that it is a START although the
    sequence had not ended; the sequence goes on in its slot."""

    slot: SequenceSlot | None
    restarted: bool = False


@dataclass(slots=True, eq=False)
class OneSequence(Generic[T]):
    """One sequence, from a START to an END, or to another end. The same id started again after its END is another
    sequence."""

    id: SequenceId
    waiting: deque[SequenceItem[T]] = field(default_factory=deque)
    slot: SequenceSlot | None = None
    """The sequence's slot; None while it is in the backlog."""
    seen: float = -inf
    """The time when its last request came."""
    expired: bool = False
    """Whether no request has come for so long that it gives up its slot after what waits."""


def checked(
    flags: SequenceFlags | None, rows: int, model: str, *, known: bool, stopping: bool
) -> SequenceFlags | Status:
    """Returns the flags of a request of a sequence, or why it cannot be let in; the first reason counts.

    ``known`` says that a sequence with this id goes on. INVALID_ARGUMENT for several rows, for a request without an id,
    and for one of an unknown sequence that does not START it; UNIMPLEMENTED for a text that is too long for an id;
    UNAVAILABLE for a START while the model is ``stopping``.
    """
    if rows > 1:
        text = f"inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher"
        return Status(StatusCode.INVALID_ARGUMENT, text)
    if flags is None or not flags.id:
        text = f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
        return Status(StatusCode.INVALID_ARGUMENT, text)
    if isinstance(flags.id, str) and len(flags.id) > MAX_ID_LENGTH:
        text = f"string correlation ID for model '{model}' has {len(flags.id)} characters, more than {MAX_ID_LENGTH}"
        return Status(StatusCode.UNIMPLEMENTED, text)
    if stopping and flags.start:
        return STOPPING
    return flags if flags.start or known else unknown(flags.id, model)


def unknown(id: SequenceId, model: str) -> Status:
    """The status for a sequence that does not go on, of a request that does not start it."""
    text = f"inference request for sequence {id} to model '{model}' must specify the START flag on the first request"
    return Status(StatusCode.INVALID_ARGUMENT, f"{text} of the sequence")


def full(waiting: int, where: str, model: str) -> Status:
    text = f"Exceeds maximum queue size: {waiting} requests wait in {where} of model '{model}'"
    return queue_full(f"{text}, the most allowed; try again later")
