"""A text on its way through the engine: what came in, the rows that it gives to a step, and what it says to the token
that comes back.

    Job -> Entry --rows--> Rows -> (step) -> Drawn --hear--> Piece or Status -> Job.deliver

Nothing here grows with the length of the text, except that the rows of a step are cut out of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tfs_lite.core.generation import Finish, Generation, Piece, Rows, SampledToken, SamplingRequest, TokenLogprob, Usage
from tfs_lite.core.status import Status
from tfs_lite.schedulers.generation.detokenizer import Detokenizer, DetokenizerOutput
from tfs_lite.schedulers.generation.text import GenerationState


@dataclass(slots=True, eq=False)
class Job:
    """One text, as it is handed in: checked, and with tokens. Not to be changed afterwards.

    ``limit``: the most output tokens, 0 for a prompt that is only read. ``seed``: the one that counts, whatever
    ``wanted`` says. ``deadline``: in seconds of the engine's clock. ``index``: that of its pieces. ``deliver``: gets
    the pieces in order, the last with ``finish``, or a status instead of that; on the engine's thread, or on the one
    that closes the engine. It is short, does not block and does not raise."""

    wanted: Generation
    tokens: list[int]
    limit: int
    seed: int
    deadline: float | None
    index: int
    deliver: Callable[[Job, Piece | Status], None]


class StepOutput(NamedTuple):
    """What has become of a text. ``token``: the one to append. ``event``: to be delivered; None: nothing yet."""

    entry: Entry
    token: int | None = None
    event: Piece | Status | None = None

    @property
    def is_over(self) -> bool:
        return self.event is not None and (isinstance(self.event, Status) or self.event.finish is not None)


class Entry:
    """A job inside the engine, from which the engine's thread alone takes steps."""

    __slots__ = ("_scores", "first", "job", "last", "text", "words")

    def __init__(self, job: Job, text: GenerationState, words: Detokenizer) -> None:
        text.work = self
        self.job = job
        self.text = text
        self.words = words
        self.first: float | None = None
        """When the first token came, and the last so far, in seconds of the clock."""
        self.last: float | None = None
        self._scores: list[TokenLogprob] = []
        if job.wanted.score_prompt:
            self._scores.append(TokenLogprob(job.tokens[0], None))

    def rows(self, start: int, count: int, draws: bool) -> Rows:
        """Its share of the next step."""
        text, job = self.text, self.job
        if text.place is None:
            raise ValueError(f"text {text.number} has no place, and cannot be in a step")
        tokens = text.tokens
        draw = None
        if draws:
            at = len(tokens) - text.prompt_length
            draw = SamplingRequest(job.wanted.sampling, job.seed, at, tokens, text.prompt_length, self.words.banned)
        if self._scores and len(self._scores) < text.prompt_length:
            targets = tokens[start + 1 : min(start + count + 1, text.prompt_length)]
            return Rows(text.place, start, tokens[start : start + count], draw, targets, self._logprobs)
        return Rows(text.place, start, tokens[start : start + count], draw)

    def hear(self, start: int, count: int, draws: bool, drawn: SampledToken, now: float) -> StepOutput:
        """What came of these rows. Changes neither the text nor its tokens, which are the roster's."""
        if drawn.targets:
            self._scores.extend(drawn.targets[len(self._scores) - start - 1 :])
        if drawn.token is not None and draws:
            return self._speak(drawn.token, drawn, now)
        if self.job.limit == 0 and start + count == len(self.text.tokens):
            return StepOutput(self, None, self._piece((), DetokenizerOutput(finish=Finish.LENGTH), ()))
        return StepOutput(self)

    def usage(self, output: int) -> Usage:
        return Usage(self.text.prompt_length, output, self.text.cached)

    @property
    def _logprobs(self) -> int:
        return self.job.wanted.sampling.logprobs or 0

    def _speak(self, token: int, drawn: SampledToken, now: float) -> StepOutput:
        logprobs: tuple[TokenLogprob, ...] = ()
        if drawn.logprob is not None:
            logprobs = (TokenLogprob(token, drawn.logprob, drawn.top),)
        piece = self._piece((token,), self.words.push(token), logprobs)
        self.last = now
        if self.first is None:
            self.first = now
        return StepOutput(self, token, piece)

    def _piece(self, tokens: Sequence[int], said: DetokenizerOutput, logprobs: tuple[TokenLogprob, ...]) -> Piece:
        text, finish, stop = said
        if self.first is None:
            text = self.words.opening + text
            logprobs = (*self._scores, *logprobs)
        usage = self.usage(self.words.count) if finish is not None else None
        return Piece(self.job.index, tuple(tokens), text, logprobs, finish, stop, usage)
