"""Holds the slots of a sequence batcher against the plain reference, and both against what no history may have.

:class:`SequenceChecker` does everything twice and raises :class:`Mismatch` for what differs. On its own it keeps, for
every request, what became of it: let in, taken or answered, exactly once, in order within its sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

from tests.support.schedulers.sequence_reference import Reference
from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import Reason, Status
from tfs_lite.schedulers.sequence.direct import DirectDecision, form_direct
from tfs_lite.schedulers.sequence.request import Admitted, SequenceItem, SequenceSlot
from tfs_lite.schedulers.sequence.settings import DirectSettings, SequenceSettings
from tfs_lite.schedulers.sequence.slots import SequenceTable


class Mismatch(AssertionError):
    """What happened is not what had to happen."""


@dataclass(eq=False)
class Item:
    """A request. ``of``: the number of the sequence that it was let into; ``index``: within that; ``outcomes``: all
    that became of it."""

    serial: int
    key: int
    of: int = -1
    index: int = -1
    outcomes: list[str] = field(default_factory=list)


class SequenceChecker:
    """``direct``: what ``run_direct`` goes by. Time is a number of seconds and goes on in ``wait``."""

    def __init__(self, settings: SequenceSettings, instances: int, direct: DirectSettings) -> None:
        self.settings, self.instances, self.direct = settings, instances, direct
        self.real: SequenceTable[Item] = SequenceTable(settings, instances, "m")
        self.plain = Reference(
            settings.slots_per_instance, instances, settings.max_idle, settings.max_backlog, settings.max_queued
        )
        self.now = 0.0
        self.items: list[Item] = []
        self.executing: dict[int, list[SequenceSlot]] = {}
        """Direct: what an instance runs."""
        self._current: dict[int | str, int] = {}
        self._lengths: list[int] = []
        self._taken: dict[int, int] = {}
        self._running: dict[SequenceSlot, Item] = {}

    def admit(self, flags: SequenceFlags, rows: int, timeout: float, key: int) -> None:
        item = Item(len(self.items), key)
        known = self.plain.known(flags.id) is not None
        wanted = self.plain.admit(item, flags.id, flags.start, flags.end, rows, timeout, self.now)
        found = self.real.admit(item, flags, rows, timeout, self.now)
        if isinstance(found, Status):
            _same(isinstance(wanted, str) and wanted in found.message, True, f"{found} for {wanted}")
        else:
            _same(isinstance(wanted, str), False, f"{found}, refused for {wanted}")
            _same(found, Admitted(None if wanted is None else SequenceSlot(*wanted), known and flags.start), "admitted")
            self._let_in(item, flags, known)
        self.check()

    def take(self, slot: SequenceSlot) -> Item:
        taken = self.real.take(slot)
        _same((taken.item, taken.start, taken.end), self.plain.take(slot), f"taken from {slot}")
        item = taken.item
        _same(item.index, self._taken.get(item.of, 0), f"order in sequence {item.of}")
        _same(any(other.of == item.of for other in self._running.values()), False, f"two of {item.of} run")
        self._taken[item.of] = item.index + 1
        self._running[slot] = item
        self._ended([item], "taken")
        self.check()
        return item

    def done(self, slot: SequenceSlot) -> None:
        self.real.done(slot)
        self.plain.done(slot)
        del self._running[slot]
        self.check()

    def run_direct(self, instance: int) -> None:
        """Starts a batch, if the instance is idle and has one to run."""
        if instance in self.executing:
            return
        heads = self.real.heads(instance)
        decision = form_direct(heads, lambda item: item.key, self.direct, self.now)
        self._check_batch(heads, decision)
        slots = [SequenceSlot(number, instance) for number, request in enumerate(decision.rows) if request is not None]
        taken = [self.take(slot) for slot in slots]
        _same(taken, [request.item for request in decision.rows if request is not None], "the batch")
        if slots:
            self.executing[instance] = slots

    def finish_direct(self, instance: int) -> None:
        for slot in self.executing.pop(instance, ()):
            self.done(slot)

    def cancel(self, item: Item) -> None:
        answered = self.real.cancel(item)
        _same(answered, self.plain.cancel(item), "cancelled")
        self._ended(answered, "cancelled")
        self.check()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        before, live, backlogged = self.real.next_expiry, self.real.live, self.real.backlogged
        out = self.real.expire(self.now)
        found = [item for item, _ in out]
        _same(sorted(map(_serial, found)), sorted(map(_serial, self.plain.expire(self.now))), "expired")
        _same({status.reason for _, status in out} <= {Reason.QUEUE_TIMEOUT}, True, "the reason")
        changed = bool(out) or (self.real.live, self.real.backlogged) != (live, backlogged)
        _same(changed, before <= self.now, f"something expires at {before}")
        self._ended(found, "expired")
        self.check()

    def drop_instance(self, instance: int) -> None:
        lost = self.real.drop_instance(instance)
        _same(lost, self.plain.drop_instance(instance), "lost")
        self._ended(lost, "lost")
        self.check()

    def stop(self) -> None:
        self.real.stop()
        self.plain.stopping = True

    def check(self) -> None:
        """All that can be seen is the same."""
        real, plain = self.real, self.plain
        seen = (real.live, real.pending, real.backlogged, real.running, real.next_expiry)
        wanted = (plain.live, plain.pending, len(plain.backlog), len(plain.running), plain.next_expiry)
        _same(seen, wanted, "live, pending, backlogged, running, next expiry")
        for instance in range(self.instances):
            heads = [request and (request.item, request.start, request.end) for request in real.heads(instance)]
            _same(heads, plain.heads(instance), f"heads of {instance}")
        _same(set(real.forgotten()), plain.forgotten, "forgotten")
        plain.forgotten = set()

    def finish(self) -> None:
        """Runs whatever waits, lets all sequences expire, and looks back."""
        for _ in range(4 * len(self.items) + 4):
            for slot in list(self._running):
                self.done(slot)
            self.executing.clear()
            for instance in range(self.instances):
                for number, request in enumerate(self.real.heads(instance)):
                    if request is not None:
                        self.take(SequenceSlot(number, instance))
            if not self._running and self.real.next_expiry == inf:
                break
            if not self._running:
                self.wait(max(0.0, self.real.next_expiry - self.now))
        _same((self.real.pending, self.real.live, self.real.running), (0, 0, 0), "nothing is left")
        for item in self.items:
            _same(len(item.outcomes), 1 if item.of >= 0 else 0, f"what became of {item}")

    def _let_in(self, item: Item, flags: SequenceFlags, known: bool) -> None:
        self.items.append(item)
        if not known:
            self._current[flags.id] = len(self._lengths)
            self._lengths.append(0)
        item.of = self._current[flags.id]
        item.index = self._lengths[item.of]
        self._lengths[item.of] += 1

    def _ended(self, items: list[Item], outcomes: str) -> None:
        for item in items:
            item.outcomes.append(outcomes)
            _same(len(item.outcomes), 1, f"what became of {item}")

    def _check_batch(self, heads: tuple[SequenceItem[Item] | None, ...], decision: DirectDecision[Item]) -> None:
        """Of one key, as wide as the highest slot with a request; and not before the delay is over, if that counts."""
        numbers = [number for number, request in enumerate(heads) if request is not None]
        ready = [request for request in heads if request is not None]
        oldest = min((request.arrived for request in ready), default=inf)
        enough = len(ready) >= self.direct.minimum_utilization * len(heads)
        waits = bool(ready) and not enough and self.now < oldest + self.direct.max_delay
        _same(decision.wait_until, oldest + self.direct.max_delay if waits else inf, "until")
        if waits or not ready:
            _same(decision.rows, (), "rows")
            return
        key = ready[0].item.key
        for number, row in enumerate(decision.rows):
            head = heads[number]
            _same(row, head if head is not None and head.item.key == key else None, f"row {number}")
        _same(len(decision.rows), numbers[-1] + 1, "the width")


def _serial(item: Item) -> int:
    return item.serial


def _same(found: Any, wanted: Any, what: str) -> None:
    if found != wanted:
        raise Mismatch(f"{what}: {found}, not {wanted}")
