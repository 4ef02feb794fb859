"""Which rows of a step lie where in a forward, and which attention calls read them."""

from __future__ import annotations

import pytest
import torch

from tfs_lite.adapters.language.layout import Part, StepLayout, layout_of, parts_of
from tfs_lite.core.generation import Rows, Sampling, SamplingRequest, Step

DRAW = SamplingRequest(Sampling(), 0, 0, [], 0)


def _single(slot: int, end: int) -> Rows:
    return Rows(slot, end - 1, [slot], DRAW)


def _layout(*rows: Rows, cost: float = 1000) -> StepLayout:
    return layout_of(Step(rows), torch.device("cpu"), torch.float32, cost)


def _seen(layout: StepLayout, window: int | None = None, masks_only: bool = False) -> dict[tuple[int, int], list[int]]:
    """Of each slot and position, the positions of the slot that it sees."""
    seen = {}
    for call in layout.calls(window, masks_only):
        part = call.part
        columns = range(call.columns.start, call.columns.stop)
        for index, end in enumerate(part.ends):
            slot = part.slots.start + (0 if part.one_text else index)
            if call.mask is not None:
                mask = call.mask[0, 0, index] if part.one_text else call.mask[index, 0, 0]
                found = [column for column, hidden in zip(columns, mask.tolist(), strict=True) if hidden == 0]
            else:
                found = [column for column in columns if not call.causal or column <= columns.start + index]
            seen[slot, end - 1] = found
    return seen


def test_single_rows_come_first_and_by_slot() -> None:
    layout = _layout(Rows(0, 0, [10, 11]), Rows(3, 5, [12]), Rows(2, 7, [13]))
    assert layout.ids.tolist() == [[13, 12, 10, 11]]
    assert layout.positions.tolist() == [[7, 5, 0, 1]]
    assert layout.slots.tolist() == [2, 3, 0, 0]


def test_wanted_rows_are_in_the_order_of_the_step_and_each_comes_once() -> None:
    layout = _layout(
        Rows(0, 0, [10, 11, 12], DRAW, targets=[11]),
        Rows(3, 5, [13], DRAW),
        Rows(1, 0, [14, 15]),
        Rows(2, 0, [16, 17], DRAW, targets=[17, 18]),
    )
    assert layout.wanted is not None
    picked = layout.ids[0, layout.wanted].tolist()
    assert picked == [10, 12, 13, 16, 17]


def test_a_step_that_wants_all_rows_in_order_picks_none() -> None:
    assert _layout(_single(0, 4), _single(1, 9)).wanted is None
    assert _layout(_single(1, 4), _single(0, 9)).wanted is not None


def test_neighbouring_slots_share_a_call_and_others_do_not() -> None:
    parts = parts_of([_single(0, 5), _single(1, 7), _single(3, 6)], 1000)
    assert parts == [Part(slice(0, 2), slice(0, 2), (5, 7)), Part(slice(2, 3), slice(3, 4), (6,))]


def test_a_chunk_has_a_call_of_its_own_also_beside_its_neighbours() -> None:
    parts = parts_of([_single(0, 5), Rows(1, 3, [1, 2, 3])], 1000)
    assert [(part.rows, part.slots, part.ends) for part in parts] == [
        (slice(0, 1), slice(0, 1), (5,)),
        (slice(1, 4), slice(1, 2), (4, 5, 6)),
    ]


@pytest.mark.parametrize(
    ("ends", "cost", "shared"),
    [
        ([20, 20, 20, 20], 0, [4]),
        ([900, 20, 20, 20], 85, [1, 3]),
        ([20, 20, 900, 20], 85, [2, 1, 1]),
        ([20, 60, 50], 85, [3]),
        ([900, 20, 20], 10_000, [3]),
        ([5, 6, 7], 0, [1, 1, 1]),
    ],
)
def test_texts_of_very_unequal_lengths_do_not_share_a_call(ends: list[int], cost: float, shared: list[int]) -> None:
    parts = parts_of([_single(slot, end) for slot, end in enumerate(ends)], cost)
    assert [len(part.ends) for part in parts] == shared


@pytest.mark.parametrize("window", [None, 1, 3, 6, 100])
@pytest.mark.parametrize("cost", [0, 1000])
@pytest.mark.parametrize("masks_only", [False, True])
def test_every_row_sees_its_slot_up_to_itself_and_no_further_back_than_the_window(
    window: int | None, cost: float, masks_only: bool
) -> None:
    rows = [_single(0, 5), _single(1, 9), _single(2, 1), Rows(3, 0, [1] * 5), Rows(4, 4, [1] * 5), Rows(5, 0, [1, 2])]
    layout = _layout(*rows, cost=cost)
    expected = {}
    for entry in rows:
        for own in range(entry.start, entry.start + len(entry.tokens)):
            expected[entry.slot, own] = list(range(max(0, own + 1 - (window or 1000)), own + 1))
    assert _seen(layout, window, masks_only) == expected


def test_masks_are_made_once_for_all_layers() -> None:
    layout = _layout(_single(0, 5), _single(1, 9))
    assert layout.calls(None) is layout.calls(None)
    assert layout.calls(4) is not layout.calls(None)


def test_texts_of_one_length_need_no_mask() -> None:
    layout = _layout(_single(0, 5), _single(1, 5))
    assert [call.mask for call in layout.calls(None)] == [None]
    assert layout.masked_widths == []


def test_those_read_past_their_end_are_told() -> None:
    layout = _layout(_single(0, 5), _single(1, 9), _single(2, 8), Rows(3, 0, [1, 2, 3]))
    assert layout.masked_widths == [(0, 5, 9), (2, 8, 9)]
