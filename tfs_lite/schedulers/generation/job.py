"""A job of the engine, which is one text: what was asked for, its rows of a step, and its output of a step.

    Job -> JobState --rows--> Rows -> (step) -> SampledToken --process_output--> Piece or Status -> Job.deliver

The cost of a step does not grow with the length of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tfs_lite.core.generation import Finish, Generation, Piece, Rows, SampledToken, SamplingRequest, TokenLogprob, Usage
from tfs_lite.core.status import Status
from tfs_lite.schedulers.generation.detokenizer import Detokenizer, DetokenizerOutput
from tfs_lite.schedulers.generation.generation_state import GenerationState
from tfs_lite.schedulers.generation.planner import ScheduledTokens


@dataclass(slots=True, eq=False)
class Job:
    """One text, checked and tokenized. It is not changed after it was submitted.

    ``limit`` is the most output tokens, 0 for a prompt that is only scored. ``seed`` counts instead of that in
    ``wanted``. ``deadline`` is in seconds of the engine's clock. ``index`` is that of its pieces. ``deliver`` gets the
    pieces in order, the last one with ``finish``, or a status instead of that; on the engine's thread, or on the one
    that closes the engine. It must be short, not block and not raise."""

    wanted: Generation
    tokens: list[int]
    limit: int
    seed: int
    deadline: float | None
    index: int
    deliver: Callable[[Job, Piece | Status], None]


class StepOutput(NamedTuple):
    """What a step did for a text: the ``token`` to append, and the ``event`` to deliver. None means that there is
    none."""

    state: JobState
    token: int | None = None
    event: Piece | Status | None = None

    @property
    def is_over(self) -> bool:
        return self.event is not None and (isinstance(self.event, Status) or self.event.finish is not None)


class JobState:
    """A job inside the engine. It is made by the submitter and then used by the engine's thread only."""

    __slots__ = ("_prompt_logprobs", "detokenizer", "first_token_at", "job", "last_token_at", "text")

    def __init__(self, job: Job, text: GenerationState, detokenizer: Detokenizer) -> None:
        text.job_state = self
        self.job = job
        self.text = text
        self.detokenizer = detokenizer
        self.first_token_at: float | None = None
        """When the first token came, and the last one so far, in seconds of the clock."""
        self.last_token_at: float | None = None
        self._prompt_logprobs: list[TokenLogprob] = []
        if job.wanted.score_prompt:
            self._prompt_logprobs.append(TokenLogprob(job.tokens[0], None))

    def rows(self, scheduled: ScheduledTokens) -> Rows:
        """The scheduled rows, as the model takes them."""
        text, sampling, start = self.text, self.job.wanted.sampling, scheduled.start
        if text.slot is None:
            raise ValueError(f"text {text.number} has no place, and cannot be in a step")
        tokens, end = text.tokens, start + scheduled.count
        draw = None
        if scheduled.draws:
            banned = self.detokenizer.banned
            draw = SamplingRequest(sampling, self.job.seed, text.output, tokens, text.prompt_length, banned)
        if self._prompt_logprobs and len(self._prompt_logprobs) < text.prompt_length:
            targets = tokens[start + 1 : min(end + 1, text.prompt_length)]
            return Rows(text.slot, start, tokens[start:end], draw, targets, sampling.logprobs or 0)
        return Rows(text.slot, start, tokens[start:end], draw)

    def process_output(self, scheduled: ScheduledTokens, sampled: SampledToken, now: float) -> StepOutput:
        """Takes the result of the scheduled rows. It does not change the text, which is the scheduler's."""
        if sampled.targets:
            self._prompt_logprobs.extend(sampled.targets[len(self._prompt_logprobs) - scheduled.start - 1 :])
        if sampled.token is not None and scheduled.draws:
            return self._process_token(sampled.token, sampled, now)
        if self.job.limit == 0 and scheduled.start + scheduled.count == len(self.text.tokens):
            return StepOutput(self, None, self._piece((), DetokenizerOutput(finish=Finish.LENGTH), ()))
        return StepOutput(self)

    @property
    def usage(self) -> Usage:
        return Usage(self.text.prompt_length, self.detokenizer.count, self.text.cached)

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
            logprobs = (*self._prompt_logprobs, *logprobs)
        usage = self.usage if finish is not None else None
        return Piece(self.job.index, tuple(tokens), text, logprobs, finish, stop, usage)
