"""What the slots of a sequence batcher have to do, once more: as plainly as it can be said, whatever it costs.

Nothing is remembered that can be found out by looking at everything. Nothing of the real one is used but its values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

Place = tuple[int, int]
"""(number, instance)."""


@dataclass(eq=False)
class Tale:
    """A sequence. ``waiting``: (item, start, end), in order. ``known``: its id goes on with it."""

    id: int | str
    seen: float
    place: Place | None = None
    waiting: list[tuple[Any, bool, bool]] = field(default_factory=list)
    until: float = inf
    known: bool = True
    expired: bool = False


class Reference:
    """Answers as :class:`~tfs_lite.schedulers.sequence.slots.Sequences` should; refusals are words."""

    def __init__(self, slots: int, instances: int, max_idle: float, max_backlog: int, max_queued: int) -> None:
        self.places = [(number, instance) for number in range(slots) for instance in range(instances)]
        self.max_idle, self.max_backlog, self.max_queued = max_idle, max_backlog, max_queued
        self.tales: list[Tale] = []
        self.running: dict[Place, tuple[Any, Tale]] = {}
        self.stopping = False
        self.forgotten: set[int | str] = set()

    @property
    def backlog(self) -> list[Tale]:
        return [tale for tale in self.tales if tale.place is None]

    @property
    def pending(self) -> int:
        return sum(len(tale.waiting) for tale in self.tales)

    @property
    def live(self) -> int:
        return sum(tale.known for tale in self.tales)

    def at(self, place: Place) -> Tale | None:
        return next((tale for tale in self.tales if tale.place == place), None)

    def known(self, id: int | str) -> Tale | None:
        return next((tale for tale in self.tales if tale.known and tale.id == id), None)

    def free(self) -> list[Place]:
        return [place for place in self.places if self.at(place) is None]

    def admit(
        self, item: Any, id: int | str, start: bool, end: bool, rows: int, timeout: float, now: float
    ) -> str | Place | None:
        """Why not, or where; None: in the backlog."""
        if rows > 1:
            return "batch-size"
        if id in (0, ""):
            return "correlation ID"
        if start and self.stopping:
            return "stopping"
        tale = self.known(id)
        if tale is None and not start:
            return "START"
        waits_behind = tale.place is None if tale else not self.free()
        if self.pending >= self.max_queued:
            return "queue size"
        if waits_behind and sum(len(tale.waiting) for tale in self.backlog) >= self.max_backlog:
            return "queue size"
        if tale is None:
            tale = Tale(id, now, self.free()[0] if self.free() else None)
            self.tales.append(tale)
            self.forgotten.discard(id)
        tale.seen = now
        tale.waiting.append((item, start, end))
        if tale.place is None and timeout:
            tale.until = min(tale.until, now + timeout)
        if end:
            self.forget(tale)
        return tale.place

    def heads(self, instance: int) -> list[Any]:
        found = []
        for place in self.places:
            if place[1] == instance:
                tale = self.at(place)
                ready = tale is not None and tale.waiting and place not in self.running
                found.append(tale.waiting[0] if tale is not None and ready else None)
        return found

    def take(self, place: Place) -> Any:
        tale = self.at(place)
        assert tale is not None
        taken = tale.waiting.pop(0)
        self.running[place] = (taken[0], tale)
        self.settle()
        return taken

    def done(self, place: Place) -> None:
        del self.running[place]
        self.settle()

    def cancel(self, item: Any) -> list[Any]:
        """Also of what runs: those that come after it."""
        for tale in self.tales:
            if any(item is other for other, _, _ in tale.waiting):
                return self.drop(tale)
        for other, tale in self.running.values():
            if other is item and tale in self.tales:
                return self.drop(tale)
        return []

    def expire(self, now: float) -> list[Any]:
        """Whatever is answered, in any order."""
        over = [tale for tale in self.backlog if tale.until <= now]
        out = [item for tale in over for item in self.drop(tale)]
        while idle := [tale for tale in self.tales if self.idle_at(tale) <= now]:
            for tale in idle:
                self.forget(tale)
                tale.expired = True
            self.settle()
        return out

    def idle_at(self, tale: Tale) -> float:
        return tale.seen + self.max_idle if tale.known and tale.place is not None else inf

    @property
    def next_expiry(self) -> float:
        return min((min(self.idle_at(tale), inf if tale.place else tale.until) for tale in self.tales), default=inf)

    def lose(self, instance: int) -> list[Any]:
        lost = [tale for tale in self.tales if tale.place is not None and tale.place[1] == instance]
        return [item for tale in sorted(lost, key=lambda tale: tale.place or ()) for item in self.drop(tale)]

    def drop(self, tale: Tale) -> list[Any]:
        self.forget(tale)
        self.tales.remove(tale)
        self.settle()
        return [item for item, _, _ in tale.waiting]

    def forget(self, tale: Tale) -> None:
        if tale.known:
            tale.known = False
            self.forgotten.add(tale.id)

    def settle(self) -> None:
        """A sequence ends that can do nothing more; one that has expired stays until its last request is done. Then
        places go to those that have waited longest."""
        busy = [tale for _, tale in self.running.values() if tale.expired]
        self.tales = [tale for tale in self.tales if tale.known or tale.waiting or tale in busy]
        for place, tale in zip(self.free(), self.backlog, strict=False):
            tale.place = place
