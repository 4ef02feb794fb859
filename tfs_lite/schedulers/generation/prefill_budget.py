"""How many rows of prompts may go beside texts that decode, so that their next token does not come much later.

A step with prompt rows takes longer than one without, and every decoding text waits for it. How much longer a row makes
it is learnt from the steps themselves; a long prompt then gets as many rows a step as fit into ``slowdown`` times the
step of those that decode alone. One thread.
"""

from __future__ import annotations

LEAST_ROWS = 16
"""However slow they are: else a prompt would never be read."""
FIRST_ROWS = 64
"""Of the first prompt, while nobody knows what a row takes."""
NEW = 0.25
"""Weight of the last step in an average."""


class PrefillBudget:
    """``slowdown``: how many times as long as one without prompts a step may take, above 1."""

    def __init__(self, slowdown: float) -> None:
        self._slowdown = slowdown
        self._alone = 0.0  # seconds of a step of decoding texts only; 0: not known
        self._row = 0.0  # seconds that one more row takes; 0: not known

    @property
    def rows(self) -> int | None:
        """Of long prompts, in a step with decoding texts; None: there is nothing to go by yet."""
        if not self._alone:
            return None
        if not self._row:
            return FIRST_ROWS
        return max(LEAST_ROWS, int((self._slowdown - 1) * self._alone / self._row))

    def took(self, decoding: int, prompt_rows: int, seconds: float) -> None:
        """A step with so many decoding texts and so many rows of prompts is over."""
        if seconds <= 0 or not decoding:
            return
        if not prompt_rows:
            self._alone = _mean(self._alone, seconds)
        elif self._alone:
            # Of a step that was as fast as one without prompts, rows cost next to nothing, and not less.
            more = max(seconds - self._alone, self._alone / 100)
            self._row = _mean(self._row, more / prompt_rows)


def _mean(before: float, now: float) -> float:
    return before + NEW * (now - before) if before else now
