"""One text inside an engine, from its arrival to its end.

There is no difference in kind between a prompt and output: a text has ``tokens``, and its place holds the cache of the
first ``done`` of them. Whatever is behind gets rows in the next steps; one row behind is what decoding is.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Phase(enum.Enum):
    """Where a text is in its life."""

    WAITING = "it has no place: it has not started, or a more urgent one took its place"
    PREFILL = "it has a place, which does not hold all of its tokens yet"
    DECODE = "its place holds all tokens but the last one drawn"
    ENDED = "it is out of the roster, and its place is free"


_NEXT = {
    Phase.WAITING: frozenset({Phase.PREFILL, Phase.ENDED}),
    Phase.PREFILL: frozenset({Phase.DECODE, Phase.WAITING, Phase.ENDED}),
    Phase.DECODE: frozenset({Phase.WAITING, Phase.ENDED}),
    Phase.ENDED: frozenset[Phase](),
}


@dataclass(slots=True, eq=False)
class GenerationState:
    """Changed by the engine's thread only, and there by the roster. Times are of the clock's ``monotonic``, in seconds.

    ``tokens`` only grows: others keep the list, with a count, for as long as a place holds these tokens.
    """

    number: int
    """Order of arrival; no two have the same."""
    tokens: list[int]
    """Prompt, then output."""
    prompt_length: int
    limit: int
    """The most output tokens. 0: nothing is drawn, the text is over when ``done == len(tokens)``."""
    priority: int
    """Lower is sooner."""
    arrived: float
    deadline: float | None
    reusable: bool = True
    """False: every row has to be computed, whoever has the same tokens."""
    done: int = 0
    """Tokens whose keys and values are in the place."""
    place: int | None = None
    phase: Phase = Phase.WAITING
    cached: int = 0
    """Tokens of the prompt that had not to be computed at its first start."""
    cached_asked: int = 0
    """Tokens of the prompt that were looked up then."""
    preemptions: int = 0
    started: float | None = None
    """When it got a place for the first time."""
    work: Any = None
    """The engine's own."""

    @property
    def output(self) -> int:
        """Count of output tokens."""
        return len(self.tokens) - self.prompt_length

    @property
    def behind(self) -> int:
        """Count of tokens that have yet to go through the network."""
        return len(self.tokens) - self.done


def move(text: GenerationState, phase: Phase) -> None:
    """The one way from phase to phase. RuntimeError for a step that no text takes."""
    if phase not in _NEXT[text.phase]:
        raise RuntimeError(f"text {text.number} cannot go from {text.phase.name} to {phase.name}")
    text.phase = phase
