"""What slots hold, and which one a text gets."""

from __future__ import annotations

import random

import pytest

from tfs_lite.schedulers.generation.cache_slots import LEAST_REUSE, CacheSlots, SlotAssignment, common_prefix

STEM = list(range(100, 140))


def live(slots: CacheSlots, tokens: list[int]) -> int:
    assignment = slots.find(None)
    assert assignment is not None
    slots.assign(assignment, tokens)
    slots.mark_computed(assignment.slot, len(tokens))
    return assignment.slot


def used(slots: CacheSlots, tokens: list[int]) -> int:
    """The slot of a text that was computed and has ended."""
    slot = live(slots, tokens)
    slots.release(slot)
    return slot


def test_lowest_empty_slot_is_taken_first() -> None:
    slots = CacheSlots(3)
    assert [live(slots, [n]) for n in range(3)] == [0, 1, 2]
    assert slots.find([1]) is None
    slots.release(1)
    assert slots.find([1]) == SlotAssignment(1)


FOUND = {
    "a free slot that holds the beginning is taken as it is": (3, used, STEM, [*STEM, 1, 2], SlotAssignment(0, 40)),
    "the last token is always computed": (1, used, STEM, STEM, SlotAssignment(0, 39)),
    "the beginning of a running text is copied": (2, live, STEM, [*STEM[:20], 1, 2], SlotAssignment(1, 20, 0)),
    "a long text is not overwritten while a slot is empty": (2, used, STEM, [*STEM[:20], 1], SlotAssignment(1, 20, 0)),
    "few tokens in common are not reused": (2, used, STEM, [*STEM[:15], 1, 2, 3], SlotAssignment(1)),
    "as many as are worth it are": (2, used, STEM, [*STEM[:LEAST_REUSE], 1], SlotAssignment(1, LEAST_REUSE, 0)),
}


@pytest.mark.parametrize(("count", "before", "held", "tokens", "assignment"), FOUND.values(), ids=FOUND)
def test_slot_of_a_text_depends_on_what_a_slot_holds(count, before, held, tokens, assignment) -> None:
    slots = CacheSlots(count)
    before(slots, held)
    assert slots.find(tokens) == assignment


def test_longest_beginning_wins() -> None:
    slots = CacheSlots(4)
    live(slots, STEM[:20])
    live(slots, STEM[:30])
    live(slots, [*STEM[:25], 0, 0, 0, 0, 0, 0, 0])
    assert slots.find([*STEM, 1]) == SlotAssignment(3, 30, source=1)


def test_what_was_left_longest_ago_is_overwritten_first() -> None:
    slots = CacheSlots(3)
    for number in (0, 1, 2):
        assert used(slots, [number] * 20) == number
    assignment = slots.find([0] * 21)
    assert assignment == SlotAssignment(0, 20)
    slots.assign(assignment, [0] * 21)
    slots.release(0)
    assert slots.find([9] * 20) == SlotAssignment(1)


def test_copied_tokens_are_offered_only_after_the_step() -> None:
    slots = CacheSlots(3)
    live(slots, STEM)
    assignment = slots.find([*STEM[:20], 1])
    assert assignment == SlotAssignment(1, 20, source=0)
    slots.assign(assignment, [*STEM[:20], 1])
    assert slots.holds(1) == []
    slots.mark_computed(1, 21)
    assert slots.holds(1) == [*STEM[:20], 1]


def test_taken_slot_offers_only_what_its_new_text_keeps() -> None:
    slots = CacheSlots(2)
    used(slots, STEM)
    tokens = [*STEM[:39], 1]
    slots.assign(SlotAssignment(0, 39), tokens)
    assert slots.find([*STEM, 1]) == SlotAssignment(1, 39, source=0)


def test_tokens_that_come_later_do_not_change_what_a_slot_holds() -> None:
    slots = CacheSlots(1)
    tokens = list(STEM)
    live(slots, tokens)
    tokens.append(7)
    assert slots.holds(0) == STEM


def test_unsound_rows_are_forgotten() -> None:
    slots = CacheSlots(1)
    live(slots, STEM)
    slots.release(0, valid=False)
    assert slots.find([*STEM, 1]) == SlotAssignment(0)


def test_slot_that_is_read_is_not_taken() -> None:
    slots = CacheSlots(2)
    used(slots, STEM)
    assert slots.find([*STEM, 1], kept={0}) == SlotAssignment(1, len(STEM), source=0)
    assert slots.find([*STEM, 1], kept={0, 1}) is None


def test_without_memory_the_lowest_slot_is_taken() -> None:
    slots = CacheSlots(3, prefix_reuse=False)
    assert used(slots, STEM) == 0
    assert used(slots, [1] * 30) == 0
    assert live(slots, STEM) == 0
    assert slots.find([*STEM, 1]) == SlotAssignment(1)


def test_trial_does_not_touch_the_slots() -> None:
    slots = CacheSlots(2)
    used(slots, STEM)
    trial = slots.copy()
    trial.assign(SlotAssignment(0), [1])
    assert slots.free == [0, 1]
    assert slots.holds(0) == STEM
    assert trial.free == [1]


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 100, 1000])
def test_common_beginning_is_counted_exactly(length: int) -> None:
    dice = random.Random(length)
    one = [dice.randrange(5) for _ in range(length)]
    for same in {0, 1, length // 3, length // 2, length - 1, length} & set(range(length + 1)):
        other = [*one[:same], *(token + 1 for token in one[same:])]
        assert common_prefix(one, other, length) == same
        assert common_prefix(one, other, same // 2) == same // 2
