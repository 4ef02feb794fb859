"""Rows that share a forward are about as long as one another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.adapters.encoders.groups import MAX_ROWS, group_by_length, group_by_tokens

LENGTHS = st.lists(st.integers(1, 600), max_size=400)


@given(LENGTHS, st.integers(1, 5000), st.booleans())
def test_every_row_is_in_one_group_and_no_group_is_too_large(lengths: list[int], most: int, pads: bool) -> None:
    groups = group_by_length(lengths, most, pads=pads)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[index] for index in group)
        assert len(group) == 1 or (len(group) * longest <= most and len(group) <= MAX_ROWS)


@given(LENGTHS, st.integers(0, 100))
def test_padding_of_a_group_is_at_most_a_sixteenth_or_a_few_tokens(lengths: list[int], few: int) -> None:
    for group in group_by_length(lengths, 1 << 20, few):
        tokens = sum(lengths[index] for index in group)
        padding = max(lengths[index] for index in group) * len(group) - tokens
        assert padding <= max(few, tokens // 16)


@given(LENGTHS)
def test_without_padding_all_rows_of_a_group_are_of_one_length(lengths: list[int]) -> None:
    for group in group_by_length(lengths, 1 << 20, pads=False):
        assert len({lengths[index] for index in group}) == 1


def test_rows_of_one_length_stay_in_their_order() -> None:
    assert group_by_length([5, 5, 5], 100) == [[0, 1, 2]]
    assert group_by_length([], 100) == []


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 120))
def test_rows_that_need_no_padding_fill_their_groups(lengths: list[int], most: int) -> None:
    groups = group_by_tokens(lengths, most)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    sizes = [sum(lengths[index] for index in group) for group in groups]
    assert all(size <= most or len(group) == 1 for size, group in zip(sizes, groups, strict=True))
    assert all(size + lengths[after[0]] > most for size, after in zip(sizes, groups[1:], strict=False))
    flat = [lengths[index] for group in groups for index in group]
    assert flat == sorted(lengths, reverse=True)
