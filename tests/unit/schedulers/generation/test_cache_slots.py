"""What places hold, and which one a text gets."""

from __future__ import annotations

import random

import pytest

from tfs_lite.schedulers.generation.cache_slots import LEAST_REUSE, CacheSlots, SlotAssignment, common

STEM = list(range(100, 140))


def used(places: CacheSlots, tokens: list[int]) -> int:
    """A text with these tokens came, was computed and went; its place."""
    taking = places.find(None)
    assert taking is not None
    places.take(taking, tokens)
    places.grew(taking.place, len(tokens))
    places.release(taking.place)
    return taking.place


def live(places: CacheSlots, tokens: list[int]) -> int:
    taking = places.find(None)
    assert taking is not None
    places.take(taking, tokens)
    places.grew(taking.place, len(tokens))
    return taking.place


def test_lowest_empty_place_is_taken_first() -> None:
    places = CacheSlots(3)
    assert [live(places, [n]) for n in range(3)] == [0, 1, 2]
    assert places.find([1]) is None
    places.release(1)
    assert places.find([1]) == SlotAssignment(1)


def test_free_place_that_holds_the_beginning_is_taken_as_it_is() -> None:
    places = CacheSlots(3)
    used(places, STEM)
    assert places.find([*STEM, 1, 2]) == SlotAssignment(0, len(STEM))


def test_last_token_is_always_computed() -> None:
    places = CacheSlots(1)
    used(places, STEM)
    assert places.find(STEM) == SlotAssignment(0, len(STEM) - 1)


def test_beginning_of_a_running_text_is_copied() -> None:
    places = CacheSlots(2)
    live(places, STEM)
    assert places.find([*STEM[:20], 1, 2]) == SlotAssignment(1, 20, source=0)


def test_what_is_left_of_a_long_text_is_not_overwritten_while_there_is_an_empty_place() -> None:
    places = CacheSlots(2)
    used(places, STEM)
    assert places.find([*STEM[:20], 1, 2]) == SlotAssignment(1, 20, source=0)


def test_few_tokens_in_common_are_not_worth_it() -> None:
    places = CacheSlots(2)
    used(places, STEM)
    assert places.find([*STEM[: LEAST_REUSE - 1], 1, 2, 3]) == SlotAssignment(1)
    assert places.find([*STEM[:LEAST_REUSE], 1]) == SlotAssignment(1, LEAST_REUSE, source=0)


def test_longest_beginning_wins() -> None:
    places = CacheSlots(4)
    live(places, STEM[:20])
    live(places, STEM[:30])
    live(places, [*STEM[:25], 0, 0, 0, 0, 0, 0, 0])
    assert places.find([*STEM, 1]) == SlotAssignment(3, 30, source=1)


def test_what_was_left_longest_ago_is_overwritten_first() -> None:
    places = CacheSlots(3)
    for number in (0, 1, 2):
        assert used(places, [number] * 20) == number
    taking = places.find([0] * 21)
    assert taking == SlotAssignment(0, 20)
    places.take(taking, [0] * 21)
    places.release(0)
    assert places.find([9] * 20) == SlotAssignment(1)


def test_copied_tokens_are_offered_only_after_the_step() -> None:
    places = CacheSlots(3)
    live(places, STEM)
    taking = places.find([*STEM[:20], 1])
    assert taking == SlotAssignment(1, 20, source=0)
    places.take(taking, [*STEM[:20], 1])
    assert places.holds(1) == []
    places.grew(1, 21)
    assert places.holds(1) == [*STEM[:20], 1]


def test_taken_place_offers_only_what_its_new_text_keeps() -> None:
    places = CacheSlots(2)
    used(places, STEM)
    tokens = [*STEM[:39], 1]
    places.take(SlotAssignment(0, 39), tokens)
    assert places.find([*STEM, 1]) == SlotAssignment(1, 39, source=0)


def test_tokens_that_come_later_do_not_change_what_a_place_holds() -> None:
    places = CacheSlots(1)
    tokens = list(STEM)
    live(places, tokens)
    tokens.append(7)
    assert places.holds(0) == STEM


def test_unsound_rows_are_forgotten() -> None:
    places = CacheSlots(1)
    live(places, STEM)
    places.release(0, sound=False)
    assert places.find([*STEM, 1]) == SlotAssignment(0)


def test_place_that_is_read_is_not_taken() -> None:
    places = CacheSlots(2)
    used(places, STEM)
    assert places.find([*STEM, 1], kept={0}) == SlotAssignment(1, len(STEM), source=0)
    assert places.find([*STEM, 1], kept={0, 1}) is None


def test_without_memory_the_lowest_place_is_taken() -> None:
    places = CacheSlots(3, remembers=False)
    assert used(places, STEM) == 0
    assert used(places, [1] * 30) == 0
    assert live(places, STEM) == 0
    assert places.find([*STEM, 1]) == SlotAssignment(1)


def test_trial_does_not_touch_the_places() -> None:
    places = CacheSlots(2)
    used(places, STEM)
    trial = places.copy()
    trial.take(SlotAssignment(0), [1])
    assert places.free == [0, 1]
    assert places.holds(0) == STEM
    assert trial.free == [1]


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 100, 1000])
def test_common_beginning_is_counted_exactly(length: int) -> None:
    dice = random.Random(length)
    one = [dice.randrange(5) for _ in range(length)]
    for same in {0, 1, length // 3, length // 2, length - 1, length} & set(range(length + 1)):
        other = [*one[:same], *(token + 1 for token in one[same:])]
        assert common(one, other, length) == same
        assert common(one, other, same // 2) == same // 2
