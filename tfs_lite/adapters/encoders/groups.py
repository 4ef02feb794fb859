"""The grouping of a batch's rows into forwards: as many rows as fit where no row is padded, else rows of about the same
length.

A row is padded to the longest of its group. Of a group's tokens at most a sixteenth is padding, or as many tokens as a
forward costs besides its tokens, where that is more: many short forwards would cost more than the padding that they
save.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

CPU_FORWARD, GPU_FORWARD = 16, 4096
"""The cost of a forward besides its tokens, in tokens."""
SHARE = 16
MAX_ROWS = 256
Grouping = Callable[[Sequence[int]], list[list[int]]]


def group_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """The indices of the rows, in groups; each index once, the longest rows first. A group has at most ``max_tokens``
    tokens, or one row."""
    groups: list[list[int]] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        tokens += lengths[index]
        if not groups or tokens > max_tokens:
            groups.append([])
            tokens = lengths[index]
        groups[-1].append(index)
    return groups


def group_by_length(
    lengths: Sequence[int], max_tokens: int, few: int = CPU_FORWARD, pads: bool = True
) -> list[list[int]]:
    """The indices of the rows, in groups; each index once, the longest rows first. A group has at most ``max_tokens``
    tokens with its padding, or one row. ``few``: tokens of padding that are worth a forward less. Without ``pads`` all
    rows of a group are of the same length."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    groups: list[list[int]] = []
    longest = padding = 0
    for index in order:
        rows = len(groups[-1]) + 1 if groups else 0
        more = padding + longest - lengths[index]
        allowed = max(few, (longest * rows - more) // SHARE) if pads else 0
        if not rows or more > allowed or rows > MAX_ROWS or rows * longest > max_tokens:
            groups.append([])
            longest, more = lengths[index], 0
        padding = more
        groups[-1].append(index)
    return groups


def group_apart(lengths: Sequence[int], shared: int, max_tokens: int, group: Grouping) -> list[list[int]]:
    """The indices of the rows, in groups: by ``group`` those of at most ``shared`` tokens; longer ones are only with
    those of their own length."""
    if max(lengths, default=0) <= shared:
        return group(lengths)
    near = [index for index, length in enumerate(lengths) if length <= shared]
    far = [index for index, length in enumerate(lengths) if length > shared]
    found = [[near[place] for place in places] for places in group([lengths[index] for index in near])]
    alike = group_by_length([lengths[index] for index in far], max_tokens, pads=False)
    return found + [[far[place] for place in places] for places in alike]
