"""The state of one text inside an engine, from its arrival to its end.

Prompt and output are treated alike: a text has ``tokens``, and its slot holds keys and values of the first ``done`` of
them. The others get rows in the next steps; a text that decodes is one row behind.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Phase(enum.Enum):
    """The phase of a text."""

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
    """Changed by the scheduler only, on the engine's thread. Times are those of the clock's ``monotonic``, in seconds.

    ``tokens`` only grows: cache slots keep the list, with a count, for as long as they hold these tokens.
    """

    number: int
    """Order of arrival; no two have the same."""
    tokens: list[int]
    """Prompt, then output."""
    prompt_length: int
    limit: int
    """The most output tokens. With 0 nothing is drawn, and the text ends when ``done == len(tokens)``."""
    priority: int
    """Lower is more urgent."""
    arrived: float
    deadline: float | None
    reusable: bool = True
    """False: every row has to be computed, also where a slot holds the same tokens."""
    done: int = 0
    """Tokens whose keys and values are in the slot."""
    slot: int | None = None
    phase: Phase = Phase.WAITING
    cached: int = 0
    """Prompt tokens that were reused at its first start."""
    cached_asked: int = 0
    """Prompt tokens that were looked up then."""
    preemptions: int = 0
    started: float | None = None
    """When it got a slot for the first time."""
    job_state: Any = None
    """The engine's :class:`~tfs_lite.schedulers.generation.job.JobState` of this text."""

    @property
    def output(self) -> int:
        """The number of output tokens."""
        return len(self.tokens) - self.prompt_length

    @property
    def behind(self) -> int:
        """The number of tokens that have yet to go through the network."""
        return len(self.tokens) - self.done


def change_phase(text: GenerationState, phase: Phase) -> None:
    """RuntimeError for a change that is not allowed."""
    if phase not in _NEXT[text.phase]:
        raise RuntimeError(f"text {text.number} cannot go from {text.phase.name} to {phase.name}")
    text.phase = phase
