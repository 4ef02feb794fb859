"""Which requests make a Direct batch: a pure decision over the heads of an instance's slots and the time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic

from tfs_lite.schedulers.sequence.request import Request, T
from tfs_lite.schedulers.sequence.settings import DirectSettings


@dataclass(frozen=True, slots=True)
class DirectDecision(Generic[T]):
    """``rows``: what runs now, one row per slot from slot 0 on; None: a null row. Empty: nothing; ask again at
    ``wait_until`` (in ``now``'s clock), or earlier when another request has come."""

    rows: tuple[Request[T] | None, ...] = ()
    wait_until: float = inf


def form_direct(
    heads: Sequence[Request[T] | None],
    key_of: Callable[[T], Hashable],
    settings: DirectSettings,
    now: float,
) -> DirectDecision[T]:
    """``heads``: the next request of each slot of an instance that is idle, None where there is none. ``key_of``: what
    has to be equal in a batch, such as the shapes that may not differ and which inputs there are. Any thread.

    The batch reaches up to the highest slot that has a request. The lowest request decides the key; requests with
    another one wait for the next batch, and their row is a null row.
    """
    ready = [request for request in heads if request is not None]
    if not ready:
        return DirectDecision()
    if settings.max_delay > 0 and len(ready) / len(heads) < settings.minimum_utilization:
        end = min(request.arrived for request in ready) + settings.max_delay
        if now < end:
            return DirectDecision(wait_until=end)
    key = key_of(ready[0].item)
    rows = [request if request is not None and key_of(request.item) == key else None for request in heads]
    top = max(number for number, request in enumerate(heads) if request is not None)
    return DirectDecision(tuple(rows[: top + 1]))
