"""Rows that share a forward are about as long as one another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.adapters.encoders.groups import FEW, MAX_ROWS, group_by_length

LENGTHS = st.lists(st.integers(1, 600), max_size=400)


@given(LENGTHS, st.integers(1, 5000), st.booleans())
def test_every_row_is_in_one_group_and_no_group_is_too_large(lengths: list[int], most: int, pads: bool) -> None:
    groups = group_by_length(lengths, most, pads)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[index] for index in group)
        assert len(group) == 1 or (len(group) * longest <= most and len(group) <= MAX_ROWS)


@given(LENGTHS)
def test_no_row_is_padded_by_more_than_a_quarter_or_a_few_tokens(lengths: list[int]) -> None:
    for group in group_by_length(lengths, 1 << 20):
        longest = max(lengths[index] for index in group)
        assert all(longest - lengths[index] <= max(FEW, longest // 4) for index in group)


@given(LENGTHS)
def test_without_padding_all_rows_of_a_group_are_of_one_length(lengths: list[int]) -> None:
    for group in group_by_length(lengths, 1 << 20, pads=False):
        assert len({lengths[index] for index in group}) == 1


def test_rows_of_one_length_stay_in_their_order() -> None:
    assert group_by_length([5, 5, 5], 100) == [[0, 1, 2]]
    assert group_by_length([], 100) == []
