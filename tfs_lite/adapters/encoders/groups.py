"""Which rows of a batch share a forward: rows of about the same length, so that little of it is padding.

A row is padded to the longest of its group. The rule bounds that for each row: by a quarter of its group's longest, or
by 8 tokens where that is more. Many short forwards would cost more than the padding that they save.
"""

from __future__ import annotations

from collections.abc import Sequence

FEW = 8
"""Tokens of padding that are always worth a forward less."""
MAX_ROWS = 256


def group_by_length(lengths: Sequence[int], max_tokens: int, pads: bool = True) -> list[list[int]]:
    """The indices of the rows, in groups; each index once, the longest rows first. A group has at most ``max_tokens``
    tokens with its padding, or one row. Without ``pads`` all rows of a group are of the same length."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    groups: list[list[int]] = []
    longest = 0
    for index in order:
        length = lengths[index]
        padding = longest - length
        fits = groups and padding <= (max(FEW, longest // 4) if pads else 0)
        if not fits or len(groups[-1]) >= MAX_ROWS or (len(groups[-1]) + 1) * longest > max_tokens:
            groups.append([])
            longest = length
        groups[-1].append(index)
    return groups
