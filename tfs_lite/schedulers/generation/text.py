"""One text inside an engine, from its arrival to its end: what was asked for, and how far it is.

    Text --rows--> Rows -> (step) -> SampledToken --process_output--> Piece or Status -> Text.deliver

Prompt and output are treated alike: a text has ``tokens``, and its slot holds keys and values of the first ``done`` of
them. The others get rows in the next steps; a text that decodes is one row behind. The cost of a step does not grow
with the length of the text.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tfs_lite.core.generation import Finish, Generation, Piece, Rows, SampledToken, SamplingRequest, TokenLogprob, Usage
from tfs_lite.core.status import Status
from tfs_lite.schedulers.generation.detokenizer import Detokenizer, DetokenizerOutput


class Phase(enum.Enum):
    """The phase of a text."""

    WAITING = "it has no slot: it has not started, or a more urgent text took its slot"
    PREFILL = "it has a slot, which does not hold all of its tokens yet"
    DECODE = "its slot holds all tokens but the last one drawn"
    ENDED = "it is out of the running batch, and its slot is free"


_NEXT = {
    Phase.WAITING: frozenset({Phase.PREFILL, Phase.ENDED}),
    Phase.PREFILL: frozenset({Phase.DECODE, Phase.WAITING, Phase.ENDED}),
    Phase.DECODE: frozenset({Phase.WAITING, Phase.ENDED}),
    Phase.ENDED: frozenset[Phase](),
}


@dataclass(slots=True, eq=False)
class Text:
    """One text, checked and tokenized. It has two regions:

    - What was asked for, from ``wanted`` to ``deliver``. The submitter sets it, and it stays until the end.
    - How far it is: all below. The engine sets ``number``, ``arrived`` and ``detokenizer`` when it takes the text; from
      then on only the engine's thread reads and changes this region, phase and slot through the scheduler.

    Times are in seconds of the engine's clock. ``tokens`` is a copy that only grows: cache slots keep the list, with a
    count, for as long as they hold these tokens.
    """

    wanted: Generation
    tokens: list[int]
    """The tokens of the prompt, then those of the output, which are of the second region."""
    limit: int
    """The most output tokens. With 0 the prompt is only scored, and the text ends when ``done == len(tokens)``."""
    seed: int
    """The seed that counts instead of that in ``wanted``."""
    deadline: float | None
    index: int
    """The index of its pieces."""
    deliver: Callable[[Text, Piece | Status], None]
    """The function that gets the pieces in order, the last one with ``finish``, or a status instead of that; on the
    engine's thread, or on the one that closes the engine. It must be short, not block and not raise."""

    number: int = -1
    """The number of its arrival; no two texts have the same."""
    arrived: float = 0.0
    detokenizer: Detokenizer = field(init=False, repr=False)
    prompt_length: int = field(init=False)
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
    """The time when the text got a slot for the first time."""
    first_token_at: float | None = None
    """The times when the first token came, and the last one so far."""
    last_token_at: float | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """The log probabilities of the prompt's computed tokens, if they are wanted."""

    def __post_init__(self) -> None:
        self.tokens, self.prompt_length = list(self.tokens), len(self.tokens)
        if self.wanted.score_prompt:
            self.prompt_logprobs += [TokenLogprob(token, None) for token in self.tokens[:1]]

    @property
    def output(self) -> int:
        """The number of output tokens."""
        return len(self.tokens) - self.prompt_length

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_length, self.detokenizer.count, self.cached)

    def rows(self, scheduled: ScheduledTokens) -> Rows:
        """The scheduled rows, as the model takes them."""
        sampling, start = self.wanted.sampling, scheduled.start
        if self.slot is None:
            raise ValueError(f"text {self.number} has no slot, and cannot be in a step")
        tokens, end = self.tokens, start + scheduled.count
        draw = None
        if scheduled.draws:
            banned = self.detokenizer.banned
            draw = SamplingRequest(sampling, self.seed, self.output, tokens, self.prompt_length, banned)
        if self.prompt_logprobs and len(self.prompt_logprobs) < self.prompt_length:
            targets = tokens[start + 1 : min(end + 1, self.prompt_length)]
            return Rows(self.slot, start, tokens[start:end], draw, targets, sampling.logprobs or 0)
        return Rows(self.slot, start, tokens[start:end], draw)

    def process_output(self, scheduled: ScheduledTokens, sampled: SampledToken, now: float) -> StepOutput:
        """Takes the result of the scheduled rows. Tokens and phase stay as they are: the scheduler changes them."""
        if sampled.targets:
            self.prompt_logprobs.extend(sampled.targets[len(self.prompt_logprobs) - scheduled.start - 1 :])
        if sampled.token is not None and scheduled.draws:
            return self._process_token(sampled.token, sampled, now)
        if self.limit == 0 and scheduled.start + scheduled.count == len(self.tokens):
            return StepOutput(self, None, self._piece((), DetokenizerOutput(finish=Finish.LENGTH), ()))
        return StepOutput(self)

    def _process_token(self, token: int, sampled: SampledToken, now: float) -> StepOutput:
        logprobs: tuple[TokenLogprob, ...] = ()
        if sampled.logprob is not None:
            logprobs = (TokenLogprob(token, sampled.logprob, sampled.top),)
        piece = self._piece((token,), self.detokenizer.push(token), logprobs)
        self.last_token_at = now
        if self.first_token_at is None:
            self.first_token_at = now
        return StepOutput(self, token, piece)

    def _piece(self, tokens: Sequence[int], output: DetokenizerOutput, logprobs: tuple[TokenLogprob, ...]) -> Piece:
        text, finish, stop = output
        if self.first_token_at is None:
            text = self.detokenizer.prompt_text + text
            logprobs = (*self.prompt_logprobs, *logprobs)
        usage = self.usage if finish is not None else None
        return Piece(self.index, tuple(tokens), text, logprobs, finish, stop, usage)


@dataclass(frozen=True, slots=True)
class ScheduledTokens:
    """The rows of one text in a step: ``count`` tokens from ``start`` on. ``draws``: the last row is that of its last
    token, and the next token is wanted."""

    text: Text
    start: int
    count: int
    draws: bool


class StepOutput(NamedTuple):
    """What a step did for a text: the ``token`` to append, and the ``event`` to deliver. None means that there is
    none."""

    text: Text
    token: int | None = None
    event: Piece | Status | None = None

    @property
    def is_over(self) -> bool:
        return self.event is not None and (isinstance(self.event, Status) or self.event.finish is not None)


def change_phase(text: Text, phase: Phase) -> None:
    """Changes the phase. Raises RuntimeError for a change that is not allowed."""
    if phase not in _NEXT[text.phase]:
        raise RuntimeError(f"text {text.number} cannot go from {text.phase.name} to {phase.name}")
    text.phase = phase
