"""Where the implicit state of each sequence is kept between two of its requests: with its slot."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tfs_lite.schedulers.sequence.request import SequenceId, Slot
from tfs_lite.schedulers.sequence.states import Values


class Memory:
    """Bookkeeping only, not for several threads at once. A slot keeps one state at most. Nobody finds that of another
    sequence there, for every sequence begins with a START, which asks for none. That of a sequence whose id was started
    again before its last request ran may be kept until then."""

    def __init__(self) -> None:
        self._kept: dict[Slot, tuple[SequenceId, Values]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, slot: Slot) -> Values | None:
        kept = self._kept.get(slot)
        return None if kept is None else kept[1]

    def keep(self, slot: Slot, id: SequenceId, values: Values) -> None:
        self._kept[slot] = id, values

    def drop(self, slot: Slot) -> None:
        """Nothing, if there is none."""
        self._kept.pop(slot, None)

    def forget(self, ids: Collection[SequenceId], needed: Callable[[Slot], bool]) -> None:
        """Drops the states of these sequences, but where a request will ask for one."""
        for slot in [slot for slot, (id, _) in self._kept.items() if id in ids and not needed(slot)]:
            del self._kept[slot]
