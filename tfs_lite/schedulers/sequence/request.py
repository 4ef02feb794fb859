"""What the slots and the backlog hold: requests, the sequences that they belong to, and the names of places."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T", bound=Hashable)
"""Whatever is queued. It is never looked into; it is told from others by its hash and equality, best by identity."""

SequenceId: TypeAlias = int | str


class Slot(NamedTuple):
    """A place for one sequence. Places are given away in ascending order: the lowest number first, whatever the
    instance."""

    number: int
    """The row in Direct batches; 0 to ``slots_per_instance`` - 1."""
    instance: int


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """An item and what its sequence says of it."""

    item: T
    id: SequenceId
    start: bool
    end: bool
    arrived: float
    """When it was admitted, in the clock of whoever admits."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request waits. ``slot``: where; None: in the backlog. ``restarted``: it is a START although the sequence had
    not ended; the sequence goes on in its place, and somebody may want to log that."""

    slot: Slot | None
    restarted: bool = False


@dataclass(slots=True, eq=False)
class OneSequence(Generic[T]):
    """From a START to an END, or to whatever ends it else. The same id started again after its END is another one."""

    id: SequenceId
    waiting: deque[Request[T]] = field(default_factory=deque)
    slot: Slot | None = None
    """None: in the backlog."""
    seen: float = -inf
    """When a request of it came last."""
    expired: bool = False
    """Nobody has asked for so long that it gives its slot up after what waits."""
