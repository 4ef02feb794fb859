"""Which requests make a Direct batch: slots, null rows, shapes, and how long it waits for more."""

from __future__ import annotations

from math import inf

import pytest

from tfs_lite.core.model import SequenceFlags
from tfs_lite.schedulers.sequence.direct import DirectDecision, form_direct
from tfs_lite.schedulers.sequence.request import SequenceItem, SequenceSlot
from tfs_lite.schedulers.sequence.settings import DirectSettings, SequenceSettings
from tfs_lite.schedulers.sequence.slots import SequenceTable

AT_ONCE = DirectSettings()


def heads(text: str, arrived: float = 0.0) -> list[SequenceItem[str] | None]:
    """A letter per slot, which is its key; ``-``: none."""
    return [None if key == "-" else SequenceItem(key, 1, False, False, arrived) for key in text]


def rows(decision: DirectDecision[str]) -> str:
    return "".join(request.item if request else "-" for request in decision.rows)


@pytest.mark.parametrize(
    ("slots", "wanted"),
    [
        ("----", ""),
        ("", ""),
        ("a", "a"),
        ("aaaa", "aaaa"),
        ("a---", "a"),
        ("a-a-", "a-a"),
        ("---a", "---a"),
        ("-a--", "-a"),
        ("aaba", "aa-a"),
        ("ab--", "a-"),
        ("-ba-", "-b-"),
        ("abac", "a-a-"),
    ],
)
def test_batch_reaches_up_to_the_highest_slot_with_a_request(slots: str, wanted: str) -> None:
    decision = form_direct(heads(slots), str, AT_ONCE, 7.0)
    assert rows(decision) == wanted
    assert decision.wait_until == inf


@pytest.mark.parametrize(
    ("utilization", "delay", "slots", "waits"),
    [
        (0.0, 3.0, "a---", False),
        (0.5, 0.0, "a---", False),
        (0.5, 3.0, "a---", True),
        (0.5, 3.0, "a--a", False),
        (0.5, 3.0, "a--b", False),
        (0.5, 3.0, "aaaa", False),
        (1.0, 3.0, "a---", True),
        (1.0, 3.0, "aa-a", True),
        (1.0, 3.0, "aaaa", False),
        (0.25, 3.0, "---a", False),
        (0.07, 3.0, "a" * 7 + "-" * 93, False),
        (0.5, 3.0, "----", False),
    ],
)
def test_delay_counts_only_below_the_utilization(utilization: float, delay: float, slots: str, waits: bool) -> None:
    settings = DirectSettings(delay, utilization)
    decision = form_direct(heads(slots, arrived=5.0), str, settings, 6.0)
    assert decision.wait_until == (8.0 if waits else inf)
    assert (not decision.rows) == (waits or slots == "----")


@pytest.mark.parametrize(("now", "waits"), [(2.0, True), (4.99, True), (5.0, False), (9.0, False)])
def test_delay_is_that_of_the_oldest_head(now: float, waits: bool) -> None:
    waiting = [*heads("a", arrived=4.0), *heads("-a", arrived=2.0), None, None]
    decision = form_direct(waiting, str, DirectSettings(3.0, 1.0), now)
    assert (decision.wait_until, rows(decision)) == ((5.0, "") if waits else (inf, "a-a"))


def executions(lengths: list[int], key_of: dict[str, str]) -> list[str]:
    """Of sequences a, b, ... with so many requests each, all there from the start; a slot for each."""
    slots = SequenceTable[str](SequenceSettings(slots_per_instance=len(lengths)), 1)
    for name, length in zip("abcd", lengths, strict=False):
        for number in range(length):
            flags = SequenceFlags(name, start=number == 0, end=number == length - 1)
            slots.admit(f"{name}{number}", flags, 1, 0.0, 0.0)
    batches = []
    while slots.pending:
        decision = form_direct(slots.heads(0), lambda item: key_of.get(item[0], ""), AT_ONCE, 0.0)
        taken = [SequenceSlot(number, 0) for number, request in enumerate(decision.rows) if request]
        for slot in taken:
            slots.take(slot)
        for slot in taken:
            slots.done(slot)
        batches.append(" ".join(request.item if request else "--" for request in decision.rows))
    return batches


def test_sequences_of_three_shapes_take_nine_executions() -> None:
    batches = executions([3, 3, 3, 3], {"a": "2", "b": "2", "c": "1", "d": "3"})
    assert batches[:3] == ["a0 b0 -- --", "a1 b1 -- --", "a2 b2 -- --"]
    assert len(batches) == 9
    assert all(len(batch.split()) == 4 for batch in batches[:3])


def test_sequences_of_one_shape_take_three_executions_of_all() -> None:
    assert executions([3, 3, 3, 3], {}) == ["a0 b0 c0 d0", "a1 b1 c1 d1", "a2 b2 c2 d2"]


def test_batches_grow_narrow_as_the_upper_sequences_end() -> None:
    assert executions([3, 1, 2], {}) == ["a0 b0 c0", "a1 -- c1", "a2"]
