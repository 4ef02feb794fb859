"""A call while it is inside: waiting at the desk, and taken to run."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tfs_lite.core.model import PredictCall
from tfs_lite.schedulers.sequence.request import Request, Slot
from tfs_lite.schedulers.sequence.rows import Row, RowPlan
from tfs_lite.schedulers.sequence.states import Values


@dataclass(slots=True, eq=False)
class Entry:
    """A call while it is inside; ``shapes`` as :meth:`RowPlan.shape_key` says. The rest is guarded by the desk's lock.

    ``slot``: from which it was taken to run; None: it waits. ``cancelled``: nobody wants it, but it was taken already.
    ``inner``: the call that stands for it in a batcher.
    """

    call: PredictCall
    plan: RowPlan
    shapes: Hashable
    enqueued: float = field(default=0.0)
    slot: Slot | None = field(default=None)
    cancelled: bool = field(default=False)
    inner: PredictCall | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Taken:
    """A request on its way through the model. ``state``: of its sequence, before it."""

    slot: Slot
    request: Request[Entry]
    state: Values

    @property
    def call(self) -> PredictCall:
        return self.request.item.call

    @property
    def row(self) -> Row:
        flags = self.call.sequence
        assert flags is not None  # or it would not have been let in
        return Row(self.call, flags, self.state)
