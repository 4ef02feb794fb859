"""How many prompt rows a step with decoding texts may have, so that their next token is not much delayed.

A step with prompt rows takes longer, and every decoding text waits for it. The seconds that a row adds are measured in
the steps themselves; a long prompt gets as many rows in a step as fit into ``slowdown`` times a step without prompts.
"""

from __future__ import annotations

LEAST_ROWS = 16
"""The least budget, so that every prompt makes progress."""
FIRST_ROWS = 64
"""The budget before any row has been measured."""
NEW = 0.25
"""Weight of the last step in an average."""


class PrefillBudget:
    """``slowdown``: how many times as long as one without prompts a step may take, above 1. One thread."""

    def __init__(self, slowdown: float) -> None:
        self._slowdown = slowdown
        self._decode_seconds = 0.0  # of a step of decoding texts only; 0: not known
        self._row_seconds = 0.0  # that one more row takes; 0: not known

    @property
    def rows(self) -> int | None:
        """The rows of long prompts in a step with decoding texts. None before such a step has been measured."""
        if not self._decode_seconds:
            return None
        if not self._row_seconds:
            return FIRST_ROWS
        return max(LEAST_ROWS, int((self._slowdown - 1) * self._decode_seconds / self._row_seconds))

    def record(self, decoding: int, prompt_rows: int, seconds: float) -> None:
        """Takes the time of a step with so many decoding texts and prompt rows."""
        if seconds <= 0 or not decoding:
            return
        if not prompt_rows:
            self._decode_seconds = _mean(self._decode_seconds, seconds)
        elif self._decode_seconds:
            # In a step as fast as one without prompts a row costs next to nothing, and not less than nothing.
            more = max(seconds - self._decode_seconds, self._decode_seconds / 100)
            self._row_seconds = _mean(self._row_seconds, more / prompt_rows)


def _mean(before: float, now: float) -> float:
    return before + NEW * (now - before) if before else now
