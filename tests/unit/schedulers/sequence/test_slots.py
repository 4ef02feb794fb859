"""Which sequence has which slot, what runs next, and when a slot goes to another sequence: the rules by example.

How they work together is in ``tests/simulation/test_sequences.py``, where a plain reference does the same.
"""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.schedulers.sequence.request import Admitted, SequenceSlot
from tfs_lite.schedulers.sequence.settings import SequenceSettings
from tfs_lite.schedulers.sequence.slots import SequenceTable

EXPIRED = Status(StatusCode.UNAVAILABLE, "timeout of the corresponding sequence has been expired", Reason.QUEUE_TIMEOUT)
FIRST = SequenceSlot(0, 0)


class SlotsFixture:
    """Sequences whose ids are letters; a request is its id and a mark: ``a1``, with ``^`` before a START, ``$`` behind
    an END."""

    def __init__(self, slots: int = 1, instances: int = 1, max_idle: float = 1.0) -> None:
        self.all = SequenceTable[str](SequenceSettings(slots_per_instance=slots, max_idle=max_idle), instances, "m")
        self.instances = instances
        self.now = 0.0

    def admit(self, *texts: str, timeout: float = 0.0) -> list[SequenceSlot | None]:
        return [self._admit(text, timeout) for text in texts]

    def _admit(self, text: str, timeout: float) -> SequenceSlot | None:
        flags = SequenceFlags(text.strip("^$")[0], text[0] == "^", text[-1] == "$")
        admitted = self.all.admit(text, flags, 1, timeout, self.now)
        assert isinstance(admitted, Admitted), admitted
        return admitted.slot

    def refuses(self, text: str) -> bool:
        return isinstance(self.all.admit(text, SequenceFlags(text[0]), 1, 0.0, self.now), Status)

    def heads(self, instance: int = 0) -> str:
        return " ".join(request.item if request else "-" for request in self.all.heads(instance))

    def run(self) -> list[str]:
        """One execution of each instance, of all that is ready."""
        ready = [
            SequenceSlot(number, instance)
            for instance in range(self.instances)
            for number, request in enumerate(self.all.heads(instance))
            if request
        ]
        items = [self.all.take(slot).item for slot in ready]
        for slot in ready:
            self.all.done(slot)
        return items

    def wait(self, seconds: float) -> list[tuple[str, Status]]:
        self.now += seconds
        return self.all.expire(self.now)


def admitted(*texts: str, timeout: float = 0.0, **rest: Any) -> SlotsFixture:
    fixture = SlotsFixture(**rest)
    fixture.admit(*texts, timeout=timeout)
    return fixture


@pytest.mark.parametrize(
    ("slots", "instances", "wanted"),
    [
        (1, 1, [(0, 0), None, None, None, None]),
        (2, 2, [(0, 0), (0, 1), (1, 0), (1, 1), None]),
        (4, 1, [(0, 0), (1, 0), (2, 0), (3, 0), None]),
        (1, 4, [(0, 0), (0, 1), (0, 2), (0, 3), None]),
        (2, 3, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),
    ],
)
def test_lowest_slot_of_all_instances_comes_first(
    slots: int, instances: int, wanted: list[tuple[int, int] | None]
) -> None:
    assert SlotsFixture(slots, instances).admit("^a", "^b", "^c", "^d", "^e") == wanted


def test_sequence_keeps_its_slot_and_its_order() -> None:
    fixture = admitted("^a", "^b", "a1", "a2", "b1$", slots=2)
    assert [fixture.run() for _ in range(3)] == [["^a", "^b"], ["a1", "b1$"], ["a2"]]
    assert fixture.admit("a3") == [(0, 0)]


def test_start_of_a_known_sequence_stays_in_its_slot() -> None:
    fixture = admitted("^a", "a1", slots=2)
    assert fixture.all.admit("^a2", SequenceFlags("a", start=True), 1, 0.0, 0.0) == Admitted(FIRST, restarted=True)
    assert [fixture.run() for _ in range(3)] == [["^a"], ["a1"], ["^a2"]]
    assert fixture.all.live == 1


def test_request_says_what_it_was() -> None:
    fixture = SlotsFixture()
    fixture.now = 3.0
    fixture.admit("^a", "a1$")
    first = fixture.all.take(FIRST)
    fixture.all.done(FIRST)
    last = fixture.all.take(FIRST)
    assert (first.item, first.id, first.start, first.end, first.arrived) == ("^a", "a", True, False, 3.0)
    assert (last.start, last.end) == (False, True)


def test_request_is_let_in_once() -> None:
    fixture = admitted("^a")
    with pytest.raises(ValueError, match="inside"):
        fixture.admit("^a")
    fixture.all.take(FIRST)
    with pytest.raises(ValueError, match="inside"):
        fixture.admit("^a")
    fixture.all.done(FIRST)
    assert fixture.admit("^a") == [FIRST]


# END.


def test_end_forgets_the_id_at_admission() -> None:
    fixture = admitted("^a", "a1$")
    assert fixture.refuses("a2")
    assert fixture.all.forgotten() == ("a",)
    assert fixture.all.forgotten() == ()
    assert (fixture.all.live, fixture.all.pending) == (0, 2)
    assert fixture.admit("^b$") == [None]
    assert fixture.refuses("b1")
    assert [fixture.run() for _ in range(3)] == [["^a"], ["a1$"], ["^b$"]]


def test_id_that_starts_again_gets_another_slot() -> None:
    fixture = admitted("^a", "a1$", slots=2)
    assert fixture.admit("^a2", "a3") == [(1, 0), (1, 0)]
    assert fixture.run() == ["^a", "^a2"]


def test_slot_is_free_when_the_end_is_taken_and_runs_on_when_it_is_done() -> None:
    fixture = admitted("^a$", "^b")
    assert fixture.all.take(FIRST).item == "^a$"
    assert fixture.all.backlogged == 0
    assert fixture.heads() == "-"
    assert fixture.admit("b1") == [FIRST]
    fixture.all.done(FIRST)
    assert fixture.heads() == "^b"


# One at a time.


def test_only_one_request_of_a_slot_runs() -> None:
    fixture = admitted("^a", "a1", "^b", "^c", slots=2)
    assert (fixture.all.live, fixture.all.pending, fixture.all.backlogged, fixture.all.running) == (3, 4, 1, 0)
    fixture.all.take(FIRST)
    assert (fixture.all.pending, fixture.all.running) == (3, 1)
    assert fixture.heads() == "- ^b"
    with pytest.raises(LookupError):
        fixture.all.take(FIRST)
    fixture.all.done(FIRST)
    assert (fixture.all.pending, fixture.all.running) == (3, 0)
    assert fixture.heads() == "a1 ^b"
    with pytest.raises(LookupError):
        fixture.all.done(FIRST)


# Backlog.


def test_backlog_is_in_order_of_sequences_not_of_requests() -> None:
    fixture = admitted("^z", "^a", "^b", "a1$", "b1$", "z$")
    assert [fixture.run()[0] for _ in range(6)] == ["^z", "z$", "^a", "a1$", "^b", "b1$"]


@pytest.mark.parametrize("second", ["a1", "a1$"])
def test_sequence_from_the_backlog_is_known_in_its_slot_unless_it_has_ended(second: str) -> None:
    fixture = SlotsFixture()
    assert fixture.admit("^z", "^a", second, "z$") == [FIRST, None, None, FIRST]
    fixture.run(), fixture.run()
    assert fixture.heads() == "^a"
    if second == "a1":
        assert fixture.admit("a2") == [FIRST]
    else:
        assert fixture.refuses("a2")
        assert fixture.all.next_expiry == inf


@pytest.mark.parametrize(
    ("timeouts", "end"),
    [((0.0, 0.0), inf), ((0.5, 0.0), 0.5), ((0.5, 0.125), 0.125), ((0.125, 0.5), 0.125), ((0.0, 0.25), 0.25)],
)
def test_first_timeout_ends_the_whole_entry(timeouts: tuple[float, float], end: float) -> None:
    fixture = admitted("^z", max_idle=100.0)
    fixture.admit("^a", timeout=timeouts[0])
    fixture.admit("a1", timeout=timeouts[1])
    fixture.all.forgotten()
    assert fixture.all.next_expiry == min(end, 100.0)
    if end < inf:
        assert fixture.wait(end - 0.01) == []
        assert fixture.wait(0.01) == [("^a", EXPIRED), ("a1", EXPIRED)]
        assert fixture.refuses("a2")
        assert fixture.all.forgotten() == ("a",)
        assert fixture.all.pending == 1


# Idle sequences.


def test_sequence_without_arrivals_is_forgotten() -> None:
    fixture = admitted("^a", slots=2)
    fixture.run()
    fixture.wait(0.75)
    assert fixture.admit("a1") == [FIRST]
    assert fixture.all.next_expiry == 1.75
    fixture.run()
    fixture.wait(0.99)
    assert fixture.all.knows("a")
    fixture.wait(0.01)
    assert fixture.all.forgotten() == ("a",)
    assert fixture.refuses("a2")
    assert fixture.admit("^b") == [FIRST]


def test_freed_slots_are_given_away_lowest_first() -> None:
    fixture = admitted("^a$", "^b", "^c$", "^d$", slots=2, instances=2)
    fixture.run()
    assert fixture.admit("^e", "^f", "^g") == [(0, 0), (1, 0), (1, 1)]


# Cancelling, losing, closing.


def test_cancelled_request_takes_all_of_its_sequence_with_it() -> None:
    fixture = admitted("^a", "a1", "a2", "^b")
    assert fixture.all.cancel("a1") == ["^a", "a1", "a2"]
    assert fixture.all.forgotten() == ("a",)
    assert fixture.refuses("a3")
    assert fixture.heads() == "^b"
    assert fixture.all.cancel("a1") == []
    assert fixture.admit("^a2") == [None]
    assert fixture.all.cancel("^b") == ["^b"]
    assert fixture.run() == ["^a2"]


def test_cancelling_an_ended_sequence_leaves_its_successor_of_the_same_id() -> None:
    fixture = admitted("^a", "a1$", "^a2", slots=2)
    fixture.all.forgotten()
    assert fixture.all.cancel("^a") == ["^a", "a1$"]
    assert fixture.all.forgotten() == ()
    assert fixture.admit("a3") == [SequenceSlot(1, 0)]


def test_cancelled_request_that_runs_takes_only_those_after_it() -> None:
    fixture = admitted("^a", "a1", "^b")
    fixture.all.take(FIRST)
    assert fixture.all.cancel("^a") == ["a1"]
    assert (fixture.heads(), fixture.all.running) == ("-", 1)
    fixture.all.done(FIRST)
    assert fixture.heads() == "^b"
    assert fixture.all.cancel("^a") == []
    fixture.admit("b1$", "^c")
    fixture.run()
    fixture.all.take(FIRST)
    assert fixture.all.cancel("b1$") == [], "it ends its sequence, and the next one has the slot"
    fixture.all.done(FIRST)
    assert fixture.heads() == "^c"
    assert fixture.all.knows("c")


def test_lost_instance_ends_its_sequences_alone() -> None:
    fixture = admitted("^a", "^b", "^c", "^d", "^e", "a1", "c1", slots=2, instances=2)
    assert fixture.all.drop_instance(0) == ["^a", "a1", "^c", "c1"]
    assert set(fixture.all.forgotten()) == {"a", "c"}
    assert (fixture.heads(0), fixture.heads(1)) == ("^e -", "^b ^d")


def test_clearing_ends_everything() -> None:
    fixture = admitted("^a", "^b", "^c", "a1", "^d", "c1", slots=2)
    assert sorted(fixture.all.clear()) == sorted(["^a", "a1", "^b", "^c", "c1", "^d"])
    assert (fixture.all.live, fixture.all.pending, fixture.all.backlogged) == (0, 0, 0)
    assert fixture.all.next_expiry == inf
    assert fixture.admit("^e", "^f") == [FIRST, SequenceSlot(1, 0)]
